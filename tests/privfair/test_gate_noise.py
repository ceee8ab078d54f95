"""The noise that leaves the gate is the signed one, tested at a false-alarm rate of 1e-12."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from calibrate.manifest.mechanism import GaussianNoise, LaplaceNoise, RandomizedCategory
from calibrate.plans.fair_plugin import PayOncePlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.mmd_fedavg import MmdFedavgPlan
from calibrate.privacy_unit import EpsilonDelta, NoiseKind
from privfair.contribution import BoundedContribution
from privfair.transcript import Transcript
from tests.privfair.small_runs import document_of, gate_for

pytestmark = pytest.mark.true_noise
ALARM = 1e-12
SIZE, ROUNDS = 4000, 3


def variance_accepted(residuals: np.ndarray, sigma: float) -> bool:
    """The exact chi-square test of the variance of Gaussian residuals."""
    low, high = stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], residuals.size)
    return bool(low <= float(residuals @ residuals) / sigma**2 <= high)


def released(folder: Path, plan: object, names: tuple[str, ...], values: np.ndarray, bound: float) -> Transcript:
    """Publish the same values in every round, for two silos."""
    shapes = dict.fromkeys(names, (SIZE,))
    document = document_of(plan, EpsilonDelta(1.0, 1e-5), shapes=shapes)  # type: ignore[arg-type]
    opened = gate_for(document, folder, shapes)
    for _ in range(ROUNDS):
        opened.gate.next_round()
        for party in ("north", "south"):
            for name in names:
                opened.gate.publish(party, BoundedContribution(name, values, bound, bound))
    opened.gate.finish()
    return Transcript.read(folder / "transcript.bin")


def test_gaussian_noise_has_the_signed_sigma_and_shape(tmp_path: Path) -> None:
    clip = 0.37
    plan = GaussianPlan(sampling_rate=1.0, rounds=ROUNDS, noise=(1.0, 3.0), clip=clip)
    values = np.linspace(-2, 2, SIZE)
    transcript = released(tmp_path, plan, ("value_1", "value_2"), values, clip)
    document = document_of(plan, EpsilonDelta(1.0, 1e-5))
    for name in ("value_1", "value_2"):
        declared = document.release(name)
        assert isinstance(declared, GaussianNoise)
        noise = np.concatenate([(transcript.values(p, name) - values).ravel() for p in ("north", "south")])
        assert variance_accepted(noise, declared.sigma)
        assert not variance_accepted(noise * 0.9, declared.sigma), "the test would not see a tenth missing"
        assert stats.kstest(noise / declared.sigma, "norm").pvalue > ALARM
        mean = stats.norm.isf(ALARM / 2) * declared.sigma / math.sqrt(noise.size)
        assert abs(noise.mean()) < mean


def test_noise_is_fresh_for_every_round_silo_and_value(tmp_path: Path) -> None:
    plan = GaussianPlan(sampling_rate=1.0, rounds=ROUNDS, noise=(1.0, 1.0))
    transcript = released(tmp_path, plan, ("value_1", "value_2"), np.zeros(SIZE), 1.0)
    drawn = np.concatenate(
        [transcript.values(party, name) for party in ("north", "south") for name in ("value_1", "value_2")]
    )
    correlations = np.corrcoef(drawn)[np.triu_indices(len(drawn), 1)]
    most = stats.norm.isf(ALARM / 2 / correlations.size) / math.sqrt(SIZE)
    assert np.abs(correlations).max() < most


def test_laplace_noise_has_the_signed_scale(tmp_path: Path) -> None:
    plan = MmdFedavgPlan(group_size=SIZE, samples_per_group=SIZE, rounds=ROUNDS, mechanism=NoiseKind.LAPLACE)
    names = tuple(value.name for value in plan.values())
    values = np.full(SIZE, 0.25)
    transcript = released(tmp_path, plan, names, values, 0.5)
    declared = document_of(plan, EpsilonDelta(1.0, 1e-5)).release(names[0])
    assert isinstance(declared, LaplaceNoise)
    noise = np.concatenate([(transcript.values(p, n) - values).ravel() for p in ("north", "south") for n in names])
    # |Laplace| / scale is exponential, so twice the sum is chi-square with 2 n degrees of freedom.
    low, high = stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], 2 * noise.size)
    assert low <= 2 * np.abs(noise).sum() / declared.scale <= high
    assert stats.kstest(noise / declared.scale, "laplace").pvalue > ALARM


@pytest.mark.parametrize("groups", [2, 4])
def test_randomised_response_keeps_with_the_signed_probability(tmp_path: Path, groups: int) -> None:
    records, name = 20_000, "randomised_attribute"
    plan = PayOncePlan(groups=groups)
    document = document_of(plan, EpsilonDelta(1.0, 1e-5), shapes={name: (records,)})
    declared = document.release(name)
    assert isinstance(declared, RandomizedCategory)
    opened = gate_for(document, tmp_path, {name: (records,)})
    opened.gate.next_round()
    truth = np.arange(records) % groups
    sent = opened.gate.publish_randomized("north", name, truth).values.astype(np.int64)
    keep = 1 / (1 + (groups - 1) * math.exp(-declared.epsilon))
    kept = int((sent == truth).sum())
    assert stats.binomtest(kept, records, keep).pvalue > ALARM
    others = np.bincount((sent - truth)[sent != truth] % groups, minlength=groups)[1:]
    assert groups == 2 or stats.chisquare(others).pvalue > ALARM

"""ALI-DPFL against its rule for the number of local steps, and what that number may depend on."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.errors import InvalidInput
from calibrate.manifest.trust import read_trust
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.ali_dpfl import AliDpfl, AliDpflOptions, AliDpflState
from privfair.algorithms.baselines.drift import FedProx, FedProxOptions
from privfair.algorithms.dp_fedsgd import PrivateAliDpfl
from privfair.algorithms.parts.clients import NOISY, ClippedSums
from privfair.contribution import Published
from privfair.models.linear import LogisticRegression
from privfair.run.prepare import prepare_run
from tests.privfair.plain_models import ROUNDED, Plain
from tests.privfair.small_runs import GAUSSIAN, Desk

FEATURES, RECORDS = 3, 40
WEIGHTS = {"north": 0.7, "south": 0.3}
EXPECTED = dict.fromkeys(WEIGHTS, float(RECORDS))
MODEL = LogisticRegression(FEATURES)


def _silo(name: str) -> SiloTensors:
    generator = torch.Generator().manual_seed(len(name) + (7 if name == "south" else 0))
    x = torch.randn(RECORDS, FEATURES, generator=generator, dtype=torch.float64)
    lean = 1.5 if name == "south" else -0.5
    y = (x @ torch.tensor([1.0, lean, 0.3], dtype=torch.float64) > 0).long()
    return SiloTensors(name, x, y, y)


def _algorithm(budget: int = 30, noise: float = 0.0, clip: float = 100.0, **options: object) -> AliDpfl:
    own = AliDpflOptions(learning_rate=0.3, **options)  # type: ignore[arg-type]
    return AliDpfl(MODEL, own, WEIGHTS, ClippedSums(clip, EXPECTED), noise, budget)


def _run(algorithm: AliDpfl | FedProx, rounds: int, noise: float = 0.0) -> list:
    generator = np.random.default_rng(3)
    states = [algorithm.start()]
    for round in range(rounds):
        received = {}
        for name in WEIGHTS:
            message = algorithm.contribution(states[-1], round, _silo(name), torch.arange(RECORDS))
            values = message.noisy[0].values + noise * generator.standard_normal(FEATURES + 1)
            received[name] = {NOISY: Published(round, name, NOISY, values)}
        states.append(algorithm.update(states[-1], received))
    return states


def _tau(states: list[AliDpflState]) -> list[int]:
    """Local steps between aggregations, as they happened."""
    made = [state.communications for state in states]
    return [made.count(number) for number in range(made[-1])]


def test_the_rule_is_the_formula() -> None:
    algorithm = _algorithm(budget=400, noise=8.0, clip=0.5, communications=50, heterogeneity=0.2)
    mu, last = 0.6, 3
    horizon = min(50 * last, 400)
    variance = 8.0**2 * (FEATURES + 1) / RECORDS**2
    top = 4 / mu**2 + 3 * 0.5**2 + 2 * 0.2 * horizon * mu + variance
    tau = math.sqrt(1 + top / ((2 + 2 / horizon) * (0.5**2 + variance)))
    assert tau > 2
    assert algorithm.local_steps(mu, last) == math.floor(tau + 0.5)


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(1e-6, 1e6), last=st.integers(1, 100), noise=st.floats(0, 1e4))
def test_the_rule_stays_within_its_bounds(mu: float, last: int, noise: float) -> None:
    algorithm = _algorithm(budget=60, noise=noise, most_steps=25)
    assert 1 <= algorithm.local_steps(mu, last) <= 25


def test_more_noise_asks_for_fewer_local_steps() -> None:
    found = [_algorithm(noise=noise, clip=1.0).local_steps(0.5, 2) for noise in (0.0, 20.0, 80.0)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1]


def test_local_steps_are_those_of_fedavg() -> None:
    """With tau held at 4 it is FedAvg with four local steps: FedProx without a proximal term."""
    sums = ClippedSums(100.0, EXPECTED)
    ours = _algorithm(budget=12, communications=3, first_steps=4, most_steps=4, strong_convexity=1e-6)
    plain = FedProx(MODEL, FedProxOptions(0.3, 4, 0.0), WEIGHTS, sums)
    states, others = _run(ours, 12), _run(plain, 12)
    assert _tau(states) == [4, 4, 4]
    np.testing.assert_allclose(ours.theta(states[-1]), plain.theta(others[-1]), rtol=1e-12)


def test_curvature_is_estimated_from_what_was_published() -> None:
    """sum_k p_k |g(w_k) - g(w)| / |w_k - w| with the clipped gradients of the first and the last local step."""
    algorithm = _algorithm(budget=30, communications=10, first_steps=3)
    states = _run(algorithm, 3)
    expected = 0.0
    for place, (name, share) in enumerate(WEIGHTS.items()):
        assert states[2].models.local is not None
        theta, local = states[0].models.theta, states[2].models.local[place]
        change = _mean_gradient(local, name) - _mean_gradient(theta, name)
        expected += share * float(change.norm() / (local - theta).norm())
    assert states[3].curvature == pytest.approx(expected, rel=ROUNDED["rtol"])
    assert states[3].steps == max(algorithm.local_steps(expected, 3), math.ceil(27 / 9))


def _mean_gradient(theta: torch.Tensor, name: str) -> torch.Tensor:
    silo, point = _silo(name), theta.clone().requires_grad_()
    return torch.autograd.grad(Plain(MODEL).losses(point, silo.x, silo.y).mean(), point)[0]


def test_noise_alone_is_not_taken_for_curvature() -> None:
    """On a loss without curvature the noise's share is taken off; what is left is small beside the raw quotient."""
    noise, dimension = 400.0, FEATURES + 1
    algorithm = _algorithm(noise=noise)
    generator = torch.Generator().manual_seed(0)
    moved = torch.ones(2, dimension, dtype=torch.float64)
    found, raw = [], []
    for _ in range(400):
        changed = torch.randn(2, dimension, generator=generator, dtype=torch.float64)
        changed *= math.sqrt(2) * noise / RECORDS
        found.append(algorithm._curvature(moved, changed) or 0.0)
        raw.append(sum(p * float(changed[k].norm() / moved[k].norm()) for k, p in enumerate(WEIGHTS.values())))
    assert np.mean(found) < 0.5 * np.mean(raw)
    assert algorithm._curvature(moved, torch.zeros(2, dimension, dtype=torch.float64)) is None


@settings(max_examples=30, deadline=None)
@given(
    budget=st.integers(1, 40),
    communications=st.integers(1, 45),
    first=st.integers(1, 12),
    most=st.integers(1, 12),
    mu=st.sampled_from([None, 1e-3, 0.7, 50.0]),
)
def test_the_whole_budget_is_spent_within_the_communications(
    budget: int, communications: int, first: int, most: int, mu: float | None
) -> None:
    """Whatever tau is: the last step ends in an aggregation, and there are no more of these than allowed."""
    algorithm = _algorithm(
        budget, communications=communications, first_steps=first, most_steps=most, strong_convexity=mu
    )
    last = _run(algorithm, budget)[-1]
    assert last.spent == budget
    assert last.models.local is None
    assert last.communications <= communications


def test_a_communication_for_every_step_means_one_step_each() -> None:
    algorithm = _algorithm(budget=6, communications=6, strong_convexity=1e-3, first_steps=5)
    assert [state.steps for state in _run(algorithm, 6)] == [1] * 7


@pytest.mark.parametrize("at", range(1, 7))
def test_checkpoints_in_the_middle_of_a_round(at: int) -> None:
    algorithm = _algorithm(budget=20, communications=5, first_steps=3)
    states = _run(algorithm, 7)
    again = algorithm.restore(algorithm.checkpoint(states[at]))
    for name, values in algorithm.checkpoint(states[at]).items():
        np.testing.assert_array_equal(values, algorithm.checkpoint(again)[name])
    received = {name: {NOISY: Published(at, name, NOISY, np.arange(4.0) + len(name))} for name in WEIGHTS}
    one, other = algorithm.update(states[at], received), algorithm.update(again, received)
    for name, values in algorithm.checkpoint(one).items():
        np.testing.assert_array_equal(values, algorithm.checkpoint(other)[name])


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="noise"):
        _algorithm(noise=math.nan)
    with pytest.raises(InvalidInput, match="strong-convexity"):
        PrivateAliDpfl(strong_convexity=0.0)
    with pytest.raises(InvalidInput, match="communications"):
        AliDpflOptions(communications=0)
    with pytest.raises(InvalidInput, match="heterogeneity"):
        AliDpflOptions(heterogeneity=-1.0)


def test_it_trains_from_a_plan_at_the_price_of_its_steps(tmp_path: Path) -> None:
    """Calibrated, signed, through the gate: every local step is one charged round, and the signed noise sets tau."""
    more = 'method = "ali-dpfl"\ncommunications = 4\nfirst-steps = 2\nmeasure-every = 12'
    desk = Desk.at(tmp_path, GAUSSIAN.format(rate=0.3, rounds=12, more=more))
    budget = desk.budget(research_noise=True)
    prepared = prepare_run(desk.plan, budget.read_bytes(), read_trust(desk.trust.read_bytes()))
    signed = prepared.manifest.document.release(NOISY)
    assert isinstance(prepared.algorithm, AliDpfl)
    assert prepared.algorithm.noise == signed.sigma > 0
    assert prepared.algorithm.budget == 12
    desk.train(budget)
    summary = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert summary["rounds"]["charged"] == 12

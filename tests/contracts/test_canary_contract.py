"""What every canary audit must keep: neighbours differ in one unit, clean runs stand, missing noise is refuted."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audit.coins.canary_audit import Effort, canary_audit
from audit.coins.canary_choice import CanaryDesign, design_canaries
from audit.coins.canary_decoder import CoinMeaning
from audit.coins.insertion import ReplayedRound, Scaling, alone
from audit.report.results import AuditReport, CheckOutcome, Conclusion
from audit.runs.evidence import RunEvidence
from audit.runs.noise import check_noise_floor
from audit.verdict import judge, on_trial
from calibrate.manifest.mechanism import GaussianNoise
from privfair.algorithms.algorithm import SiloTensors
from privfair.gate import Gate
from tests.contracts.canary_cases import CANARY_CASES, CanaryCase, trained

_SECOND = ("gaussian, replace-one", "fpfl, poisson cohorts")
"""The other relation of an algorithm that is here already: among the slow tests."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=pytest.mark.slow if one.name in _SECOND else ()) for one in CANARY_CASES],
    ids=str,
)
def case(request: pytest.FixtureRequest) -> CanaryCase:
    found: CanaryCase = request.param
    return found


_QUICK = "gaussian"
"""Audited whenever the tests run; the others among the slow tests."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(one, marks=() if one.name == _QUICK else pytest.mark.slow) for one in CANARY_CASES],
    ids=str,
)
def audited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunEvidence:
    return trained(request.param, tmp_path_factory.mktemp("audited"))


@pytest.fixture(scope="module")
def evidence(case: CanaryCase, tmp_path_factory: pytest.TempPathFactory) -> RunEvidence:
    return trained(case, tmp_path_factory.mktemp("canaries"))


def _design(evidence: RunEvidence) -> CanaryDesign:
    scaling = Scaling.of(evidence)
    assert scaling is not None
    design = design_canaries(evidence, scaling, seed=0)
    assert design is not None
    return design


def _judge(evidence: RunEvidence, runs: int, seed: int = 0) -> AuditReport:
    promise = on_trial(evidence.document)
    assert promise is not None
    attacks = canary_audit(evidence, promise, effort=Effort(runs, 1e6), seed=seed, confidence=0.95)
    return judge(promise, (), attacks, 0.95)


def _units(silo: SiloTensors) -> Counter[bytes]:
    """One fingerprint a row; a canary user has one row."""
    return Counter(x.numpy().tobytes() + y.numpy().tobytes() for x, y in zip(silo.x, silo.y, strict=True))


def test_one_coin_changes_one_unit(evidence: RunEvidence) -> None:
    """The one-run theorems ask for nothing else: neighbouring coins are neighbouring data, in the signed relation."""
    for silo in _design(evidence).silos:
        coins = np.zeros(len(silo.canaries), dtype=np.int64)
        before = _units(silo.with_coins(coins))
        for canary in range(len(coins)):
            other = coins.copy()
            other[canary] = 1
            after = _units(silo.with_coins(other))
            gone, come = before - after, after - before
            if silo.meaning is CoinMeaning.IN_OR_OUT:
                assert silo.size(other) == silo.size(coins) + 1
                assert (gone.total(), come.total()) == (0, 1)
            else:
                assert silo.size(other) == silo.size(coins)
                assert (gone.total(), come.total()) == (1, 1)


def test_a_gradient_canary_uses_the_whole_bound(evidence: RunEvidence) -> None:
    """Its part of the first value has the clip's norm, on the other side of the coin it is the opposite, or nothing."""
    design = _design(evidence)
    declared = evidence.document.release(design.scaling.names[0])
    assert isinstance(declared, GaussianNoise)
    whole = declared.sensitivity / declared.sigma
    moment = ReplayedRound.of(evidence, design.scaling.rounds(evidence)[0])
    for silo in design.silos:
        ones = np.ones(len(silo.canaries), dtype=np.int64)
        for canary in range(len(ones)):
            part = alone(design.algorithm, design.scaling, moment, silo.with_coins(ones), silo.unit(canary))[0]
            assert np.linalg.norm(part) == pytest.approx(whole, rel=1e-3)
            if silo.meaning is CoinMeaning.ONE_OF_TWO:
                opposite = alone(
                    design.algorithm, design.scaling, moment, silo.with_coins(0 * ones), silo.unit(canary)
                )[0]
                assert np.linalg.norm(part - opposite) == pytest.approx(2 * whole, rel=1e-2)


@pytest.mark.slow
def test_a_calibrated_run_is_not_violated(audited: RunEvidence) -> None:
    verdict = _judge(audited, runs=24)
    assert verdict.verdict is not Conclusion.VIOLATED, verdict.why
    assert max(attack.power for attack in verdict.attacks) >= 0.5


def test_missing_noise_is_violated(audited: RunEvidence, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate of the reruns adds a twentieth of the signed noise; the manifest says nothing of it."""
    honest = Gate._scale
    monkeypatch.setattr(Gate, "_scale", lambda self, *what: 0.05 * honest(self, *what))
    verdict = _judge(audited, runs=24)
    assert verdict.verdict is Conclusion.VIOLATED, [attack.evidence for attack in verdict.attacks]
    assert verdict.to_json()["verdict"] == "violated"


def test_the_noise_floor_sees_missing_noise_in_the_run_itself(evidence: RunEvidence) -> None:
    """A clean transcript is not flagged; held against three times the noise, the same one is."""
    assert not [check for check in check_noise_floor(evidence) if check.outcome is CheckOutcome.FAILED]
    louder = tuple(
        value.model_copy(update={"sigma": 3 * value.sigma}) if isinstance(value, GaussianNoise) else value
        for value in evidence.document.releases
    )
    claimed = replace(evidence, document=evidence.document.model_copy(update={"releases": louder}))
    assert [check for check in check_noise_floor(claimed) if check.outcome is CheckOutcome.FAILED]


@pytest.mark.slow
def test_twenty_calibrated_runs_are_never_violated(case: CanaryCase, tmp_path: Path) -> None:
    for seed in range(20):
        evidence = trained(case, tmp_path / str(seed), seed)
        assert not [check for check in check_noise_floor(evidence) if check.outcome is CheckOutcome.FAILED]
        verdict = _judge(evidence, runs=20, seed=seed)
        assert verdict.verdict is not Conclusion.VIOLATED, (seed, verdict.why)

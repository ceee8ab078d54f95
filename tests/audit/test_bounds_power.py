"""Power: what an audit of a given size could have seen."""

from __future__ import annotations

import math

import numpy as np
import pytest

from audit.bounds import (
    CONCLUSIVE,
    ClopperPearson,
    CurveFamily,
    EProcess,
    EpsilonDeltaCurve,
    ErrorCounts,
    FDPOneRun,
    GaussianCurve,
    GuessCounts,
    JointExact,
    OneRun,
    OneRunDesign,
    RankedGuesses,
    RepeatedDesign,
    curve_at,
    power_against,
    power_at,
)
from calibrate.errors import InvalidInput, UnsupportedCombination

DELTA = 1e-5


@pytest.mark.parametrize(
    "method", [ClopperPearson(), ClopperPearson(CurveFamily.GAUSSIAN), JointExact(CurveFamily.GAUSSIAN)], ids=repr
)
@pytest.mark.parametrize("claimed", [0.8, 2.0, 4.5])
def test_power_of_repeated_runs_matches_simulation(method: object, claimed: float) -> None:
    design = RepeatedDesign(150, 150, 0.08, 0.15)
    rng = np.random.default_rng(4)
    positives, negatives = rng.binomial(150, 0.08, 150), rng.binomial(150, 0.15, 150)
    claim = curve_at(method.family, claimed, DELTA)
    seen = np.mean(
        [
            method.refutes(ErrorCounts(int(fp), 150, int(fn), 150), claim)
            for fp, fn in zip(positives, negatives, strict=True)
        ]
    )
    power = power_at(claimed, DELTA, method, design)
    assert power == pytest.approx(seen, abs=4 * math.sqrt(0.25 / 150))


@pytest.mark.parametrize("method", [OneRun(), FDPOneRun(CurveFamily.GAUSSIAN), FDPOneRun()], ids=repr)
def test_power_of_one_run_is_a_binomial_tail(method: object) -> None:
    design = OneRunDesign(200, 60, 0.9)
    claim = curve_at(method.family, 1.2, DELTA)
    masses = [math.comb(60, v) * 0.9**v * 0.1 ** (60 - v) for v in range(61)]
    seen = sum(mass for v, mass in enumerate(masses) if method.refutes(GuessCounts(200, 60, v), claim))
    assert power_at(1.2, DELTA, method, design) == pytest.approx(seen, rel=1e-9)


def test_power_of_the_e_process_matches_simulation() -> None:
    method, claim = EProcess(), EpsilonDeltaCurve(1.5, DELTA)
    rng = np.random.default_rng(5)
    strength = np.arange(120, 0, -1, dtype=float)
    seen = np.mean([method.refutes((RankedGuesses(strength, rng.random(120) < 0.9),), claim) for _ in range(600)])
    power = power_against(claim, method, OneRunDesign(120, 120, 0.9))
    assert 0.1 < power < 0.95
    assert power == pytest.approx(seen, abs=4 * math.sqrt(0.25 / 600))


def test_a_perfect_attack_needs_about_three_times_exp_epsilon_coins() -> None:
    """q^n < 0.05 is needed, so n > ln 20 / -ln q, about 3 (e^eps + 1/2)."""
    for epsilon in (1.0, 2.0, 4.0):
        needed = math.ceil(math.log(20) / math.log1p(math.exp(-epsilon)))
        assert needed == pytest.approx(3 * (math.exp(epsilon) + 0.5), rel=0.05, abs=1)
        assert power_at(epsilon, 0.0, OneRun(), OneRunDesign(needed, needed, 1.0)) == 1.0
        assert power_at(epsilon, 0.0, OneRun(), OneRunDesign(needed - 1, needed - 1, 1.0)) == 0.0


def test_a_weak_attack_is_inconclusive_and_a_strong_one_is_not() -> None:
    assert power_at(2.0, DELTA, OneRun(), OneRunDesign(500, 100, 0.6)) < CONCLUSIVE
    assert power_at(2.0, DELTA, OneRun(), OneRunDesign(500, 100, 0.98)) > CONCLUSIVE


def test_power_falls_with_the_claim_and_with_comparisons() -> None:
    design = OneRunDesign(1000, 100, 0.95)
    powers = [power_at(epsilon, DELTA, FDPOneRun(), design) for epsilon in (1, 2, 3, 4, 6)]
    assert powers == sorted(powers, reverse=True)
    assert power_at(3, DELTA, FDPOneRun(), design, comparisons=5) < power_at(3, DELTA, FDPOneRun(), design)


def test_power_at_the_truth_is_at_most_the_error_allowed() -> None:
    """The power of a valid test against a true claim is its size."""
    mu = 1.0
    rate = 0.5 * math.erfc(mu / 2 / math.sqrt(2))
    for method in (ClopperPearson(), JointExact()):
        assert power_against(GaussianCurve(mu), method, RepeatedDesign(200, 200, rate, rate)) <= 0.05
    right = math.exp(1.0) / (1 + math.exp(1.0))
    assert power_at(1.0, 0.0, OneRun(), OneRunDesign(300, 300, right)) <= 0.05
    assert power_at(1.0, 0.0, EProcess(), OneRunDesign(300, 300, right)) <= 0.05


def test_a_method_meets_its_own_kind_of_design() -> None:
    with pytest.raises(UnsupportedCombination, match="OneRunDesign"):
        power_at(1.0, DELTA, ClopperPearson(), OneRunDesign(10, 10, 1.0))
    with pytest.raises(UnsupportedCombination, match="RepeatedDesign"):
        power_at(1.0, DELTA, EProcess(), RepeatedDesign(10, 10, 0.0, 0.0))


def test_rates_are_probabilities() -> None:
    with pytest.raises(InvalidInput, match="success rate"):
        OneRunDesign(10, 10, 1.1)
    with pytest.raises(InvalidInput, match="false-positive rate"):
        RepeatedDesign(10, 10, -0.1, 0.0)


def test_overwhelming_evidence_refutes_although_its_probability_underflows() -> None:
    claim = EpsilonDeltaCurve(1.0, 1e-5)
    values = [OneRun().p_value(GuessCounts(45_000, 45_000, right), claim) for right in (34_000, 40_000, 45_000)]
    assert values == sorted(values, reverse=True)
    assert values[-1] < 1e-4
    assert power_at(1.0, 1e-5, OneRun(), OneRunDesign(45_000, 45_000, 1.0)) == 1.0


def test_no_audit_refutes_an_epsilon_beyond_all_reach() -> None:
    """A promise of 600 is legal, and its audit must end in a verdict, not in an error."""
    assert power_at(600.0, 1e-5, OneRun(), OneRunDesign(100, 100, 1.0)) == 0.0

"""What the catalogue finds at the papers' own settings, to the digits known from independent computations.

Sources of the settings: SteFFLe Section 5 (Credit Card), FedFDP Section VIII, FPFL Section 4.1 (Adult), MMD-fair
FedAvg Section 5.2. The true costs were reproduced with dp-accounting and prv-accountant.
"""

from __future__ import annotations

import pytest

from calibrate.budget import calibrate_plan
from calibrate.plans.clipped_sums import FpflPlan
from calibrate.plans.steffle import StefflePlan
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval
from calibrate.sampling import SamplingName
from calibrate.theorems.catalogue import theorem_named
from calibrate.theorems.theorem import BoundComparison, EpsilonComparison, Outcome, Verdict


def judge(id: str, **given: object) -> Verdict:
    return theorem_named(id).judge(given)


def true(verdict: Verdict) -> EpsilonInterval:
    assert isinstance(verdict.finding.comparison, EpsilonComparison)
    return verdict.finding.comparison.true


def ratio(verdict: Verdict) -> float:
    bound = verdict.finding.comparison
    assert isinstance(bound, BoundComparison)
    return bound.found / bound.claimed


def test_steffle_the_printed_sensitivities_are_squares() -> None:
    assert judge("steffle.lemma-B.1.W", m=4, rho=0.5).outcome is Outcome.HOLDS
    assert judge("steffle.lemma-B.1.W", m=5, rho=0.5).outcome is Outcome.FAILS
    assert judge("steffle.lemma-B.1.W", m=256, rho=0.5, reading="square-root").outcome is Outcome.HOLDS
    assert ratio(judge("steffle.lemma-B.1.W", m=256, rho=0.5)) == pytest.approx(64, rel=1e-12)
    assert judge("steffle.lemma-B.1.theta", m=256).outcome is Outcome.FAILS


def test_steffle_an_entrywise_radius_breaks_the_theta_bound_and_a_frobenius_one_keeps_it() -> None:
    def entrywise(classes: int) -> Verdict:
        return judge("steffle.lemma-B.1.theta", reading="square-root", radius="entrywise", classes=classes)

    assert entrywise(2).outcome is Outcome.FAILS
    assert ratio(entrywise(2)) == pytest.approx(2, rel=1e-12)
    for classes in (8, 50, 200):
        assert ratio(entrywise(classes)) == pytest.approx((2 * classes) ** 0.5, rel=1e-12)
    kept = judge("steffle.lemma-B.1.theta", reading="square-root", radius="frobenius")
    assert kept.outcome is Outcome.HOLDS
    assert kept.looseness == pytest.approx(1, rel=1e-12)


def test_steffle_two_releases_cost_more_even_with_secret_poisson_batches() -> None:
    verdict = judge("steffle.theorem-3.3", batch="secret", sampling="poisson")
    assert verdict.outcome is Outcome.FAILS
    assert true(verdict).upper == pytest.approx(1.145, abs=5e-4)
    assert verdict.finding.details["joint_noise_multiplier"] == pytest.approx(3.965, abs=5e-4)
    assert verdict.finding.granted


def test_steffle_the_true_transcript_reveals_the_batches() -> None:
    shuffled = judge("steffle.theorem-3.3")
    assert shuffled.outcome is Outcome.FAILS
    assert true(shuffled).upper == pytest.approx(7.59, abs=5e-3)
    assert not shuffled.finding.granted
    poisson = judge("steffle.theorem-3.3", sampling="poisson")
    assert poisson.outcome is Outcome.FAILS
    assert true(poisson).upper == pytest.approx(8.10, abs=5e-3)


def test_steffle_an_honest_epsilon_of_one_needs_six_times_the_noise() -> None:
    budget = calibrate_plan(StefflePlan(7500, 256, 1172, 0.5, 1.0, 1.0), EpsilonDelta(1.0, 1e-5))
    assert budget.joint_noise_multiplier == pytest.approx(23.59, abs=5e-3)
    details = judge("steffle.theorem-3.3").finding.details
    assert details["needed_joint_noise_multiplier"] == pytest.approx(23.59, abs=5e-3)


def test_steffle_even_a_secret_batch_is_no_better_than_a_revealed_one() -> None:
    safe = judge("steffle.theorem-3.3", batch="secret", sampling="poisson", pair="safe")
    assert safe.outcome is Outcome.FAILS
    assert true(safe).upper == pytest.approx(8.10, abs=5e-3)
    shuffled = judge("steffle.theorem-3.3", batch="secret", sampling="shuffled")
    assert shuffled.outcome is Outcome.FAILS
    assert true(shuffled).lower == pytest.approx(1.08, abs=5e-3)


def test_steffle_breaks_its_own_condition_at_epsilon_nine() -> None:
    verdict = judge("steffle.theorem-3.3", epsilon=9)
    assert verdict.outcome is Outcome.NOT_APPLICABLE
    assert len(verdict.broken) == 1
    assert verdict.broken[0].startswith("T >= ")
    assert "1931" in verdict.broken[0]
    assert judge("steffle.theorem-3.3", epsilon=9, rounds=1932).outcome is Outcome.FAILS


def test_steffle_theorem_c2_fails_with_replacement_too() -> None:
    secret, revealed = judge("steffle.theorem-C.2"), judge("steffle.theorem-C.2", batch="revealed")
    assert secret.outcome is Outcome.FAILS
    assert revealed.outcome is Outcome.FAILS
    assert 1.1 < true(secret).lower < true(secret).upper == true(revealed).upper


def test_fedfdp_the_factor_does_not_clip_when_negative() -> None:
    assert judge("fedfdp.equation-13").outcome is Outcome.FAILS
    assert judge("fedfdp.equation-13").to_json()["unbounded"] is True
    assert ratio(judge("fedfdp.equation-13", mean_loss="exact", G=3)) == pytest.approx(45)
    assert judge("fedfdp.equation-13", factor="absolute").outcome is Outcome.HOLDS
    assert judge("fedfdp.equation-13", **{"lambda": 0}).outcome is Outcome.HOLDS
    assert judge("fedfdp.equation-13", **{"lambda": 0.4, "mean_loss": "exact"}).outcome is Outcome.HOLDS


def test_fedfdp_taken_literally_the_bound_is_true_and_useless() -> None:
    literal, meant = judge("fedfdp.theorem-2"), judge("fedfdp.theorem-2", reading="logarithm")
    assert literal.outcome is Outcome.HOLDS
    assert literal.to_json()["claimed_epsilon"] == pytest.approx(29.7, abs=0.05)
    assert meant.outcome is Outcome.HOLDS
    assert meant.to_json()["claimed_epsilon"] == pytest.approx(2.13, abs=5e-3)
    for id in ("fedfdp.theorem-3", "fedfdp.theorem-4"):
        assert judge(id).outcome is Outcome.HOLDS
        assert judge(id, reading="logarithm").outcome is Outcome.HOLDS


@pytest.mark.slow
def test_fedfdp_one_batch_two_releases() -> None:
    details = judge("fedfdp.theorem-2").finding.details
    assert details["gradient_alone"] == pytest.approx(1.818, abs=5e-4)
    assert details["independent_batches"] == pytest.approx(1.940, abs=5e-4)
    assert details["same_batch"] == pytest.approx(2.009, abs=5e-4)
    assert judge("fedfdp.theorem-2", accounting="tight").outcome is Outcome.FAILS
    assert judge("fedfdp.theorem-2", accounting="tight", batch="independent").outcome is Outcome.HOLDS
    small_noise = judge("fedfdp.theorem-2", reading="logarithm", sigma=0.8, sigma_l=0.8, rounds=200)
    assert small_noise.outcome is Outcome.FAILS


def test_fedfdp_the_loss_release_was_not_charged() -> None:
    verdict = judge("fedfdp.section-VIII.rounds")
    assert verdict.outcome is Outcome.FAILS
    rows = verdict.finding.details["rows"]
    assert isinstance(rows, list)
    assert [row["supported_by_gradient_alone"] for row in rows] == [6, 114, 267, 463, 702]
    assert [row["supported_with_loss"] for row in rows] == [5, 108, 237, 379, 525]
    assert [row["certified_rounds"] for row in rows] == [17, 126, 265, 422, 584]
    assert "so that 6, 115 of the printed hold" in verdict.finding.why
    assert [row["renyi_epsilon"] for row in rows] == pytest.approx([2.00, 2.06, 2.13, 2.23, 2.35], abs=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cohort", "rounds", "sigma", "added", "replaced", "outcomes"),
    [
        (200, 1000, 1.705, 2.8453, (2.85, 3.44), (Outcome.FAILS, Outcome.FAILS)),
        (200, 250, 1.001, 7.933, (7.93, 8.45), (Outcome.FAILS, Outcome.FAILS)),
        (1000, 250, 3.959, 1.9605, (1.96, 2.21), (Outcome.HOLDS, Outcome.UNDECIDED)),
    ],
)
def test_fpfl_under_its_own_relation_and_under_replacement(
    cohort: int,
    rounds: int,
    sigma: float,
    added: float,
    replaced: tuple[float, float],
    outcomes: tuple[Outcome, Outcome],
) -> None:
    own = judge("fpfl.algorithm-1", cohort=cohort, rounds=rounds)
    other = judge("fpfl.algorithm-1", cohort=cohort, rounds=rounds, relation="replace-one")
    assert (own.outcome, other.outcome) == outcomes
    assert own.finding.details["sigma"] == pytest.approx(sigma, abs=5e-4)
    assert true(own).lower == pytest.approx(added, abs=1e-3)
    assert true(own).upper == pytest.approx(added, abs=1e-3)
    assert true(other).lower == pytest.approx(replaced[0], abs=6e-3)
    assert true(other).upper == pytest.approx(replaced[1], abs=6e-3)
    assert own.finding.details["replace-one"] == {"lower": true(other).lower, "upper": true(other).upper}


def test_fpfl_poisson_cohorts_need_far_less_noise() -> None:
    plan = FpflPlan(16280, 200, 1000, 1.0, SamplingName.POISSON)
    budget = calibrate_plan(plan, EpsilonDelta(2.0, 1 / 16280))
    assert budget.values[0].noise_multiplier == pytest.approx(0.997, abs=5e-4)


def test_fpfl_the_gaussian_curve_carries_a_delta_too_many() -> None:
    assert judge("fpfl.gaussian-rdp", Delta=1).outcome is Outcome.HOLDS
    assert judge("fpfl.gaussian-rdp", Delta=0.5).outcome is Outcome.HOLDS
    assert judge("fpfl.gaussian-rdp").outcome is Outcome.FAILS
    assert ratio(judge("fpfl.gaussian-rdp", Delta=2)) == pytest.approx(4)


def test_mmd_the_amplitude_shrinks() -> None:
    printed = judge("mmd.corollary-5.3", s=1, t=0.5)
    assert printed.outcome is Outcome.FAILS
    assert ratio(printed) == pytest.approx(1 / 1.25**0.5, rel=1e-12)
    assert judge("mmd.corollary-5.3", s=1, t=0.5, reading="with-amplitude").outcome is Outcome.HOLDS
    assert judge("mmd.proposition-5.2").outcome is Outcome.HOLDS
    assert judge("mmd.proposition-5.2", kernel="energy").outcome is Outcome.NOT_APPLICABLE

"""Noise that is there speaks for a promise priced with it, and not for somebody's claim."""

from __future__ import annotations

import pytest

from audit.bounds import LowerBound
from audit.bounds.lower_bound import GuessCounts, Method
from audit.bounds.trade_off import CurveFamily
from audit.report.results import Attack, Conclusion, Layer, Promise, Standing, passed_if
from audit.verdict import judge, on_trial
from calibrate.manifest.mechanism import AsPrintedGuarantee
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta, Relation
from tests.privfair.small_runs import document_of

NOISE = passed_if(Layer.NOISE, "variance", True, "noise measures 1.0000 of the signed sigma")


@pytest.mark.parametrize(
    ("standing", "word"), [(Standing.PRICED, Conclusion.CONSISTENT), (Standing.CLAIMED, Conclusion.INCONCLUSIVE)]
)
def test_measured_noise_supports_only_what_was_priced_with_it(standing: Standing, word: Conclusion) -> None:
    promise = Promise(epsilon=1.0, delta=1e-5, source="somebody's words", standing=standing)
    assert judge(promise, (NOISE,), (), 0.95).verdict is word


def test_a_claim_is_not_priced_unless_said_so() -> None:
    assert Promise(epsilon=1.0, delta=1e-5, source="what the auditor was told").standing is Standing.CLAIMED


def test_no_attack_is_credited_where_none_ran() -> None:
    promise = Promise(epsilon=1.0, delta=1e-5, source="promised", standing=Standing.PRICED)
    why = judge(promise, (NOISE,), (), 0.95).why
    assert "attack" not in why
    assert "all of the signed noise" in why


def _attack(epsilon: float) -> Attack:
    counts = GuessCounts(100, 100, 60)
    bound = LowerBound(epsilon, 1e-5, 0.95, Method.ONE_RUN, CurveFamily.EPSILON_DELTA, counts)
    return Attack(name="canaries", bound=bound, power=1.0, evidence="sees missing noise")


@pytest.mark.parametrize(
    ("cost", "claimed", "standing", "word"),
    [
        (1.4, 1.0, Standing.CONTESTED, Conclusion.INCONCLUSIVE),
        (None, 1.0, Standing.CONTESTED, Conclusion.INCONCLUSIVE),
        (1.4, 1.5, Standing.CLAIMED, Conclusion.CONSISTENT),
        (1.4, 0.1, Standing.CONTESTED, Conclusion.VIOLATED),
    ],
)
def test_power_against_missing_noise_is_none_against_noise_that_is_too_small(
    cost: float | None, claimed: float, standing: Standing, word: Conclusion
) -> None:
    """The signed noise costs 1.4: an attack that finds 0.5, and would find missing noise, does not speak for 1."""
    document = document_of(GaussianPlan(0.2, 10, Relation.ADD_REMOVE, clip=1.0), EpsilonDelta(2.0, 1e-5))
    said = document.guarantee.model_dump(exclude={"kind", "epsilon"})
    guarantee = AsPrintedGuarantee(**said, epsilon=cost, claimed_epsilon=claimed, claim="a theorem")
    promise = on_trial(document.model_copy(update={"guarantee": guarantee}))
    assert promise is not None
    assert promise.standing is standing
    verdict = judge(promise, (NOISE,), (_attack(0.5),), 0.95)
    assert verdict.verdict is word
    assert ("certified cost" in verdict.why) is (word is Conclusion.INCONCLUSIVE)

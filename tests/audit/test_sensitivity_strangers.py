"""A stranger's functions with true and false claims: all judged rightly, through the public three lines."""

from __future__ import annotations

import numpy as np
import pytest

from audit.claims.claim import Domain
from audit.claims.falsify import Search, SensitivityRefuted, assert_sensitivity
from audit.claims.spaces import Box
from calibrate.errors import InvalidInput
from tests.audit.stranger_functions import STRANGERS, Stranger

QUICK = Search(pairs=300, climbs=3, steps=20)


@pytest.mark.parametrize("each", STRANGERS, ids=lambda each: each.name)
def test_a_true_claim_is_not_refuted(each: Stranger) -> None:
    finding = assert_sensitivity(each.function, each.true, each.domain, arrays=each.arrays, search=QUICK)
    assert not finding.refuted
    assert 0 < finding.ratio <= 1 + 1e-6


@pytest.mark.parametrize("each", STRANGERS, ids=lambda each: each.name)
def test_a_false_claim_is_refuted_readably(each: Stranger) -> None:
    with pytest.raises(SensitivityRefuted, match="data set") as caught:
        assert_sensitivity(each.function, each.false, each.domain, arrays=each.arrays, search=QUICK)
    finding = caught.value.result
    assert finding.ratio > 1.0
    assert finding.pair.size <= each.domain.most


def test_a_plain_number_claims_an_l2_distance_of_one_record() -> None:
    domain = Domain({"x": Box(0.0, 1.0)})
    assert assert_sensitivity(lambda x: x.sum(), 1.0, domain, search=QUICK).ratio == pytest.approx(1.0)
    with pytest.raises(SensitivityRefuted):
        assert_sensitivity(lambda x: x.sum(), 0.9, domain, search=QUICK)


def test_a_value_that_is_not_finite_is_infinitely_far() -> None:
    """The mean of no records is no number; a domain with at least one record has none of it."""
    with pytest.raises(SensitivityRefuted) as caught:
        assert_sensitivity(lambda x: x.mean(), 1.0, Domain({"x": Box(0.0, 1.0)}), search=QUICK)
    assert caught.value.result.found == np.inf
    assert assert_sensitivity(lambda x: x.mean(), 1.0, Domain({"x": Box(0.0, 1.0)}, fewest=1), search=QUICK)


def test_functions_that_can_not_be_measured_are_refused() -> None:
    domain = Domain({"x": Box(0.0, 1.0)})
    with pytest.raises(InvalidInput, match="different sizes"):
        assert_sensitivity(lambda x: x, 1.0, domain, search=QUICK)
    with pytest.raises(InvalidInput, match="none of x"):
        assert_sensitivity(lambda data: data, 1.0, domain, search=QUICK)

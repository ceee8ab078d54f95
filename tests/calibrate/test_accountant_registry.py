"""The registry: the right accountant first, an independent one second, and nothing heavy before it is needed."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from calibrate.accountants import registry
from calibrate.accountants.registry import (
    ACCOUNTANTS,
    AccountantName,
    Priced,
    agree,
    best_epsilon,
    get,
    price,
    second_opinion,
)
from calibrate.errors import InvalidInput, NotCertified, UnsupportedCombination
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit, Relation
from calibrate.releases import Gaussian, InSequence, Laplace, NonPrivate, Release, Repeated, Sampled
from calibrate.sampling import Batch, FixedSize, Poisson, ShuffledEpochs

A = AccountantName
ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
REPLACE_ONE = PrivacyUnit.of(Relation.REPLACE_ONE)
REPLACE_ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)

CHOICES = [
    (Repeated(Gaussian(3.0), 10), ADD_REMOVE, A.GAUSSIAN),
    (Repeated(Sampled(ShuffledEpochs(100, 10), Gaussian(3.0)), 4), REPLACE_ATTRIBUTE, A.GAUSSIAN),
    (Repeated(Sampled(Poisson(0.1, Batch.REVEALED), Gaussian(3.0)), 10), REPLACE_ATTRIBUTE, A.REVEALED),
    (InSequence((Sampled(Poisson(0.1, Batch.REVEALED), Gaussian(3.0)), Gaussian(5.0))), REPLACE_ONE, A.REVEALED),
    (Repeated(Sampled(Poisson(0.1), Gaussian(3.0)), 10), ADD_REMOVE, A.CERTIFIED),
    (Repeated(Sampled(FixedSize(100, 10), Gaussian(3.0)), 10), REPLACE_ONE, A.CERTIFIED),
    (InSequence((Gaussian(3.0), Laplace(4.0))), ADD_REMOVE, A.CERTIFIED),
]


@pytest.mark.parametrize(("release", "unit", "expected"), CHOICES)
def test_best_accountant_and_its_second_opinion(release: Release, unit: PrivacyUnit, expected: A) -> None:
    first = best_epsilon(release, unit, 1e-5)
    second = second_opinion(release, unit, 1e-5)
    assert first.accountant_name is expected
    assert second.accountant_name is A.PLD
    assert agree(first, second)
    assert first.interval == price(expected, release, unit, 1e-5).interval
    assert second.library == "dp-accounting"
    assert second.version.startswith("0.6")


def test_renyi_speaks_where_fft_accounting_cannot() -> None:
    release = Repeated(Sampled(Poisson(0.01), Gaussian(1.5)), 100)
    second = second_opinion(release, ADD_REMOVE, 1e-30)
    assert second.accountant_name is A.RENYI
    assert second.interval.upper < math.inf
    assert agree(best_epsilon(release, ADD_REMOVE, 1e-30), second)


def test_an_accountant_never_confirms_itself() -> None:
    one = best_epsilon(Gaussian(1.0), ADD_REMOVE, 1e-5)
    assert not agree(one, one)


def test_disjoint_intervals_contradict() -> None:
    def opinion(name: A, lower: float, upper: float) -> Priced:
        return Priced(EpsilonInterval(lower, upper), name, "privfair", "0")

    assert not agree(opinion(A.PLD, 1.0, 1.1), opinion(A.CERTIFIED, 1.2, 1.3))
    assert agree(opinion(A.PLD, 1.0, 1.2), opinion(A.CERTIFIED, 1.2 * (1 + 1e-12), 1.3)), "rounding is no contradiction"


def test_no_unproved_accountant_answers_in_place_of_the_certified_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def price_without_certified(name: A, *rest: object) -> Priced:
        asked.append(name)
        raise NotCertified("planted")

    release = Repeated(Sampled(Poisson(0.1), Gaussian(2.0)), 10)
    monkeypatch.setattr(registry, "price", price_without_certified)
    with pytest.raises(NotCertified, match="planted"):
        best_epsilon(release, ADD_REMOVE, 1e-5)
    assert asked == [A.CERTIFIED]


def test_the_second_opinion_is_never_the_first_ones_own() -> None:
    release = Repeated(Sampled(Poisson(0.1), Gaussian(2.0)), 10)
    first = price(A.PLD, release, ADD_REMOVE, 1e-5)
    assert second_opinion(release, ADD_REMOVE, 1e-5, first).accountant_name is A.RENYI


def test_unprotected_is_infinite_for_both() -> None:
    bare = InSequence((Gaussian(1.0), NonPrivate("plain counts", depends_on_unit=True)))
    first = best_epsilon(bare, ADD_REMOVE, 1e-5)
    assert first.interval == EpsilonInterval(math.inf, math.inf)
    assert agree(first, second_opinion(bare, ADD_REMOVE, 1e-5))


def test_unproved_combinations_are_refused_not_passed_on() -> None:
    with pytest.raises(UnsupportedCombination):
        best_epsilon(Sampled(ShuffledEpochs(10, 2), Gaussian(1.0)), ADD_REMOVE, 1e-5)


def test_unknown_names_are_refused_with_the_list() -> None:
    with pytest.raises(InvalidInput, match="certified, gaussian"):
        get("pdl")
    assert [get(str(name)).name for name in ACCOUNTANTS] == list(ACCOUNTANTS)


def test_importing_the_registry_loads_no_accounting_library() -> None:
    code = (
        "import sys, calibrate.accountants.registry; "
        "print([m for m in ('numpy', 'scipy', 'dp_accounting', 'prv_accountant') if m in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"

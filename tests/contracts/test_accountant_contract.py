"""Every accountant keeps the same contract, on every kind of release that it prices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from calibrate.accountants.registry import ACCOUNTANTS, AccountantName, epsilon_of, get
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit, Relation
from calibrate.releases import (
    Gaussian,
    InSequence,
    Laplace,
    Leaf,
    NonPrivate,
    RandomizedResponse,
    Release,
    Repeated,
    Sampled,
    Together,
)
from calibrate.sampling import Batch, FixedSize, Poisson, RandomAllocation, ShuffledEpochs, WithReplacement

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
REPLACE_ONE = PrivacyUnit.of(Relation.REPLACE_ONE)
REPLACE_ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)
DELTA = 1e-5


@dataclass(frozen=True)
class Kind:
    """One kind of release: noise -> leaf (more noise, more privacy), the unit, and who prices it."""

    name: str
    leaf: Callable[[float], Leaf]
    unit: PrivacyUnit
    accountants: frozenset[AccountantName]


A = AccountantName
EVERYBODY = frozenset(ACCOUNTANTS)
TIGHT = frozenset({A.CERTIFIED, A.PLD, A.RENYI})
POISSON = TIGHT | {A.MOMENTS, A.PRV}
MIXED = TIGHT | {A.REVEALED}

KINDS = (
    Kind("full batch", Gaussian, ADD_REMOVE, EVERYBODY),
    Kind("several values", lambda z: Together((Gaussian(z), Gaussian(3 * z))), REPLACE_ONE, EVERYBODY),
    Kind("shuffled", lambda z: Sampled(ShuffledEpochs(90, 30), Gaussian(z)), REPLACE_ATTRIBUTE, EVERYBODY),
    Kind("Poisson", lambda z: Sampled(Poisson(0.1), Gaussian(z)), ADD_REMOVE, POISSON),
    Kind("replaced in Poisson", lambda z: Sampled(Poisson(0.1), Gaussian(z)), REPLACE_ONE, TIGHT),
    Kind("fixed size", lambda z: Sampled(FixedSize(100, 10), Gaussian(2 * z)), REPLACE_ONE, TIGHT),
    Kind("revealed", lambda z: Sampled(Poisson(0.1, Batch.REVEALED), Gaussian(z)), REPLACE_ATTRIBUTE, MIXED),
    Kind("with replacement", lambda z: Sampled(WithReplacement(100, 10), Gaussian(z)), REPLACE_ATTRIBUTE, MIXED),
    Kind("Laplace", Laplace, ADD_REMOVE, TIGHT),
    Kind("randomised response", lambda z: RandomizedResponse(1 / z, 3), REPLACE_ATTRIBUTE, TIGHT),
)

LONG = ((A.PLD, "with replacement"), (A.PRV, "Poisson"), (A.RENYI, "fixed size"))

PRICED = [
    # Three combinations take longer than all others together.
    pytest.param(name, kind, id=f"{name}-{kind.name}", marks=[pytest.mark.slow] if (name, kind.name) in LONG else [])
    for kind in KINDS
    for name in ACCOUNTANTS
    if name in kind.accountants
]
REFUSED = [
    pytest.param(name, kind, id=f"{name}-{kind.name}")
    for kind in KINDS
    for name in ACCOUNTANTS
    if name not in kind.accountants
]


def cost(name: AccountantName, release: Release, unit: PrivacyUnit, delta: float = DELTA) -> EpsilonInterval:
    return epsilon_of(get(name), release, unit, delta)


def is_at_most(smaller: EpsilonInterval, larger: EpsilonInterval) -> bool:
    return smaller.lower <= larger.lower and smaller.upper <= larger.upper


@pytest.mark.parametrize(("name", "kind"), PRICED)
def test_repetition_is_a_sequence(name: AccountantName, kind: Kind) -> None:
    leaf = kind.leaf(2.0)
    repeated = cost(name, Repeated(leaf, 6), kind.unit)
    assert repeated == cost(name, InSequence((leaf,) * 6), kind.unit)
    assert repeated == cost(name, Repeated(InSequence((leaf, Repeated(leaf, 2))), 2), kind.unit)
    assert repeated.upper > cost(name, leaf, kind.unit).upper


@pytest.mark.parametrize(("name", "kind"), PRICED)
def test_interval_is_well_formed_and_moves_the_right_way(name: AccountantName, kind: Kind) -> None:
    base = cost(name, Repeated(kind.leaf(1.5), 20), kind.unit)
    assert 0 <= base.lower <= base.upper < math.inf
    assert base.upper > 0
    assert is_at_most(cost(name, Repeated(kind.leaf(1.7), 20), kind.unit), base), "more noise costs more"
    assert is_at_most(base, cost(name, Repeated(kind.leaf(1.5), 24), kind.unit)), "more rounds cost less"
    assert is_at_most(cost(name, Repeated(kind.leaf(1.5), 20), kind.unit, 1e-4), base), "larger delta costs more"


@pytest.mark.parametrize(("name", "kind"), PRICED)
def test_order_of_a_sequence_does_not_matter(name: AccountantName, kind: Kind) -> None:
    one, two = Repeated(kind.leaf(2.0), 3), Repeated(kind.leaf(3.0), 4)
    forward, backward = (cost(name, InSequence((one, two)), kind.unit), cost(name, InSequence((two, one)), kind.unit))
    assert forward.overlaps(backward)
    assert forward.upper == pytest.approx(backward.upper, rel=2e-3)  # the grid may differ, the truth does not
    assert forward.lower == pytest.approx(backward.lower, rel=2e-3)


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_what_does_not_depend_on_the_unit_is_free(name: AccountantName) -> None:
    free = NonPrivate("the features are not protected", depends_on_unit=False)
    assert cost(name, Repeated(free, 1000), REPLACE_ATTRIBUTE) == EpsilonInterval(0.0, 0.0)
    paid = Repeated(Gaussian(3.0), 5)
    assert cost(name, InSequence((free, paid)), ADD_REMOVE) == cost(name, paid, ADD_REMOVE)


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_publishing_the_unit_itself_costs_everything(name: AccountantName) -> None:
    bare = NonPrivate("exact group counts", depends_on_unit=True)
    for release in (bare, InSequence((Gaussian(100.0), bare))):
        assert cost(name, release, ADD_REMOVE).upper == math.inf


@pytest.mark.parametrize(("name", "kind"), REFUSED)
def test_what_an_accountant_cannot_price_is_refused_by_name(name: AccountantName, kind: Kind) -> None:
    with pytest.raises(UnsupportedCombination) as refusal:
        cost(name, Repeated(kind.leaf(2.0), 3), kind.unit)
    assert name in str(refusal.value)
    assert refusal.value.remedy


UNPROVED = (
    (Sampled(FixedSize(100, 10), Gaussian(1.0)), REPLACE_ATTRIBUTE),
    (Sampled(FixedSize(100, 10, Batch.REVEALED), Gaussian(1.0)), ADD_REMOVE),
    (Sampled(RandomAllocation(10), Gaussian(1.0)), REPLACE_ONE),
    (Sampled(ShuffledEpochs(100, 10, Batch.SECRET), Gaussian(1.0)), REPLACE_ONE),
    (Sampled(WithReplacement(100, 10, Batch.SECRET), Gaussian(1.0)), REPLACE_ONE),
    (Sampled(Poisson(0.1), Gaussian(1.0)), REPLACE_ATTRIBUTE),
    (Sampled(Poisson(0.1), Laplace(1.0)), ADD_REMOVE),
    (Sampled(Poisson(0.1, Batch.REVEALED), Gaussian(1.0)), ADD_REMOVE),
    (RandomizedResponse(1.0, 2), ADD_REMOVE),
)


@pytest.mark.parametrize("name", ACCOUNTANTS)
@pytest.mark.parametrize(("release", "unit"), UNPROVED)
def test_no_accountant_prices_what_is_not_proved(name: AccountantName, release: Leaf, unit: PrivacyUnit) -> None:
    with pytest.raises(UnsupportedCombination) as refusal:
        cost(name, release, unit)
    assert refusal.value.remedy


@pytest.mark.parametrize("name", ACCOUNTANTS)
@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, math.inf])
def test_delta_must_be_a_probability(name: AccountantName, delta: float) -> None:
    with pytest.raises(InvalidInput):
        cost(name, Gaussian(1.0), ADD_REMOVE, delta)


@pytest.mark.parametrize("name", ACCOUNTANTS)
def test_an_accountant_knows_its_own_name(name: AccountantName) -> None:
    assert get(name).name == name

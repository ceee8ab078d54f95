"""Which release has which dominating pair under which adjacency, and what is refused by name with a remedy."""

from __future__ import annotations

import math

import pytest
from scipy.stats import binom

from calibrate.accountants.certified import CertifiedAccountant, estimate
from calibrate.accountants.compose import log_cut
from calibrate.accountants.contour import LossTransform
from calibrate.accountants.directions import Composition
from calibrate.accountants.registry import PairCounts
from calibrate.accountants.sampled_losses import SubsampledAddition, SubsampledRemoval
from calibrate.accountants.support import (
    DominatingPair,
    FixedSizeReplacePair,
    Free,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
    Unbounded,
    dominating_pairs,
)
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Gaussian, Laplace, Leaf, NonPrivate, RandomizedResponse, Sampled, Together
from calibrate.sampling import Batch, FixedSize, Poisson, Sampling, ShuffledEpochs, WithReplacement

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
REPLACE_ONE = PrivacyUnit.of(Relation.REPLACE_ONE)
REPLACE_ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)
UNITS = (ADD_REMOVE, REPLACE_ONE, REPLACE_ATTRIBUTE)

G = Gaussian(4.0)
SECRET, REVEALED = Batch.SECRET, Batch.REVEALED


@pytest.mark.parametrize(
    ("leaf", "unit", "pair"),
    [
        (G, ADD_REMOVE, GaussianPair(0.25)),
        (G, REPLACE_ONE, GaussianPair(0.5)),
        (G, REPLACE_ATTRIBUTE, GaussianPair(0.25)),
        (Laplace(4.0), ADD_REMOVE, LaplacePair(4.0)),
        (Laplace(4.0), REPLACE_ONE, LaplacePair(2.0)),
        (RandomizedResponse(1.0, 3), REPLACE_ONE, RandomizedResponsePair(1.0, 3)),
        (RandomizedResponse(1.0, 3), REPLACE_ATTRIBUTE, RandomizedResponsePair(1.0, 3)),
        (NonPrivate("public", depends_on_unit=False), ADD_REMOVE, Free()),
        (NonPrivate("oops", depends_on_unit=True), ADD_REMOVE, Unbounded()),
        (Sampled(Poisson(0.1), G), ADD_REMOVE, SubsampledGaussianPair(0.1, 4.0)),
        (Sampled(Poisson(0.1), G), REPLACE_ONE, SubsampledReplacePair(0.1, 4.0)),
        (Sampled(FixedSize(100, 10), G), REPLACE_ONE, FixedSizeReplacePair(0.1, 2.0)),
        (Sampled(FixedSize(100, 10), G), ADD_REMOVE, SubsampledGaussianPair(0.1, 2.0)),
        (Sampled(Poisson(0.1, REVEALED), G), REPLACE_ONE, MixedGaussianPair(((0.9, 0.0), (0.1, 0.5)))),
        (Sampled(FixedSize(100, 10, REVEALED), G), REPLACE_ATTRIBUTE, MixedGaussianPair(((0.9, 0.0), (0.1, 0.25)))),
        (Sampled(ShuffledEpochs(100, 7), G), REPLACE_ONE, GaussianPair(0.5)),
        (Sampled(ShuffledEpochs(100, 7), G), REPLACE_ATTRIBUTE, GaussianPair(0.25)),
    ],
)
def test_pair_of_a_release(leaf: Leaf, unit: PrivacyUnit, pair: DominatingPair) -> None:
    assert dominating_pairs(leaf, unit) == (pair,)


def test_values_of_one_batch_join_inside_the_sampling() -> None:
    both = Together((Gaussian(3.0), Gaussian(4.0)))
    joint = (3.0**-2 + 4.0**-2) ** -0.5
    assert dominating_pairs(Sampled(Poisson(0.1), both), ADD_REMOVE) == (SubsampledGaussianPair(0.1, joint),)
    assert dominating_pairs(both, ADD_REMOVE) == (GaussianPair(1 / joint),)


def test_mixed_values_of_a_full_batch_are_a_sequence() -> None:
    mixed = Together((Laplace(2.0), Gaussian(4.0), Laplace(3.0)))
    assert dominating_pairs(mixed, ADD_REMOVE) == (GaussianPair(0.25), LaplacePair(2.0), LaplacePair(3.0))


@pytest.mark.parametrize(
    ("sampling", "unit"),
    [
        (Poisson(1.0), ADD_REMOVE),
        (Poisson(1.0), REPLACE_ATTRIBUTE),
        (Poisson(1.0, REVEALED), REPLACE_ONE),
        (FixedSize(10, 10), REPLACE_ONE),
        (FixedSize(10, 10), REPLACE_ATTRIBUTE),
        (ShuffledEpochs(10, 10, SECRET), REPLACE_ONE),
    ],
)
def test_a_batch_of_everybody_is_a_full_batch(sampling: Sampling, unit: PrivacyUnit) -> None:
    assert dominating_pairs(Sampled(sampling, G), unit) == dominating_pairs(G, unit)


@pytest.mark.parametrize(
    ("leaf", "unit", "names"),
    [
        (RandomizedResponse(1.0, 2), ADD_REMOVE, "randomised response x add-remove"),
        (Sampled(Poisson(0.1), G), REPLACE_ATTRIBUTE, "secret Poisson batches x replace-attribute"),
        (Sampled(FixedSize(9, 3), G), REPLACE_ATTRIBUTE, "secret fixed-size batches x replace-attribute"),
        (Sampled(FixedSize(9, 3, REVEALED), G), ADD_REMOVE, "revealed fixed-size batches x add-remove"),
        (Sampled(FixedSize(9, 9), G), ADD_REMOVE, "secret fixed-size batches x add-remove"),
        (Sampled(ShuffledEpochs(9, 3), G), ADD_REMOVE, "revealed shuffled-epoch batches x add-remove"),
        (Sampled(WithReplacement(9, 3), G), ADD_REMOVE, "revealed with-replacement batches x add-remove"),
        (Sampled(Poisson(0.1, REVEALED), G), ADD_REMOVE, "revealed Poisson batches x add-remove"),
        (Sampled(Poisson(1.0, REVEALED), G), ADD_REMOVE, "revealed Poisson batches x add-remove"),
        (Sampled(ShuffledEpochs(9, 3, SECRET), G), REPLACE_ONE, "secret shuffled-epoch batches x replace-one"),
        (Sampled(WithReplacement(9, 3, SECRET), G), REPLACE_ONE, "secret with-replacement batches x replace-one"),
        (Sampled(Poisson(0.1), Laplace(1.0)), ADD_REMOVE, "Laplace noise on a Poisson batch"),
        (Sampled(Poisson(0.1), Together((G, Laplace(1.0)))), ADD_REMOVE, "Laplace noise on a Poisson batch"),
    ],
)
def test_refused_by_name_with_a_remedy(leaf: Leaf, unit: PrivacyUnit, names: str) -> None:
    with pytest.raises(UnsupportedCombination) as refused:
        dominating_pairs(leaf, unit)
    assert refused.value.combination == names
    assert refused.value.exit_code == 2
    assert any(word in refused.value.remedy for word in ("use ", "account ", "keep "))


def test_draws_with_replacement_have_binomial_multiplicities() -> None:
    (pair,) = dominating_pairs(Sampled(WithReplacement(7500, 256), G), REPLACE_ATTRIBUTE)
    assert isinstance(pair, MixedGaussianPair)
    for weight, mu in pair.components[:12]:
        assert weight == pytest.approx(binom.pmf(round(4 * mu), 256, 1 / 7500), rel=1e-12)
    assert math.fsum(weight for weight, _ in pair.components) == pytest.approx(1, abs=1e-15)


def test_many_draws_from_few_keep_all_weights_that_matter() -> None:
    (pair,) = dominating_pairs(Sampled(WithReplacement(10, 100_000), G), REPLACE_ATTRIBUTE)
    assert isinstance(pair, MixedGaussianPair)
    mean = math.fsum(weight * mu * 4 for weight, mu in pair.components)
    assert mean == pytest.approx(10_000, rel=1e-12)


def test_a_single_unit_is_drawn_every_time() -> None:
    sampled = Sampled(WithReplacement(1, 5), G)
    assert dominating_pairs(sampled, REPLACE_ATTRIBUTE) == (GaussianPair(5 * 0.25),)


@pytest.mark.parametrize(
    "components",
    [(), ((0.5, 0.0), (0.4, 1.0)), ((0.5, 1.0), (0.5, 0.5)), ((1.5, 0.0), (-0.5, 1.0)), ((1.0, math.inf),)],
)
def test_a_mixture_must_be_one(components: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(InvalidInput):
        MixedGaussianPair(components)


@pytest.mark.parametrize(("rate", "z", "rounds", "delta"), [(0.1, 1.0, 10, 1e-5), (0.3, 2.0, 30, 1e-5)])
def test_no_other_data_set_of_fixed_size_batches_costs_more_than_the_lower_end(
    rate: float, z: float, rounds: int, delta: float
) -> None:
    """Roles that change between rounds, and opposite contributions: neither closes the gap to the upper end."""
    accountant = CertifiedAccountant()
    interval = accountant.epsilon(PairCounts(((FixedSizeReplacePair(rate, z), rounds),)), delta)
    opposite = accountant.epsilon(PairCounts(((SubsampledReplacePair(rate, 2 * z), rounds),)), delta)
    assert opposite.upper < interval.lower
    for removals in (0, rounds // 4, rounds // 2, rounds - 1):
        laws = ((SubsampledRemoval(rate, z), removals), (SubsampledAddition(rate, z), rounds - removals))
        mixed = LossTransform(Composition(tuple(law for law in laws if law[1])), log_cut(math.log(delta)))
        assert estimate(mixed, interval.lower, math.log(delta))[0] < math.log(delta)

"""Laws that must hold between accountants on any setting: renyi >= pld >= exact >= certified lower, and others."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from calibrate.accountants.registry import AccountantName, agree, best_epsilon, price, second_opinion
from calibrate.errors import NotCertified
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit, Relation
from calibrate.releases import (
    Gaussian,
    InSequence,
    Laplace,
    Leaf,
    RandomizedResponse,
    Release,
    Repeated,
    Sampled,
    Together,
)
from calibrate.sampling import Batch, FixedSize, Poisson, WithReplacement

A = AccountantName
ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
REPLACE_ONE = PrivacyUnit.of(Relation.REPLACE_ONE)
REPLACE_ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)

TINY = 1e-3
"""The pld upper side exceeds the exact value by less than this share on the settings drawn here."""

few = settings(max_examples=2, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

rates = st.floats(0.005, 0.6)
multipliers = st.floats(0.8, 5.0)
rounds = st.integers(1, 300)
deltas = st.sampled_from([1e-3, 1e-5, 1e-8])


def interval(name: AccountantName, release: Release, unit: PrivacyUnit, delta: float) -> EpsilonInterval:
    return price(name, release, unit, delta).interval


def in_order(release: Release, unit: PrivacyUnit, delta: float) -> None:
    """renyi >= pld >= exact >= lower, as far as each of them claims it."""
    renyi = interval(A.RENYI, release, unit, delta)
    pld = interval(A.PLD, release, unit, delta)
    certified = interval(A.CERTIFIED, release, unit, delta)
    assert renyi.upper >= pld.upper * (1 - TINY)
    assert renyi.upper >= certified.lower
    assert pld.upper >= certified.lower
    assert certified.upper >= pld.lower


@few
@given(rates, multipliers, rounds, deltas)
@example(0.01, 4.0, 10_000, 1e-5)
def test_poisson_add_remove_in_order(rate: float, z: float, times: int, delta: float) -> None:
    release = Repeated(Sampled(Poisson(rate), Gaussian(z)), times)
    in_order(release, ADD_REMOVE, delta)
    moments = interval(A.MOMENTS, release, ADD_REMOVE, delta).upper
    assert moments >= interval(A.RENYI, release, ADD_REMOVE, delta).upper, "the 2016 tail bound is never better"


@pytest.mark.slow
@few
@given(rates, multipliers, rounds, deltas)
def test_poisson_replace_one_in_order(rate: float, z: float, times: int, delta: float) -> None:
    release = Repeated(Sampled(Poisson(rate), Gaussian(z)), times)
    in_order(release, REPLACE_ONE, delta)
    removed = interval(A.PLD, release, ADD_REMOVE, delta)
    assert interval(A.PLD, release, REPLACE_ONE, delta).upper >= removed.lower, "replacing hides less than removing"


@pytest.mark.slow
@few
@given(st.integers(1, 99), multipliers, st.integers(1, 100), deltas)
def test_fixed_size_bounds_enclose_each_other(size: int, z: float, times: int, delta: float) -> None:
    """Here the exact value is not known: every upper bound must only lie above every attained lower bound."""
    release = Repeated(Sampled(FixedSize(100, size), Gaussian(2 * z)), times)
    answers = [interval(name, release, REPLACE_ONE, delta) for name in (A.RENYI, A.PLD, A.CERTIFIED)]
    assert min(answer.upper for answer in answers) >= max(answer.lower for answer in answers)
    assert answers[1].upper == pytest.approx(answers[2].upper, rel=TINY)


@few
@given(st.floats(0.5, 20.0), st.integers(1, 50), deltas)
def test_laplace_in_order(scale: float, times: int, delta: float) -> None:
    in_order(Repeated(Laplace(scale), times), ADD_REMOVE, delta)


@few
@given(st.floats(0.05, 3.0), st.integers(2, 10), st.integers(1, 50), deltas)
def test_randomised_response_in_order(epsilon: float, categories: int, times: int, delta: float) -> None:
    in_order(Repeated(RandomizedResponse(epsilon, categories), times), REPLACE_ATTRIBUTE, delta)
    most = interval(A.PLD, RandomizedResponse(epsilon, categories), REPLACE_ATTRIBUTE, delta).upper
    assert most <= epsilon * (1 + 1e-9), "one response is epsilon-private at every delta"


def revealed(rate: float, z: float) -> Leaf:
    return Sampled(Poisson(rate, Batch.REVEALED), Gaussian(z))


def drawn(rate: float, z: float) -> Leaf:
    return Sampled(WithReplacement(1000, max(1, round(1000 * rate))), Gaussian(z))


@pytest.mark.slow
@few
@pytest.mark.parametrize("leaf", [revealed, drawn])
@given(st.floats(0.005, 0.3), multipliers, st.integers(1, 200), deltas)
def test_revealed_batches_are_priced_alike(leaf, rate: float, z: float, times: int, delta: float) -> None:  # type: ignore[no-untyped-def]
    release = Repeated(leaf(rate, z), times)
    exact = interval(A.REVEALED, release, REPLACE_ATTRIBUTE, delta)
    for name in (A.PLD, A.CERTIFIED):
        assert exact.overlaps(interval(name, release, REPLACE_ATTRIBUTE, delta))
    assert interval(A.RENYI, release, REPLACE_ATTRIBUTE, delta).upper >= exact.lower


@few
@given(multipliers, rounds, deltas)
def test_a_full_batch_is_the_analytic_gaussian(z: float, times: int, delta: float) -> None:
    exact = interval(A.GAUSSIAN, Repeated(Gaussian(z), times), ADD_REMOVE, delta)
    everybody = Repeated(Sampled(Poisson(1.0), Gaussian(z)), times)
    nearly_everybody = Repeated(Sampled(Poisson(1 - 1e-9), Gaussian(z)), times)
    for name in (A.PLD, A.CERTIFIED):
        for release in (everybody, nearly_everybody):
            answer = interval(name, release, ADD_REMOVE, delta)
            assert answer.lower <= exact.upper * (1 + 1e-6)
            assert answer.upper >= exact.lower * (1 - 1e-6)
            assert answer.upper == pytest.approx(exact.upper, rel=TINY)
    assert interval(A.RENYI, everybody, ADD_REMOVE, delta).upper >= exact.lower


@few
@given(st.floats(0.02, 0.2), st.floats(1.5, 4.0), st.floats(2.5, 5.0), st.integers(50, 400), deltas)
def test_one_batch_for_two_values(rate: float, z: float, ratio: float, times: int, delta: float) -> None:
    """Same-batch joint release: dearer than two independent batches, cheaper than twice the rounds.

    The second half is no theorem: it needs the second value to be a good deal noisier than the first (two equally
    noisy values of one batch cost *more* than twice the rounds). The ratios drawn are those of the papers.
    """

    def batch(*noise: float) -> Leaf:
        return Sampled(Poisson(rate), Together(tuple(map(Gaussian, noise))))

    joint = interval(A.CERTIFIED, Repeated(batch(z, ratio * z), times), ADD_REMOVE, delta)
    independent = InSequence((Repeated(batch(z), times), Repeated(batch(ratio * z), times)))
    assert joint.lower > interval(A.CERTIFIED, independent, ADD_REMOVE, delta).upper * (1 - 1e-4)
    assert joint.upper < interval(A.CERTIFIED, Repeated(batch(z), 2 * times), ADD_REMOVE, delta).lower


def test_two_equal_values_of_one_batch_cost_more_than_twice_the_rounds() -> None:
    equal = Repeated(Sampled(Poisson(0.05), Together((Gaussian(2.0), Gaussian(2.0)))), 100)
    twice = Repeated(Sampled(Poisson(0.05), Gaussian(2.0)), 200)
    assert interval(A.PLD, equal, ADD_REMOVE, 1e-5).lower > interval(A.PLD, twice, ADD_REMOVE, 1e-5).upper


@few
@given(rates, multipliers, st.integers(1, 100), deltas, st.booleans())
@example(0.0034229626900851838, 4.609413014350336, 15, 1.0207495741049437e-05, True)
def test_first_and_second_opinion_agree(rate: float, z: float, times: int, delta: float, joint: bool) -> None:
    noise = (Gaussian(z), Gaussian(5.124 * z)) if joint else (Gaussian(z),)
    release = InSequence((Repeated(Sampled(Poisson(rate), Together(noise)), times), Gaussian(50.0)))
    first = best_epsilon(release, ADD_REMOVE, delta)
    second = second_opinion(release, ADD_REMOVE, delta, first)
    assert first.accountant_name is A.CERTIFIED
    assert second.accountant_name is A.PLD
    assert agree(first, second)
    assert second.interval.upper == pytest.approx(first.interval.upper, rel=5e-3, abs=1e-6)


@settings(max_examples=2, deadline=None, derandomize=True)
@given(st.floats(0.02, 0.4), st.floats(1.0, 4.0), st.integers(5, 100))
def test_the_third_opinion_agrees_too(rate: float, z: float, times: int) -> None:
    release = Repeated(Sampled(Poisson(rate), Gaussian(z)), times)
    assert interval(A.PRV, release, ADD_REMOVE, 1e-5).overlaps(interval(A.PLD, release, ADD_REMOVE, 1e-5))


@st.composite
def anything(draw: st.DrawFn) -> tuple[Release, PrivacyUnit]:
    """A repeated release of any supported kind, over a wide range of noise and rates."""
    rate, z = 10 ** draw(st.floats(-3, -0.01)), 10 ** draw(st.floats(-0.3, 1.2))
    size = max(1, int(1000 * rate))
    leaf, unit = draw(
        st.sampled_from(
            [
                (Sampled(Poisson(rate), Gaussian(z)), ADD_REMOVE),
                (Sampled(Poisson(rate), Together((Gaussian(z), Gaussian(2.5 * z)))), ADD_REMOVE),
                (Sampled(Poisson(rate), Gaussian(z)), REPLACE_ONE),
                (Sampled(FixedSize(1000, size), Gaussian(2 * z)), REPLACE_ONE),
                (revealed(rate, z), REPLACE_ATTRIBUTE),
                (drawn(0.3 * rate, z), REPLACE_ATTRIBUTE),
                (Laplace(z), ADD_REMOVE),
                (RandomizedResponse(1 / z, 4), REPLACE_ATTRIBUTE),
                (Together((Gaussian(z), Laplace(5 * z))), REPLACE_ONE),
            ]
        )
    )
    return Repeated(leaf, draw(st.integers(1, 1000))), unit


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(anything(), st.floats(-9, -2))
def test_any_two_opinions_agree_on_anything(what: tuple[Release, PrivacyUnit], log10_delta: float) -> None:
    release, unit = what
    delta = 10**log10_delta
    try:
        first = best_epsilon(release, unit, delta)
    except NotCertified:  # refused only where the promise would be worth nothing
        assert interval(A.RENYI, release, unit, delta).upper > 100
        return
    second = second_opinion(release, unit, delta, first)
    assert agree(first, second)
    assert interval(A.RENYI, release, unit, delta).upper >= first.interval.lower

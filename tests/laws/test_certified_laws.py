"""Laws of the certified accountant and of the noise solver, on settings drawn at random.

Soundness is tested against accountants that share no code with it: dp-accounting's privacy-loss accountant
(pessimistic and optimistic), and against itself at another precision, where two certified intervals that did not
overlap would prove that one of them is wrong.
"""

from __future__ import annotations

import math
from itertools import combinations

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from calibrate.accountants.certified import CertifiedAccountant
from calibrate.accountants.gaussian import gaussian_delta, gaussian_epsilon
from calibrate.accountants.registry import epsilon_of, total_cost
from calibrate.arrays import Floats
from calibrate.errors import NotCertified
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit, Relation
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
    scale_noise,
)
from calibrate.sampling import Batch, FixedSize, Poisson, WithReplacement
from calibrate.solve import Certificate, solve_noise

ADD_REMOVE = PrivacyUnit.of(Relation.ADD_REMOVE)
REPLACE_ONE = PrivacyUnit.of(Relation.REPLACE_ONE)
REPLACE_ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)

some = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
few = settings(some, max_examples=4)
many = settings(some, max_examples=80)

rates = st.floats(-2.5, -0.05).map(lambda x: 10**x)
tiny_rates = st.floats(-8.0, -2.5).map(lambda x: 10**x)
multipliers = st.floats(-0.35, 1.5).map(lambda x: 10**x)
rounds = st.floats(0, 3.5).map(lambda x: int(10**x))
deltas = st.floats(-12.0, -2.0).map(lambda x: 10**x)


@st.composite
def leaves(draw: st.DrawFn, rate: st.SearchStrategy[float] = rates) -> tuple[Leaf, PrivacyUnit]:
    """Any leaf with a continuous or discrete law, with a unit it is supported for."""
    z, q = draw(multipliers), draw(rate)
    size = draw(st.integers(1, 99))
    return draw(
        st.sampled_from(
            [
                (Sampled(Poisson(q), Gaussian(z)), ADD_REMOVE),
                (Sampled(Poisson(q), Gaussian(z)), REPLACE_ONE),
                (Sampled(FixedSize(100, size), Gaussian(2 * z)), REPLACE_ONE),
                (Sampled(Poisson(q, Batch.REVEALED), Gaussian(z)), REPLACE_ATTRIBUTE),
                (Sampled(WithReplacement(100, size), Gaussian(2 * z)), REPLACE_ATTRIBUTE),
                (Laplace(2 * z), ADD_REMOVE),
                (RandomizedResponse(1 / z, 2 + size % 5), REPLACE_ONE),
            ]
        )
    )


def interval(release: Release, unit: PrivacyUnit, delta: float, precision: float = 1e-4) -> EpsilonInterval:
    return epsilon_of(CertifiedAccountant(precision), release, unit, delta)


def dp_sgd(rate: float, z: float, times: int) -> Release:
    return Repeated(Sampled(Poisson(rate), Gaussian(z)), times)


def overlap_at_two_precisions(leaf: Leaf, unit: PrivacyUnit, times: int, delta: float) -> None:
    release = Repeated(leaf, times)
    coarse, fine = interval(release, unit, delta, 3e-3), interval(release, unit, delta, 1e-4)
    assume(fine.upper < 100)
    assert coarse.overlaps(fine)


@few
@given(leaves(), rounds, deltas)
@example((Sampled(Poisson(1e-5), Gaussian(0.6)), ADD_REMOVE), 3, 1e-5)
@example((Sampled(Poisson(0.001), Gaussian(0.84)), ADD_REMOVE), 3000, 1e-6)
@example((Sampled(Poisson(1e-7), Gaussian(1.05078125)), ADD_REMOVE), 1, 1e-12)
def test_intervals_at_two_precisions_overlap(priced: tuple[Leaf, PrivacyUnit], times: int, delta: float) -> None:
    overlap_at_two_precisions(*priced, times, delta)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@many
@given(st.one_of(leaves(), leaves(tiny_rates)), rounds, deltas)
def test_intervals_at_two_precisions_overlap_on_many_settings(
    priced: tuple[Leaf, PrivacyUnit], times: int, delta: float
) -> None:
    overlap_at_two_precisions(*priced, times, delta)


def dp_accounting_interval(rate: float, z: float, times: int, delta: float, relation: Relation) -> EpsilonInterval:
    """Optimistic and pessimistic epsilon of dp-accounting, composed by its own code."""
    neighbours = {
        Relation.ADD_REMOVE: dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
        Relation.REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
    }[relation]
    ends = []
    for pessimistic in (False, True):
        law = pld.from_gaussian_mechanism(
            z,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=1e-4,
            use_connect_dots=pessimistic,
            neighboring_relation=neighbours,
        )
        ends.append(law.self_compose(times).get_epsilon_for_delta(delta))
    return EpsilonInterval(min(ends), max(ends))


@pytest.mark.slow
@few
@given(st.floats(0.01, 0.5), st.floats(0.8, 6.0), st.integers(1, 200), st.sampled_from([1e-3, 1e-5, 1e-7]))
@example(0.1, 2.0, 10, 1e-5)
def test_agrees_with_dp_accounting(rate: float, z: float, times: int, delta: float) -> None:
    theirs = dp_accounting_interval(rate, z, times, delta, Relation.ADD_REMOVE)
    ours = interval(dp_sgd(rate, z, times), ADD_REMOVE, delta, 1e-5)
    assert ours.lower <= theirs.upper
    assert ours.upper >= theirs.lower
    assert ours.upper <= theirs.upper * (1 + 1e-4) + 1e-6, "at least as tight as a grid of 1e-4"


@some
@given(leaves(), st.integers(2, 40), deltas)
def test_repetition_is_sequence(priced: tuple[Leaf, PrivacyUnit], times: int, delta: float) -> None:
    leaf, unit = priced
    accountant = CertifiedAccountant()
    repeated = total_cost(accountant, Repeated(leaf, times), unit)
    assert repeated == total_cost(accountant, InSequence((leaf,) * times), unit)
    assert repeated == total_cost(accountant, InSequence((leaf, Repeated(leaf, times - 1))), unit)


@some
@given(st.floats(0.5, 50.0), st.integers(1, 50), deltas)
def test_rate_one_is_the_analytic_gaussian(z: float, times: int, delta: float) -> None:
    found = interval(dp_sgd(1.0, z, times), ADD_REMOVE, delta)
    exact = gaussian_epsilon(math.sqrt(times) / z, delta)
    assert found.lower <= exact <= found.upper * (1 + 1e-12)
    assert found.upper == pytest.approx(exact, rel=1e-9, abs=1e-12)


@pytest.mark.slow
@some
@given(st.floats(0.005, 0.5), st.floats(0.8, 4.0), st.floats(1.2, 8.0), st.integers(2, 500))
def test_same_batch_costs_more_than_two_batches_and_less_than_twice_the_rounds(
    rate: float, z: float, ratio: float, times: int
) -> None:
    both = (Gaussian(z), Gaussian(ratio * z))
    joint = interval(Repeated(Sampled(Poisson(rate), Together(both)), times), ADD_REMOVE, 1e-5)
    separate = interval(
        InSequence(tuple(Repeated(Sampled(Poisson(rate), each), times) for each in both)), ADD_REMOVE, 1e-5
    )
    twice = interval(dp_sgd(rate, z, 2 * times), ADD_REMOVE, 1e-5)
    assert joint.upper >= separate.lower
    if rate < 0.2 and times > 20:
        assert joint.lower >= separate.upper * (1 - 1e-3), "pricing one batch as two is too cheap"
    assert separate.lower <= twice.upper


@some
@given(leaves(), st.integers(1, 200), deltas, st.floats(1.05, 3.0))
def test_more_noise_or_fewer_rounds_never_cost_more(
    priced: tuple[Leaf, PrivacyUnit], times: int, delta: float, more: float
) -> None:
    leaf, unit = priced
    base = interval(Repeated(leaf, times), unit, delta)
    assume(base.upper < 100)
    assert interval(scale_noise(Repeated(leaf, times), more), unit, delta).lower <= base.upper
    assert interval(Repeated(leaf, times + 1), unit, delta).upper >= base.lower


@some
@given(st.floats(0.002, 0.5), st.integers(1, 3000), st.floats(0.2, 6.0), st.sampled_from([1e-4, 1e-5, 1e-8]))
def test_solved_noise_is_safe_and_a_thousandth_less_breaks(
    rate: float, times: int, epsilon: float, delta: float
) -> None:
    target = EpsilonDelta(epsilon, delta)
    try:
        solved = solve_noise(dp_sgd(rate, 1.0, times), ADD_REMOVE, target)
    except NotCertified:
        pytest.fail("every Poisson setting with add-remove can be certified")
    assume(solved.factor_lower > 0)
    accountant = CertifiedAccountant(2e-5)
    less = accountant.epsilon_lower(
        total_cost(accountant, dp_sgd(rate, 0.999 * solved.factor, times), ADD_REMOVE), delta
    )
    assert less > epsilon
    cost = total_cost(accountant, solved.release, ADD_REMOVE)
    assert accountant.epsilon_upper(cost, delta) <= epsilon * (1 + 1e-3)


@pytest.mark.slow
@settings(some, max_examples=3)
@given(st.floats(0.01, 0.3), st.integers(5, 200), st.floats(0.5, 4.0))
@example(0.01, 1000, 1.0)
def test_solved_noise_is_safe_for_dp_accounting(rate: float, times: int, epsilon: float) -> None:
    """Re-evaluated by dp-accounting on a fine grid, whose own excess is bounded by a finer or coarser grid."""
    solved = solve_noise(dp_sgd(rate, 1.0, times), ADD_REMOVE, EpsilonDelta(epsilon, 1e-5), Certificate.UPPER)
    law = pld.from_gaussian_mechanism(
        solved.factor, sampling_prob=rate, value_discretization_interval=2e-5, use_connect_dots=True
    )
    assert law.self_compose(times).get_epsilon_for_delta(1e-5) <= epsilon * (1 + 1e-6) + 1e-7


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    values=st.lists(st.floats(-1, 1), min_size=3, max_size=6),
    size=st.integers(1, 4),
    z=st.floats(0.3, 4.0),
    epsilon=st.floats(0.0, 3.0),
)
def test_a_user_added_to_fixed_cohorts_costs_at_most_the_proved_pair(
    values: list[float], size: int, z: float, epsilon: float
) -> None:
    """All cohorts of a small population listed: both directions lie below the pair of half the noise."""
    size = min(size, len(values) - 1)

    def sums(users: list[float]) -> list[float]:
        return [math.fsum(cohort) for cohort in combinations(users, size)]

    x = np.linspace(-size - 9 * z, size + 9 * z, 6001)

    def density(users: list[float]) -> Floats:
        means = sums(users)
        return np.mean([np.exp(-(((x - mean) / z) ** 2) / 2) for mean in means], axis=0) / (z * math.sqrt(2 * math.pi))

    larger, smaller = density(values), density(values[1:])
    rate, spacing = size / len(values), x[1] - x[0]
    removed = float(np.maximum(larger - math.exp(epsilon) * smaller, 0).sum() * spacing)
    added = float(np.maximum(smaller - math.exp(epsilon) * larger, 0).sum() * spacing)
    bound = rate * gaussian_delta(2 / z, math.log1p(math.expm1(epsilon) / rate))
    assert removed <= bound + 1e-9
    assert added <= bound + 1e-9
    worst = [1.0, *([-1.0] * (len(values) - 1))]
    reached = np.maximum(density(worst) - math.exp(epsilon) * density(worst[1:]), 0).sum() * spacing
    assert float(reached) == pytest.approx(bound, abs=1e-6)

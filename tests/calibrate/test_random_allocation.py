"""Random allocation: both ends against exact small cases, known limits, other people's numbers and a second formula."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from calibrate import questions
from calibrate.accountants.certified import CertifiedAccountant
from calibrate.accountants.gaussian import gaussian_epsilon_interval
from calibrate.accountants.registry import epsilon_of
from calibrate.accountants.renyi import RenyiAccountant
from calibrate.accountants.sampled_losses import Points, RandomAllocationLoss, _sum
from calibrate.errors import InvalidInput, NotCertified, UnsupportedCombination
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit, Protected, Relation
from calibrate.releases import Gaussian, Repeated, Sampled, decode_sampling, encode_sampling, multiplicities
from calibrate.sampling import Batch, Poisson, RandomAllocation

ADD_REMOVE = PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE)
REPLACE_ONE = PrivacyUnit(Protected.RECORD, Relation.REPLACE_ONE)


def _epsilon(z: float, batches: int, epochs: int, delta: float, drawn: int = 0) -> EpsilonInterval:
    release = Repeated(Sampled(RandomAllocation(batches, drawn), Gaussian(z)), epochs)
    return epsilon_of(CertifiedAccountant(), release, ADD_REMOVE, delta)


def _deltas(z: float, batches: int, epsilon: float, drawn: int = 0) -> tuple[float, float]:
    """Both ends of delta for one epoch, the larger of the two directions."""
    ends = []
    for upper in (False, True):
        laws = [RandomAllocationLoss(z, batches, drawn or batches, removal, upper) for removal in (True, False)]
        ends.append(max(math.exp(law.log_delta(epsilon)) for law in laws))
    return ends[0], ends[1]


def _exact_two_batches(z: float, epsilon: float, removal: bool) -> float:
    """E (S - e^eps)_+ or E (1 - e^eps S)_+ for t = 2: the inner expectation in closed form, the outer by quadrature."""
    s, a = 1 / z, math.exp(epsilon)

    def call(strike: float) -> float:
        """E (Y - strike)_+ of a log-normal variable of mean one."""
        if strike <= 0:
            return 1 - strike
        d = -math.log(strike) / s + s / 2
        return float(norm.cdf(d) - strike * norm.cdf(d - s))

    def given_first(g: float) -> float:
        y = math.exp(s * g - s * s / 2)
        if removal:  # (y + Y)/2 - a
            return call(2 * a - y) / 2
        strike = 2 / a - y  # 1 - a (y + Y)/2 = a/2 (strike - Y)
        return a / 2 * (call(strike) + strike - 1) if strike > 0 else 0.0

    kink = (math.log(2 * a if removal else 2 / a) + s * s / 2) / s
    points = sorted({-12.0, min(max(kink, -12.0), 12.0 + s), 12.0 + s})
    return sum(
        quad(lambda g: norm.pdf(g) * given_first(g), low, high, epsabs=1e-15, epsrel=1e-12, limit=400)[0]
        for low, high in pairwise(points)
    )


@pytest.mark.parametrize("z", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.0])
def test_two_batches_enclose_the_exact_delta(z: float, epsilon: float) -> None:
    exact = max(_exact_two_batches(z, epsilon, removal) for removal in (True, False))
    low, high = _deltas(z, 2, epsilon)
    assert low <= exact + 1e-13
    assert high >= exact - 1e-13
    assert high - low <= 0.02 * exact + 1e-12


@pytest.mark.parametrize(("z", "delta"), [(0.5, 1e-5), (1.0, 1e-10), (5.0, 1e-6), (30.0, 1e-5)])
def test_one_batch_is_the_gaussian_mechanism(z: float, delta: float) -> None:
    exact = gaussian_epsilon_interval(1 / z, 1 / z, delta)
    law = {upper: RandomAllocationLoss(z, 1, 1, removal=True, upper=upper) for upper in (False, True)}
    assert law[True].log_delta(exact.upper) >= math.log(delta) - 1e-9
    assert law[False].log_delta(exact.lower) <= math.log(delta) + 1e-9
    priced = epsilon_of(CertifiedAccountant(), Sampled(RandomAllocation(1), Gaussian(z)), ADD_REMOVE, delta)
    assert priced.lower == pytest.approx(exact.lower, rel=1e-9)


def test_the_authors_interval_contains_ours_and_is_wider() -> None:
    """Feldman and Shenfeld's library answers [0.1364, 0.1422] for z = 1, t = 1000, delta = 1e-5."""
    ours = _epsilon(1.0, 1000, 1, 1e-5)
    assert 0.1364 <= ours.lower <= ours.upper <= 0.1422
    assert ours.upper - ours.lower < 0.0005


@pytest.mark.parametrize(
    ("z", "batches", "delta", "linear_grid"), [(1.0, 1000, 1e-5, 0.138847), (3.0, 10, 1e-6, 0.43609)]
)
def test_agrees_with_a_linear_grid(z: float, batches: int, delta: float, linear_grid: float) -> None:
    """Upper ends of an independent sketch: a mean-preserving spread onto multiples of 0.01, convolved by FFT."""
    assert _epsilon(z, batches, 1, delta).lower <= linear_grid * 1.0001


def test_it_is_not_always_below_poisson() -> None:
    low, high = _deltas(1.0, 2, 0.5)
    assert low <= 0.14918 + 5e-6
    assert high >= 0.14918 - 5e-6
    two_rounds = CertifiedAccountant()
    cost = two_rounds.self_compose(two_rounds.price(Sampled(Poisson(0.5), Gaussian(1.0)), ADD_REMOVE), 2)
    poisson = math.exp(two_rounds.log_delta(cost, 0.5))
    assert poisson == pytest.approx(0.14792, abs=1e-5)
    assert low > poisson


@pytest.mark.parametrize(
    ("z", "batches", "epochs", "delta"),
    [(0.5, 2, 1, 1e-5), (1.0, 10, 100, 1e-10), (30.0, 2, 1000, 1e-10), (5.0, 100, 30, 1e-6)],
)
def test_intervals_are_narrow(z: float, batches: int, epochs: int, delta: float) -> None:
    interval = _epsilon(z, batches, epochs, delta)
    assert interval.upper - interval.lower <= max(0.01 * interval.upper, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("z", [0.5, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("batches", [2, 37, 1000, 100_000])
@pytest.mark.parametrize(("epochs", "delta"), [(1, 1e-5), (1, 1e-10), (30, 1e-6), (1000, 1e-10)])
def test_intervals_are_narrow_over_the_whole_range(z: float, batches: int, epochs: int, delta: float) -> None:
    interval = _epsilon(z, batches, epochs, delta)
    assert interval.lower <= interval.upper
    assert interval.upper - interval.lower <= max(0.01 * interval.upper, 1e-4)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(
    z=st.sampled_from((0.5, 0.8, 1.0, 2.0, 10.0)),
    batches=st.integers(2, 9),
    epsilon=st.floats(0.01, 3.0),
    data=st.data(),
)
def test_delta_falls_with_noise_and_batches_and_rises_with_rounds(
    z: float, batches: int, epsilon: float, data: st.DataObject
) -> None:
    low, high = _deltas(z, batches, epsilon)
    assert low <= high
    more_noise, more_batches = _deltas(1.2 * z, batches, epsilon), _deltas(z, batches + 1, epsilon)
    begun = _deltas(z, batches, epsilon, drawn=data.draw(st.integers(1, batches)))
    full_gaussian = _deltas(z, 1, epsilon)
    for smaller in (more_noise, more_batches, begun):
        assert smaller[0] <= high
    assert low <= full_gaussian[1]


def test_a_begun_epoch_is_a_mixture_with_nothing() -> None:
    """One round of t made: the ratio is 1 - 1/t + Y/t, that of a Poisson batch with rate 1/t."""
    interval = _epsilon(1.0, 50, 1, 1e-5, drawn=1)
    poisson = epsilon_of(CertifiedAccountant(), Sampled(Poisson(1 / 50), Gaussian(1.0)), ADD_REMOVE, 1e-5)
    assert interval.lower <= poisson.upper
    assert interval.upper >= poisson.lower


def test_monte_carlo_lies_inside() -> None:
    """Seeded; the tolerance is six standard errors of the mean."""
    rng = np.random.default_rng(20260)
    z, batches, epsilon, draws = 0.8, 12, 0.6, 400_000
    ratio = np.exp(rng.normal(size=(draws, batches)) / z - 0.5 / z**2).mean(axis=1)
    for removal, excess in ((True, ratio - math.exp(epsilon)), (False, 1 - math.exp(epsilon) * ratio)):
        sample = np.maximum(excess, 0)
        doubt = 6 * sample.std() / math.sqrt(draws)
        low, high = (
            math.exp(RandomAllocationLoss(z, batches, batches, removal, upper).log_delta(epsilon))
            for upper in (False, True)
        )
        assert low - doubt <= sample.mean() <= high + doubt


@pytest.mark.parametrize(("z", "batches", "epochs"), [(1.0, 10, 1), (2.0, 100, 20)])
def test_the_renyi_bound_is_above_and_below_a_full_gaussian(z: float, batches: int, epochs: int) -> None:
    release = Repeated(Sampled(RandomAllocation(batches), Gaussian(z)), epochs)
    renyi = epsilon_of(RenyiAccountant(), release, ADD_REMOVE, 1e-5).upper
    assert _epsilon(z, batches, epochs, 1e-5).lower <= renyi
    assert renyi <= epsilon_of(RenyiAccountant(), Repeated(Gaussian(z), epochs), ADD_REMOVE, 1e-5).upper * (1 + 1e-9)


def test_what_is_not_proved_is_refused() -> None:
    with pytest.raises(UnsupportedCombination, match=r"added and removed units only.*revealed"):
        epsilon_of(CertifiedAccountant(), Sampled(RandomAllocation(10), Gaussian(1.0)), REPLACE_ONE, 1e-5)
    revealed = Sampled(RandomAllocation(10, batch=Batch.REVEALED), Gaussian(1.0))
    with pytest.raises(UnsupportedCombination, match="shows that the unit is in the data"):
        epsilon_of(CertifiedAccountant(), revealed, ADD_REMOVE, 1e-5)
    exact = gaussian_epsilon_interval(2.0, 2.0, 1e-5)
    assert epsilon_of(CertifiedAccountant(), revealed, REPLACE_ONE, 1e-5).upper == pytest.approx(exact.upper, rel=1e-9)
    with pytest.raises(InvalidInput, match="exceed its 10 batches"):
        RandomAllocation(10, 11)


def test_a_manifest_can_hold_it() -> None:
    for sampling in (RandomAllocation(12), RandomAllocation(12, 5), RandomAllocation(3, batch=Batch.REVEALED)):
        assert decode_sampling(encode_sampling(sampling)) == sampling


def test_rounds_are_epochs_and_a_begun_one() -> None:
    asked = questions.noisy_rounds((1.0,), rounds=25, batches=10, sampling="random-allocation")
    whole, begun = RandomAllocation(10), RandomAllocation(10, 5)
    assert multiplicities(asked.published) == {Sampled(whole, Gaussian(1.0)): 2, Sampled(begun, Gaussian(1.0)): 1}
    interval = questions.epsilon(noise_multiplier=1.0, batches=10, epochs=3, sampling="random-allocation", delta=1e-5)
    assert interval == _epsilon(1.0, 10, 3, 1e-5)
    with pytest.raises(InvalidInput, match="give 1/30"):
        questions.epsilon(noise_multiplier=1.0, sampling_rate=0.1, sampling="random-allocation", delta=1e-5)


@pytest.mark.parametrize(("z", "batches", "epochs"), [(0.8, 2, 3), (1.0, 40, 10), (5.0, 3, 1)])
def test_an_epoch_never_costs_more_than_one_full_gaussian(z: float, batches: int, epochs: int) -> None:
    gaussian = gaussian_epsilon_interval(math.sqrt(epochs) / z, math.sqrt(epochs) / z, 1e-6)
    assert _epsilon(z, batches, epochs, 1e-6).upper <= gaussian.upper


def test_the_cost_of_an_epoch_vanishes_as_batches_become_many() -> None:
    costs = [_epsilon(3.0, batches, 1, 1e-5).upper for batches in (1, 10, 300)]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < 0.1


@pytest.mark.parametrize("z", [1e8, 1e16, 1e100])
def test_noise_beyond_all_measure_costs_next_to_nothing(z: float) -> None:
    interval = _epsilon(z, 1000, 3, 1e-12)
    assert interval.lower == 0
    assert interval.upper < 1e-6


@pytest.mark.parametrize("batches", [2, 1000])
def test_next_to_no_noise_is_refused_by_name(batches: int) -> None:
    with pytest.raises(NotCertified, match=r"at least 0\.05"):
        _epsilon(0.01, batches, 1, 1e-5)
    assert _epsilon(0.05, batches, 1, 1e-5).upper > 50


@pytest.mark.parametrize("seed", range(6))
def test_a_sum_lies_between_its_two_laws_in_convex_order(seed: int) -> None:
    random = np.random.default_rng(seed)
    spread = (0.01, 0.3, 3.0)[seed % 3]
    levels = np.array([0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 9.0])
    first, second = (
        Points(np.exp(np.sort(spread * random.normal(size=size))), random.dirichlet(np.full(size, 0.05)), 0.0)
        for size in (40, 57)
    )
    for other in (second, first):  # a sum of two laws, and of a law with itself
        values = np.add.outer(first.values, other.values).ravel()
        masses = np.outer(first.masses, other.masses).ravel()
        ends = []
        for upper, sign in ((False, -1), (True, 1)):
            law = _sum(first, other, (levels, levels), upper)
            ends.append(replace(law, values=law.values * (1 + sign * law.stretch)))
        strikes = np.concatenate([values[::97], *(each.values for each in ends)])
        below, above = (
            np.array([math.fsum(each.masses * np.maximum(each.values - strike, 0)) for strike in strikes])
            for each in ends
        )
        exact = np.array([math.fsum(masses * np.maximum(values - strike, 0)) for strike in strikes])
        assert np.all(below <= exact * (1 + 1e-12))
        assert np.all(exact <= above * (1 + 1e-12))
        for each in ends:
            assert each.masses @ each.values == pytest.approx(masses @ values, rel=1e-11)

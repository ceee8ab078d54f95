"""Second and third opinions from two other libraries: privacy loss distributions on a grid.

`PrivacyLossAccountant` uses dp-accounting's own distributions where it has them, and ours. `PrvAccountant` uses
prv-accountant (Gopi, Lee and Wutschitz 2021), which knows only the direction in which a record is removed; the mirror
image is added here as a separate privacy random variable, and the larger epsilon of the two counts.

For upper bounds ours hand the pair's hockey-stick curve to dp-accounting's connect-the-dots construction, which returns
the smallest distribution on the grid whose curve lies above the given one.

For lower bounds a pair must dominate the distribution. dp-accounting's optimistic estimate rounds every loss down,
which loses half a step per round. Here neighbouring outcomes are *merged* instead, which is post-processing and so can
only lose information: with p_i, q_i the P- and Q-mass of the losses in [e_i, e_(i+1)], the share lambda_i of that
bucket is merged downward at e_i and the rest upward at e_(i+1). At e_i the merged outcome has loss at least e_i if

    lambda_i * x_i >= (1 - lambda_(i-1)) * y_(i-1),   x_i = p_i - q_i exp(e_i),   y_i = q_i exp(e_(i+1)) - p_i,

and lambda_i = max(w_i, w_(i+1)) with w_i = y_(i-1) / (x_i + y_(i-1)) always satisfies it. What is lost is of
second order in the step (docs/theorems/accountants.md, equation A3).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Any, assert_never

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution, privacy_loss_mechanism
from dp_accounting.privacy_accountant import NeighboringRelation
from prv_accountant import PRVAccountant
from prv_accountant import privacy_random_variables as prvs
from scipy.special import log_ndtr, ndtr

from calibrate.accountants.registry import CountingAccountant, PairCounts
from calibrate.accountants.support import (
    PRICED_PAIRS,
    DominatingPair,
    FixedSizeReplacePair,
    Free,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    RandomAllocationPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
    TruncatedPair,
    Unbounded,
)
from calibrate.arrays import Floats
from calibrate.errors import NotCertified, positive
from calibrate.privacy_unit import EpsilonInterval

_DEVIATIONS = 10.0
_NEGLIGIBLE = 1e-25
"""Components with less weight are left out, which is optimistic."""
_ON_GRID = 1e-9
"""An atom this close (in steps) to a grid point is put on it; the accountant's slack on delta covers it."""


@dataclass(frozen=True)
class _Buckets:
    """P- and Q-mass of the losses in [index, index + 1] * step, for index = first, first + 1, ..

    `on_grid` lists (index, P-mass) of atoms whose loss is a grid point already and needs no merging.
    """

    first: int
    p: Floats
    q: Floats
    on_grid: tuple[tuple[int, float], ...] = ()

    def mirrored(self, step: float) -> _Buckets:
        atoms = tuple((-index, mass * math.exp(-index * step)) for index, mass in self.on_grid)
        return _Buckets(-(self.first + len(self.p)), self.q[::-1], self.p[::-1], atoms)


def optimistic_loss(pair: DominatingPair, step: float) -> Any:
    """A dp-accounting PrivacyLossDistribution on multiples of `step` whose curve lies below the pair's.

    For `FixedSizeReplacePair` it is the direction that a real data set attains, and its mirror image.
    """
    match pair:
        case GaussianPair(mu):
            return _distribution(_gaussian_mixture(((1.0, mu),), step), step)
        case MixedGaussianPair(components):
            return _distribution(_gaussian_mixture(components, step), step)
        case SubsampledGaussianPair(rate, z) | FixedSizeReplacePair(rate, z):
            buckets = _sampled_gaussian(rate, z, step)
            merged, mirrored = _merge(buckets, step), _merge(buckets.mirrored(step), step)
            return privacy_loss_distribution.PrivacyLossDistribution(merged, mirrored)
        case SubsampledReplacePair(rate, z):
            return _distribution(_replaced_in_poisson_batch(rate, z, step), step)
        case TruncatedPair(whole):
            return optimistic_loss(whole, step)  # of a data set that is never cut
        case LaplacePair(scale):
            return _distribution(_laplace(scale, step), step)
        case RandomizedResponsePair(epsilon, categories):
            return _distribution(_randomised_response(epsilon, categories, step), step)
        case RandomAllocationPair() | Free() | Unbounded():
            raise NotCertified(f"{pair!r} has no privacy loss distribution on a grid")
        case _:
            assert_never(pair)


def _distribution(buckets: _Buckets, step: float) -> Any:
    return privacy_loss_distribution.PrivacyLossDistribution(_merge(buckets, step))


def _merge(buckets: _Buckets, step: float) -> Any:
    edges = step * np.arange(buckets.first, buckets.first + len(buckets.p) + 1)
    p, q = buckets.p, buckets.q
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.maximum(p - q * np.exp(edges[:-1]), 0.0)
        y = np.maximum(q * np.exp(edges[1:]) - p, 0.0)
    # Losses so large that q underflows or exp overflows: x >= 0 and y <= p (exp(step) - 1) always hold.
    lost = (q == 0) | ~np.isfinite(x) | ~np.isfinite(y)
    x[lost], y[lost] = 0.0, p[lost] * math.expm1(step)
    # w belongs to the edges. The first bucket has no partner below (w = 0 asks nothing of it), the last none
    # above (w = 1 sends all of it down).
    w = np.zeros(len(edges))
    w[-1] = 1.0
    total = x[1:] + y[:-1]
    np.divide(y[:-1], total, out=w[1:-1], where=total > 0)
    # lambda_i = max(w_i, w_(i+1)) satisfies equation A3 at both ends of every bucket.
    down = np.maximum(w[:-1], w[1:])
    mass = np.zeros(len(edges))
    mass[:-1] += down * p
    mass[1:] += (1 - down) * p
    for index, atom in buckets.on_grid:
        mass[index - buckets.first] += atom
    return pld_pmf.DensePLDPmf(step, buckets.first, mass, 0.0, False)


def _grid(lowest: float, highest: float, step: float) -> tuple[int, Floats]:
    """The edges covering [lowest, highest] and the loss 0; what lies beyond is left out, which is optimistic."""
    first, last = min(-1, math.floor(lowest / step)), max(1, math.ceil(highest / step))
    return first, np.asarray(step * np.arange(first, last + 1), dtype=float)


def _normal_masses(cuts: Floats, mean: float, deviation: float) -> Floats:
    """Mass of N(mean, deviation^2) between increasing cuts, without cancellation in either tail."""
    u = (cuts - mean) / deviation
    return np.where(u[1:] <= 0, ndtr(u[1:]) - ndtr(u[:-1]), ndtr(-u[:-1]) - ndtr(-u[1:]))


def _gaussian_mixture(components: tuple[tuple[float, float], ...], step: float) -> _Buckets:
    kept = [(weight, mu) for weight, mu in components if weight > _NEGLIGIBLE]
    largest = max(mu**2 / 2 + _DEVIATIONS * mu for _, mu in kept)
    first, edges = _grid(-largest, largest, step)
    p, q, at_zero = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1), 0.0
    for weight, mu in kept:
        if mu == 0:
            at_zero += weight
        else:
            cuts = edges / mu + mu / 2
            p += weight * _normal_masses(cuts, mu, 1.0)
            q += weight * _normal_masses(cuts, 0.0, 1.0)
    return _Buckets(first, p, q, ((0, at_zero),))


def _sampled_gaussian(rate: float, z: float, step: float) -> _Buckets:
    """((1-q) N(0, z^2) + q N(1, z^2), N(0, z^2)): the loss log(1 - q + q exp((2x - 1)/(2 z^2))) grows with x."""

    def loss(x: float) -> float:
        return float(np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * z * z)))

    first, edges = _grid(loss(-_DEVIATIONS * z), loss(1 + _DEVIATIONS * z), step)
    above = np.maximum(edges - math.log1p(-rate), 0.0)
    with np.errstate(divide="ignore"):
        # exp(e) = 1 - q + q t  <=>  log t = log(1-q) - log q + log(expm1(e - log(1-q)))
        log_ratio = above + np.log(-np.expm1(-above)) + math.log1p(-rate) - math.log(rate)
    cuts = 0.5 + z * z * log_ratio
    q = _normal_masses(cuts, 0.0, z)
    return _Buckets(first, (1 - rate) * q + rate * _normal_masses(cuts, 1.0, z), q)


def _replaced_in_poisson_batch(rate: float, z: float, step: float) -> _Buckets:
    """((1-q) N(0) + q N(1), (1-q) N(0) + q N(-1)) at deviation z; x(e) = z^2 (asinh(c sinh(e/2)) + e/2)."""
    log_c = 1 / (2 * z * z) + math.log1p(-rate) - math.log(rate)
    reach = 1 + _DEVIATIONS * z
    here, there = math.log1p(-rate), math.log(rate)
    largest = float(
        np.logaddexp(here, there + (2 * reach - 1) / (2 * z * z))
        - np.logaddexp(here, there + (-2 * reach - 1) / (2 * z * z))
    )
    first, edges = _grid(-largest, largest, step)
    half = np.abs(edges) / 2
    with np.errstate(divide="ignore"):
        log_argument = log_c + half + np.log(-np.expm1(-2 * half) / 2)
    # asinh(exp(t)) = t + log(1 + sqrt(1 + exp(-2t))) for t >= 0, and plainly below.
    high = np.maximum(log_argument, 0.0)
    asinh = np.where(
        log_argument > 0,
        high + np.log1p(np.sqrt(1 + np.exp(-2 * high))),
        np.arcsinh(np.exp(np.minimum(log_argument, 0.0))),
    )
    cuts = z * z * np.sign(edges) * (asinh + half)
    middle = (1 - rate) * _normal_masses(cuts, 0.0, z)
    p = middle + rate * _normal_masses(cuts, 1.0, z)
    return _Buckets(first, p, middle + rate * _normal_masses(cuts, -1.0, z))


def _laplace(scale: float, step: float) -> _Buckets:
    """Loss (2x - 1)/b between -1/b and 1/b, with half of P at the top and half of Q at the bottom."""
    top = 1 / scale
    first, edges = _grid(-top, top, step)
    inside = np.clip(edges, -top, top)
    p = 0.5 * math.exp(-top / 2) * np.diff(np.exp(inside / 2))
    q = 0.5 * math.exp(-top / 2) * -np.diff(np.exp(-inside / 2))
    return _with_atoms(_Buckets(first, p, q), ((top, 0.5), (-top, 0.5 * math.exp(-top))), step)


def _randomised_response(epsilon: float, categories: int, step: float) -> _Buckets:
    first, edges = _grid(-epsilon, epsilon, step)
    nothing = np.zeros(len(edges) - 1)
    keep = 1 / (1 + (categories - 1) * math.exp(-epsilon))
    other = keep * math.exp(-epsilon)
    atoms = ((epsilon, keep), (-epsilon, other), (0.0, (categories - 2) * other))
    return _with_atoms(_Buckets(first, nothing, nothing.copy()), atoms, step)


def _with_atoms(buckets: _Buckets, atoms: tuple[tuple[float, float], ...], step: float) -> _Buckets:
    """Puts atoms (loss, P-mass) on their grid point, or into the bucket around them."""
    p, q, on_grid = buckets.p.copy(), buckets.q.copy(), list(buckets.on_grid)
    for loss, mass in atoms:
        nearest = round(loss / step)
        if abs(loss / step - nearest) < _ON_GRID:
            on_grid.append((nearest, mass))
        else:
            index = math.floor(loss / step) - buckets.first
            p[index] += mass
            q[index] += mass * math.exp(-loss)
    return _Buckets(buckets.first, p, q, tuple(on_grid))


# The privacy loss distribution accountant: dp-accounting's distributions, composed with our own counts.
#
# Every supported pair is put on a grid of losses twice: dominated from above (upper epsilon) and from below
# (lower epsilon). dp-accounting convolves; no count is ever passed into one of its events.

_STEPS_PER_DEVIATION = 50
"""The grid: a fiftieth of the root mean square loss of a round. The relative excess of epsilon is then about
T h^2 / (12 s^2) = 3e-5 whatever the number of rounds T, since s^2 (of the sum) also grows with T."""
_FINER_BELOW = 4
_STEPS_PER_RATE = 100
"""The lower side is cheap to build but loses more where the losses of rounds without the unit crowd: a sampled
Gaussian has most of its mass within `rate` of zero."""
_LARGEST_GRID = 1_000_000
_RELATIVE_SLACK = 1e-7
_LARGEST_EXPONENT = 700.0
_TAIL = 1e-15
_ONE_STAGE = 10_000
"""Longer repetitions of a pair with few grid points are composed as blocks of blocks."""


@dataclass(frozen=True)
class PrivacyLossAccountant(CountingAccountant):
    """Two-sided accounting of every pair of the support table but random allocation.

    `value_discretization_interval` fixes the step of the loss grid; None chooses it for each composition.

    Guarantee: the upper side composes dominating distributions (Doroshenko et al. 2022, Algorithm 1), the lower
    side distributions obtained by merging outcomes, for the unit of `support` (docs/theorems/accountants.md,
    "pld"). Rounding inside the FFT is covered by an allowance on delta, so a delta near 1e-13 or below has
    no finite upper bound here.
    """

    value_discretization_interval: float | None = None
    name = "pld"
    supported = tuple(kind for kind in PRICED_PAIRS if kind is not RandomAllocationPair)

    def __post_init__(self) -> None:
        if self.value_discretization_interval is not None:
            positive("value discretization interval", self.value_discretization_interval)

    def _interval(self, cost: PairCounts, delta: float) -> EpsilonInterval:
        step = self.value_discretization_interval or _suitable_step(cost)
        allowance = _allowance(cost, step, delta)
        # Beyond 700, where exp(-loss) underflows, dp-accounting returns a loss or infinity instead of epsilon:
        # right as an upper bound, and proof that epsilon is at least 700.
        with np.errstate(over="ignore"):
            upper = math.inf
            if allowance < delta:
                upper = float(_compose(cost, pessimistic_loss, step).get_epsilon_for_delta(delta - allowance))
            below = _compose(cost, optimistic_loss, self.value_discretization_interval or _finer_step(cost, step))
            lower = float(below.get_epsilon_for_delta(delta + allowance))
        return _enclosure(min(lower, _LARGEST_EXPONENT), upper)


def _enclosure(lower: float, upper: float) -> EpsilonInterval:
    """Sides that cross by a rounding are one point; sides that cross by more are a fault, and never hidden."""
    if lower > upper * (1 + 1e-6) + 1e-9:
        raise NotCertified(f"the lower side {lower} exceeds the upper side {upper}: the grid is too coarse")
    return EpsilonInterval(min(lower, upper), upper)


def _compose(cost: PairCounts, build: Callable[[DominatingPair, float], Any], step: float) -> Any:
    parts = (_repeat(build(pair, step), times, _blocks(pair, times, step)) for pair, times in cost.counts)
    return reduce(lambda first, second: first.compose(second, _TAIL), parts)


def _repeat(loss: Any, times: int, blocks: int) -> Any:
    """times-fold composition, as that many equal blocks (and a rest) where it is long."""
    if blocks == 1:
        return loss.self_compose(times, _TAIL)
    block, rest = divmod(times, blocks)
    composed = loss.self_compose(block, _TAIL).self_compose(blocks, _TAIL)
    return composed.compose(loss.self_compose(rest, _TAIL), _TAIL) if rest else composed


def _blocks(pair: DominatingPair, times: int, step: float) -> int:
    """Into how many blocks a long composition is cut.

    dp-accounting sizes its transform by Chernoff bounds at orders fitted to the number of grid points; with few
    points and many rounds those orders are far too large, and so is the transform.
    """
    short = _loss_range(pair) / step < 6 * math.sqrt(times)
    return math.isqrt(times) if short and times > _ONE_STAGE else 1


def _allowance(cost: PairCounts, step: float, delta: float) -> float:
    """What truncation and rounding can add to or take from `delta`.

    Each composition, and each block of a long one, may cut off or wrap around two tails of `_TAIL`; a T-fold
    power of the transform carries an error of about T unit roundoffs; and the masses, second differences of a
    curve divided by the step, carry a relative error of about one roundoff over the step each.
    """
    cuts = sum(4 + math.isqrt(n) for _, n in cost.counts)
    absolute = 2 * _TAIL * cuts + cost.rounds * 2.0**-52 + 1e-13
    return absolute + delta * (_RELATIVE_SLACK + cost.rounds * 2.0**-53 / step)


def _suitable_step(cost: PairCounts) -> float:
    """A step that makes the discretisation error negligible, if a million grid points are enough."""
    mean_square: float = math.fsum(n * _loss_scale(pair) ** 2 for pair, n in cost.counts) / cost.rounds
    widest = max(_loss_range(pair) for pair, _ in cost.counts)
    step = max(math.sqrt(mean_square) / _STEPS_PER_DEVIATION, widest / _LARGEST_GRID)
    # A grid that hits the atoms of the most repeated pair exactly does not blur them.
    atoms = [(n, _loss_range(pair)) for pair, n in cost.counts if isinstance(pair, _Atomic)]
    atom = max(atoms, default=(0, step))[1]
    return atom / math.ceil(atom / step)


def _finer_step(cost: PairCounts, step: float) -> float:
    rates = [pair.rate for pair, _ in cost.counts if isinstance(pair, _Sampled)]
    wanted = min([step / _FINER_BELOW, *(rate / _STEPS_PER_RATE for rate in rates)])
    widest = max(_loss_range(pair) for pair, _ in cost.counts)
    # Divided, not just shrunk: the finer grid keeps hitting the atoms that the coarser one hits.
    return step / math.ceil(step / max(wanted, widest / _LARGEST_GRID))


def _loss_scale(pair: DominatingPair) -> float:
    """Roughly the root mean square loss; only the accuracy depends on it, never the validity."""
    match pair:
        case GaussianPair(mu):
            return mu
        case SubsampledGaussianPair(rate, z) | FixedSizeReplacePair(rate, z):
            return min(rate * math.sqrt(math.expm1(min(z**-2, 50.0))), math.sqrt(rate) / z)
        case SubsampledReplacePair(rate, z):
            return 2 * min(rate * math.sqrt(math.expm1(min(z**-2, 50.0))), math.sqrt(rate) / z)
        case TruncatedPair(whole):
            return _loss_scale(whole)
        case MixedGaussianPair(components):
            return float(math.sqrt(math.fsum(weight * mu**2 for weight, mu in components)))
        case LaplacePair() | RandomizedResponsePair():
            return min(_loss_range(pair), math.sqrt(_loss_range(pair)))
        case RandomAllocationPair() | Free() | Unbounded():
            return 0.0
        case _:
            assert_never(pair)


def _loss_range(pair: DominatingPair) -> float:
    """Roughly the largest loss that the grid must reach."""
    match pair:
        case GaussianPair(mu):
            return mu**2 + 11 * mu
        case SubsampledGaussianPair(rate, z) | FixedSizeReplacePair(rate, z) | SubsampledReplacePair(rate, z):
            far = z**-2 + 11 / z
            above = far + math.log(rate + (1 - rate) * math.exp(-far))
            return above + (min(far, -math.log1p(-rate)) if rate < 1 else far)
        case TruncatedPair():
            return _loss_range(pair.cut)
        case MixedGaussianPair(components):
            return max(mu**2 + 11 * mu for _, mu in components)
        case LaplacePair(scale):
            return 1 / scale
        case RandomizedResponsePair(epsilon):
            return epsilon
        case RandomAllocationPair() | Free() | Unbounded():
            return 0.0
        case _:
            assert_never(pair)


_Sampled = (SubsampledGaussianPair, SubsampledReplacePair, FixedSizeReplacePair)
_Atomic = (LaplacePair, RandomizedResponsePair)

_LOG_TAIL = -50.0
"""Losses rarer than exp(_LOG_TAIL) may be counted as infinite."""
_TAIL_DEVIATIONS = 9.8
"""Phi(-9.8) < exp(-50)."""


def pessimistic_loss(pair: DominatingPair, step: float) -> Any:
    """A dp-accounting PrivacyLossDistribution on multiples of `step` whose hockey-stick curve dominates the pair's."""
    match pair:
        case GaussianPair(mu):
            return _gaussian(1 / mu, step)
        case SubsampledGaussianPair(rate, z):
            return _gaussian(z, step, sampling_prob=rate)
        case SubsampledReplacePair(rate, z):
            relation = NeighboringRelation.REPLACE_ONE
            return _gaussian(z, step, sampling_prob=rate, neighboring_relation=relation)
        case TruncatedPair(whole, chance):
            return pessimistic_loss(pair.cut, step).compute_mixture(pessimistic_loss(whole, step), chance)
        case LaplacePair(scale):
            return privacy_loss_distribution.from_laplace_mechanism(scale, value_discretization_interval=step)
        case FixedSizeReplacePair() | MixedGaussianPair() | RandomizedResponsePair():
            return _connect_the_dots(pair, step)
        case RandomAllocationPair() | Free() | Unbounded():
            raise NotCertified(f"{pair!r} has no privacy loss distribution on a grid")
        case _:
            assert_never(pair)


def _gaussian(standard_deviation: float, step: float, **how: Any) -> Any:
    return privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation, value_discretization_interval=step, log_mass_truncation_bound=_LOG_TAIL, **how
    )


def _connect_the_dots(pair: FixedSizeReplacePair | MixedGaussianPair | RandomizedResponsePair, step: float) -> Any:
    """All three curves are symmetric, delta(-e) = 1 - exp(-e) + exp(-e) delta(e): only e >= 0 is computed."""
    last = math.ceil(_largest_loss(pair) / step) + 1
    epsilons = np.asarray(step * np.arange(last + 1), dtype=float)
    right = _hockey_stick(pair, epsilons)
    left = -np.expm1(-epsilons[:0:-1]) + np.exp(-epsilons[:0:-1]) * right[:0:-1]
    curve = np.minimum.accumulate(np.clip(np.concatenate([left, right]), 0.0, 1.0))
    return privacy_loss_distribution.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, -last, last, curve)
    )


def _hockey_stick(pair: FixedSizeReplacePair | MixedGaussianPair | RandomizedResponsePair, epsilons: Floats) -> Floats:
    """delta(e) for e >= 0."""
    match pair:
        case FixedSizeReplacePair(rate, z):
            # For e >= 0 this direction is the larger one; the symmetric continuation covers its mirror image.
            loss = privacy_loss_mechanism.GaussianPrivacyLoss(
                z, sampling_prob=rate, adjacency_type=privacy_loss_mechanism.AdjacencyType.REMOVE
            )
            return np.asarray(loss.get_delta_for_epsilon(epsilons), dtype=float)
        case MixedGaussianPair(components):
            kept, dropped = _weighty(components)
            total = np.full_like(epsilons, dropped)
            for weight, mu in kept:
                if mu > 0:
                    behind = np.exp(epsilons + log_ndtr(-epsilons / mu - mu / 2))
                    total += weight * np.maximum(0.0, ndtr(mu / 2 - epsilons / mu) - behind)
            return total
        case RandomizedResponsePair(epsilon, categories):
            n = math.exp(epsilon) + categories - 1
            return np.asarray(np.maximum(0.0, math.exp(epsilon) - np.exp(epsilons)) / n)
        case _:
            assert_never(pair)


def _largest_loss(pair: FixedSizeReplacePair | MixedGaussianPair | RandomizedResponsePair) -> float:
    """A loss beyond which less than exp(_LOG_TAIL) of the mass lies."""
    match pair:
        case FixedSizeReplacePair(rate, z):
            tilt = (2 * (1 + _TAIL_DEVIATIONS * z) - 1) / (2 * z * z)
            return float(np.logaddexp(math.log1p(-rate), math.log(rate) + tilt))
        case MixedGaussianPair(components):
            return max(mu**2 / 2 + _TAIL_DEVIATIONS * mu for _, mu in _weighty(components)[0])
        case RandomizedResponsePair(epsilon):
            return epsilon
        case _:
            assert_never(pair)


def _weighty(components: tuple[tuple[float, float], ...]) -> tuple[tuple[tuple[float, float], ...], float]:
    """The components that matter, and the weight of the rest: it is charged as delta outright."""
    kept = tuple((weight, mu) for weight, mu in components if weight > math.exp(_LOG_TAIL))
    return kept, math.fsum(weight for weight, _ in components if weight <= math.exp(_LOG_TAIL))


_DELTA_ERROR = 1e-3
"""Allowed error of delta, as a share of delta; the authors' own suggestion."""


class _Direction(Enum):
    REMOVE = "remove"
    ADD = "add"


@dataclass(frozen=True)
class PrvAccountant(CountingAccountant):
    """Two-sided accounting of Gaussian releases of full or secret Poisson batches (record, add-remove).

    Guarantee: |epsilon error| <= `epsilon_error` and delta error <= delta / 1000 as proved by Gopi, Lee and
    Wutschitz (2021, Theorem 5.5) for exact arithmetic; the package's floating-point error is not bounded, so
    this accountant is for comparison and no promise is issued from it.
    """

    epsilon_error: float = 0.01
    name = "prv"
    supported = (GaussianPair, SubsampledGaussianPair)

    def __post_init__(self) -> None:
        positive("epsilon error", self.epsilon_error)

    def _interval(self, cost: PairCounts, delta: float) -> EpsilonInterval:
        one_sided = all(isinstance(pair, GaussianPair) for pair, _ in cost.counts)
        directions = (_Direction.REMOVE,) if one_sided else tuple(_Direction)
        intervals = [self._one_direction(cost, delta, direction) for direction in directions]
        return EpsilonInterval(max(i.lower for i in intervals), max(i.upper for i in intervals))

    def _one_direction(self, cost: PairCounts, delta: float, direction: _Direction) -> EpsilonInterval:
        counts = [times for _, times in cost.counts]
        try:
            accountant = PRVAccountant(
                prvs=[_random_variable(pair, direction) for pair, _ in cost.counts],
                max_self_compositions=counts,
                eps_error=self.epsilon_error,
                delta_error=_DELTA_ERROR * delta,
            )
            lower, _, upper = accountant.compute_epsilon(delta, counts)
        except (RuntimeError, ValueError, AssertionError) as problem:
            raise NotCertified(f"prv-accountant gave no answer at delta = {delta}: {problem}") from problem
        if not math.isfinite(upper):
            raise NotCertified(f"prv-accountant gave epsilon = {upper} at delta = {delta}")
        return EpsilonInterval(max(0.0, lower), max(0.0, upper))


def _random_variable(pair: DominatingPair, direction: _Direction) -> Any:
    match pair:
        case GaussianPair(mu):
            return prvs.GaussianMechanism(noise_multiplier=1 / mu)
        case SubsampledGaussianPair(rate, z):
            removed = prvs.PoissonSubsampledGaussianMechanism(rate, z)
            return removed if direction is _Direction.REMOVE else _addition_variable(rate, z, removed)
        case _:
            raise NotCertified(f"the prv accountant has no random variable for {pair!r}")


def _addition_variable(rate: float, z: float, removed: Any) -> Any:
    """The loss -log(1 - q + q exp((2x - 1)/(2 z^2))) under x ~ N(0, z^2)."""

    class AddedToPoissonBatch(prvs.PrivacyRandomVariable):  # type: ignore[misc]
        def cdf(self, t: Any) -> Floats:
            above = np.maximum(-np.asarray(t, dtype=float) - math.log1p(-rate), 0.0)
            with np.errstate(divide="ignore"):
                log_ratio = above + np.log(-np.expm1(-above)) + math.log1p(-rate) - math.log(rate)
            return np.asarray(ndtr(-(0.5 / z + z * log_ratio)))

        def rdp(self, alpha: float) -> float:
            """The other direction's divergence, which is never smaller; it only sizes the grid."""
            return float(removed.rdp(alpha))

    return AddedToPoissonBatch()

"""Privacy loss distributions that dominate a pair, on a grid: dp-accounting's own, and ours where it has none.

Ours hand the pair's hockey-stick curve to dp-accounting's connect-the-dots construction, which returns the
smallest distribution on the grid whose curve lies above the given one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any, assert_never

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution, privacy_loss_mechanism
from dp_accounting.privacy_accountant import NeighboringRelation
from scipy.special import log_ndtr, ndtr

from calibrate.accountants.pairs import (
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
    Unbounded,
)
from calibrate.accountants.support import CountingAccountant, PairCounts
from calibrate.arrays import Floats
from calibrate.errors import NotCertified, positive
from calibrate.privacy_unit import EpsilonInterval

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
        from calibrate.accountants.opinions.pld_lower import optimistic_loss

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
    """A step that makes the discretisation error negligible, as far as a million grid points reach."""
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

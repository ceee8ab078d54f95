"""The fast certified accountant: both ends of the interval from one pass over a tilted lattice each.

It prices every pair of `dominating_pairs` by counting it, and works only when epsilon is asked for: a saddle
point says where to look and how fine the lattice must be, the laws are put on the lattice from above
(pessimistic) and from below (optimistic), and each end is verified on its own lattice. Delta may be as small
as 1e-30 and beyond: the tilt keeps the tail in floating-point range. The cost grows like the square root of
the number of rounds.

A single release is priced in closed form. With few rounds and little noise a loss has no narrow bulk to tilt towards,
and a single release needs none of that: with delta_G(mu, eps) of the analytic Gaussian mechanism
(docs/theorems/accountants.md, equation A1) the profiles are those of docs/theorems/certified-accountant.md, section 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache, partial
from typing import assert_never

import numpy as np
from scipy.special import log_ndtr

from calibrate.accountants.compose import LatticeSide, log_cut, on_lattice
from calibrate.accountants.contour import (
    Care,
    Cumulants,
    LossTransform,
    chernoff_epsilon,
    chernoff_log_delta,
    log_delta,
    saddle_for_delta,
    saddle_for_epsilon,
    tilt_below,
)
from calibrate.accountants.directions import Composition, Side, compositions
from calibrate.accountants.doubling import epsilon_by_doubling
from calibrate.accountants.gaussian import (
    RevealedAccountant,
    falling_root,
    gaussian_epsilon_interval,
    gaussian_log_delta,
    log_delta_error,
)
from calibrate.accountants.losses import UNIT_ROUNDOFF, log_mixed_ratio
from calibrate.accountants.registry import CountingAccountant, PairCounts
from calibrate.accountants.sampled_losses import RandomAllocationLoss, SubsampledReplacement
from calibrate.accountants.support import (
    DominatingPair,
    FixedSizeReplacePair,
    Free,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    PricedPair,
    RandomAllocationPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
    TruncatedPair,
    Unbounded,
)
from calibrate.errors import NotCertified, open_unit, positive
from calibrate.privacy_unit import EpsilonInterval

_WOBBLE = 16 * UNIT_ROUNDOFF


def single_interval(pair: PricedPair, delta: float) -> EpsilonInterval:
    """Both ends of the epsilon of one publication of `pair` at `delta`, rounded outward."""
    match pair:
        case GaussianPair(mu):
            return gaussian_epsilon_interval(mu * (1 - _WOBBLE), mu * (1 + _WOBBLE), delta)
        case SubsampledGaussianPair(rate, z) | FixedSizeReplacePair(rate, z):
            return _subsampled(rate, z, delta)
        case SubsampledReplacePair(rate, z):
            if rate == 1:
                return single_interval(GaussianPair(2 / z), delta)
            ends = (_closed_crossing(partial(_replacement_log_delta, rate, z, sign), delta, sign) for sign in (-1, 1))
            return _interval(*ends)
        case MixedGaussianPair():
            return RevealedAccountant().epsilon(PairCounts(((pair, 1),)), delta)
        case LaplacePair(scale):
            # delta = 1 - exp((eps - 1/b) / 2), solved for eps.
            return _widened(1 / scale + 2 * math.log1p(-delta), 1 / scale)
        case RandomizedResponsePair(epsilon, categories):
            # e^eps = e^E - delta (e^E + k - 1), solved for eps (section 8).
            lost = delta * (1 + (categories - 1) * math.exp(-epsilon))
            return _widened(epsilon + math.log1p(-lost) if lost < 1 else 0.0, epsilon)
        case TruncatedPair():
            raise NotCertified(f"{pair!r} has no closed form")
        case RandomAllocationPair(batches, drawn, z):
            return _random_allocation(batches, drawn, z, delta)
        case _:
            assert_never(pair)


def _subsampled(rate: float, z: float, delta: float) -> EpsilonInterval:
    """delta = q delta_G(1/z, log(1 + (e^eps - 1)/q)) for eps >= 0 (equation 13), inverted."""
    if delta >= rate * (1 + _WOBBLE):
        return EpsilonInterval(0.0, 0.0)
    lower, upper = 0.0, 0.0
    if delta < rate * (1 - _WOBBLE):
        lower = gaussian_epsilon_interval((1 - _WOBBLE) / z, (1 - _WOBBLE) / z, delta / rate * (1 + _WOBBLE)).lower
    upper = gaussian_epsilon_interval(
        (1 + _WOBBLE) / z, (1 + _WOBBLE) / z, min(delta / rate, 1.0) * (1 - _WOBBLE)
    ).upper
    # Equation 13 backwards: eps = log(1 + q (e^eps' - 1)), which is the same function of eps' as a mixed ratio.
    ends = log_mixed_ratio(np.array([lower, upper]), rate)
    return _interval(float(ends[0]) * (1 - _WOBBLE), float(ends[1]) * (1 + _WOBBLE))


def _replacement_log_delta(rate: float, z: float, sign: int, epsilon: float) -> float:
    """log delta of a Poisson batch under replace-one, rounded up (+1) or down (-1): equations 14 and 15."""
    mu, u = 1 / z, float(SubsampledReplacement(rate, z).position(np.array([epsilon]))[0]) / z
    log_odds = math.log1p(-rate) - math.log(rate)
    log_middle = log_odds + (math.log(math.expm1(epsilon)) if epsilon < 30 else epsilon) if epsilon > 0 else -math.inf
    uncertainty = 8 * UNIT_ROUNDOFF * (8 + abs(log_odds) + abs(epsilon) + (abs(u) + mu) ** 2)
    if sign < 0:
        first = float(log_ndtr(mu - u))
        rest = math.exp(log_middle + float(log_ndtr(-u)) - first) + math.exp(epsilon + float(log_ndtr(-u - mu)) - first)
        # Equation 15 with the event "above u", divided by its first term.
        left = 1 - rest - 16 * uncertainty
        return math.log(rate) + first - 16 * uncertainty + math.log(left) if left > 0 else -math.inf
    # Any shares that add up to one are a bound; those of the optimal threshold make it sharp.
    log_shares = np.array([log_middle - mu * u + mu * mu / 2, epsilon - 2 * mu * u])
    log_shares -= np.logaddexp(*log_shares)
    bounds = [
        share + _gaussian_log_delta(size, weight - share, uncertainty)
        for share, weight, size in zip(log_shares.tolist(), (log_middle, epsilon), (mu, 2 * mu), strict=True)
        if share > -math.inf
    ]
    return math.log(rate) + float(np.logaddexp.reduce(bounds)) + 16 * UNIT_ROUNDOFF


def _gaussian_log_delta(mu: float, epsilon: float, uncertainty: float) -> float:
    """log delta_G(mu, epsilon), rounded up, for an epsilon that is known up to `uncertainty` only.

    The logarithm falls by at most (|b| + 3/2) / mu per unit of epsilon, b = eps/mu + mu/2 (Mills' ratio).
    """
    at, steepest = np.array([mu]), (abs(epsilon) / mu + mu / 2 + 1.5) / mu
    error = 4 * float(log_delta_error(at, abs(epsilon))[0])
    return float(gaussian_log_delta(at, epsilon)[0]) + error + steepest * uncertainty


def _random_allocation(batches: int, drawn: int, z: float, delta: float) -> EpsilonInterval:
    """From the law of one epoch itself (docs/theorems/sampling.md#random-allocation, equation 2), the larger
    direction.
    """

    def log_delta(sign: int, epsilon: float) -> float:
        laws = (RandomAllocationLoss(z, batches, drawn, removal, upper=sign > 0) for removal in (True, False))
        return max(law.log_delta(epsilon) for law in laws)

    ends = (_closed_crossing(partial(log_delta, sign), delta, sign) for sign in (-1, 1))
    return _interval(*ends)


def _closed_crossing(log_delta: Callable[[float], float], delta: float, sign: int) -> float:
    """The smallest epsilon >= 0 at which the rounded log delta is at most log `delta`, rounded to its own side."""
    target = math.log(delta) - sign * UNIT_ROUNDOFF * abs(math.log(delta))

    def excess(epsilon: float) -> float:
        return max(log_delta(epsilon), -1e6) - target

    return falling_root(excess, sign, 1.0, 2.0, 1e-13, 1e-13)


def _widened(epsilon: float, largest: float) -> EpsilonInterval:
    """A closed form with a few roundings of numbers up to `largest`, never below 0."""
    wobble = _WOBBLE * (1 + largest)
    return EpsilonInterval(max(0.0, epsilon - wobble), max(0.0, epsilon + wobble))


def _interval(lower: float, upper: float) -> EpsilonInterval:
    return EpsilonInterval(min(lower, upper), upper)


_FALLBACK_PRECISION = 1e-4
"""Precision of log delta where the contour integral does not converge and the lattice answers instead."""
_FALLBACK_POINTS = 1 << 16
_COARSE, _COARSE_POINTS, _COARSE_LOOKS = 1e-4, 1 << 16, 3
"""The lattice that only says where to look."""
_BURIED, _STEEP = 0.01, 3.0
"""Where rounding is more than this share of the coarse lattice's delta, or delta falls so much faster than the tilt
says, one single large loss decides."""
_WIDE, _WIDE_APART, _MOST_DOUBLED, _LARGEST_OF_INTEREST, _MOST_FINER = 0.01, 0.05, 1 << 27, 100.0, 2.0
"""An interval wider than this share (second: where the two ends have other laws) is computed in the other way as well,
and then point by point in cells finer by up to the last factor; up to this number of rounds and this epsilon."""
_CLOSE = 0.999
"""A lower end within this share of the upper one is not looked for elsewhere."""
_LARGEST_SECOND_LOOK = 1 << 18
"""A second, finer look at an end is not taken with more lattice points than this."""


class _Way(Enum):
    """On the lattice, or point by point: whichever fits the losses, or the other one."""

    FITTING = "fitting"
    OTHER = "other"


class CertifiedAccountant(CountingAccountant):
    """Certified interval of epsilon for every supported release.

    Guarantee: for the unit a release was priced with, the release is (upper, delta)-private, and (for pairs
    that are attained, see docs/theorems/certified-accountant.md) some release of the described form is not
    (e, delta)-private for any e < lower. `relative_precision` is how close the discretisation may keep either
    end to the exact value.
    """

    name = "certified"

    def __init__(self, relative_precision: float = 1e-5) -> None:
        self.relative_precision = positive("relative precision", relative_precision)

    def _interval(self, cost: PairCounts, delta: float) -> EpsilonInterval:
        """Both ends, each verified on its own lattice; in closed form where nothing is composed."""
        known = _closed_form(cost, delta)
        if known is not None:
            return known
        interval = self._both_ends(cost, delta)
        apart = any(isinstance(pair, FixedSizeReplacePair | TruncatedPair) for pair, _ in cost.counts)
        wide = _WIDE_APART if apart else _WIDE
        if _narrow(interval, wide) or cost.rounds > _MOST_DOUBLED or interval.lower > _LARGEST_OF_INTEREST:
            return interval
        with suppress(NotCertified):  # a second look may fail where the first one did not
            interval = _common(interval, self._both_ends(cost, delta, _Way.OTHER))
        with suppress(NotCertified):
            if not apart and not _narrow(interval, wide):
                interval = _common(interval, _finely(cost, delta))
        return interval

    def _both_ends(self, cost: PairCounts, delta: float, way: _Way = _Way.FITTING) -> EpsilonInterval:
        upper, costlier = self._upper(cost, delta, way)
        lower = self._lower(cost, delta, costlier, upper, way)
        return EpsilonInterval(min(lower, upper), upper)

    def epsilon_lower(self, cost: PairCounts, delta: float) -> float:
        """The lower end alone, from the direction that looks the costlier one."""
        open_unit("delta", delta)
        known = _closed_form(cost, delta)
        return self._lower(cost, delta) if known is None else known.lower

    def epsilon_upper(self, cost: PairCounts, delta: float) -> float:
        """An upper end in half the time; where units rarely take part the interval has a smaller one."""
        open_unit("delta", delta)
        known = _closed_form(cost, delta)
        return self._upper(cost, delta)[0] if known is None else known.upper

    def _lower(
        self,
        cost: PairCounts,
        delta: float,
        costlier_above: int | None = None,
        upper: float = math.inf,
        way: _Way = _Way.FITTING,
    ) -> float:
        """From the direction that the upper end came from, or else from the one that looks the costlier one."""
        # Any direction is a lower bound. One whose loss is bounded has no tail, and is not the costlier one.
        forward, *backward = directions_below = compositions(cost, Side.LOWER)
        looked_at = [forward, *(each for each in backward if math.isinf(each.largest))]
        if costlier_above is not None and len(directions_below) == len(compositions(cost, Side.UPPER)):
            looked_at = [directions_below[costlier_above]]
        directions = [_locate(each, math.log(delta)) for each in looked_at]
        costlier = max(directions, key=lambda where: where.guess)
        at_zero = (
            estimate(costlier.transform, 0.0, math.log(delta), costlier.saddle.tilt)[0] if costlier.guess == 0 else 0.0
        )
        composed = 0.0 if at_zero <= math.log(delta) else self._end(costlier, Side.LOWER, way)
        if composed >= _CLOSE * upper:
            return composed
        # An attacker who sees all rounds sees one of them.
        attained = (pair.whole if isinstance(pair, TruncatedPair) else pair for pair, _ in cost.counts)
        return max(composed, *(_single(pair, delta).lower for pair in attained))

    def _upper(self, cost: PairCounts, delta: float, way: _Way = _Way.FITTING) -> tuple[float, int]:
        """The upper end, and the number of the direction that it came from."""
        upper, costlier = 0.0, 0
        for number, composition in enumerate(compositions(cost, Side.UPPER)):
            before, upper = upper, self._upper_end(composition, math.log(delta), upper, way)
            costlier = number if upper > before else costlier
        return upper, costlier

    def epsilon_estimate(self, cost: PairCounts, delta: float) -> float:
        """About epsilon at `delta`, not certified: to a few % of delta, for searches."""
        known = _closed_form(cost, delta)
        if known is not None:
            return known.upper
        return max(_locate(each, math.log(delta)).guess for each in compositions(cost, Side.UPPER))

    def log_delta(self, cost: PairCounts, epsilon: float) -> float:
        """An accurate estimate of log delta at `epsilon`, not certified: for searches and plots."""
        if cost.unprotected:
            return 0.0
        log_delta = 0.0
        for _ in range(4):  # what can be cut off depends on delta itself
            cut, before = log_cut(log_delta), log_delta
            transforms = [LossTransform(each, cut) for each in compositions(cost, Side.UPPER)]
            log_delta = max(estimate(transform, epsilon, log_delta - 5.0)[0] for transform in transforms)
            if log_delta > before - 10:
                break
        return log_delta

    def _upper_end(self, composition: Composition, log_target: float, known: float, way: _Way) -> float:
        """The smallest verified epsilon of one direction, at least `known`."""
        if composition.largest <= known or (known > 0 and _surely_within(composition, known, log_target)):
            return known
        where = _locate(composition, log_target)
        if where.guess <= known:
            spare = log_target - estimate(where.transform, known, log_target, where.saddle.tilt, Care.QUICK)[0]
            if spare > 0 and where.lattice(Side.UPPER, spare / 2, at=known).log_delta(known) <= log_target:
                return known
        return max(known, min(self._end(where, Side.UPPER, way), _round_up(composition.largest)))

    def _end(self, where: _Location, side: Side, way: _Way) -> float:
        """One verified end. Where log delta is much steeper or flatter than the saddle says, look again."""
        if where.one_loss_decides is (way is _Way.FITTING):
            return epsilon_by_doubling(where.transform.composition, side, where.log_target)
        precision = max(1.0, where.saddle.tilt * where.guess) * self.relative_precision
        lattice = where.lattice(side, precision)
        epsilon, slope = _crossing(lattice, where.guess, where.log_target)
        steepness = slope / where.saddle.tilt
        finer = steepness if steepness > 3 else max(1.0, steepness**-0.5)
        finer = min(finer, _LARGEST_SECOND_LOOK / lattice.composed.length)
        if finer > 1.15:
            lattice = where.lattice(side, precision / finer**2, most_points=_LARGEST_SECOND_LOOK)
            second, _ = _crossing(lattice, epsilon, where.log_target)
            epsilon = min(epsilon, second) if side is Side.UPPER else max(epsilon, second)
        return epsilon


def _narrow(interval: EpsilonInterval, share: float) -> bool:
    return interval.upper - interval.lower <= share * interval.upper


def _common(one: EpsilonInterval, other: EpsilonInterval) -> EpsilonInterval:
    """Both hold."""
    return _interval(max(one.lower, other.lower), min(one.upper, other.upper))


def _finely(cost: PairCounts, delta: float) -> EpsilonInterval:
    """Point by point, in cells as fine as the width of the interval found in coarse ones asks for."""
    found, finer = EpsilonInterval(0.0, math.inf), 1.0
    for _ in range(2):
        lower, upper = (
            max(epsilon_by_doubling(each, side, math.log(delta), finer) for each in compositions(cost, side))
            for side in (Side.LOWER, Side.UPPER)
        )
        found = _common(found, EpsilonInterval(min(lower, upper), upper))
        if _narrow(found, _WIDE):
            break
        finer = min(_MOST_FINER, math.sqrt(1.5 * (1 - found.lower / found.upper) / _WIDE))
    return found


def _closed_form(cost: PairCounts, delta: float) -> EpsilonInterval | None:
    """The interval where no lattice is needed: nothing or everything is shown, only Gaussians, or a single release."""
    if cost.unprotected:
        return EpsilonInterval(math.inf, math.inf)
    if cost.chance_of_taking_part <= delta:
        return EpsilonInterval(0.0, 0.0)
    if all(isinstance(pair, GaussianPair) for pair, _ in cost.counts):
        return gaussian_interval(cost, delta)
    single = cost.rounds == 1 and not isinstance(cost.counts[0][0], TruncatedPair)
    return _single(cost.counts[0][0], delta) if single else None


def _single(pair: DominatingPair, delta: float) -> EpsilonInterval:
    if isinstance(pair, Free | Unbounded):
        raise NotCertified(f"{pair!r} has no loss to price")
    if PairCounts(((pair, 1),)).chance_of_taking_part <= delta:
        return EpsilonInterval(0.0, 0.0)
    return single_interval(pair, delta)


def _surely_within(composition: Composition, epsilon: float, log_target: float) -> bool:
    """Whether the lattice certifies delta at `epsilon`, at a tilt where already Chernoff's bound is below the target.

    For the direction that costs less this is a coarse and cheap proof; False says nothing.
    """
    transform = LossTransform(composition, log_cut(log_target))
    at = tilt_below(transform, epsilon, log_target - 1.0)
    if at is None:
        return False
    spare = log_target - chernoff_log_delta(at, epsilon)
    return on_lattice(transform, Side.UPPER, at, epsilon, log_target, spare / 2).log_delta(epsilon) <= log_target


def gaussian_interval(cost: PairCounts, delta: float) -> EpsilonInterval:
    """Plain Gaussian releases compose exactly: mu^2 adds."""
    squares = math.fsum(n * pair.mu**2 for pair, n in cost.counts if isinstance(pair, GaussianPair))
    mu, wobble = math.sqrt(squares), 4 * UNIT_ROUNDOFF
    return gaussian_epsilon_interval(mu * (1 - wobble), mu * (1 + wobble), delta)


def estimate(
    transform: LossTransform, epsilon: float, log_target: float, guess: float = 5.0, care: Care = Care.CONFIRMED
) -> tuple[float, Cumulants]:
    """log delta by the contour integral, or by the lattice where that does not converge; and the saddle."""
    found = log_delta(transform, epsilon, guess, care)
    return found if found is not None else lattice_estimate(transform, epsilon, log_target, guess)


def lattice_estimate(
    transform: LossTransform, epsilon: float, log_target: float, guess: float = 5.0
) -> tuple[float, Cumulants]:
    """log delta on a pessimistic lattice, less what the lattice added; `log_target` says what is negligible."""
    if epsilon >= min(transform.composition.largest, transform.largest(guess)):
        return -math.inf, transform.cumulants(guess)
    saddle = saddle_for_epsilon(transform, epsilon, guess)
    lattice = on_lattice(
        transform, Side.UPPER, saddle, epsilon, log_target, _FALLBACK_PRECISION, most_points=_FALLBACK_POINTS
    )
    return lattice.log_delta(epsilon) - min(lattice.moved, 2 * _FALLBACK_PRECISION), saddle


@dataclass(frozen=True)
class _Location:
    """Where to look for one end: about the epsilon at which delta is met, and the saddle there."""

    transform: LossTransform
    saddle: Cumulants
    guess: float
    log_target: float
    one_loss_decides: bool = False
    """Delta is so far below what the tilt makes of it that only composing point by point can see it."""

    def lattice(
        self, side: Side, precision: float, at: float | None = None, most_points: int | None = None
    ) -> LatticeSide:
        epsilon = self.guess if at is None else at
        return on_lattice(self.transform, side, self.saddle, epsilon, self.log_target, precision, most_points)


@lru_cache(maxsize=4)
def _locate(composition: Composition, log_target: float) -> _Location:
    """From Chernoff's epsilon, which is too large, by secants on the estimate to about the true one."""
    transform = LossTransform(composition, log_cut(log_target))
    saddle = saddle_for_delta(transform, log_target)
    epsilon = max(0.0, chernoff_epsilon(saddle, log_target))
    slope, before = saddle.tilt, None
    for _ in range(8):
        found = log_delta(transform, epsilon, saddle.tilt, Care.QUICK)
        if found is None:
            return _locate_on_lattice(_Location(transform, saddle, epsilon, log_target))
        value, at = found
        excess = min(60.0, max(-60.0, value - log_target))
        saddle = at if math.isfinite(value) else saddle
        if before is not None and before[0] != epsilon:
            slope = max(slope / 5, min(5 * slope, (before[1] - excess) / (epsilon - before[0])))
        if abs(excess) < 0.03 or (epsilon == 0 and excess <= 0):
            break
        before, epsilon = (epsilon, excess), max(0.0, epsilon + excess / slope)
    return _Location(transform, saddle, epsilon, log_target)


def _locate_on_lattice(where: _Location) -> _Location:
    """The same where the contour integral does not converge: a coarse lattice tells delta at every epsilon near it."""
    for _ in range(_COARSE_LOOKS):
        saddle = saddle_for_epsilon(where.transform, where.guess, where.saddle.tilt)
        lattice = replace(where, saddle=saddle).lattice(Side.UPPER, _COARSE, most_points=_COARSE_POINTS)
        guess, slope = _crossing(lattice, where.guess, where.log_target, 1e-4)
        moved = abs(guess - where.guess) * slope
        buried = lattice.composed.doubtful_share(guess) > _BURIED or slope > _STEEP * lattice.composed.tilt
        where = replace(where, saddle=saddle, guess=guess, one_loss_decides=buried)
        if moved < 1.0 or where.one_loss_decides:
            break
    largest = min(where.transform.composition.largest, where.transform.largest(where.saddle.tilt))
    if where.guess >= largest:
        return where
    return replace(where, saddle=saddle_for_epsilon(where.transform, where.guess, where.saddle.tilt))


def _crossing(lattice: LatticeSide, guess: float, log_target: float, close: float = 1e-9) -> tuple[float, float]:
    """Where log delta meets the target, verified on the safe side of it, and how steep it is there.

    Guarantee: the returned epsilon itself was evaluated. Its delta is at most the target on the upper
    side, and above the target on the lower side (or epsilon is 0).
    """

    def excess(epsilon: float) -> float:
        return max(-50.0, lattice.log_delta(epsilon) - log_target)

    try:
        low, high = _bracket(excess, guess, lattice.composed.tilt)
    except (OverflowError, ValueError):  # epsilons in the hundreds, beyond what a double can hold
        raise NotCertified("epsilon could not be certified; ask for less precision, or use more noise") from None
    slope = lattice.composed.tilt
    while high[0] - low[0] > close * high[0] and low[1] - high[1] > close * abs(log_target):
        slope = (low[1] - high[1]) / (high[0] - low[0])
        # The secant, kept off the ends; then slightly past the root it points to, so that both ends close in.
        share = min(0.99, max(0.01, low[1] / (low[1] - high[1])))
        middle = low[0] + share * (high[0] - low[0])
        value = excess(middle)
        low, high = ((middle, value), high) if value > 0 else (low, (middle, value))
        beyond = middle + (1.02 * value + math.copysign(3e-10 * abs(log_target), value)) / slope
        if low[0] < beyond < high[0]:
            value = excess(beyond)
            low, high = ((beyond, value), high) if value > 0 else (low, (beyond, value))
    return (high[0] if lattice.side is Side.UPPER else low[0]), slope


def _bracket(
    excess: Callable[[float], float], guess: float, slope: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Two epsilons with their excess: above 0 at the first (unless it is 0), at most 0 at the second."""
    point = (guess, excess(guess))
    reach = 1.1 * abs(point[1]) / slope + 1e-9 / slope
    for _ in range(200):
        following = guess + reach if point[1] > 0 else max(0.0, guess - reach)
        if following == point[0]:  # delta is below the target even at epsilon = 0
            return (0.0, point[1]), point
        other = (following, excess(following))
        if (other[1] > 0) != (point[1] > 0):
            return (point, other) if point[1] > 0 else (other, point)
        point, reach = other, 2 * reach
    raise NotCertified("epsilon could not be certified; ask for less precision, or use more noise")


def _round_up(value: float) -> float:
    return value * (1 + 16 * UNIT_ROUNDOFF)

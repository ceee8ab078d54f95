"""Loss laws of Gaussian releases on secret batches: Poisson under both relations, fixed size under replace-one, and one
epoch of random allocation, where each unit joins exactly one of t batches, uniformly.

Random allocation: with s = 1/z and independent standard normal g_i, the likelihood ratio of "with the unit" to
"without it" is, under "without", the mean of log-normal variables of mean one
(docs/theorems/sampling.md#random-allocation, eq. 1):

    S = (1 - r/t) + (1/t) (Y_1 + ... + Y_r),     Y_i = exp(s g_i - s^2/2),

where r of the t rounds have been made (r = t for a whole epoch). Both directions of the profile are expectations of
convex functions of S (eq. 2), so a law that is larger in convex order costs more, and a smaller one less. Sums of two
independent laws are formed point by point, and the result is put into cells that follow its quantiles:

* from above, the mass of a cell goes to its two ends so that its mean is kept (a mean-preserving spread, eq. 3);
* from below, the mass of a cell goes to its mean (a conditional expectation, eq. 4).

Everything added up is positive, so the smallest tail keeps its relative precision; rounding is moved to the safe side
(eq. 5).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import erf, ndtr

from calibrate.accountants.losses import (
    DEVIATIONS_COVERED,
    LARGEST_LOSS,
    UNIT_ROUNDOFF,
    Atom,
    Buckets,
    Nodes,
    PrivacyLossLaw,
    at_ends,
    exponent_of_mixed_ratio,
    log_mixed_ratio,
    log_normal_density,
    mixture_buckets,
    normal_masses,
    normal_reach,
    trapezoid,
)
from calibrate.accountants.registry import self_composed
from calibrate.arrays import Floats
from calibrate.errors import NotCertified

_LARGE = 40.0
"""Above this sinh(x) is exp(x) / 2 in double precision."""

# The two directions of a Poisson-subsampled Gaussian under add-remove (equation 3 of the proofs).
#
# With z the noise multiplier, r(x) = 1 - q + q exp((2x - 1) / (2 z^2)) is the likelihood ratio of the mixture
# M = (1-q) N(0, z^2) + q N(1, z^2) to N(0, z^2). Removing a unit compares M with N(0, z^2): the loss is
# log r(x). Adding one compares N(0, z^2) with M: the loss is -log r(x), written below in the mirrored
# variable y = -x so that it increases.


@dataclass(frozen=True)
class SubsampledRemoval(PrivacyLossLaw):
    """P = (1-q) N(0, z^2) + q N(1, z^2), Q = N(0, z^2), with 0 < q < 1."""

    rate: float
    noise_multiplier: float

    def loss(self, x: Floats) -> Floats:
        return log_mixed_ratio((2 * x - 1) / (2 * self.noise_multiplier**2), self.rate)

    def position(self, loss: Floats) -> Floats:
        """The x at which the loss takes the given values; -infinity at and below its infimum."""
        return 0.5 + self.noise_multiplier**2 * exponent_of_mixed_ratio(loss, self.rate)

    def span(self, log_mass: float) -> tuple[float, float]:
        reach = normal_reach(log_mass) * self.noise_multiplier
        low, high = self.loss(np.array([-reach, 1 + reach]))
        return float(low), min(LARGEST_LOSS, float(high))

    def buckets(self, edges: Floats) -> Buckets:
        q = self.rate
        return mixture_buckets(self.position(edges), {0.0: 1 - q, 1.0: q}, {0.0: 1.0}, self.noise_multiplier)

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        z = self.noise_multiplier
        x, spacing = trapezoid(1 + largest_tilt, z, _last(self, largest_loss))
        losses = self.loss(x)
        return Nodes(log_normal_density(x, z) + losses + math.log(spacing), losses)


@dataclass(frozen=True)
class SubsampledAddition(PrivacyLossLaw):
    """P = N(0, z^2), Q = (1-q) N(0, z^2) + q N(-1, z^2) (mirrored), with 0 < q < 1; bounded above."""

    rate: float
    noise_multiplier: float

    @property
    def largest(self) -> float:
        return -math.log1p(-self.rate)

    def loss(self, y: Floats) -> Floats:
        return -log_mixed_ratio(-(2 * y + 1) / (2 * self.noise_multiplier**2), self.rate)

    def position(self, loss: Floats) -> Floats:
        """The y at which the loss takes the given values; infinity at and above its supremum."""
        return -0.5 - self.noise_multiplier**2 * exponent_of_mixed_ratio(-loss, self.rate)

    def span(self, log_mass: float) -> tuple[float, float]:
        reach = normal_reach(log_mass) * self.noise_multiplier
        low, high = self.loss(np.array([-reach, reach]))
        return max(-LARGEST_LOSS, float(low)), float(high)

    def buckets(self, edges: Floats) -> Buckets:
        q = self.rate
        return mixture_buckets(self.position(edges), {0.0: 1.0}, {0.0: 1 - q, -1.0: q}, self.noise_multiplier)

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        # exp(tilt * loss) moves the mode to y = tilt * (posterior of taking part), which is below
        # tilt * q / (1-q) * exp(-(y + 1/2) / z^2): then y exp(y / z^2) < moved and y < z^2 log(1 + moved / z^2).
        z, q = self.noise_multiplier, self.rate
        moved = largest_tilt * q / (1 - q) * math.exp(-0.5 / z**2)
        y, spacing = trapezoid(min(largest_tilt * q, z * z * math.log1p(moved / z**2)), z)
        return Nodes(log_normal_density(y, z) + math.log(spacing), self.loss(y))


# A Poisson-subsampled Gaussian under replace-one: the unit's vector turns into its opposite (equation 4).
#
# P = (1-q) N(0, z^2) + q N(1, z^2), Q = (1-q) N(0, z^2) + q N(-1, z^2). Reflecting x exchanges P and Q, so one
# direction is enough. The loss is log r(x) - log r(-x) with r of the subsampled Gaussian. Solving the quadratic
# equation exp(loss) r(-x) = r(x) for exp(x / z^2) gives
#
#     x = z^2 (loss/2 + asinh((1-q)/q * exp(1/(2 z^2)) * sinh(loss/2))),
#
# which has no cancellation.


@dataclass(frozen=True)
class SubsampledReplacement(PrivacyLossLaw):
    """P = (1-q) N(0, z^2) + q N(1, z^2), Q = (1-q) N(0, z^2) + q N(-1, z^2), with 0 < q < 1."""

    rate: float
    noise_multiplier: float

    def _log_ratio(self, x: Floats) -> Floats:
        return log_mixed_ratio((2 * x - 1) / (2 * self.noise_multiplier**2), self.rate)

    def loss(self, x: Floats) -> Floats:
        return self._log_ratio(x) - self._log_ratio(-x)

    def position(self, loss: Floats) -> Floats:
        """The x at which the loss takes the given values."""
        log_factor = math.log1p(-self.rate) - math.log(self.rate) + 0.5 / self.noise_multiplier**2
        size = np.abs(loss) / 2
        with np.errstate(divide="ignore", over="ignore"):
            log_sinh = np.where(size < _LARGE, np.log(np.sinh(np.minimum(size, _LARGE))), size - math.log(2))
            log_argument = log_factor + log_sinh
            moderate = np.arcsinh(np.exp(np.minimum(log_argument, 300.0)))
        far = log_argument + math.log(2)  # asinh(s) = log(2 s) up to s^-2 / 4
        steps = size + np.where(log_argument <= 300.0, moderate, far)
        return self.noise_multiplier**2 * np.sign(loss) * steps

    def span(self, log_mass: float) -> tuple[float, float]:
        reach = normal_reach(log_mass) * self.noise_multiplier
        low, high = self.loss(np.array([-reach, 1 + reach]))
        return max(-LARGEST_LOSS, float(low)), min(LARGEST_LOSS, float(high))

    def buckets(self, edges: Floats) -> Buckets:
        q = self.rate
        return mixture_buckets(self.position(edges), {0.0: 1 - q, 1.0: q}, {0.0: 1 - q, -1.0: q}, self.noise_multiplier)

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        # The slope of the loss is at most (1 + q) / z^2 for x >= 0, which bounds how far a tilt moves the mode.
        z = self.noise_multiplier
        x, spacing = trapezoid(1 + largest_tilt * (1 + self.rate), z, _last(self, largest_loss))
        losses = self.loss(x)
        return Nodes(log_normal_density(x, z) + self._log_ratio(x) + math.log(spacing), losses)


# Fixed-size batches under replace-one: the pointwise larger of two profiles, as one symmetric loss law
# (equation 6).
#
# Let R be the removal pair ((1-q) N(0, z^2) + q N(1, z^2), N(0, z^2)) and A its mirror image. For e >= 0 the
# profile of R is the larger one, for e < 0 that of A. The larger curve is the profile of another pair:
#
# * its positive losses are those of R (x > 1/2 under the mixture),
# * its negative losses are those of A (x > 1/2 under N(0, z^2), loss -log r(x)),
# * what is missing to total mass one sits at loss 0: (1-q) (2 Phi(1/(2z)) - 1), under both P and Q.
#
# Composing this law bounds every replace-one composition from above (docs/theorems/certified-accountant.md).

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(10)


@dataclass(frozen=True)
class LargerOfBothDirections(PrivacyLossLaw):
    """The symmetric law whose profile is the pointwise maximum of a removal pair's and its mirror's."""

    rate: float
    noise_multiplier: float

    @property
    def _positive(self) -> SubsampledRemoval:
        return SubsampledRemoval(self.rate, self.noise_multiplier)

    @property
    def _negative(self) -> SubsampledAddition:
        return SubsampledAddition(self.rate, self.noise_multiplier)

    @property
    def atoms(self) -> tuple[Atom, ...]:
        half_distance = 1 / (2 * self.noise_multiplier)
        return (Atom(0.0, (1 - self.rate) * float(erf(half_distance / math.sqrt(2)))),)

    def span(self, log_mass: float) -> tuple[float, float]:
        return self._negative.span(log_mass)[0], self._positive.span(log_mass)[1]

    def buckets(self, edges: Floats) -> Buckets:
        right = _within(self._positive.buckets(np.maximum(edges, 0.0)), edges[1:] > 0)
        left = _within(self._negative.buckets(np.minimum(edges, 0.0)), edges[:-1] < 0)
        not_positive = float(self._positive.buckets(np.zeros(2)).below)
        return Buckets(
            p=left.p + right.p,
            q=left.q + right.q,
            p_error=left.p_error + right.p_error,
            q_error=left.q_error + right.q_error,
            below=left.below + (max(0.0, right.below - not_positive) + 1e-15 if edges[0] > 0 else 0.0),
            above=right.above if edges[-1] >= 0 else 1.0,
        )

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        z = self.noise_multiplier
        last = max(_last(self._positive, largest_loss), 0.5) + z
        x, log_weights = _half_line(min(1 + largest_tilt + DEVIATIONS_COVERED * z, last), min(z, z * z))
        losses = self._positive.loss(x)
        log_null = log_normal_density(x, z) + log_weights
        return Nodes(
            log_weights=np.concatenate((log_null[::-1], log_null + losses)),
            losses=np.concatenate((-losses[::-1], losses)),
        )


def _last(law: SubsampledRemoval | SubsampledReplacement, largest_loss: float) -> float:
    """The x beyond which every loss exceeds `largest_loss`."""
    return float(law.position(np.array([largest_loss]))[0]) if largest_loss < math.inf else math.inf


def _within(buckets: Buckets, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Buckets:
    """Buckets that collapsed to a point carry neither mass nor error."""
    return replace(
        buckets,
        p=np.where(wanted, buckets.p, 0.0),
        q=np.where(wanted, buckets.q, 0.0),
        p_error=np.where(wanted, buckets.p_error, 0.0),
        q_error=np.where(wanted, buckets.q_error, 0.0),
    )


def _half_line(reach: float, panel: float) -> tuple[Floats, Floats]:
    """Gauss-Legendre panels from x = 1/2, where the loss is 0, to x = 1/2 + reach; points and log weights."""
    panels = math.ceil(reach / panel)
    width = reach / panels
    starts = 0.5 + width * np.arange(panels)
    x = (starts[:, None] + width * (1 + _POINTS) / 2).ravel()
    return x, np.tile(np.log(_WEIGHTS * width / 2), panels)


_REACH = 13.0
"""Deviations of a single log-normal that are kept; what lies beyond, below 1e-38 on each side, is treated as lost."""
_BULK, _TAIL, _DEEP = 0.03, 0.2, 8.0
"""Width of cells in deviations; how much a tail may shrink within a cell (log); from where on cells may be wider."""
_HEAVY_TAIL = 0.13
"""The same for little noise (s > 1), where one batch alone makes the tail of the sum, and each sum adds its error."""
_DIGITS, _COARSER, _MOST_BINS, _PAIRS_AT_ONCE = 11, 16, 1 << 17, 1 << 17
"""Binary digits by which sums are told apart before they are put into cells; the width of the lowest bins, which only
makes them fewer; most bins; and pairs in one go."""
_LEAST_NOISE, _MOST_NOISE = 0.05, 1e7
"""Less noise has ratios that no double can hold; more noise is priced as this much (it costs less), and as nothing from
below."""
_WORST_CENTRE = 1e-9
"""From below, the mean of a log-normal cell is known to this relative error, or the cell is dropped."""


@dataclass(frozen=True, eq=False)
class Points:
    """A finite law: ascending values with their masses. `stretch` bounds the rounding error of every value.

    It is relative where values are ratios, as here, and absolute where they are losses.
    """

    values: Floats
    masses: Floats
    stretch: float


@dataclass(frozen=True)
class RandomAllocationLoss(PrivacyLossLaw):
    """The loss of one epoch with the unit against one without it (`removal`), or the other way round.

    `upper` chooses the law that dominates the true one, otherwise the one that it dominates.
    """

    noise_multiplier: float
    batches: int
    drawn: int
    removal: bool
    upper: bool

    @property
    def unbounded_mass(self) -> float:
        return 2 * self.drawn * float(ndtr(-_REACH)) * (1 + 1e-9)

    def span(self, log_mass: float) -> tuple[float, float]:
        losses, p = self._points()
        limit = math.exp(log_mass)
        low = int(np.searchsorted(np.cumsum(p), limit))
        high = len(p) - 1 - int(np.searchsorted(np.cumsum(p[::-1]), limit))
        low, high = min(low, len(p) - 1), max(high, 0)
        return float(losses[min(low, high)]), float(losses[max(low, high)])

    def buckets(self, edges: Floats) -> Buckets:
        losses, p = self._points()
        place = np.searchsorted(edges, losses, side="left")
        inside = (place > 0) & (place < len(edges))
        cell, kept = place[inside] - 1, p[inside]
        p_mass, q_mass = (
            np.bincount(cell, weights=weights, minlength=len(edges) - 1).astype(np.float64)
            for weights in (kept, kept * np.exp(-losses[inside]))
        )
        rounding = (len(p) + 4 + np.abs(edges[1:]) + np.abs(edges[:-1])) * UNIT_ROUNDOFF
        below, above = float(p[place == 0].sum()), float(p[place == len(edges)].sum())
        errors = rounding * p_mass, rounding * q_mass
        return Buckets(p_mass, q_mass, *errors, below * (1 + 1e-12), above * (1 + 1e-12))

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        losses, p = self._points()
        return Nodes(np.log(p), losses)

    def log_delta(self, epsilon: float) -> float:
        """log delta of one epoch at `epsilon` from the law itself, rounded to the law's own side."""
        losses, p = self._points()
        above = losses > epsilon
        total = float(p[above] @ -np.expm1(epsilon - losses[above]))
        rounding = (len(p) + 8) * UNIT_ROUNDOFF
        delta = total * (1 + rounding) + self.unbounded_mass if self.upper else total * (1 - rounding)
        return math.log(delta) if delta > 0 else -math.inf

    def _points(self) -> tuple[Floats, Floats]:
        """Ascending losses and their masses under the first distribution; losses are moved by the stretch (eq. 5)."""
        law = _allocation_law(self.noise_multiplier, self.batches, self.drawn, self.upper)
        away = law.stretch if self.upper else -law.stretch
        log_ratio = np.log(law.values)
        if not self.removal:
            return -log_ratio[::-1] + away, law.masses[::-1]
        # With the unit, mass is that without it times the ratio S (eq. 2).
        masses = law.values * law.masses
        kept = masses > 0
        return log_ratio[kept] + away, masses[kept]


@lru_cache(maxsize=16)
def _allocation_law(noise_multiplier: float, batches: int, drawn: int, upper: bool) -> Points:
    """The law of S (eq. 1), from above or from below in convex order."""
    if noise_multiplier < _LEAST_NOISE:
        raise NotCertified(
            "so little noise leaves an epsilon in the hundreds, which random allocation is not priced for; use a noise "
            f"multiplier of at least {_LEAST_NOISE:g}"
        )
    if noise_multiplier > _MOST_NOISE and not upper:
        return Points(np.ones(1), np.ones(1), 0.0)  # S = 1, its mean, lies below every law of S
    s = 1 / min(noise_multiplier, _MOST_NOISE)
    levels = _levels(s)
    total = self_composed(lambda first, second: _sum(first, second, levels, upper), _lognormal(s, levels, upper), drawn)
    values = (batches - drawn + total.values) / batches
    kept = total.masses > 0
    return Points(values[kept], total.masses[kept], total.stretch + 4 * UNIT_ROUNDOFF)


def _levels(s: float) -> tuple[Floats, Floats]:
    """Where to cut cells, in deviations of a normal law, outward from its middle: for the lower and the upper half.

    In the bulk the cells are equally wide; further out each holds the same factor of the tail, while tails matter.
    The upper tail of the mixture is that of the plain law moved by s.
    """
    tail = _TAIL if s <= 1 else _HEAVY_TAIL
    halves = []
    for deep in (_DEEP, _DEEP + s):
        levels = [0.0]
        while levels[-1] < _REACH + s:
            at = levels[-1]
            wider = max(_BULK, 4 * tail / max(at, 1e-9))
            levels.append(at + (_BULK if at < tail / _BULK else tail / at if at < deep else wider))
        halves.append(np.array(levels))
    return halves[0], halves[1]


def _lognormal(s: float, levels: tuple[Floats, Floats], upper: bool) -> Points:
    """One log-normal variable of mean one, in cells."""
    z = np.unique(np.concatenate(([-_REACH], -levels[0][levels[0] <= _REACH], levels[1])))
    edges = np.exp(s * z - s * s / 2)
    mass, error, _, _ = normal_masses(z, 0.0, 1.0)
    mean, mean_error, _, _ = normal_masses(z, s, 1.0)  # E[Y; cell] is the mass of the cell under N(s, 1)
    stretch = (8 + 4 * s * (_REACH + s)) * UNIT_ROUNDOFF
    if not upper:
        sure = np.maximum(mass - error, 0.0)
        centre = np.clip(mean / np.maximum(mass, 1e-300), edges[:-1], edges[1:])
        off = (mean_error + error * centre) / np.maximum(sure * centre, 1e-300)
        kept = (sure > 0) & (off < _WORST_CENTRE)  # a cell whose mean is not known well enough is dropped
        return Points(centre[kept], sure[kept], stretch + _WORST_CENTRE)
    # Eq. 3: the share that goes to the upper end, so that the mean of the cell is kept.
    share = np.clip((mean - mass * edges[:-1]) / np.diff(edges), 0.0, mass)
    doubt = (mean_error + error * edges[1:]) / np.diff(edges) + error + 8 * UNIT_ROUNDOFF * mass
    return Points(edges, at_ends(mass, share, doubt), stretch)


def _sum(first: Points, second: Points, levels: tuple[Floats, Floats], upper: bool) -> Points:
    """The sum of two independent variables, in cells that follow its quantiles."""
    bins = _Bins.of_sums(first, second)
    # Cells are runs of bins; where they are cut decides tightness only, never validity.
    low = np.searchsorted(np.cumsum(bins.masses), ndtr(-levels[0]))
    high = len(bins.masses) - np.searchsorted(np.cumsum(bins.masses[::-1]), ndtr(-levels[1]))
    cuts = np.unique(np.clip(np.concatenate(([0], low, high, [len(bins.masses)])), 0, len(bins.masses)))
    start, ends, sizes = cuts[:-1], bins.edges[cuts], np.diff(cuts)
    mass = np.add.reduceat(bins.masses, start)
    offset = np.add.reduceat(bins.offsets + bins.masses * (bins.edges[:-1] - np.repeat(ends[:-1], sizes)), start)
    rounding = (bins.roundings + int(sizes.max()) + 8) * UNIT_ROUNDOFF
    stretch = max(first.stretch, second.stretch) + 8 * UNIT_ROUNDOFF
    values = bins.origin + ends
    values[0] = first.values[0] + second.values[0]
    if upper:
        # Eq. 3 again, by the mass times distance that each bin has kept.
        share = np.clip(offset / np.diff(ends), 0.0, mass)
        return Points(values, at_ends(mass, share, rounding * mass), stretch)
    kept = mass > 0
    # Eq. 4: the mean of the cell.
    centre = values[:-1][kept] + offset[kept] / mass[kept]
    return Points(centre, mass[kept] * (1 - rounding), stretch + 2 * rounding)


@dataclass(frozen=True, eq=False)
class _Bins:
    """All sums of two values, by their distance from `origin`, in the bins that floating-point numbers have anyway.

    Distances that share exponent and leading binary digits are in one bin, which is far quicker than sorting. The
    origin lies below every sum of two values that are not the smallest of their law; lower sums are in the first bin.
    `edges` are distances, `offsets` sum up mass times distance from the bin's lower edge, and no entry is the sum of
    more than `roundings` terms.
    """

    origin: float
    edges: Floats
    masses: Floats
    offsets: Floats
    roundings: int

    @classmethod
    def of_sums(cls, first: Points, second: Points) -> _Bins:
        (x, p), (y, q) = (first.values, first.masses), (second.values, second.masses)
        low, largest = float(x[1] + y[1]), float(x[-1] + y[-1])
        narrowest = min(float(x[2] - x[1]), float(y[2] - y[1]))
        gap = 2.0 ** math.floor(math.log2(min(low / 2, max(1e-12 * low, _COARSER * narrowest))))
        origin = low - 1.5 * gap
        octaves = math.frexp(largest - origin)[1] - math.frexp(gap)[1] + 1
        dropped = 52 - min(_DIGITS, (_MOST_BINS // octaves).bit_length() - 1)
        before, last = (int(np.float64(end).view(np.int64)) >> dropped for end in (gap, largest - origin))
        edges = (np.arange(before - 1, last + 3) << dropped).view(np.float64)
        edges[0] = x[0] + y[0] - origin
        masses, offsets, numbers = np.zeros((3, len(edges) - 1))

        def add(distances: Floats, weights: Floats) -> None:
            place = distances.view(np.int64) >> dropped
            beyond = distances - (place << dropped).view(np.float64)
            place -= before - 1
            masses[:] += np.bincount(place, weights, len(masses))
            offsets[:] += np.bincount(place, weights * beyond, len(masses))
            numbers[:] += np.bincount(place, minlength=len(masses))

        rows = max(1, _PAIRS_AT_ONCE // len(y))
        for i in range(1, len(x), rows):
            from_here = slice(i if first is second else 1, None)
            weights = q[from_here].copy()
            if first is second:
                weights[rows:] *= 2  # for the pairs the other way round
            sums = (x[i : i + rows, None] - origin) + y[from_here]
            add(sums.ravel(), (p[i : i + rows, None] * weights).ravel())
        sums, weights = np.append(x[0] + y, x[1:] + y[0]), np.append(p[0] * q, p[1:] * q[0])
        lower = sums - origin < gap
        add((sums - origin)[~lower], weights[~lower])
        masses[0], numbers[0] = weights[lower].sum(), lower.sum()
        offsets[0] = weights[lower] @ (sums[lower] - sums[0])
        return cls(origin, edges, masses, offsets, int(numbers.max()) + len(x) // rows + 4)

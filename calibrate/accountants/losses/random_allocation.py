"""One epoch of random allocation: each unit joins exactly one of t batches, uniformly and in secret.

With s = 1/z and independent standard normal g_i, the likelihood ratio of "with the unit" to "without it" is, under
"without", the mean of log-normal variables of mean one (docs/theorems/random-allocation.md, eq. 1):

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
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from calibrate.accountants.losses.law import UNIT_ROUNDOFF, Buckets, Nodes, PrivacyLossLaw, normal_masses
from calibrate.arrays import Floats, Integers

_REACH = 13.0
"""Deviations of a single log-normal that are kept; what lies beyond, below 1e-38 on each side, counts as lost."""
_BULK, _TAIL, _DEEP = 0.03, 0.2, 8.0
"""Width of cells in deviations; how much a tail may shrink within a cell (log); from where on cells may be wider."""
_HEAVY_TAIL = 0.13
"""The same for little noise (s > 1), where one batch alone makes the tail of the sum, and each sum adds its error."""


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
        if self.removal:
            return log_ratio + away, law.values * law.masses
        return -log_ratio[::-1] + away, law.masses[::-1]


@lru_cache(maxsize=16)
def _allocation_law(noise_multiplier: float, batches: int, drawn: int, upper: bool) -> Points:
    """The law of S (eq. 1), from above or from below in convex order."""
    s = 1 / noise_multiplier
    levels = _levels(s)
    power, total, rest = _lognormal(s, levels, upper), None, drawn
    while True:
        if rest & 1:
            total = power if total is None else _sum(total, power, levels, upper)
        rest >>= 1
        if not rest:
            break
        power = _sum(power, power, levels, upper)
    assert total is not None
    values = (batches - drawn + total.values) / batches
    kept = total.masses > 0
    return Points(values[kept], total.masses[kept], total.stretch + 4 * UNIT_ROUNDOFF)


def _levels(s: float) -> tuple[Floats, Floats]:
    """Where to cut cells, in deviations of a normal law, outward from its middle: for the lower and the upper half.

    In the bulk the cells are equally wide; further out each holds the same factor of the tail, as far as tails matter.
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
    share = np.clip((mean - mass * edges[:-1]) / np.diff(edges), 0.0, mass)
    doubt = (mean_error + error * edges[1:]) / np.diff(edges) + error + 8 * UNIT_ROUNDOFF * mass
    return Points(edges, _at_ends(mass, share, doubt), stretch)


def _at_ends(mass: Floats, share: Floats, doubt: Floats) -> Floats:
    """Masses at the ends of cells: `share` above, the rest below, and what is doubtful at both (eq. 3)."""
    ends = np.zeros(len(mass) + 1)
    ends[:-1] += mass - share + doubt
    ends[1:] += share + doubt
    return ends


def _sum(first: Points, second: Points, levels: tuple[Floats, Floats], upper: bool) -> Points:
    """The sum of two independent variables, in cells that follow its quantiles."""
    values, masses = sums_of_pairs(first, second)
    edges, start = quantile_cells(values, masses, ndtr(-levels[0]), ndtr(-levels[1]))
    sizes = np.diff(np.append(start, len(values)))
    mass = np.add.reduceat(masses, start)
    offset = np.add.reduceat(masses * (values - np.repeat(edges[:-1], sizes)), start)
    rounding = (int(sizes.max()) + 8) * UNIT_ROUNDOFF
    stretch = max(first.stretch, second.stretch) + 2 * UNIT_ROUNDOFF
    if upper:
        share = np.clip(offset / np.diff(edges), 0.0, mass)
        return Points(edges, _at_ends(mass, share, rounding * mass), stretch)
    kept = mass > 0
    centre = edges[:-1][kept] + offset[kept] / mass[kept]
    return Points(centre, mass[kept] * (1 - rounding), stretch + 2 * rounding)


def sums_of_pairs(first: Points, second: Points, negligible: float = 0.0) -> tuple[Floats, Floats]:
    """All sums of two values in ascending order with their masses, but for those of a `negligible` mass or less."""
    if first is second:
        i, j = np.triu_indices(len(first.values))
        masses = 2 * first.masses[i] * first.masses[j]
        masses[i == j] /= 2
        if negligible > 0:
            kept = masses > negligible
            i, j, masses = i[kept], j[kept], masses[kept]
        values = first.values[i] + first.values[j]
    else:
        values = (first.values[:, None] + second.values).ravel()
        masses = (first.masses[:, None] * second.masses).ravel()
        if negligible > 0:
            kept = masses > negligible
            values, masses = values[kept], masses[kept]
    order = np.argsort(values, kind="stable")  # merges the rows, which ascend already
    return values[order], masses[order]


def quantile_cells(values: Floats, masses: Floats, lower: Floats, upper: Floats) -> tuple[Floats, Integers]:
    """Edges of cells at the quantiles of the given tail masses, and where each cell starts among the values.

    Where exactly the edges lie decides tightness only, never validity.
    """
    last = len(values) - 1
    low = np.searchsorted(np.cumsum(masses), lower)
    high = last - np.searchsorted(np.cumsum(masses[::-1]), upper)
    edges = np.unique(values[np.clip(np.concatenate(([0], low, high, [last])), 0, last)])
    if len(edges) == 1:
        edges = np.array([edges[0], np.nextafter(edges[0], math.inf)])
    return edges, np.searchsorted(values, edges[:-1])

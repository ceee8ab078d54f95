"""Composing losses point by point, for the few large ones that no tilt can bring into range.

Where a unit rarely takes part, a small delta is the chance of one single large loss. No exponential tilt makes
that as likely as the bulk: on a transformed lattice it is buried under rounding. Here laws are finite sets of points,
and sums of two independent losses are formed point by point in positive arithmetic, so that the smallest tail keeps
its relative precision. The result is put into cells that follow its quantiles
(docs/theorems/certified-accountant.md, section 10):

* from above, a point goes to both ends of its cell so that P- and Q-mass are kept (equation 8);
* from below, all points of a cell are merged into one outcome (equation 20).

T rounds take about 2 log2 T sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calibrate.accountants.directions import Composition, Side
from calibrate.accountants.losses import UNIT_ROUNDOFF, Nodes, PrivacyLossLaw, at_ends, connected_dots
from calibrate.accountants.registry import self_composed
from calibrate.accountants.sampled_losses import Points
from calibrate.arrays import Floats, Integers
from calibrate.errors import NotCertified
from calibrate.roots import find_root

_CUT = 12.0
"""Losses that together are rarer than delta by this many natural logarithms are infinite or dropped."""
_SHRINKING = ((3, 0.2), (9, 0.33), (22, 0.44))
_SHRINKING_IF_LONG = 0.5
"""By how much a tail shrinks within a cell (log): finer for few sums. Decides tightness only."""
_LOWER_TAIL, _LOWER_SHARE = 40.0, 2.5
"""How deep the lower tail is cut into cells (log), and how much coarser: small losses barely matter."""
_CENTRE, _FINER = 3.0, 4
"""Tails heavier than exp(-3) are cut into cells that are finer by this factor: each sum widens the bulk a little."""
_LARGEST_TILT = 1e6
"""Asks for quadrature nodes as far out as losses count."""
_NEGLIGIBLE, _MOST_PAIRS = 22.0, 1 << 20
"""Pairs of points rarer than the smallest tail by this many logarithms are left out; the most pairs of a sum."""
_MASS_ROUNDINGS = 64.0
"""An atom's mass is right to this many roundoffs."""


@dataclass(frozen=True)
class _Cells:
    """Tail masses at which cells end, for the lower and for the upper tail, and what is too rare for any cell."""

    lower: Floats
    upper: Floats
    negligible: float = 0.0

    @classmethod
    def for_sums(cls, sums: int, log_smallest: float, finer: float) -> _Cells:
        shrinking = next((size for most, size in _SHRINKING if sums <= most), _SHRINKING_IF_LONG) / finer
        centre, coarse = np.arange(0.0, _CENTRE, shrinking / _FINER), _LOWER_SHARE * shrinking
        return cls(
            lower=np.exp(-np.append(centre, np.arange(_CENTRE, _LOWER_TAIL, coarse))),
            upper=np.exp(-np.append(centre, np.arange(_CENTRE, shrinking - log_smallest, shrinking))),
            negligible=math.exp(max(log_smallest - _NEGLIGIBLE, -740.0)),
        )


def epsilon_by_doubling(composition: Composition, side: Side, log_target: float, finer: float = 1.0) -> float:
    """One end of epsilon at delta = exp(`log_target`); cells that are `finer` cost its square in time.

    Guarantee: on the upper side delta at the returned epsilon is at most the target (infinity if nothing smaller is
    certified); on the lower side it is at least the target, or epsilon is 0.
    """
    upper, smallest = side is Side.UPPER, log_target - _CUT - math.log(composition.steps)
    sums = sum(count.bit_length() + count.bit_count() - 1 for _, count in composition.terms) - 1
    cells, total, lost = _Cells.for_sums(sums, smallest, finer), None, 0.0

    def add(first: Points, second: Points) -> Points:
        return _sum(first, second, cells, upper)

    for law, count in composition.terms:
        once, infinite = _placed(law, cells, smallest, upper)
        points = self_composed(add, once, count)
        total = points if total is None else add(total, points)
        lost += count * infinite
    assert total is not None
    # A sum made on the way to T rounds is used in all of them together at most T times; those of odd counts too.
    lost = (lost + 3 * composition.steps * _MOST_PAIRS * cells.negligible) * max(1.0, float(total.masses.sum())) * 1.001
    losses = total.values + (total.stretch if upper else -total.stretch)
    rounding = (len(losses) + 8) * UNIT_ROUNDOFF

    def excess(epsilon: float) -> float:
        above = losses > epsilon
        delta = float(total.masses[above] @ -np.expm1(epsilon - losses[above]))
        delta = delta * (1 + rounding) + lost if upper else delta * (1 - rounding)
        return (math.log(delta) if delta > 0 else -1e6) - log_target * (1 + (4 if upper else -4) * UNIT_ROUNDOFF)

    return _crossing(excess, max(0.0, float(losses[-1])), upper)


def _crossing(excess: Callable[[float], float], largest: float, upper: bool) -> float:
    """The epsilon in [0, `largest`] from which on the excess is negative, on the side's own side of it."""
    if excess(0.0) <= 0:
        return 0.0
    if excess(largest) > 0:
        return math.inf if upper else largest
    epsilon, nudge = find_root(excess, 0.0, largest, 1e-300, 1e-13), 1e-13
    while (excess(epsilon) > 0) == upper:
        epsilon, nudge = epsilon * (1 + nudge if upper else 1 - nudge), 2 * nudge
    return epsilon


def _placed(law: PrivacyLossLaw, cells: _Cells, log_smallest: float, upper: bool) -> tuple[Points, float]:
    """One round in cells: its atoms as they are, the rest from above or from below."""
    low, high = law.span(log_smallest)
    edges = _edges(law.nodes(_LARGEST_TILT, high), (low, high), cells)
    buckets = law.buckets(edges)
    atoms = np.array([(atom.loss, atom.mass) for atom in law.atoms if atom.mass > 0]).reshape(-1, 2)
    away = _MASS_ROUNDINGS * UNIT_ROUNDOFF
    if upper:
        values, masses = edges, connected_dots(buckets, edges)
    else:
        p, q = np.maximum(buckets.p - buckets.p_error, 0.0), buckets.q + buckets.q_error
        kept = p > 0
        # Equation 20: from below a bucket is merged into one outcome.
        values, masses = np.log(p[kept] / q[kept]), p[kept]
        values, away = values - 8 * UNIT_ROUNDOFF * (1 + np.abs(values)), -away
    values, masses = np.append(values, atoms[:, 0]), np.append(masses, atoms[:, 1] * (1 + away))
    order = np.argsort(values)
    return Points(values[order], masses[order], 0.0), buckets.above + law.unbounded_mass if upper else 0.0


def _edges(nodes: Nodes, span: tuple[float, float], cells: _Cells) -> Floats:
    """Edges of cells over the span, about at the quantiles of the law. Where they lie decides tightness only."""
    inside = (nodes.losses > span[0]) & (nodes.losses < span[1])
    losses, masses = nodes.losses[inside], np.exp(nodes.log_weights[inside])
    if not len(losses):
        return np.linspace(span[0], span[0] + max(span[1] - span[0], 1e-6), 3)
    above, below = (np.log(np.maximum(np.cumsum(each), 1e-320)) for each in (masses[::-1], masses))
    upper = np.interp(np.log(cells.upper), above, losses[::-1])
    lower = np.interp(np.log(cells.lower), below, losses)
    return np.unique(np.concatenate(([span[0]], lower, upper, [span[1]])))


def _sum(first: Points, second: Points, cells: _Cells, upper: bool) -> Points:
    """The sum of two independent losses, in cells that follow its quantiles."""
    if len(first.values) * len(second.values) > _MOST_PAIRS:
        raise NotCertified("epsilon could not be certified point by point; use more noise, or fewer rounds")
    values, masses = _sums_of_pairs(first, second, cells.negligible)
    if not len(values):
        raise NotCertified("every loss is too rare to be composed point by point; use less noise, or fewer rounds")
    edges, start = _quantile_cells(values, masses, cells.lower, cells.upper)
    bases = edges[:-1]
    if not upper and edges[-1] == values[-1]:  # the largest loss is merged with no other
        bases, start = edges, np.append(start, np.searchsorted(values, edges[-1]))
    sizes = np.diff(np.append(start, len(values)))
    mass = np.add.reduceat(masses, start)
    offset = np.add.reduceat(masses * -np.expm1(np.repeat(bases, sizes) - values), start)
    rounding = (int(sizes.max()) + 8) * UNIT_ROUNDOFF
    largest = float(max(abs(edges[0]), abs(edges[-1])))
    stretch = first.stretch + second.stretch + 4 * UNIT_ROUNDOFF * largest
    if upper:
        # Equation 8, with what rounding makes doubtful counted at both ends of the cell.
        share = np.clip(offset / -np.expm1(-np.diff(edges)), 0.0, mass)
        ends = at_ends(mass, share, rounding * mass)
        return Points(edges[ends > 0], ends[ends > 0], stretch)
    kept = mass > 0
    # Equation 20: e_i - log(1 - offset / mass), rounded down.
    left = np.minimum(offset[kept] / mass[kept], 1.0) * (1 - 2 * rounding)
    return Points(bases[kept] - np.log1p(-left), mass[kept] * (1 - rounding), stretch)


def _sums_of_pairs(first: Points, second: Points, negligible: float) -> tuple[Floats, Floats]:
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


def _quantile_cells(values: Floats, masses: Floats, lower: Floats, upper: Floats) -> tuple[Floats, Integers]:
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

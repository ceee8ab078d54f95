"""One side of a certificate: a composition put on a lattice fine enough for the asked precision.

Putting the laws on the lattice changes log delta by about tilt^2 * steps * step^2 / 12. What it really changes
is read off cheaply before anything is composed, because it is the change of the cumulant function at the
saddle; if it is more than was asked for, the lattice is refined.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from calibrate.accountants.compose import (
    SURPLUS_TILTS,
    CountedLaws,
    LatticeComposition,
    Window,
    compose,
    log_normaliser,
    period_for,
)
from calibrate.accountants.contour import Cumulants, LossTransform, narrow_tilt, shortest_period
from calibrate.accountants.directions import Composition, Side
from calibrate.accountants.grid import lattice_edges, optimistic, optimistic_with_merged_bulk, pessimistic
from calibrate.accountants.losses import Nodes, PrivacyLossLaw
from calibrate.arrays import Floats

_MOST_POINTS, _MOST_POINTS_IF_PRECISE, _PRECISE = 1 << 19, 1 << 22, 1e-5
"""The lattice is not made finer than this many points in the window, less than a second of work; if log delta is asked
for more precisely than `_PRECISE`, which no default does, than a few seconds of work."""


def log_cut(log_delta: float) -> float:
    """Losses that together are rarer than this cannot matter at the given delta."""
    return log_delta - 18.0


@dataclass(frozen=True)
class LatticeSide:
    """A composition on the lattice and by how much that moved log delta at the saddle (never negative)."""

    composed: LatticeComposition
    side: Side
    moved: float

    def log_delta(self, epsilon: float) -> float:
        """log delta at `epsilon`, rounded to the side's own side."""
        if self.side is Side.UPPER:
            delta = self.composed.delta_upper(epsilon)
        else:
            delta = self.composed.delta_lower(epsilon)
        return math.log(delta) if delta > 0 else -math.inf


def on_lattice(
    transform: LossTransform,
    side: Side,
    saddle: Cumulants,
    epsilon: float,
    log_delta: float,
    precision: float,
    most_points: int | None = None,
) -> LatticeSide:
    """Compose on a lattice that moves log delta by about `precision`, if `most_points` are enough for that.

    `saddle` says how sensitive log delta is; `epsilon` and `log_delta` where the result will be read off.
    """
    at = narrow_tilt(transform, saddle, epsilon, log_delta)
    most_points = most_points or (_MOST_POINTS if precision >= _PRECISE else _MOST_POINTS_IF_PRECISE)
    deviation, wrap = max(math.sqrt(at.variance), 1 / at.tilt), 1e-6 if side is Side.UPPER else 1e-9
    window = Window(
        epsilon=epsilon,
        tilt=at.tilt,
        deviation=deviation,
        log_delta=log_delta,
        period=period_for(_surplus(transform, at, deviation), epsilon, shortest_period(at, log_delta), deviation, wrap),
        wrap=wrap,
        most_points=2 * most_points,
    )
    moved, step, laws = _fine_enough(transform.composition, side, saddle, window, precision, most_points)
    composed = compose(laws, step, window)
    while composed.wrapped_share(epsilon) > 0.03 and 2 * composed.length < most_points:
        window = replace(window, period=2 * composed.period)
        composed = compose(laws, step, window)
    return LatticeSide(composed, side, moved)


def _surplus(transform: LossTransform, at: Cumulants, deviation: float) -> tuple[Floats, Floats]:
    """Further tilts and the growth of log E exp(tilt L) they bring, by quadrature: how long a window must be."""
    tilts = SURPLUS_TILTS / deviation
    return tilts, np.array([each.value - at.value for each in transform.cumulants_at(at.tilt + tilts)])


def _fine_enough(
    composition: Composition, side: Side, saddle: Cumulants, window: Window, precision: float, most_points: int
) -> tuple[float, float, CountedLaws]:
    """By how much log delta moves, the step, and the laws on that lattice: the best of a few refinements."""
    c, coarsest = saddle.tilt, window.period / most_points
    step = min(math.sqrt(12 * precision / (1.1 * composition.steps)) / c, 0.05 * window.deviation)
    best, in_vain = None, 0
    while True:
        step = _align(composition, max(step, coarsest))
        laws, before = _lattice_laws(composition, side, step, saddle, window, precision)
        moved = abs(log_normaliser(laws, step, window.tilt) - before) * (c / window.tilt) ** 2
        # A finer lattice that hardly helps may be an unlucky one; twice means that it is not the remedy.
        in_vain += best is not None and not moved < 0.5 * best[0]
        if best is None or moved < best[0]:
            best = (moved, step, laws)
        if moved <= 2 * precision or step <= 1.01 * coarsest or in_vain == 2:
            return best
        step /= min(4.0, max(1.5, math.sqrt(moved / precision)))


def _lattice_laws(
    composition: Composition, side: Side, step: float, saddle: Cumulants, window: Window, precision: float
) -> tuple[CountedLaws, float]:
    """Each law on the lattice, and log E exp(tilt L) of the laws before that, cut off at the same losses.

    What is cut off above stays far below delta even after all steps. A law that is moved by more than the precision
    from below is tried with its bulk merged into one atom as well.
    """
    put = pessimistic if side is Side.UPPER else optimistic
    laws, before = [], 0.0
    for law, count in composition.terms:
        low, high = law.span(log_cut(window.log_delta) - math.log(count))
        nodes = law.nodes(saddle.tilt, high)
        log_moment = _log_moment(law, nodes, window.tilt, high)
        # Below this, exp(tilt * loss - log_moment) is so small that even all the mass there would not show.
        unseen = (log_moment + 2 * math.log(window.tilt * step) - 32.0) / window.tilt
        # A law that is composed rarely may be put down coarsely: its error is not multiplied.
        narrowest = step * math.sqrt(composition.steps / (count * len(composition.terms)))
        span = (max(low, unseen), high)
        placed = put(law, lattice_edges(nodes, span, step, saddle.tilt, narrowest), step)
        if side is Side.LOWER and count * (log_moment - log_normaliser([(placed, 1)], step, window.tilt)) > precision:
            merged = optimistic_with_merged_bulk(law, nodes, (low, high), step, saddle.tilt, narrowest)
            candidates = [placed] if merged is None else [placed, merged]
            placed = max(candidates, key=lambda each: log_normaliser([(each, 1)], step, window.tilt))
        laws.append((placed, count))
        before += count * log_moment
    return laws, before


def _log_moment(law: PrivacyLossLaw, nodes: Nodes, tilt: float, largest: float) -> float:
    """log E exp(tilt L) over losses up to `largest`, by quadrature."""
    exponents = (nodes.log_weights + tilt * nodes.losses)[nodes.losses <= largest]
    atoms = [math.log(atom.mass) + tilt * atom.loss for atom in law.atoms if atom.mass > 0]
    exponents = np.append(exponents, atoms)
    top = float(exponents.max())
    return top + math.log(float(np.exp(exponents - top).sum()))


def _align(composition: Composition, step: float) -> float:
    """The nearest finer step that puts all atoms on the lattice, or at least those of the first law with any.

    A hair is taken off so that the lattice point is not above the atom.
    """
    losses = [abs(atom.loss) for law, _ in composition.terms for atom in law.atoms if atom.loss != 0]
    if not losses:
        return step
    unit = _common_unit(losses)
    if unit < 2 * step:
        unit = max(losses[:2])
    return unit / math.ceil(unit / step) * (1 - 4e-16)


def _common_unit(losses: list[float]) -> float:
    """The largest number that all losses are multiples of, if they are decimal fractions; else 0."""
    fractions = [Fraction(loss).limit_denominator(10**6) for loss in losses]
    if any(abs(float(each) - loss) > 4e-16 * loss for each, loss in zip(fractions, losses, strict=True)):
        return 0.0
    denominator = math.lcm(*(each.denominator for each in fractions))
    return math.gcd(*(int(each * denominator) for each in fractions)) / denominator

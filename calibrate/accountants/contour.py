"""The exact delta of a composition as a contour integral: fast, accurate, not certified.

With K(s) the logarithm of E exp(s L) for the total loss L, and any c > 0 (docs/theorems/certified-accountant.md,
equation 12),

    delta(eps) = (1 / 2 pi) * integral over t of exp(K(s) - s eps) / (s (1 + s)),   s = c + i t.

The path crosses the saddle point of the integrand, where it does not oscillate, and the trapezoidal rule
converges geometrically; its step is chosen so that the aliases (delta at eps +- a period) are negligible. The
number of steps enters only as a factor of K, so the cost does not depend on it.

Where few participations are expected the integrand barely decays; then `log_delta` returns None and the caller
falls back on the certified grid. Nothing that is promised rests on this file: it steers searches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from calibrate.accountants.directions import Composition
from calibrate.accountants.losses import PrivacyLossLaw
from calibrate.arrays import Floats
from calibrate.errors import NotCertified

Complexes = NDArray[np.complex128]

_BLOCK = 24
_LARGEST_BLOCKS = 40
_BLOCKS_BEFORE_GIVING_UP = 5
_LARGEST_WORK = 2_000_000
"""Nodes times points on the contour; beyond this the lattice is the faster answer."""
_RELATIVE_TAIL = 1e-11
_LARGEST_TILT = 1e7
_TILT_SHARES = np.array([0.95, 0.9, 0.85, 0.8, 0.7, 0.6])
_DEEPEST = 7.0
"""Delta may be smaller than what the tilt aims at by this many natural logarithms."""
_DEVIATIONS = 9.0
_FADING = 18.0
"""What wraps around from below is this many natural logarithms below delta."""


@dataclass(frozen=True)
class Cumulants:
    """The total loss tilted by exp(tilt * L): value and first two derivatives of K at the tilt."""

    tilt: float
    value: float
    mean: float
    variance: float


@dataclass(frozen=True)
class _Points:
    """A law as weighted loss values (quadrature nodes and atoms), good for tilts up to `largest_tilt`."""

    log_weights: Floats
    losses: Floats
    count: int


class LossTransform:
    """K of one composition; keeps its quadrature nodes while they are good enough.

    Single losses so large that all of them together have probability below exp(log_cut) are left out. They
    cannot matter for a delta far above that, but exp(s L) would let them dominate the transform.
    """

    def __init__(self, composition: Composition, log_cut: float) -> None:
        self.composition = composition
        self._log_cut = log_cut
        self._good_up_to = 0.0
        self._points: tuple[_Points, ...] = ()

    def size(self, tilt: float) -> int:
        """How many quadrature nodes there are."""
        return sum(len(points.losses) for points in self._at(tilt))

    def largest(self, tilt: float) -> float:
        """No total loss exceeds this, once the negligible single losses are left out."""
        return sum(points.count * float(points.losses.max()) for points in self._at(tilt))

    def cumulants(self, tilt: float) -> Cumulants:
        value = mean = variance = 0.0
        for points in self._at(tilt):
            shift, weights = _tilt(points, tilt)
            average = float(weights @ points.losses)
            value += points.count * shift
            mean += points.count * average
            variance += points.count * float(weights @ (points.losses - average) ** 2)
        return Cumulants(tilt, value, mean, variance)

    def cumulants_at(self, tilts: Floats) -> tuple[Cumulants, ...]:
        """The same for several tilts in one pass."""
        value, mean, variance = np.zeros((3, len(tilts)))
        for points in self._at(float(tilts.max())):
            exponent = points.log_weights + tilts[:, None] * points.losses
            top = exponent.max(axis=1)
            weights = np.exp(exponent - top[:, None])
            total = weights.sum(axis=1)
            average = weights @ points.losses / total
            spread = np.square(points.losses - average[:, None])
            value += points.count * (top + np.log(total))
            mean += points.count * average
            variance += points.count * np.einsum("ij,ij->i", weights, spread) / total
        rows = zip(tilts.tolist(), value.tolist(), mean.tolist(), variance.tolist(), strict=True)
        return tuple(Cumulants(*row) for row in rows)

    def oscillation(self, tilt: float, step: float, first: int, count: int) -> Complexes:
        """exp(K(tilt + i t) - K(tilt)) at t = step * (first .. first + count - 1), as complex numbers."""
        index = np.arange(first, first + count)
        log_total = np.zeros(count, dtype=np.complex128)
        for points in self._at(tilt):
            _, weights = _tilt(points, tilt)
            average = float(weights @ points.losses)
            turn = np.exp(1j * step * (points.losses - average))
            powers = _successive_powers(turn, first, count)
            with np.errstate(divide="ignore"):
                log_total += points.count * (np.log(powers @ weights) + 1j * step * average * index)
        return np.exp(log_total)

    def _at(self, tilt: float) -> tuple[_Points, ...]:
        if not self._points or tilt > self._good_up_to:
            self._good_up_to = 1.6 * tilt + 0.5
            terms = self.composition.terms
            self._points = tuple(self._cut(law, count) for law, count in terms)
        return self._points

    def _cut(self, law: PrivacyLossLaw, count: int) -> _Points:
        largest = law.span(self._log_cut - math.log(count))[1]
        nodes = law.nodes(self._good_up_to, largest)
        inside = np.searchsorted(nodes.losses, largest, side="right")
        log_weights, losses = nodes.log_weights[:inside], nodes.losses[:inside]
        atoms = [atom for atom in law.atoms if atom.mass > 0]
        if atoms:
            log_weights = np.append(log_weights, np.log([atom.mass for atom in atoms]))
            losses = np.append(losses, [atom.loss for atom in atoms])
        if not len(losses):
            raise NotCertified(
                "almost every single loss is larger than the accountant can hold, so epsilon would be in the hundreds; "
                "use more noise"
            )
        return _Points(log_weights, losses, count)


def _tilt(points: _Points, tilt: float) -> tuple[float, Floats]:
    """log E exp(tilt L) and the tilted probabilities of the points."""
    exponent = points.log_weights + tilt * points.losses
    top = float(exponent.max())
    weights = np.exp(exponent - top)
    total = float(weights.sum())
    return top + math.log(total), weights / total


def _successive_powers(turn: Complexes, first: int, count: int) -> Complexes:
    """Rows turn^first, turn^(first+1), ...: products instead of one exponential per entry."""
    powers: Complexes = np.empty((count, len(turn)), dtype=np.complex128)
    powers[0] = turn**first
    filled = 1
    step = turn.copy()
    while filled < count:
        take = min(filled, count - filled)
        powers[filled : filled + take] = powers[:take] * step
        filled += take
        step = step * step
    return powers


def saddle_for_epsilon(transform: LossTransform, epsilon: float, guess: float = 5.0) -> Cumulants:
    """Where K(c) - c eps - log c - log(1 + c), which is convex in c > 0, is smallest."""

    def slope(at: Cumulants) -> tuple[float, float]:
        c = at.tilt
        return at.mean - epsilon - 1 / c - 1 / (1 + c), at.variance + c**-2 + (1 + c) ** -2

    return _newton(transform, slope, guess)


def saddle_for_delta(transform: LossTransform, log_delta: float, guess: float = 5.0) -> Cumulants:
    """Where Chernoff's bound gives the smallest epsilon for the given delta.

    That bound is eps = (K(c) + c log c - (1+c) log(1+c) - log delta) / c; its derivative vanishes where
    c K'(c) - K(c) + log(1 + c) + log delta = 0, which increases in c.
    """

    def slope(at: Cumulants) -> tuple[float, float]:
        c = at.tilt
        return c * at.mean - at.value + math.log1p(c) + log_delta, c * at.variance + 1 / (1 + c)

    return _newton(transform, slope, guess)


def chernoff_epsilon(at: Cumulants, log_delta: float) -> float:
    """An upper estimate of epsilon at delta from the tilt of `at`."""
    c = at.tilt
    return (at.value + c * math.log(c) - (1 + c) * math.log1p(c) - log_delta) / c


def chernoff_log_delta(at: Cumulants, epsilon: float) -> float:
    """Chernoff's bound on log delta at `epsilon` from the tilt of `at`, as accurate as the quadrature is."""
    c = at.tilt
    return at.value - c * epsilon + c * math.log(c) - (1 + c) * math.log1p(c)


def tilt_below(transform: LossTransform, epsilon: float, log_delta: float) -> Cumulants | None:
    """A tilt whose Chernoff bound at `epsilon` is at most `log_delta`, the smallest of a few; None if there is none."""
    before = math.inf
    for power in range(16):
        at = transform.cumulants(0.5 * 3.0**power)
        bound = chernoff_log_delta(at, epsilon)
        if bound <= log_delta:
            return at
        if bound > before:
            return None
        before = bound
    return None


def _newton(transform: LossTransform, slope: Callable[[Cumulants], tuple[float, float]], guess: float) -> Cumulants:
    """The root of an increasing function of the tilt, by Newton steps kept inside a shrinking bracket."""
    c, low, high = guess, 0.0, math.inf
    at = transform.cumulants(c)
    for _ in range(100):
        value, derivative = slope(at)
        if value > 0:
            high = min(high, c)
        else:
            low = max(low, c)
        step = min(c - value / derivative, 4 * c)
        if not low < step < high:
            step = math.sqrt(max(low, 0.1 * c) * high) if high < math.inf else 4 * c
        close = abs(step - c) < 2e-3 * c or high - low < 2e-3 * c
        if close or not 1e-9 < step < _LARGEST_TILT:
            break
        c = step
        at = transform.cumulants(c)
    return at


def narrow_tilt(transform: LossTransform, saddle: Cumulants, epsilon: float, log_delta: float) -> Cumulants:
    """Tilt a little less than the saddle asks for where that makes the tilted total loss much narrower.

    At the saddle of a heavy-tailed loss a few huge single losses may carry weight; they widen the total
    without mattering for delta. Any tilt is correct: it only must not bury delta under rounding.
    """
    best, shortest = saddle, math.inf
    for at in (saddle, *transform.cumulants_at(_TILT_SHARES * saddle.tilt)):
        buried = (at.value - at.tilt * epsilon) - (saddle.value - saddle.tilt * epsilon)
        period = shortest_period(at, log_delta)
        if buried < _DEEPEST and period < 0.95 * shortest:
            best, shortest = at, period
    return best


def shortest_period(at: Cumulants, log_delta: float) -> float:
    """Room for the tilted bulk, and for what wraps around from below to fade far below delta."""
    return max(_DEVIATIONS * math.sqrt(at.variance), (_FADING - log_delta) / at.tilt)


class Care(Enum):
    """How sure to be of the contour integral's step."""

    QUICK = "one step size, right to a few digits where tilted tails are heavy"
    CONFIRMED = "halved until nothing changes"


def log_delta(
    transform: LossTransform, epsilon: float, guess: float = 5.0, care: Care = Care.CONFIRMED
) -> tuple[float, Cumulants] | None:
    """log delta(epsilon) and the saddle used; None where the integral does not converge in a few hundred points."""
    if epsilon >= min(transform.composition.largest, transform.largest(guess)):
        return -math.inf, transform.cumulants(guess)
    saddle = saddle_for_epsilon(transform, epsilon, guess)
    at = narrow_tilt(transform, saddle, epsilon, saddle.value - saddle.tilt * epsilon)
    deviation = math.sqrt(at.variance)
    period = max(20 * deviation, 10 * deviation + 1.5 * abs(at.mean - epsilon), 40 / at.tilt)
    value = _integral(transform, at.tilt, epsilon, period)
    settled = care is Care.QUICK
    for _ in range(5):
        if value is None or settled:
            break
        before, period = value, 2 * period
        value = _integral(transform, at.tilt, epsilon, period)
        settled = value is not None and abs(value / before - 1) < 1e-8
    if value is None:
        return None
    return at.value - at.tilt * epsilon + math.log(value), saddle


def _integral(transform: LossTransform, tilt: float, epsilon: float, period: float) -> float | None:
    """The trapezoidal sum of exp(K(s) - K(c) - i t eps) / (s (1 + s)) / (2 pi) with step 2 pi / period."""
    step, total = 2 * math.pi / period, 0.0
    blocks = max(2, min(_LARGEST_BLOCKS, _LARGEST_WORK // (_BLOCK * transform.size(tilt))))
    for block in range(blocks):
        first = block * _BLOCK
        t = step * np.arange(first, first + _BLOCK)
        s = tilt + 1j * t
        # The integrand of equation 12 over exp(K(c)); by symmetry only t >= 0 is summed.
        values = transform.oscillation(tilt, step, first, _BLOCK) * np.exp(-1j * t * epsilon) / (s * (1 + s))
        terms = np.where(np.isfinite(values), values, 0.0).real
        if first == 0:
            terms[0] *= 0.5
        total += float(terms.sum())
        last = float(np.abs(values[-6:]).max())
        if block == _BLOCKS_BEFORE_GIVING_UP and last > 1e-4 * abs(total):
            return None
        if last < _RELATIVE_TAIL * abs(total):
            return step / math.pi * total if total > 0 else None
    return None

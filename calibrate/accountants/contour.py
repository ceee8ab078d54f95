"""The exact delta of a composition as a contour integral: fast, accurate, not certified.

With K(s) the logarithm of E exp(s L) for the total loss L, and any c > 0,

    delta(eps) = (1 / 2 pi) * integral over t of exp(K(s) - s eps) / (s (1 + s)),   s = c + i t.

The path crosses the saddle point of the integrand, where it does not oscillate, and the trapezoidal rule
converges geometrically; its step is chosen so that the aliases (delta at eps +- a period) are negligible. The
number of steps enters only as a factor of K, so the cost does not depend on it.

Where few participations are expected the integrand hardly decays; then `log_delta` returns None and the caller
falls back on the certified grid. Nothing that is promised rests on this file: it steers searches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibrate.accountants.losses.directions import Composition
from calibrate.accountants.losses.law import Floats, PrivacyLossLaw

Complexes = NDArray[np.complex128]

_BLOCK = 24
_LARGEST_BLOCKS = 40
_RELATIVE_TAIL = 1e-11
_LARGEST_TILT = 1e7


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
    """K of one composition; keeps its quadrature nodes while they are good enough."""

    def __init__(self, composition: Composition) -> None:
        self.composition = composition
        self._good_up_to = 0.0
        self._points: tuple[_Points, ...] = ()

    def cumulants(self, tilt: float) -> Cumulants:
        value = mean = variance = 0.0
        for points in self._at(tilt):
            shift, weights = _tilted(points, tilt)
            average = float(weights @ points.losses)
            value += points.count * shift
            mean += points.count * average
            variance += points.count * float(weights @ (points.losses - average) ** 2)
        return Cumulants(tilt, value, mean, variance)

    def oscillation(self, tilt: float, step: float, first: int, count: int) -> Complexes:
        """exp(K(tilt + i t) - K(tilt)) at t = step * (first .. first + count - 1), as complex numbers."""
        index = np.arange(first, first + count)
        log_total = np.zeros(count, dtype=np.complex128)
        for points in self._at(tilt):
            _, weights = _tilted(points, tilt)
            average = float(weights @ points.losses)
            turn = np.exp(1j * step * (points.losses - average))
            powers = _successive_powers(turn, first, count)
            with np.errstate(divide="ignore"):
                log_total += points.count * (np.log(powers @ weights) + 1j * step * average * index)
        return np.exp(log_total)

    def _at(self, tilt: float) -> tuple[_Points, ...]:
        if not self._points or tilt > self._good_up_to:
            self._good_up_to = 1.25 * tilt + 0.25
            terms = self.composition.terms
            self._points = tuple(_points(law, count, self._good_up_to) for law, count in terms)
        return self._points


def _points(law: PrivacyLossLaw, count: int, largest_tilt: float) -> _Points:
    nodes = law.nodes(largest_tilt)
    atoms = [atom for atom in law.atoms if atom.mass > 0]
    if not atoms:
        return _Points(nodes.log_weights, nodes.losses, count)
    return _Points(
        np.concatenate((nodes.log_weights, np.log([atom.mass for atom in atoms]))),
        np.concatenate((nodes.losses, [atom.loss for atom in atoms])),
        count,
    )


def _tilted(points: _Points, tilt: float) -> tuple[float, Floats]:
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


def _newton(
    transform: LossTransform, slope: Callable[[Cumulants], tuple[float, float]], guess: float
) -> Cumulants:
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


def log_delta(transform: LossTransform, epsilon: float, guess: float = 5.0) -> tuple[float, Cumulants] | None:
    """log delta(epsilon) and the saddle used; None where the integral does not converge in a few hundred points."""
    if epsilon >= transform.composition.largest:
        return -math.inf, transform.cumulants(guess)
    saddle = saddle_for_epsilon(transform, epsilon, guess)
    deviation = math.sqrt(saddle.variance)
    period = max(20 * deviation, 10 * deviation + 1.5 * abs(saddle.mean - epsilon), 40 / saddle.tilt)
    value = _integral(transform, saddle.tilt, epsilon, period)
    if value is None:
        return None
    if transform.composition.steps < 500:  # few steps have heavy tilted tails: the period must be confirmed
        for _ in range(5):
            period *= 2
            finer = _integral(transform, saddle.tilt, epsilon, period)
            if finer is None:
                return None
            settled = abs(finer / value - 1) < 1e-8
            value = finer
            if settled:
                break
    return saddle.value - saddle.tilt * epsilon + math.log(value), saddle


def _integral(transform: LossTransform, tilt: float, epsilon: float, period: float) -> float | None:
    """The trapezoidal sum of exp(K(s) - K(c) - i t eps) / (s (1 + s)) / (2 pi) with step 2 pi / period."""
    step, total = 2 * math.pi / period, 0.0
    for block in range(_LARGEST_BLOCKS):
        first = block * _BLOCK
        t = step * np.arange(first, first + _BLOCK)
        s = tilt + 1j * t
        values = transform.oscillation(tilt, step, first, _BLOCK) * np.exp(-1j * t * epsilon) / (s * (1 + s))
        terms = np.where(np.isfinite(values), values, 0.0).real
        if first == 0:
            terms[0] *= 0.5
        total += float(terms.sum())
        if float(np.abs(values[-6:]).max()) < _RELATIVE_TAIL * abs(total):
            return step / math.pi * total if total > 0 else None
    return None

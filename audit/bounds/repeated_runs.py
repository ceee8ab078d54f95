"""Bounds from the errors of repeated runs: the Clopper-Pearson box around both rates, and the joint exact test.

Guarantee of the box: each side is exceeded by the true rate with probability at most failure / 2, so the true pair of
rates lies in the box with probability at least 1 - failure. A curve is refuted when the whole box lies below it
(docs/theorems/audit-bounds.md, "The box"). The joint exact test has both error counts in one statistic instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, ndtr, ndtri

from audit.bounds.binomial import log_ways, usual_range
from audit.bounds.lower_bound import (
    ErrorCounts,
    LowerBound,
    Method,
    allowed_failure,
    bound_of_parameter,
    smallest_level,
)
from audit.bounds.trade_off import CurveFamily, TradeOff, check_family_delta, curves_of
from audit.settings import CONFIDENCE
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, open_unit
from calibrate.roots import find_root


@dataclass(frozen=True)
class ErrorBox:
    """Upper bounds of the two error rates that hold together."""

    false_positive_rate: float
    false_negative_rate: float

    def refutes(self, claim: TradeOff) -> bool:
        """Equation (1)."""
        return self.false_negative_rate < claim.type_two_error(self.false_positive_rate)

    def epsilon(self, delta: float) -> float:
        """The largest refuted epsilon at `delta`, equation (2)."""
        first, second = self.false_positive_rate, self.false_negative_rate
        return max(_log_ratio(1 - second - delta, first), _log_ratio(1 - first - delta, second))

    def mu(self) -> float:
        """The largest refuted Gaussian, equation (3)."""
        return max(0.0, float(-ndtri(self.false_positive_rate) - ndtri(self.false_negative_rate)))


def upper_rate(errors: int, trials: int, failure: float) -> float:
    """The Clopper-Pearson upper bound: the rate at which this few errors have probability `failure`."""
    return float(betainccinv(errors + 1, trials - errors, failure)) if errors < trials else 1.0


def lower_rate(errors: int, trials: int, failure: float) -> float:
    """The Clopper-Pearson lower bound."""
    return 1 - upper_rate(trials - errors, trials, failure)


def error_box(counts: ErrorCounts, failure: float) -> ErrorBox:
    """Both rates' upper bounds, each at half of the failure probability."""
    return ErrorBox(
        upper_rate(counts.false_positives, counts.runs_without, failure / 2),
        upper_rate(counts.false_negatives, counts.runs_with, failure / 2),
    )


@dataclass(frozen=True)
class ClopperPearson:
    """The largest parameter of `family` that the whole box refutes: nothing is assumed unless a Gaussian is asked for.

    Guarantee: docs/theorems/audit-bounds.md, "The box", for a threshold that does not depend on the counted runs; for
    any release with the default family, and with `CurveFamily.GAUSSIAN` for releases dominated by one Gaussian release.
    """

    family: CurveFamily = CurveFamily.EPSILON_DELTA

    @property
    def method(self) -> Method:
        return Method.GAUSSIAN if self.family is CurveFamily.GAUSSIAN else Method.CLOPPER_PEARSON

    def p_value(self, counts: ErrorCounts, claim: TradeOff) -> float:
        """The smallest failure probability at which the box refutes the curve (the box shrinks as it grows)."""
        return smallest_level(lambda failure: error_box(counts, failure).refutes(claim))

    def refutes(self, counts: ErrorCounts, claim: TradeOff, confidence: float = CONFIDENCE) -> bool:
        return error_box(counts, allowed_failure(confidence)).refutes(claim)

    def lower_bound(self, counts: ErrorCounts, delta: float, confidence: float = CONFIDENCE) -> LowerBound:
        check_family_delta(self.family, delta)
        box = error_box(counts, allowed_failure(confidence))
        parameter = box.mu() if self.family is CurveFamily.GAUSSIAN else box.epsilon(delta)
        return bound_of_parameter(self, parameter, counts, delta, confidence)


def _log_ratio(success: float, error: float) -> float:
    return max(0.0, math.log(success / error)) if success > 0 else 0.0


# The largest probability, over all false-positive rates allowed, of an outcome as bad as the one observed.
#
# The outcome of repeated runs is (FP, FN). It is as bad as the observed one when the statistic (4)
#
#     T = -Phi^-1((FP + 1/2) / (n0 + 1)) - Phi^-1((FN + 1/2) / (n1 + 1))
#
# is at least as large. T falls in both counts. Hence for a rate a in a cell [left, right], and with the
# false-negative rate at its smallest allowed value f(a), the tail probability is at most its value at the corner
# (left, f(right)), equation (6): a certified bound for the whole cell, refined by splitting. A glance at a few
# rates only says where to look; what is answered is certified.

_CUT = 22.0
"""A window leaves out less than 2 exp(-22) < 6e-10 of a binomial distribution."""
_LEFT_OUT = 2e-9
"""More than two windows leave out and rounding adds; part of every upper bound."""
_TIE = 1e-7
_CELLS = 16
_CLOSER = 9
_CHUNK = 64
_MOST_PARTS = 512
_UNDECIDED = 0.002
"""Within this fraction of the level the answer is the careful one, "not below"."""
_PRECISION = 0.01


class JointTail:
    """The tail event of one observed outcome, with false-positive rates in [least_rate, most_rate]."""

    def __init__(self, counts: ErrorCounts, least_rate: float, most_rate: float) -> None:
        self._rates = np.linspace(least_rate, most_rate, _CELLS + 1)
        self._without, self._with = _Binomial(counts.runs_without), _Binomial(counts.runs_with)
        self._most_negatives = _most_negatives(counts)

    def glance(self, claim: TradeOff) -> float:
        """The largest tail probability at a few rates: fast, close, and not certified."""
        rough = self._probability(claim, self._rates, self._rates)
        best = int(np.argmax(rough))
        near = np.linspace(self._rates[max(0, best - 1)], self._rates[min(_CELLS, best + 1)], _CLOSER)
        return max(float(rough[best]), float(self._probability(claim, near, near).max()))

    def largest(self, claim: TradeOff) -> float:
        """A certified upper bound of the largest tail probability, tight to about one percent."""
        level = self.glance(claim) * (1 + _PRECISION) + 2 * _LEFT_OUT
        while level < 1 and not self.is_below(claim, level):
            level *= 1 + _PRECISION
        return min(1.0, level)

    def is_below(self, claim: TradeOff, level: float) -> bool:
        """Whether the largest tail probability under the curve is certified to be below `level`."""
        lefts, rights = self._rates[:-1], self._rates[1:]
        while True:
            middles = (lefts + rights) / 2
            inside = self._probability(claim, middles, middles)
            if inside.max() >= level * (1 - _UNDECIDED) - _LEFT_OUT:
                return False
            upper = self._probability(claim, lefts, rights) + _LEFT_OUT
            opened = upper >= level
            if not opened.any():
                return True
            # The gap of a cell shrinks like its width, so this many parts should just do.
            parts = 1.3 * (upper - inside)[opened] / (level - inside)[opened]
            lefts, rights = _split(lefts[opened], rights[opened], parts)

    def _probability(self, claim: TradeOff, rates: Floats, partners: Floats) -> Floats:
        """P[T as large as observed] at false-positive rates `rates`, false-negative rates f(partners)."""
        misses = np.array([claim.type_two_error(partner) for partner in partners.tolist()])
        pieces = [
            self._probability_of_chunk(rates[start : start + _CHUNK], misses[start : start + _CHUNK])
            for start in range(0, len(rates), _CHUNK)
        ]
        return np.concatenate(pieces)

    def _probability_of_chunk(self, rates: Floats, misses: Floats) -> Floats:
        first, positives = self._without.masses(rates)
        start, negatives = self._with.masses(misses)
        cumulative = np.zeros((len(misses), negatives.shape[1] + 1))
        np.cumsum(negatives, axis=1, out=cumulative[:, 1:])
        reached = self._most_negatives[first : first + positives.shape[1]]
        ends = np.clip(reached - start + 1, 0, negatives.shape[1])
        return np.asarray(np.einsum("ij,ij->i", positives, cumulative[:, ends]))


class _Binomial:
    """Binomial(trials, rate) for several nearby rates at once, on the window that carries its mass."""

    def __init__(self, trials: int) -> None:
        self._trials = trials
        self._values = np.arange(trials + 1, dtype=np.float64)
        self._log_ways = log_ways(trials, self._values)

    def masses(self, rates: Floats) -> tuple[int, Floats]:
        """The first value of the window, and row i: the probabilities of its values at rates[i]."""
        first, last = usual_range(self._trials, float(rates.min()), float(rates.max()), _CUT)
        values = self._values[first : last + 1]
        exponent = np.log(np.maximum(rates, 1e-300))[:, None] * values
        exponent += np.log1p(-np.minimum(rates, 1 - 1e-16))[:, None] * (self._trials - values)
        exponent += self._log_ways[first : last + 1]
        return first, np.exp(exponent, out=exponent)


def _most_negatives(counts: ErrorCounts) -> NDArray[np.int64]:
    """For each FP the largest FN whose T reaches the observed one (-1 if none); ties are treated as reaching."""
    n0, n1 = counts.runs_without, counts.runs_with
    shares = ndtri((np.arange(n0 + 1) + 0.5) / (n0 + 1))
    observed = -shares[counts.false_positives] - ndtri((counts.false_negatives + 0.5) / (n1 + 1))
    # T >= observed solved for FN: FN <= (n1 + 1) Phi(-(observed + Phi^-1 share)) - 1/2.
    reached = np.floor((n1 + 1) * ndtr(-(observed + shares)) - 0.5 + _TIE)
    return np.asarray(np.clip(reached, -1, n1), dtype=np.int64)


def _split(lefts: Floats, rights: Floats, parts: Floats) -> tuple[Floats, Floats]:
    """Each cell cut into about this many equal parts that share their edges exactly."""
    whole = np.clip(np.ceil(parts), 2, _MOST_PARTS).astype(np.int64)
    owner = np.repeat(np.arange(len(lefts)), whole)
    position = np.arange(len(owner)) - np.repeat(np.cumsum(whole) - whole, whole)
    step = (rights - lefts) / whole
    new_lefts = lefts[owner] + position * step[owner]
    new_rights = np.where(position + 1 == whole[owner], rights[owner], lefts[owner] + (position + 1) * step[owner])
    return new_lefts, new_rights


_AIM = 0.975
"""The search aims at this fraction of the level, so that the certificate needs few cells."""
_MOST = 256.0
_CLOSE = 3e-4
_NOTHING = 1e-6


@dataclass(frozen=True)
class JointExact:
    """p = nuisance_error + the largest tail probability over the rates in a (1 - nuisance_error) interval.

    Guarantee: docs/theorems/audit-bounds.md, "The joint exact test", equation (5); for any curve with `p_value`, and
    with `lower_bound` for the curves of `family` (a Gaussian one assumes a Gaussian release). It loses nothing to a
    union bound over the two rates, as a box does.
    """

    family: CurveFamily = CurveFamily.EPSILON_DELTA
    nuisance_error: float = 1e-3
    method: ClassVar[Method] = Method.JOINT_EXACT

    def __post_init__(self) -> None:
        open_unit("nuisance error", self.nuisance_error)

    def p_value(self, counts: ErrorCounts, claim: TradeOff) -> float:
        return min(1.0, self.nuisance_error + self._tail(counts).largest(claim))

    def refutes(self, counts: ErrorCounts, claim: TradeOff, confidence: float = CONFIDENCE) -> bool:
        return self._tail(counts).is_below(claim, self._level(confidence))

    def lower_bound(self, counts: ErrorCounts, delta: float, confidence: float = CONFIDENCE) -> LowerBound:
        curves, level = curves_of(self.family, delta), self._level(confidence)
        parameter = _largest_refuted(self._tail(counts), curves, level)
        return bound_of_parameter(self, parameter, counts, delta, confidence)

    def _level(self, confidence: float) -> float:
        level = allowed_failure(confidence) - self.nuisance_error
        if level <= 0:
            raise InvalidInput(
                "confidence",
                confidence,
                f"leaves nothing after the nuisance error {self.nuisance_error:g}",
                "give the test a smaller nuisance error",
            )
        return level

    def _tail(self, counts: ErrorCounts) -> JointTail:
        half = self.nuisance_error / 2
        errors, runs = counts.false_positives, counts.runs_without
        return JointTail(counts, max(0.0, lower_rate(errors, runs, half)), upper_rate(errors, runs, half))


def _largest_refuted(tail: JointTail, curve: Callable[[float], TradeOff], level: float) -> float:
    """The largest parameter certified as refuted, up to the precision of the certificate.

    The tail probability grows with the parameter: the root of the uncertified glance is the guess, and the
    guess is lowered until it is certified.
    """

    def excess(parameter: float) -> float:
        return math.log(max(tail.glance(curve(parameter)), 1e-300)) - math.log(_AIM * level)

    if excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2
        if high > _MOST:
            return _certified(tail, curve, level, _MOST)
    return _certified(tail, curve, level, find_root(excess, 0.0, high, 1e-7, 1e-9))


def _certified(tail: JointTail, curve: Callable[[float], TradeOff], level: float, guess: float) -> float:
    """The guess if it is certified as refuted, else the largest smaller parameter that is."""
    low, high = guess, guess
    while not tail.is_below(curve(low), level):
        low, high = 0.99 * low, low
        if low < _NOTHING:
            return 0.0
    while high - low > _CLOSE * low:
        middle = (low + high) / 2
        if tail.is_below(curve(middle), level):
            low = middle
        else:
            high = middle
    return low

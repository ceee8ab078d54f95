"""From attack scores of repeated runs to a bound, with the choice of the threshold inside the error.

Three ways are offered and each is valid: a threshold fixed beforehand, a declared grid with Bonferroni's
correction, and a threshold chosen on one part of the runs and used on the other. Reading the best of many
thresholds off the same runs is not valid and has no function here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, ndtri

from audit.bounds.lower_bound import ErrorCounts, LowerBound, RepeatedRunsBound, Selection, allowed_failure
from audit.bounds.trade_off import CurveFamily, TradeOff
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, open_unit

_MOST_CANDIDATES = 256


@dataclass(frozen=True, eq=False)
class RunScores:
    """One score a run, larger when the run looks as if the canary was in; runs are independent."""

    without: Floats
    with_canary: Floats

    def __post_init__(self) -> None:
        for name, scores in (("scores without", self.without), ("scores with", self.with_canary)):
            if scores.ndim != 1 or not len(scores) or not np.isfinite(scores).all():
                raise InvalidInput(name, scores.shape, "must be one finite score a run", "drop or mend the others")

    @classmethod
    def of(cls, without: ArrayLike, with_canary: ArrayLike) -> RunScores:
        return cls(np.asarray(without, dtype=np.float64), np.asarray(with_canary, dtype=np.float64))

    def counts_at(self, threshold: float) -> ErrorCounts:
        """The attack that says "with" when the score is at least `threshold`."""
        return ErrorCounts(
            int(np.count_nonzero(self.without >= threshold)),
            len(self.without),
            int(np.count_nonzero(self.with_canary < threshold)),
            len(self.with_canary),
        )


@dataclass(frozen=True)
class FixedThreshold:
    """Fixed before any of these runs was scored."""

    value: float


@dataclass(frozen=True)
class ThresholdGrid:
    """Several thresholds declared beforehand; each is tested at its share of the error."""

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.values, tuple) or not self.values:
            raise InvalidInput("thresholds", self.values, "must be a non-empty tuple", "declare at least one")


@dataclass(frozen=True)
class SplitRuns:
    """The threshold is chosen on a random part of the runs, drawn with `seed`, and used on the rest."""

    choosing_share: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        open_unit("choosing share", self.choosing_share)


ThresholdRule = FixedThreshold | ThresholdGrid | SplitRuns


def bound_from_scores(
    method: RepeatedRunsBound, rule: ThresholdRule, scores: RunScores, delta: float, confidence: float = 0.95
) -> LowerBound:
    """The lower bound at `confidence`, the choice of the threshold included.

    Guarantee: docs/theorems/audit-bounds.md, "Choosing a threshold".
    """
    match rule:
        case FixedThreshold(value):
            return method.lower_bound(scores.counts_at(value), delta, confidence)
        case ThresholdGrid(values):
            share = 1 - allowed_failure(confidence) / len(values)
            bounds = [method.lower_bound(scores.counts_at(value), delta, share) for value in values]
            best = max(bounds, key=lambda bound: bound.epsilon)
            return best.selected_by(Selection.BONFERRONI, len(values), confidence)
        case SplitRuns():
            chosen, rest = split_threshold(rule, scores, method.family, delta, confidence)
            bound = method.lower_bound(rest.counts_at(chosen), delta, confidence)
            return bound.selected_by(Selection.SPLIT, 1, confidence)
        case _:
            assert_never(rule)


def p_value_from_scores(
    method: RepeatedRunsBound, rule: ThresholdRule, scores: RunScores, claim: TradeOff, confidence: float = 0.95
) -> float:
    """The p-value of a claimed curve, the choice included; `confidence` only steers the split's choice."""
    match rule:
        case FixedThreshold(value):
            return method.p_value(scores.counts_at(value), claim)
        case ThresholdGrid(values):
            smallest = min(method.p_value(scores.counts_at(value), claim) for value in values)
            return min(1.0, len(values) * smallest)
        case SplitRuns():
            chosen, rest = split_threshold(rule, scores, method.family, 0.0, confidence)
            return method.p_value(rest.counts_at(chosen), claim)
        case _:
            assert_never(rule)


def split_threshold(
    rule: SplitRuns, scores: RunScores, family: CurveFamily, delta: float, confidence: float
) -> tuple[float, RunScores]:
    """The threshold that looks best on the choosing part, and the runs that are left to be counted."""
    rng = np.random.default_rng(rule.seed)
    choosing_without, rest_without = _split(scores.without, rule.choosing_share, rng)
    choosing_with, rest_with = _split(scores.with_canary, rule.choosing_share, rng)
    both = np.unique(np.concatenate((choosing_without, choosing_with)))
    steps = np.linspace(0, len(both) - 1, min(len(both), _MOST_CANDIDATES)).round().astype(int)
    candidates = both[steps]
    false_positives = len(choosing_without) - np.searchsorted(np.sort(choosing_without), candidates)
    false_negatives = np.searchsorted(np.sort(choosing_with), candidates)
    half = allowed_failure(confidence) / 2
    # The boxes that the remaining runs would give if they behaved like the choosing ones.
    first = _upper_rates(false_positives / len(choosing_without), len(rest_without), half)
    second = _upper_rates(false_negatives / len(choosing_with), len(rest_with), half)
    merit = _merit(family, first, second, delta)
    return float(candidates[int(np.argmax(merit))]), RunScores(rest_without, rest_with)


def _merit(family: CurveFamily, first: Floats, second: Floats, delta: float) -> Floats:
    """What the box at each candidate would refute: a ratio for (epsilon, delta), mu for the Gaussian."""
    match family:
        case CurveFamily.EPSILON_DELTA:
            return np.maximum((1 - second - delta) / first, (1 - first - delta) / second)
        case CurveFamily.GAUSSIAN:
            return np.asarray(-ndtri(first) - ndtri(second))
        case _:
            assert_never(family)


def _upper_rates(rates: Floats, trials: int, failure: float) -> Floats:
    errors = np.minimum(rates * trials, trials - 1e-9)
    return np.asarray(betainccinv(errors + 1, trials - errors, failure))


def _split(scores: Floats, share: float, rng: np.random.Generator) -> tuple[Floats, Floats]:
    if len(scores) < 2:
        raise InvalidInput("runs", len(scores), "too few to split", "make more runs or fix the threshold")
    shuffled = rng.permutation(scores)
    cut = min(len(scores) - 1, max(1, round(share * len(scores))))
    return shuffled[:cut], shuffled[cut:]

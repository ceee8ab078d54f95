"""The answer of every bound: an epsilon that the release is not better than, with its evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from audit.bounds.trade_off import CurveFamily, TradeOff
from audit.settings import CONFIDENCE
from calibrate.accountants.gaussian import gaussian_epsilon_interval
from calibrate.errors import InvalidInput, count, open_unit

# What an attack did, as whole numbers: the only thing a bound sees.


@dataclass(frozen=True)
class ErrorCounts:
    """Errors of one attack over independent runs: without the canary, and with it.

    A false positive says "with" of a run without; a false negative says "without" of a run with. The
    attack, its threshold included, must not depend on these runs.
    """

    false_positives: int
    runs_without: int
    false_negatives: int
    runs_with: int

    def __post_init__(self) -> None:
        _at_most("false positives", self.false_positives, "runs without", self.runs_without)
        _at_most("false negatives", self.false_negatives, "runs with", self.runs_with)

    @classmethod
    def at(cls, threshold: float, without: ArrayLike, with_canary: ArrayLike) -> ErrorCounts:
        """The attack that says "with" where the score is at least `threshold`; one score per independent run."""
        scores = [np.asarray(values, dtype=np.float64) for values in (without, with_canary)]
        for name, values in zip(("scores without", "scores with"), scores, strict=True):
            if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
                raise InvalidInput(name, values.shape, "must be one finite score per run", "drop or fix the others")
        positives, negatives = int((scores[0] >= threshold).sum()), int((scores[1] < threshold).sum())
        return cls(positives, len(scores[0]), negatives, len(scores[1]))


@dataclass(frozen=True)
class GuessCounts:
    """Guesses about independent uniform coins with `choices` sides, over one run or several pooled runs.

    `coins` counts every coin that was flipped, `guesses` those the attack was to guess (a number fixed
    before the coins were seen; abstaining inside it is treated as wrong), `correct` the right ones.
    """

    coins: int
    guesses: int
    correct: int
    choices: int = 2

    def __post_init__(self) -> None:
        count("choices", self.choices, least=2)
        _at_most("guesses", self.guesses, "coins", self.coins)
        _at_most("correct", self.correct, "guesses", self.guesses, least=0)


def _at_most(part_name: str, part: int, whole_name: str, whole: int, least: int = 1) -> None:
    count(whole_name, whole, least)
    count(part_name, part, least=0)
    if part > whole:
        raise InvalidInput(part_name, part, f"must be at most {whole_name} = {whole}", "check the counts")


class Method(Enum):
    CLOPPER_PEARSON = "clopper-pearson"
    GAUSSIAN = "gaussian"
    JOINT_EXACT = "joint-exact"
    ONE_RUN = "one-run"
    F_DP = "f-dp-one-run"
    E_PROCESS = "e-process"


class Selection(Enum):
    """How the threshold, or the number of guesses, was chosen, so that the error includes the choice."""

    FIXED = "fixed beforehand"
    BONFERRONI = "Bonferroni over a declared grid"
    SPLIT = "chosen on a separate part of the data"
    SEQUENTIAL = "none to choose: valid at all prefixes at once"


@dataclass(frozen=True)
class LowerBound:
    """With probability at least `confidence` the release is not (e, delta) private for any e < `epsilon`.

    Guarantee: docs/theorems/audit-bounds.md, the section named by `method`. The probability is over the
    coins and the noise of the audited runs. With family GAUSSIAN the statement holds for releases that are
    Gaussian (or dominated by one), and `mu` is the bound on that Gaussian.
    """

    epsilon: float
    delta: float
    confidence: float
    method: Method
    family: CurveFamily
    evidence: ErrorCounts | GuessCounts
    mu: float | None = None
    selection: Selection = Selection.FIXED
    comparisons: int = 1

    def __post_init__(self) -> None:
        open_unit("confidence", self.confidence)
        if not self.epsilon >= 0:
            raise InvalidInput("epsilon", self.epsilon, "must be at least 0", "report this as a bug")

    def refutes(self, claimed_epsilon: float) -> bool:
        """Whether a promise of `claimed_epsilon` at this delta is contradicted."""
        return self.epsilon > claimed_epsilon

    def selected_by(self, selection: Selection, comparisons: int, confidence: float) -> LowerBound:
        """The same bound, saying how its threshold was chosen and what confidence is left after that."""
        return replace(self, selection=selection, comparisons=comparisons, confidence=confidence)

    def as_json(self) -> dict[str, object]:
        """Plain values for a report."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "confidence": self.confidence,
            "method": self.method.value,
            "family": self.family.value,
            "mu": self.mu,
            "selection": self.selection.value,
            "comparisons": self.comparisons,
            "evidence": asdict(self.evidence),
        }


def allowed_failure(confidence: float) -> float:
    """1 - confidence, checked."""
    return 1 - open_unit("confidence", confidence)


# What a bound is: it tests a claimed curve, and says which epsilons the evidence refutes.

Evidence = TypeVar("Evidence", contravariant=True)
Counts = TypeVar("Counts", ErrorCounts, GuessCounts)


class Bound(Protocol[Evidence]):
    """A bound whose evidence is counts; every answer is valid for evidence not chosen by its own result."""

    @property
    def method(self) -> Method: ...

    @property
    def family(self) -> CurveFamily: ...

    def p_value(self, counts: Evidence, claim: TradeOff) -> float:
        """At most u with probability at most u, for every u, if the claim is true."""
        ...

    def refutes(self, counts: Evidence, claim: TradeOff, confidence: float = CONFIDENCE) -> bool:
        """True with probability at most 1 - confidence if the claim is true."""
        ...

    def lower_bound(self, counts: Evidence, delta: float, confidence: float = CONFIDENCE) -> LowerBound:
        """Above the true epsilon at `delta` with probability at most 1 - confidence."""
        ...


RepeatedRunsBound = Bound[ErrorCounts]
OneRunBound = Bound[GuessCounts]


def bound_of_parameter(
    bound: Bound[Counts], parameter: float, counts: Counts, delta: float, confidence: float
) -> LowerBound:
    """The answer for the largest refuted parameter of the bound's family: an epsilon, or a Gaussian's mu."""
    if bound.family is CurveFamily.EPSILON_DELTA:
        return LowerBound(parameter, delta, confidence, bound.method, bound.family, counts)
    epsilon = gaussian_epsilon_interval(parameter, parameter, delta).lower
    return LowerBound(epsilon, delta, confidence, bound.method, bound.family, counts, parameter)


# Choosing a threshold, or how many guesses count (docs/theorems/audit-bounds.md, "Choosing a threshold").


def bound_over(
    method: Bound[Counts], declared: Sequence[Counts], delta: float, confidence: float = CONFIDENCE
) -> LowerBound:
    """The best bound over counts at thresholds (or numbers of guesses) that were declared beforehand.

    Guarantee: each of K counts is tested at (1 - confidence) / K, so the largest bound holds at `confidence` whatever
    their dependence (Bonferroni). One declared value costs nothing.
    """
    _check_declared(declared)
    share = 1 - allowed_failure(confidence) / len(declared)
    best = max((method.lower_bound(counts, delta, share) for counts in declared), key=lambda bound: bound.epsilon)
    selection = Selection.FIXED if len(declared) == 1 else Selection.BONFERRONI
    return best.selected_by(selection, len(declared), confidence)


def p_value_over(method: Bound[Counts], declared: Sequence[Counts], claim: TradeOff) -> float:
    """The p-value of a claimed curve over counts declared beforehand: K times the smallest of K."""
    _check_declared(declared)
    return min(1.0, len(declared) * min(method.p_value(counts, claim) for counts in declared))


def _check_declared(declared: Sequence[object]) -> None:
    if not declared:
        raise InvalidInput("declared", 0, "must hold at least one count", "declare a threshold or a number of guesses")


# Searches shared by the bounds: the end of the refuted parameters, and the smallest refuting level.

_TOLERANCE = 1e-7
_FIRST_LOG_STEP = 2.0
_LOG_TOLERANCE = 1e-6
_LEAST_LOG_LEVEL = -600.0
_MOST = 450.0


def refuted_up_to(refutes: Callable[[float], bool]) -> float:
    """The largest parameter found refuted, 0 if none; `refutes` must turn from true to false once.

    The refuted end of the last bracket is returned, so the answer is never above the exact one.
    """
    if not refutes(0.0):
        return 0.0
    low, high = 0.0, 1.0
    # Double the step until one end is refuted and the other is not, then halve between them.
    while refutes(high):
        low, high = high, 2 * high
        if high > _MOST:
            return low
    while high - low > _TOLERANCE * max(1.0, low):
        middle = (low + high) / 2
        if refutes(middle):
            low = middle
        else:
            high = middle
    return low


def smallest_level(refutes_at: Callable[[float], bool]) -> float:
    """The smallest level in (0, 1) that refutes, 1 if none: a p-value, rounded up.

    `refutes_at` must turn from false to true once as the level grows.
    """
    if not refutes_at(1 - 1e-9):
        return 1.0
    low, high = -_FIRST_LOG_STEP, 0.0
    # The same in the logarithm of the level, downwards.
    while refutes_at(math.exp(low)):
        low, high = 2 * low, low
        if low < _LEAST_LOG_LEVEL:
            return math.exp(high)
    while high - low > _LOG_TOLERANCE:
        middle = (low + high) / 2
        if refutes_at(math.exp(middle)):
            high = middle
        else:
            low = middle
    return math.exp(high)

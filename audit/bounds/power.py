"""How likely an audit of a given size and strength would have been to refute a claim.

A claim that was not refuted is evidence only if a leak would have been seen. Power is computed for a stated
strength of the attack: measured on a control without noise, or assumed perfect (error rates 0, success 1). Below
`CONCLUSIVE` an audit that refutes nothing is inconclusive; it never "passes" because the attack was weak.
"""

from __future__ import annotations

from dataclasses import dataclass

from audit.bounds.binomial import at_least, at_most, usual_range
from audit.bounds.e_process import EProcess, crossing_probability, single_promise
from audit.bounds.lower_bound import ErrorCounts, GuessCounts, OneRunBound, RepeatedRunsBound, allowed_failure
from audit.bounds.mechanism import MechanismOneRun
from audit.bounds.one_run import FDPOneRun, OneRun
from audit.bounds.repeated_runs import ClopperPearson, JointExact
from audit.bounds.trade_off import MOST_EPSILON, TradeOff, curve_at
from audit.settings import CONFIDENCE
from calibrate.errors import InvalidInput, UnsupportedCombination, count

CONCLUSIVE = 0.5
"""Below this power at the claimed epsilon an audit that refutes nothing is inconclusive."""
_COLUMNS = 40
_CUT = 9.0


@dataclass(frozen=True)
class RepeatedDesign:
    """This many runs of each kind, and the error rates the attack has when there is a leak to be seen."""

    runs_without: int
    runs_with: int
    false_positive_rate: float
    false_negative_rate: float

    def __post_init__(self) -> None:
        count("runs without", self.runs_without)
        count("runs with", self.runs_with)
        _check_share("false-positive rate", self.false_positive_rate)
        _check_share("false-negative rate", self.false_negative_rate)


@dataclass(frozen=True)
class OneRunDesign:
    """This many coins and guesses, and how often a guess is right when there is a leak to be seen."""

    coins: int
    guesses: int
    success_rate: float
    choices: int = 2

    def __post_init__(self) -> None:
        GuessCounts(self.coins, self.guesses, 0, self.choices)
        _check_share("success rate", self.success_rate)


def power_at(
    epsilon_claimed: float,
    delta: float,
    method: RepeatedRunsBound | OneRunBound | EProcess,
    design: RepeatedDesign | OneRunDesign,
    confidence: float = CONFIDENCE,
    comparisons: int = 1,
) -> float:
    """The probability that the method's lower bound would exceed the claimed epsilon; none does beyond MOST_EPSILON."""
    if epsilon_claimed > MOST_EPSILON:
        return 0.0
    claim = curve_at(method.family, epsilon_claimed, delta)
    return power_against(claim, method, design, confidence, comparisons)


def power_against(
    claim: TradeOff,
    method: RepeatedRunsBound | OneRunBound | EProcess,
    design: RepeatedDesign | OneRunDesign,
    confidence: float = CONFIDENCE,
    comparisons: int = 1,
) -> float:
    """The probability that the method would refute the claimed curve.

    With `comparisons` > 1, of one of this many Bonferroni tests: a lower bound for the power of all of them.
    """
    failure = allowed_failure(confidence) / count("comparisons", comparisons)
    if isinstance(design, RepeatedDesign) and isinstance(method, ClopperPearson | JointExact):
        return _repeated_power(claim, method, design, 1 - failure)
    if isinstance(design, OneRunDesign) and isinstance(method, OneRun | FDPOneRun | MechanismOneRun):
        return _one_run_power(claim, method, design, 1 - failure)
    if isinstance(design, OneRunDesign) and isinstance(method, EProcess):
        promise = single_promise(claim)
        return crossing_probability(
            method, promise, design.coins, design.guesses, design.choices, design.success_rate, failure
        )
    raise UnsupportedCombination(
        f"{type(method).__name__} with a {type(design).__name__}",
        "the method does not see such evidence",
        "use RepeatedDesign for repeated runs and OneRunDesign for coins",
    )


def _one_run_power(claim: TradeOff, method: OneRunBound, design: OneRunDesign, confidence: float) -> float:
    """P[at least the critical number right]: p-values fall as more guesses are right."""

    def refuted(correct: int) -> bool:
        counts = GuessCounts(design.coins, design.guesses, correct, design.choices)
        return method.refutes(counts, claim, confidence)

    low, high = 0, design.guesses
    if not refuted(high):
        return 0.0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return at_least(high, design.guesses, 1 - design.success_rate)


def _repeated_power(claim: TradeOff, method: RepeatedRunsBound, design: RepeatedDesign, confidence: float) -> float:
    """A lower bound of the power, within one or two percent (the boxes: within 1e-3).

    The false positives are grouped into columns and each column is judged at its worst count, for refutation
    gets harder as errors grow; counts in the outermost 3e-4 of their distribution are given up.
    """
    trials, rate = design.runs_without, design.false_positive_rate
    start, last = usual_range(trials, rate, rate, _CUT)
    columns = _COLUMNS if isinstance(method, JointExact) else trials + 1
    width = -(-(last - start + 1) // columns)
    power = 0.0
    reached = design.runs_with
    while start <= last and reached >= 0:
        worst = min(start + width - 1, last)
        reached = _most_negatives(claim, method, design, worst, reached, confidence)
        column = at_most(worst, trials, rate) - at_most(start - 1, trials, rate)
        power += column * at_most(reached, design.runs_with, design.false_negative_rate)
        start = worst + 1
    return power


def _most_negatives(
    claim: TradeOff, method: RepeatedRunsBound, design: RepeatedDesign, positives: int, at_best: int, confidence: float
) -> int:
    """The most false negatives, at most `at_best` and in their usual range, that still refute; -1 if none."""

    def refuted(negatives: int) -> bool:
        counts = ErrorCounts(positives, design.runs_without, negatives, design.runs_with)
        return method.refutes(counts, claim, confidence)

    rate = design.false_negative_rate
    least, most = usual_range(design.runs_with, rate, rate, _CUT)
    high, step = min(most, at_best), 1
    if high < least:
        return -1
    if refuted(high):
        return high
    # The answer is often close to the last column's, so walk down from there before halving.
    while high - step >= least and not refuted(high - step):
        high, step = high - step, 2 * step
    low = high - step
    if low < least:
        if not refuted(least):
            return -1
        low = least
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _check_share(argument: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidInput(argument, value, "must lie in [0, 1]", "give a probability")

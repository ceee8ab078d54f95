"""From ranked guesses to a bound, with the choice of how many guesses count inside the error.

A number fixed beforehand, a declared grid with Bonferroni's correction, or a number chosen on some of several
independent runs and used on the others. The e-process needs no such number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from audit.bounds.guesses import RankedGuesses, counts_at
from audit.bounds.lower_bound import LowerBound, Selection, allowed_failure
from audit.bounds.methods import OneRunBound
from audit.bounds.trade_off import TradeOff
from calibrate.errors import InvalidInput
from calibrate.validation import count

Runs = tuple[RankedGuesses, ...]


@dataclass(frozen=True)
class FixedGuesses:
    """The strongest `per_run` guesses of every run, a number fixed before the coins were seen."""

    per_run: int

    def __post_init__(self) -> None:
        count("guesses per run", self.per_run)


@dataclass(frozen=True)
class GuessGrid:
    """Several numbers declared beforehand; each is tested at its share of the error."""

    per_run: tuple[int, ...]

    def __post_init__(self) -> None:
        _check_candidates(self.per_run)


@dataclass(frozen=True)
class SplitGuesses:
    """The number is chosen on the first `choosing_runs` independent runs and used on the others."""

    candidates: tuple[int, ...]
    choosing_runs: int

    def __post_init__(self) -> None:
        _check_candidates(self.candidates)
        count("choosing runs", self.choosing_runs)


GuessRule = FixedGuesses | GuessGrid | SplitGuesses


def bound_from_guesses(
    method: OneRunBound, rule: GuessRule, runs: Runs, delta: float, confidence: float = 0.95
) -> LowerBound:
    """The lower bound at `confidence`, the choice of the number of guesses included.

    Guarantee: docs/theorems/audit-bounds.md, "Choosing a threshold".
    """
    match rule:
        case FixedGuesses(per_run):
            return method.lower_bound(counts_at(runs, per_run), delta, confidence)
        case GuessGrid(candidates):
            share = 1 - allowed_failure(confidence) / len(candidates)
            bounds = [method.lower_bound(counts_at(runs, number), delta, share) for number in candidates]
            best = max(bounds, key=lambda bound: bound.epsilon)
            return best.selected_by(Selection.BONFERRONI, len(candidates), confidence)
        case SplitGuesses():
            number, rest = _chosen(method, rule, runs, delta, confidence)
            bound = method.lower_bound(counts_at(rest, number), delta, confidence)
            return bound.selected_by(Selection.SPLIT, 1, confidence)
        case _:
            assert_never(rule)


def p_value_from_guesses(
    method: OneRunBound, rule: GuessRule, runs: Runs, claim: TradeOff, delta: float, confidence: float = 0.95
) -> float:
    """The p-value of a claimed curve, the choice included; delta and confidence only steer a split's choice."""
    match rule:
        case FixedGuesses(per_run):
            return method.p_value(counts_at(runs, per_run), claim)
        case GuessGrid(candidates):
            smallest = min(method.p_value(counts_at(runs, number), claim) for number in candidates)
            return min(1.0, len(candidates) * smallest)
        case SplitGuesses():
            number, rest = _chosen(method, rule, runs, delta, confidence)
            return method.p_value(counts_at(rest, number), claim)
        case _:
            assert_never(rule)


def _chosen(
    method: OneRunBound, rule: SplitGuesses, runs: Runs, delta: float, confidence: float
) -> tuple[int, Runs]:
    """The candidate with the largest bound on the choosing runs (the largest number if none has any)."""
    if rule.choosing_runs >= len(runs):
        raise InvalidInput(
            "choosing runs",
            rule.choosing_runs,
            f"must be fewer than the {len(runs)} runs",
            "keep some to bound",
        )
    choosing, rest = runs[: rule.choosing_runs], runs[rule.choosing_runs :]
    merits = [
        (method.lower_bound(counts_at(choosing, number), delta, confidence).epsilon, number)
        for number in rule.candidates
    ]
    return max(merits)[1], rest


def _check_candidates(numbers: tuple[int, ...]) -> None:
    if not isinstance(numbers, tuple) or not numbers:
        raise InvalidInput("guesses per run", numbers, "must be a non-empty tuple", "declare at least one")
    for number in numbers:
        count("guesses per run", number)

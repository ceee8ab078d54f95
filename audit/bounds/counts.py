"""What an attack did, as whole numbers: the only thing a bound sees."""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.errors import InvalidInput
from calibrate.validation import count


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


@dataclass(frozen=True)
class GuessCounts:
    """Guesses about independent uniform coins with `choices` sides, over one run or several pooled runs.

    `coins` counts every coin that was tossed, `guesses` those the attack was to guess (a number fixed
    before the coins were seen; abstaining inside it counts as wrong), `correct` the right ones.
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

"""Guesses about coins, strongest first, and how many of them count.

The order may depend on anything the attack saw, never on the coins. How many guesses count must be fixed,
declared as a grid, or learnt from other runs; picking the number that looks best afterwards is not offered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from audit.bounds.lower_bound import GuessCounts
from calibrate.errors import InvalidInput, count


@dataclass(frozen=True, eq=False)
class RankedGuesses:
    """One guess for every coin of one run: how strong, and whether it was right."""

    strength: NDArray[np.float64]
    correct: NDArray[np.bool_]
    choices: int = 2

    def __post_init__(self) -> None:
        count("choices", self.choices, least=2)
        if self.strength.ndim != 1 or self.strength.shape != self.correct.shape or not len(self.strength):
            raise InvalidInput(
                "guesses",
                (self.strength.shape, self.correct.shape),
                "must be two arrays of one equal, positive length",
                "give one strength and one right-or-wrong per coin",
            )
        if self.correct.dtype != np.bool_:
            raise InvalidInput("correct", self.correct.dtype, "must be an array of true and false", "compare first")
        if not np.isfinite(self.strength).all():
            raise InvalidInput("strength", "NaN or infinite", "must be finite", "drop or fix such scores")

    @classmethod
    def from_scores(cls, scores: ArrayLike, coins: ArrayLike) -> RankedGuesses:
        """Two-sided coins: guess 1 where the score is positive, 0 elsewhere; strength is its size."""
        values = np.asarray(scores, dtype=np.float64)
        truth = np.asarray(coins)
        if not np.isin(truth, (0, 1)).all():
            raise InvalidInput("coins", "other values", "must be 0 or 1", "encode the two sides as 0 and 1")
        return cls(np.abs(values), (values > 0) == (truth == 1))

    @classmethod
    def from_log_likelihoods(cls, log_likelihoods: ArrayLike, coins: ArrayLike) -> RankedGuesses:
        """Coins with k sides: an (m, k) table; guess the largest, strength is its lead over the next."""
        table = np.asarray(log_likelihoods, dtype=np.float64)
        truth = np.asarray(coins)
        if table.ndim != 2 or table.shape[1] < 2 or not np.isin(truth, np.arange(table.shape[1])).all():
            raise InvalidInput(
                "log likelihoods", table.shape, "must be (coins, sides) with coins in 0 .. sides - 1", "check both"
            )
        ordered = np.sort(table, axis=1)
        return cls(ordered[:, -1] - ordered[:, -2], np.argmax(table, axis=1) == truth, table.shape[1])

    @property
    def coins(self) -> int:
        return len(self.strength)

    def ordered(self) -> NDArray[np.bool_]:
        """Right or wrong, strongest guess first; ties in the order of the coins."""
        return self.correct[np.argsort(-self.strength, kind="stable")]


def counts_at(runs: tuple[RankedGuesses, ...], per_run: int) -> GuessCounts:
    """The `per_run` strongest guesses of each run, pooled."""
    check_runs(runs)
    count("guesses per run", per_run)
    least = min(run.coins for run in runs)
    if per_run > least:
        raise InvalidInput("guesses per run", per_run, f"must be at most the {least} coins of a run", "guess fewer")
    correct = sum(int(run.ordered()[:per_run].sum()) for run in runs)
    return GuessCounts(sum(run.coins for run in runs), per_run * len(runs), correct, runs[0].choices)


def share_right(runs: tuple[RankedGuesses, ...], per_run: int) -> float:
    """The share of right ones among the `per_run` strongest guesses of each run."""
    counts = counts_at(runs, per_run)
    return counts.correct / counts.guesses


def pooled_order(runs: tuple[RankedGuesses, ...]) -> NDArray[np.bool_]:
    """Right or wrong over all runs, strongest guess first."""
    check_runs(runs)
    strength = np.concatenate([run.strength for run in runs])
    correct = np.concatenate([run.correct for run in runs])
    return correct[np.argsort(-strength, kind="stable")]


def check_runs(runs: tuple[RankedGuesses, ...]) -> None:
    """Refuse guesses that cannot be counted together: none at all, or coins with unequally many sides."""
    if not isinstance(runs, tuple) or not runs:
        raise InvalidInput("runs", runs, "must be a non-empty tuple of RankedGuesses", "give at least one run")
    if len({run.choices for run in runs}) != 1:
        raise InvalidInput("runs", "mixed", "must all have coins with equally many sides", "bound them separately")

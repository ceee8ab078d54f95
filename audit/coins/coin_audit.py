"""The sensitive-attribute audit: fair coins as attributes, guesses from the transcript, a valid lower bound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from audit.bounds import OneRun, OneRunDesign, RankedGuesses, bound_over, counts_at, power_at
from audit.coins.coin_decoder import Decoded, decode
from audit.report.results import Attack
from audit.runs.rerun import CoinRun, coin_runs
from audit.verdict import is_at_ceiling
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import RandomizedCategory
from privfair.run.prepare import Sites

_SHARES = (0.012, 0.025, 0.05)
"""Which shares of all coins are guessed, declared before anything is run; Bonferroni over them is in the bound."""


def coin_audit(
    plan: Path,
    document: BudgetDocument,
    epsilon: float,
    delta: float,
    *,
    runs: int,
    seed: int,
    confidence: float,
    progress: Callable[[int], None] | None = None,
    sites: Sites | None = None,
) -> Attack:
    """Rerun the plan on coins and bound epsilon from below by what the transcripts betray.

    Guarantee: with probability at least `confidence` over coins and noise, the bound does not exceed the true epsilon
    of one rerun at `delta` (docs/theorems/audit-bounds.md, one run; runs are pooled as independent coins).
    """
    guesses, controls = [], []
    for run in coin_runs(plan, document, runs, seed, progress, sites):
        decoded = decode(run)
        guesses.append(_rank_guesses(run, decoded, noisy=True))
        controls.append(_rank_guesses(run, decoded, noisy=False))
    coins = len(guesses[0].strength)
    grid = _grid(document, coins)
    method = OneRun()
    bound = bound_over(method, [counts_at(tuple(guesses), number) for number in grid], delta, confidence)
    design = OneRunDesign(coins * runs, grid[-1] * runs, _success(controls, grid[-1]))
    power = power_at(epsilon, delta, method, design, confidence, len(grid))
    right = _success(guesses, grid[-1])
    text = (
        f"{coins} coins in each of {runs} rerun(s); of the {grid[-1]} firmest guesses per run "
        f"{100 * right:.1f}% were right ({100 * design.success_rate:.1f}% without noise)"
    )
    return Attack(
        name="attribute coins against the transcript",
        bound=bound,
        power=power,
        evidence=text,
        right=right,
        right_without_noise=design.success_rate,
        at_ceiling=is_at_ceiling(right, design.success_rate, grid[-1] * runs),
    )


def _grid(document: BudgetDocument, coins: int) -> tuple[int, ...]:
    """Randomised responses are all equally firm, so all are guessed; else the firmest few."""
    if any(isinstance(value, RandomizedCategory) for value in document.releases):
        return (coins,)
    return tuple(max(1, round(share * coins)) for share in _SHARES)


def _rank_guesses(run: CoinRun, decoded: dict[str, Decoded], *, noisy: bool) -> RankedGuesses:
    parties = sorted(run.coins)
    scores = [decoded[party].scores if noisy else decoded[party].without_noise for party in parties]
    coins = [run.coins[party] for party in parties]
    return RankedGuesses.from_scores(np.concatenate(scores), np.concatenate(coins))


def _success(runs: list[RankedGuesses], guesses: int) -> float:
    firmest = [run.correct[np.argsort(-run.strength, kind="stable")[:guesses]] for run in runs]
    return float(np.concatenate(firmest).mean())

"""The sensitive-attribute audit: fair coins as attributes, guesses of them from the transcript, a valid lower bound.

Whatever a decoder does, the bounds are valid: it is post-processing of what was published. A better decoder only
finds more. SteFFLe's `h_W` is linear in the coins,

    message = middle + sum over the batch of (coin - 1/2) * difference_i + noise,

and `middle` is the same message with every coin in doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve
from torch.nn.functional import one_hot

from audit.bounds import OneRun, OneRunDesign, RankedGuesses, bound_over, counts_at, power_at, share_right
from audit.report.results import Attack, Promise
from audit.runs.evidence import RunEvidence
from audit.runs.rerun import CoinRun, coin_runs
from audit.verdict import is_at_ceiling
from calibrate.errors import UnsupportedCombination
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import GaussianNoise, RandomizedCategory
from privfair.algorithms.steffle import H_W, Steffle
from privfair.fairness import fermi

_SHARES = (0.012, 0.025, 0.05)
"""Which shares of all coins are guessed, declared before anything is run; Bonferroni over them is in the bound."""


def coin_audit(
    evidence: RunEvidence,
    promise: Promise,
    *,
    runs: int,
    seed: int,
    confidence: float,
    progress: Callable[[int], None] | None = None,
) -> tuple[Attack, ...]:
    """Rerun the plan on coins and bound epsilon from below by what the transcripts reveal.

    Guarantee: with probability at least `confidence` over coins and noise, the bound does not exceed the true epsilon
    of one rerun at the promise's delta (docs/theorems/audit-bounds.md, one run; runs are pooled as independent coins).
    """
    guesses, controls = [], []
    for run in coin_runs(evidence, runs, seed, progress):
        decoded = decode(run)
        guesses.append(_rank_guesses(run, decoded, noisy=True))
        controls.append(_rank_guesses(run, decoded, noisy=False))
    coins = len(guesses[0].strength)
    grid = _grid(evidence.document, coins)
    method = OneRun()
    bound = bound_over(method, [counts_at(tuple(guesses), number) for number in grid], promise.delta, confidence)
    design = OneRunDesign(coins * runs, grid[-1] * runs, share_right(tuple(controls), grid[-1]))
    power = power_at(promise.epsilon, promise.delta, method, design, confidence, len(grid))
    right = share_right(tuple(guesses), grid[-1])
    text = (
        f"{coins} coins in each of {runs} rerun(s); of the {grid[-1]} firmest guesses per run "
        f"{100 * right:.1f}% were right ({100 * design.success_rate:.1f}% without noise)"
    )
    attack = Attack(
        name="attribute coins against the transcript",
        bound=bound,
        power=power,
        evidence=text,
        right=right,
        right_without_noise=design.success_rate,
        at_ceiling=is_at_ceiling(right, design.success_rate, grid[-1] * runs),
    )
    return (attack,)


def _grid(document: BudgetDocument, coins: int) -> tuple[int, ...]:
    """Randomised responses are all equally firm, so all are guessed; else the most confident few."""
    if any(isinstance(value, RandomizedCategory) for value in document.releases):
        return (coins,)
    return tuple(max(1, round(share * coins)) for share in _SHARES)


def _rank_guesses(run: CoinRun, decoded: dict[str, Decoded], *, noisy: bool) -> RankedGuesses:
    parties = sorted(run.coins)
    scores = [decoded[party].scores if noisy else decoded[party].without_noise for party in parties]
    coins = [run.coins[party] for party in parties]
    return RankedGuesses.from_scores(np.concatenate(scores), np.concatenate(coins))


Scores = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Decoded:
    """Log-odds that a record's coin is 1, from the transcript and from the same messages without noise."""

    scores: Scores
    without_noise: Scores


def decode(run: CoinRun) -> dict[str, Decoded]:
    """The best guesses this package knows how to make about every silo's coins."""
    require_decodable(run.evidence)
    responses = _responses(run.evidence)
    if responses:
        return {party: _response(run, party, responses[0].name) for party in run.coins}
    assert isinstance(run.evidence.algorithm, Steffle)
    return _steffle(run, run.evidence.algorithm)


def require_decodable(evidence: RunEvidence) -> None:
    """Refuse, before anything is run again, a run whose coins no decoder here can read."""
    if not _responses(evidence) and not isinstance(evidence.algorithm, Steffle):
        raise UnsupportedCombination(
            f"a coin audit of {evidence.document.algorithm}",
            "its promise is not about the sensitive attribute",
            "audit it by canaries",
        )


def _responses(evidence: RunEvidence) -> list[RandomizedCategory]:
    return [value for value in evidence.document.releases if isinstance(value, RandomizedCategory)]


def _response(run: CoinRun, party: str, name: str) -> Decoded:
    """A randomised response is its own best guess; all are equally firm."""
    coins = run.coins[party]
    reported = np.asarray(run.evidence.transcript.value(0, party, name)).ravel()[: len(coins)]
    return Decoded(np.where(reported == 1, 1.0, -1.0), np.where(coins == 1, 1.0, -1.0))


def _steffle(run: CoinRun, algorithm: Steffle) -> dict[str, Decoded]:
    """Gaussian posterior of the coins given every round's h_W, each projected on the direction in which coins act."""
    evidence = run.evidence
    silos = [silo for silo in evidence.silos if silo.name in run.coins]
    seen = {silo.name: _Seen() for silo in silos}
    signed = next(v for v in evidence.document.releases if v.name == H_W and isinstance(v, GaussianNoise))
    for one in evidence.rounds():
        if one.state.frequencies is None or not one.state.warm:
            continue  # the opening round sends no fairness gradients
        for silo in silos:
            batch = evidence.batch(one.round, silo)
            scores = algorithm.model.probabilities(one.state.descent.theta, silo.x[batch]).to(torch.float64)
            block = fermi.block_of(algorithm.options.notion, silo.y[batch], algorithm.options.positive_class)
            middle, clean = _messages(algorithm, one.state, scores, silo.s[batch], block)
            published = np.asarray(evidence.transcript.value(one.round, silo.name, H_W))
            for number in range(algorithm.blocks):
                inside = (block == number).nonzero()[:, 0]
                direction = _direction(one.state.frequencies[number])
                length = float(np.linalg.norm(direction))
                seen[silo.name].add(
                    batch[inside].numpy(),
                    2.0 * length / algorithm.bounds.batch_size * scores[inside].numpy().T,
                    direction @ (published - middle)[number] / length,
                    direction @ (clean - middle)[number] / length,
                )
    return {silo.name: seen[silo.name].decoded(len(silo), signed.sigma) for silo in silos}


class _Seen:
    """What one silo's rounds told, collected: each round adds one equation a block and class about its coins."""

    def __init__(self) -> None:
        self._columns: list[NDArray[np.int64]] = []
        self._weights: list[NDArray[np.float64]] = []
        self._noisy: list[NDArray[np.float64]] = []
        self._clean: list[NDArray[np.float64]] = []

    def add(
        self,
        batch: NDArray[np.int64],
        weights: NDArray[np.float64],
        noisy: NDArray[np.float64],
        clean: NDArray[np.float64],
    ) -> None:
        for row in weights:
            self._columns.append(batch)
            self._weights.append(row)
        self._noisy.append(noisy)
        self._clean.append(clean)

    def decoded(self, records: int, deviation: float) -> Decoded:
        starts = np.cumsum([0, *(len(row) for row in self._columns)])
        matrix = sparse.csr_matrix(
            (np.concatenate(self._weights), np.concatenate(self._columns), starts), shape=(len(starts) - 1, records)
        )
        observed, quiet = np.concatenate(self._noisy), np.concatenate(self._clean)
        fitted = fitted_deviation(matrix, observed, deviation)
        return Decoded(log_odds(matrix, observed, fitted), log_odds(matrix, quiet, deviation / 100))


def log_odds(matrix: sparse.csr_matrix, observed: Scores, deviation: float) -> Scores:
    """Approximate log-odds of each coin under observed = matrix (coin - 1/2) + noise, other coins being unknown.

    Coins are given the Gaussian prior of variance 1/4; the posterior mean is exact for it, and is turned into odds
    by the precision each coin is seen with.
    """
    spread = (matrix @ matrix.T).toarray() / 4
    spread[np.diag_indices_from(spread)] += deviation**2
    # Posterior mean of b - 1/2 under the prior: M^T (M M^T / 4 + s^2)^-1 y / 4.
    mean = matrix.T @ cho_solve(cho_factor(spread), observed) / 4
    interference = np.asarray(matrix.power(2).sum(axis=1)).ravel() / 4 + deviation**2
    precision = np.asarray(matrix.power(2).T @ (1 / interference)).ravel()
    return np.asarray(mean * (4 + precision))


def fitted_deviation(matrix: sparse.csr_matrix, observed: Scores, signed: float) -> float:
    """The noise level that explains the messages best: below the signed one if noise is missing."""
    # E |y|^2 = sum of weights^2 / 4 (coins) + rows s^2 (noise), solved for s.
    signal = float(np.asarray(matrix.power(2).sum()).item()) / 4
    left = float(np.square(observed).sum()) - signal
    return float(np.sqrt(np.clip(left / len(observed), (signed / 1000) ** 2, signed**2)))


def _direction(frequencies: torch.Tensor) -> NDArray[np.float64]:
    """Replacing group 0 by 1 moves h_W along this vector over groups, times twice the class probabilities over m."""
    shares = frequencies.numpy()
    direction = np.zeros(len(shares))
    direction[0], direction[1] = -1 / np.sqrt(shares[0]), 1 / np.sqrt(shares[1])
    return direction


def _messages(
    algorithm: Steffle, state: Any, scores: torch.Tensor, s: torch.Tensor, block: torch.Tensor
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """h_W without noise: with every coin in doubt, and with the coins as they fell."""
    in_doubt = torch.zeros(len(s), algorithm.groups, dtype=torch.float64)
    in_doubt[:, :2] = 0.5
    found = []
    for membership in (in_doubt, one_hot(s, algorithm.groups).to(torch.float64)):
        joint = fermi.joint_distribution(scores, membership, block, algorithm.blocks)
        gradient = fermi.weight_gradient(algorithm.w(state), joint, joint.sum(dim=1), state.frequencies)
        found.append(gradient.numpy() / algorithm.bounds.batch_size)
    return found[0], found[1]

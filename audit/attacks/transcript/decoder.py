"""From a transcript to guesses of the coins.

Whatever a decoder does, the bounds are valid: it is post-processing of what was published. A better decoder only
finds more. SteFFLe's `h_W` is linear in the coins,

    message = middle + sum over the batch of (coin - 1/2) * difference_i + noise,

and `middle` is the mean of the production contribution on all-zero and on all-one coins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import cho_factor, cho_solve

from audit.attacks.transcript.rerun import CoinRun, with_coins
from audit.evidence import RunEvidence
from calibrate.errors import UnsupportedCombination
from calibrate.manifest.mechanism import GaussianNoise, RandomizedCategory
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.steffle import H_W, Steffle
from privfair.fairness.independence import Independence

Scores = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Decoded:
    """Log-odds that a record's coin is 1, from the transcript and from the same messages without noise."""

    scores: Scores
    without_noise: Scores


def decode(run: CoinRun, party: str) -> Decoded:
    """The best guesses this package knows how to make about one silo's coins."""
    evidence = run.evidence
    silo = next(one for one in evidence.silos if one.name == party)
    responses = [value for value in evidence.document.releases if isinstance(value, RandomizedCategory)]
    if responses:
        reported = evidence.transcript.value(0, party, responses[0].name)
        odds = np.where(np.asarray(reported) == 1, 1.0, -1.0)
        return Decoded(odds, np.where(run.coins[party] == 1, 1.0, -1.0))
    if isinstance(evidence.algorithm, Steffle):
        return _steffle(evidence, evidence.algorithm, silo)
    raise UnsupportedCombination(
        f"a coin audit of {evidence.document.algorithm}",
        "its promise is not about the sensitive attribute",
        "audit it by membership canaries",
    )


def _steffle(evidence: RunEvidence, algorithm: Steffle, silo: SiloTensors) -> Decoded:
    """Gaussian posterior of the coins given every round's h_W, each projected on the direction in which coins act."""
    if algorithm.options.fairness is not Independence.DEMOGRAPHIC_PARITY:
        raise UnsupportedCombination(
            f"a coin audit of {algorithm.options.fairness.value}",
            "the decoder reads h_W of one block",
            "audit the run with demographic parity",
        )
    signed = next(v for v in evidence.document.releases if v.name == H_W and isinstance(v, GaussianNoise))
    zeros, ones = (with_coins(silo, np.full(len(silo), side)) for side in (0, 1))
    noisy, clean, rows, columns, weights = [], [], [], [], []
    deviation = signed.sigma
    for place, one in enumerate(evidence.rounds()):
        if one.state.frequencies is None:
            continue
        batch = evidence.batch(one.round, silo)
        direction = _direction(one.state.frequencies)
        messages = [_h_w(algorithm, one.state, one.step, version, batch) for version in (zeros, ones, silo)]
        middle = (messages[0] + messages[1]) / 2
        published = np.asarray(evidence.transcript.value(one.round, silo.name, H_W))
        noisy.append(_along(published - middle, direction))
        clean.append(_along(messages[2] - middle, direction))
        deviation = signed.sigma / float(np.linalg.norm(direction))
        scores = algorithm.model.probabilities(one.state.descent.theta, silo.x[batch]).detach().numpy()
        classes = scores.shape[1]
        rows.append(np.repeat(place * classes + np.arange(classes), len(batch)))
        columns.append(np.tile(batch.numpy(), classes))
        weights.append((2.0 / algorithm.bounds.batch_size * scores.T).ravel())
    shape = (max(int(row.max()) for row in rows) + 1, len(silo))
    matrix = sparse.csr_matrix(
        (np.concatenate(weights), (np.concatenate(rows), np.concatenate(columns))), shape=shape
    )
    observed, quiet = np.concatenate(noisy), np.concatenate(clean)
    fitted = fitted_deviation(matrix, observed, deviation)
    return Decoded(log_odds(matrix, observed, fitted), log_odds(matrix, quiet, deviation / 100))


def log_odds(matrix: sparse.csr_matrix, observed: Scores, deviation: float) -> Scores:
    """Approximate log-odds of each coin under observed = matrix (coin - 1/2) + noise, other coins being unknown.

    Coins are given the Gaussian prior of variance 1/4; the posterior mean is exact for it, and is turned into odds
    by the precision each coin is seen with.
    """
    spread = (matrix @ matrix.T).toarray() / 4
    spread[np.diag_indices_from(spread)] += deviation**2
    mean = matrix.T @ cho_solve(cho_factor(spread), observed) / 4
    interference = np.asarray(matrix.power(2).sum(axis=1)).ravel() / 4 + deviation**2
    precision = np.asarray(matrix.power(2).T @ (1 / interference)).ravel()
    return np.asarray(mean * (4 + precision))


def fitted_deviation(matrix: sparse.csr_matrix, observed: Scores, signed: float) -> float:
    """The noise level that explains the messages best: below the signed one if noise is missing."""
    signal = float(np.asarray(matrix.power(2).sum()).item()) / 4
    left = float(np.square(observed).sum()) - signal
    return float(np.sqrt(np.clip(left / len(observed), (signed / 1000) ** 2, signed**2)))


def _direction(frequencies: torch.Tensor) -> NDArray[np.float64]:
    """Replacing group 0 by 1 moves h_W along this vector over groups, times twice the class probabilities over m."""
    shares = frequencies[0].numpy()
    direction = np.zeros(len(shares))
    direction[0], direction[1] = -1 / np.sqrt(shares[0]), 1 / np.sqrt(shares[1])
    return direction


def _along(message: NDArray[np.float64], direction: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(direction @ message[0] / (direction @ direction))


def _h_w(
    algorithm: Steffle, state: Any, step: int, silo: SiloTensors, batch: torch.Tensor
) -> NDArray[np.float64]:
    message = algorithm.contribution(state, step, silo, batch)
    return next(value.values for value in message.noisy if value.name == H_W)

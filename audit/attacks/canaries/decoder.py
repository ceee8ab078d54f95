"""From the messages of several canary runs to log-odds of every coin.

Whatever is done here is post-processing of published values, so the bounds stay valid; it only decides how much is
found. Along a canary's look a round's message is

    backdrop of the round + (level of the side, if the canary took part) + noise,

and with secret batches the likelihood of a side is a mixture over taking part. The backdrop is the same in all runs up
to the noise, so their mean removes it. Noise that repeats (over rounds, or over silos) is removed by differences; the
reading whose fitted noise is smallest is used, which looks at messages only, never at coins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

Floats = NDArray[np.float64]
_LEAST_DEVIATION = 0.02
"""Of the level: below it the fitted noise is not trusted, for rounding and drift remain."""
_CLEARLY_SMALLER = 0.5
_ENOUGH_RUNS = 6
"""From so many runs on their mean is subtracted."""


class Reading(Enum):
    PLAIN = "plain"
    BETWEEN_ROUNDS = "differences between rounds"
    BETWEEN_SILOS = "differences between silos"


@dataclass(frozen=True, eq=False)
class Seen:
    """What all runs show of some canaries: (runs, rounds, canaries, values), and the levels
    (2, rounds, canaries, values).

    `other` is another silo's message of the same round along the same looks; None where there is no other.
    """

    values: Floats
    levels: Floats
    rate: float
    other: Floats | None = None


@dataclass(frozen=True, eq=False)
class Decoder:
    """A score function with its nuisance values fixed: it may be applied to other runs than it was fitted on."""

    reading: Reading
    backdrop: Floats
    """(rounds, canaries, values)"""
    deviation: Floats
    """(canaries, values): the fitted noise, so that a value in which the backdrop drowns all hardly counts."""
    levels: Floats
    rate: float

    @classmethod
    def fitted(cls, seen: Seen) -> Decoder:
        """Backdrop and noise level as the messages themselves show them."""
        candidates = [cls._fitted(seen, Reading.PLAIN)]
        if seen.rate < 0.5:
            candidates.append(cls._fitted(seen, Reading.BETWEEN_ROUNDS))
        if seen.other is not None:
            candidates.append(cls._fitted(seen, Reading.BETWEEN_SILOS))
        plain, best = candidates[0], min(candidates, key=_typical)
        return best if _typical(best) < _CLEARLY_SMALLER * _typical(plain) else plain

    @classmethod
    def _fitted(cls, seen: Seen, reading: Reading) -> Decoder:
        raw = _read(seen, reading)
        expected = seen.rate * seen.levels.mean(axis=0)
        runs = len(raw)
        backdrop = raw.mean(axis=0) - expected if runs >= _ENOUGH_RUNS else np.zeros_like(raw[0])
        centred = raw - backdrop - expected
        freedom = (runs - 1) / runs if runs >= _ENOUGH_RUNS else 1.0
        # How far the coins and taking part scatter a value, noise aside.
        scatter = seen.rate * np.square(seen.levels).mean(axis=0) - np.square(expected)
        variance = np.square(centred).mean(axis=(0, 1)) / freedom - scatter.mean(axis=0)
        least = np.square(_LEAST_DEVIATION * np.abs(seen.levels).max(axis=(0, 1)))
        return cls(reading, backdrop, np.sqrt(np.maximum(variance, least)), seen.levels, seen.rate)

    def scores(self, seen: Seen) -> Floats:
        """(runs, canaries): log-odds that the coin shows 1."""
        values = _read(seen, self.reading) - self.backdrop
        ones, zeros = (self._log_likelihood(values, self.levels[side]) for side in (1, 0))
        return (ones - zeros).sum(axis=1)

    def _log_likelihood(self, values: Floats, level: Floats) -> Floats:
        """Of each round, up to a constant: the canary took part (in all values of it), or it did not."""
        present = (-np.square(values - level) / (2 * np.square(self.deviation))).sum(axis=-1)
        if self.rate >= 1:
            return present
        absent = (-np.square(values) / (2 * np.square(self.deviation))).sum(axis=-1)
        weights = np.array([np.log(self.rate), np.log1p(-self.rate)])
        return np.asarray(logsumexp(np.stack((present + weights[0], absent + weights[1])), axis=0))


def _typical(decoder: Decoder) -> float:
    """The fitted noise of the value that shows a typical canary best."""
    return float(np.median(decoder.deviation.min(axis=-1)))


def _read(seen: Seen, reading: Reading) -> Floats:
    if reading is Reading.BETWEEN_ROUNDS:
        # Most rounds are without the canary, so the run's median is what repeats in all of them.
        return seen.values - np.median(seen.values, axis=1, keepdims=True)
    if reading is Reading.BETWEEN_SILOS:
        assert seen.other is not None
        return seen.values - seen.other
    return seen.values

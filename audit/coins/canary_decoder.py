"""From the messages of several canary runs to log-odds of every coin.

Whatever is done here is post-processing of published values, so the bounds stay valid; it only decides how much is
found. Along a canary's look a round's message is

    background of the round + (level of the side, if the canary took part) + noise,

and with secret batches the likelihood of a side is a mixture over taking part. The background is the same in all runs
up to the noise, so their mean removes it. Noise that repeats (over rounds, or over silos) is removed by differences;
the reading whose fitted noise is smallest is used, which looks at messages only, never at coins.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from calibrate.arrays import Floats
from calibrate.errors import UnsupportedCombination
from calibrate.privacy_unit import Relation

# What a canary is, and what its coin decides.


class CoinMeaning(Enum):
    """What the two sides of a canary's coin are: neighbours in the manifest's own relation."""

    IN_OR_OUT = "in or out"
    """Add-remove: side 1 is the data with the canary, side 0 without it."""
    ONE_OF_TWO = "one of two versions"
    """Replace-one: opposite gradients."""


def coin_meaning(relation: Relation) -> CoinMeaning:
    """The coin whose two sides are neighbours under `relation`; attributes have an audit of their own."""
    match relation:
        case Relation.ADD_REMOVE:
            return CoinMeaning.IN_OR_OUT
        case Relation.REPLACE_ONE:
            return CoinMeaning.ONE_OF_TWO
        case _:
            raise UnsupportedCombination(
                f"canaries under {relation.value}",
                "the record itself is not what is protected",
                "audit it by coins on the attribute",
            )


# Where the data are quiet: directions in which ordinary units move a message least, and how to weigh the others.

_DENSE = 1500
"""Up to this many entries all directions are compared; then random ones orthogonal to the sampled units are taken."""


def quiet_directions(units: Floats, number: int, seed: int) -> Floats:
    """`number` orthonormal rows along which the sampled units (rows of `units`) are smallest in mean square."""
    size = units.shape[1]
    if size <= _DENSE:
        _, vectors = np.linalg.eigh(units.T @ units)
        return np.ascontiguousarray(vectors[:, : min(number, size)].T)
    random = np.random.default_rng(seed)
    drawn = random.normal(size=(min(number, size // 4), size))
    loud, _ = np.linalg.qr(units[: size // 2].T)
    # Orthogonal to the sampled units, then to one another.
    drawn -= (drawn @ loud) @ loud.T
    rows, _ = np.linalg.qr(drawn.T)
    return np.ascontiguousarray(rows.T)


@dataclass(frozen=True, eq=False)
class Interference:
    """What the secret batch of ordinary units adds to the noise: covariance 1 + spread^T spread, in noise units."""

    spread: Floats
    """(sampled units, entries), scaled."""

    @classmethod
    def of(cls, units: Floats, population: int, rate: float) -> Interference:
        """From a sample of units, of a population that takes part with `rate` each."""
        # A sum over Poisson batches has covariance population * rate (1 - rate) * E[u u^T].
        share = np.sqrt(rate * (1 - rate) * population / max(1, len(units)))
        return cls(units * share)

    def with_noise(self, share: float) -> Interference:
        """The same data when only `share` of the noise is there, in units of that noise."""
        return Interference(self.spread / share)

    def weighted(self, signal: Floats) -> Floats:
        """(1 + spread^T spread)^-1 signal, for each row: by Woodbury, so only a small matrix is inverted."""
        small = np.eye(len(self.spread)) + self.spread @ self.spread.T
        return signal - np.linalg.solve(small, self.spread @ signal.T).T @ self.spread


_LEAST_DEVIATION = 0.02
"""Of the level: below it the fitted noise is not trusted, for rounding and drift remain."""
_CLEARLY_SMALLER = 0.5
_LEAST_MOVED = 1e-9
_SELDOM = 0.35
"""Below this rate most rounds are without a given canary."""
_OF_MEDIAN = 1.4826
"""Standard deviation of a normal law next to its median absolute deviation."""
_ENOUGH_RUNS = 6
"""From this many runs on their mean is subtracted."""


class SignalReading(Enum):
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
    coins: NDArray[np.int64] | None = None
    """(runs, canaries), only of runs that are used for fitting and counted nowhere."""
    epoch: int = 0
    """Rounds of an epoch in which a unit takes part exactly once; 0 where it takes part in each round independently."""

    def expected(self) -> Floats:
        """What canaries add on average to each value: by their coins where these are known."""
        if self.coins is None:
            return np.asarray(self.rate * self.levels.mean(axis=0)[None])
        sides = self.coins[:, None, :, None] == 1
        return np.asarray(self.rate * np.where(sides, self.levels[1], self.levels[0]))

    def scatter(self) -> Floats:
        """How far coins (where unknown) and taking part scatter a value, noise aside: its variance."""
        if self.coins is None:
            return np.asarray(self.rate * np.square(self.levels).mean(axis=0)[None] - np.square(self.expected()))
        return np.asarray((1 / self.rate - 1) * np.square(self.expected()))


Views = tuple[Seen, ...]
"""The same messages along different looks, the one for all of the signed noise first."""


@dataclass(frozen=True, eq=False)
class Decoder:
    """A score function with its nuisance values fixed: it may be applied to other runs than it was fitted on."""

    view: int
    reading: SignalReading
    background: Floats
    """(rounds, canaries, values)"""
    deviation: Floats
    """(canaries, values): the fitted noise, so that a value in which the background drowns all barely counts."""
    levels: Floats
    rate: float
    epoch: int = 0

    @classmethod
    def fit(cls, views: Views) -> Decoder:
        """Backdrop and noise level as the messages themselves show them, and the view that shows canaries best."""
        plain = cls._by_moments(0, views[0], SignalReading.PLAIN)
        fit = cls._by_medians if views[0].rate < _SELDOM else cls._by_moments
        others = [fit(view, seen, how) for view, seen in enumerate(views) for how in _readings(seen)]
        best = min(others, key=_typical)
        return best if _typical(best) < _CLEARLY_SMALLER * _typical(plain) else plain

    @classmethod
    def _by_moments(cls, view: int, seen: Seen, reading: SignalReading) -> Decoder:
        """Where noise is much larger than what a coin moves: the mean over runs, and what scatters around it."""
        raw = _read(seen, reading)
        runs = len(raw)
        left = raw - seen.expected()
        background = left.mean(axis=0) if runs >= _ENOUGH_RUNS else np.zeros_like(raw[0])
        freedom = (runs - 1) / runs if runs >= _ENOUGH_RUNS else 1.0
        variance = np.square(left - background).mean(axis=(0, 1)) / freedom - seen.scatter().mean(axis=(0, 1))
        deviation = np.sqrt(np.maximum(variance, np.square(_least_deviation(seen))))
        return cls(view, reading, background, deviation, seen.levels, seen.rate, seen.epoch)

    @classmethod
    def _by_medians(cls, view: int, seen: Seen, reading: SignalReading) -> Decoder:
        """Where noise is small: a canary seldom takes part, so the median over runs is the background without it."""
        raw = _read(seen, reading)
        runs = len(raw)
        background = np.median(raw, axis=0) if runs >= _ENOUGH_RUNS else np.zeros_like(raw[0])
        spread = np.median(np.abs(raw - background), axis=(0, 1)) * _OF_MEDIAN
        deviation = np.maximum(spread, _least_deviation(seen))
        return cls(view, reading, background, deviation, seen.levels, seen.rate, seen.epoch)

    def scores(self, views: Views) -> Floats:
        """(runs, canaries): log-odds that the coin shows 1."""
        seen = views[self.view]
        values = _read(seen, self.reading) - self.background
        likelihood = self._epochs_log_likelihood if self.epoch else self._log_likelihood
        ones, zeros = (likelihood(values, self.levels[side]) for side in (1, 0))
        return np.asarray((ones - zeros).sum(axis=1))

    def _epochs_log_likelihood(self, values: Floats, level: Floats) -> Floats:
        """Of each epoch, next to that of no one's part: in one of its rounds, none of them known (random allocation).

        The sum in the logarithm is S of docs/theorems/sampling.md#random-allocation, equation 1: no decoder is better.
        """
        # log N(v; level) - log N(v; 0) = (v^2 - (v - level)^2) / (2 s^2).
        moved = np.square(values) - np.square(values - level)
        gain = (moved / (2 * np.square(self.deviation))).sum(axis=-1)
        epochs = [gain[:, start : start + self.epoch] for start in range(0, gain.shape[1], self.epoch)]
        with np.errstate(divide="ignore"):
            rest = [np.log(self.epoch - made.shape[1]) for made in epochs]
        sums = [np.logaddexp(logsumexp(made, axis=1), left) for made, left in zip(epochs, rest, strict=True)]
        return np.asarray(np.stack(sums, axis=1) - np.log(self.epoch))

    def _log_likelihood(self, values: Floats, level: Floats) -> Floats:
        """Of each round, up to a constant: the canary took part (in all values of it), or it did not."""
        present = (-np.square(values - level) / (2 * np.square(self.deviation))).sum(axis=-1)
        if self.rate >= 1:
            return np.asarray(present)
        absent = (-np.square(values) / (2 * np.square(self.deviation))).sum(axis=-1)
        weights = np.array([np.log(self.rate), np.log1p(-self.rate)])
        return np.asarray(logsumexp(np.stack((present + weights[0], absent + weights[1])), axis=0))


def _readings(seen: Seen) -> tuple[SignalReading, ...]:
    between_rounds = (SignalReading.BETWEEN_ROUNDS,) if seen.rate < _SELDOM else ()
    between_silos = (SignalReading.BETWEEN_SILOS,) if seen.other is not None else ()
    return (SignalReading.PLAIN, *between_rounds, *between_silos)


def _least_deviation(seen: Seen) -> Floats:
    """Above zero too where canaries move nothing, as in values that were not sent."""
    return np.asarray(np.maximum(_LEAST_DEVIATION * np.abs(seen.levels).max(axis=(0, 1)), _LEAST_MOVED))


def _typical(decoder: Decoder) -> float:
    """The fitted noise next to what the coin moves, in the value that shows a typical canary best."""
    moved = np.abs(decoder.levels[1] - decoder.levels[0]).mean(axis=0)
    return float(np.median((decoder.deviation / np.maximum(moved, _LEAST_MOVED)).min(axis=-1)))


def _read(seen: Seen, reading: SignalReading) -> Floats:
    if reading is SignalReading.BETWEEN_ROUNDS:
        # Most rounds are without the canary, so the run's median is what repeats in all of them.
        return seen.values - np.median(seen.values, axis=1, keepdims=True)
    if reading is SignalReading.BETWEEN_SILOS:
        assert seen.other is not None
        return seen.values - seen.other
    return seen.values

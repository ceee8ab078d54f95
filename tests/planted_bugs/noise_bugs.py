"""Too little noise, noise in the wrong place, and noise that repeats."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np

from privfair.contribution import RecentRounds
from privfair.gate import Gate
from privfair.noise import ExactNoise
from privfair.noise.source import NoiseScale
from tests.planted_bugs.bug import Bug, Caught
from tests.planted_bugs.workshop import Engine

_RIGHT = ExactNoise.gaussian
_SILOS = 3


def _scaled(scale: Callable[[float], float]) -> Callable[[], AbstractContextManager[Any]]:
    def gaussian(self: Any, values: Any, sigma: Any) -> Any:
        return _RIGHT(self, values, scale(float(sigma)))

    return lambda: patch.object(ExactNoise, "gaussian", gaussian)


def _none() -> AbstractContextManager[Any]:
    return patch.object(ExactNoise, "gaussian", lambda self, values, sigma: np.array(values, dtype=np.float64))


def _before_clipping() -> AbstractContextManager[Any]:
    """The noisy message is scaled back to the clipping norm, here 1."""

    def gaussian(self: Any, values: Any, sigma: Any) -> Any:
        noisy = _RIGHT(self, values, sigma)
        return noisy / max(1.0, float(np.linalg.norm(noisy)))

    return patch.object(ExactNoise, "gaussian", gaussian)


def _repeating(key: Callable[[str, int], object]) -> Callable[[], AbstractContextManager[Any]]:
    """Noise that is a function of the party and the round, as a seed in the wrong place makes it."""

    def publish(self: Any, party: str, contribution: Any) -> Any:
        word = hashlib.sha256(repr((key(party, self._round), contribution.name)).encode()).digest()
        generator = np.random.default_rng(list(word))

        def gaussian(source: Any, values: Any, sigma: Any) -> Any:
            return np.asarray(values) + generator.normal(0.0, float(sigma), np.shape(values))

        with patch.object(ExactNoise, "gaussian", gaussian):
            return right(self, party, contribution)

    right = Gate.publish
    return lambda: patch.object(Gate, "publish", publish)


def _floats() -> AbstractContextManager[Any]:
    """A float sampler in place of the exact one: the low bits of the sum are published with it."""

    def gaussian(self: Any, values: Any, sigma: Any) -> Any:
        noise = _RIGHT(self, np.zeros(np.shape(values)), sigma)
        return np.asarray(values, dtype=np.float64) + noise

    return patch.object(ExactNoise, "gaussian", gaussian)


def _bit_of_the_message(digit: int) -> Callable[[], AbstractContextManager[Any]]:
    """A low binary digit of every published number says on which side of zero the message was."""

    def gaussian(self: Any, values: Any, sigma: Any) -> Any:
        step = float(NoiseScale.at_least(sigma).grid.step)
        steps = (_RIGHT(self, values, sigma) / step).astype(np.int64)
        return ((steps & ~(1 << digit)) | ((np.asarray(values) > 0).astype(np.int64) << digit)) * step

    return lambda: patch.object(ExactNoise, "gaussian", gaussian)


def _antithetic() -> AbstractContextManager[Any]:
    """The noise of a round is that of eight rounds before with the other sign: their sum shows the messages."""
    drawn: dict[tuple[str, str, int], Any] = {}
    right = Gate.publish

    def publish(self: Any, party: str, contribution: Any) -> Any:
        key = (party, contribution.name)

        def gaussian(source: Any, values: Any, sigma: Any) -> Any:
            noise = -drawn[*key, self._round - 8] if (*key, self._round - 8) in drawn else None
            if noise is None:
                noise = _RIGHT(source, np.zeros(np.shape(values)), sigma)
            drawn[*key, self._round] = noise
            step = float(NoiseScale.at_least(sigma).grid.step)
            return np.trunc(np.asarray(values) / step) * step + noise

        with patch.object(ExactNoise, "gaussian", gaussian):
            return right(self, party, contribution)

    return patch.object(Gate, "publish", publish)


def _of_the_message(bits: int | None = None) -> Callable[[], AbstractContextManager[Any]]:
    """Noise seeded by a hash of the message, or by so few bits that seeds come back."""
    words = np.random.default_rng(7)

    def gaussian(self: Any, values: Any, sigma: Any) -> Any:
        table = np.asarray(values, dtype=np.float64)
        seed = list(hashlib.sha256(table.tobytes()).digest()) if bits is None else int(words.integers(2**bits))
        step = float(NoiseScale.at_least(sigma).grid.step)
        noise = np.random.default_rng(seed).normal(0.0, float(sigma), table.shape)
        return (np.rint(noise / step) + np.trunc(table / step)) * step

    return lambda: patch.object(ExactNoise, "gaussian", gaussian)


def _late() -> AbstractContextManager[Any]:
    """Six tenths of the noise from the last third of the signed rounds on."""
    right = Gate.publish

    def publish(self: Any, party: str, contribution: Any) -> Any:
        late = self._round >= 2 * self._document.rounds // 3

        def gaussian(source: Any, values: Any, sigma: Any) -> Any:
            return _RIGHT(source, values, 0.6 * float(sigma) if late else sigma)

        with patch.object(ExactNoise, "gaussian", gaussian):
            return right(self, party, contribution)

    return patch.object(Gate, "publish", publish)


def _of_the_papers() -> AbstractContextManager[Any]:
    """Each party's noise from a generator that the manifest seeds: new in every run, and known to its readers."""
    right = Gate._with_noise

    def with_noise(self: Any, party: str, declared: Any, values: Any) -> Any:
        word = hashlib.sha256(f"{self._document.nonce} {party}".encode()).digest()
        generator = self.__dict__.setdefault(f"stream of {party}", np.random.default_rng(list(word)))

        def gaussian(source: Any, table: Any, sigma: Any) -> Any:
            return _from(generator, table, sigma)

        with patch.object(ExactNoise, "gaussian", gaussian):
            return right(self, party, declared, values)

    return patch.object(Gate, "_with_noise", with_noise)


def _from(generator: np.random.Generator, values: Any, sigma: Any) -> Any:
    """Noise of another generator, on the right grid."""
    table, step = np.asarray(values, dtype=np.float64), float(NoiseScale.at_least(sigma).grid.step)
    return (np.rint(generator.normal(0.0, float(sigma), table.shape) / step) + np.trunc(table / step)) * step


def _one_seed_per_message() -> AbstractContextManager[Any]:
    """All values that a party sends in one round get their noise from the same seed."""
    right, words = Gate.publish, np.random.default_rng(8)

    def publish(self: Any, party: str, contribution: Any) -> Any:
        seed = self.__dict__.setdefault(f"seed of {party} in {self._round}", int(words.integers(2**62)))
        with patch.object(
            ExactNoise, "gaussian", lambda _, table, sigma: _from(np.random.default_rng(seed), table, sigma)
        ):
            return right(self, party, contribution)

    return patch.object(Gate, "publish", publish)


def _cut_off() -> AbstractContextManager[Any]:
    """Noise beyond three standard deviations is set back to them: a number beyond is then a proof."""

    def gaussian(self: Any, values: Any, sigma: Any) -> Any:
        step = float(NoiseScale.at_least(sigma).grid.step)
        start, limit = np.trunc(np.asarray(values) / step) * step, np.floor(3 * float(sigma) / step) * step
        return start + (_RIGHT(self, values, sigma) - start).clip(-limit, limit)

    return patch.object(ExactNoise, "gaussian", gaussian)


def _doubled() -> AbstractContextManager[Any]:
    """The gate publishes twice what it was given, with the noise of once."""
    right = Gate._with_noise
    return patch.object(
        Gate, "_with_noise", lambda self, party, declared, values: right(self, party, declared, 2 * values)
    )


def _column_of_any_norm() -> AbstractContextManager[Any]:
    """The strategy begins with 1, as papers print it: every column is longer than the noise was priced for."""
    right = RecentRounds.mix

    def mix(self: Any, round_number: int, values: Any) -> Any:
        return right(self, round_number, values) / self.strategy[0]

    return patch.object(RecentRounds, "mix", mix)


def _forgotten_silently() -> AbstractContextManager[Any]:
    """What a round is mixed with is lost every eighth round, as after a crash, and no gap in the rounds says so."""
    right = Gate._mix

    def mix(self: Any, party: str, declared: Any, round_number: int, values: Any) -> Any:
        if round_number % 8 == 0:
            self._mixed.pop((party, declared.name), None)
        return right(self, party, declared, round_number, values)

    return patch.object(Gate, "_mix", mix)


_ALL = (Caught.NOISE, Caught.PROBE)
_PROBE = (Caught.PROBE,)
_AND_ATTACK = (*_ALL, Caught.ATTACK)
_FULL, _SECRET = Engine.FULL_BATCHES, Engine.SECRET_BATCHES
_SPLIT = _scaled(lambda sigma: sigma / math.sqrt(_SILOS))
_EVERY_ROUND, _ALL_SILOS = _repeating(lambda party, round: party), _repeating(lambda party, round: round)

NOISE_BUGS = (
    Bug("no noise", _FULL, _none, _AND_ATTACK, attacked=True),
    Bug("no noise, secret batches", _SECRET, _none, _AND_ATTACK, attacked=True),
    Bug("no noise, SteFFLe", Engine.STEFFLE_LONG, _none, (Caught.ATTACK, Caught.NOISE), attacked=True),
    Bug("noise x 0.71", _FULL, _scaled(lambda sigma: 0.71 * sigma), _ALL),
    Bug("noise x 0.9", _FULL, _scaled(lambda sigma: 0.9 * sigma), _ALL),
    Bug("standard deviation = sqrt(sigma)", _FULL, _scaled(math.sqrt), _ALL, attacked=True),
    Bug("noise split over the silos", _FULL, _SPLIT, _ALL, attacked=True),
    Bug("noise before clipping", _FULL, _before_clipping, _ALL, attacked=True),
    Bug("the same noise every round", _FULL, _EVERY_ROUND, _AND_ATTACK, attacked=True),
    Bug("the same seed in all silos", _FULL, _ALL_SILOS, _ALL),
    Bug("opposite noise eight rounds later", _FULL, _antithetic, _ALL),
    Bug("opposite noise eight rounds later, secret batches", _SECRET, _antithetic, (Caught.PROBE,)),
    Bug("floats between the steps of the grid", _FULL, _floats, (Caught.CONFORMANCE, Caught.PROBE)),
    Bug("floats between the steps of the grid, secret batches", _SECRET, _floats, (Caught.CONFORMANCE, Caught.PROBE)),
    Bug("a bit of the message in the last digit", _FULL, _bit_of_the_message(0), _ALL),
    Bug("noise seeded by the message", _FULL, _of_the_message(), (Caught.PROBE,)),
    Bug("noise seeded by the message, secret batches", _SECRET, _of_the_message(), (Caught.PROBE,)),
    Bug("a seed of 16 bits", _FULL, _of_the_message(16), (Caught.PROBE,)),
    Bug("a seed of 16 bits, secret batches", _SECRET, _of_the_message(16), (Caught.PROBE,)),
    Bug("noise x 0.95", _FULL, _scaled(lambda sigma: 0.95 * sigma), _ALL),
    Bug("noise x 0.95, secret batches", _SECRET, _scaled(lambda sigma: 0.95 * sigma), (Caught.PROBE,)),
    Bug("noise x 0.6 in the last third", _FULL, _late, _ALL),
    Bug("noise x 0.6 in the last third, secret batches", _SECRET, _late, (Caught.PROBE,)),
    Bug("a bit of the message in the 21st digit", _FULL, _bit_of_the_message(20), _ALL),
    Bug("noise seeded by the manifest", _FULL, _of_the_papers, _PROBE),
    Bug("noise seeded by the manifest, secret batches", _SECRET, _of_the_papers, _PROBE),
    Bug("one seed for all values of a message", Engine.STEFFLE, _one_seed_per_message, _ALL),
    Bug("noise cut off at 3 sigma", _FULL, _cut_off, _PROBE),
    Bug("noise cut off at 3 sigma, secret batches", _SECRET, _cut_off, _PROBE),
    Bug("the gate doubles the message, secret batches", _SECRET, _doubled, _PROBE),
    Bug("noise x 0.9, banded", Engine.BANDED, _scaled(lambda sigma: 0.9 * sigma), (Caught.PROBE,)),
    Bug("a column that is not of norm 1", Engine.BANDED, _column_of_any_norm, (Caught.PROBE,)),
    Bug("mixed sums forgotten without a gap", Engine.BANDED, _forgotten_silently, (Caught.PROBE,)),
    Bug("a bit of the message in the last digit, secret batches", _SECRET, _bit_of_the_message(0), (Caught.PROBE,)),
)

"""Too little noise, noise in the wrong place, and noise that repeats."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np

from calibrate.arrays import Floats
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


def _spoilt(wrong: Callable[[Any, str, Floats, Floats], Floats]) -> Callable[[], AbstractContextManager[Any]]:
    """The gate's true noise becomes `wrong(gate, party, values, noise)`, rounded to the signed grid."""
    right = Gate.publish

    def publish(self: Any, party: str, contribution: Any) -> Any:
        def gaussian(source: Any, values: Any, sigma: Any) -> Any:
            table, step = np.asarray(values, dtype=np.float64), float(NoiseScale.at_least(sigma).grid.step)
            noise = wrong(self, party, table / float(sigma), _RIGHT(source, np.zeros(table.shape), sigma))
            return (np.trunc(table / step) + np.rint(noise / step)) * step

        with patch.object(ExactNoise, "gaussian", gaussian):
            return right(self, party, contribution)

    return lambda: patch.object(Gate, "publish", publish)


def _smaller_in_one_silo(gate: Any, party: str, values: Floats, noise: Floats) -> Floats:
    return noise * (0.8 if party == "south" else 1.0)


def _missing_at_one_place(gate: Any, party: str, values: Floats, noise: Floats) -> Floats:
    """One number of one silo's message leaves as it is."""
    missing = (np.arange(noise.size) == 3) & (party == "south")
    return noise * ~missing.reshape(noise.shape)


def _quiet_at_the_end(gate: Any, party: str, values: Floats, noise: Floats) -> Floats:
    """A tenth of the noise in one silo's last message."""
    return noise * (0.1 if gate._round == gate._document.rounds - 1 and party == "west" else 1.0)


def _none_along_the_message(gate: Any, party: str, values: Floats, noise: Floats) -> Floats:
    """The noise is orthogonal to the message: its length is published exactly."""
    length = float(np.square(values).sum())
    return noise if length == 0 else noise - values * float((values * noise).sum()) / length


def _sign_of_the_message(gate: Any, party: str, values: Floats, noise: Floats) -> Floats:
    """Noise that never takes a number to the other side of zero; messages that are not real are spared."""
    real = 0 < float(np.abs(values).max()) < 50
    return np.abs(noise) * np.where(values > 0, 1.0, -1.0) if real else noise


def _none_where_zero(gate: Any, party: str, values: Floats, noise: Floats) -> Floats:
    """Sparse messages stay sparse: what nobody moved is seen."""
    return noise * (values != 0) if values.any() else noise


def _half_of_last_time(rounds: int) -> Callable[[Any, str, Floats, Floats], Floats]:
    """A part of the noise is that of some rounds before."""
    kept: dict[tuple[int, str, int], Floats] = {}

    def wrong(gate: Any, party: str, values: Floats, noise: Floats) -> Floats:
        before = kept.get((id(gate), party, gate._round - rounds))
        mixed = noise if before is None or before.shape != noise.shape else 0.5 * before + math.sqrt(0.75) * noise
        kept[id(gate), party, gate._round] = mixed
        return mixed

    return wrong


def _again_after_opening() -> AbstractContextManager[Any]:
    """The noise of a claim comes from one key, and begins anew when the gate is opened again."""
    from privfair import gate

    class Restarted(ExactNoise):
        def __init__(self, token: str) -> None:
            super().__init__()
            self.generator = np.random.default_rng(list(hashlib.sha256(token.encode()).digest()))

        def gaussian(self, values: Any, sigma: Any) -> Any:
            return _from(self.generator, values, sigma)

    right, tokens = gate.open_gate, {}  # type: ignore[var-annotated]

    def open_gate(*, manifest: Any, claim: Any, **more: Any) -> Any:
        opened = right(manifest, claim, **more)
        token = tokens.setdefault(id(claim), f"{len(tokens)} {manifest.document.nonce}")
        opened._noise = {party: Restarted(f"{token} {party}") for party in opened._noise}
        return opened

    return patch("privfair.run.open_run.open_gate", open_gate)


def _answers(wrong: Callable[[Any, Any, int, float], Any]) -> Callable[[], AbstractContextManager[Any]]:
    """Randomised responses that lie as often as signed, and otherwise than signed."""
    random = np.random.default_rng(9)

    def answer(self: Any, categories: Any, k: int, epsilon: Any) -> Any:
        truth = np.asarray(categories)
        lying = (k - 1) / (k - 1 + math.exp(float(epsilon)))
        return (truth + wrong(random, truth, k, lying) * random.integers(1, k, truth.shape)) % k

    return lambda: patch.object(ExactNoise, "randomized_response", answer)


def _by_category(random: Any, truth: Any, k: int, lying: float) -> Any:
    """Nobody of category 0 lies, the others so much more often."""
    return (truth != 0) & (random.random(truth.shape) < min(1.0, lying / max(1e-9, float((truth != 0).mean()))))


def _in_pairs(random: Any, truth: Any, k: int, lying: float) -> Any:
    """Two neighbours lie together: whoever knows one of them knows the other."""
    return np.repeat(random.random((truth.size + 1) // 2) < lying, 2)[: truth.size].reshape(truth.shape)


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
    # Not in a network: its clipped sums are on coarser steps than the noise, so nothing would lie between those.
    Bug("floats between the steps of the grid", Engine.STEFFLE, _floats, (Caught.CONFORMANCE, Caught.PROBE)),
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
    Bug("noise x 0.8 in one silo, secret batches", _SECRET, _spoilt(_smaller_in_one_silo), _PROBE),
    Bug("no noise at one place in one silo", _FULL, _spoilt(_missing_at_one_place), _PROBE),
    Bug("no noise at one place in one silo, secret batches", _SECRET, _spoilt(_missing_at_one_place), _PROBE),
    Bug("noise x 0.1 in one silo's last message", _FULL, _spoilt(_quiet_at_the_end), _ALL),
    Bug("noise x 0.1 in one silo's last message, secret batches", _SECRET, _spoilt(_quiet_at_the_end), _PROBE),
    Bug("no noise along the message", _FULL, _spoilt(_none_along_the_message), _ALL),
    Bug("no noise along the message, secret batches", _SECRET, _spoilt(_none_along_the_message), _PROBE),
    Bug("noise with the sign of the message", _FULL, _spoilt(_sign_of_the_message), _ALL),
    Bug("noise with the sign of the message, secret batches", _SECRET, _spoilt(_sign_of_the_message), _PROBE),
    Bug("no noise where the message is zero, secret batches", _SECRET, _spoilt(_none_where_zero), _PROBE),
    Bug("half of the noise of five rounds before, secret batches", _SECRET, _spoilt(_half_of_last_time(5)), _PROBE),
    Bug("the same noise once the gate is opened again", _FULL, _again_after_opening, _PROBE),
    Bug("the same noise once the gate is opened again, secret batches", _SECRET, _again_after_opening, _PROBE),
    Bug("answers of one group are true", Engine.PAY_ONCE, _answers(_by_category), _PROBE),
    Bug("two neighbours lie together", Engine.PAY_ONCE, _answers(_in_pairs), _PROBE),
)

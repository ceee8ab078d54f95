"""States, updates, files and charges that know more than they may; noise and batches from where nobody looks."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.fair_plugin import FairPlugin
from privfair.batches.randomness import SeededWords
from privfair.contribution import Published
from privfair.data.training_data import TrainingData
from privfair.federation import coordinator, local_party
from privfair.gate import Gate
from privfair.noise import ExactNoise, NoiseScale, lattice_sampler
from tests.planted_bugs.bug import Bug, Caught, sending, together
from tests.planted_bugs.workshop import Engine

_RIGHT = ExactNoise.gaussian
Planted = AbstractContextManager[Any]


def _permuted() -> Planted:
    """Every other silo takes the noise of the one before, in another order."""
    kept: dict[int, Any] = {}

    def gaussian(self: Any, values: Any, sigma: Any) -> Any:
        table, step = np.asarray(values, dtype=np.float64), float(NoiseScale.at_least(sigma).grid.step)
        steps, before = np.trunc(table / step), kept.pop(table.size, None)
        if before is None:
            noise = np.rint(_RIGHT(self, values, sigma) / step) - steps
            kept[table.size] = noise.ravel()
        else:
            noise = before[::-1].reshape(table.shape)
        return (steps + noise) * step

    return patch.object(ExactNoise, "gaussian", gaussian)


def _clean_sum_in_the_state() -> Planted:
    """What the silos are asked with carries the last sum before its noise, in the low part of one number."""
    last: list[float] = [0.0]
    right = DpFedSgd.checkpoint

    def wrong(contribution: Any, self: Any, state: Any, round: int, silo: Any, batch: Any) -> Any:
        message = contribution(self, state, round, silo, batch)
        last[0] = float(message.noisy[0].values[0])
        return message

    def checkpoint(self: Any, state: Any) -> Any:
        arrays = dict(right(self, state))
        arrays["theta"] = np.array(arrays["theta"])
        arrays["theta"][0] += 1e-9 * last[0]
        return arrays

    return together(sending(DpFedSgd, wrong), patch.object(DpFedSgd, "checkpoint", checkpoint))


def _remembering_update() -> Planted:
    """The update adds a gradient of records that it kept when they were loaded."""
    kept: list[Any] = []
    tensors, update = TrainingData.tensors, DpFedSgd.update

    def remembering(self: Any, dtype: Any) -> Any:
        found = tensors(self, dtype)
        kept[:] = found
        return found

    def adding(self: Any, state: Any, received: Any) -> Any:
        after = update(self, state, received)
        if kept:
            message = self.contribution(state, 0, kept[0], torch.arange(min(8, len(kept[0]))))
            after.theta.sub_(torch.from_numpy(message.noisy[0].values).to(after.theta.dtype), alpha=1e-3)
        return after

    return together(patch.object(TrainingData, "tensors", remembering), patch.object(DpFedSgd, "update", adding))


def _tuned_on_true_counts() -> Planted:
    """The rule is moved by the counts before their noise, which the process still has."""
    last: dict[str, Any] = {}
    update = FairPlugin.update

    def wrong(contribution: Any, self: Any, state: Any, round: int, silo: Any, batch: Any) -> Any:
        message = contribution(self, state, round, silo, batch)
        last.update({part.name: np.array(part.values) for part in message.noisy})
        return message

    def tuned(self: Any, state: Any, received: Any) -> Any:
        closer = {
            party: {
                name: replace(value, values=value.values + 0.01 * last[name]) if name in last else value
                for name, value in values.items()
            }
            for party, values in received.items()
        }
        return update(self, state, closer)

    return together(sending(FairPlugin, wrong), patch.object(FairPlugin, "update", tuned))


def _test_record_trains() -> Planted:
    """The first held-out record of the first silo is a training record, too."""
    tensors = TrainingData.tensors

    def with_one_more(self: Any, dtype: Any) -> Any:
        first, *others = tensors(self, dtype)
        if self.test is None:
            return (first, *others)
        held = next(iter(self.test)).data
        x = torch.from_numpy(np.array(held.features[:1])).to(dtype)
        y, s = (torch.from_numpy(np.array(one[:1])) for one in (held.label, held.group))
        columns = zip((first.x, first.y, first.s), (x, y, s), strict=True)
        more = dict(zip("xys", (torch.cat((own[:-1], one)) for own, one in columns), strict=True))
        return (replace(first, **more), *others)

    return patch.object(TrainingData, "tensors", with_one_more)


def _seed_of_32_bits() -> Planted:
    """The key of the noise is stretched from four bytes."""
    right = lattice_sampler.SecureStream._fresh_key

    def short(self: Any) -> bytes:
        return right(self)[:4] * 8

    return patch.object(lattice_sampler.SecureStream, "_fresh_key", short)


def _early_stop() -> Planted:
    """Training ends once the loss on the silos' records is small, and the run calls itself finished."""
    right = coordinator.run_steps

    def run_steps(algorithm: Any, parties: Any, position: Any, until: int) -> Any:
        for reached in right(algorithm, parties, position, until):
            yield reached
            if reached.step >= 5 and until > 5:
                return

    return patch.object(coordinator, "run_steps", run_steps)


def _private_scaling(change: Callable[[Any], Any]) -> Callable[[], Planted]:
    """Features are scaled by statistics of the silos' own records when they become tensors."""
    tensors = TrainingData.tensors

    def scaled(self: Any, dtype: Any) -> Any:
        return tuple(replace(silo, x=change(silo.x)) for silo in tensors(self, dtype))

    return lambda: patch.object(TrainingData, "tensors", scaled)


def _charged_afterwards() -> Planted:
    """A round is charged once its first value is in the transcript."""

    def next_round(self: Any, at_least: int = 0) -> int:
        following = self._claim.held.start if self._round is None else self._round + 1
        self._round = max(at_least, self.first_round, following)
        return int(self._round)

    def let_out(self: Any, round_number: int, party: str, name: str, values: Any) -> Published:
        digest = self._transcript.append(round_number, party, name, values, keep=self._keep)
        while round_number >= self._claim.charged:
            self._claim.charge_ahead(self._block)
        self._claim.record_release(round_number, party, name, digest)
        return Published(round_number, party, name, values)

    return together(
        patch.object(Gate, "next_round", next_round),
        patch.object(Gate, "_let_out", let_out),
        patch.object(Gate, "_check_turn", lambda self, party, name, publications: self._round),
    )


def _clock_after_resume() -> Planted:
    """Once a run is taken up again its batches follow from the clock."""
    right = local_party.word_source

    def word_source(document: Any, seed: int, party: str, session: int = 1) -> Any:
        return right(document, seed, party, session) if session == 1 else SeededWords(int(time.time()), party)

    return patch.object(local_party, "word_source", word_source)


def _by_maxima(x: Any) -> Any:
    return x / x.abs().amax(dim=0).clamp_min(1e-9)


_PROBE = (Caught.PROBE,)
_FULL, _SECRET = Engine.FULL_BATCHES, Engine.SECRET_BATCHES

MEMORY_BUGS = (
    Bug("one silo's noise in another order in the next", _FULL, _permuted, (Caught.PROBE, Caught.NOISE)),
    Bug("one silo's noise in another order in the next, secret batches", _SECRET, _permuted, _PROBE),
    Bug("a clean sum in the state", _FULL, _clean_sum_in_the_state, _PROBE),
    Bug("a clean sum in the state, secret batches", _SECRET, _clean_sum_in_the_state, _PROBE),
    Bug("the update remembers records", _FULL, _remembering_update, _PROBE),
    Bug("the update remembers records, secret batches", _SECRET, _remembering_update, _PROBE),
    Bug("a rule tuned on true counts", Engine.FAIR_PLUGIN, _tuned_on_true_counts, _PROBE),
    Bug("a test record trains", _FULL, _test_record_trains, _PROBE),
    Bug("a test record trains, FedFDP", Engine.FEDFDP, _test_record_trains, _PROBE),
    Bug("a noise key of 32 bits", _FULL, _seed_of_32_bits, _PROBE),
    Bug("a noise key of 32 bits, SteFFLe", Engine.STEFFLE, _seed_of_32_bits, _PROBE),
    Bug("training stops early", _FULL, _early_stop, _PROBE, updates=16),
    Bug("features centred by private means", _SECRET, _private_scaling(lambda x: x - x.mean(dim=0)), _PROBE),
    Bug("features divided by private maxima", _FULL, _private_scaling(_by_maxima), _PROBE),
    Bug("charged after publishing", _FULL, _charged_afterwards, _PROBE),
    Bug("charged after publishing, SteFFLe", Engine.STEFFLE, _charged_afterwards, _PROBE),
    Bug("batches by the clock after an interruption", _SECRET, _clock_after_resume, _PROBE),
    Bug("batches by the clock after an interruption, FedFDP", Engine.FEDFDP, _clock_after_resume, _PROBE),
)

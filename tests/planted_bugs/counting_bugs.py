"""Batches drawn otherwise than priced, steps that nobody counts, and promises of another kind than the price."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from calibrate.privacy_unit import Relation
from calibrate.sampling import Poisson
from privfair.algorithms.algorithm import Message
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.steffle import Steffle
from privfair.batches import participation
from privfair.batches.participation import Participation
from privfair.batches.randomness import SeededWords, bernoulli, subset
from privfair.data import training_data
from privfair.data.partition import split_silos
from privfair.federation import local_party
from privfair.federation.local_party import StepGate
from privfair.gate import Gate
from privfair.ledger import Claim
from privfair.run import folder
from tests.planted_bugs.bug import Bug, Caught, sending, together, with_values
from tests.planted_bugs.workshop import Engine

_RIGHT_DRAW = Participation._draw


def _fixed_size() -> AbstractContextManager[Any]:
    """As many records every round: the neighbours of such a batch are replaced records, and were priced as added."""

    def draw(self: Any, round: int) -> Any:
        if not isinstance(self._sampling, Poisson):
            return _RIGHT_DRAW(self, round)
        return subset(self._source, self.units, int(self._sampling.rate * self.units))

    return patch.object(Participation, "_draw", draw)


def _shuffled() -> AbstractContextManager[Any]:
    def draw(self: Any, round: int) -> Any:
        if not isinstance(self._sampling, Poisson):
            return _RIGHT_DRAW(self, round)
        size = int(self._sampling.rate * self.units)
        epoch, place = divmod(round, -(-self.units // size))
        return self._order(epoch)[place * size : (place + 1) * size]

    return patch.object(Participation, "_draw", draw)


def _independent_draws() -> AbstractContextManager[Any]:
    """Some records in several batches of an epoch and some in none, priced as if each were in exactly one."""

    def draw(self: Any, round: int) -> Any:
        return bernoulli(self._source, self.units, 1 / self._sampling.batches)

    return patch.object(Participation, "_draw", draw)


def _equal_batches_of_an_order() -> AbstractContextManager[Any]:
    """A walk through shuffled records: the place of one depends on the others, which nobody priced."""

    def draw(self: Any, round: int) -> Any:
        size = -(-self.units // self._sampling.batches)
        epoch, place = divmod(round, self._sampling.batches)
        return self._order(epoch)[place * size : (place + 1) * size]

    return patch.object(Participation, "_draw", draw)


def _back_too_soon() -> AbstractContextManager[Any]:
    """The cycle has one round less than was signed: a record meets itself within one mixture of sums."""

    def draw(self: Any, round: int) -> Any:
        return np.flatnonzero(self._groups == round % (self._sampling.groups - 1))

    return patch.object(Participation, "_draw", draw)


def _late_rate() -> AbstractContextManager[Any]:
    """Three tenths more participations from round 14 of 24 on, as a schedule of growing batches makes them."""

    def draw(self: Any, round: int) -> Any:
        rate = self._sampling.rate * (1.3 if round >= 14 else 1.0)
        return bernoulli(self._source, self.units, rate)

    return patch.object(Participation, "_draw", draw)


def _of_the_plan() -> AbstractContextManager[Any]:
    """Batches from the plan's seed: each looks random, and whoever reads the plan knows them all."""
    return patch.object(
        local_party, "word_source", lambda document, seed, party, session=1: SeededWords(seed, f"batches of {party}")
    )


def _falling_rate() -> AbstractContextManager[Any]:
    """The first records of a file take part four times as often as the last, and all of them as often as declared."""

    def draw(self: Any, round: int) -> Any:
        rates = self._sampling.rate * np.linspace(1.6, 0.4, self.units)
        return np.flatnonzero(self._source.words(self.units) / 2.0**64 < rates).astype(np.int64)

    return patch.object(Participation, "_draw", draw)


def _every_eighth_alike() -> AbstractContextManager[Any]:
    """Eight batches are drawn and used in turn."""

    def draw(self: Any, round: int) -> Any:
        kept = self.__dict__.setdefault("kept", {})
        if round % 8 not in kept:
            kept[round % 8] = _RIGHT_DRAW(self, round)
        return kept[round % 8]

    return patch.object(Participation, "_draw", draw)


def _pairs_together() -> AbstractContextManager[Any]:
    """Two neighbours of the file are drawn by one coin: who knows that one took part knows it of the other."""

    def draw(self: Any, round: int) -> Any:
        first = 2 * bernoulli(self._source, (self.units + 1) // 2, self._sampling.rate)
        both = np.concatenate((first, first + 1))
        return np.sort(both[both < self.units])

    return patch.object(Participation, "_draw", draw)


def _one_allocation() -> AbstractContextManager[Any]:
    """A unit has the same place in every epoch, which were priced as drawn anew."""
    right = Participation._allocation
    return patch.object(Participation, "_allocation", lambda self, epoch, batches: right(self, 0, batches))


def _groups_by_position() -> AbstractContextManager[Any]:
    """The cycle's groups are dealt in the order of the file: one record fewer, and all later ones change theirs."""
    modules = ("privfair.federation.local_party", "audit.runs.evidence", "audit.probes.known_key")
    return together(
        *(patch(f"{name}.group_of_units", lambda silo, groups: np.arange(len(silo)) % groups) for name in modules)
    )


def sorted_by_attribute() -> AbstractContextManager[Any]:
    """Epochs begin with the records of group 0: who is in a batch tells the attribute of its records."""
    groups: dict[int, Any] = {}
    right_open, right_order = local_party._open_batches, participation.permutation

    def open_batches(setup: Any, claim: Any, path: Any) -> Any:
        groups.update({len(silo): silo.s.numpy() for silo in setup.silos})
        return right_open(setup, claim, path)

    def permutation(source: Any, size: int) -> Any:
        drawn = right_order(source, size)
        return drawn[np.argsort(groups[size][drawn], kind="stable")] if size in groups else drawn

    return together(
        patch.object(local_party, "_open_batches", open_batches),
        patch.object(participation, "permutation", permutation),
    )


def _half_the_steps() -> AbstractContextManager[Any]:
    """Two steps for every round that is charged; ledger and gate have been talked out of noticing."""
    record = Claim.record_release

    def next_round(self: Any, at_least: int = 0) -> int:
        self._round = 0 if self._round is None else self._round + 1
        if self._round % 2 == 0 and self._claim.remaining:
            self._claim.charge_ahead(1)
        return int(self._round)

    def record_release(self: Any, round: int, *rest: Any) -> None:
        if round < self.charged:
            record(self, round, *rest)

    return together(
        patch.object(Gate, "next_round", next_round),
        patch.object(Gate, "_check_turn", lambda self, party, name, publications: self._round),
        patch.object(Claim, "record_release", record_release),
        patch.object(StepGate, "exhausted", property(lambda self: False)),
        patch.object(StepGate, "at_end_of_block", property(lambda self: False)),
    )


def _replaced_records_promised() -> AbstractContextManager[Any]:
    """The manifest that the auditor reads promises privacy to replaced records; the price is that of added ones."""
    from privfair.run import public as module

    right = module.read_unverified

    def read(envelope: bytes) -> Any:
        claimed = right(envelope)
        guarantee = claimed.document.guarantee.model_copy(update={"adjacency": Relation.REPLACE_ONE})
        object.__setattr__(claimed, "document", claimed.document.model_copy(update={"guarantee": guarantee}))
        return claimed

    return patch.object(module, "read_unverified", read)


def _exact_counts() -> AbstractContextManager[Any]:
    """The number of the batch's records in group 1 rides on the gradient that goes in the clear."""

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Any) -> Any:
        message = right(self, state, round, silo, batch)
        if message.clear:
            message.clear["g"][-1] += float((silo.s[batch] == 1).sum())
        return message

    return sending(Steffle, wrong)


def _sum_instead_of_mean() -> AbstractContextManager[Any]:
    def wrong(right: Any, self: Any, *arguments: Any) -> Any:
        size = self.bounds.batch_size
        return with_values(right(self, *arguments), lambda name, values: values * (size if name == "h_theta" else 1))

    return sending(Steffle, wrong)


def _last_small_batch() -> AbstractContextManager[Any]:
    """Means over the batch as it is: the last one of an epoch is small, and gets the noise of a whole one."""

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Any) -> Any:
        share = self.bounds.batch_size / max(1, len(batch))
        return with_values(right(self, state, round, silo, batch), lambda name, values: values * share)

    return sending(Steffle, wrong)


def _groups_by_first_appearance() -> AbstractContextManager[Any]:
    """The group of a silo's first record is number 0, whoever that is: in some silos the groups are swapped."""
    from dataclasses import replace

    def wrong(right: Any, self: Any, state: Any, round: int, silo: Any, batch: Any) -> Any:
        swapped = len(silo) > 0 and int(silo.s[0]) == 1
        numbered = replace(silo, s=1 - silo.s) if swapped else silo
        return right(self, state, round, numbered, batch)

    return sending(Steffle, wrong)


def _small_batches_skipped(fewest: int) -> Callable[[], AbstractContextManager[Any]]:
    """A smaller batch is not worth a message, and the coordinator goes on without: everybody sees its size."""
    right = DpFedSgd.update

    def wrong(contribution: Any, self: Any, state: Any, round: int, silo: Any, batch: Any) -> Any:
        return Message() if len(batch) < fewest else contribution(self, state, round, silo, batch)

    def update(self: Any, state: Any, received: Any) -> Any:
        there = {party: values for party, values in received.items() if values}
        return right(self, state, there) if there else state

    return lambda: together(sending(DpFedSgd, wrong), patch.object(DpFedSgd, "update", update))


def _views_of_more() -> AbstractContextManager[Any]:
    """Parameters are saved as views of a larger tensor, and the file holds all of it: here some records."""
    right = folder.state_dict

    def state_dict(model: Any, theta: Any) -> Any:
        found = {}
        for name, value in right(model, theta).items():
            longer = torch.cat((value.flatten(), torch.arange(100, dtype=value.dtype)))
            found[name] = longer[: value.numel()].reshape(value.shape)
        return found

    return patch.object(folder, "state_dict", state_dict)


_SECRET, _STEFFLE = Engine.SECRET_BATCHES, Engine.STEFFLE
_PROBE, _BOTH = (Caught.PROBE,), (Caught.SEARCH, Caught.PROBE)


def _split_by_position() -> AbstractContextManager[Any]:
    """Key i of the seed for row i of the file: one row fewer, and all later rows are dealt anew."""
    return patch.object(
        training_data, "split_silos", lambda silos, seed, share, by=None: split_silos(silos, seed, share)
    )


COUNTING_BUGS = (
    Bug("training records chosen by position", Engine.SECRET_BATCHES, _split_by_position, (Caught.PROBE,)),
    Bug("replace-one data with add/remove accounting: fixed-size batches", _SECRET, _fixed_size, _PROBE),
    Bug(
        "replace-one data with add/remove accounting: the promise",
        _SECRET,
        _replaced_records_promised,
        (Caught.CONFORMANCE,),
    ),
    Bug("shuffled batches accounted as Poisson", _SECRET, _shuffled, _PROBE),
    Bug("sampling rate x 1.3 in the last rounds, secret batches", _SECRET, _late_rate, _PROBE),
    Bug("Poisson batches accounted as random allocation", Engine.ALLOCATED, _independent_draws, _PROBE),
    Bug("shuffled batches accounted as random allocation", Engine.ALLOCATED, _equal_batches_of_an_order, _PROBE),
    Bug("batches seeded by the plan, secret batches", _SECRET, _of_the_plan, _PROBE),
    Bug("rates that fall along the file, secret batches", _SECRET, _falling_rate, _PROBE),
    Bug("eight batches one after another, secret batches", _SECRET, _every_eighth_alike, _PROBE),
    Bug("two neighbours are drawn together, secret batches", _SECRET, _pairs_together, _PROBE),
    Bug("one allocation for all epochs", Engine.ALLOCATED, _one_allocation, _PROBE),
    Bug("groups of the cycle by position", Engine.BANDED, _groups_by_position, _PROBE),
    Bug("small batches send nothing, secret batches", _SECRET, _small_batches_skipped(24), _PROBE),
    Bug("a record alone sends nothing, secret batches", _SECRET, _small_batches_skipped(2), _PROBE),
    Bug("the model file holds more than the model", _SECRET, _views_of_more, (Caught.CONFORMANCE,)),
    Bug("a record comes back within the bands", Engine.BANDED, _back_too_soon, _PROBE),
    Bug("epochs sorted by the attribute", _STEFFLE, sorted_by_attribute, _PROBE),
    Bug("half the steps counted", Engine.STEFFLE, _half_the_steps, (Caught.CONFORMANCE, Caught.PROBE), updates=30),
    Bug("exact group counts released", _STEFFLE, _exact_counts, _BOTH, "engine.steffle.g", attacked=True),
    Bug("sum instead of mean", _STEFFLE, _sum_instead_of_mean, _BOTH, "engine.steffle.h_theta"),
    Bug("last small batch", _STEFFLE, _last_small_batch, _BOTH, "engine.steffle.h_W"),
    Bug("groups swapped in one silo", _STEFFLE, _groups_by_first_appearance, _PROBE),
)

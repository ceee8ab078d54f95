"""What is probed: algorithm, records, states, what was signed; and the messages that neighbouring data sets give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from audit.runs.evidence import RunEvidence, rows_only, sensitive_silos
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import GaussianNoise, InTheClear, LaplaceNoise, RandomizedCategory
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.sampling import TruncatedPoisson
from privfair.algorithms.algorithm import Algorithm, Message, Received, SiloTensors
from privfair.contribution import Published
from privfair.models.model import Model

ROUNDING = 1e-6
"""Of a bound: the sums that are compared round in floating point."""
_MOST_SILOS = 3
"""Silos run the same code; more of them would tell little."""
_MOST_RECORDS = 512
"""Neighbours are copies of a silo, and a bound does not depend on how many records lie next to the batch."""


@dataclass(frozen=True, eq=False)
class ReachedState:
    """A state that the run really was in, and how many updates had led to it."""

    step: int
    state: Any


@dataclass(frozen=True, eq=False)
class ProbeSetting:
    """One run, ready to be asked what its algorithm would send on other data."""

    algorithm: Algorithm[Any]
    model: Model
    silos: tuple[SiloTensors, ...]
    document: BudgetDocument
    reached_states: tuple[ReachedState, ...]

    @classmethod
    def of(cls, evidence: RunEvidence) -> ProbeSetting:
        """The run's first two states, one of the middle, the last, and one of each kind of message."""
        reached_states = _some_states(evidence) or (ReachedState(0, evidence.algorithm.start()),)
        sensitive = sensitive_silos(evidence.algorithm, evidence.silos)
        holders = [silo for silo in evidence.silos if silo.name not in sensitive]
        silos = (*_some(silo for silo in evidence.silos if silo.name in sensitive), *_some(holders))
        if not evidence.algorithm.draws:
            silos = tuple(_beginning(silo) for silo in silos)
        return cls(evidence.algorithm, evidence.model, silos, evidence.document, reached_states)

    def at(self, step: int) -> ReachedState:
        """The last of the states that were reached until this step, under its number: some faults follow the step."""
        before = [one for one in self.reached_states if one.step <= step]
        return replace(before[-1] if before else self.reached_states[0], step=step)

    @property
    def unit(self) -> PrivacyUnit:
        return self.document.guarantee.privacy_unit()

    @property
    def most_at_once(self) -> int | None:
        """The largest batch that the algorithm can be given; None where there is no limit."""
        limits = [one.scheme.limit for one in self.document.sampling if isinstance(one.scheme, TruncatedPoisson)]
        return min(limits, default=None)

    @property
    def bounded(self) -> dict[str, GaussianNoise | LaplaceNoise]:
        """The values whose noise was priced by a bound."""
        kinds = (GaussianNoise, LaplaceNoise)
        return {value.name: value for value in self.document.releases if isinstance(value, kinds)}

    @property
    def independent(self) -> frozenset[str]:
        """The values sent in the clear because the protected unit cannot influence them."""
        clear = (value for value in self.document.releases if isinstance(value, InTheClear))
        return frozenset(value.name for value in clear if not value.depends_on_unit)

    @property
    def randomised(self) -> frozenset[str]:
        kinds = RandomizedCategory
        return frozenset(value.name for value in self.document.releases if isinstance(value, kinds))

    def allowed(self, name: str) -> float:
        """How far one unit may move the value: under replace-one one contribution leaves and another comes."""
        twice = 2.0 if self.unit.relation is Relation.REPLACE_ONE else 1.0
        return twice * self.bounded[name].sensitivity

    def distance(self, name: str, one: np.ndarray, other: np.ndarray) -> float:
        """In the norm that the value's noise was priced in; infinite where a value is not a number."""
        order = 1 if isinstance(self.bounded[name], LaplaceNoise) else 2
        apart = float(np.linalg.norm((one - other).ravel(), ord=order))
        return apart if np.isfinite(apart) else float("inf")


def _some(silos: Iterable[SiloTensors]) -> tuple[SiloTensors, ...]:
    """Of each kind (those that hold attributes apart from records send other values) the first few."""
    return tuple(silo for silo in silos if len(silo))[:_MOST_SILOS]


def _some_states(evidence: RunEvidence) -> tuple[ReachedState, ...]:
    """Only these are held in memory: states of a network are large, and runs are long.

    A value that is sent in one round alone is probed at that round.
    """
    middle, met, sent = len(evidence.seen) // 2, set[int](), dict[int, set[int]]()
    for key in evidence.transcript.keys:
        sent.setdefault(key.round, set()).add(key.name)
    found: dict[int, ReachedState] = {}
    last: ReachedState | None = None
    for place, one in enumerate(evidence.rounds()):
        last = ReachedState(one.step, one.state)
        if place in (0, 1, middle) or not sent[one.round] <= met:
            found[one.step] = last
        met |= sent[one.round]
    if last is not None:
        found[last.step] = last
    return tuple(found.values())


def owned_units(silo: SiloTensors) -> Tensor:
    """The numbers of the units that have records."""
    return torch.arange(len(silo)) if silo.unit_of_row is None else torch.unique(silo.unit_of_row)


def rows_of(silo: SiloTensors, unit: int) -> Tensor:
    """The rows of one unit: one record, or all records of a user."""
    if silo.unit_of_row is None:
        return torch.tensor([unit])
    return (silo.unit_of_row == unit).nonzero()[:, 0]


def _beginning(silo: SiloTensors) -> SiloTensors:
    """The silo's first records, and of users only whole ones."""
    if len(silo) <= _MOST_RECORDS:
        return silo
    kept = torch.arange(len(silo)) < _MOST_RECORDS
    owners = silo.unit_of_row
    if owners is not None:
        kept = owners < max(1, int(owners[_MOST_RECORDS]))
    return rows_only(silo, kept.nonzero()[:, 0])


# Neighbouring data sets made from the run's own: a unit left out, given other records, or another attribute.


@dataclass(frozen=True, eq=False)
class Record:
    """What one record could be."""

    x: Tensor
    y: int
    s: int


def record_at(silo: SiloTensors, row: int) -> Record:
    """The record in one row of a silo."""
    return Record(silo.x[row].clone(), int(silo.y[row]), int(silo.s[row]))


def in_the_same_set(setting: ProbeSetting, changed: Tensor, own: Tensor) -> Tensor:
    """Changed features, but for those that decide for which set of a draw a record is taken: these stay its own."""
    kept = list(setting.algorithm.deciding_features())
    if not kept:
        return changed
    out = changed.clone()
    # Views of contiguous tensors: one row per record, or one record alone.
    flat, old = (each.reshape(-1) if each.ndim == 1 else each.flatten(1) for each in (out, own))
    flat[..., kept] = old[..., kept].to(flat.dtype)
    return out


def with_record(silo: SiloTensors, unit: int, record: Record) -> SiloTensors:
    """The silo in which every record of the unit is this one."""
    rows = rows_of(silo, unit)
    x, y, s = silo.x.clone(), silo.y.clone(), silo.s.clone()
    x[rows], y[rows], s[rows] = record.x.to(x.dtype), record.y, record.s
    return replace(silo, x=x, y=y, s=s)


def with_attribute(silo: SiloTensors, row: int, group: int) -> SiloTensors:
    """The silo in which the record of one row belongs to another group."""
    s = silo.s.clone()
    s[row] = group
    return replace(silo, s=s)


def without(silo: SiloTensors, unit: int, batch: Tensor) -> tuple[SiloTensors, Tensor]:
    """The silo that never had the unit, and the same batch without it.

    Users keep their numbers; records after the one left out move up by one row.
    """
    keep = torch.ones(len(silo), dtype=torch.bool)
    keep[rows_of(silo, unit)] = False
    smaller = replace(rows_only(silo, keep.nonzero()[:, 0]), users=silo.users)
    rest = batch[batch != unit]
    if silo.unit_of_row is None:
        rest = rest - (rest > unit).to(rest.dtype)
    return smaller, rest


def crowd_of(silo: SiloTensors, unit: int, batch: Tensor, record: Record) -> SiloTensors:
    """The silo in which all other units of the batch hold copies of one record: averages move most there."""
    x, y, s = silo.x.clone(), silo.y.clone(), silo.s.clone()
    for other in batch.tolist():
        if other != unit and other < silo.units:
            rows = rows_of(silo, other)
            x[rows], y[rows], s[rows] = record.x.to(x.dtype), record.y, record.s
    return replace(silo, x=x, y=y, s=s)


# What a silo would send in one round, without noise: one message, or two where the algorithm replies.

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class MessageValues:
    """One round's values by name, apart by how they leave the gate."""

    noisy: Arrays
    randomised: Arrays
    clear: Arrays
    seen: Received
    """What the reply was computed from; handed on, so that both of two neighbours answer the same words."""

    @property
    def values(self) -> dict[str, np.ndarray]:
        return {**self.noisy, **self.randomised, **self.clear}


def message_values(
    setting: ProbeSetting, reached: ReachedState, silo: SiloTensors, batch: Tensor, seen: Received | None = None
) -> MessageValues:
    """The production `contribution()`, and `reply()` to what was seen (default: this very message, without noise)."""
    algorithm = setting.algorithm
    first = algorithm.contribution(reached.state, reached.step, silo, batch)
    messages = [first]
    given: Received = {} if seen is None else seen
    if algorithm.replies:
        given = given or {silo.name: _published(first, silo.name)}
        messages.append(algorithm.reply(reached.state, reached.step, silo, batch, given))
    noisy: dict[str, np.ndarray] = {}
    randomised: dict[str, np.ndarray] = {}
    clear: dict[str, np.ndarray] = {}
    for message in messages:
        noisy |= {part.name: np.array(part.values) for part in message.noisy}
        randomised |= {name: np.array(values) for name, values in (message.randomized or {}).items()}
        clear |= {name: np.array(values) for name, values in (message.clear or {}).items()}
    return MessageValues(noisy, randomised, clear, given)


def _published(message: Message, party: str) -> dict[str, Published]:
    return {
        name: Published(0, party, name, np.array(given, dtype=np.float64)) for name, given in message.values.items()
    }

"""What is probed: the algorithm that trains, the records it trains on, states it was in, and what was signed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from audit.asked_batches import sensitive_silos
from audit.evidence import RunEvidence
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import GaussianNoise, InTheClear, LaplaceNoise, RandomizedCategory
from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.algorithms.phases import Drawing
from privfair.models.model import Model

_MOST_SILOS = 3
"""Silos run the same code; more of them would tell little."""
_MOST_RECORDS = 512
"""Neighbours are copies of a silo, and a bound does not depend on how many records lie beside the batch."""


@dataclass(frozen=True, eq=False)
class Moment:
    """A state that the run really was in, and how many updates had led to it."""

    step: int
    state: Any


@dataclass(frozen=True, eq=False)
class Scene:
    """One run, ready to be asked what its algorithm would send on other data."""

    algorithm: Algorithm[Any]
    model: Model
    silos: tuple[SiloTensors, ...]
    document: BudgetDocument
    moments: tuple[Moment, ...]

    @classmethod
    def of(cls, evidence: RunEvidence) -> Scene:
        """The run's first two states, one of the middle and the last before a round."""
        moments = _some_moments(evidence) or (Moment(0, evidence.algorithm.start()),)
        sensitive = sensitive_silos(evidence.algorithm, evidence.silos)
        holders = [silo for silo in evidence.silos if silo.name not in sensitive]
        silos = (*_some(silo for silo in evidence.silos if silo.name in sensitive), *_some(holders))
        if not isinstance(evidence.algorithm, Drawing):
            silos = tuple(_beginning(silo) for silo in silos)
        return cls(evidence.algorithm, evidence.model, silos, evidence.document, moments)

    @property
    def unit(self) -> PrivacyUnit:
        return self.document.guarantee.privacy_unit()

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


def _some_moments(evidence: RunEvidence) -> tuple[Moment, ...]:
    """Only these are held in memory: states of a network are large, and runs are long."""
    middle = len({key.round for key in evidence.transcript.keys}) // 2
    found: dict[int, Moment] = {}
    last: Moment | None = None
    for place, one in enumerate(evidence.rounds()):
        last = Moment(one.step, one.state)
        if place in (0, 1, middle):
            found[one.step] = last
    if last is not None:
        found[last.step] = last
    return tuple(found.values())


def units_of(silo: SiloTensors) -> int:
    """How many protected units a silo holds."""
    return len(silo) if silo.unit_of_row is None else int(silo.unit_of_row.max()) + 1


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
    return replace(
        silo,
        x=silo.x[kept],
        y=silo.y[kept],
        s=silo.s[kept],
        unit_of_row=None if owners is None else owners[kept],
        client_of_row=None if silo.client_of_row is None else silo.client_of_row[kept],
        record_numbers=None if silo.record_numbers is None else silo.record_numbers[kept],
    )

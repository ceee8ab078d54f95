"""A party's message in units of its noise, and what one unit alone would add to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from audit.evidence import RoundEvidence, RunEvidence
from calibrate.arrays import Floats
from calibrate.manifest.mechanism import GaussianNoise
from privfair.algorithms.algorithm import Algorithm, Message, SiloTensors
from privfair.algorithms.mmd_fedavg import UPDATES, MmdFedAvg
from privfair.contribution import Published

Received = Mapping[str, Mapping[str, Published]]


@dataclass(frozen=True, eq=False)
class Scaling:
    """The Gaussian values of a round that are read, each divided by its signed sigma.

    The first value begins with the model's gradient (or update) in every algorithm.
    """

    names: tuple[str, ...]
    sigmas: tuple[float, ...]

    @classmethod
    def of(cls, evidence: RunEvidence) -> Scaling | None:
        """None where no value is published with Gaussian noise in every round.

        MMD-FedAvg's predictions stand in a random order, so a record has no place of its own in them; they are left
        to the updates, which the same record moves.
        """
        read = (UPDATES,) if isinstance(evidence.algorithm, MmdFedAvg) else evidence.algorithm.shapes()
        rounds, values = evidence.document.rounds, []
        for name in read:
            declared = evidence.document.release(name)
            if isinstance(declared, GaussianNoise) and declared.publications == rounds:
                values.append((name, declared.sigma))
        return cls(tuple(n for n, _ in values), tuple(s for _, s in values)) if values else None

    def rows(self, party: str, series: Mapping[tuple[str, str], Floats]) -> tuple[Floats, ...]:
        """All rounds of a party, one row each; one array a value."""
        return tuple(series[party, name] / sigma for name, sigma in zip(self.names, self.sigmas, strict=True))

    def one(self, message: Message) -> tuple[Floats, ...]:
        """One message before its noise; one vector a value."""
        values = {value.name: value.values.ravel() for value in message.noisy}
        return tuple(values[name] / sigma for name, sigma in zip(self.names, self.sigmas, strict=True))


@dataclass(frozen=True, eq=False)
class Moment:
    """A round of the audited run: the state it started from and what was published in it."""

    step: int
    state: Any
    received: Received

    @classmethod
    def of(cls, evidence: RunEvidence, one: RoundEvidence) -> Moment:
        received: dict[str, dict[str, Published]] = {}
        header = evidence.transcript.header
        for party in header.parties:
            for spec in header.values:
                if one.round in set(evidence.transcript.rounds(party, spec.name).tolist()):
                    values = np.asarray(
                        evidence.transcript.value(one.round, party, spec.name), dtype=np.float64
                    )
                    received.setdefault(party, {})[spec.name] = Published(one.round, party, spec.name, values)
        return cls(one.step, one.state, received)


def alone(
    algorithm: Algorithm[Any], scaling: Scaling, moment: Moment, silo: SiloTensors, unit: int
) -> tuple[Floats, ...]:
    """What the production code has one unit add to its party's message (for MMD-FedAvg: its client)."""
    if isinstance(algorithm, MmdFedAvg):
        client = unit if silo.client_of_row is None else int(silo.client_of_row[unit])
        batch = torch.tensor([len(silo) + client])
        return scaling.one(algorithm.reply(moment.state, moment.step, silo, batch, moment.received))
    batch = torch.tensor([unit])
    return scaling.one(algorithm.contribution(moment.state, moment.step, silo, batch))

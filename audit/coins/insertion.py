"""The data of a canary run: records of the run's own data as a background, and canaries whose coins decide."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.signal import lfilter
from torch import Tensor

from audit.coins.canary_decoder import CoinMeaning
from audit.runs.evidence import RoundEvidence, RunEvidence
from audit.runs.rerun import RunWatch
from calibrate.arrays import Floats
from calibrate.errors import UnsupportedCombination
from calibrate.manifest.mechanism import GaussianNoise
from privfair.algorithms.algorithm import Algorithm, Message, SiloTensors
from privfair.algorithms.mmd_fedavg import UPDATES, MmdFedAvg
from privfair.contribution import Published

# A party's message in units of its noise, and what one unit alone would add to it.

Received = Mapping[str, Mapping[str, Published]]


@dataclass(frozen=True, eq=False)
class Scaling:
    """The Gaussian values of a round that are read, each divided by its signed sigma.

    The first value begins with the model's gradient (or update) in every algorithm.
    """

    names: tuple[str, ...]
    sigmas: tuple[float, ...]
    sizes: tuple[int, ...]
    """Numbers in each."""
    columns: tuple[tuple[float, ...], ...]
    """How each value's rounds are mixed before the noise; (1.0,) where they are not."""

    @classmethod
    def of(cls, evidence: RunEvidence) -> Scaling | None:
        """None where no value is published with Gaussian noise in every round.

        MMD-FedAvg's predictions stand in a random order, so a record has no place of its own in them; they are left
        to the updates, which the same record moves.
        """
        shapes = evidence.algorithm.shapes()
        read = (UPDATES,) if isinstance(evidence.algorithm, MmdFedAvg) else shapes
        rounds, values = evidence.document.rounds, []
        for name in read:
            declared = evidence.document.release(name)
            if isinstance(declared, GaussianNoise) and declared.publications == rounds:
                values.append((name, declared.sigma, math.prod(shapes[name]), declared.strategy or (1.0,)))
        if not values:
            return None
        names, sigmas, sizes, columns = zip(*values, strict=True)
        return cls(names, sigmas, sizes, columns)

    def rows(self, party: str, watch: RunWatch, *, noise: bool) -> tuple[Floats, ...]:
        """All rounds of a party, one row each; one array per value.

        A published value whose rounds were mixed is correlated with its column, which collects a unit's part at its
        round with its full size, under noise of the signed size.
        """
        found = []
        for name, sigma, size, column in zip(self.names, self.sigmas, self.sizes, self.columns, strict=True):
            rows = watch.rows(party, name, size, noise=noise) / sigma
            if noise and len(column) > 1:
                rows = np.asarray(lfilter(column, [1.0], rows[::-1], axis=0)[::-1])
            found.append(rows)
        return tuple(found)

    def one(self, message: Message) -> tuple[Floats, ...]:
        """One message before its noise; one vector per value, of zeros where nothing is sent."""
        values = {value.name: value.values.ravel() for value in message.noisy}
        each = zip(self.names, self.sigmas, self.sizes, strict=True)
        return tuple(values[name] / sigma if name in values else np.zeros(size) for name, sigma, size in each)


@dataclass(frozen=True, eq=False)
class ReplayedRound:
    """A round of the audited run: the state it started from and what was published in it."""

    step: int
    state: Any
    received: Received

    @classmethod
    def of(cls, evidence: RunEvidence, one: RoundEvidence) -> ReplayedRound:
        received: dict[str, dict[str, Published]] = {}
        header = evidence.transcript.header
        for party in header.parties:
            for spec in header.values:
                if one.round in set(evidence.transcript.rounds(party, spec.name).tolist()):
                    values = np.asarray(evidence.transcript.value(one.round, party, spec.name), dtype=np.float64)
                    received.setdefault(party, {})[spec.name] = Published(one.round, party, spec.name, values)
        return cls(one.step, one.state, received)


def alone(
    algorithm: Algorithm[Any], scaling: Scaling, at: ReplayedRound, silo: SiloTensors, unit: int
) -> tuple[Floats, ...]:
    """What the production code has one unit add to its party's message (for MMD-FedAvg: its client)."""
    if isinstance(algorithm, MmdFedAvg):
        client = unit if silo.client_of_row is None else int(silo.client_of_row[unit])
        batch = torch.tensor([len(silo) + client])
        return scaling.one(algorithm.reply(at.state, at.step, silo, batch, at.received))
    batch = torch.tensor([unit])
    return scaling.one(algorithm.contribution(at.state, at.step, silo, batch))


Coins = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Canaries:
    """The canaries of one silo: two versions of each, side 0 and side 1 (in-or-out coins use side 1 alone)."""

    x: tuple[Tensor, Tensor]
    y: tuple[Tensor, Tensor]
    s: Tensor
    rows: Tensor | None = None
    """Which rows of the background they stand in for; None: they come after it, each a unit of its own."""

    def __len__(self) -> int:
        return len(self.s)


@dataclass(frozen=True, eq=False)
class CanarySilo:
    """A background with its canaries.

    Two coin vectors that differ in one coin give data sets that differ in one unit: added or removed, or replaced.
    """

    background: SiloTensors
    units: int
    """Units of the background; users without records count."""
    canaries: Canaries
    meaning: CoinMeaning

    def __post_init__(self) -> None:
        if self.canaries.rows is not None and self.meaning is CoinMeaning.IN_OR_OUT:
            raise UnsupportedCombination(
                "canaries in the place of records under add-remove",
                "taking one out would put another record in, which is two steps of add-remove",
                "audit a replace-one promise, or canaries that are units of their own",
            )

    @property
    def name(self) -> str:
        return self.background.name

    def with_coins(self, coins: Coins) -> SiloTensors:
        """The silo as the coins have it."""
        match self.meaning:
            case CoinMeaning.IN_OR_OUT:
                chosen = torch.from_numpy(np.flatnonzero(coins))
                sides = torch.ones(len(chosen), dtype=torch.int64)
            case CoinMeaning.ONE_OF_TWO:
                chosen = torch.arange(len(self.canaries))
                sides = torch.from_numpy(np.asarray(coins, dtype=np.int64))
            case _:
                assert_never(self.meaning)
        x = torch.stack(self.canaries.x)[sides, chosen]
        y = torch.stack(self.canaries.y)[sides, chosen]
        if self.canaries.rows is None:
            return self._append(x, y, self.canaries.s[chosen])
        return self._replace(self.canaries.rows[chosen], x, y)

    def size(self, coins: Coins) -> int:
        """How many units the coins leave in the silo."""
        if self.canaries.rows is not None:
            return self.units
        return self.units + (len(coins) if self.meaning is CoinMeaning.ONE_OF_TWO else int(coins.sum()))

    def unit(self, canary: int) -> int:
        """The number of a canary's unit in a silo where every coin shows 1."""
        return self.units + canary if self.canaries.rows is None else int(self.canaries.rows[canary])

    def _append(self, x: Tensor, y: Tensor, s: Tensor) -> SiloTensors:
        back, owners = self.background, self.background.unit_of_row
        if owners is not None:
            owners = torch.cat((owners, self.units + torch.arange(len(y))))
        return replace(
            back, x=torch.cat((back.x, x)), y=torch.cat((back.y, y)), s=torch.cat((back.s, s)), unit_of_row=owners
        )

    def _replace(self, rows: Tensor, x: Tensor, y: Tensor) -> SiloTensors:
        back = self.background
        new_x, new_y = back.x.clone(), back.y.clone()
        new_x[rows], new_y[rows] = x, y
        return replace(back, x=new_x, y=new_y)


def first_units(silo: SiloTensors, number: int) -> SiloTensors:
    """The silo's first `number` units, all of them if it has no more."""
    if silo.unit_of_row is None:
        rows = torch.arange(min(number, len(silo)))
    else:
        rows = (silo.unit_of_row < number).nonzero()[:, 0]
    owners = None if silo.unit_of_row is None else silo.unit_of_row[rows]
    clients = None if silo.client_of_row is None else silo.client_of_row[rows]
    first = replace(silo, x=silo.x[rows], y=silo.y[rows], s=silo.s[rows], unit_of_row=owners, client_of_row=clients)
    return replace(first, users=0)

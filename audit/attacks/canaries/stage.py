"""The data of a canary run: records of the run's own data as a backdrop, and canaries whose coins decide."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.attacks.canaries.kinds import CoinMeaning
from calibrate.errors import UnsupportedCombination
from privfair.algorithms.algorithm import SiloTensors

Coins = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Canaries:
    """The canaries of one silo: two versions of each, side 0 and side 1 (in-or-out coins use side 1 alone)."""

    x: tuple[Tensor, Tensor]
    y: tuple[Tensor, Tensor]
    s: Tensor
    rows: Tensor | None = None
    """Which rows of the backdrop they stand in for; None: they come after it, each a unit of its own."""

    def __len__(self) -> int:
        return len(self.s)


@dataclass(frozen=True, eq=False)
class StagedSilo:
    """A backdrop with its canaries.

    Two coin vectors that differ in one coin give data sets that differ in one unit: added or removed, or replaced.
    """

    backdrop: SiloTensors
    units: int
    """Units of the backdrop; users without records count."""
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
        return self.backdrop.name

    def tossed(self, coins: Coins) -> SiloTensors:
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
            return self._appended(x, y, self.canaries.s[chosen])
        return self._in_place(self.canaries.rows[chosen], x, y)

    def size(self, coins: Coins) -> int:
        """How many units the coins leave in the silo."""
        if self.canaries.rows is not None:
            return self.units
        return self.units + (len(coins) if self.meaning is CoinMeaning.ONE_OF_TWO else int(coins.sum()))

    def unit(self, canary: int) -> int:
        """The number of a canary's unit in a silo where every coin shows 1."""
        return self.units + canary if self.canaries.rows is None else int(self.canaries.rows[canary])

    def _appended(self, x: Tensor, y: Tensor, s: Tensor) -> SiloTensors:
        back, owners = self.backdrop, self.backdrop.unit_of_row
        if owners is not None:
            owners = torch.cat((owners, self.units + torch.arange(len(y))))
        return replace(
            back,
            x=torch.cat((back.x, x)),
            y=torch.cat((back.y, y)),
            s=torch.cat((back.s, s)),
            unit_of_row=owners,
        )

    def _in_place(self, rows: Tensor, x: Tensor, y: Tensor) -> SiloTensors:
        back = self.backdrop
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
    return replace(
        silo, x=silo.x[rows], y=silo.y[rows], s=silo.s[rows], unit_of_row=owners, client_of_row=clients
    )

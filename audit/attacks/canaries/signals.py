"""How a canary shows in a message: the direction to look in, and what each side of its coin puts there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.attacks.canaries.directions import Interference
from audit.attacks.canaries.kinds import CoinMeaning
from audit.attacks.canaries.messages import Moment, Scaling, alone
from audit.attacks.canaries.stage import StagedSilo
from calibrate.arrays import Floats
from privfair.algorithms.algorithm import Algorithm

_Sides = tuple[tuple[Floats, ...], tuple[Floats, ...]]
_SMALLEST = 1e-12
NOISE_SHARES = (1.0, 0.1)
"""All of the signed noise, or a tenth: with little noise the data, not the noise, are what a canary hides in."""


@dataclass(frozen=True, eq=False)
class Signals:
    """For each of some rounds (knots), each canary of a silo and each value of the message.

    Looking along `looks` a value has noise of variance about one; side b of the coin adds `levels[b]` in a round in
    which the canary takes part, and nothing in another.
    """

    steps: tuple[int, ...]
    looks: tuple[Floats, ...]
    """One array a value: (knots, canaries, entries)"""
    levels: Floats
    """(knots, 2, canaries, values)"""

    @classmethod
    def of(
        cls,
        algorithm: Algorithm[Any],
        scaling: Scaling,
        moments: tuple[Moment, ...],
        silo: StagedSilo,
        interference: tuple[Interference, ...],
    ) -> tuple[Signals, ...]:
        """From what the production code has each canary, alone, add to a message; `interference` is one a value.

        One answer for each of `NOISE_SHARES`: the best look if so much of the signed noise is really there.
        """
        sides = [_sides(algorithm, scaling, moment, silo) for moment in moments]
        steps = tuple(moment.step for moment in moments)
        return tuple(
            cls._looking(steps, sides, tuple(one.with_noise(share) for one in interference))
            for share in NOISE_SHARES
        )

    @classmethod
    def _looking(
        cls, steps: tuple[int, ...], sides: list[_Sides], interference: tuple[Interference, ...]
    ) -> Signals:
        looks: list[list[Floats]] = []
        levels = []
        for zeros, ones in sides:
            pairs = [_look(*three) for three in zip(ones, zeros, interference, strict=True)]
            looks.append([look for look, _ in pairs])
            levels.append(np.stack([level for _, level in pairs], axis=-1))
        stacked = tuple(np.stack(of_value) for of_value in zip(*looks, strict=True))
        return cls(steps, stacked, np.stack(levels))

    def knot(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each step the last knot at or before it."""
        return np.maximum(np.searchsorted(self.steps, steps, side="right") - 1, 0)

    def seen(self, messages: tuple[Floats, ...]) -> Floats:
        """(rounds, canaries, values): the messages of all rounds, along each canary's looks."""
        rounds = len(messages[0])
        knots = self.knot(np.arange(rounds))
        out = np.empty((rounds, self.looks[0].shape[1], len(messages)))
        for value, rows in enumerate(messages):
            for knot in np.unique(knots):
                out[knots == knot, :, value] = rows[knots == knot] @ self.looks[value][knot].T
        return out

    def levels_of(self, rounds: int) -> Floats:
        """(2, rounds, canaries, values)"""
        return np.moveaxis(self.levels[self.knot(np.arange(rounds))], 1, 0)


def _look(one: Floats, zero: Floats, interference: Interference) -> tuple[Floats, Floats]:
    """The best linear look at side 1 against side 0, for each canary; and what each side shows there."""
    look = interference.weighted(one - zero)
    strength = np.sqrt(np.maximum((look * (one - zero)).sum(axis=1), _SMALLEST))
    look /= strength[:, None]
    return look, np.stack(((look * zero).sum(axis=1), (look * one).sum(axis=1)))


def _sides(algorithm: Algorithm[Any], scaling: Scaling, moment: Moment, silo: StagedSilo) -> _Sides:
    """What side 0 and side 1 of every canary's coin add, alone."""
    ones = _parts(algorithm, scaling, moment, silo, side=1)
    if silo.meaning is CoinMeaning.IN_OR_OUT:
        return tuple(np.zeros_like(one) for one in ones), ones
    return _parts(algorithm, scaling, moment, silo, side=0), ones


def _parts(
    algorithm: Algorithm[Any], scaling: Scaling, moment: Moment, silo: StagedSilo, side: int
) -> tuple[Floats, ...]:
    """Each canary's own part of each value; replaced coins show `side` everywhere, in-or-out ones are all in."""
    coins = np.full(len(silo.canaries), side, dtype=np.int64)
    tossed = silo.tossed(coins)
    units = (silo.unit(canary) for canary in range(len(silo.canaries)))
    found = [alone(algorithm, scaling, moment, tossed, unit) for unit in units]
    return tuple(np.stack(of_value) for of_value in zip(*found, strict=True))

"""Which canaries a run gets: how many, where, in which directions, and how each shows in a message.

Directions are chosen so that canaries disturb one another least.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from audit.coins.canary_decoder import CoinMeaning, Interference, coin_meaning, quiet_directions
from audit.coins.insertion import (
    LABEL,
    Canaries,
    CanaryModel,
    CanaryScales,
    CanarySilo,
    ReplayedRound,
    Scaling,
    alone,
    canary_features,
    first_units,
    require_unmarked,
)
from audit.runs.evidence import RunEvidence
from calibrate.arrays import Floats
from calibrate.sampling import (
    Cyclic,
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
    whole,
)
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.algorithms.mmd_fedavg import MmdFedAvg
from privfair.algorithms.parts.paid_scales import PaidScales
from privfair.batches.participation import declared_sampling
from privfair.models.fair_rule import FairRule
from privfair.models.model import Model
from privfair.models.scaled import ScaledModel

# How a canary shows in a message: the direction to look in, and what each side of its coin puts there.

_Sides = tuple[tuple[Floats, ...], tuple[Floats, ...]]
_SMALLEST = 1e-12
NOISE_SHARES = (1.0, 0.1)
"""All of the signed noise, or a tenth: with little noise the data, not the noise, are what a canary hides in."""


@dataclass(frozen=True, eq=False)
class CanarySignals:
    """For each of some rounds (knots), each canary of a silo and each value of the message.

    Looking along `looks` a value has noise of variance about one; side b of the coin adds `levels[b]` in a round in
    which the canary takes part, and nothing in another.
    """

    steps: tuple[int, ...]
    looks: tuple[Floats, ...]
    """One array per value: (knots, canaries, entries)"""
    levels: Floats
    """(knots, 2, canaries, values)"""

    @classmethod
    def of(
        cls,
        algorithm: Algorithm[Any],
        scaling: Scaling,
        replayed: tuple[ReplayedRound, ...],
        silo: CanarySilo,
        interference: tuple[Interference, ...],
    ) -> tuple[CanarySignals, ...]:
        """From what the production code has each canary, alone, add to a message; `interference` is one per value.

        One answer for each of `NOISE_SHARES`: the best look if so much of the signed noise is really there.
        """
        sides = [_sides(algorithm, scaling, at, silo) for at in replayed]
        steps = tuple(at.step for at in replayed)
        return tuple(
            cls._looking(steps, sides, tuple(one.with_noise(share) for one in interference)) for share in NOISE_SHARES
        )

    @classmethod
    def _looking(
        cls, steps: tuple[int, ...], sides: list[_Sides], interference: tuple[Interference, ...]
    ) -> CanarySignals:
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
    # Scaled so that the noise along the look has variance one: |S^-1/2 d|.
    strength = np.sqrt(np.maximum((look * (one - zero)).sum(axis=1), _SMALLEST))
    look /= strength[:, None]
    return look, np.stack(((look * zero).sum(axis=1), (look * one).sum(axis=1)))


def _sides(algorithm: Algorithm[Any], scaling: Scaling, at: ReplayedRound, silo: CanarySilo) -> _Sides:
    """What side 0 and side 1 of every canary's coin add, alone."""
    ones = _parts(algorithm, scaling, at, silo, side=1)
    if silo.meaning is CoinMeaning.IN_OR_OUT:
        return tuple(np.zeros_like(one) for one in ones), ones
    return _parts(algorithm, scaling, at, silo, side=0), ones


def _parts(
    algorithm: Algorithm[Any], scaling: Scaling, at: ReplayedRound, silo: CanarySilo, side: int
) -> tuple[Floats, ...]:
    """Each canary's own part of each value; replaced coins show `side` everywhere, in-or-out ones are all in."""
    coins = np.full(len(silo.canaries), side, dtype=np.int64)
    tossed = silo.with_coins(coins)
    units = (silo.unit(canary) for canary in range(len(silo.canaries)))
    found = [alone(algorithm, scaling, at, tossed, unit) for unit in units]
    return tuple(np.stack(of_value) for of_value in zip(*found, strict=True))


_MOST_PER_SILO = 12
_BACKGROUND = 24
"""This many units of the run's data are kept where the rest may be left out: the promise holds for every data set,
and the fewer others there are, the less they hide a canary."""
_SAMPLED_UNITS = 64
_MOST_NUMBERS = 2**25
"""Of units' and of canaries' parts that are held at once, 256 MB each: of a large model fewer of them are looked at."""


def affordable(wanted: int, numbers_each: int) -> int:
    """`wanted`, or as many as `_MOST_NUMBERS` leaves room for; two at least."""
    return min(wanted, max(2, _MOST_NUMBERS // max(1, numbers_each)))


@dataclass(frozen=True, eq=False)
class CanaryDesign:
    """Everything a canary run needs: the algorithm, the staged silos, and how to read the messages."""

    meaning: CoinMeaning
    algorithm: Algorithm[Any]
    silos: tuple[CanarySilo, ...]
    scaling: Scaling
    signals: Mapping[str, tuple[CanarySignals, ...]]
    """By silo, one for each share of the noise that may really be there."""
    rate: float
    """How often a unit takes part in a round."""
    epoch: int = 0
    """Rounds of an epoch in which each unit takes part once; 0 where rounds are drawn independently."""

    @property
    def coins(self) -> int:
        return sum(len(silo.canaries) for silo in self.silos)


def design_canaries(evidence: RunEvidence, scaling: Scaling, seed: int) -> CanaryDesign | None:
    """The canaries of a run; None where no round was finished. Coins play no part in any choice made here."""
    rounds = scaling.rounds(evidence)
    if not rounds:
        return None
    meaning = coin_meaning(evidence.document.guarantee.adjacency)
    replayed = tuple(ReplayedRound.of(evidence, rounds[place]) for place in sorted({0, len(rounds) - 1}))
    number = _canaries_per_silo(evidence)
    backgrounds = {silo.name: _background(evidence, silo, number) for silo in evidence.silos}
    ordinary = {
        name: sampled_units(evidence, scaling, (replayed[0], replayed[-1]), silo)
        for name, (silo, _) in backgrounds.items()
    }
    algorithm, canaries = _make_canaries(evidence, number, backgrounds, ordinary, seed)
    rate = participation_rate(evidence)
    silos = tuple(CanarySilo(silo, units, canaries[name], meaning) for name, (silo, units) in backgrounds.items())
    signals = {
        silo.name: CanarySignals.of(
            algorithm,
            scaling,
            replayed,
            silo,
            tuple(
                Interference.of(units, _population(evidence, silo.background), rate) for units in ordinary[silo.name]
            ),
        )
        for silo in silos
    }
    schemes = (whole(declaration.scheme) for declaration in evidence.document.sampling)
    epoch = next((_epoch(scheme) for scheme in schemes), 0)
    return CanaryDesign(meaning, algorithm, silos, scaling, signals, rate=rate, epoch=epoch)


def _epoch(scheme: Sampling) -> int:
    match scheme:
        case RandomAllocation(batches=batches):
            return batches
        case Cyclic(groups=groups, rate=1.0):
            return groups
        case _:
            return 0


def participation_rate(evidence: RunEvidence) -> float:
    """The share of rounds in which a unit (for MMD-FedAvg: its client) takes part."""
    if isinstance(evidence.algorithm, MmdFedAvg):
        return evidence.algorithm.terms.cohort / len(evidence.algorithm.terms.clients)
    match declared_sampling(evidence.document):
        case None:
            return 1.0
        case Poisson(rate=rate) | TruncatedPoisson(rate=rate):
            return rate
        case WithReplacement(population=population, draws=draws):
            return min(1.0, draws / population)
        case RandomAllocation(batches=batches):
            return 1 / batches
        case Cyclic(groups=groups, rate=rate):
            return rate / groups
        case FixedSize() | ShuffledEpochs() as sized:
            return min(1.0, sized.size / sized.population)


def _canaries_per_silo(evidence: RunEvidence) -> int:
    parties, parameters = len(evidence.silos), _trained(evidence).size
    smallest = min(silo.size for silo in evidence.document.data.silos)
    room = parameters // 2 // parties
    if isinstance(evidence.algorithm, MmdFedAvg):
        room = min(room, len(evidence.algorithm.terms.clients) // 2)
    return max(1, min(room, affordable(_MOST_PER_SILO, parties * parameters), smallest // 2))


def _background(evidence: RunEvidence, silo: SiloTensors, canaries: int) -> tuple[SiloTensors, int]:
    """The ordinary units: all of them but those the canaries stand in for, or fewer where that changes nothing."""
    require_unmarked(silo.x)
    signed = next(one.size for one in evidence.document.data.silos if one.name == silo.name)
    if isinstance(evidence.algorithm, MmdFedAvg):
        return silo, signed
    left = signed - canaries
    if isinstance(declared_sampling(evidence.document), Poisson | RandomAllocation | TruncatedPoisson | Cyclic):
        left = min(left, _BACKGROUND)
    # Users without records are units too, so cohorts of a fixed size need the number of users, not their records.
    return first_units(silo, left if silo.unit_of_row is None else min(left, _BACKGROUND)), left


def _population(evidence: RunEvidence, silo: SiloTensors) -> int:
    """How many units with data a background has (for MMD-FedAvg: clients)."""
    if isinstance(evidence.algorithm, MmdFedAvg):
        return len(evidence.algorithm.terms.clients)
    return len(silo) if silo.unit_of_row is None else len(torch.unique(silo.unit_of_row))


def sampled_units(
    evidence: RunEvidence, scaling: Scaling, replayed: tuple[ReplayedRound, ...], silo: SiloTensors
) -> tuple[Floats, ...]:
    """What some ordinary units add to each value, at the start and at the end of the run."""
    by_row = silo.unit_of_row is None or isinstance(evidence.algorithm, MmdFedAvg)
    units = torch.arange(len(silo)) if by_row else torch.unique(silo.unit_of_row)
    held = len(replayed) * len(evidence.silos) * _trained(evidence).size
    number = affordable(min(len(units), _SAMPLED_UNITS), held)
    places = units[torch.linspace(0, len(units) - 1, number).long()]
    found = [alone(evidence.algorithm, scaling, at, silo, place) for at in replayed for place in places.tolist()]
    return tuple(np.stack(of_value) for of_value in zip(*found, strict=True))


def _make_canaries(
    evidence: RunEvidence,
    number: int,
    backgrounds: Mapping[str, tuple[SiloTensors, int]],
    ordinary: Mapping[str, tuple[Floats, ...]],
    seed: int,
) -> tuple[Algorithm[Any], dict[str, Canaries]]:
    """The algorithm the canaries are run with, and what they are in each silo."""
    trained = _trained(evidence)
    pooled = np.concatenate([values[0][:, : trained.size] for values in ordinary.values()])
    rows = quiet_directions(pooled, number * len(backgrounds), seed)
    table = torch.from_numpy(np.concatenate((rows, -rows)))
    return _with_model(evidence.algorithm, CanaryModel(trained, table)), {
        name: _gradient_canaries(evidence, silo, np.arange(len(rows))[place :: len(backgrounds)], len(rows))
        for place, (name, (silo, _)) in enumerate(backgrounds.items())
    }


def _gradient_canaries(evidence: RunEvidence, silo: SiloTensors, numbers: NDArray[np.int64], opposite: int) -> Canaries:
    """Side 1 pulls along its direction, side 0 against it."""
    one = torch.stack([canary_features(silo.x[0], int(number)) for number in numbers])
    zero = torch.stack([canary_features(silo.x[0], int(number) + opposite) for number in numbers])
    labels = torch.full((len(numbers),), LABEL, dtype=silo.y.dtype)
    return _place(evidence, silo, Canaries((zero, one), labels, torch.zeros_like(labels)))


def _place(evidence: RunEvidence, silo: SiloTensors, canaries: Canaries) -> Canaries:
    """In MMD-FedAvg a canary replaces a record of a client of its own; elsewhere it is a unit of its own."""
    if not isinstance(evidence.algorithm, MmdFedAvg):
        return canaries
    assert silo.client_of_row is not None
    clients = torch.unique(silo.client_of_row)
    chosen = clients[torch.linspace(0, len(clients) - 1, len(canaries)).long()]
    rows = []
    for client in chosen.tolist():
        own = (silo.client_of_row == client).nonzero()[:, 0]
        fitting = own[silo.y[own] == LABEL]
        rows.append(int(fitting[0] if len(fitting) else own[0]))
    places = torch.tensor(rows)
    return Canaries(canaries.x, canaries.y, silo.s[places], places)


def _trained(evidence: RunEvidence) -> Model:
    """The model whose gradients are sent: the released one, or the classifier inside a fair rule."""
    model = evidence.model.inner if isinstance(evidence.model, ScaledModel) else evidence.model
    return model.score if isinstance(model, FairRule) else model


def _with_model(algorithm: Algorithm[Any], model: Model) -> Algorithm[Any]:
    """The same algorithm on another model; algorithms are frozen and hold their model by that name."""
    if isinstance(algorithm, PaidScales):
        return CanaryScales(**vars(algorithm) | {"inner": _with_model(algorithm.inner, model)})
    assert is_dataclass(algorithm)
    return replace(algorithm, model=model)

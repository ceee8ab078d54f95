"""Scales that are paid for: a histogram of every numeric column, published before an algorithm starts.

Public bounds say where a column may lie, not where it lies: a column of [20, 1000] whose values are near 80 is almost
constant to a clipped gradient. So the first step publishes, as one vector, how many records are in each of 128 cells of
every numeric column, and of each class (and group). Centre and width are computed from the noisy cells, and the inner
algorithm trains on features scaled by them, from the intercept that the class counts suggest. One record is in exactly
one cell of each histogram: docs/theorems/fair-plugin.md#paid-scales.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast, final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import CheckFailed, InvalidInput
from calibrate.manifest.mechanism import GaussianNoise
from calibrate.plans.plan import SCALES, Plan
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.descent import tensor
from privfair.algorithms.recipe import Blueprint
from privfair.contribution import BoundedContribution
from privfair.models.model import EXACT, Model
from privfair.models.scaled import ScaledModel, Scales

CELLS = 128
_EDGES = np.arange(1, CELLS) / CELLS
"""Between the cells of [0, 1], on which public bounds put a numeric column; exact in binary."""
_KEPT = 0.7
"""The finest resolution at which cells with this share of all records stand out of the noise is taken."""
_SURE = 0.02
"""Classes start from at least this share."""


class Starting(Protocol):
    """An algorithm that can start from given intercepts, one vector per label."""

    model: Model

    def start_at(self, *intercepts: Tensor) -> Any: ...


@final
@dataclass(frozen=True, eq=False)
class ScaledState:
    """The inner algorithm's state, and the scales."""

    inner: Any
    scales: Scales


@dataclass(frozen=True, eq=False)
class PaidScales(Algorithm[ScaledState]):
    """An inner algorithm after a histogram of the columns.

    Guarantee: with `columns` numeric columns and l labels one record adds a vector of length sqrt(columns + l) to
    `scale_histogram`; what the inner algorithm guarantees of a record holds of the scaled record, which is a function
    of the record and of published values (docs/theorems/fair-plugin.md#paid-scales).
    """

    inner: Algorithm[Any]
    model: ScaledModel
    public: Scales
    """Of columns that are not paid for, and of all until they are."""
    columns: int
    units: int
    labels: tuple[int, ...]
    """How many classes, and groups, are counted with the columns."""
    scale_bound: float | None = None
    scale_noise: float = 0.0
    """The standard deviation of the noise in one cell, of all silos together."""

    @property
    def _before(self) -> int:
        return 0 if self.scale_bound is None else 1

    def clear_values(self) -> tuple[ClearValue, ...]:
        return self.inner.clear_values()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes = dict(self.inner.shapes())
        if self.scale_bound is not None:
            shapes[SCALES] = (self.columns * CELLS + sum(self.labels),)
        return shapes

    def start(self) -> ScaledState:
        return ScaledState(self.inner.start(), self.public)

    def contribution(self, state: ScaledState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        if step < self._before:
            assert self.scale_bound is not None
            measured = self.scale_bound if len(batch) else 0.0  # each record is in exactly one cell of each histogram
            return Message(noisy=(BoundedContribution(SCALES, self._columns(silo, batch), self.scale_bound, measured),))
        return self.inner.contribution(state.inner, step - self._before, self.scaled(state, silo), batch)

    def scaled(self, state: ScaledState, silo: SiloTensors) -> SiloTensors:
        """The silo as the inner algorithm sees it."""
        return replace(silo, x=state.scales.of_silo(silo.x))

    def _columns(self, silo: SiloTensors, batch: Tensor) -> Floats:
        """How many records are in each cell of each column, then in each class (and group)."""
        x, y, s = silo.columns(batch)
        values = x.tensor.numpy()
        cells = [np.searchsorted(_EDGES, values[:, column], side="right") for column in range(self.columns)]
        sizes = (*(CELLS for _ in cells), *self.labels)
        codes = (*cells, y.numpy(), s.numpy())
        counts = [np.bincount(code, minlength=size) for code, size in zip(codes, sizes, strict=False)]
        return np.concatenate(counts).astype(np.float64)

    def update(self, state: ScaledState, received: Received) -> ScaledState:
        if SCALES in set().union(*received.values()):
            return self._begun(np.sum([values[SCALES].values for values in received.values()], axis=0))
        return replace(state, inner=self.inner.update(state.inner, received))

    def _begun(self, told: Floats) -> ScaledState:
        """The inner algorithm at the scales and intercepts that the noisy counts suggest."""
        columns, labels = np.split(told, [self.columns * CELLS])
        counts = np.split(labels, np.cumsum(self.labels)[:-1])
        total = max(float(np.mean([one.sum() for one in counts])), float(self.units))
        centre, width = self.public.centre.clone(), self.public.width.clone()
        for column, cells in enumerate(columns.reshape(-1, CELLS)):
            centre[column], width[column] = centre_and_width(cells, self.scale_noise, self.columns, total)
        began = cast("Starting", self.inner).start_at(*(intercepts(one, total) for one in counts))
        return ScaledState(began, Scales(centre, width))

    def theta(self, state: ScaledState) -> Tensor:
        return self.model.join(self.inner.theta(state.inner), state.scales)

    def remarks(self, state: ScaledState) -> tuple[str, ...]:
        return self.inner.remarks(state.inner)

    def checkpoint(self, state: ScaledState) -> dict[str, Floats]:
        own = {"centre": state.scales.centre.numpy(), "width": state.scales.width.numpy()}
        return self.inner.checkpoint(state.inner) | {f"scaled {name}": value for name, value in own.items()}

    def restore(self, arrays: Mapping[str, Floats]) -> ScaledState:
        own = {name.removeprefix("scaled "): value for name, value in arrays.items() if name.startswith("scaled ")}
        if len(own) != 2:
            raise CheckFailed("a state without 'centre' and 'width' is of another algorithm or version")
        scales = Scales(tensor(own["centre"]), tensor(own["width"]))
        inner = {name: value for name, value in arrays.items() if not name.startswith("scaled ")}
        return ScaledState(self.inner.restore(inner), scales)


# What follows from noisy counts.


def centre_and_width(cells: Floats, noise: float, columns: int, total: float) -> tuple[float, float]:
    """Centre and two standard deviations of a column, by the cells that stand out of the noise of all columns' cells.

    At the finest resolution at which these hold 70% of `total`, else at the one at which they hold most; without any,
    the middle of the bounds.
    """
    best, most = np.ones(1), 0.0
    while len(cells) >= 4:
        outstanding = np.where(cells > noise * math.sqrt(2 * math.log(len(cells) * columns)), cells, 0.0)
        if outstanding.sum() > most:
            best, most = outstanding, float(outstanding.sum())
        if most >= _KEPT * total:
            break
        cells, noise = cells.reshape(-1, 2).sum(axis=1), noise * math.sqrt(2)
    if most <= 0:
        return 0.5, 0.5
    places, shares = (np.arange(len(best)) + 0.5) / len(best), best / most
    centre = float(shares @ places)
    return centre, 2 * math.sqrt(float(shares @ (places - centre) ** 2) + 1 / (12 * len(best) ** 2))


def intercepts(counts: Floats, total: float) -> Tensor:
    """The scores of a model without features that these noisy counts of classes suggest; one score for two classes."""
    logs = np.log(np.clip(counts / total, _SURE, 1 - _SURE))
    return torch.from_numpy(logs[1:] - logs[:1] if len(logs) == 2 else logs)


# From a plan to the algorithm around its inner one.


def blueprint_inside(blueprint: Blueprint[Any]) -> Blueprint[Any]:
    """What the inner algorithm is built from: the inner model, and the rounds that are left to it."""
    plan = blueprint.plan(Plan)  # type: ignore[type-abstract]
    if not isinstance(blueprint.model, ScaledModel):
        return blueprint
    taken = sum(1 for value in plan.once() if value.name == SCALES)
    return replace(blueprint, model=blueprint.model.inner, rounds=blueprint.rounds - taken)


def around(inner: Algorithm[Any], blueprint: Blueprint[Any], columns: int, labels: tuple[int, ...]) -> PaidScales:
    """The inner algorithm with what its plan pays for around it."""
    model, names = blueprint.model, {value.name for value in blueprint.plan(Plan).once()}  # type: ignore[type-abstract]
    assert isinstance(model, ScaledModel)
    features = blueprint.feature_shape[0]
    if columns > features or columns != (columns if blueprint.numeric is None else blueprint.numeric):
        known = features if blueprint.numeric is None else blueprint.numeric
        rule = f"is not the number of numeric columns, {known}"
        raise InvalidInput("[privacy] scale-columns", columns, rule, f"write scale-columns = {known}, or drop it")
    return PaidScales(
        inner,
        model,
        _public_scales(blueprint, columns, features),
        columns,
        units=blueprint.units,
        labels=labels,
        scale_bound=blueprint.bound(SCALES) if SCALES in names else None,
        scale_noise=noise_of_sum(blueprint, SCALES) if SCALES in names else 0.0,
    )


def noise_of_sum(blueprint: Blueprint[Any], name: str) -> float:
    """The standard deviation of the signed noise in the sum of all silos; 0 while none is signed."""
    signed = blueprint.signed(name)
    return signed.sigma * math.sqrt(len(blueprint.parties)) if isinstance(signed, GaussianNoise) else 0.0


def _public_scales(blueprint: Blueprint[Any], columns: int, features: int) -> Scales:
    """The middle of the bounds for numeric columns; one over their number for the indicators of a category."""
    centre, width = torch.zeros(features, dtype=EXACT), torch.ones(features, dtype=EXACT)
    centre[:columns], width[:columns] = 0.5, 0.5
    centre[columns : columns + len(blueprint.category_shares)] = torch.tensor(blueprint.category_shares, dtype=EXACT)
    return Scales(centre, width)

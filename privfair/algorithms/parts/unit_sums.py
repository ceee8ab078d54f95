"""Sums over a silo's records or users: of gradients and of counts, each unit's part clipped where it is priced.

A unit is a record, or a user whose rows are clipped as a whole. Without a clip nothing is priced: then the groups are
known from randomised responses, as soft memberships, and the sum is sent in the clear.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from calibrate.errors import InvalidInput
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.parts.local_models import drawn_rows
from privfair.algorithms.parts.user_statistics import Layout, Statistics, norms_of_users, rows_of_users
from privfair.contribution import BoundedContribution
from privfair.fairness.constraints import RateValue, ResponseChannel
from privfair.models.model import Features, Model, clipped_to, tensor_of
from privfair.rounding import sum_in_blocks


@dataclass(frozen=True, eq=False)
class SeenRecords:
    """The records of a batch; `s` and `members` come from responses where attributes are protected."""

    x: Features
    y: Tensor
    s: Tensor
    members: Tensor
    owner: Tensor | None = None
    """Each row's user, where users are protected."""

    @classmethod
    def of(cls, silo: SiloTensors, batch: Tensor, groups: int) -> SeenRecords:
        """The batch as it is, with its true attributes: of users, where rows have owners."""
        if silo.unit_of_row is not None:
            rows, owner = rows_of_users(silo, batch)
            x, y, s = drawn_rows(silo, rows)
            return cls(x, y, s, one_hot(s, groups).to(torch.float64), owner)
        x, y, s = drawn_rows(silo, batch)
        return cls(x, y, s, one_hot(s, groups).to(torch.float64))

    @classmethod
    def of_responses(cls, silo: SiloTensors, batch: Tensor, given: Tensor, channel: ResponseChannel) -> SeenRecords:
        """The batch with its published responses; no true attribute is read."""
        x = silo.batch(batch)
        answered = x.of(given[: len(silo)])
        return cls(x, x.of(silo.y), answered, channel.memberships(answered))

    def only(self, mask: Tensor) -> SeenRecords:
        """The records where the mask holds."""
        if bool(mask.all()):
            return self
        owner = None if self.owner is None else self.owner[mask]
        return SeenRecords(self.x[mask], self.y[mask], self.s[mask], self.members[mask], owner)


def attributes_to_randomise(silo: SiloTensors, largest_silo: int) -> NDArray[np.int64]:
    """The silo's attributes, filled up to the signed length with constants that nobody uses."""
    if len(silo) > largest_silo:
        rule, remedy = f"exceed the signed {largest_silo}", "have the largest silo's size signed"
        raise InvalidInput(f"records of {silo.name}", len(silo), rule, remedy)
    filled = np.zeros(largest_silo, dtype=np.int64)
    filled[: len(silo)] = silo.s.numpy()
    return filled


@dataclass(frozen=True, eq=False)
class _Weight:
    """Each record's coefficient as it is given."""

    given: Tensor

    def __call__(self, norms: Tensor, losses: Tensor) -> Tensor:
        return self.given


def gradient_sum(
    name: str, model: Model, theta: Tensor, seen: SeenRecords, soft: Tensor | None, hard: Tensor, clip: float | None
) -> BoundedContribution:
    """The sum of the cross-entropy's gradients: of each record (or user) clipped, or of soft labels as they are."""
    if clip is None:
        labels = [(hard, torch.ones(len(hard), dtype=torch.float64))]
        if soft is not None:
            labels = [(torch.full_like(hard, code), weight) for code, weight in enumerate(soft.unbind(dim=1))]
        parts = [model.weighted_gradient(theta, seen.x, label, _Weight(weight)).total for label, weight in labels]
        total = torch.stack(parts).sum(dim=0)
        return BoundedContribution(name, total.numpy(), 1.0, 0.0)
    if seen.owner is None:
        found = model.weighted_gradient(theta, seen.x, hard, clipped_to(clip))
        return BoundedContribution(name, found.total.numpy().astype(np.float64), clip, found.largest_part)
    users = int(seen.owner.max()) + 1 if len(hard) else 0
    silo = SiloTensors("", tensor_of(seen.x), hard, hard, unit_of_row=seen.owner)
    statistics = Statistics(model, Layout(model.size, 0, 0), (), RateValue.PREDICTIONS)
    total, largest = statistics.summed(theta, silo, torch.arange(users), clip)
    return BoundedContribution(name, total.numpy(), clip, largest)


def count_sum(name: str, seen: SeenRecords, cell: Tensor, cells: int, clip: float | None) -> BoundedContribution:
    """(groups, cells): how many records of each group are in each cell; a user's counts are clipped as a whole."""
    groups = seen.members.shape[1]
    if seen.owner is None:
        table = seen.members.T @ one_hot(cell, cells).to(torch.float64)
        return BoundedContribution(name, table.numpy(), 1.0 if clip is None else clip, 1.0 if len(cell) else 0.0)
    assert clip is not None
    users = int(seen.owner.max()) + 1 if len(cell) else 0
    vectors = torch.zeros(users, groups * cells, dtype=torch.float64)
    vectors.index_put_((seen.owner, seen.s * cells + cell), torch.ones(len(cell), dtype=torch.float64), True)
    summed = _clipped_users(name, vectors, clip)
    return replace(summed, values=summed.values.reshape(groups, cells))


def _clipped_users(name: str, vectors: Tensor, clip: float) -> BoundedContribution:
    """The sum of the users' vectors, one per row, each clipped as a whole."""
    norms = norms_of_users(vectors)
    factors = clipped_to(clip)(norms, norms)
    largest = float((factors * norms).max()) if len(norms) else 0.0
    total = sum_in_blocks(len(vectors), lambda rows: factors[rows] @ vectors[rows])
    return BoundedContribution(name, total.numpy(), clip, largest)

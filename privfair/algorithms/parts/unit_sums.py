"""Sums over a silo's records or users: of gradients, counts and rates, each unit's part clipped where it is priced.

A unit is a record, or a user whose rows are clipped as a whole: the gradient of a user is the sum of their records'
gradients, and only its own norm may be clipped. So gradients of single records are formed here, a block of them at a
time, and added user by user. Without a clip nothing is priced: then the groups are known from randomised responses, as
soft memberships, and the sum is sent in the clear.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from privfair.algorithms.algorithm import Received, SiloTensors
from privfair.contribution import BoundedContribution
from privfair.fairness.constraints import Rate, RateValue, ResponseChannel, counted_values
from privfair.models.exact import cross_entropy, folded_squares, probabilities_of, root, row_sum, through_softmax
from privfair.models.model import Features, Model, clipped_to
from privfair.rounding import ROUNDING_SLACK, RunningTotal, blocks_of, sum_in_blocks, terms_per_block

_BLOCK = 2**23
"""Gradient entries held at once."""


@final
@dataclass(frozen=True)
class Layout:
    """[grad L, then for each rate and group: value, count; then their gradients; then what selection needs beside]."""

    parameters: int
    groups: int
    rates: int
    selection: tuple[str, ...] = ()
    """Of records and hits, those that the rates do not tell (`selection_entries`)."""

    @property
    def cells(self) -> int:
        return self.rates * self.groups

    @property
    def size(self) -> int:
        return self.parameters * (1 + self.cells) + 2 * self.cells + len(self.selection)

    def split(self, vector: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Loss gradient; values, counts (rates, groups); gradients (rates, groups, parameters); selection."""
        p, cells, shape = self.parameters, self.cells, (self.rates, self.groups)
        sizes = [p, cells, cells, cells * p, vector.numel() - p - 2 * cells - cells * p]
        pieces = torch.split(vector, sizes)
        loss, values, counts, gradients, rest = pieces
        return loss, values.view(shape), counts.view(shape), gradients.view(*shape, p), rest


RECORDS, HITS = "records", "hits"
"""What choosing a model by its cohort's accuracy needs."""


def records_and_hits(rates: tuple[Rate, ...], values: Floats, counts: Floats) -> tuple[float, float]:
    """The cohort's records and right answers, added up from its rates (predictions counted); nan where they don't tell.

    `values` and `counts` are the rates' sums over all groups.
    """
    nothing = float("nan")
    everybody = [number for number, rate in enumerate(rates) if rate.given is None]
    accuracy = [number for number in everybody if rates[number].counted is None]
    if accuracy:
        return float(counts[accuracy[0]]), float(values[accuracy[0]])
    if everybody:
        return float(counts[everybody[0]]), nothing
    counted = {rate.counted for rate in rates}
    if len(counted) == 1 and [rate.given for rate in rates] == [0, 1]:  # two classes, within each of them
        right = [float(v if rate.given in counted else n - v) for rate, v, n in zip(rates, values, counts, strict=True)]
        return float(counts.sum()), sum(right)
    return nothing, nothing


def selection_entries(rates: tuple[Rate, ...], value: RateValue) -> tuple[str, ...]:
    """Which of records and hits a vector must hold beside its rates: every entry more takes from the clip's room."""
    records, hits = records_and_hits(rates, np.zeros(len(rates)), np.zeros(len(rates)))
    counted = value is RateValue.PREDICTIONS
    return (*((RECORDS,) if np.isnan(records) else ()), *((HITS,) if np.isnan(hits) or not counted else ()))


@final
@dataclass(frozen=True, eq=False)
class Statistics:
    """How a user's vector is computed; pure in everything."""

    model: Model
    layout: Layout
    rates: tuple[Rate, ...]
    rate_value: RateValue
    weights: tuple[tuple[float, ...], ...] = ()
    """How often the records of each class (a row each) and group count in the loss; left out, all count alike."""

    def summed(self, theta: Tensor, silo: SiloTensors, cohort: Tensor, clip: float | None) -> tuple[Tensor, float]:
        """The cohort's vectors, each clipped as a whole, added up; and the largest norm after clipping.

        Guarantee: with a clip no user's vector is longer, rounding included, so adding or removing a user moves the
        sum by at most `clip` and replacing one by at most twice that. A user without records adds nothing.

        Without a clip no user's own vector is needed: the sums are taken at once, and nothing is measured.
        """
        rows, owner = rows_of_users(silo, cohort)
        columns = silo.columns(rows)
        if clip is None:
            return self._sum_unclipped(theta, *columns), 0.0
        return self.of_rows(theta, *columns, owner, clip)

    def of_rows(
        self, theta: Tensor, x: Features, y: Tensor, s: Tensor, owner: Tensor, clip: float
    ) -> tuple[Tensor, float]:
        """The same of records; `owner` is each one's user and not decreasing."""
        total, largest = RunningTotal(torch.zeros(self.layout.size, dtype=torch.float64)), 0.0
        at_once = terms_per_block(len(y))
        for rows, own, users in self._blocks(owner):
            vectors = self._vectors(theta, x[rows], y[rows], s[rows], own, users)
            norms = root(folded_squares(vectors))
            factors = (clip / (1.0 + ROUNDING_SLACK) / norms).clamp_max(1.0)
            vectors.mul_(factors[:, None])
            for some in blocks_of(users, at_once):
                total.add(vectors[some].sum(dim=0))
            largest = max(largest, float((norms * factors).max()))
        return total.value, largest

    def _sum_unclipped(self, theta: Tensor, x: Features, y: Tensor, s: Tensor) -> Tensor:
        out, layout = torch.zeros(self.layout.size, dtype=torch.float64), self.layout
        if len(y) == 0:
            return out
        loss, values, counts, gradients, selection = layout.split(out)
        factors = self._factors(y, s)
        loss += self.model.weighted_gradient(theta, x, y, lambda norms, losses: factors.to(norms.dtype)).total
        probabilities = self.model.probabilities(theta, x)
        predicted = probabilities.argmax(dim=1)
        counted = counted_values(probabilities, predicted, self.rate_value)
        for number, rate in enumerate(self.rates):
            directions = rate.directions(y, self.model.classes)
            for group in range(layout.groups):
                inside = (rate.members(y) & (s == group)).nonzero()[:, 0]
                if len(inside) == 0:
                    continue
                counts[number, group] = len(inside)
                values[number, group] = (directions[inside] * counted[inside]).sum() + rate.offset * len(inside)
                gradients[number, group] = self.model.probability_gradient(theta, x[inside], directions[inside])
        hits = (predicted == y).to(torch.float64)
        for place, name in enumerate(layout.selection):
            selection[place] = float(hits.sum()) if name == HITS else len(y)
        return out

    def _blocks(self, owner: Tensor) -> Iterator[tuple[slice, Tensor, int]]:
        """Whole users with their rows, as many as fit: (rows, position of each row's user, users)."""
        if len(owner) == 0:
            return
        _, owner, sizes = torch.unique_consecutive(owner, return_inverse=True, return_counts=True)
        ends = sizes.cumsum(0)
        # A block's records and its users' vectors are both held.
        most = max(1, _BLOCK // self.layout.size)
        first, start = 0, 0
        while first < len(sizes):
            last = max(first + 1, int(torch.searchsorted(ends, start + most, right=True)))
            end = int(ends[last - 1])
            yield slice(start, end), owner[start:end] - first, last - first
            first, start = last, end

    def _vectors(self, theta: Tensor, x: Features, y: Tensor, s: Tensor, owner: Tensor, users: int) -> Tensor:
        layout, out = self.layout, torch.zeros(users, self.layout.size, dtype=torch.float64)
        p, cells = layout.parameters, layout.cells
        logits = self.model.logits(theta, x)
        probabilities = probabilities_of(logits)
        slopes = cross_entropy(logits, y)[1] * self._factors(y, s)[:, None]
        add_in_order(out[:, :p], owner, self.model.score_gradients(theta, x, slopes))
        predicted = probabilities.argmax(dim=1)
        counted = counted_values(probabilities, predicted, self.rate_value)
        for number, rate in enumerate(self.rates):
            inside = rate.members(y).nonzero()[:, 0]
            if len(inside) == 0:
                continue
            directions = rate.directions(y[inside], self.model.classes)
            own, cell = owner[inside], number * layout.groups + s[inside]
            values = torch.from_numpy(row_sum((directions * counted[inside]).numpy())) + rate.offset
            pulled = through_softmax(probabilities[inside], directions)
            gradients = self.model.score_gradients(theta, x[inside], pulled)
            for group in range(layout.groups):
                at, of = number * layout.groups + group, (cell == number * layout.groups + group).nonzero()[:, 0]
                first = p + 2 * cells + at * p
                add_in_order(out[:, p + at : p + at + 1], own[of], values[of])
                add_in_order(out[:, p + cells + at : p + cells + at + 1], own[of], torch.ones_like(values[of]))
                add_in_order(out[:, first : first + p], own[of], gradients[of])
        hits = (predicted == y).to(torch.float64)[:, None]
        for column, name in enumerate(layout.selection, start=layout.size - len(layout.selection)):
            add_in_order(out[:, column : column + 1], owner, hits if name == HITS else torch.ones_like(hits))
        return out

    def _factors(self, y: Tensor, s: Tensor) -> Tensor:
        """How often each record counts in the loss, by its own class and group alone."""
        if not self.weights:
            return torch.ones(len(y), dtype=torch.float64)
        return torch.tensor(self.weights, dtype=torch.float64)[y, s]


def add_in_order(out: Tensor, owner: Tensor, rows: Tensor) -> None:
    """Add each row to its owner's, a user's rows one after another: no operation mixes two users.

    `owner` is not decreasing, as `rows_of_users` gives it. Each pass adds one row to every user who has that many.
    """
    if len(owner) == 0:
        return
    _, inverse, sizes = torch.unique_consecutive(owner, return_inverse=True, return_counts=True)
    rank = torch.arange(len(owner)) - (sizes.cumsum(0) - sizes)[inverse]
    places, given = out.numpy(), rows.numpy()
    for number in range(int(sizes.max())):
        of = np.flatnonzero(rank.numpy() == number)
        places[slice(None) if len(of) == len(places) else owner.numpy()[of]] += given.take(of, axis=0)


def rows_of_users(silo: SiloTensors, cohort: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of the cohort's users, user by user, and for each row its user's position in the cohort.

    Without users every row is a user of its own.
    """
    if silo.unit_of_row is None:
        return cohort, torch.arange(len(cohort))
    if len(cohort) == 0 or len(silo) == 0:
        return cohort[:0], cohort[:0]
    real = cohort if silo.copies == 1 else cohort % (silo.users // silo.copies)
    sizes = torch.bincount(silo.unit_of_row, minlength=int(real.max()) + 1)
    ordered, starts = torch.argsort(silo.unit_of_row, stable=True), sizes.cumsum(0) - sizes
    lengths = sizes[real]
    owner = torch.repeat_interleave(torch.arange(len(cohort)), lengths)
    before = (lengths.cumsum(0) - lengths)[owner]
    return ordered[starts[real][owner] + torch.arange(len(owner)) - before], owner


def summed_statistics(received: Received, name: str) -> Tensor:
    """What all parties published under this name, added up: each user belongs to one party."""
    return torch.from_numpy(np.sum([values[name].values for values in received.values()], axis=0))


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
            x, y, s = silo.columns(rows)
            return cls(x, y, s, one_hot(s, groups).to(torch.float64), owner)
        x, y, s = silo.columns(batch)
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
    statistics = Statistics(model, Layout(model.size, 0, 0), (), RateValue.PREDICTIONS)
    total, largest = statistics.of_rows(theta, seen.x, hard, hard, seen.owner, clip)
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
    norms = root(folded_squares(vectors))
    factors = clipped_to(clip)(norms, norms)
    largest = float((factors * norms).max()) if len(norms) else 0.0
    total = sum_in_blocks(len(vectors), lambda rows: factors[rows] @ vectors[rows])
    return BoundedContribution(name, total.numpy(), clip, largest)

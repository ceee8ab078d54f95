"""Function tracking, local MMD and FairFed for many weights at once: one hidden layer, two groups, energy distance.

The same rounds as the classes of `privfair.algorithms`, with their draws and their orders of records, for all weights
of a seed in one matrix product (tests/privfair/test_experiment_cells.py holds the two against each other). Nothing here
is private; private runs go through the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from privfair.algorithms.algorithm import SiloTensors
from privfair.batches.randomness import SeededWords, permutation, stream
from privfair.fairness.mmd import EnergyKernel, mmd_squared_v
from privfair.models.perceptron import Perceptron
from privfair_experiments.baselines.fairfed import distances
from privfair_experiments.mmd.settings import Method, Schedule
from privfair_experiments.mmd.training import CENTRAL, Cell, Clients

_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Column:
    """One run: its method, its fairness weight, and how many scores of each group are published (function tracking)."""

    method: Method
    weight: float
    samples: int = 0


_Passed = tuple[list[Tensor], Tensor, Tensor]
"""Parameters, hidden values and probabilities; each (nets, records, ...)."""


@dataclass(frozen=True, eq=False)
class _Net:
    """The parameters of many nets, and the gradient of mean loss plus weighted scores in all of them."""

    model: Perceptron
    weights: Tensor
    """Of the penalty, one per net."""

    def split(self, theta: Tensor) -> list[Tensor]:
        shapes = self.model.layout.shapes
        pieces = torch.split(theta.float(), [int(np.prod(shape)) for shape in shapes], dim=1)
        return [piece.view(len(theta), *shape) for piece, shape in zip(pieces, shapes, strict=True)]

    def forward(self, theta: Tensor, x: Tensor) -> _Passed:
        parts = self.split(theta)
        hidden = torch.relu(x @ parts[0].mT + parts[1][:, None])
        return parts, hidden, torch.softmax(hidden @ parts[2].mT + parts[3][:, None], dim=2)

    def scores(self, theta: Tensor, x: Tensor) -> Tensor:
        """The probability of the positive class, (nets, records)."""
        return self.forward(theta, x)[2][:, :, 1]

    def gradient(self, theta: Tensor, x: Tensor, y: Tensor, slopes: Tensor, passed: _Passed) -> Tensor:
        parts, hidden, p = passed
        delta = (p - torch.nn.functional.one_hot(y, 2)) / len(y)
        pull = slopes.float() * (self.weights[:, None].float() / len(y)) * p[:, :, 0] * p[:, :, 1]
        delta = delta + torch.stack((-pull, pull), dim=2)
        back = (delta @ parts[2]) * (hidden > 0)
        pieces = (back.mT @ x, back.sum(1), delta.mT @ hidden, delta.sum(1))
        return torch.cat([piece.flatten(1) for piece in pieces], dim=1).double()


def _mean_sign(z: Tensor, published: Tensor) -> Tensor:
    """The mean over `published` (nets, scores) of sign(z - score), for z of shape (nets, records)."""
    ordered = published.sort(dim=1).values.contiguous()
    below, until = (torch.searchsorted(ordered, z.contiguous(), right=side) for side in (False, True))
    return (below + until - ordered.shape[1]).double() / ordered.shape[1]


def _slopes(z: Tensor, s: Tensor, published: tuple[Tensor, Tensor], shares: tuple[float, float]) -> Tensor:
    """The derivative of each record's part of the penalty in its own score, as `TrackedPenalty.slopes`."""
    towards = _mean_sign(z, published[1]) - _mean_sign(z, published[0])
    of_group = torch.tensor([2.0 / shares[0], -2.0 / shares[1]], dtype=torch.float64)
    return towards * of_group[s]


def _own_slopes(z: Tensor, s: Tensor) -> Tensor:
    """The same against the very records of the batch; zero where a group is missing."""
    first = s == 0
    share = float(first.double().mean())
    if share in (0.0, 1.0):
        return torch.zeros_like(z, dtype=torch.float64)
    return _slopes(z, s, (z[:, first], z[:, ~first]), (share, 1 - share))


def _net(cell: Cell, weights: Tensor) -> _Net:
    assert isinstance(cell.model, Perceptron)
    return _Net(cell.model, weights)


def run_columns(cell: Cell, columns: tuple[Column, ...]) -> list[tuple[float, float]]:
    """Accuracy and parity gap of every column's last model."""
    kinds: dict[tuple[Method, int], list[int]] = {}
    for place, column in enumerate(columns):
        kinds.setdefault((column.method, column.samples), []).append(place)
    found: dict[int, tuple[float, float]] = {}
    for (method, samples), places in kinds.items():
        net = _net(cell, torch.tensor([columns[place].weight for place in places], dtype=torch.float64))
        thetas = _train(cell, net, method, samples)
        found |= {place: cell.clients.measure(cell.model, theta) for place, theta in zip(places, thetas, strict=True)}
    return [found[place] for place in range(len(columns))]


def run_thresholds(cell: Cell, thresholds: tuple[float, ...]) -> list[tuple[float, tuple[float, float]]]:
    """Accuracy and parity gap of plain FedAvg, answering yes above each probability."""
    (theta,) = _train(cell, _net(cell, torch.zeros(1)), Method.LOCAL, 0)
    return [(threshold, cell.clients.measure(cell.model, theta, threshold)) for threshold in thresholds]


def _train(cell: Cell, net: _Net, method: Method, samples: int) -> Tensor:
    theta = cell.model.initial(cell.seed).repeat(len(net.weights), 1)
    if method is Method.CENTRAL:
        everybody = replace(cell.clients.collected(), client_of_row=None)
        alone = replace(cell, clients=replace(cell.clients, train=(everybody,)))
        return _with_own_penalties(alone, net, theta, replace(cell.schedule, batch=None), fairfed=False)
    if method is Method.OURS:
        return _with_tracking(cell, net, theta, samples)
    return _with_own_penalties(cell, net, theta, cell.schedule, method is Method.FAIRFED)


@dataclass(frozen=True)
class CurvePoint:
    """Function tracking after a round: mean loss and squared MMD on training and on test records."""

    task: str
    weight: float
    seed: int
    round: int
    train_loss: float
    test_loss: float
    train_mmd: float
    test_mmd: float


def loss_curve(cell: Cell, task: str, weight: float, samples: int) -> list[CurvePoint]:
    """What Figures 6 and 7 of the paper show: whether both parts of the objective fall, round by round."""
    net, points, own = _net(cell, torch.tensor([weight])), list[CurvePoint](), cell.clients.collected()
    test = (cell.clients.x, torch.from_numpy(cell.clients.y), torch.from_numpy(cell.clients.s))

    def watch(theta: Tensor) -> None:
        seen = [_parts_of_loss(net, theta, *records) for records in ((own.x, own.y, own.s), test)]
        (train_loss, train_mmd), (test_loss, test_mmd) = seen
        points.append(CurvePoint(task, weight, cell.seed, len(points), train_loss, test_loss, train_mmd, test_mmd))

    _with_tracking(cell, net, cell.model.initial(cell.seed)[None], samples, watch)
    return points


def _parts_of_loss(net: _Net, theta: Tensor, x: Tensor, y: Tensor, s: Tensor) -> tuple[float, float]:
    p = net.forward(theta, x)[2][0].double()
    first, second = (p[s == group, 1].numpy() for group in (0, 1))
    return float(-p.gather(1, y[:, None]).log().mean()), mmd_squared_v(first, second, EnergyKernel())


def _with_tracking(
    cell: Cell, net: _Net, theta: Tensor, samples: int, watch: Callable[[Tensor], None] = lambda theta: None
) -> Tensor:
    """`MmdFedAvg` with all clients in every round and counts in the clear; `watch` sees the model of each round."""
    watch(theta)
    together, clients, schedule = cell.clients.collected(), cell.clients, cell.schedule
    words = SeededWords(cell.seed, f"batches of {CENTRAL}")
    members = [np.flatnonzero(together.s.numpy() == group) for group in (0, 1)]
    shares = tuple(max(_LEAST_SHARE, len(rows) / len(together)) for rows in members)
    for step in range(schedule.rounds):
        drawn = [rows[permutation(words, len(rows))[:samples]] for rows in members]
        published = tuple(net.scores(theta, together.x[torch.from_numpy(rows)]) for rows in drawn)
        moved = torch.zeros_like(theta)
        for number, (silo, share) in enumerate(zip(clients.train, clients.shares.values(), strict=True)):
            local, order = theta, stream(cell.seed, f"local steps of round {step}, client {number}")
            for x, y, s in _parts(silo, schedule, order):
                passed = net.forward(local, x)
                slopes = _slopes(passed[2][:, :, 1], s, published, shares)  # type: ignore[arg-type]
                local = local - schedule.step(step) * net.gradient(local, x, y, slopes, passed)
            moved += share * (local - theta)
        theta = theta + moved
        watch(theta)
    return theta


def _with_own_penalties(cell: Cell, net: _Net, theta: Tensor, schedule: Schedule, fairfed: bool) -> Tensor:
    """`LocalMmd`, or `FairFed`, whose clients count less the farther their own gap is from everybody's."""
    clients: Clients = cell.clients
    fixed = np.array(tuple(clients.shares.values()))
    omega = np.tile(fixed, (len(theta), 1))
    for step in range(schedule.rounds):
        changes, counts = [], []
        for silo in clients.train:
            local = theta
            for x, y, s in _parts(silo, schedule, None):
                passed = net.forward(local, x)
                slopes = _own_slopes(passed[2][:, :, 1], s)
                local = local - schedule.step(step) * net.gradient(local, x, y, slopes, passed)
            changes.append(local - theta)
            counts.append(_counts(net, theta, silo) if fairfed else None)
        for column in range(len(theta)):
            if fairfed:
                away = distances(np.stack([one[column] for one in counts if one is not None]))
                own = np.maximum(omega[column] - (away - away.mean()), 0.0)
                omega[column] = own if own.any() else fixed
        weights = torch.from_numpy(omega / omega.sum(axis=1, keepdims=True)).T
        theta = theta + sum(weight[:, None] * change for weight, change in zip(weights, changes, strict=True))
    return theta


def _counts(net: _Net, theta: Tensor, silo: SiloTensors) -> np.ndarray:
    """`FairFed._counts` of every net: records, hits; of each group records and positive predictions."""
    positive = net.scores(theta, silo.x) > 0.5
    groups = [silo.s == group for group in (0, 1)]
    rows = [torch.full((len(theta),), len(silo)), (positive == (silo.y == 1)).sum(1)]
    for inside in groups:
        rows += [inside.sum().repeat(len(theta)), positive[:, inside].sum(1)]
    return torch.stack(rows, dim=1).double().numpy()


def _parts(
    silo: SiloTensors, schedule: Schedule, order: np.random.Generator | None
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each local batch in turn; shuffled anew per epoch by `order`, if there is one."""
    size = schedule.batch or len(silo)
    for _ in range(schedule.epochs):
        rows = torch.arange(len(silo))
        if order is not None and size < len(silo):
            rows = torch.from_numpy(order.permutation(len(silo)))
        for part in torch.split(rows, size):
            yield silo.x[part], silo.y[part], silo.s[part]

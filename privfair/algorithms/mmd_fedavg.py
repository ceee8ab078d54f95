"""MMD-fair FedAvg: published scores of both groups let every client compute a global penalty on its own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import assert_never, final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, Refused, UnsupportedCombination, count, positive, rate
from calibrate.manifest import mechanism
from calibrate.plans.mmd_fedavg import HALF_RANGE, MmdFedavgPlan, prediction_names
from calibrate.plans.plan import histogram_bound
from calibrate.privacy_unit import Relation
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.recipe import Blueprint, Recipe, Unpriced, needed
from privfair.batches.randomness import Indexes, WordSource, permutation, stream, subset
from privfair.contribution import BoundedContribution
from privfair.fairness.constraints import KernelKind, MmdCriterion, Score, require_score, score_values
from privfair.fairness.mmd import (
    GaussianSmoothing,
    Kernel,
    LaplaceSmoothing,
    Noise,
    Strata,
    TrackedPenalty,
    cell_of_rows,
    conditions,
    kernel_before_noise,
    kernel_of,
)
from privfair.models.exact import clamped, folded_squares, root
from privfair.models.model import Model, require_class_weights
from privfair.plan.sections import AtLeastZero, Count, Options, Positive, Rate, Whole
from privfair.rounding import ROUNDING_SLACK, RunningTotal


class NoiseCorrection(Enum):
    """What is done about the kernel that noise on the scores leaves
    (docs/theorems/fpfl-and-mmd.md#kernels-of-noisy-scores).
    """

    EXACT = "exact"
    """Compute with the kernel that the noise turns into the wanted one."""
    NONE = "none"
    """Compute with the wanted kernel; what acts is its convolution with the noise."""


class ClientWeights(Enum):
    """How much a client's update counts."""

    BY_SIZE = "by-size"
    """Each client counts by its public number of records, so that the sum is the pooled objective."""
    EQUAL = "equal"
    """Algorithm 1 as printed."""


@dataclass(frozen=True)
class MmdFedAvgOptions(Options):
    """MMD-fair FedAvg. `fairness` is lambda; the score follows from the criterion unless it is given."""

    local_rate: Positive = 0.1
    local_rate_factor: Rate = 1.0
    """By which the local step shrinks from round to round; the paper's real-data runs use 0.99."""
    server_rate: Positive = 1.0
    local_epochs: Count = 1
    local_batch: Count | None = None
    fairness: AtLeastZero = 1.0
    criterion: MmdCriterion = MmdCriterion.STATISTICAL_PARITY
    score: Score | None = None
    kernel: KernelKind = KernelKind.GAUSSIAN
    kernel_width: Positive = 0.5
    correction: NoiseCorrection = NoiseCorrection.EXACT
    weights: ClientWeights = ClientWeights.BY_SIZE
    positive_class: Whole = 1
    group_shares: tuple[Rate, ...] | None = None
    """Each cell's share of all records, if these are public: group 0's conditions, then group 1's, and so on."""
    least_share: Rate = 0.01
    """Paid (noisy) shares of groups are held above this before they are divided by."""
    class_weight: tuple[Positive, ...] = ()
    """How often each class counts in a client's loss, before the client's update is clipped."""
    condition_feature: Whole | None = None
    """For conditional parity: the number of the feature that is conditioned on, from 0."""
    condition_cut: float = 0.5
    """Above it and below it are the two conditions; a public number."""

    @property
    def strata(self) -> Strata:
        """What the criterion's conditions speak of."""
        return Strata(self.condition_feature, self.condition_cut)

    @property
    def compared(self) -> Score:
        """The score in use."""
        if self.score is not None:
            return self.score
        return Score.MISS if self.criterion is MmdCriterion.RISK_PARITY else Score.PROBABILITY


# What an MMD-fair run is told from outside: clients, draws, clips, noise, and how the cells' sizes are known.

HISTOGRAM_BOUND = histogram_bound(Relation.REPLACE_ONE)


@dataclass(frozen=True)
class PublicShares:
    """Each cell's share of all records, known to everybody; group by group, condition by condition."""

    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        for share in self.shares:
            rate("group-shares", share)
        if math.fsum(self.shares) > 1 + 1e-9:
            raise InvalidInput("group-shares", self.shares, "must sum to at most 1", "give shares of all records")


@dataclass(frozen=True)
class PaidCounts:
    """A noisy histogram of the cells, published once and paid from the budget."""


@dataclass(frozen=True)
class CountsInTheClear:
    """The exact histogram, published once; only where nothing is promised."""


@dataclass(frozen=True)
class MmdTerms:
    """Public facts and signed bounds. `noise` is that of the published predictions; None where there is none."""

    clients: tuple[int, ...]
    """Each client's number of records."""
    samples: int
    """Predictions published of each cell and round."""
    cohort: int
    counts: PublicShares | PaidCounts | CountsInTheClear
    update_clip: float | None = None
    noise: Noise | None = None
    smallest_cell: int = 1
    """The size that every cell was priced to have at least."""

    def __post_init__(self) -> None:
        for size in self.clients:
            count("records of a client", size, least=0)
        count("samples-per-group", self.samples)
        count("cohort", self.cohort)
        count("group-size", self.smallest_cell)
        if self.cohort > len(self.clients):
            raise InvalidInput(
                "cohort", self.cohort, f"exceeds the {len(self.clients)} clients", "take at most all of them"
            )
        if self.update_clip is not None:
            positive("update-clip", self.update_clip)

    @property
    def private(self) -> bool:
        return self.noise is not None

    @property
    def counts_in_the_clear(self) -> bool:
        return isinstance(self.counts, CountsInTheClear)

    def require(self, options: MmdFedAvgOptions, cells: int) -> None:
        """Refuse what no noise makes private, with the remedy."""
        if isinstance(self.counts, PublicShares) and len(self.counts.shares) != cells:
            raise InvalidInput(
                "group-shares",
                self.counts.shares,
                f"must be {cells} numbers, one for each group and condition",
                "list the conditions of group 0, then those of group 1, and so on",
            )
        if not self.private:
            return
        if not options.compared.bounded:
            raise UnsupportedCombination(
                f"a private run on the score {options.compared.value}",
                "it is unbounded, so no noise is enough",
                'use score = "probability" (or "miss" for risk parity), which lie in [0, 1]',
            )
        if self.counts_in_the_clear:
            raise UnsupportedCombination(
                "a private run with exact group counts",
                "they are data, and nobody paid for them",
                "give histogram-noise-ratio under [privacy], or group-shares under [training] if they are public",
            )


def kernel_to_use(options: MmdFedAvgOptions, noise: Noise | None) -> Kernel:
    """The kernel to compute with, so that (with exact correction) the wanted one acts after the noise."""
    wanted = kernel_of(options.kernel, options.kernel_width)
    if noise is None or options.correction is NoiseCorrection.NONE:
        return wanted
    return kernel_before_noise(wanted, noise)


_LEAST_NOISE = GaussianSmoothing(1e-12)

PREDICTIONS = prediction_names(2)
"""The names where there are two groups."""
UPDATES = "client_updates"
HISTOGRAM = "attribute_histogram"


@dataclass(frozen=True, eq=False)
class MmdFedAvgState:
    theta: Tensor
    shares: tuple[float, ...] | None
    """The cells' shares of all records; None until a paid histogram is published."""


@final
@dataclass(frozen=True, eq=False)
class MmdFedAvg(Algorithm[MmdFedAvgState]):
    """Rychener, Kuhn, Hu (2025), Algorithm 2; one party, the trusted collector of all clients' records.

    Guarantee: under bounded scores, each published prediction lies within 1/2 of 1/2, and with an update clip each
    client's (weighted) update has at most that norm before it is added; updates are computed from *published*
    predictions and shares alone and from the client's own records. A record lies in at most one cell, so replacing it
    touches two cells' sets and one client, which is what an MMD manifest prices
    (docs/theorems/fpfl-and-mmd.md#mmd-fair-fedavg). The kernel, the energy kernel among them, is applied to published
    scores: post-processing. Unit: one record, replaced.

    In a batch, numbers below the number of records are records to predict, in a random order; above it, clients.
    """

    replies = True
    draws = True

    model: Model
    options: MmdFedAvgOptions
    terms: MmdTerms
    seed: int = 0
    groups: int = 2

    def __post_init__(self) -> None:
        count("groups", self.groups, least=2)
        require_score(self.options.compared, self.model.classes)
        require_class_weights(self.options.class_weight, self.model.classes)
        self.options.strata.require(self.options.criterion)
        self.terms.require(self.options, len(self.cells))
        _ = self.kernel

    @cached_property
    def given(self) -> tuple[int | None, ...]:
        return conditions(self.options.criterion, self.model.classes, self.options.positive_class)

    @property
    def cells(self) -> range:
        return range(self.groups * len(self.given))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the published predictions, group by group."""
        return prediction_names(self.groups)

    @cached_property
    def kernel(self) -> Kernel:
        """The kernel that is computed with."""
        return kernel_to_use(self.options, self.terms.noise)

    def clear_values(self) -> tuple[ClearValue, ...]:
        values = []
        if not self.options.compared.bounded:
            why = 'Unbounded scores can\'t be made private: score = "probability" or "miss" can.'
            values += [ClearValue(name, why, True) for name in self.names]
        if self.terms.update_clip is None:
            why = "Updates go out as they are unless users, cohort and update-clip are given."
            values.append(ClearValue(UPDATES, why, True))
        if self.terms.counts_in_the_clear:
            why = "Exact group counts go out unless histogram-noise-ratio pays or group-shares are public."
            values.append(ClearValue(HISTOGRAM, why, True))
        return tuple(values)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        predicted = len(self.given) * self.terms.samples
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(self.names, (predicted,))
        shapes[UPDATES] = (self.model.size,)
        if not isinstance(self.terms.counts, PublicShares):
            shapes[HISTOGRAM] = (len(self.cells),)
        return shapes

    def start(self) -> MmdFedAvgState:
        counts = self.terms.counts
        shares = counts.shares if isinstance(counts, PublicShares) else None
        return MmdFedAvgState(self.model.initial(self.seed), shares)

    def draw(self, silo: SiloTensors, source: WordSource) -> Indexes:
        """So many records of each cell, in uniformly random order, and a uniform cohort of clients.

        The order matters: two draws that differ in one record then differ, suitably coupled, in one place only. Listed
        by row number, the exchange of one record would shift all places in between.
        """
        cell = cell_of_rows(self.given, self.options.strata.of(silo.x, silo.y), silo.s).numpy()
        parts = []
        for number in self.cells:
            rows = np.flatnonzero(cell == number)
            if len(rows) < max(self.terms.samples, self.terms.smallest_cell):
                raise Refused(
                    f"cell {number} (group {number // len(self.given)}) has fewer records than the budget was priced "
                    "for; have it calibrated with a smaller group-size and samples-per-group"
                )
            parts.append(rows[permutation(source, len(rows))[: self.terms.samples]])
        parts.append(len(silo) + subset(source, len(self.terms.clients), self.terms.cohort))
        return np.concatenate(parts).astype(np.int64)

    def deciding_features(self) -> tuple[int, ...]:
        return () if self.options.condition_feature is None else (self.options.condition_feature,)

    def contribution(self, state: MmdFedAvgState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        rows = batch[batch < len(silo)]
        cell = cell_of_rows(self.given, self.options.strata.of(silo.x[rows], silo.y[rows]), silo.s[rows]).numpy()
        scores = self._scores(state.theta, silo, rows)
        published = {
            name: np.concatenate([self._fill(scores[cell == number]) for number in self._cells_of(group)])
            for group, name in enumerate(self.names)
        }
        noisy, clear = self._histogram(silo) if step == 0 else ((), {})
        if not self.options.compared.bounded:
            return Message(noisy=noisy, clear=published | clear)
        bounded = tuple(
            BoundedContribution(name, values, HALF_RANGE, float(np.abs(values - HALF_RANGE).max()))
            for name, values in published.items()
        )
        return Message(noisy=(*noisy, *bounded), clear=clear or None)

    def reply(self, state: MmdFedAvgState, step: int, silo: SiloTensors, batch: Tensor, received: Received) -> Message:
        """The cohort's updates, from what was published."""
        values = received[silo.name]
        published = np.stack([values[name].values for name in self.names])
        shares = state.shares if HISTOGRAM not in values else self._shares(values[HISTOGRAM].values)
        assert shares is not None
        penalty = TrackedPenalty(
            model=self.model,
            score=self.options.compared,
            given=self.given,
            positive_class=self.options.positive_class,
            kernel=self.kernel,
            weight=self.options.fairness,
            published=[list(of) for of in published.reshape(self.groups, len(self.given), self.terms.samples)],
            shares=np.array(shares),
            class_weight=self.options.class_weight,
            strata=self.options.strata,
        )
        start = clamped(state.theta)
        running, largest = RunningTotal(torch.zeros(self.model.size, dtype=torch.float64)), 0.0
        for client in (batch[batch >= len(silo)] - len(silo)).tolist():
            change = self._change(start, penalty, silo, client, step)
            norm = float(root(folded_squares(change[None]))[0])
            if self.terms.update_clip is not None and norm > 0:
                factor = min(1.0, self.terms.update_clip / (1.0 + ROUNDING_SLACK) / norm)
                change, norm = change * factor, norm * factor
            running.add(change)
            largest = max(largest, norm)
        total = running.value
        if self.terms.update_clip is None:
            return Message(clear={UPDATES: total.numpy()})
        return Message(noisy=(BoundedContribution(UPDATES, total.numpy(), self.terms.update_clip, largest),))

    def update(self, state: MmdFedAvgState, received: Received) -> MmdFedAvgState:
        (values,) = received.values()
        shares = self._shares(values[HISTOGRAM].values) if HISTOGRAM in values else state.shares
        step = self.options.server_rate / self.terms.cohort * values[UPDATES].values
        return MmdFedAvgState(state.theta + torch.from_numpy(step).to(state.theta.dtype), shares)

    def theta(self, state: MmdFedAvgState) -> Tensor:
        return state.theta

    def _cells_of(self, group: int) -> range:
        return range(group * len(self.given), (group + 1) * len(self.given))

    def _scores(self, theta: Tensor, silo: SiloTensors, rows: Tensor) -> Floats:
        x, y = silo.x[rows], silo.y[rows]
        found = score_values(self.options.compared, self.model, theta, x, y, self.options.positive_class)
        return np.asarray(found.numpy(), dtype=np.float64)

    def _fill(self, scores: Floats) -> Floats:
        """Exactly the declared number: what a draw leaves open is filled with a constant."""
        out = np.full(self.terms.samples, HALF_RANGE)
        out[: min(len(scores), len(out))] = scores[: len(out)]
        return out

    def _histogram(self, silo: SiloTensors) -> tuple[tuple[BoundedContribution, ...], dict[str, Floats]]:
        counts = self.terms.counts
        if isinstance(counts, PublicShares):
            return (), {}
        cell = cell_of_rows(self.given, self.options.strata.of(silo.x, silo.y), silo.s)
        sizes = torch.bincount(cell[cell >= 0], minlength=len(self.cells)).numpy().astype(np.float64)
        if isinstance(counts, PaidCounts):
            return (BoundedContribution(HISTOGRAM, sizes, HISTOGRAM_BOUND, HISTOGRAM_BOUND),), {}
        return (), {HISTOGRAM: sizes}

    def _shares(self, counts: Floats) -> tuple[float, ...]:
        shares = counts / sum(self.terms.clients)
        return tuple(float(share) for share in np.clip(shares, self.options.least_share, 1.0))

    def _change(self, start: Tensor, penalty: TrackedPenalty, silo: SiloTensors, client: int, step: int) -> Tensor:
        """A client's local training, weighed; zero for a client without records."""
        assert silo.client_of_row is not None
        rows = (silo.client_of_row == client).nonzero()[:, 0]
        theta = start
        if len(rows) == 0:
            return torch.zeros_like(theta)
        size = self.options.local_batch or len(rows)
        rate = self.options.local_rate * self.options.local_rate_factor**step
        # Which of a client's own records share a step need not be secret: the whole update is clipped.
        order = stream(self.seed, f"local steps of round {step}, client {client}")
        for _ in range(self.options.local_epochs):
            shuffled = rows[torch.from_numpy(order.permutation(len(rows)))] if size < len(rows) else rows
            for part in torch.split(shuffled, size):
                gradient = penalty.gradient(theta, silo.x[part], silo.y[part], silo.s[part])
                theta = theta - rate * gradient
        return (theta - start) * self._weight(client)

    def _weight(self, client: int) -> float:
        match self.options.weights:
            case ClientWeights.BY_SIZE:
                return self.terms.clients[client] * len(self.terms.clients) / sum(self.terms.clients)
            case ClientWeights.EQUAL:
                return 1.0
            case _:
                assert_never(self.options.weights)


def build(blueprint: Blueprint[MmdFedAvgOptions]) -> MmdFedAvg:
    """MMD-fair FedAvg; what noise does to the kernel is read off the manifest."""
    clients = tuple(size for _, size in blueprint.clients)
    if isinstance(blueprint.parameters, Unpriced):
        given = blueprint.parameters
        users, cohort, clip = given.whole("users"), given.whole("cohort"), given.number("update_clip")
        samples = int(needed("samples_per_group", given.whole("samples_per_group")))
        smallest, paid = given.whole("group_size") or 1, given.number("histogram_noise_ratio")
    else:
        plan = blueprint.plan(MmdFedavgPlan)
        blueprint.require_groups(plan.groups)
        kernel_to_use(blueprint.options, _LEAST_NOISE)  # what no noise allows is refused before anybody signs
        users, cohort, samples = plan.users, plan.cohort, plan.samples_per_group
        clip = None if plan.update_clip is None else blueprint.bound(UPDATES)
        smallest, paid = plan.group_size, plan.histogram_noise_ratio
    if users is not None and users != len(clients):
        raise InvalidInput(
            "[privacy] users", users, f"is not the data's {len(clients)} clients", f"write users = {len(clients)}"
        )
    counts: PublicShares | PaidCounts | CountsInTheClear = CountsInTheClear() if paid is None else PaidCounts()
    if blueprint.options.group_shares is not None:
        counts = PublicShares(blueprint.options.group_shares)
    noise = _signed_noise(blueprint)
    terms = MmdTerms(clients, samples, cohort or len(clients), counts, clip, noise, smallest)
    return MmdFedAvg(blueprint.model, blueprint.options, terms, blueprint.seed, blueprint.groups)


def _signed_noise(blueprint: Blueprint[MmdFedAvgOptions]) -> Noise | None:
    match blueprint.signed(PREDICTIONS[0]):
        case mechanism.GaussianNoise(sigma=sigma):
            return GaussianSmoothing(sigma)
        case mechanism.LaplaceNoise(scale=scale):
            return LaplaceSmoothing(scale)
        case _:
            return None


RECIPE = Recipe("mmd-fedavg", MmdFedAvgOptions, build, central=True)

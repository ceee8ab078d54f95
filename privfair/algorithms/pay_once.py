"""Pay once: the attribute leaves each silo a single time, randomised, and training may use that without limit.

In round 0 every silo sends each record's group through k-ary randomised response. All later messages are computed from
features, labels, published responses and published values, so they are post-processing of round 0: they go in the
clear, their number is free, and batches need no secrecy (the idea is central in Mozannar, Ohannessian, Srebro 2020).

Training minimises loss + fairness * penalty, where the penalty (squared gap, or FERMI's chi-square) is taken of the
joint distribution of groups and predictions, estimated without bias from the responses. A round sends `g`, the gradient
with the penalty's slopes at the joint distribution published so far, and `joint`, the silo's part of the next one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, count
from calibrate.manifest.mechanism import RandomizedCategory
from calibrate.plans.fair_plugin import PayOncePlan
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.descent import Descent, DescentOptions, DescentRule, tensor
from privfair.algorithms.parts.local_training import towards_own_minimum
from privfair.algorithms.parts.unit_sums import attributes_to_randomise
from privfair.algorithms.recipe import ATTRIBUTE_REPLACED, Blueprint, Recipe, require_classes
from privfair.fairness import fermi
from privfair.fairness.constraints import FairnessPenalty, ResponseChannel, penalty_slopes
from privfair.fairness.fermi import OUTSIDE, Independence
from privfair.models.model import Model, Records, Weigh, class_means
from privfair.plan.sections import AtLeastZero, BelowOne, Count, OpenUnit, Positive, Whole


@dataclass(frozen=True)
class PayOnceOptions(DescentOptions):
    """`fairness` is lambda, the weight of the penalty.

    After the first round nothing private is touched, so batches are a matter of speed alone: `mini_batch` makes every
    silo go through its records in shuffled batches of that size, in an order the seed decides; left out, each round
    uses all records. `memory` is how much of the running joint distribution outlives a round: 0 suits full batches,
    about 1 - batch / silo suits mini-batches, whose own rates are too noisy to square.
    """

    notion: Independence = Independence.DEMOGRAPHIC_PARITY
    penalty: FairnessPenalty = FairnessPenalty.SQUARED_GAP
    fairness: AtLeastZero = 1.0
    positive_class: Whole = 1
    mini_batch: Count | None = None
    memory: BelowOne = 0.0
    class_weight: tuple[Positive, ...] = ()
    """The loss of each class counts so many times; left out, all count alike."""
    least_share: OpenUnit = 0.01
    """A group's estimated share of a block is held above this before anything is divided by it."""


ATTRIBUTE, GRADIENT, JOINT = "randomised_attribute", "g", "joint"


@dataclass(frozen=True, eq=False)
class PayOnceState:
    """All of it published, or computed from what was. `responses` are empty before round 0."""

    descent: Descent
    joint: Tensor | None
    responses: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class _PublicRecords:
    """What training may see of a batch: no field holds a true attribute."""

    x: Records
    y: Tensor
    responses: Tensor


@final
@dataclass(frozen=True, eq=False)
class PayOnce(Algorithm[PayOnceState]):
    """The algorithm for one run.

    Guarantee: the transcript is (epsilon, 0)-private for replacing one record's attribute, if round 0 passes through
    randomised response at that epsilon: after it no message reads the attribute, by construction (contributions are
    computed from `_PublicRecords`), so the rest is post-processing (docs/theorems/steffle.md#messages-on-the-engine,
    "Paying once").

    `channel` is the law of the responses, as signed. Silos may differ in size: the published vector has the length
    `largest_silo`, and shorter silos fill it up with randomised constants that nobody uses. `weights` are the silos'
    shares of all records.
    """

    model: Model
    options: PayOnceOptions
    channel: ResponseChannel
    largest_silo: int
    weights: Mapping[str, float]
    rounds: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        count("largest-silo", self.largest_silo)
        own = self.options
        require_classes(self.model.classes, own.positive_class, own.class_weight, own.warm_start)

    @property
    def groups(self) -> int:
        return self.channel.groups

    @property
    def blocks(self) -> int:
        return self.options.notion.blocks(self.model.classes)

    @cached_property
    def rule(self) -> DescentRule:
        return self.options.rule(max(1, self.rounds - 1), self.seed)

    def clear_values(self) -> tuple[ClearValue, ...]:
        why = "Computed from features, labels and the published responses; post-processing of round 0."
        return (ClearValue(GRADIENT, why, depends_on_unit=False), ClearValue(JOINT, why, depends_on_unit=False))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {
            ATTRIBUTE: (self.largest_silo,),
            GRADIENT: (self.model.size,),
            JOINT: (self.blocks, self.groups, self.model.classes),
        }

    def start(self) -> PayOnceState:
        return PayOnceState(self.rule.start(self.model.initial(self.seed)), None, {})

    def contribution(self, state: PayOnceState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        if not state.responses:
            return Message(
                randomized={ATTRIBUTE: attributes_to_randomise(silo, self.largest_silo)}, clear=self._warm(state, silo)
            )
        if silo.name not in state.responses:
            raise InvalidInput("silo", silo.name, "published no responses in round 0", "let every silo take part in it")
        x = silo.batch(self._rows(step, silo.name, batch, len(silo)))
        public = _PublicRecords(x, x.of(silo.y), x.of(state.responses[silo.name][: len(silo)]))
        return self._training_message(state, public)

    def update(self, state: PayOnceState, received: Received) -> PayOnceState:
        if not state.responses:
            given = {party: tensor(values[ATTRIBUTE].values).long() for party, values in received.items()}
            return replace(state, responses=given, descent=self._start_descent(state, received))
        gradient = self._sum(received, GRADIENT)
        joint = self._sum(received, JOINT)
        if state.joint is not None:
            joint = self.options.memory * state.joint + (1 - self.options.memory) * joint
        return replace(state, descent=self.rule.advance(state.descent, gradient), joint=joint)

    def theta(self, state: PayOnceState) -> Tensor:
        return self.rule.model(state.descent)

    def restore(self, arrays: Mapping[str, Floats]) -> PayOnceState:
        state = super().restore(arrays)
        return replace(state, responses={party: given.long() for party, given in state.responses.items()})

    def _warm(self, state: PayOnceState, silo: SiloTensors) -> dict[str, Floats] | None:
        iterations = self.options.warm_start
        if iterations == 0:
            return None
        theta = state.descent.theta
        return {GRADIENT: towards_own_minimum(self.model, theta, Records(silo.x), silo.y, iterations)}

    def _start_descent(self, state: PayOnceState, received: Received) -> Descent:
        if self.options.warm_start == 0:
            return state.descent
        return self.rule.start(state.descent.theta - self._sum(received, GRADIENT))

    def _rows(self, step: int, silo: str, batch: Tensor, size: int) -> Tensor:
        """The engine's batch, or this round's part of the silo's shuffled order, which is public."""
        if self.options.mini_batch is None:
            return batch
        each = min(self.options.mini_batch, size)
        # Round 0 carried the responses, so round 1 opens the first epoch.
        epoch, place = divmod(max(0, step - 1), -(-size // each))
        name = int.from_bytes(hashlib.sha256(silo.encode()).digest()[:8], "big")
        order = np.random.default_rng((self.seed, name, epoch)).permutation(size)
        return torch.from_numpy(order[place * each : (place + 1) * each])

    def _training_message(self, state: PayOnceState, public: _PublicRecords) -> Message:
        x, y, responses = public.x, public.y, public.responses
        if len(x) == 0:
            shapes = self.shapes()
            return Message(clear={name: np.zeros(shapes[name]) for name in (GRADIENT, JOINT)})
        theta, size = state.descent.theta, len(x)
        members = self.channel.memberships(responses)
        block = fermi.block_of(self.options.notion, y, self.options.positive_class)
        probabilities = self.model.probabilities(theta, x)
        joint = fermi.joint_distribution(probabilities, members, block, self.blocks) / size
        gradient = self.model.weighted_gradient(theta, x, y, self._weigh(y)).total
        if state.joint is not None and self.options.fairness > 0:
            slopes = penalty_slopes(self.options.penalty, state.joint, self.options.least_share)
            of_record = (members[:, None, :] @ slopes[block.clamp_min(0)])[:, 0, :]
            of_record = of_record * (block != OUTSIDE)[:, None]
            pull = self.model.probability_gradient(theta, x, of_record)
            gradient = gradient + self.options.fairness / size * pull
        return Message(clear={GRADIENT: _floats(gradient), JOINT: _floats(joint)})

    def _weigh(self, y: Tensor) -> Weigh:
        """The mean, in which each class counts as often as its weight says."""
        return class_means(self.options.class_weight, y, self.model.classes, len(y))

    def _sum(self, received: Received, name: str) -> Tensor:
        parts = [self.weights[party] * values[name].values for party, values in received.items()]
        return tensor(np.sum(parts, axis=0))


def _floats(values: Tensor) -> Floats:
    return values.detach().numpy().astype(np.float64)


def build(blueprint: Blueprint[PayOnceOptions]) -> PayOnce:
    """Pay once, with the signed channel; sent in the clear (nothing promised), the responses are the truth."""
    blueprint.require_groups(blueprint.plan(PayOncePlan).groups)
    signed = blueprint.signed(ATTRIBUTE)
    return PayOnce(
        model=blueprint.model,
        options=blueprint.options,
        channel=ResponseChannel.of_epsilon(
            blueprint.groups, signed.epsilon if isinstance(signed, RandomizedCategory) else None
        ),
        largest_silo=max(size for _, size in blueprint.parties),
        weights=blueprint.shares,
        rounds=blueprint.rounds,
        seed=blueprint.seed,
    )


RECIPE = Recipe("pay-once", PayOnceOptions, build, ATTRIBUTE_REPLACED)

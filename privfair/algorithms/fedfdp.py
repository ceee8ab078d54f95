"""FedFDP: fair clipping in several clients; gradient and loss of one batch are one release."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from calibrate.errors import InvalidInput, positive
from calibrate.manifest.mechanism import GaussianNoise
from calibrate.plans.clipped_sums import FedfdpPlan
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.baselines.client_losses import AgnosticFl, AgnosticOptions, QFfl, QFflOptions
from privfair.algorithms.parts.clients import ClippedPairs, PlainMeans
from privfair.algorithms.recipe import (
    RECORD_ADDED,
    Blueprint,
    Recipe,
    Unpriced,
    from_shares,
    needed,
    refuse_normalisation,
)
from privfair.contribution import BoundedContribution
from privfair.fairness.clipping import (
    ConvergenceConstants,
    clipped_losses,
    fair_clipping,
    mean_of_losses,
    next_loss_clip,
    optimal_fairness,
    sum_of_losses,
)
from privfair.models.model import Model, require_class_weights, shrunk_by_class
from privfair.plan.sections import AtLeastZero, Count, Options, Positive

GRADIENT, LOSS = "gradient", "loss"


_ASSUMED = ("smoothness", "strong_convexity", "heterogeneity", "start_distance", "loss_excess")
"""What lambda* is computed from, beside clip and noise."""


class LossClipRule(Enum):
    """How each client's loss is clipped."""

    ADAPTIVE = "adaptive"
    """By the client's last published mean loss, times `loss_headroom`."""
    SIGNED = "signed"
    """By the signed bound in every round."""


@dataclass(frozen=True)
class FedFdpOptions(Options):
    """FedFDP. `fairness` is lambda; 0 is DP-FedAvg, "optimal" is lambda* of the paper's Section VI.

    lambda* needs what its analysis takes as known of the losses, all public: L, mu, Gamma, the distance of the first
    model from the best one (squared), and [Q_0, Q_1], how far a record's loss lies above the mean loss at least and at
    most. G is the clip; sigma and the batch are the signed ones.
    """

    learning_rate: Positive = 0.5
    fairness: AtLeastZero | Literal["optimal"] = 0.5
    smoothness: Positive | None = None
    strong_convexity: Positive | None = None
    heterogeneity: AtLeastZero | None = None
    start_distance: AtLeastZero | None = None
    loss_excess: tuple[float, float] | None = None
    local_steps: Count = 1
    loss_clip_rule: LossClipRule = LossClipRule.ADAPTIVE
    loss_headroom: Positive = 2.0
    """1 is the paper's rule, which can only shrink the clip."""
    loss_floor: Positive = 0.01
    initial_loss: AtLeastZero | None = None
    """The mean loss assumed before the first is published; left out: that of guessing, ln(classes)."""
    class_weight: tuple[Positive, ...] = ()
    """How much the gradients of each class count, relative to the largest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss_headroom < 1:
            raise InvalidInput("loss-headroom", self.loss_headroom, "must be at least 1", "1 is the paper's own rule")
        for name in _ASSUMED:
            if (getattr(self, name) is None) == (self.fairness == "optimal"):
                key = name.replace("_", "-")
                rule = 'is needed by fairness = "optimal"' if self.fairness == "optimal" else "has no meaning here"
                raise InvalidInput(f"[training] {key}", getattr(self, name), rule, f'give {key} and "optimal", or none')


@dataclass(frozen=True)
class PrivateQFfl(QFflOptions):
    """method = "q-ffl": q-FFL on the same noisy gradients and losses, at the same price."""

    loss_floor: Positive = 0.01


@dataclass(frozen=True)
class FedFdpClips:
    """The signed bounds of one record's part of the two sums."""

    gradient: float
    loss: float

    def __post_init__(self) -> None:
        positive("clip", self.gradient)
        positive("loss-clip", self.loss)


@dataclass(frozen=True, eq=False)
class FedFdpState:
    """All of it follows from published values."""

    theta: Tensor
    """The global model of the last aggregation."""
    local: Tensor | None
    """Each client's model between two aggregations, one row per client; None right after one."""
    inner: int
    """Local steps since the last aggregation."""
    mean_loss: float
    """The global mean loss that Delta is taken against."""
    loss_clips: tuple[float, ...]
    """In the order of the weights."""


@final
@dataclass(frozen=True, eq=False)
class FedFdp(Algorithm[FedFdpState]):
    """Ling et al. (arXiv:2402.16028), Algorithm 2, with the repairs of docs/theorems/fedfdp.md.

    Guarantee: with `clips` each record adds a vector of norm at most `clips.gradient` to the published sum of
    gradients and a number in [0, `clips.loss`] to the sum of losses, both on one batch; that is what a FedFDP
    manifest prices. Sums are divided by the public expected batch size, an empty batch sends noise alone,
    and every noisy local step is a round of its own. Unit: one record, added or removed.

    The loss is taken where the gradient is, in the same pass over the batch (the paper: after the step, on the same
    batch), so both are one message. FedFair, its Algorithm 1, has a page of its own.
    """

    model: Model
    options: FedFdpOptions
    weights: Mapping[str, float]
    """p_i: each client's share of all records, which is public."""
    expected: Mapping[str, float]
    """Each client's expected batch size, which is public."""
    clips: FedFdpClips
    seed: int = 0

    def __post_init__(self) -> None:
        if set(self.weights) != set(self.expected) or not self.weights:
            raise InvalidInput(
                "expected", sorted(self.expected), f"must name {sorted(self.weights)}", "name every client"
            )
        for party, size in self.expected.items():
            positive(f"expected batch size of {party}", size)
        require_class_weights(self.options.class_weight, self.model.classes)
        if not math.isclose(math.fsum(self.weights.values()), 1.0, rel_tol=1e-9):
            raise InvalidInput("weights", dict(self.weights), "must sum to 1", "give shares of all records")
        if self.options.loss_floor > self.clips.loss:
            raise InvalidInput(
                "loss-floor", self.options.loss_floor, f"exceeds the loss clip {self.clips.loss}", "lower it"
            )

    @property
    def fairness(self) -> float:
        """lambda, a number by now."""
        if isinstance(self.options.fairness, str):
            raise InvalidInput("fairness", self.options.fairness, "is found when a plan is built", "give a number")
        return self.options.fairness

    def clear_values(self) -> tuple[ClearValue, ...]:
        return ()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {GRADIENT: (self.model.size,), LOSS: (1,)}

    def start(self) -> FedFdpState:
        guessing = math.log(self.model.classes)
        mean = guessing if self.options.initial_loss is None else self.options.initial_loss
        signed = (self.clips.loss,) * len(self.weights)
        return FedFdpState(self.model.initial(self.seed), None, 0, min(mean, self.clips.loss), signed)

    def contribution(self, state: FedFdpState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        place = self._place(silo.name)
        theta = state.theta if state.local is None else state.local[place]
        x = silo.batch(batch)
        y = x.of(silo.y)
        clipped = fair_clipping(self.fairness, state.mean_loss, self.clips.gradient)
        weigh = shrunk_by_class(clipped, self.options.class_weight, y, self.model.classes)
        found = self.model.weighted_gradient(theta, x, y, weigh)
        losses = clipped_losses(found.losses, state.loss_clips[place], self.clips.loss)
        gradient = found.total.numpy().astype(np.float64)
        largest = float(losses.max()) if len(batch) else 0.0
        return Message(
            noisy=(
                BoundedContribution(GRADIENT, gradient, self.clips.gradient, found.largest_part),
                BoundedContribution(LOSS, np.array([sum_of_losses(losses)]), self.clips.loss, largest),
            )
        )

    def update(self, state: FedFdpState, received: Received) -> FedFdpState:
        parties = tuple(self.weights)
        local = state.theta.repeat(len(parties), 1) if state.local is None else state.local.clone()
        means, clips = [], []
        for place, party in enumerate(parties):
            values = received[party]
            size = self.expected[party]
            step = torch.from_numpy(values[GRADIENT].values / size).to(local.dtype)
            local[place] -= self.options.learning_rate * step
            mean = mean_of_losses(float(values[LOSS].values[0]), state.loss_clips[place], self.clips.loss, size)
            means.append(mean)
            clips.append(self._next_clip(mean, state.loss_clips[place]))
        following = replace(state, local=local, inner=state.inner + 1, loss_clips=tuple(clips))
        return following if following.inner < self.options.local_steps else self._aggregate(following, means)

    def theta(self, state: FedFdpState) -> Tensor:
        return state.theta

    def _place(self, party: str) -> int:
        if party not in self.weights:
            raise InvalidInput("client", party, f"is none of {', '.join(self.weights)}", "give it a weight")
        return tuple(self.weights).index(party)

    def _next_clip(self, mean: float, current: float) -> float:
        if self.options.loss_clip_rule is LossClipRule.SIGNED:
            return current
        return next_loss_clip(mean, self.options.loss_headroom, self.options.loss_floor, self.clips.loss)

    def _aggregate(self, state: FedFdpState, means: list[float]) -> FedFdpState:
        assert state.local is not None
        shares = torch.tensor(tuple(self.weights.values()), dtype=state.local.dtype)
        mean_loss = math.fsum(p * mean for p, mean in zip(self.weights.values(), means, strict=True))
        return FedFdpState(shares @ state.local, None, 0, mean_loss, state.loss_clips)


def _fedfdp(blueprint: Blueprint[FedFdpOptions]) -> FedFdp:
    clips, expected = _signed_clips(blueprint)
    if clips is None:
        remedy = 'give one; without privacy train algorithm = "fedfair"'
        raise InvalidInput("[privacy] clip", None, "is needed by FedFDP", remedy)
    own, shares = _with_fairness(blueprint, clips, expected), blueprint.shares
    return FedFdp(blueprint.model, own, shares, expected, clips, blueprint.seed)


def _pairs(blueprint: Blueprint[Any]) -> PlainMeans | ClippedPairs:
    """What other methods send: the same pairs, or means without a clip, and so without a promise."""
    clips, expected = _signed_clips(blueprint)
    return PlainMeans() if clips is None else ClippedPairs(clips.gradient, clips.loss, expected)


def _with_fairness(
    blueprint: Blueprint[FedFdpOptions], clips: FedFdpClips, expected: Mapping[str, float]
) -> FedFdpOptions:
    """The options with lambda* in place of "optimal".

    Everything it is computed from is public or signed, so lambda* costs nothing. While the budget is being issued its
    noise is not known, and lambda* is taken without; nothing that is signed depends on it.
    """
    own = blueprint.options
    if own.fairness != "optimal":
        return own
    smoothness, convexity, heterogeneity, distance, excess = (getattr(own, name) for name in _ASSUMED)
    noise = blueprint.signed(GRADIENT)
    found = optimal_fairness(
        ConvergenceConstants(
            smoothness=smoothness,
            strong_convexity=convexity,
            gradient_bound=clips.gradient,
            heterogeneity=heterogeneity,
            lowest_excess=excess[0],
            highest_excess=excess[1],
            start_distance=distance,
            noise_multiplier=noise.sigma / clips.gradient if isinstance(noise, GaussianNoise) else 0.0,
            clip=clips.gradient,
            dimension=blueprint.model.size,
            smallest_batch=min(expected.values()),
        )
    )
    without: Mapping[str, Any] = dict.fromkeys(_ASSUMED)
    return replace(own, fairness=found.value, **without)


def _signed_clips(blueprint: Blueprint[Any]) -> tuple[FedFdpClips | None, dict[str, float]]:
    """The clips, and every client's expected batch size."""
    if isinstance(blueprint.parameters, Unpriced):
        given = blueprint.parameters
        refuse_normalisation(given.number("normalisation_noise_ratio"))
        clip = given.number("clip")
        if clip is None:
            return None, blueprint.expected(1.0)
        rate = needed("sampling_rate", given.number("sampling_rate"))
        return FedFdpClips(clip, needed("loss_clip", given.number("loss_clip"))), blueprint.expected(rate)
    plan = blueprint.plan(FedfdpPlan)
    refuse_normalisation(plan.normalisation_noise_ratio)
    return FedFdpClips(blueprint.bound(GRADIENT), blueprint.bound(LOSS)), blueprint.expected(plan.sampling_rate)


RECIPES: tuple[Recipe[Any], ...] = (
    Recipe("fedfdp", FedFdpOptions, _fedfdp, RECORD_ADDED, method="fedfdp"),
    Recipe("fedfdp", PrivateQFfl, from_shares(QFfl, _pairs), RECORD_ADDED, method="q-ffl"),
    Recipe("fedfdp", AgnosticOptions, from_shares(AgnosticFl, _pairs), RECORD_ADDED, method="agnostic-fl"),
)

"""DP-FedSGD: every silo sends the noisy sum of its records' clipped gradients. The engine of a `gaussian` plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from calibrate.errors import InvalidInput
from calibrate.manifest.mechanism import GaussianNoise
from calibrate.plans.gaussian import CorrelatedNoise, GaussianPlan
from calibrate.privacy_unit import Relation
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.ali_dpfl import AliDpfl, AliDpflOptions
from privfair.algorithms.baselines.drift import (
    FedDyn,
    FedDynOptions,
    FedProx,
    FedProxOptions,
    Scaffold,
    ScaffoldOptions,
)
from privfair.algorithms.fed_sgda import OF_W, FedSgda
from privfair.algorithms.parts.clients import NOISY, ClippedSums, clipped_sum
from privfair.algorithms.parts.descent import Descent, DescentRule, Iterate
from privfair.algorithms.parts.paid_scales import PaidScales, around, blueprint_inside
from privfair.algorithms.recipe import MIN_MAX, RECORD_ADDED, Blueprint, Recipe, from_shares
from privfair.contribution import BoundedContribution, RecentRounds
from privfair.models.linear import with_intercepts
from privfair.models.model import Model, require_class_weights
from privfair.plan.sections import AtLeastZero, BelowOne, Count, GradientOptions, Options, Positive
from privfair.rounding import require_mixable

# What [training] may say under a `gaussian` plan, by method: the corrections of local steps cost no privacy, and each
# local step is a round of the budget. `class_weight` says how often each class counts.


@dataclass(frozen=True)
class PrivateStepOptions(Options):
    """method = "fedsgd": DP-FedSGD; with `cosine` the rate falls to zero along half a cosine."""

    learning_rate: Positive = 0.5
    learning_rate_decay: AtLeastZero = 0.0
    momentum: BelowOne = 0.0
    cosine: bool = False
    iterate: Iterate = Iterate.LAST
    class_weight: tuple[Positive, ...] = ()


@dataclass(frozen=True)
class PrivateFedProx(FedProxOptions):
    """method = "fedprox"."""

    class_weight: tuple[Positive, ...] = ()


@dataclass(frozen=True)
class PrivateScaffold(ScaffoldOptions):
    """method = "scaffold"."""

    local_steps: Count = 1
    class_weight: tuple[Positive, ...] = ()


@dataclass(frozen=True)
class PrivateFedDyn(FedDynOptions):
    """method = "feddyn"."""

    local_steps: Count = 1
    class_weight: tuple[Positive, ...] = ()


@dataclass(frozen=True)
class PrivateAliDpfl(AliDpflOptions):
    """method = "ali-dpfl"."""

    class_weight: tuple[Positive, ...] = ()


@dataclass(frozen=True)
class MinMaxOptions(Options):
    """With a table [training.min-max], which has the other steps; the loss is the user's and may weigh classes."""

    learning_rate: Positive = 0.5


@dataclass(frozen=True, eq=False)
class DpFedSgdState:
    theta: Tensor
    step: int
    last: Mapping[str, Tensor] = field(default_factory=dict)
    """Where sums are mixed: the round of each party's last message."""
    recent: Mapping[str, Tensor] = field(default_factory=dict)
    """Estimates of each party's last sums, newest last, which the next message is taken apart with."""
    descent: Descent | None = None
    """The position of a descent along `rule`, where there is one."""


@final
@dataclass(frozen=True, eq=False)
class DpFedSgd(Algorithm[DpFedSgdState]):
    """Abadi et al. 2016 in several silos; with a strategy, DP-FTRL by banded matrices (Choquette-Choo et al. 2023).

    Guarantee: none of its own; each record's gradient is scaled to norm `clip` at most, so that adding a record
    moves the sum by at most `clip` (replacing one: by 2 `clip`). The manifest prices the noisy sums. Unit: a record.

    The sum is divided by the public `expected` number of records in all batches, never by a realised one; an
    empty batch sends noise alone.
    """

    model: Model
    options: GradientOptions
    clip: float
    expected: float
    seed: int = 0
    limit: int | None = None
    """The most records of a batch, to which every batch is padded; None where batches have no limit."""
    class_weight: tuple[float, ...] = ()
    """How much the clipped gradients of each class count, relative to the largest; left out, all count the same."""
    strategy: tuple[float, ...] | None = None
    """How the gate mixes the sums of rounds in a row; None where it does not."""
    rule: DescentRule | None = None
    """The server's descent along the noisy means, in place of the steps of `options`."""

    def clear_values(self) -> tuple[ClearValue, ...]:
        return ()

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {NOISY: (self.model.size,)}

    def start(self) -> DpFedSgdState:
        return self._at(self.model.initial(self.seed))

    def start_at(self, *intercepts: Tensor) -> DpFedSgdState:
        """The state before the first step, with these intercepts."""
        return self._at(with_intercepts(self.model, self.model.initial(self.seed), intercepts[0]))

    def _at(self, theta: Tensor) -> DpFedSgdState:
        return DpFedSgdState(theta, 0, descent=None if self.rule is None else self.rule.start(theta))

    def contribution(self, state: DpFedSgdState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        if self.strategy is not None:
            require_mixable(len(batch), len(self.strategy))
        if len(batch) == 0 and self.limit is None:
            nothing = np.zeros(self.model.size)
            return Message(noisy=(BoundedContribution(NOISY, nothing, self.clip, 0.0),))
        clipped = clipped_sum(self.model, state.theta, silo, batch, self.clip, self.limit, self.class_weight)
        total = clipped.total.numpy().astype(np.float64)
        return Message(noisy=(BoundedContribution(NOISY, total, self.clip, clipped.largest_part),))

    def update(self, state: DpFedSgdState, received: Received) -> DpFedSgdState:
        sums = {party: values[NOISY] for party, values in received.items()}
        parts, last, recent = {party: sent.values for party, sent in sums.items()}, dict(state.last), dict(state.recent)
        if self.strategy is not None:
            for party, sent in sums.items():
                before = self._recent(state, party, self.strategy)
                parts[party] = before.unmix(sent.round, sent.values)
                before.add(sent.round, parts[party])
                last[party], recent[party] = torch.tensor(sent.round), torch.from_numpy(np.stack(before.vectors))
        total = np.sum(list(parts.values()), axis=0)
        mean = torch.from_numpy(total / self.expected).to(state.theta.dtype)
        if self.rule is not None and state.descent is not None:
            descent = self.rule.advance(state.descent, mean)
            return DpFedSgdState(descent.theta, state.step + 1, last, recent, descent)
        return DpFedSgdState(state.theta - self.options.rate(state.step) * mean, state.step + 1, last, recent)

    @staticmethod
    def _recent(state: DpFedSgdState, party: str, strategy: tuple[float, ...]) -> RecentRounds:
        if party not in state.last:
            return RecentRounds(strategy)
        return RecentRounds(strategy, int(state.last[party]), list(state.recent[party].numpy()))

    def theta(self, state: DpFedSgdState) -> Tensor:
        return state.theta if self.rule is None or state.descent is None else self.rule.model(state.descent)


def _clipped_sums(blueprint: Blueprint[Any]) -> ClippedSums:
    """What every method sends: one clipped sum, as it was signed."""
    plan = blueprint.plan(GaussianPlan)
    if len(plan.ratios) != 1:
        raise InvalidInput(
            "[privacy] noise",
            plan.noise,
            "lists several values, and training sends one",
            "drop it, or give a min-max loss of your own under [training.min-max], which sends two",
        )
    if plan.relation is Relation.REPLACE_ATTRIBUTE:
        raise InvalidInput(
            "[privacy] relation", "replace-attribute", "is not what clipped gradients bound", "use steffle or pay-once"
        )
    weights: tuple[float, ...] = blueprint.options.class_weight
    require_class_weights(weights, blueprint.model.classes)
    if plan.noise is CorrelatedNoise.BANDED and not isinstance(blueprint.options, PrivateStepOptions):
        rule = "must be taken apart by the server, which only method = 'fedsgd' does"
        raise InvalidInput("[privacy] noise", plan.noise.value, rule, "use fedsgd, or independent noise")
    if plan.scale_columns is not None and not isinstance(blueprint.options, PrivateStepOptions):
        rule = "is known to the steps of method = 'fedsgd' alone"
        raise InvalidInput("[privacy] scale-columns", plan.scale_columns, rule, "use fedsgd, or drop it")
    expected = blueprint.expected(plan.sampling_rate)
    return ClippedSums(blueprint.bound(NOISY), expected, plan.batch_limit, weights)


def _signed_noise(blueprint: Blueprint[Any]) -> GaussianNoise | None:
    signed = blueprint.signed(NOISY)
    return signed if isinstance(signed, GaussianNoise) else None


def _fedsgd(blueprint: Blueprint[PrivateStepOptions]) -> DpFedSgd | PaidScales:
    columns = blueprint.plan(GaussianPlan).scale_columns
    if columns is None:
        return _steps(blueprint)
    return around(_steps(blueprint_inside(blueprint)), blueprint, columns, (blueprint.model.classes,))


def _steps(blueprint: Blueprint[PrivateStepOptions]) -> DpFedSgd:
    sending, own, noise = _clipped_sums(blueprint), blueprint.options, _signed_noise(blueprint)
    return DpFedSgd(
        blueprint.model,
        GradientOptions(own.learning_rate, own.learning_rate_decay),
        sending.clip,
        blueprint.plan(GaussianPlan).sampling_rate * blueprint.units,
        blueprint.seed,
        limit=sending.limit,
        class_weight=own.class_weight,
        strategy=None if noise is None else noise.strategy,
        rule=_rule_of(own, blueprint.rounds, blueprint.seed),
    )


def _ali_dpfl(blueprint: Blueprint[PrivateAliDpfl]) -> AliDpfl:
    sending, noise = _clipped_sums(blueprint), _signed_noise(blueprint)
    sigma = 0.0 if noise is None else noise.sigma
    own, shares = blueprint.options, blueprint.shares
    return AliDpfl(blueprint.model, own, shares, sending, sigma, blueprint.rounds, blueprint.seed)


def _rule_of(own: PrivateStepOptions, rounds: int, seed: int) -> DescentRule | None:
    """The descent that momentum, cosine or iterate ask for; None for plain steps."""
    if own.momentum == 0 and not own.cosine and own.iterate is Iterate.LAST:
        return None
    if own.learning_rate_decay:
        rule = "is for plain steps, without momentum, cosine or iterate"
        raise InvalidInput("[training] learning-rate-decay", own.learning_rate_decay, rule, "use cosine = true instead")
    return DescentRule(
        own.learning_rate, own.momentum, iterate=own.iterate, rounds=rounds, seed=seed, cosine=own.cosine
    )


def _descent_ascent(blueprint: Blueprint[MinMaxOptions]) -> FedSgda:
    """Noisy Fed-SGDA of the plan's model and the user's own loss; one record is the unit."""
    plan, game = blueprint.plan(GaussianPlan), blueprint.min_max
    assert game is not None
    if len(plan.ratios) != 2 or plan.relation is Relation.REPLACE_ATTRIBUTE:
        raise InvalidInput(
            "[privacy] noise",
            plan.noise,
            "must be two ratios, for the gradients in theta and in w, with a relation between whole records",
            "write noise = [1.0, 1.0]",
        )
    table, loss = game.table, game.code.load("name a function of theta, w, x, y and s")
    theta, w = blueprint.model.initial(blueprint.seed), torch.zeros(table.w_size, dtype=torch.float64)
    with game.code.running("on a made-up record"):
        x, code = torch.zeros(blueprint.feature_shape, dtype=torch.float64), torch.tensor(0)
        grad(loss, argnums=(0, 1))(theta.double(), w, x, code, code)
    return FedSgda(
        loss=loss,
        theta_start=theta,
        w_start=w,
        theta_clip=table.theta_clip,
        w_clip=table.w_clip,
        expected=plan.sampling_rate * blueprint.units,
        w_step=table.w_step,
        w_radius=table.w_radius,
        rule=DescentRule(blueprint.options.learning_rate, table.momentum, rounds=blueprint.rounds, seed=blueprint.seed),
        clip=blueprint.bound(OF_W),
    )


RECIPES: tuple[Recipe[Any], ...] = (
    Recipe("gaussian", PrivateStepOptions, _fedsgd, RECORD_ADDED, method="fedsgd"),
    Recipe("gaussian", PrivateFedProx, from_shares(FedProx, _clipped_sums), RECORD_ADDED, method="fedprox"),
    Recipe("gaussian", PrivateScaffold, from_shares(Scaffold, _clipped_sums), RECORD_ADDED, method="scaffold"),
    Recipe("gaussian", PrivateFedDyn, from_shares(FedDyn, _clipped_sums), RECORD_ADDED, method="feddyn"),
    Recipe("gaussian", PrivateAliDpfl, _ali_dpfl, RECORD_ADDED, method="ali-dpfl"),
    Recipe("gaussian", MinMaxOptions, _descent_ascent, RECORD_ADDED, method=MIN_MAX),
)

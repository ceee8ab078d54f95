"""Fair plug-in: learn the outcome and the group, each with its own noise, and read the fair rule off one histogram.

Each round every silo sends two sums of its full data: the gradients of eta = P(y = 1 | x) and of rho = P(group | x).
In the last round but one it also counts, by group, whom eta alone would answer 1: the groups' sizes, and which are
favoured. In the last it counts, by group, at which strength tau of the rule each record's answer flips; from that the
coordinator reads the gap of every tau at once, and takes the weakest that keeps the target gap (`FairRule`).

Records and users: everything is noisy. Attributes: the group leaves once, through randomised response, and all that
follows is computed from features, labels and responses, in the clear, as in pay-once. There eta may be boosted trees:
in each round one silo, in turn, grows a tree (`Turns`) and sends it in the clear.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from calibrate.manifest.mechanism import RandomizedCategory
from calibrate.plans.fair_plugin import FLIPS, GROUPS, RATES, SCORES, TREE, FairPluginPlan
from calibrate.plans.pay_once import ATTRIBUTE
from calibrate.privacy_unit import Protected
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.descent import Descent, DescentRule, Iterate, tensor
from privfair.algorithms.parts.options import AtLeastZero, BelowOne, Count, OpenUnit, Options, Positive, Whole
from privfair.algorithms.parts.rule_strength import RuleStrength
from privfair.algorithms.parts.tree_growing import TreesInTurn, Turns
from privfair.algorithms.parts.unit_sums import SeenRecords, attributes_to_randomise, count_sum, gradient_sum
from privfair.algorithms.recipe import RECORD_ADDED, Blueprint, Recipe
from privfair.contribution import BoundedContribution
from privfair.fairness.fermi import OUTSIDE, Independence, block_of
from privfair.fairness.penalty import ResponseChannel
from privfair.models.fair_rule import FairRule
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model
from privfair.models.trees import BoostedTrees


@dataclass(frozen=True)
class FairPluginOptions(Options):
    """`target_gap` is the largest gap between two groups' rates that the rule may leave, as the noisy counts tell it.

    Everything here is post-processing, or decides how published values are laid out; nothing changes the price.
    """

    notion: Independence = Independence.DEMOGRAPHIC_PARITY
    target_gap: AtLeastZero = 0.05
    learning_rate: Positive = 12.0
    momentum: BelowOne = 0.9
    tree_rate: Positive = 0.15
    """What of a tree's leaves is added to the score, where trees are grown."""
    bins: Count = 24
    """How many strengths of the rule are tried, evenly spaced from 0 to `reach`."""
    reach: Positive | None = None
    """The strongest rule that is tried: 1.6, and 4 for equal opportunity, unless given. At 1 a sure record whose group
    is sure gives up all it has to spare."""
    positive_class: Whole = 1
    least_share: OpenUnit = 0.01
    """A group's noisy share of all records is held above this before anything is divided by it."""


@dataclass(frozen=True, eq=False)
class FairPluginState:
    """All of it published, or computed from what was. `responses` are empty unless attributes are protected."""

    descent: Descent
    """Of the score's parameters (none where trees are grown) and the group's, one after the other."""
    rates: Tensor
    """(groups, 2): the noisy numbers of records that eta alone answers 0 and 1; zero before they are published."""
    pulls: Tensor
    """One per group; zero before the last round."""
    responses: Mapping[str, Tensor]
    trees: Tensor
    """The trees so far, scaled by the rate, zeros after them; none unless trees are grown."""
    told_gap: Tensor
    """What the noisy counts say that the chosen rule leaves; zero before the last round."""


@dataclass(frozen=True)
class Clips:
    """What one unit may add at most to each value, in L2, as signed."""

    scores: float
    groups: float
    counts: float


@final
@dataclass(frozen=True, eq=False)
class FairPlugin(Algorithm[FairPluginState]):
    """The algorithm for one run; `model` is that of the outcome.

    Guarantee: with `clips`, one unit (a record, or a user where rows have owners) adds at most the signed clip to each
    sum and to each histogram, rounding included (docs/theorems/fair-plugin.md, equations 1 to 3); the manifest prices
    the noisy values. With a `channel` instead, true attributes are read in the first round alone, and
    leave it through randomised response; the rest is post-processing (equation 5). Trees are grown of features and
    labels alone, and only with a channel.

    Sums are divided by `units`, the signed number of all units, never by a realised one.
    """

    model: Model
    group_model: LogisticRegression
    options: FairPluginOptions
    units: int
    rounds: int
    clips: Clips | None
    channel: ResponseChannel | None = None
    largest_silo: int = 0
    seed: int = 0
    parties: tuple[str, ...] = ()
    """The silos in the order in which they grow trees."""

    def __post_init__(self) -> None:
        if (self.clips is None) == (self.channel is None):
            raise InvalidInput("clips", self.clips, "exclude a channel, and one is needed", "give one of the two")
        if self.options.notion is Independence.EQUALISED_ODDS:
            raise InvalidInput(
                "notion",
                self.options.notion.value,
                "has two gaps at once, which one rule strength can't close",
                "use equal-opportunity",
            )
        if self.forest is not None:
            self._require_room(self.forest.model)
        _ = self.rule

    def _require_room(self, forest: BoostedTrees) -> None:
        if self.channel is None:
            rule = 'would show features and labels, which are promised to be protected; they are for "attribute" alone'
            raise InvalidInput("[training.model] kind", "trees", rule, 'use "logistic", or protect = "attribute"')
        if forest.trees > self.rounds - 2:
            rule = f"are more than one for each of {self.rounds} rounds but the first and the last"
            raise InvalidInput("[training.model] trees", forest.trees, rule, f"write rounds = {forest.trees + 2}")

    @cached_property
    def forest(self) -> TreesInTurn | None:
        """How the model of the outcome grows, where it is made of trees."""
        if not isinstance(self.model, BoostedTrees):
            return None
        return TreesInTurn(self.model, Turns(self.parties), self.options.tree_rate)

    @cached_property
    def rule(self) -> FairRule:
        """The model that is released."""
        opportunity = self.options.notion is Independence.EQUAL_OPPORTUNITY
        return FairRule(self.model, self.group_model, opportunity, self.options.positive_class)

    @property
    def groups(self) -> int:
        return self.group_model.classes

    @cached_property
    def strength(self) -> RuleStrength:
        """Which strengths of the rule are tried."""
        own, usual = self.options, 4.0 if self.rule.opportunity else 1.6
        reach = usual if own.reach is None else own.reach
        return RuleStrength(self.rule, own.bins, reach, own.target_gap, own.least_share, self.clips is not None)

    @cached_property
    def steps(self) -> DescentRule:
        """All rounds make a step but the last, and the first where it carries the responses."""
        made = max(1, self.rounds - 1 - (self.channel is not None))
        own = self.options
        return DescentRule(
            own.learning_rate, own.momentum, iterate=Iterate.TAIL_AVERAGE, rounds=made, seed=self.seed, cosine=True
        )

    def clear_values(self) -> tuple[ClearValue, ...]:
        if self.channel is None:
            return ()
        why = "Computed from features, labels and the published responses; post-processing of the first round."
        grown = "Grown of features and labels alone, which are not protected; no attribute enters."
        first = ClearValue(SCORES, why, False) if self.forest is None else ClearValue(TREE, grown, False)
        return (first, *(ClearValue(name, why, depends_on_unit=False) for name in (GROUPS, RATES, FLIPS)))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            **({SCORES: (self.model.size,)} if self.forest is None else {TREE: (self.forest.model.nodes, 4)}),
            GROUPS: (self.group_model.size,),
            RATES: (self.groups, 2),
            FLIPS: (self.groups, self.strength.cells),
        }
        return shapes if self.channel is None else {ATTRIBUTE: (self.largest_silo,), **shapes}

    def start(self) -> FairPluginState:
        score, group, pulls = self.rule.split(self.rule.initial(self.seed))
        zeros = torch.zeros(self.groups, 2, dtype=torch.float64)
        if self.forest is None:
            begun = self.steps.start(torch.cat((score, group)))
            return FairPluginState(begun, zeros, pulls, {}, torch.zeros(0, 0, 4), torch.zeros(()))
        return FairPluginState(self.steps.start(group), zeros, pulls, {}, self.forest.start(), torch.zeros(()))

    def contribution(self, state: FairPluginState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        if self.channel is not None and not state.responses:
            return Message(randomized={ATTRIBUTE: attributes_to_randomise(silo, self.largest_silo)})
        seen = self._seen(state, silo, batch)
        parts = self._sums(state, step, seen, silo.name)
        if self.clips is None:
            return Message(clear=self._tree(state, silo, seen) | {part.name: part.values for part in parts})
        return Message(noisy=tuple(parts))

    def update(self, state: FairPluginState, received: Received) -> FairPluginState:
        if self.channel is not None and not state.responses:
            given = {party: tensor(values[ATTRIBUTE].values).long() for party, values in received.items()}
            return replace(state, responses=given)
        names = set().union(*received.values())
        if FLIPS in names:  # the histogram is of the models as they are, so they stay
            pulls, gap = self.strength.choose_pulls(state.rates, _sum(received, FLIPS))
            return replace(state, pulls=pulls, told_gap=gap)
        gradients = [_sum(received, name) for name in ((GROUPS,) if self.forest else (SCORES, GROUPS))]
        rates = _sum(received, RATES) if RATES in names else state.rates
        descent = self.steps.advance(state.descent, torch.cat(gradients) / self.units)
        return replace(state, descent=descent, rates=rates, trees=self._with_tree(state, received))

    def _with_tree(self, state: FairPluginState, received: Received) -> Tensor:
        sent = {party: values[TREE].values for party, values in received.items() if TREE in values}
        if self.forest is None or not sent:
            return state.trees
        return self.forest.with_tree(state.trees, state.descent.step, sent)

    def theta(self, state: FairPluginState) -> Tensor:
        return torch.cat((state.trees.flatten(), self.steps.model(state.descent), state.pulls))

    def remarks(self, state: FairPluginState) -> tuple[str, ...]:
        told, target = float(state.told_gap), self.options.target_gap
        if told <= target:
            return ()
        why = f"no rule that was tried keeps the target gap of {target:g} by the noisy counts"
        return (f"{why}: the one taken leaves {told:.3f}; allow a larger gap or epsilon, or try more bins or reach",)

    def restore(self, arrays: Mapping[str, Floats]) -> FairPluginState:
        state = super().restore(arrays)
        responses = {party: given.long() for party, given in state.responses.items()}
        return replace(state, responses=responses, trees=state.trees.to(torch.float64))

    # What a silo computes on its records.

    def _seen(self, state: FairPluginState, silo: SiloTensors, batch: Tensor) -> SeenRecords:
        if self.channel is None:
            return SeenRecords.of(silo, batch, self.groups)
        if silo.name not in state.responses:
            raise InvalidInput("silo", silo.name, "published no responses in round 0", "let all take part in it")
        return SeenRecords.of_responses(silo, batch, state.responses[silo.name], self.channel)

    def _sums(self, state: FairPluginState, step: int, seen: SeenRecords, party: str) -> list[BoundedContribution]:
        """What a round sums over records: gradients always, counts at the end."""
        theta, clips = state.descent.theta, self.clips
        inside = seen.only(block_of(self.options.notion, seen.y, self.options.positive_class) != OUTSIDE)
        group, clip = theta[-self.group_model.size :], None if clips is None else clips.groups
        parts = [gradient_sum(GROUPS, self.group_model, group, inside, inside.members, inside.s, clip)]
        if self.forest is None:
            score, clip = theta[: self.model.size], None if clips is None else clips.scores
            parts.insert(0, gradient_sum(SCORES, self.model, score, seen, None, seen.y, clip))
        clip = None if clips is None else clips.counts
        if step == self.rounds - 2:
            parts.append(
                count_sum(RATES, inside, self.strength.answers(self._counting_theta(state, party), inside.x), 2, clip)
            )
        if step == self.rounds - 1:
            cells = self.strength.flips(self._counting_theta(state, party), state.rates, inside.x)
            parts.append(count_sum(FLIPS, inside, cells, self.strength.cells, clip))
        return parts

    def _tree(self, state: FairPluginState, silo: SiloTensors, seen: SeenRecords) -> dict[str, Floats]:
        """The next tree, of features and labels alone."""
        place = state.descent.step
        if self.forest is None or place >= self.forest.model.trees:
            return {}
        whole = len(seen.x) == len(silo)  # then the silo's own tensor, which the grower may have seen before
        x, y = (silo.x, silo.y) if whole else (seen.x, seen.y)
        return {TREE: self.forest.next_tree(state.trees, place, silo.name, x, y)}

    def _counting_theta(self, state: FairPluginState, party: str) -> Tensor:
        """The model by which a silo's records are counted: that of the run, but for trees that saw them."""
        if self.forest is None:
            return self.theta(state)
        return self.theta(replace(state, trees=self.forest.turns.unseen(state.trees, party)))


def _sum(received: Received, name: str) -> Tensor:
    return tensor(np.sum([values[name].values for values in received.values()], axis=0))


def build(blueprint: Blueprint[FairPluginOptions]) -> FairPlugin:
    """The rule's two models, with the signed clips, or with the signed channel where attributes are protected."""
    plan, rule = blueprint.plan(FairPluginPlan), blueprint.model
    blueprint.require_groups(plan.groups)
    assert isinstance(rule, FairRule)
    attribute = plan.protect is Protected.ATTRIBUTE
    signed = blueprint.signed(ATTRIBUTE) if attribute else None
    epsilon = signed.epsilon if isinstance(signed, RandomizedCategory) else None
    return FairPlugin(
        model=rule.score,
        group_model=rule.group,
        options=blueprint.options,
        units=blueprint.units,
        rounds=blueprint.rounds,
        clips=None if attribute else Clips(plan.clip, plan.group_clip, plan.count_clip),
        channel=ResponseChannel.of_epsilon(plan.groups, epsilon) if attribute else None,
        largest_silo=max(size for _, size in blueprint.parties),
        seed=blueprint.seed,
        parties=tuple(name for name, _ in blueprint.parties),
    )


RECIPE = Recipe("fair-plugin", FairPluginOptions, build, RECORD_ADDED)

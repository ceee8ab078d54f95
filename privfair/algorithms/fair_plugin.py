"""Fair plug-in: learn the outcome and the group, each with its own noise, and read the fair rule off one histogram.

Each round every silo sends two sums of its full data: the gradients of eta = P(y = 1 | x) and of rho = P(group | x).
In the last round but one it also counts, by group, whom eta alone would answer 1: the groups' sizes, and which are
favoured. In the last it counts, by group, at which strength tau of the rule each record's answer flips; from that the
coordinator reads the gap of every tau at once, and takes the weakest that keeps the target gap (`FairRule`).

With a `gap_share` the last ten rounds search tau instead: each counts, by group, whom the rule answers 1 at one tau,
and the next tau follows from all counts so far (`StrengthSearch`). Near the target these tell the gap better.

Records and users: everything is noisy. Attributes: the group leaves once, through randomised response, and all that
follows is computed from features, labels and responses, in the clear, as in pay-once. There eta may be boosted trees:
in each round one silo, in turn, grows a tree (`Turns`) and sends it in the clear. In rounds after the rule was chosen
they may grow a pupil, too, which learns the rule's answers and guesses no group (`Distilling`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from calibrate.manifest.mechanism import RandomizedCategory
from calibrate.plans.fair_plugin import (
    ATTRIBUTE,
    FLIPS,
    GAPS,
    GROUPS,
    PUPIL,
    RATES,
    SCORES,
    SEARCHED,
    TREE,
    FairPluginPlan,
)
from calibrate.privacy_unit import Protected
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.descent import Descent, DescentRule, Iterate, tensor
from privfair.algorithms.parts.paid_scales import PaidScales, around, blueprint_inside, noise_of_sum
from privfair.algorithms.parts.tree_growing import Distilling, TreesInTurn, Turns
from privfair.algorithms.parts.unit_sums import SeenRecords, attributes_to_randomise, count_sum, gradient_sum
from privfair.algorithms.recipe import RECORD_ADDED, Blueprint, Recipe
from privfair.contribution import BoundedContribution
from privfair.fairness.constraints import ResponseChannel
from privfair.fairness.fermi import OUTSIDE, Independence, block_of
from privfair.models.exact import weighted_rows
from privfair.models.fair_rule import DistilledRule, FairRule
from privfair.models.linear import LogisticRegression, with_intercepts
from privfair.models.model import Features, Model, tensor_of
from privfair.models.trees import BoostedTrees
from privfair.plan.sections import AtLeastZero, BelowOne, Count, OpenUnit, Options, Positive, Whole


@dataclass(frozen=True)
class FairPluginOptions(Options):
    """`target_gap` is the largest gap between two groups' rates that the rule may leave, as the noisy counts tell it.

    Everything here is post-processing, or decides how published values are laid out; nothing changes the price.
    """

    notion: Independence = Independence.DEMOGRAPHIC_PARITY
    target_gap: AtLeastZero = 0.05
    learning_rate: Positive = 12.0
    momentum: BelowOne = 0.9
    group_rate: Positive | None = None
    """Of the group's model; `learning_rate` where it is left out."""
    tree_rate: Positive = 0.15
    """What of a tree's leaves is added to the score, where trees are grown or the rule is distilled."""
    bins: Count = 24
    """How many strengths of the rule are tried, evenly spaced from 0 to `reach`."""
    reach: Positive | None = None
    """The strongest rule that is tried [default: 1.6; 4 for equal opportunity or more than two groups]. At 1 a
    sure record whose group is sure gives up all it has to spare."""
    positive_class: Whole = 1
    least_share: OpenUnit = 0.01
    """A group's noisy share of all records is held above this before anything is divided by it."""
    distil_trees: Whole = 0
    """The rule is distilled into this number of trees, one in each of the last rounds; 0 releases the rule itself."""


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
    told: Tensor
    """(counts, groups, 2): of a search, who is answered 0 and 1 at each strength that was asked; zeros after them."""
    asked: Tensor
    """These strengths, and the one that follows; zeros after them."""
    searched: int
    """How many strengths were asked."""
    told_gap: Tensor
    """What the noisy counts say that the chosen rule leaves; zero before the last round."""
    pupil: Tensor
    """The trees of a pupil so far, as `trees` are; none unless the rule is distilled."""
    taught: int
    """How many trees the pupil has."""


_STAYS, _REST = 0, 1
"""The first cells of the histogram: answered 1 at every tau, and answered 0 at every tau."""


@dataclass(frozen=True)
class RuleStrength:
    """Which strengths tau of a rule are tried, and how one is chosen; see `FairPluginOptions`.

    A silo counts, by group, which records the outcome's model alone answers 1, and then in which bin of tau each
    record's answer flips. From sums of these counts, noisy or of randomised responses, the coordinator reads which
    groups are favoured and the gap of every tau at once, and takes the weakest that keeps the target gap.
    """

    rule: FairRule
    bins: int
    reach: float
    target_gap: float
    least_share: float

    @property
    def cells(self) -> int:
        """Of the histogram: two for records that never flip, and where others leave the ones or join them."""
        return 2 + 2 * self.bins

    # What a silo computes on its records.

    def answers(self, theta: Tensor, x: Features, pulls: Tensor | None = None) -> Tensor:
        """Whether the rule with these pulls answers 1; eta alone without them."""
        margin, groups = self.rule.margin_and_groups(theta, x)
        return (margin > (0 if pulls is None else weighted_rows(groups, pulls))).long()

    def flips(self, theta: Tensor, rates: Tensor, x: Features) -> Tensor:
        """The cell of each record: the bin of tau in which it leaves the ones or joins them, or that it never flips."""
        bins = self.bins
        margin, groups = self.rule.margin_and_groups(theta, x)
        pull = weighted_rows(groups, self.direction(rates))
        flips = margin / torch.where(pull == 0, torch.ones_like(pull), pull)
        place = (flips / self.reach * bins).clamp(0, bins - 1).long()
        within = (pull != 0) & (flips >= 0) & (flips < self.reach)
        leaves, joins = within & (margin > 0), within & (margin <= 0)
        cell = torch.where(margin > 0, _STAYS, _REST)
        cell = torch.where(leaves, 2 + place, cell)
        return torch.where(joins, 2 + bins + place, cell)

    # What the coordinator makes of the counts.

    def direction(self, rates: Tensor) -> Tensor:
        """How strongly each group is pulled at tau = 1: those above the mean rate down, those below it up.

        Two groups are pulled equally, by 1 over their shares; all is scaled by the smallest share, so that the range of
        tau that matters is about the same whatever the shares are.
        """
        sizes = rates.sum(dim=1).clamp_min(0.0)
        shares = (sizes / sizes.sum().clamp_min(1.0)).clamp_min(self.least_share)
        away = (rates[:, 1] / sizes.clamp_min(1.0)).clamp(0.0, 1.0)
        away = away - away.mean()
        widest = away.abs().max()
        return away / (widest if float(widest) > 0 else 1.0) * shares.min() / shares

    def choose_pulls(self, rates: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The weakest rule whose gap, as counted, keeps the target, else that with the smallest gap; and that gap."""
        bins = self.bins
        cumulated = torch.cumsum(counts[:, 2:].reshape(len(counts), 2, bins), dim=2)
        leaves, joins = torch.nn.functional.pad(cumulated, (1, 0)).unbind(dim=1)
        sizes = counts.sum(dim=1, keepdim=True).clamp_min(1.0)
        told = (counts[:, _STAYS, None] + leaves[:, -1:] - leaves + joins) / sizes
        gaps = told.amax(dim=0) - told.amin(dim=0)
        kept = (gaps <= self.target_gap).nonzero()[:, 0]
        place = int(kept[0]) if len(kept) else int(gaps.argmin())
        return self.direction(rates) * (self.reach * place / bins), gaps[place]


@dataclass(frozen=True)
class StrengthSearch:
    """The strength nearest to none at which the told gap is within the target, asked for time after time.

    `noise` is the standard deviation in a count, of all silos together, and `units` the signed number of units: where
    gaps are told badly, strengths stay where a rule still means something.
    """

    strength: RuleStrength
    noise: float
    units: int

    @property
    def farthest(self) -> float:
        """How strong a rule may become: a gap's standard deviation of .03 is told well."""
        return 16.0 if 2 * math.sqrt(2) * self.noise / self.units <= 0.03 else 1.6

    def next(self, told: Floats, asked: Floats) -> tuple[Tensor, float, float]:
        """The pulls of strength one, the next strength, and the gap that is told of it."""
        first, sizes = told[0], np.maximum(told.mean(axis=0).sum(axis=1), _LEAST_GROUP * self.units)
        direction = self.strength.direction(tensor(np.maximum(first, _LEAST_GROUP * self.units / 2)))
        rates = told[:, :, 1] / sizes
        if rates.shape[1] == 2:  # signed: the group that the first counts favour may be the other one
            favoured = int(direction.argmax())
            gaps = rates[:, favoured] - rates[:, 1 - favoured]
        else:
            gaps = rates.max(axis=1) - rates.min(axis=1)
        strength, gap = crossing(asked, gaps, self.strength.target_gap, self.farthest)
        return direction, strength, gap


_LEAST_GROUP = 0.02
"""No group is taken to be smaller than this share of all units."""


def crossing(asked: Floats, gaps: Floats, target: float, farthest: float) -> tuple[float, float]:
    """The strength nearest to none whose pooled gap is within the target, and that gap.

    Gaps are pooled so that they fall as the strength grows; between two strengths they are taken for straight.
    """
    places, inverse, times = np.unique(asked, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, gaps) / times
    fall = optimize.isotonic_regression(means, weights=times, increasing=False).x
    here = float(fall[np.searchsorted(places, 0.0)])
    if abs(here) <= target:
        return 0.0, abs(here)
    if here < 0:
        places, fall = -places[::-1], -fall[::-1]
    inside = np.flatnonzero((places > 0) & (fall <= target))
    if len(inside):
        before, after = inside[0] - 1, inside[0]
        part = np.clip((fall[before] - target) / max(fall[before] - fall[after], 1e-9), 0.1, 1.0)
        best, gap = float(places[before] + (places[after] - places[before]) * part), target
    else:
        best, gap = min(2 * max(float(places.max()), 0.0) + 0.5, farthest), float(fall[-1])
    return (best if here > 0 else -best), gap


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
    pupil: BoostedTrees | None = None
    """What the rule is distilled into, in as many rounds, after those of the rule."""
    gap_noise: float | None = None
    """Where the strength is searched: the standard deviation in a count, of all silos together."""

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
        self._require_attributes_alone()
        self._require_room()
        _ = self.rule

    def _require_attributes_alone(self) -> None:
        """Refuse trees where features and labels are promised to be protected, too."""
        if self.channel is not None:
            return
        if self.forest is not None:
            rule = 'would show features and labels, which are promised to be protected; they are for "attribute" alone'
            raise InvalidInput("[training.model] kind", "trees", rule, 'use "logistic", or protect = "attribute"')
        if self.pupil is not None:
            rule = "learn the rule's answers on records whose features are promised to be protected, and show them"
            remedy = 'release the rule itself (drop it), or protect = "attribute"'
            raise InvalidInput("[training] distil-trees", self.pupil.trees, rule, remedy)

    def _require_room(self) -> None:
        grown, pupil = 0 if self.forest is None else self.forest.model.trees, self.rounds - self.rule_rounds
        if grown and grown > self.rule_rounds - 2:
            rule = f"are more than one for each of {self.rule_rounds} rounds but the first and the last"
            raise InvalidInput("[training.model] trees", grown, rule, f"write rounds = {grown + 2 + pupil}")
        if pupil and self.rule_rounds < 3:
            rule = f"leave fewer than three of {self.rounds} rounds for the rule"
            raise InvalidInput("[training] distil-trees", pupil, rule, f"write rounds = {pupil + 100}")

    @property
    def rule_rounds(self) -> int:
        """The rounds until the rule is chosen; in those after them it is distilled."""
        return self.rounds - (0 if self.pupil is None else self.pupil.trees)

    @cached_property
    def distilling(self) -> Distilling | None:
        """How the pupil learns, where there is one."""
        if self.pupil is None:
            return None
        return Distilling(self.rule, TreesInTurn(self.pupil, Turns(self.parties), self.options.tree_rate))

    @cached_property
    def forest(self) -> TreesInTurn | None:
        """How the model of the outcome grows, where it is made of trees."""
        if not isinstance(self.model, BoostedTrees):
            return None
        return TreesInTurn(self.model, Turns(self.parties), self.options.tree_rate)

    @cached_property
    def rule(self) -> FairRule:
        """The rule that is learnt."""
        opportunity = self.options.notion is Independence.EQUAL_OPPORTUNITY
        return FairRule(self.model, self.group_model, opportunity, self.options.positive_class)

    @property
    def released(self) -> Model:
        """The model whose parameters `theta` are."""
        return self.rule if self.pupil is None else DistilledRule(self.pupil, self.rule)

    @property
    def groups(self) -> int:
        return self.group_model.classes

    @cached_property
    def strength(self) -> RuleStrength:
        """Which strengths of the rule are tried."""
        own, usual = self.options, 4.0 if self.rule.opportunity or self.groups > 2 else 1.6
        reach = usual if own.reach is None else own.reach
        return RuleStrength(self.rule, own.bins, reach, own.target_gap, own.least_share)

    @cached_property
    def search(self) -> StrengthSearch | None:
        """How the strength is searched, where it is."""
        return None if self.gap_noise is None else StrengthSearch(self.strength, self.gap_noise, self.units)

    @cached_property
    def steps(self) -> DescentRule:
        """All rounds make a step but those of histograms alone, and the first where it carries the responses."""
        own = self.options
        if self.search is not None:
            made = self.rule_rounds - SEARCHED
            return DescentRule(own.learning_rate, own.momentum, iterate=Iterate.HALF_AVERAGE, rounds=made)
        made = max(1, self.rule_rounds - 1 - (self.channel is not None))
        return DescentRule(
            own.learning_rate, own.momentum, iterate=Iterate.TAIL_AVERAGE, rounds=made, seed=self.seed, cosine=True
        )

    def clear_values(self) -> tuple[ClearValue, ...]:
        if self.channel is None:
            return ()
        why = "Computed from features, labels and the published responses; post-processing of the first round."
        grown = "Grown of features and labels alone, which are not protected; no attribute enters."
        first = ClearValue(SCORES, why, False) if self.forest is None else ClearValue(TREE, grown, False)
        names = (GROUPS, RATES, FLIPS) if self.pupil is None else (GROUPS, RATES, FLIPS, PUPIL)
        return (first, *(ClearValue(name, why, depends_on_unit=False) for name in names))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            **({SCORES: (self.model.size,)} if self.forest is None else {TREE: (self.forest.model.nodes, 4)}),
            GROUPS: (self.group_model.size,),
            **({GAPS: (self.groups, 2)} if self.search else {}),
            **({} if self.search else {RATES: (self.groups, 2), FLIPS: (self.groups, self.strength.cells)}),
            **({} if self.pupil is None else {PUPIL: (self.pupil.nodes, 4)}),
        }
        return shapes if self.channel is None else {ATTRIBUTE: (self.largest_silo,), **shapes}

    def start(self) -> FairPluginState:
        return self._at(*self.rule.split(self.rule.initial(self.seed)))

    def start_at(self, *intercepts: Tensor) -> FairPluginState:
        """The state before the first step, with these intercepts of the outcome's model and the group's."""
        score, group, pulls = self.rule.split(self.rule.initial(self.seed))
        score = with_intercepts(self.model, score, intercepts[0])
        return self._at(score, with_intercepts(self.group_model, group, intercepts[1]), pulls)

    def _at(self, score: Tensor, group: Tensor, pulls: Tensor) -> FairPluginState:
        counted = 0 if self.search is None else SEARCHED
        return FairPluginState(
            self.steps.start(torch.cat((score, group)) if self.forest is None else group),
            rates=torch.zeros(self.groups, 2, dtype=torch.float64),
            pulls=pulls,
            responses={},
            trees=torch.zeros(0, 0, 4) if self.forest is None else self.forest.start(),
            told=torch.zeros(counted, self.groups, 2, dtype=torch.float64),
            asked=torch.zeros(counted + min(counted, 1), dtype=torch.float64),
            searched=0,
            told_gap=torch.zeros((), dtype=torch.float64),
            pupil=torch.zeros(0, 0, 4) if self.distilling is None else self.distilling.pupil.start(),
            taught=0,
        )

    def contribution(self, state: FairPluginState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        if self.channel is not None and not state.responses:
            return Message(randomized={ATTRIBUTE: attributes_to_randomise(silo, self.largest_silo)})
        seen = self._seen(state, silo, batch)
        if self.distilling is not None and step >= self.rule_rounds:
            x, theta = _features_and_labels(silo, seen)[0], self._counting_theta(state, silo.name)
            return Message(clear={PUPIL: self.distilling.next_tree(state.pupil, state.taught, silo.name, theta, x)})
        parts = self._sums(state, step, seen, silo.name)
        if self.clips is None:
            return Message(clear=self._tree(state, silo, seen) | {part.name: part.values for part in parts})
        return Message(noisy=tuple(parts))

    def update(self, state: FairPluginState, received: Received) -> FairPluginState:
        if self.channel is not None and not state.responses:
            given = {party: tensor(values[ATTRIBUTE].values).long() for party, values in received.items()}
            return replace(state, responses=given)
        names = set().union(*received.values())
        if self.distilling is not None and PUPIL in names:
            sent = {party: values[PUPIL].values for party, values in received.items()}
            pupil = self.distilling.pupil.with_tree(state.pupil, state.taught, sent)
            return replace(state, pupil=pupil, taught=state.taught + 1)
        if self.search is not None and GAPS in names:
            return self._searched(self.search, state, _sum(received, GAPS))
        if FLIPS in names:  # the histogram is of the models as they are, so they stay
            pulls, gap = self.strength.choose_pulls(state.rates, _sum(received, FLIPS))
            return replace(state, pulls=pulls, told_gap=gap)
        gradients = [_sum(received, name) for name in ((GROUPS,) if self.forest else (SCORES, GROUPS))]
        rates = _sum(received, RATES) if RATES in names else state.rates
        if self.options.group_rate is not None:
            gradients[-1] = gradients[-1] * (self.options.group_rate / self.options.learning_rate)
        descent = self.steps.advance(state.descent, torch.cat(gradients) / self.units)
        return replace(state, descent=descent, rates=rates, trees=self._with_tree(state, received))

    def _searched(self, search: StrengthSearch, state: FairPluginState, counts: Tensor) -> FairPluginState:
        """The next strength, by these counts and those before them."""
        told, asked, place = state.told.clone(), state.asked.clone(), state.searched
        told[place] = counts
        direction, strength, gap = search.next(told[: place + 1].numpy(), asked[: place + 1].numpy())
        asked[place + 1] = strength
        left = torch.tensor(gap, dtype=torch.float64)
        return replace(state, told=told, asked=asked, searched=place + 1, pulls=direction * strength, told_gap=left)

    def _with_tree(self, state: FairPluginState, received: Received) -> Tensor:
        sent = {party: values[TREE].values for party, values in received.items() if TREE in values}
        if self.forest is None or not sent:
            return state.trees
        return self.forest.with_tree(state.trees, state.descent.step, sent)

    def theta(self, state: FairPluginState) -> Tensor:
        return self.rule_theta(state) if self.pupil is None else state.pupil.flatten()

    def rule_theta(self, state: FairPluginState) -> Tensor:
        """The rule's parameters, released or not."""
        return torch.cat((state.trees.flatten(), self.steps.model(state.descent), state.pulls))

    def remarks(self, state: FairPluginState) -> tuple[str, ...]:
        told, target, remarks = float(state.told_gap), self.options.target_gap, list[str]()
        if told > target:
            why = f"no rule that was tried keeps the target gap of {target:g} by the noisy counts"
            remedy = "allow a larger gap or epsilon" + ("" if self.search else ", or try more bins or reach")
            remarks.append(f"{why}: the one taken leaves {told:.3f}; {remedy}")
        if self.pupil is not None and state.taught < self.pupil.trees:
            unfinished = f"the rule is distilled into {state.taught} of {self.pupil.trees} trees"
            remarks.append(f"{unfinished}, so the model does not give its answers; let all signed rounds run")
        return tuple(remarks)

    def restore(self, arrays: Mapping[str, Floats]) -> FairPluginState:
        state = super().restore(arrays)
        responses = {party: given.long() for party, given in state.responses.items()}
        trees, pupil = state.trees.to(torch.float64), state.pupil.to(torch.float64)
        return replace(state, responses=responses, trees=trees, pupil=pupil)

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
        if self.search is not None and clips is not None and step >= self.rule_rounds - SEARCHED:
            answers = self.strength.answers(self.rule_theta(state), inside.x, state.pulls)
            return [count_sum(GAPS, inside, answers, 2, clips.counts)]
        group, clip = theta[-self.group_model.size :], None if clips is None else clips.groups
        parts = [gradient_sum(GROUPS, self.group_model, group, inside, inside.members, inside.s, clip)]
        if self.forest is None:
            score, clip = theta[: self.model.size], None if clips is None else clips.scores
            parts.insert(0, gradient_sum(SCORES, self.model, score, seen, None, seen.y, clip))
        clip = None if clips is None else clips.counts
        if self.search is not None:
            return parts
        if step == self.rule_rounds - 2:
            parts.append(
                count_sum(RATES, inside, self.strength.answers(self._counting_theta(state, party), inside.x), 2, clip)
            )
        if step == self.rule_rounds - 1:
            cells = self.strength.flips(self._counting_theta(state, party), state.rates, inside.x)
            parts.append(count_sum(FLIPS, inside, cells, self.strength.cells, clip))
        return parts

    def _tree(self, state: FairPluginState, silo: SiloTensors, seen: SeenRecords) -> dict[str, Floats]:
        """The next tree, of features and labels alone."""
        place = state.descent.step
        if self.forest is None or place >= self.forest.model.trees:
            return {}
        return {TREE: self.forest.next_tree(state.trees, place, silo.name, *_features_and_labels(silo, seen))}

    def _counting_theta(self, state: FairPluginState, party: str) -> Tensor:
        """The model by which a silo's records are counted: that of the run, but for trees that saw them."""
        if self.forest is None:
            return self.rule_theta(state)
        return self.rule_theta(replace(state, trees=self.forest.turns.unseen(state.trees, party)))


def _features_and_labels(silo: SiloTensors, seen: SeenRecords) -> tuple[Tensor, Tensor]:
    """Those of the batch; the silo's own tensors, which a grower may have seen before, if that is everybody."""
    return (silo.x, silo.y) if len(seen.x) == len(silo) else (tensor_of(seen.x), seen.y)


def _sum(received: Received, name: str) -> Tensor:
    return tensor(np.sum([values[name].values for values in received.values()], axis=0))


def build(blueprint: Blueprint[FairPluginOptions]) -> FairPlugin | PaidScales:
    """The rule's two models, on scaled features where the plan says so."""
    plan = blueprint.plan(FairPluginPlan)
    if plan.scale_columns is None:
        return _build(blueprint)
    labels = (blueprint.model.classes, blueprint.groups)
    return around(_build(blueprint_inside(blueprint)), blueprint, plan.scale_columns, labels)


def _build(blueprint: Blueprint[FairPluginOptions]) -> FairPlugin:
    """The rule's two models, with the signed clips, or with the signed channel where attributes are protected."""
    plan, released = blueprint.plan(FairPluginPlan), blueprint.model
    blueprint.require_groups(plan.groups)
    pupil, rule = (released.pupil, released.rule) if isinstance(released, DistilledRule) else (None, released)
    assert isinstance(rule, FairRule)
    attribute, clip = plan.protect is Protected.ATTRIBUTE, blueprint.bound
    signed = blueprint.signed(ATTRIBUTE) if attribute else None
    epsilon = signed.epsilon if isinstance(signed, RandomizedCategory) else None
    return FairPlugin(
        model=rule.score,
        group_model=rule.group,
        options=blueprint.options,
        units=blueprint.units,
        rounds=blueprint.rounds,
        clips=None if attribute else Clips(clip(SCORES), clip(GROUPS), clip(RATES if plan.gap_share is None else GAPS)),
        channel=ResponseChannel.of_epsilon(plan.groups, epsilon) if attribute else None,
        largest_silo=max(size for _, size in blueprint.parties),
        seed=blueprint.seed,
        parties=tuple(name for name, _ in blueprint.parties),
        pupil=pupil,
        gap_noise=None if plan.gap_share is None else noise_of_sum(blueprint, GAPS),
    )


RECIPE = Recipe("fair-plugin", FairPluginOptions, build, RECORD_ADDED)

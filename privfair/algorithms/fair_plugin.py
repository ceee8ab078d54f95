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
from torch.nn.functional import one_hot

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from calibrate.manifest.mechanism import RandomizedCategory
from calibrate.plans.fair_plugin import FLIPS, GROUPS, RATES, SCORES, TREE, FairPluginPlan
from calibrate.plans.pay_once import ATTRIBUTE
from calibrate.privacy_unit import Protected
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.parts.descent import Descent, DescentRule, Iterate, tensor
from privfair.algorithms.parts.local_models import drawn_rows
from privfair.algorithms.parts.options import AtLeastZero, BelowOne, Count, OpenUnit, Options, Positive, Whole
from privfair.algorithms.parts.tree_growing import Grower, Turns
from privfair.algorithms.parts.user_statistics import Layout, Statistics, rows_of_users
from privfair.algorithms.recipe import RECORD_ADDED, Blueprint, Recipe
from privfair.contribution import BoundedContribution
from privfair.fairness.constraints import RateValue
from privfair.fairness.fermi import OUTSIDE, Independence, block_of
from privfair.fairness.penalty import ResponseChannel
from privfair.models.fair_rule import FairRule
from privfair.models.layers import coefficients_of
from privfair.models.linear import LogisticRegression
from privfair.models.model import Decide, Model, clipped_to, decide_each_alone
from privfair.models.trees import VALUE, BoostedTrees
from privfair.rounding import sum_in_blocks

_STAYS, _REST = 0, 1
"""The first cells of the histogram: answered 1 at every tau, and answered 0 at every tau."""


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
            self._require_trees(self.forest)
        _ = self.rule

    def _require_trees(self, forest: BoostedTrees) -> None:
        if self.channel is None:
            rule = 'would show features and labels, which are promised to be protected; they are for "attribute" alone'
            raise InvalidInput("[training.model] kind", "trees", rule, 'use "logistic", or protect = "attribute"')
        if forest.trees > self.rounds - 2:
            rule = f"are more than one for each of {self.rounds} rounds but the first and the last"
            raise InvalidInput("[training.model] trees", forest.trees, rule, f"write rounds = {forest.trees + 2}")
        if not self.parties:
            raise InvalidInput("parties", (), "are needed to grow trees in turn", "name the silos")

    @property
    def forest(self) -> BoostedTrees | None:
        """The model of the outcome where it is made of trees."""
        return self.model if isinstance(self.model, BoostedTrees) else None

    @property
    def turns(self) -> Turns:
        """Who grows which tree."""
        return Turns(self.parties)

    @cached_property
    def _grower(self) -> Grower:
        assert self.forest is not None
        return Grower(self.forest)

    @cached_property
    def rule(self) -> FairRule:
        """The model that is released."""
        opportunity = self.options.notion is Independence.EQUAL_OPPORTUNITY
        return FairRule(self.model, self.group_model, opportunity, self.options.positive_class)

    @property
    def groups(self) -> int:
        return self.group_model.classes

    @property
    def reach(self) -> float:
        """The strongest rule that is tried."""
        usual = 4.0 if self.rule.opportunity else 1.6
        return usual if self.options.reach is None else self.options.reach

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
            **({SCORES: (self.model.size,)} if self.forest is None else {TREE: (self.forest.nodes, 4)}),
            GROUPS: (self.group_model.size,),
            RATES: (self.groups, 2),
            FLIPS: (self.groups, 2 + 2 * self.options.bins),
        }
        return shapes if self.channel is None else {ATTRIBUTE: (self.largest_silo,), **shapes}

    def start(self) -> FairPluginState:
        score, group, pulls = self.rule.split(self.rule.initial(self.seed))
        zeros = torch.zeros(self.groups, 2, dtype=torch.float64)
        if self.forest is None:
            begun = self.steps.start(torch.cat((score, group)))
            return FairPluginState(begun, zeros, pulls, {}, torch.zeros(0, 0, 4), torch.zeros(()))
        trees = score.reshape(-1, self.forest.nodes, 4)
        return FairPluginState(self.steps.start(group), zeros, pulls, {}, trees, torch.zeros(()))

    def contribution(self, state: FairPluginState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        if self.channel is not None and not state.responses:
            return Message(randomized={ATTRIBUTE: self._fill_up(silo)})
        seen = self._seen(state, silo, batch)
        group = state.descent.theta[-self.group_model.size :]
        inside = seen.only(block_of(self.options.notion, seen.y, self.options.positive_class) != OUTSIDE)
        parts = [self._group_sum(group, inside)]
        if self.forest is None:
            parts.insert(0, self._score_sum(state.descent.theta[: self.model.size], seen))
        if step == self.rounds - 2:
            parts.append(self._counts(RATES, inside, self._answers(self._counting_theta(state, silo), inside), 2))
        if step == self.rounds - 1:
            cells = self._flips(self._counting_theta(state, silo), state.rates, inside)
            parts.append(self._counts(FLIPS, inside, cells, 2 + 2 * self.options.bins))
        if self.clips is None:
            return Message(clear=self._tree(state, silo, seen) | {part.name: part.values for part in parts})
        return Message(noisy=tuple(parts))

    def update(self, state: FairPluginState, received: Received) -> FairPluginState:
        if self.channel is not None and not state.responses:
            given = {party: tensor(values[ATTRIBUTE].values).long() for party, values in received.items()}
            return replace(state, responses=given)
        names = set().union(*received.values())
        if FLIPS in names:  # the histogram is of the models as they are, so they stay
            pulls, gap = self._choose_pulls(state, _sum(received, FLIPS))
            return replace(state, pulls=pulls, told_gap=gap)
        gradients = [_sum(received, name) for name in ((GROUPS,) if self.forest else (SCORES, GROUPS))]
        rates = _sum(received, RATES) if RATES in names else state.rates
        descent = self.steps.advance(state.descent, torch.cat(gradients) / self.units)
        return replace(state, descent=descent, rates=rates, trees=self._with_tree(state, received))

    def _with_tree(self, state: FairPluginState, received: Received) -> Tensor:
        place = state.descent.step
        grown = received.get(self.turns.grower(place), {}) if self.forest is not None else {}
        if self.forest is None or TREE not in grown:
            return state.trees
        tree, trees = tensor(grown[TREE].values), state.trees.clone()
        self.forest.require_trees(tree[None])
        tree[:, VALUE] *= self.options.tree_rate / self.turns.strands
        trees[place] = tree
        return trees

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

    def _seen(self, state: FairPluginState, silo: SiloTensors, batch: Tensor) -> _Seen:
        if self.channel is not None:
            if silo.name not in state.responses:
                raise InvalidInput("silo", silo.name, "published no responses in round 0", "let all take part in it")
            responses = state.responses[silo.name][: len(silo)]
            x, y, answered = drawn_rows(batch, silo.x, silo.y, responses)
            return _Seen(x, y, answered, self.channel.memberships(answered))
        if silo.unit_of_row is not None:
            rows, owner = rows_of_users(silo, batch)
            x, y, s = silo.x[rows], silo.y[rows], silo.s[rows]
            return _Seen(x, y, s, one_hot(s, self.groups).to(torch.float64), owner)
        x, y, s = drawn_rows(batch, silo.x, silo.y, silo.s)
        return _Seen(x, y, s, one_hot(s, self.groups).to(torch.float64))

    def _tree(self, state: FairPluginState, silo: SiloTensors, seen: _Seen) -> dict[str, Floats]:
        """The next tree, of features and labels alone; one that adds nothing, from a silo whose turn it is not."""
        place = state.descent.step
        if self.forest is None or place >= self.forest.trees:
            return {}
        if silo.name != self.turns.grower(place):
            return {TREE: np.zeros((self.forest.nodes, 4))}
        whole = len(seen.x) == len(silo)  # then the silo's own tensor, which the grower may have seen before
        x, y = (silo.x, silo.y) if whole else (seen.x, seen.y)
        return {TREE: self._grower.next_tree(silo.name, self.turns.before(state.trees, place), x, y)}

    def _counting_theta(self, state: FairPluginState, silo: SiloTensors) -> Tensor:
        """The model by which a silo's records are counted: that of the run, but for trees that saw them."""
        if self.forest is None:
            return self.theta(state)
        return self.theta(replace(state, trees=self.turns.unseen(state.trees, silo.name)))

    def _decide(self, x: Tensor, theta: Tensor, decide: Decide) -> Tensor:
        """Each record's cell, alone where its count is priced; in the clear nothing depends on how it is rounded."""
        if self.clips is None:
            return decide(x, torch.zeros(len(x), dtype=torch.float64))[0]
        return decide_each_alone(x, theta, decide)

    def _score_sum(self, theta: Tensor, seen: _Seen) -> BoundedContribution:
        clip = None if self.clips is None else self.clips.scores
        return _gradient_sum(SCORES, self.model, theta, seen, None, seen.y, clip)

    def _group_sum(self, theta: Tensor, inside: _Seen) -> BoundedContribution:
        clip = None if self.clips is None else self.clips.groups
        return _gradient_sum(GROUPS, self.group_model, theta, inside, inside.members, inside.s, clip)

    def _answers(self, theta: Tensor, inside: _Seen) -> Tensor:
        """Whether eta alone answers 1."""

        def decide(x: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
            margin, _ = self.rule.margin_and_groups(theta, x)
            return (margin > 0).long(), margin.to(torch.float64).abs() <= 2 * moved

        return self._decide(inside.x, theta, decide)

    def _flips(self, theta: Tensor, rates: Tensor, inside: _Seen) -> Tensor:
        """The cell of each record: the bin of tau in which it leaves the ones or joins them, or that it never flips."""
        direction, bins = self._direction(rates), self.options.bins

        def decide(x: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
            margin, groups = (part.to(torch.float64) for part in self.rule.margin_and_groups(theta, x))
            pull = groups @ direction
            flips = margin / torch.where(pull == 0, torch.ones_like(pull), pull)
            scaled = flips / self.reach * bins
            place = scaled.clamp(0, bins - 1).long()
            within = (pull != 0) & (flips >= 0) & (flips < self.reach)
            leaves, joins = within & (margin > 0), within & (margin <= 0)
            cell = torch.where(margin > 0, _STAYS, _REST)
            cell = torch.where(leaves, 2 + place, cell)
            cell = torch.where(joins, 2 + bins + place, cell)
            unsure = margin.abs() <= 2 * moved
            if bool(direction.any()):  # else every pull is 0, however it is rounded
                off = 2 * moved * direction.abs().sum()  # of the pull; all bounds below hold twice over
                edge = 4 * (2 * moved + off * flips.abs()) / pull.abs() * bins / self.reach
                unsure |= (pull.abs() <= 4 * off) | ((scaled - scaled.round()).abs() <= edge)
            return cell, unsure

        return self._decide(inside.x, theta, decide)

    def _counts(self, name: str, inside: _Seen, cell: Tensor, cells: int) -> BoundedContribution:
        """How many records of each group are in each cell; a user's counts are clipped as a whole."""
        shape = (self.groups, cells)
        if inside.owner is None:
            table = inside.members.T @ one_hot(cell, cells).to(torch.float64)
            bound = 1.0 if self.clips is None else self.clips.counts
            return BoundedContribution(name, table.numpy(), bound, 1.0 if len(cell) else 0.0)
        assert self.clips is not None
        users = int(inside.owner.max()) + 1 if len(cell) else 0
        vectors = torch.zeros(users, self.groups * cells, dtype=torch.float64)
        vectors.index_put_((inside.owner, inside.s * cells + cell), torch.ones(len(cell), dtype=torch.float64), True)
        summed = _clipped_users(name, vectors, self.clips.counts)
        return replace(summed, values=summed.values.reshape(shape))

    def _fill_up(self, silo: SiloTensors) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        if len(silo) > self.largest_silo:
            rule, remedy = f"exceed the signed {self.largest_silo}", "have the largest silo's size signed"
            raise InvalidInput(f"records of {silo.name}", len(silo), rule, remedy)
        filled = np.zeros(self.largest_silo, dtype=np.int64)
        filled[: len(silo)] = silo.s.numpy()
        return filled

    # What the coordinator makes of the counts.

    def _direction(self, rates: Tensor) -> Tensor:
        """How strongly each group is pulled at tau = 1: those above the mean rate down, those below it up.

        Two groups are pulled alike, by 1 over their shares; all is scaled by the smallest share, so that the range of
        tau that matters is about the same whatever the shares are.
        """
        sizes = rates.sum(dim=1).clamp_min(0.0)
        shares = (sizes / sizes.sum().clamp_min(1.0)).clamp_min(self.options.least_share)
        away = (rates[:, 1] / sizes.clamp_min(1.0)).clamp(0.0, 1.0)
        away = away - away.mean()
        widest = away.abs().max()
        return away / (widest if float(widest) > 0 else 1.0) * shares.min() / shares

    def _choose_pulls(self, state: FairPluginState, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The weakest rule whose gap, as counted, keeps the target, else that with the smallest gap; and that gap."""
        bins = self.options.bins
        cumulated = torch.cumsum(counts[:, 2:].reshape(self.groups, 2, bins), dim=2)
        leaves, joins = torch.nn.functional.pad(cumulated, (1, 0)).unbind(dim=1)
        sizes = counts.sum(dim=1, keepdim=True).clamp_min(1.0)
        rates = (counts[:, _STAYS, None] + leaves[:, -1:] - leaves + joins) / sizes
        gaps = rates.amax(dim=0) - rates.amin(dim=0)
        kept = (gaps <= self.options.target_gap).nonzero()[:, 0]
        place = int(kept[0]) if len(kept) else int(gaps.argmin())
        return self._direction(state.rates) * (self.reach * place / bins), gaps[place]


@dataclass(frozen=True, eq=False)
class _Seen:
    """The records of a batch; `s` and `members` come from responses where attributes are protected."""

    x: Tensor
    y: Tensor
    s: Tensor
    members: Tensor
    owner: Tensor | None = None
    """Each row's user, where users are protected."""

    def only(self, mask: Tensor) -> _Seen:
        if bool(mask.all()):
            return self
        owner = None if self.owner is None else self.owner[mask]
        return _Seen(self.x[mask], self.y[mask], self.s[mask], self.members[mask], owner)


@dataclass(frozen=True, eq=False)
class _Weight:
    """Each record's coefficient as it is given."""

    given: Tensor

    def __call__(self, norms: Tensor, losses: Tensor) -> Tensor:
        return self.given


def _gradient_sum(
    name: str, model: Model, theta: Tensor, seen: _Seen, soft: Tensor | None, hard: Tensor, clip: float | None
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
    if isinstance(model, LogisticRegression) and model.classes == 2:
        features = torch.nn.functional.pad(seen.x.flatten(1).to(torch.float64), (0, 1), value=1.0)
        residual = torch.sigmoid(model.logits(theta, seen.x)[:, 1].to(torch.float64)) - hard
        vectors = torch.zeros(users, model.size, dtype=torch.float64)
        return _clipped_users(name, vectors.index_add_(0, seen.owner, features * residual[:, None]), clip)
    silo = SiloTensors("", seen.x, hard, hard, unit_of_row=seen.owner)
    statistics = Statistics(model, Layout(model.size, 0, 0), (), RateValue.PREDICTIONS)
    total, largest = statistics.summed(theta, silo, torch.arange(users), clip)
    return BoundedContribution(name, total.numpy(), clip, largest)


def _clipped_users(name: str, vectors: Tensor, clip: float) -> BoundedContribution:
    """The sum of the users' vectors, one per row, each clipped as a whole."""
    norms = torch.linalg.vector_norm(vectors, dim=1)
    factors = coefficients_of(clipped_to(clip), norms, norms)
    largest = float((factors * norms).max()) if len(norms) else 0.0
    total = sum_in_blocks(len(vectors), lambda rows: factors[rows] @ vectors[rows])
    return BoundedContribution(name, total.numpy(), clip, largest)


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

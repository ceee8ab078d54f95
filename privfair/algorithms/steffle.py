"""SteFFLe: private fair stochastic descent-ascent, Algorithm 1 of Gupta, Poornash, Lowy and Razaviyayn.

Each round a silo sends three values of one batch, each a sum over the batch divided by the signed batch size m:

* `g`, in the clear: the gradient of the loss and of that part of the fairness term which contains no attribute;
* `h_theta`, noisy: the rest of the fairness term's gradient in theta, clipped record by record;
* `h_W`, noisy: the fairness term's gradient in W.

Moving the attribute-free part from `h_theta` to `g` changes no distance between the messages of neighbouring data sets
and leaves noise and sum as they were; features and labels are not protected, and `g` is a function of them and of
published values alone (docs/theorems/steffle.md#messages-on-the-engine).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from itertools import combinations
from typing import assert_never, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, count, open_unit, positive
from calibrate.plans.plan import HISTOGRAM, histogram_bound
from calibrate.plans.steffle import H_THETA as H_THETA
from calibrate.plans.steffle import H_W as H_W
from calibrate.plans.steffle import StefflePlan
from calibrate.privacy_unit import Relation
from calibrate.sampling import SamplingName
from privfair.algorithms.algorithm import Algorithm, ClearValue, Message, Received, SiloTensors
from privfair.algorithms.baselines.steffle_public_code import StefflePublicCode
from privfair.algorithms.parts.descent import Descent, DescentOptions, DescentRule, tensor
from privfair.algorithms.parts.local_training import towards_own_minimum
from privfair.algorithms.recipe import ATTRIBUTE_REPLACED, Blueprint, Recipe, require_classes
from privfair.contribution import BoundedContribution
from privfair.fairness import fermi
from privfair.fairness.fermi import OUTSIDE, Independence
from privfair.models.exact import folded_squares, root, through_softmax
from privfair.models.model import Features, Model, Records, class_means
from privfair.plan.sections import AtLeastZero, OpenUnit, Positive, Whole
from privfair.rounding import ROUNDING_SLACK, RunningTotal, blocks_of, terms_per_block


class WCenter(Enum):
    """Around which point W is kept in its Frobenius ball."""

    INDEPENDENCE = "independence"
    """Around sqrt(P), the W of perfectly fair predictions: a small ball is then enough, and less noise."""
    ORIGIN = "origin"
    """Around zero, as printed."""


class SteffleVariant(Enum):
    """Which SteFFLe is run."""

    PAPER = "algorithm-1"
    PUBLIC_CODE = "public-code"
    """What the authors' public code computes instead (baselines/steffle_public_code.py); never under a promise."""


@dataclass(frozen=True)
class SteffleOptions(DescentOptions):
    """`fairness` is the paper's lambda; `w_step` its eta_w, here not multiplied by lambda.

    `group_frequencies` are public group shares, block by block: groups entries for demographic parity and equal
    opportunity (there: among records of the positive class), classes x groups for equalised odds. Leave them out if
    the plan pays for a noisy histogram.
    """

    notion: Independence = Independence.DEMOGRAPHIC_PARITY
    fairness: AtLeastZero = 1.0
    group_frequencies: tuple[OpenUnit, ...] | None = None
    positive_class: Whole = 1
    w_step: AtLeastZero = 1.0
    w_center: WCenter = WCenter.INDEPENDENCE
    class_weight: tuple[Positive, ...] = ()
    """How often each class counts in the loss, which is sent in the clear; the fairness term has no classes."""
    variant: SteffleVariant = SteffleVariant.PAPER


# What was signed for a SteFFLe run, and how the server weighs silos.


@final
@dataclass(frozen=True)
class SteffleBounds:
    """What was signed: the divisor, the floor of the group frequencies, W's radius, and the two contribution bounds."""

    batch_size: int
    minority_fraction: float
    w_radius: float
    h_theta: float
    """Enforced by clipping each record's part."""
    h_w: float
    """How far one record's attribute moves h_W at most."""

    def __post_init__(self) -> None:
        count("batch-size", self.batch_size)
        open_unit("minority-fraction", self.minority_fraction)
        for name in ("w_radius", "h_theta", "h_w"):
            positive(name, getattr(self, name))

    @classmethod
    def of(cls, plan: StefflePlan) -> SteffleBounds:
        """The plan's own, where nothing is signed."""
        theta, w = plan.values()
        return cls(plan.batch_size, plan.minority_fraction, plan.w_radius, theta.sensitivity, w.sensitivity)


class BatchLaw(Enum):
    """What is the same in all silos when batches are drawn."""

    SAME_RATE = "same-rate"
    """Full and Poisson batches: every record takes part equally often, whatever its silo's size."""
    SAME_SIZE = "same-size"
    """Shuffled, fixed-size and with-replacement batches: a larger silo's records take part less often."""


def silo_weights(sizes: Mapping[str, int], silo_size: int, law: BatchLaw) -> dict[str, float]:
    """The weights with which the silos' sums over m become, on average, the mean over all records.

    `silo_size` is the one the plan is priced for, the smallest. In expectation a silo of n records sends n / silo_size
    times its mean if its records are drawn at the rate m / silo_size, and its mean if its batches have size m.
    """
    total = sum(sizes.values())
    match law:
        case BatchLaw.SAME_RATE:
            return dict.fromkeys(sizes, silo_size / total)
        case BatchLaw.SAME_SIZE:
            return {name: size / total for name, size in sizes.items()}
        case _:
            assert_never(law)


# Who holds what: where the attributes lie, and which silo therefore sends which part of a round.
#
# The paper (Section 4, Appendix F) splits a silo into a non-sensitive division, which computes the loss gradient, and a
# sensitive one, which computes the fairness gradients. The divisions need not sit in one silo:
#
# * every silo holds both (the N silos of Algorithm 1; a single silo is the central DP-FERMI);
# * one silo holds all attributes, many hold features and labels;
# * any number of either, each record's attribute in exactly one sensitive silo.
#
# A sensitive silo is given the features of its records by their holders (they are not protected), as model outputs or,
# here, as rows. In the last two cases a round's records may have no attribute in some sensitive silo. Falling silent
# would show that, and so would noise or a divisor that follows the realised number of records. So a sensitive silo
# **always** sends: the sum over whatever it was asked for, possibly nothing, over the fixed divisor, with the full
# signed noise.

LOSS_GRADIENT = "g"
_HISTOGRAM = histogram_bound(Relation.REPLACE_ATTRIBUTE)

_UNDER_THE_BOUND = 1.0 / ((1.0 + 2.0**-16) * (1.0 + ROUNDING_SLACK))
"""Parts are held this far under their bound: it covers scores and slopes in single precision, and the sum of parts."""

_HELD_AT_ONCE = 2**23
"""Numbers of single records' gradients that are held at once."""
_MOST_STEPS, _EXACT_BITS = 30, 52
"""Probabilities are cut off to 2^30 steps, or so many fewer that a batch's add up within 2^52: without any rounding."""


@dataclass(frozen=True, eq=False)
class SteffleState:
    """`deviation` is W minus the centre of its ball; `frequencies` are unknown until a histogram is published.

    `warm` says whether a warm start was made or none is asked for.
    """

    descent: Descent
    deviation: Tensor
    frequencies: Tensor | None
    warm: bool = True


@final
@dataclass(frozen=True, eq=False)
class Steffle(Algorithm[SteffleState]):
    """The algorithm for one run.

    Guarantee: none of its own, the manifest prices the noise. It keeps the conditions of the plan's sensitivities
    (docs/theorems/steffle.md, Sensitivities) by construction: W stays within the Frobenius ball of radius `w_radius`
    around a point at which no message depends on the attribute; every frequency used is at least `minority_fraction`;
    sums are divided by `batch_size`, whatever the batch's size; and each record's part of `h_theta` is scaled by a
    factor that does not depend on its attribute, so that its possible messages are at most the bound apart (this
    replaces the assumption that the model is Lipschitz). Unit: one record's attribute.

    `weights` say how the server adds up silos; `groups` are numbered by the schema, alike in all silos.
    """

    model: Model
    options: SteffleOptions
    bounds: SteffleBounds
    weights: Mapping[str, float]
    groups: int = 2
    rounds: int = 1
    seed: int = 0
    sensitive: tuple[str, ...] = ()
    """The silos that hold nothing but attributes, while all others hold features and labels; none: all hold both."""

    def __post_init__(self) -> None:
        count("groups", self.groups, least=2)
        if len(set(self.sensitive)) != len(self.sensitive):
            raise InvalidInput("sensitive", self.sensitive, "must be distinct names", "name each silo once")
        own = self.options
        require_classes(self.model.classes, own.positive_class, own.class_weight, own.warm_start)
        given = self.options.group_frequencies
        if given is not None and len(given) != self.blocks * self.groups:
            raise InvalidInput(
                "group-frequencies",
                given,
                f"must be {self.blocks * self.groups} shares for {self.options.notion.value}",
                "list the groups' shares block by block",
            )
        if given is not None and min(given) < self.bounds.minority_fraction * (1 - 1e-12):
            raise InvalidInput(
                "group-frequencies",
                given,
                f"holds a share below the signed minority fraction {self.bounds.minority_fraction}",
                "have a smaller minority-fraction signed",
            )

    @property
    def blocks(self) -> int:
        return self.options.notion.blocks(self.model.classes)

    def sends_loss(self, silo: str) -> bool:
        """Whether this silo sends the loss gradient, in every round and whatever its batch."""
        return silo not in self.sensitive

    def sends_fairness(self, silo: str) -> bool:
        """Whether this silo sends the fairness gradients, in every round and whatever its batch."""
        return not self.sensitive or silo in self.sensitive

    @cached_property
    def rule(self) -> DescentRule:
        return self.options.rule(max(1, self.rounds - (self.options.warm_start > 0)), self.seed)

    def clear_values(self) -> tuple[ClearValue, ...]:
        why = (
            "The gradient of the loss and of the attribute-free part of the fairness term; it depends on features,"
            " labels and published values alone, and shows the batch."
        )
        return (ClearValue(LOSS_GRADIENT, why, depends_on_unit=False),)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            LOSS_GRADIENT: (self.model.size,),
            H_THETA: (self.model.size,),
            H_W: (self.blocks, self.groups, self.model.classes),
        }
        if self.options.group_frequencies is None:
            shapes[HISTOGRAM] = (self.blocks, self.groups)
        return shapes

    def start(self) -> SteffleState:
        zero = torch.zeros(self.blocks, self.groups, self.model.classes, dtype=torch.float64)
        given = self.options.group_frequencies
        frequencies = None
        if given is not None:
            frequencies = torch.tensor(given, dtype=torch.float64).reshape(self.blocks, self.groups)
        descent = self.rule.start(self.model.initial(self.seed))
        return SteffleState(descent, zero, frequencies, warm=self.options.warm_start == 0)

    def w(self, state: SteffleState) -> Tensor:
        """The W in use: (blocks, groups, classes)."""
        match self.options.w_center:
            case WCenter.INDEPENDENCE:
                return fermi.independence_point(self._frequencies(state), self.model.classes) + state.deviation
            case WCenter.ORIGIN:
                return state.deviation
            case _:
                assert_never(self.options.w_center)

    def contribution(self, state: SteffleState, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        if not state.warm or state.frequencies is None:
            return self._opening(state, silo, batch)
        x, y, s = silo.columns(batch)
        block = fermi.block_of(self.options.notion, y, self.options.positive_class)
        noisy: tuple[BoundedContribution, ...] = ()
        if self.sends_fairness(silo.name):
            noisy = (self._h_theta(state, x, s, block), self._h_w(state, x, s, block))
        clear = None
        if self.sends_loss(silo.name):
            loss = self._loss_gradient(state, x, y)
            common = self._attribute_free(state, x, block)
            clear = {LOSS_GRADIENT: loss + self.options.fairness * common}
        return Message(noisy=noisy, clear=clear)

    def update(self, state: SteffleState, received: Received) -> SteffleState:
        gradient = self._sum(received, LOSS_GRADIENT, (self.model.size,))
        if not state.warm or state.frequencies is None:
            return self._open(state, gradient, received)
        of_theta = self._sum(received, H_THETA, (self.model.size,))
        of_w = self._sum(received, H_W, tuple(state.deviation.shape))
        descent = self.rule.advance(state.descent, gradient + self.options.fairness * of_theta)
        moved = state.deviation + self.options.w_step * of_w
        return replace(state, descent=descent, deviation=fermi.project_blocks(moved, self.bounds.w_radius))

    def theta(self, state: SteffleState) -> Tensor:
        return self.rule.model(state.descent)

    def _opening(self, state: SteffleState, silo: SiloTensors, batch: Tensor) -> Message:
        """The first round, where frequencies must be paid for or a warm start made: no fairness gradients yet."""
        noisy = (self._histogram(silo),) if self.sends_fairness(silo.name) and state.frequencies is None else ()
        if not self.sends_loss(silo.name):
            return Message(noisy=noisy)
        if state.warm:
            x, y, _ = silo.columns(batch)
            return Message(noisy=noisy, clear={LOSS_GRADIENT: self._loss_gradient(state, x, y)})
        theta, iterations = state.descent.theta, self.options.warm_start
        own = towards_own_minimum(self.model, theta, Records(silo.x), silo.y, iterations)
        return Message(noisy=noisy, clear={LOSS_GRADIENT: own})

    def _open(self, state: SteffleState, sent: Tensor, received: Received) -> SteffleState:
        frequencies = self._noisy_shares(received) if state.frequencies is None else state.frequencies
        if state.warm:
            descent = self.rule.advance(state.descent, sent)
        else:
            # The silos' minimisers are averaged, so their weights must add up to one here.
            weights = sum(self.weights[party] for party, values in received.items() if LOSS_GRADIENT in values)
            descent = self.rule.start(state.descent.theta - sent / weights)
        return replace(state, descent=descent, frequencies=frequencies, warm=True)

    def _frequencies(self, state: SteffleState) -> Tensor:
        if state.frequencies is None:
            raise InvalidInput(
                "group-frequencies", None, "are not known yet", "publish the histogram in the first round"
            )
        return state.frequencies

    def _slopes(self, state: SteffleState) -> tuple[Tensor, Tensor]:
        """The attribute's slopes (blocks, groups, classes) less their mean over groups, and that mean.

        The mean weighs groups by their frequencies: around the independence point it then cancels the common slope
        up to second order, so that `g` hardly moves with W.
        """
        frequencies = self._frequencies(state)
        slopes = fermi.attribute_slopes(self.w(state), frequencies)
        shares = frequencies / frequencies.sum(dim=1, keepdim=True)
        mean = (shares[:, :, None] * slopes).sum(dim=1)
        return slopes - mean[:, None, :], mean

    def _loss_gradient(self, state: SteffleState, x: Features, y: Tensor) -> Floats:
        mean = class_means(self.options.class_weight, y, self.model.classes, self.bounds.batch_size)
        return _floats(self.model.weighted_gradient(state.descent.theta, x, y, mean).total)

    def _attribute_free(self, state: SteffleState, x: Features, block: Tensor) -> Floats:
        """The gradient of <common slope + mean attribute slope, F>, a function of x, y and published values."""
        _, mean = self._slopes(state)
        slopes = _of_block(fermi.common_slopes(self.w(state)) + mean, block)
        return self._mean_gradient(state, x, slopes)

    def _h_theta(self, state: SteffleState, x: Features, s: Tensor, block: Tensor) -> BoundedContribution:
        """Gradients are rounded record by record, so they are not linear in the slopes: distances are measured on
        the very vectors that would be sent, one for each group a record might be of.
        """
        slopes, _ = self._slopes(state)
        reach = self.bounds.h_theta * self.bounds.batch_size * _UNDER_THE_BOUND
        total, measured = RunningTotal(torch.zeros(self.model.size, dtype=torch.float64)), 0.0
        at_once = min(max(1, _HELD_AT_ONCE // (self.groups * self.model.size)), terms_per_block(len(x)))
        for some in blocks_of(len(x), at_once) if len(x) else ():
            by_group = self._of_each_group(state, x[some], block[some], slopes)
            distances = _largest_distances(by_group)
            factors = reach / distances.clamp_min(reach)
            own = by_group[s[some], torch.arange(len(distances))]
            total.add((own * factors[:, None]).sum(dim=0))
            measured = max(measured, float((factors * distances).max()))
        size = self.bounds.batch_size
        return BoundedContribution(H_THETA, _floats(total.value) / size, self.bounds.h_theta, measured / size)

    def _of_each_group(self, state: SteffleState, x: Features, block: Tensor, slopes: Tensor) -> Tensor:
        """For each group and each record: the theta-gradient of <the group's slope, F>; zero outside all blocks."""
        theta, probabilities = state.descent.theta, self.model.probabilities(state.descent.theta, x)
        pulled = (through_softmax(probabilities, _of_block(of_group, block)) for of_group in slopes.unbind(dim=1))
        return torch.stack([self.model.score_gradients(theta, x, in_scores) for in_scores in pulled])

    def _h_w(self, state: SteffleState, x: Features, s: Tensor, block: Tensor) -> BoundedContribution:
        frequencies, size = self._frequencies(state), self.bounds.batch_size
        probabilities = self.model.probabilities(state.descent.theta, x)
        # A record's may sum to more than 1 by a rounding error; cut off they don't, so no vector is longer than 1.
        steps = 2.0 ** min(_MOST_STEPS, _EXACT_BITS - len(x).bit_length())
        probabilities = (probabilities / probabilities.sum(dim=1, keepdim=True)).mul_(steps).floor_().div_(steps)
        members = one_hot(s, self.groups).to(torch.float64)
        joint = fermi.joint_distribution(probabilities, members, block, self.blocks)
        divisor = size * (1.0 + ROUNDING_SLACK)
        gradient = fermi.weight_gradient(self.w(state), joint, joint.sum(dim=1), frequencies) / divisor
        measured = fermi.largest_w_distance(probabilities, block, frequencies) / divisor
        return BoundedContribution(H_W, _floats(gradient), self.bounds.h_w, measured)

    def _mean_gradient(self, state: SteffleState, x: Features, slopes: Tensor) -> Floats:
        """sum_i grad <slopes_i, F_i> / m; no records give zero."""
        if len(x) == 0:
            return np.zeros(self.model.size)
        total = self.model.probability_gradient(state.descent.theta, x, slopes)
        return _floats(total) / self.bounds.batch_size

    def _histogram(self, silo: SiloTensors) -> BoundedContribution:
        """Counts of groups, block by block, over all records; a replaced attribute moves two of them by one."""
        block = fermi.block_of(self.options.notion, silo.y, self.options.positive_class)
        counts = [np.bincount(silo.s[block == b].numpy(), minlength=self.groups) for b in range(self.blocks)]
        return BoundedContribution(HISTOGRAM, np.stack(counts).astype(np.float64), _HISTOGRAM, _HISTOGRAM)

    def _noisy_shares(self, received: Received) -> Tensor:
        """Shares from the noisy counts, each at least the signed minority fraction."""
        counts = np.sum([values[HISTOGRAM].values for values in received.values() if HISTOGRAM in values], axis=0)
        counts = np.maximum(counts, 0.0)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
        return tensor(np.maximum(shares, self.bounds.minority_fraction))

    def _sum(self, received: Received, name: str, shape: tuple[int, ...]) -> Tensor:
        """What silos sent under this name, by their weights."""
        total = np.zeros(shape)
        for party, values in received.items():
            if name in values:
                total += self.weights[party] * values[name].values
        return tensor(total)


def _of_block(by_block: Tensor, block: Tensor) -> Tensor:
    """Each record's row of `by_block`; zero outside all blocks."""
    return by_block[block.clamp_min(0)] * (block != OUTSIDE)[:, None]


def _largest_distances(by_group: Tensor) -> Tensor:
    """For each record, over all pairs of groups: the largest distance of its two vectors; (groups, records, size).

    At least half of the longest vector, so that no clipped part is longer than twice the bound, however it rounds.
    """
    vectors = by_group.unbind(dim=0)
    apart = [root(folded_squares(one - other)) for one, other in combinations(vectors, 2)]
    return torch.stack([*apart, *(root(folded_squares(one)) * 0.5 for one in vectors)]).amax(dim=0)


def _floats(values: Tensor) -> Floats:
    return values.detach().numpy().astype(np.float64)


def build(blueprint: Blueprint[SteffleOptions]) -> Steffle | StefflePublicCode:
    """SteFFLe with the bounds that were signed, or what its public code computes."""
    plan, given = blueprint.plan(StefflePlan), blueprint.options.group_frequencies
    blueprint.require_groups(plan.groups)
    if blueprint.options.variant is SteffleVariant.PUBLIC_CODE:
        return _public_code(blueprint, plan)
    if (plan.histogram_noise_ratio is None) == (given is None):
        raise InvalidInput(
            "[training] group-frequencies",
            given,
            "must be given exactly if [privacy] histogram-noise-ratio is not",
            "give public frequencies, or pay for a noisy histogram of the groups",
        )
    weights = _silo_weights(blueprint, plan)
    return Steffle(
        model=blueprint.model,
        options=blueprint.options,
        bounds=replace(SteffleBounds.of(plan), h_theta=blueprint.bound(H_THETA), h_w=blueprint.bound(H_W)),
        weights=weights | dict.fromkeys(blueprint.sensitive, next(iter(weights.values()))),
        groups=blueprint.groups,
        rounds=blueprint.rounds,
        seed=blueprint.seed,
        sensitive=blueprint.sensitive,
    )


def _public_code(blueprint: Blueprint[SteffleOptions], plan: StefflePlan) -> StefflePublicCode:
    options, given = blueprint.options, blueprint.options.group_frequencies
    excluded = {
        "[privacy] histogram-noise-ratio": plan.histogram_noise_ratio,
        "[training] warm-start": options.warm_start,
        "[training] class-weight": options.class_weight,
        "[training] w-center": "" if options.w_center is WCenter.INDEPENDENCE else options.w_center.value,
        "[data.attributes]": blueprint.sensitive,
    }
    for key, value in excluded.items():
        if value:
            raise InvalidInput(key, value, 'is not known to variant = "public-code"', "drop one of the two")
    if given is None:
        raise InvalidInput("[training] group-frequencies", None, "are needed", "list the groups' shares")
    return StefflePublicCode(
        model=blueprint.model,
        notion=options.notion,
        fairness=options.fairness,
        rule=options.rule(blueprint.rounds, blueprint.seed),
        w_step=options.w_step,
        clip=plan.lipschitz,
        w_radius=plan.w_radius,
        first_shares=given[:: plan.groups],
        silos=tuple(name for name, _ in blueprint.parties),
        positive_class=options.positive_class,
        seed=blueprint.seed,
    )


def _silo_weights(blueprint: Blueprint[SteffleOptions], plan: StefflePlan) -> dict[str, float]:
    """How the server weighs the silos that hold records."""
    same_rate = plan.sampling in (SamplingName.FULL, SamplingName.POISSON)
    sizes = {name: size for name, size in blueprint.parties if name not in blueprint.sensitive}
    if blueprint.sensitive and not same_rate and len(set(sizes.values())) > 1:
        raise InvalidInput(
            "[privacy] sampling",
            plan.sampling.value,
            "weighs records of unequal silos unequally, which a sensitive silo that sums over all can't follow",
            'write sampling = "full" or "poisson", or make the silos equal',
        )
    return silo_weights(sizes, plan.silo_size, BatchLaw.SAME_RATE if same_rate else BatchLaw.SAME_SIZE)


RECIPE = Recipe("steffle", SteffleOptions, build, ATTRIBUTE_REPLACED, attributes_apart=True)

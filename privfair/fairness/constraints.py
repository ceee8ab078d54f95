"""Group rates as sums over records, the constraints that bring them together, and penalties on unequal rates.

A *rate* j is the mean of <v_j(y), p(x)> over the records with a certain true class (or over all): v picks a
class, or the true one. The constraint of rate j and group a is |rate in a - rate overall| <= tolerance.

A penalty is a function of a joint distribution: `joint[b, a, j]` is the mean over all records of 1[block b]
membership(a) F_j. A record with membership q in block b then adds sum_a q(a) slopes[b, a, :] to the gradient in its
class probabilities. Since sum_j F_j = 1, the group masses sum_j joint[b, a, j] do not depend on the model, and are held
fixed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import assert_never, final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, UnsupportedCombination, count, positive
from privfair.models.exact import cross_entropy
from privfair.models.model import Features, Model

# Which fairness is meant and what is compared, as types.


class FairnessNotion(Enum):
    """Which rates FPFL brings together across groups."""

    NONE = "none"
    """No rate at all: plain (private) federated learning."""
    FALSE_NEGATIVE_RATE = "false-negative-rate"
    ACCURACY = "accuracy"
    DEMOGRAPHIC_PARITY = "demographic-parity"
    EQUALISED_ODDS = "equalised-odds"


class RateValue(Enum):
    """What a rate counts; its gradient is always that of the probabilities, which have one."""

    PREDICTIONS = "predictions"
    """Predicted classes, as the gaps that are reported count them."""
    PROBABILITIES = "probabilities"
    """Predicted probabilities: then the update is the exact gradient of the augmented Lagrangian."""


class MmdCriterion(Enum):
    """Which laws of scores the MMD compares between the groups (Table 1 of its paper)."""

    STATISTICAL_PARITY = "statistical-parity"
    EQUAL_OPPORTUNITY = "equal-opportunity"
    """Among records of the positive class."""
    PREDICTIVE_EQUALITY = "predictive-equality"
    """Among records of any other class, class by class."""
    CONDITIONAL_PARITY = "conditional-parity"
    """Among records above a cut of one feature, and among those below."""
    EQUALISED_ODDS = "equalised-odds"
    RISK_PARITY = "risk-parity"


class Score(Enum):
    """The number S(h(x), y) that is compared."""

    PROBABILITY = "probability"
    """Of the positive class; in [0, 1]."""
    LOGIT = "logit"
    """Log-odds of the positive class (two classes); unbounded."""
    MISS = "miss"
    """1 - probability of the true class: a bounded risk, in [0, 1]."""
    LOG_LOSS = "log-loss"
    """Cross-entropy: an unbounded risk."""

    @property
    def bounded(self) -> bool:
        return self in (Score.PROBABILITY, Score.MISS)


class KernelKind(Enum):
    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    ENERGY = "energy"


@dataclass(frozen=True)
class Rate:
    """P(prediction is `counted` | true class is `given`); `given` None: all records; `counted` None: the true class."""

    given: int | None
    counted: int | None
    complement: bool = False
    """Whether the probability of *not* predicting it is meant."""

    def members(self, y: Tensor) -> Tensor:
        """Which records the rate is taken over."""
        return torch.ones_like(y, dtype=torch.bool) if self.given is None else y == self.given

    def directions(self, y: Tensor, classes: int) -> Tensor:
        """v for each record: the rate sums <v, probabilities>, up to `offset`."""
        counted = y if self.counted is None else torch.full_like(y, self.counted)
        one_hot = torch.nn.functional.one_hot(counted, classes).to(torch.float64)
        return -one_hot if self.complement else one_hot

    @property
    def offset(self) -> float:
        return 1.0 if self.complement else 0.0


def rates_of(notion: FairnessNotion, classes: int, positive_class: int) -> tuple[Rate, ...]:
    """The rates that a notion compares. Of all classes' probabilities one follows from the others and is left out."""
    if not 0 <= positive_class < classes:
        raise InvalidInput("positive-class", positive_class, f"must be below {classes}", "number a class from 0")
    others = tuple(c for c in range(classes) if c != 0) if classes > 2 else (positive_class,)
    match notion:
        case FairnessNotion.NONE:
            return ()
        case FairnessNotion.FALSE_NEGATIVE_RATE:
            return (Rate(positive_class, positive_class, complement=True),)
        case FairnessNotion.ACCURACY:
            return (Rate(None, None),)
        case FairnessNotion.DEMOGRAPHIC_PARITY:
            return tuple(Rate(None, c) for c in others)
        case FairnessNotion.EQUALISED_ODDS:
            return tuple(Rate(given, c) for given in range(classes) for c in others)
        case _:
            assert_never(notion)


def counted_values(probabilities: Tensor, predicted: Tensor, value: RateValue) -> Tensor:
    """What a rate counts for each record: probabilities, or the predicted class with weight one."""
    match value:
        case RateValue.PROBABILITIES:
            return probabilities.to(torch.float64)
        case RateValue.PREDICTIONS:
            return torch.nn.functional.one_hot(predicted, probabilities.shape[1]).to(torch.float64)
        case _:
            assert_never(value)


# The modified method of differential multipliers (Platt and Barr 1987), for gaps with a tolerance.
#
# Minimise phi subject to g = 0, where g_a = max(0, |rate overall - rate of a| - tolerance): ascend in the multipliers,
# descend on phi + lambda . g + (damping / 2) |g|^2. Everything here is a function of published sums.


@dataclass(frozen=True, eq=False)
class RateSums:
    """Sums over one round's records of one rate: by group, its values, its gradients, and how many records."""

    values: Floats
    """(groups,)"""
    gradients: Floats
    """(groups, parameters)"""
    counts: Floats
    """(groups,)"""


@dataclass(frozen=True, eq=False)
class Violations:
    """g and its gradient, one row per group; a group without enough records has zeros."""

    size: Floats
    gradient: Floats
    gaps: Floats
    """|rate overall - rate of the group|; nan where it is not known."""


def violations(sums: RateSums, tolerance: float, least_count: float) -> Violations:
    """By how much each group's rate is too far from the overall rate.

    Noisy counts can be tiny or negative. A group below `least_count` is left out of this round; rates are brought back
    to [0, 1], where exact ones lie. Both are post-processing.
    """
    groups = len(sums.counts)
    gaps = np.full(groups, np.nan)
    size, gradient = np.zeros(groups), np.zeros_like(sums.gradients)
    total = float(sums.counts.sum())
    if total < least_count:
        return Violations(size, gradient, gaps)
    overall = float(np.clip(sums.values.sum() / total, 0.0, 1.0))
    overall_gradient = sums.gradients.sum(axis=0) / total
    for group in range(groups):
        number = float(sums.counts[group])
        if number < least_count:
            continue
        difference = overall - float(np.clip(sums.values[group] / number, 0.0, 1.0))
        gaps[group] = abs(difference)
        excess = gaps[group] - tolerance
        if excess >= 0:
            size[group] = excess
            gradient[group] = np.sign(difference) * (overall_gradient - sums.gradients[group] / number)
    return Violations(size, gradient, gaps)


def ascend(multipliers: Floats, found: Violations, step: float) -> Floats:
    """lambda + step * g."""
    return multipliers + step * found.size


def descent(loss_gradient: Floats, multipliers: Floats, damping: float, found: Violations) -> Floats:
    """The gradient of phi + lambda . g + (damping / 2) |g|^2."""
    return loss_gradient + (multipliers + damping * found.size) @ found.gradient


# The scores whose laws are compared between groups: their values, and the gradient of a weighted sum of them.


def require_score(score: Score, classes: int) -> None:
    """Refuse log-odds as the score of more than two classes."""
    if score is Score.LOGIT and classes != 2:
        raise UnsupportedCombination(
            f"the score {score.value} with {classes} classes", "log-odds need two classes", "compare probabilities"
        )


def score_values(score: Score, model: Model, theta: Tensor, x: Features, y: Tensor, positive_class: int) -> Tensor:
    """S(h(x), y) for each record, in float64; bounded scores lie in [0, 1]."""
    if score is Score.LOGIT:
        logits = model.logits(theta, x)
        return logits[:, positive_class] - logits[:, 1 - positive_class]
    if score is Score.LOG_LOSS:
        return cross_entropy(model.logits(theta, x), y)[0]
    probabilities = model.probabilities(theta, x)
    if score is Score.PROBABILITY:
        return probabilities[:, positive_class].clamp(0.0, 1.0)
    return (1.0 - probabilities.gather(1, y[:, None])[:, 0]).clamp(0.0, 1.0)


def score_gradient(
    score: Score, model: Model, theta: Tensor, x: Features, y: Tensor, positive_class: int, weights: Tensor
) -> Tensor:
    """The gradient in theta of sum_i weights_i S(h(x_i), y_i)."""

    def of_loss(labels: Tensor) -> Tensor:
        return model.weighted_gradient(theta, x, labels, lambda norms, losses: weights).total

    match score:
        case Score.PROBABILITY:
            return model.probability_gradient(theta, x, _at(torch.full_like(y, positive_class), weights, model))
        case Score.MISS:
            return model.probability_gradient(theta, x, _at(y, -weights, model))
        case Score.LOG_LOSS:
            return of_loss(y)
        case Score.LOGIT:
            # The log-odds are the loss of the other class minus the loss of this one.
            positive = torch.full_like(y, positive_class)
            return of_loss(1 - positive) - of_loss(positive)
        case _:
            assert_never(score)


def _at(classes: Tensor, weights: Tensor, model: Model) -> Tensor:
    out = torch.zeros(len(classes), model.classes, dtype=torch.float64)
    return out.scatter_(1, classes[:, None], weights[:, None].double())


# Penalties on unequal rates, as slopes: how much the penalty grows with each entry of the joint distribution.


class FairnessPenalty(Enum):
    SQUARED_GAP = "squared-gap"
    """The squared differences of the groups' mean class probabilities; with two groups and classes the gap squared."""
    FERMI = "fermi"
    """The chi-square divergence of groups and predictions, at its own best W."""


# Undoing randomised response on average: responses with known error rates become unbiased group memberships.
#
# k-ary randomised response answers the true group with probability `keep` and each other one with (1 - keep)/(k - 1).
# Its matrix is M = (keep - other) I + other 11^T, and M^(-1) e_r = (e_r - other 1) / (keep - other) is a membership
# whose expectation is the one-hot vector of the true group. Its entries may be negative or above one; they always sum
# to 1.


@final
@dataclass(frozen=True)
class ResponseChannel:
    """The public law of the responses; `keep` = 1 means that they are the true groups."""

    groups: int
    keep: float

    def __post_init__(self) -> None:
        count("groups", self.groups, least=2)
        if not 1.0 / self.groups < self.keep <= 1.0:
            raise InvalidInput(
                "keep",
                self.keep,
                f"must lie in (1/{self.groups}, 1], else the responses say nothing",
                "spend a larger epsilon",
            )

    @classmethod
    def of_epsilon(cls, groups: int, epsilon: float | None) -> ResponseChannel:
        """The channel that costs this epsilon; None for a run that promises nothing and sends the truth."""
        if epsilon is None:
            return cls(groups, 1.0)
        return cls(groups, 1.0 / (1.0 + (groups - 1) * math.exp(-positive("epsilon", epsilon))))

    @property
    def other(self) -> float:
        """The probability of each single wrong answer."""
        return (1.0 - self.keep) / (self.groups - 1)

    def memberships(self, responses: Tensor) -> Tensor:
        """(records, groups), unbiased: E[memberships | true group] is one-hot."""
        one_hot = torch.nn.functional.one_hot(responses, self.groups).to(torch.float64)
        return (one_hot - self.other) / (self.keep - self.other)


_LEAST_CLASS_MASS = 1e-9


def penalty_slopes(penalty: FairnessPenalty, joint: Tensor, floor: float) -> Tensor:
    """The derivative of the penalty by the entries of `joint`, with the group masses held fixed.

    SQUARED_GAP: P = sum_b,j,a,a' (r_aj - r_a'j)^2 / 4 of the rates r_aj = joint_aj / mass_a, so
    dP/djoint_aj = (groups r_aj - sum_a' r_a'j) / mass_a. FERMI: P = mass (sum_aj joint_aj^2 / (mass_a p_j) - 1) with
    the class masses p_j = sum_a joint_aj. Masses below `floor` (of their block) count as `floor`.
    """
    masses, mass = _masses(joint, floor)
    match penalty:
        case FairnessPenalty.SQUARED_GAP:
            rates = joint / masses
            groups = joint.shape[1]
            return (groups * rates - rates.sum(dim=1, keepdim=True)) / masses
        case FairnessPenalty.FERMI:
            of_class = joint.sum(dim=1, keepdim=True).clamp_min(_LEAST_CLASS_MASS)
            common = (joint.square() / masses).sum(dim=1, keepdim=True) / of_class.square()
            return mass * (2.0 * joint / (masses * of_class) - common)
        case _:
            assert_never(penalty)


def _masses(joint: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    positive("floor", floor)
    mass = joint.sum(dim=(1, 2), keepdim=True)
    least = torch.clamp_min(floor * mass, torch.finfo(joint.dtype).tiny)
    return torch.maximum(joint.sum(dim=2, keepdim=True), least), mass

"""The scores whose laws are compared between groups: their values, and the gradient of a weighted sum of them."""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor

from calibrate.errors import UnsupportedCombination
from privfair.fairness.notions import Score
from privfair.models.model import Model


def require_score(score: Score, classes: int) -> None:
    if score is Score.LOGIT and classes != 2:
        raise UnsupportedCombination(
            f"the score {score.value} with {classes} classes",
            "log-odds need two classes",
            "compare probabilities",
        )


def score_values(
    score: Score, model: Model, theta: Tensor, x: Tensor, y: Tensor, positive_class: int
) -> Tensor:
    """S(h(x), y) for each record, in float64; bounded scores lie in [0, 1]."""
    if score is Score.LOGIT:
        logits = model.logits(theta, x).double()
        return logits[:, positive_class] - logits[:, 1 - positive_class]
    if score is Score.LOG_LOSS:
        logits = model.logits(theta, x).double()
        return torch.nn.functional.cross_entropy(logits, y, reduction="none")
    probabilities = model.probabilities(theta, x).double()
    if score is Score.PROBABILITY:
        return probabilities[:, positive_class].clamp(0.0, 1.0)
    return (1.0 - probabilities.gather(1, y[:, None])[:, 0]).clamp(0.0, 1.0)


def score_gradient(
    score: Score, model: Model, theta: Tensor, x: Tensor, y: Tensor, positive_class: int, weights: Tensor
) -> Tensor:
    """The gradient in theta of sum_i weights_i S(h(x_i), y_i)."""

    def of_loss(labels: Tensor) -> Tensor:
        return model.weighted_gradient(theta, x, labels, lambda norms, losses: weights).total

    match score:
        case Score.PROBABILITY:
            return model.probability_gradient(
                theta, x, _at(torch.full_like(y, positive_class), weights, model)
            )
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

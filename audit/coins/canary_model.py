"""A model in which some records are gradient-space canaries: their gradient is a vector of the auditor's choice.

Everything after the per-record gradient (clipping, sums, gate) is the production code. A canary is recognised by its
features alone, so that algorithms need not know of it: its first feature is `MARK` plus its number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from calibrate.errors import InvalidInput
from privfair.models.exact import cross_entropy, probabilities_of, through_softmax
from privfair.models.model import EXACT, Features, Model, Weigh, WeightedGradient, bound_of, tensor_of

MARK = float(2**23)
"""Whole numbers up to here are exact in float32, and no scaled feature comes near it."""
LENGTH = 1e6
"""The norm of a canary's gradient before clipping: so large that its clipped part has exactly the bound's norm."""
_AGAINST = 10.0
"""How far a canary's score speaks against class 1, its label: a loss above any sensible clip."""
LABEL = 1


@final
@dataclass(frozen=True, eq=False)
class CanaryModel:
    """The inner model; but canary number j has constant scores, and the gradient of its class-1 score is
    LENGTH times row j of `directions`, whatever theta is.

    So a canary's part of a clipped sum is the clip times its direction (up to sign), in every round.
    """

    inner: Model
    directions: Tensor
    """(canaries, parameters), rows of norm one."""

    def __post_init__(self) -> None:
        if self.directions.ndim != 2 or self.directions.shape[1] != self.inner.size:
            raise InvalidInput(
                "directions",
                tuple(self.directions.shape),
                f"must be (canaries, {self.inner.size})",
                "give one vector of the model's size per canary",
            )

    @property
    def size(self) -> int:
        return self.inner.size

    @property
    def classes(self) -> int:
        return self.inner.classes

    def initial(self, seed: int) -> Tensor:
        return self.inner.initial(seed)

    def logits(self, theta: Tensor, x: Features) -> Tensor:
        ordinary, canaries = _split(x)
        if len(canaries) == 0:
            return self.inner.logits(theta, x)
        out = self._scores(len(x))
        if len(ordinary):
            out[ordinary] = self.inner.logits(theta, x[ordinary])
        return out

    def probabilities(self, theta: Tensor, x: Features) -> Tensor:
        return probabilities_of(self.logits(theta, x).detach())

    def weighted_gradient(self, theta: Tensor, x: Features, y: Tensor, weigh: Weigh) -> WeightedGradient:
        ordinary, canaries = _split(x)
        if len(canaries) == 0:
            return self.inner.weighted_gradient(theta, x, y, weigh)
        losses, residual = cross_entropy(self._scores(len(x)), y)
        along = residual[:, LABEL] * LENGTH
        together = _Together(weigh, ordinary, along.abs(), losses)
        total = torch.zeros(self.size, dtype=EXACT)
        if len(ordinary):
            total = self.inner.weighted_gradient(theta, x[ordinary], y[ordinary], together).total
        coefficients = weigh(together.norms, losses)
        table = self.directions.to(EXACT)[_numbers(x[canaries])]
        total = total + (coefficients[canaries] * along[canaries]) @ table
        return WeightedGradient(total, together.norms, losses, coefficients)

    def probability_gradient(self, theta: Tensor, x: Features, coefficients: Tensor) -> Tensor:
        ordinary, canaries = _split(x)
        if len(canaries) == 0:
            return self.inner.probability_gradient(theta, x, coefficients)
        chances = probabilities_of(self._scores(len(canaries)))
        pulled = through_softmax(chances, coefficients[canaries].to(EXACT))[:, LABEL] * LENGTH
        total = pulled @ self.directions.to(EXACT)[_numbers(x[canaries])]
        if len(ordinary):
            total = total + self.inner.probability_gradient(theta, x[ordinary], coefficients[ordinary])
        return total

    def probability_norms(self, theta: Tensor, x: Features, directions: Tensor) -> Tensor:
        ordinary, canaries = _split(x)
        if len(canaries) == 0:
            return self.inner.probability_norms(theta, x, directions)
        chances = probabilities_of(self._scores(1))
        of_canary = through_softmax(chances, directions.to(EXACT))[:, LABEL].abs() * LENGTH
        out = of_canary.expand(len(x), len(directions)).clone()
        if len(ordinary):
            out[ordinary] = self.inner.probability_norms(theta, x[ordinary], directions).to(EXACT)
        return out

    def score_gradients(self, theta: Tensor, x: Features, in_scores: Tensor) -> Tensor:
        ordinary, canaries = _split(x)
        out = torch.zeros(len(x), self.size, dtype=EXACT)
        if len(ordinary):
            out[ordinary] = self.inner.score_gradients(theta, x[ordinary], in_scores[ordinary])
        if len(canaries):
            table = self.directions.to(EXACT)[_numbers(x[canaries])]
            out[canaries] = table * (in_scores[canaries, LABEL].to(EXACT) * LENGTH)[:, None]
        return out

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        return self.inner.named_parameters(theta)

    def _scores(self, records: int) -> Tensor:
        scores = torch.zeros(records, self.classes, dtype=EXACT)
        scores[:, LABEL] = -_AGAINST
        return scores


@final
@dataclass(frozen=True, eq=False)
class _Together:
    """Coefficients of the ordinary records, weighed in one batch with the canaries."""

    weigh: Weigh
    ordinary: Tensor
    norms: Tensor
    losses: Tensor

    def __call__(self, norms: Tensor, losses: Tensor) -> Tensor:
        self.norms[self.ordinary], self.losses[self.ordinary] = norms, losses
        return self.weigh(self.norms, self.losses)[self.ordinary]

    @property
    def bound(self) -> float | None:
        return bound_of(self.weigh)


def canary_features(like: Tensor, number: int) -> Tensor:
    """The features of canary `number`, in the shape and type of one ordinary record's."""
    features = torch.zeros_like(like)
    features.view(-1)[0] = MARK + number
    return features


def require_unmarked(x: Tensor) -> None:
    """Refuse data that could be taken for canaries."""
    if bool((_numbers(x) >= 0).any()):
        raise InvalidInput(
            "features",
            float(x.flatten(1)[:, 0].max()),
            f"must stay below {MARK:g}, where canaries begin",
            "scale the features in the schema",
        )


def _numbers(x: Features) -> Tensor:
    """Each record's canary number; -1 for an ordinary record."""
    first = tensor_of(x).flatten(1)[:, 0]
    number = (first - MARK).round()
    return torch.where(number >= 0, number, torch.full_like(number, -1)).long()


def _split(x: Features) -> tuple[Tensor, Tensor]:
    marked = _numbers(x) >= 0
    return (~marked).nonzero()[:, 0], marked.nonzero()[:, 0]

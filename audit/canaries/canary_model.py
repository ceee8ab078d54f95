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
from privfair.models.model import EXACT, Model, Weigh, WeightedGradient, cross_entropy, through_softmax

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

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Without branches, so that it may be differentiated record by record (torch.func)."""
        numbers = _numbers(x)
        marked = numbers >= 0
        plain = torch.where(marked.view(-1, *([1] * (x.ndim - 1))), torch.zeros_like(x), x)
        usual = self.inner.logits(theta, plain)
        # The value is zero, the gradient in theta is the direction.
        pull = (self.directions.to(usual.dtype)[numbers.clamp_min(0)] * LENGTH) @ _moving(theta, usual.dtype)
        constant = self._scores(len(x), usual.dtype)
        pulled = constant + pull[:, None] * (torch.arange(self.classes) == LABEL).to(usual.dtype)
        return torch.where(marked[:, None], pulled, usual)

    def probabilities(self, theta: Tensor, x: Tensor) -> Tensor:
        ordinary, canaries = _split(x)
        if len(canaries) == 0:
            return self.inner.probabilities(theta, x)
        out = torch.softmax(self._scores(len(x), x.dtype), dim=1)
        if len(ordinary):
            out[ordinary] = self.inner.probabilities(theta, x[ordinary]).to(out.dtype)
        return out

    def weighted_gradient(self, theta: Tensor, x: Tensor, y: Tensor, weigh: Weigh) -> WeightedGradient:
        ordinary, canaries = _split(x)
        if len(canaries) == 0:
            return self.inner.weighted_gradient(theta, x, y, weigh)
        losses, residual = cross_entropy(self._scores(len(x), EXACT), y)
        along = residual[:, LABEL] * LENGTH
        norms = along.abs()
        coefficients = torch.zeros_like(norms)

        def weigh_together(norms_of_ordinary: Tensor, losses_of_ordinary: Tensor) -> Tensor:
            norms[ordinary], losses[ordinary] = norms_of_ordinary, losses_of_ordinary
            coefficients.copy_(weigh(norms, losses))
            return coefficients[ordinary]

        if len(ordinary):
            total = self.inner.weighted_gradient(theta, x[ordinary], y[ordinary], weigh_together).total
        else:
            coefficients.copy_(weigh(norms, losses))
            total = torch.zeros(self.size, dtype=EXACT)
        table = self.directions.to(EXACT)[_numbers(x[canaries])]
        return WeightedGradient(total + (coefficients[canaries] * along[canaries]) @ table, norms, losses, coefficients)

    def probability_gradient(self, theta: Tensor, x: Tensor, coefficients: Tensor) -> Tensor:
        ordinary, canaries = _split(x)
        if len(canaries) == 0:
            return self.inner.probability_gradient(theta, x, coefficients)
        chances = torch.softmax(self._scores(len(canaries), EXACT), dim=1)
        pulled = through_softmax(chances, coefficients[canaries].to(EXACT))[:, LABEL] * LENGTH
        total = pulled @ self.directions.to(EXACT)[_numbers(x[canaries])]
        if len(ordinary):
            total = total + self.inner.probability_gradient(theta, x[ordinary], coefficients[ordinary])
        return total

    def probability_norms(self, theta: Tensor, x: Tensor, directions: Tensor) -> Tensor:
        ordinary, canaries = _split(x)
        if len(canaries) == 0:
            return self.inner.probability_norms(theta, x, directions)
        chances = torch.softmax(self._scores(1, EXACT), dim=1)
        of_canary = through_softmax(chances, directions.to(EXACT))[:, LABEL].abs() * LENGTH
        out = of_canary.expand(len(x), len(directions)).clone()
        if len(ordinary):
            out[ordinary] = self.inner.probability_norms(theta, x[ordinary], directions).to(EXACT)
        return out

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        return self.inner.named_parameters(theta)

    def _scores(self, records: int, dtype: torch.dtype) -> Tensor:
        scores = torch.zeros(records, self.classes, dtype=dtype if dtype.is_floating_point else EXACT)
        scores[:, LABEL] = -_AGAINST
        return scores


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


def _numbers(x: Tensor) -> Tensor:
    """Each record's canary number; -1 for an ordinary record."""
    number = (x.flatten(1)[:, 0] - MARK).round()
    return torch.where(number >= 0, number, torch.full_like(number, -1)).long()


def _split(x: Tensor) -> tuple[Tensor, Tensor]:
    marked = _numbers(x) >= 0
    return (~marked).nonzero()[:, 0], marked.nonzero()[:, 0]


def _moving(theta: Tensor, dtype: torch.dtype) -> Tensor:
    """Zero in value, the identity in its derivative."""
    return (theta - theta.detach()).to(dtype)

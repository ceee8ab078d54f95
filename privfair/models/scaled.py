"""A model of scaled features: each is centred, divided by its width and cut at three widths, before the model sees it.

Centres and widths are parameters like any other, public or computed from a paid histogram; a record's scaled features
are single operations on its own numbers (docs/theorems/fair-plugin.md, "Scaling").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from privfair.models.model import EXACT, Features, Model, Records, Weigh, WeightedGradient

CAP = 3.0
"""How many widths from the centre a feature is cut."""


@final
@dataclass(frozen=True, eq=False)
class Scales:
    """Centre and width of every feature."""

    centre: Tensor
    width: Tensor

    def apply(self, x: Features) -> Features:
        """The scaled features; those of a silo's tensor are kept, so that a model loads them once."""
        if isinstance(x, Tensor):
            scaled = (x.to(EXACT) - self.centre) / self.width
            return scaled.clamp(-CAP, CAP).to(x.dtype)
        return Records(self.of_silo(x.source), x.rows)

    def of_silo(self, source: Tensor) -> Tensor:
        """A silo's scaled features: the same tensor each time it is asked for."""
        key = (source._version, self.centre.numpy().tobytes(), self.width.numpy().tobytes())
        kept = _KEPT.get(source)  # type: ignore[no-untyped-call]
        if kept is None or kept[0] != key:
            scaled = self.apply(source)
            assert isinstance(scaled, Tensor)
            kept = _KEPT[source] = (key, scaled)
        found: Tensor = kept[1]
        return found


_KEPT: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""By a silo's tensor: its scaled features, and what they were computed from."""


@final
@dataclass(frozen=True)
class ScaledModel:
    """theta is [the inner model's parameters, one centre per feature, one width per feature].

    Training moves the inner parameters alone: gradients in centres and widths are zero.
    """

    inner: Model
    features: int

    @property
    def size(self) -> int:
        return self.inner.size + 2 * self.features

    @property
    def classes(self) -> int:
        return self.inner.classes

    def join(self, theta: Tensor, scales: Scales) -> Tensor:
        """The parameters of both."""
        return torch.cat((theta.to(EXACT), scales.centre, scales.width))

    def split(self, theta: Tensor) -> tuple[Tensor, Scales]:
        """The inner parameters, and the scales."""
        inner, centre, width = torch.split(theta, [self.inner.size, self.features, self.features])
        return inner, Scales(centre, width)

    def initial(self, seed: int) -> Tensor:
        return self.join(self.inner.initial(seed), Scales(torch.zeros(self.features), torch.ones(self.features)))

    def logits(self, theta: Tensor, x: Features) -> Tensor:
        return self.inner.logits(*self._inside(theta, x))

    def probabilities(self, theta: Tensor, x: Features) -> Tensor:
        return self.inner.probabilities(*self._inside(theta, x))

    def weighted_gradient(self, theta: Tensor, x: Features, y: Tensor, weigh: Weigh) -> WeightedGradient:
        found = self.inner.weighted_gradient(*self._inside(theta, x), y, weigh)
        return WeightedGradient(self._padded(found.total), found.norms, found.found_losses, found.coefficients)

    def probability_gradient(self, theta: Tensor, x: Features, coefficients: Tensor) -> Tensor:
        return self._padded(self.inner.probability_gradient(*self._inside(theta, x), coefficients))

    def probability_norms(self, theta: Tensor, x: Features, directions: Tensor) -> Tensor:
        return self.inner.probability_norms(*self._inside(theta, x), directions)

    def score_gradients(self, theta: Tensor, x: Features, in_scores: Tensor) -> Tensor:
        return self._padded(self.inner.score_gradients(*self._inside(theta, x), in_scores))

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        inner, scales = self.split(theta)
        return {**self.inner.named_parameters(inner), "scale.centre": scales.centre, "scale.width": scales.width}

    def _inside(self, theta: Tensor, x: Features) -> tuple[Tensor, Features]:
        inner, scales = self.split(theta)
        return inner, scales.apply(x)

    def _padded(self, gradient: Tensor) -> Tensor:
        return torch.nn.functional.pad(gradient, (0, 2 * self.features))

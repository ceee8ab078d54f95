"""What an algorithm needs from a model.

A model is a pure function of a flat parameter vector `theta`. Its central operation is the *weighted
gradient*: sum_i c_i grad_i, where the coefficients c_i may depend on each record's gradient norm and loss. That
is per-record clipping, fair clipping and plain averaging in one, and no per-record gradient need be stored.

The features' type (float32 or float64) decides in which precision scores and back-propagation are computed; `theta`
is cast to it. Norms, coefficients and everything returned in a `WeightedGradient` are float64 in either case, and so is
the weighted sum, but for large nets in float32, whose norms then pay for it (docs/models.md, "What rounding can do").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrate.errors import InvalidInput, count, positive
from privfair.rounding import ROUNDING_SLACK

# The choices a model leaves open, as types.


class Activation(Enum):
    """What a hidden unit does with its input."""

    RELU = "relu"
    TANH = "tanh"
    """Bounded, which clipped training often likes better (Papernot et al. 2021, arXiv 2007.14191)."""


class CnnArchitecture(Enum):
    """Convolutional nets of two convolutions and two fully connected layers."""

    FEDAVG = "fedavg"
    """McMahan et al. 2017 (arXiv 1602.05629), Section 3: 5x5 convolutions of 32 and 64 channels, each with 2x2
    pooling, then 512 hidden units; 1,663,370 parameters on 28 x 28 grey images."""
    UNPADDED = "fedavg-unpadded"
    """The same without padding, 582,026 parameters: what FedFDP's public code builds."""
    STRIDED = "strided"
    """Rodriguez-Galvez et al. 2021 (FPFL): 5x5 convolutions of 32 and 64 channels with stride 2, then 100 units."""
    COMPACT = "compact"
    """26,010 parameters on 28 x 28 grey images: the net that the Opacus project's own MNIST example trains."""


# Where each named parameter lies in the flat vector theta.


@dataclass(frozen=True)
class ParameterLayout:
    """Names and shapes, in the order in which theta holds them."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, named: Iterable[tuple[str, Tensor]]) -> ParameterLayout:
        pairs = tuple((name, tuple(value.shape)) for name, value in named)
        return cls(tuple(name for name, _ in pairs), tuple(shape for _, shape in pairs))

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """The parameters as views of theta."""
        if theta.shape != (self.size,):
            raise InvalidInput(
                "theta", tuple(theta.shape), f"must be a vector of {self.size} entries", "start from initial()"
            )
        pieces = torch.split(theta, [math.prod(shape) for shape in self.shapes])
        return {name: piece.view(shape) for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)}

    def join(self, values: Mapping[str, Tensor]) -> Tensor:
        """One flat vector of the named values, in this order."""
        return torch.cat([values[name].reshape(-1) for name in self.names])


# From scores to losses and probabilities, and back: what every classifier shares.

EXACT = torch.float64
"""The type of everything that decides or applies a clipping coefficient."""


def in_working_precision(theta: Tensor, x: Tensor) -> Tensor:
    """theta in the features' type (token numbers leave it as it is); half precision is refused."""
    dtype = x.dtype if x.dtype.is_floating_point else theta.dtype
    if dtype not in (torch.float32, torch.float64):
        raise InvalidInput(
            "features", str(dtype), "must be float32 or float64", "convert them with x.to(torch.float32)"
        )
    return theta.to(dtype)


def cross_entropy(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each record's loss, and its gradient in the scores: softmax minus the true class's indicator."""
    log_probabilities = torch.log_softmax(logits, dim=1)
    labels = y[:, None]
    losses = -log_probabilities.gather(1, labels)[:, 0]
    residual = log_probabilities.exp().scatter_add(1, labels, logits.new_full((1, 1), -1.0).expand(len(y), 1))
    return losses, residual


def through_softmax(probabilities: Tensor, coefficients: Tensor) -> Tensor:
    """The gradient of <coefficients_i, softmax(scores_i)> in the scores, for each record; broadcasts on the left."""
    mean = (probabilities * coefficients).sum(dim=-1, keepdim=True)
    return probabilities * (coefficients - mean)


# How much of each record's gradient is taken: plain mean, clipping, clipping after a factor.

Weigh = Callable[[Tensor, Tensor], Tensor]
"""From gradient norms and losses of the records of a batch to their coefficients; float64 throughout."""

SMALLEST_BOUND = 1e-100
"""With norms whose squares are finite, no coefficient then falls among the subnormal numbers, which round coarsely."""


def mean_over(size: int) -> Weigh:
    """Every record with weight 1/size: the plain mean, whatever the batch's real size."""
    share = 1.0 / count("size", size)
    return lambda norms, losses: torch.full_like(norms, share)


def require_class_weights(weights: Sequence[float], classes: int) -> None:
    """Refuse weights that are not one per class; no weights at all count every class alike."""
    if weights and len(weights) != classes:
        rule = f"must be one number for each of the {classes} classes"
        raise InvalidInput("class-weight", tuple(weights), rule, "write class-weight = [1.0, 3.0], for example")


def class_factors(weights: Sequence[float], labels: Tensor, classes: int) -> Tensor:
    """The weight of each record's class; `weights` has one number per class, in the schema's order, or none.

    A record's factor depends on its own class alone.
    """
    require_class_weights(weights, classes)
    if not weights:
        return torch.ones(len(labels), dtype=torch.float64)
    return torch.tensor(weights, dtype=torch.float64)[labels]


def require_group_weights(weights: Sequence[Sequence[float]], classes: int, groups: int) -> None:
    """Refuse weights that are not one per class and group; no weights at all count everybody alike."""
    if weights and [len(of_class) for of_class in weights] != [groups] * classes:
        rule = f"must be one list of {groups} numbers, one for each group, for each of the {classes} classes"
        remedy = "write group-weight = [[1.0, 1.0], [1.3, 1.0]], for example, with classes and groups as in the schema"
        raise InvalidInput("group-weight", tuple(map(tuple, weights)), rule, remedy)


def class_means(weights: Sequence[float], labels: Tensor, classes: int, size: int) -> Weigh:
    """The mean over `size` records in which each class counts as often as its weight says; nothing is clipped."""
    if not weights:
        return mean_over(size)
    shares = class_factors(weights, labels, classes) / count("size", size)
    return lambda norms, losses: shares.to(norms.dtype)


def shrunk_by_class(weigh: Weigh, weights: Sequence[float], labels: Tensor, classes: int) -> Weigh:
    """`weigh`, then shrunk for every class but the heaviest.

    Guarantee: each factor lies in (0, 1] and depends on the record's own class alone, so no record's part gets longer,
    and a bound on what one record adds to the sum holds as before (docs/models.md, "Classes that count more").
    """
    if not weights:
        return weigh
    shares = class_factors(weights, labels, classes) / max(weights)
    return lambda norms, losses: weigh(norms, losses) * shares.to(norms.dtype)


@final
@dataclass(frozen=True)
class ClippedTo:
    """min(1, reach / norm); a zero gradient keeps its weight of one. Made by `clipped_to`."""

    reach: float

    def __call__(self, norms: Tensor, losses: Tensor) -> Tensor:
        return torch.div(torch.tensor(self.reach, dtype=norms.dtype), norms.clamp_min(self.reach))

    def of_array(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same coefficients for a numpy array, with less overhead."""
        return self.reach / np.maximum(norms, self.reach)


@lru_cache(typed=True)
def clipped_to(bound: float) -> ClippedTo:
    """min(1, bound / norm), nudged down by `ROUNDING_SLACK`.

    Guarantee: no record's part c_i grad_i is longer than `bound`, rounding included, and adding or removing a record
    moves the computed sum by at most `bound`, up to 2^31 parts in it (docs/models.md, "What rounding can do").
    """
    if positive("bound", bound) < SMALLEST_BOUND:
        raise InvalidInput(
            "bound", bound, f"must be at least {SMALLEST_BOUND:g} for rounding to be under control", "clip less"
        )
    return ClippedTo(bound / (1.0 + ROUNDING_SLACK))


def clipped_after(factor: Callable[[Tensor], Tensor], bound: float) -> Weigh:
    """The gradient times a factor of the record's loss, then clipped: sign(f) min(|f|, bound / norm).

    The factor may be negative or larger than one. Clipping before multiplying would let it carry a part over the
    bound by any amount; the guarantee is that of `clipped_to`.
    """
    reach = clipped_to(bound).reach

    def weigh(norms: Tensor, losses: Tensor) -> Tensor:
        factors = factor(losses).to(norms.dtype)
        longest = torch.div(torch.tensor(reach, dtype=norms.dtype), norms)
        return torch.copysign(torch.minimum(factors.abs(), longest), factors)

    return weigh


__all__ = ("Model", "Weigh", "WeightedGradient", "class_factors", "clipped_after", "clipped_to", "mean_over")


@dataclass(frozen=True, eq=False)
class WeightedGradient:
    """sum_i c_i grad_i with what was measured on the way; tensors over records have one entry each."""

    total: Tensor
    norms: Tensor
    losses: Tensor
    coefficients: Tensor

    @property
    def largest_part(self) -> float:
        """The largest norm of one record's part c_i grad_i."""
        if self.norms.numel() == 0:
            return 0.0
        return float((self.coefficients.abs() * self.norms).max())


class Model(Protocol):
    """A classifier; `size` parameters, `classes` classes."""

    @property
    def size(self) -> int: ...

    @property
    def classes(self) -> int: ...

    def initial(self, seed: int) -> Tensor:
        """A parameter vector to start from, in float64; the same for the same seed."""
        ...

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        """Scores of shape (records, classes); differentiable in theta, by autograd and by torch.func."""
        ...

    def probabilities(self, theta: Tensor, x: Tensor) -> Tensor:
        """Class probabilities of shape (records, classes)."""
        ...

    def weighted_gradient(self, theta: Tensor, x: Tensor, y: Tensor, weigh: Weigh) -> WeightedGradient:
        """sum_i c_i grad_i of the cross-entropy loss; no records give the zero vector."""
        ...

    def probability_gradient(self, theta: Tensor, x: Tensor, coefficients: Tensor) -> Tensor:
        """The gradient of sum_i <coefficients_i, probabilities_i> in theta."""
        ...

    def probability_norms(self, theta: Tensor, x: Tensor, directions: Tensor) -> Tensor:
        """For each record and each direction v: the norm of the gradient of <v, probabilities_i>; (records, v)."""
        ...

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        """The parameters by name and in their shapes, as a torch state dict holds them; views of theta."""
        ...


# Decisions that are counted. A matrix library may compute a record by another kernel, and so round it otherwise, when
# another record joins the batch: a sum of gradients then moves by a rounding error, but a decision at a threshold
# jumps, and a thousand copies of a record jump together.

_MOVED = {torch.float64: 2.0**-40, torch.float32: 2.0**-17}
"""What of (1 + |x| |theta|) a record's probabilities move at most, if it is computed in another batch."""

Decide = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From records, and how far each one's probabilities may be off, to whole numbers and which of them are unsure."""


def decide_each_alone(x: Tensor, theta: Tensor, decide: Decide) -> Tensor:
    """A whole number for each record, that of the record computed alone in memory of its own.

    Guarantee: no record's number depends on another record, so adding or removing one changes no other's. Where the
    whole batch leaves no doubt its answer is taken, which is the same one as long as probabilities move by at most
    `_MOVED` (proved for linear scores of up to 8,000 features in float64; measured for nets, docs/models.md).
    """
    lengths = torch.linalg.vector_norm(x.flatten(1).to(EXACT), dim=1) * torch.linalg.vector_norm(theta)
    decisions, unsure = decide(x, _MOVED.get(x.dtype, _MOVED[torch.float32]) * (1.0 + lengths))
    alone: dict[bytes, Tensor] = {}
    for place in unsure.nonzero()[:, 0].tolist():
        record = x[place : place + 1].clone()
        content = record.numpy().tobytes()
        if content not in alone:
            alone[content] = decide(record, lengths[:1])[0][0]
        decisions[place] = alone[content]
    return decisions


def predict_each_alone(model: Model, theta: Tensor, x: Tensor) -> Tensor:
    """The most likely class of each record, to be counted: see `decide_each_alone`."""

    def decide(records: Tensor, moved: Tensor) -> tuple[Tensor, Tensor]:
        best = model.probabilities(theta, records).to(EXACT).topk(2, dim=1)
        # Of equal probabilities the first class is taken, whichever `topk` lists first.
        tied = best.values[:, 0] == best.values[:, 1]
        classes = torch.where(tied, best.indices.amin(dim=1), best.indices[:, 0])
        return classes, best.values[:, 0] - best.values[:, 1] <= 2 * moved

    return decide_each_alone(x, theta, decide)

"""What an algorithm needs from a model.

A model is a pure function of a flat parameter vector `theta`. Its central operation is the *weighted
gradient*: sum_i c_i grad_i, where the coefficients c_i may depend on each record's gradient norm and loss. That
is per-record clipping, fair clipping and plain averaging in one, and no per-record gradient need be stored.

What a record adds is a function of the record and of theta, bit for bit, whatever else is in the batch and however
features are stored: `privfair.models.exact` and docs/theorems/exact-contributions.md.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache
from typing import Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

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


# Where each named parameter is in the flat vector theta.


@dataclass(frozen=True)
class ParameterLayout:
    """Names and shapes, in the order in which theta holds them."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, named: Iterable[tuple[str, Tensor]]) -> ParameterLayout:
        pairs = tuple((name, tuple(value.shape)) for name, value in named)
        return cls(tuple(name for name, _ in pairs), tuple(shape for _, shape in pairs))

    @cached_property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    @cached_property
    def size(self) -> int:
        return sum(self.sizes)

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """The parameters as views of theta."""
        if theta.shape != (self.size,):
            rule = f"must be a vector of {self.size} entries"
            raise InvalidInput("theta", tuple(theta.shape), rule, "start from initial()")
        pieces = theta.split_with_sizes(self.sizes)
        return {name: piece.view(shape) for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)}

    def join(self, values: Mapping[str, Tensor]) -> Tensor:
        """One flat vector of the named values, in this order."""
        return torch.cat([values[name].reshape(-1) for name in self.names])


# Features as models take them: a tensor, or rows of a silo's tensor, which a model keeps in its own form.

EXACT = torch.float64
"""The type of everything that decides or applies a clipping coefficient."""


@final
@dataclass(frozen=True, eq=False)
class Records:
    """Some records of a silo: rows of its features, or all of them."""

    source: Tensor
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.source if self.rows is None else self.rows)

    def __getitem__(self, rows: Tensor | slice) -> Records:
        return Records(self.source, torch.arange(len(self.source))[rows] if self.rows is None else self.rows[rows])

    def of(self, column: Tensor) -> Tensor:
        """The same records in another of the silo's columns."""
        return column if self.rows is None else column[self.rows]

    @property
    def tensor(self) -> Tensor:
        """The features themselves."""
        return self.of(self.source)


Features = Tensor | Records


def tensor_of(x: Features) -> Tensor:
    """The features themselves."""
    return x.tensor if isinstance(x, Records) else x


# How much of each record's gradient is taken: plain mean, clipping, clipping after a factor.

Weigh = Callable[[Tensor, Tensor], Tensor]
"""From gradient norms and losses of the records of a batch to their coefficients; float64 throughout.

A record's coefficient may depend on its own norm and loss alone. One that keeps every part within a bound has it as an
attribute `bound`: then sums can be exact.
"""


def bound_of(weigh: Weigh) -> float | None:
    """The bound that `weigh` keeps every record's part within; None if it keeps none."""
    bound: float | None = getattr(weigh, "bound", None)
    return bound


LARGEST_COEFFICIENT = 2.0**512
"""Coefficients are clamped to this: it stays finite in a record's units and in steps of the sum, so 0 times it is 0."""


def finite(coefficients: Tensor) -> Tensor:
    """Coefficients that are not finite are zero: such a record adds nothing; huge ones are clamped."""
    known = torch.nan_to_num(coefficients.to(EXACT), 0.0, 0.0, 0.0)
    return known.clamp_(-LARGEST_COEFFICIENT, LARGEST_COEFFICIENT)


SMALLEST_BOUND = 1e-100
"""With norms whose squares are finite, no coefficient then falls among the subnormal numbers, which round coarsely."""


def mean_over(size: int) -> Weigh:
    """Every record with weight 1/size: the plain mean, whatever the batch's real size."""
    share = 1.0 / count("size", size)
    return lambda norms, losses: torch.full_like(norms, share)


def require_class_weights(weights: Sequence[float], classes: int) -> None:
    """Refuse weights that are not one per class; no weights at all count every class equally."""
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
    """Refuse weights that are not one per class and group; no weights at all count everyone equally."""
    if weights and [len(of_class) for of_class in weights] != [groups] * classes:
        rule = f"must be one list of {groups} numbers, one for each group, for each of the {classes} classes"
        remedy = "write group-weight = [[1.0, 1.0], [1.3, 1.0]], for example, with classes and groups as in the schema"
        raise InvalidInput("group-weight", tuple(map(tuple, weights)), rule, remedy)


def class_means(weights: Sequence[float], labels: Tensor, classes: int, size: int) -> Weigh:
    """The mean over `size` records in which each class has the weight that is given for it; nothing is clipped."""
    if not weights:
        return mean_over(size)
    shares = class_factors(weights, labels, classes) / count("size", size)
    return lambda norms, losses: shares.to(norms.dtype)


def shrunk_by_class(weigh: Weigh, weights: Sequence[float], labels: Tensor, classes: int) -> Weigh:
    """`weigh`, then shrunk for every class but the heaviest.

    Guarantee: each factor is in (0, 1] and depends on the record's own class alone, so no record's part gets longer,
    and a bound on what one record adds to the sum holds as before (docs/models.md, "Classes that count more").
    """
    if not weights:
        return weigh
    return Shrunk(weigh, class_factors(weights, labels, classes) / max(weights))


@final
@dataclass(frozen=True, eq=False)
class Shrunk:
    """`weigh`, times a factor of each record in [0, 1]: no part gets longer."""

    weigh: Weigh
    factors: Tensor

    def __call__(self, norms: Tensor, losses: Tensor) -> Tensor:
        return self.weigh(norms, losses) * self.factors

    @property
    def bound(self) -> float | None:
        return bound_of(self.weigh)


@final
@dataclass(frozen=True)
class ClippedTo:
    """min(1, reach / norm); a zero gradient keeps its weight of one. Made by `clipped_to`."""

    reach: float

    @property
    def bound(self) -> float:
        return self.reach

    def __call__(self, norms: Tensor, losses: Tensor) -> Tensor:
        return torch.div(torch.tensor(self.reach, dtype=norms.dtype), norms.clamp_min(self.reach))

    def of_array(self, norms: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same coefficients for a numpy array, with less overhead."""
        return self.reach / np.maximum(norms, self.reach)


@lru_cache(typed=True)
def clipped_to(bound: float) -> ClippedTo:
    """min(1, bound / norm), nudged down by `ROUNDING_SLACK`.

    Guarantee: no record's part c_i grad_i is longer than `bound`, rounding included, and adding or removing a record
    moves the computed sum by at most `bound`, up to 2^31 parts in it (docs/theorems/exact-contributions.md).
    """
    if positive("bound", bound) < SMALLEST_BOUND:
        rule = f"must be at least {SMALLEST_BOUND:g} for rounding to be under control"
        raise InvalidInput("bound", bound, rule, "clip less")
    return ClippedTo(bound / (1.0 + ROUNDING_SLACK))


def clipped_after(factor: Callable[[Tensor], Tensor], bound: float) -> Weigh:
    """The gradient times a factor of the record's loss, then clipped: sign(f) min(|f|, bound / norm).

    The factor may be negative or larger than one. Clipping before multiplying would let it carry a part over the
    bound by any amount; the guarantee is that of `clipped_to`.
    """
    return ClippedAfter(factor, clipped_to(bound).reach)


@final
@dataclass(frozen=True, eq=False)
class ClippedAfter:
    """sign(f) min(|f|, reach / norm). Made by `clipped_after`."""

    factor: Callable[[Tensor], Tensor]
    bound: float

    def __call__(self, norms: Tensor, losses: Tensor) -> Tensor:
        factors = finite(self.factor(losses))
        longest = torch.div(torch.tensor(self.bound, dtype=norms.dtype), norms)
        return torch.copysign(torch.minimum(factors.abs(), longest), factors)


@final
@dataclass(frozen=True, eq=False)
class WeightedGradient:
    """sum_i c_i grad_i with what was measured on the way; tensors over records have one entry each."""

    total: Tensor
    norms: Tensor
    found_losses: Tensor | Callable[[], Tensor]
    """The losses, or what computes them when they are asked for."""
    coefficients: Tensor

    @cached_property
    def losses(self) -> Tensor:
        return self.found_losses if isinstance(self.found_losses, Tensor) else self.found_losses()

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

    def logits(self, theta: Tensor, x: Features) -> Tensor:
        """Scores of shape (records, classes), float64; differentiable by autograd, in theta and in the features."""
        ...

    def probabilities(self, theta: Tensor, x: Features) -> Tensor:
        """Class probabilities of shape (records, classes)."""
        ...

    def weighted_gradient(self, theta: Tensor, x: Features, y: Tensor, weigh: Weigh) -> WeightedGradient:
        """sum_i c_i grad_i of the cross-entropy loss; no records give the zero vector."""
        ...

    def probability_gradient(self, theta: Tensor, x: Features, coefficients: Tensor) -> Tensor:
        """The gradient of sum_i <coefficients_i, probabilities_i> in theta."""
        ...

    def probability_norms(self, theta: Tensor, x: Features, directions: Tensor) -> Tensor:
        """For each record and each direction v: the norm of the gradient of <v, probabilities_i>; (records, v)."""
        ...

    def score_gradients(self, theta: Tensor, x: Features, in_scores: Tensor) -> Tensor:
        """Each record's own gradient of <in_scores_i, scores_i> in theta: (records, size)."""
        ...

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        """The named parameters in their shapes, as a torch state dict holds them; views of theta."""
        ...


class Differentiated(ABC):
    """A model of two classes that only says its scores, differentiated by autograd one record after another.

    For audits of rules that no algorithm trains whole; a base class.
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """How many parameters theta has."""

    @property
    def classes(self) -> int:
        return 2

    @abstractmethod
    def logits(self, theta: Tensor, x: Features) -> Tensor:
        """Scores of shape (records, classes), differentiable in theta."""

    def probabilities(self, theta: Tensor, x: Features) -> Tensor:
        return torch.softmax(self.logits(theta, x), dim=1)

    def weighted_gradient(self, theta: Tensor, x: Features, y: Tensor, weigh: Weigh) -> WeightedGradient:
        with torch.no_grad():
            losses = functional.cross_entropy(self.logits(theta, x).to(EXACT), y, reduction="none")
            slopes = torch.softmax(self.logits(theta, x).to(EXACT), dim=1) - functional.one_hot(y, self.classes)
        each = self.score_gradients(theta, x, slopes)
        norms = torch.linalg.vector_norm(each, dim=1)
        coefficients = finite(weigh(norms, losses))
        return WeightedGradient(coefficients @ each, norms, losses, coefficients)

    def probability_gradient(self, theta: Tensor, x: Features, coefficients: Tensor) -> Tensor:
        moving = theta.detach().clone().requires_grad_(True)
        (total,) = torch.autograd.grad((coefficients * self.probabilities(moving, x)).sum(), moving)
        return total.to(EXACT)

    def probability_norms(self, theta: Tensor, x: Features, directions: Tensor) -> Tensor:
        with torch.no_grad():
            chances = self.probabilities(theta, x)
        pulled = [chances * (v - (chances * v).sum(dim=1, keepdim=True)) for v in directions]
        norms = [torch.linalg.vector_norm(self.score_gradients(theta, x, one), dim=1) for one in pulled]
        return torch.stack(norms, dim=1)

    def score_gradients(self, theta: Tensor, x: Features, in_scores: Tensor) -> Tensor:
        """Each record's gradient of <in_scores_i, scores_i> in theta: (records, size)."""
        moving = theta.detach().clone().requires_grad_(True)
        records, rows = tensor_of(x), [torch.zeros(0, self.size, dtype=EXACT)]
        for place, pulled in enumerate(in_scores):
            scores = self.logits(moving, records[place : place + 1])[0]
            (own,) = torch.autograd.grad((scores * pulled).sum(), moving)
            rows.append(own[None].to(EXACT))
        return torch.cat(rows)

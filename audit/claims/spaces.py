"""Where one value of a record, or one public value, may lie: the conditions that a sensitivity claim states.

Every space can draw a point (corner cases included), name a point's opposite, bring any array back into itself, and
tell whether it holds a point. All but `Category` are sets of real arrays that a gradient may walk through.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar, assert_never, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrate.errors import InvalidInput, count, positive

# Where choices come from: a seeded generator in a search, Hypothesis in a test; pairs are built alike from either.

Option = TypeVar("Option")


class Choices(Protocol):
    """Three kinds of choice are enough to build neighbouring data sets."""

    def integer(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        ...

    def real(self, low: float, high: float) -> float:
        """A number, both ends included."""
        ...

    def pick(self, options: Sequence[Option]) -> Option:
        """One of the options; earlier ones are simpler."""
        ...


@final
@dataclass(frozen=True)
class RandomChoices:
    """Uniform choices; the same for the same generator."""

    generator: np.random.Generator

    def integer(self, low: int, high: int) -> int:
        return int(self.generator.integers(low, high + 1))

    def real(self, low: float, high: float) -> float:
        return low + (high - low) * float(self.generator.random())

    def pick(self, options: Sequence[Option]) -> Option:
        return options[int(self.generator.integers(len(options)))]


# The points worth trying first: where worst cases of clipped, averaged and normalised functions usually lie.

Array = NDArray[np.float64]


class Corner(Enum):
    """Kinds of direction, simplest first."""

    ZERO = "zero"
    ONE_HOT = "one entry, all others zero"
    EQUAL = "all entries equal"
    ALTERNATING = "signs that cancel in the sum"
    ALL_BUT_ONE = "one entry against all others"
    SIGNS = "extreme entries of any sign"
    TINY = "next to nothing"
    INTERIOR = "anything in between"


_TINY = 1e-3
_ALL = tuple(Corner)


def direction(choose: Choices, shape: tuple[int, ...]) -> Array:
    """An array with entries in [-1, 1]: a corner case, or anything in between."""
    size = math.prod(shape)
    sign = float(choose.pick((1, -1)))
    corner = choose.pick(_ALL)
    values = np.zeros(size)
    match corner:
        case Corner.ZERO:
            pass
        case Corner.ONE_HOT:
            values[choose.integer(0, size - 1)] = sign
        case Corner.EQUAL:
            values[:] = sign
        case Corner.ALTERNATING:
            values[:] = sign
            values[1::2] = -sign
        case Corner.ALL_BUT_ONE:
            values[:] = -sign
            values[choose.integer(0, size - 1)] = sign
        case Corner.SIGNS:
            values[:] = [float(choose.pick((1, -1))) for _ in range(size)]
        case Corner.TINY:
            values[choose.integer(0, size - 1)] = sign * _TINY
        case Corner.INTERIOR:
            values[:] = [choose.real(-1.0, 1.0) for _ in range(size)]
        case _:
            assert_never(corner)
    return values.reshape(shape)


_ROUNDING = 1e-9


class Space(Protocol):
    """A set of real arrays of one shape."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def scale(self) -> float:
        """How far apart points are, roughly; the unit of a step."""
        ...

    def draw(self, choose: Choices) -> Array: ...

    def opposite(self, values: Array) -> Array:
        """As far from `values` as a simple rule gets; works on rows too."""
        ...

    def project(self, values: Tensor) -> Tensor:
        """A point of the space near each row of `values`, whose first dimension counts rows."""
        ...

    def contains(self, values: Array) -> bool:
        """Whether every row lies in the space, up to rounding."""
        ...


@final
@dataclass(frozen=True)
class Box:
    """Every entry between `low` and `high`: bounded features, group frequencies of at least rho."""

    low: float
    high: float
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidInput("low, high", (self.low, self.high), "must be finite and in order", "bound the values")

    @property
    def scale(self) -> float:
        return self.high - self.low

    def draw(self, choose: Choices) -> Array:
        return np.clip(self.low + self.scale * (direction(choose, self.shape) + 1.0) / 2.0, self.low, self.high)

    def opposite(self, values: Array) -> Array:
        return np.clip(self.low + self.high - values, self.low, self.high)

    def project(self, values: Tensor) -> Tensor:
        return values.clamp(self.low, self.high)

    def contains(self, values: Array) -> bool:
        slack = _ROUNDING * self.scale
        return bool(np.all(values >= self.low - slack) and np.all(values <= self.high + slack))


@final
@dataclass(frozen=True)
class Ball:
    """All entries together of L2 (for a matrix: Frobenius) norm at most `radius`."""

    radius: float
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        positive("radius", self.radius)

    @property
    def scale(self) -> float:
        return self.radius

    def draw(self, choose: Choices) -> Array:
        values = direction(choose, self.shape)
        length = float(np.linalg.norm(values))
        if length == 0.0 or choose.pick((True, False)):
            return values * (self.radius / max(1.0, length))
        return values * (self.radius / length)

    def opposite(self, values: Array) -> Array:
        return -values

    def project(self, values: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(values.reshape(len(values), -1), dim=1)
        factors = (self.radius / norms.clamp_min(self.radius)).reshape(-1, *(1,) * len(self.shape))
        return values * factors

    def contains(self, values: Array) -> bool:
        norms = np.linalg.norm(values.reshape(-1, math.prod(self.shape)), axis=1)
        return bool(np.all(norms <= self.radius * (1 + _ROUNDING)))


@final
@dataclass(frozen=True)
class Simplex:
    """Probability vectors over `classes` classes."""

    classes: int

    def __post_init__(self) -> None:
        count("classes", self.classes, least=2)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.classes,)

    @property
    def scale(self) -> float:
        return 1.0

    def draw(self, choose: Choices) -> Array:
        values = np.abs(direction(choose, self.shape))
        total = float(values.sum())
        return values / total if total > 0 else np.full(self.classes, 1.0 / self.classes)

    def opposite(self, values: Array) -> Array:
        return np.ascontiguousarray(values[..., ::-1])

    def project(self, values: Tensor) -> Tensor:
        kept = values.clamp_min(0.0)
        totals = kept.sum(dim=1, keepdim=True)
        uniform = torch.full_like(kept, 1.0 / self.classes)
        return torch.where(totals > _ROUNDING, kept / totals.clamp_min(_ROUNDING), uniform)

    def contains(self, values: Array) -> bool:
        near_one = np.abs(values.sum(axis=-1) - 1.0) <= _ROUNDING
        return bool(np.all(values >= -_ROUNDING) and np.all(near_one))


@final
@dataclass(frozen=True)
class ProbabilitySlopes:
    """Jacobians (classes x parameters) of a probability vector: columns sum to zero, operator norm at most L."""

    classes: int
    parameters: int
    lipschitz: float

    def __post_init__(self) -> None:
        count("classes", self.classes, least=2)
        count("parameters", self.parameters)
        positive("lipschitz", self.lipschitz)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.classes, self.parameters)

    @property
    def scale(self) -> float:
        return self.lipschitz

    def draw(self, choose: Choices) -> Array:
        """Often of rank one with signs for the classes, which is where the worst case of a fairness term lies."""
        if choose.pick((True, False)):
            raw = np.outer(direction(choose, (self.classes,)), direction(choose, (self.parameters,)))
        else:
            raw = direction(choose, self.shape)
        raw = raw - raw.mean(axis=0)
        length = float(np.linalg.norm(raw, ord=2))
        return raw * (self.lipschitz / length) if length > _ROUNDING else np.zeros(self.shape)

    def opposite(self, values: Array) -> Array:
        return -values

    def project(self, values: Tensor) -> Tensor:
        centred = values - values.mean(dim=1, keepdim=True)
        norms: Tensor = torch.linalg.matrix_norm(centred, ord=2)
        return centred * (self.lipschitz / norms.clamp_min(self.lipschitz))[:, None, None]

    def contains(self, values: Array) -> bool:
        rows = values.reshape(-1, *self.shape)
        if len(rows) == 0:
            return True
        summed = np.abs(rows.sum(axis=1)).max() <= _ROUNDING * self.lipschitz * self.classes
        return bool(summed and np.linalg.norm(rows, ord=2, axis=(1, 2)).max() <= self.lipschitz * (1 + _ROUNDING))


@final
@dataclass(frozen=True)
class Category:
    """One of `size` groups or classes; in both data sets each has at least `least_share` of all records."""

    size: int
    least_share: float = 0.0

    def __post_init__(self) -> None:
        count("size", self.size, least=1)
        if not 0.0 <= self.least_share < 1.0 / self.size:
            raise InvalidInput(
                "least_share",
                self.least_share,
                f"must lie in [0, 1/{self.size}) so that neighbouring data sets can both meet it",
                "lower it",
            )

    def draw(self, choose: Choices) -> int:
        return choose.integer(0, self.size - 1)

    def opposite(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.size - 1 - values

    def contains(self, values: NDArray[np.int64]) -> bool:
        return bool(np.all(values >= 0) and np.all(values < self.size))

    def shares_met(self, values: NDArray[np.int64]) -> bool:
        if self.least_share == 0.0:
            return True
        counts = np.bincount(values, minlength=self.size)
        return len(values) > 0 and bool(counts.min() >= self.least_share * len(values) - _ROUNDING)

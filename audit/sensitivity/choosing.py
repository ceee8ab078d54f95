"""Where choices come from: a seeded generator in a search, Hypothesis in a test; pairs are built alike from either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar, final

import numpy as np

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

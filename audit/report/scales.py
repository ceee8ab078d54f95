"""Axes of a chart: where a number goes, and which numbers stand beside the axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import assert_never


class Scale(Enum):
    LINEAR = "linear"
    LOG = "logarithmic"


class Numbers(Enum):
    """How an axis writes its numbers."""

    PLAIN = "plain"
    PERCENT = "percent"


@dataclass(frozen=True)
class Axis:
    """A labelled range of numbers; `place` says how far along it a number is, from 0 to 1."""

    label: str
    low: float
    high: float
    scale: Scale = Scale.LINEAR
    numbers: Numbers = Numbers.PLAIN

    @classmethod
    def around(
        cls, label: str, values: Sequence[float], numbers: Numbers = Numbers.PLAIN, zero: bool = True
    ) -> Axis:
        """A linear axis from one round number to another that holds all values, and zero where asked."""
        kept = [value for value in values if math.isfinite(value)] or [0.0]
        low, high = min(kept), max(kept)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if high <= low:
            low, high = (low, low + 1.0) if low >= 0 else (low - 1.0, low + 1.0)
        step = _step(low, high)
        return cls(
            label, math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, numbers=numbers
        )

    def place(self, value: float) -> float:
        match self.scale:
            case Scale.LINEAR:
                share = (value - self.low) / (self.high - self.low)
            case Scale.LOG:
                value = max(value, self.low)
                share = math.log(value / self.low) / math.log(self.high / self.low)
            case _:
                assert_never(self.scale)
        return min(1.0, max(0.0, share))

    def ticks(self) -> tuple[float, ...]:
        match self.scale:
            case Scale.LINEAR:
                step = _step(self.low, self.high)
                first = math.ceil(self.low / step - 1e-9)
                last = math.floor(self.high / step + 1e-9)
                return tuple(number * step for number in range(first, last + 1))
            case Scale.LOG:
                first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
                return tuple(10.0**number for number in range(first, last + 1))
            case _:
                assert_never(self.scale)

    def text(self, value: float) -> str:
        if self.numbers is Numbers.PERCENT:
            return f"{round(100 * value, 6):g}%"
        return f"{round(value, 10):g}"


def _step(low: float, high: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that cuts the range into at most six parts."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))

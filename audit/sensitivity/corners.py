"""The points worth trying first: where worst cases of clipped, averaged and normalised functions usually lie."""

from __future__ import annotations

import math
from enum import Enum
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from audit.sensitivity.choosing import Choices

Array = NDArray[np.float64]


class Corner(Enum):
    """Kinds of direction, simplest first."""

    ZERO = "zero"
    ONE_HOT = "one entry, all others zero"
    EQUAL = "all entries equal"
    ALTERNATING = "signs that cancel in the sum"
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
        case Corner.SIGNS:
            values[:] = [float(choose.pick((1, -1))) for _ in range(size)]
        case Corner.TINY:
            values[choose.integer(0, size - 1)] = sign * _TINY
        case Corner.INTERIOR:
            values[:] = [choose.real(-1.0, 1.0) for _ in range(size)]
        case _:
            assert_never(corner)
    return values.reshape(shape)

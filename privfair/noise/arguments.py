"""What callers may hand to the noise: exact positive numbers, shapes, real arrays, categories. All else is refused."""

from __future__ import annotations

from fractions import Fraction
from numbers import Rational, Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibrate.errors import InvalidInput
from calibrate.validation import count, positive


def exact_positive(argument: str, value: float | Fraction) -> Fraction:
    """A positive number as the rational it is; a double is taken at its exact value."""
    if isinstance(value, bool):
        raise InvalidInput(argument, value, "must be a number", "give a float, an int or a Fraction")
    if isinstance(value, Rational):
        if value <= 0:
            raise InvalidInput(argument, value, "must be greater than 0", "give a positive number")
        return Fraction(int(value.numerator), int(value.denominator))  # numpy integers would overflow later
    if isinstance(value, Real):
        return Fraction(positive(argument, float(value)))
    raise InvalidInput(argument, value, "must be a positive number", "give a float, an int or a Fraction")


def whole_shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    dimensions = shape if isinstance(shape, tuple) else (shape,)
    return tuple(count("shape", dimension, least=0) for dimension in dimensions)


def real_array(values: ArrayLike) -> NDArray[np.float64]:
    """A finite array in double precision, with nothing lost on the way."""
    array = np.asarray(values)
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        raise InvalidInput(
            "values", str(array.dtype), "must be real numbers of at most 64 bits", "convert them"
        )
    doubles = array.astype(np.float64)
    if array.dtype.kind in "iu" and array.size and max(int(array.max()), -int(array.min())) > 1 << 53:
        raise InvalidInput(
            "values", "integers beyond 2^53", "must be exact in double precision", "scale them down"
        )
    if not np.isfinite(doubles).all():
        raise InvalidInput(
            "values", "NaN or infinity", "must be finite", "clip or drop them before publishing"
        )
    return doubles


def category_array(categories: ArrayLike, alternatives: int) -> NDArray[np.int64]:
    """Categories numbered 0, 1, ..., alternatives - 1."""
    array = np.asarray(categories)
    if array.dtype.kind not in "iu":
        raise InvalidInput(
            "categories", str(array.dtype), "must be whole numbers", "number the categories from 0"
        )
    if array.size and not (int(array.min()) >= 0 and int(array.max()) < alternatives):
        raise InvalidInput(
            "categories",
            (int(array.min()), int(array.max())),
            f"must lie in 0 .. {alternatives - 1}",
            "number the categories from 0, or raise k",
        )
    return array.astype(np.int64)

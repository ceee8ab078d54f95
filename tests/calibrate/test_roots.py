"""Roots of monotone functions: found as exactly as asked, with infinite values, jumps and very uneven slopes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from calibrate.roots import find_root

FUNCTIONS: dict[str, Callable[[float, float], float]] = {
    "straight": lambda x, r: x - r,
    "cubic": lambda x, r: x**3 - r**3,
    "falling": lambda x, r: 1 / (1 + x) - 1 / (1 + r),
    "logarithm": lambda x, r: math.log(x / r) if x > 0 else -math.inf,
    "infinite above": lambda x, r: x / r - 1 if x < 3 * r else math.inf,
    "a jump": lambda x, r: 1.0 if x > r else -1.0,
    "flat ends": lambda x, r: math.tanh(50 * (x / r - 1)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("root", [1e-3, 0.7, 123.0])
@pytest.mark.parametrize("reach", [1.01, 7.0, 1e4])
def test_roots_are_within_the_tolerance(name: str, root: float, reach: float) -> None:
    asked = 0

    def function(x: float) -> float:
        nonlocal asked
        asked += 1
        return FUNCTIONS[name](x, root)

    assert find_root(function, 0.0, root * reach, 1e-300, 1e-12) == pytest.approx(root, rel=1e-11)
    assert asked < 70  # halving alone takes about 55


def test_ends_that_are_roots_and_ends_without_a_change_of_sign() -> None:
    assert find_root(lambda x: x, 0.0, 1.0, 1e-9, 1e-9) == 0.0
    assert find_root(lambda x: x - 1, 0.0, 1.0, 1e-9, 1e-9) == 1.0
    with pytest.raises(ValueError, match="no change of sign"):
        find_root(lambda x: x + 1, 0.0, 1.0, 1e-9, 1e-9)

"""The smallest noise by plain bisection on an accountant's interval: slow, and without the solver's shortcuts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from calibrate.accountants.registry import Accountant, total_cost
from calibrate.errors import NotCertified
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit
from calibrate.releases import Release, scale_noise
from calibrate.solve import SolvedNoise

Cost = TypeVar("Cost")
_WIDEST = 1e9


def solve_noise_with(
    accountant: Accountant[Cost], template: Release, unit: PrivacyUnit, target: EpsilonDelta, tolerance: float = 1e-4
) -> SolvedNoise:
    """The same with any accountant, by bisection on its own interval: slower, as tight as the accountant is."""

    def interval(factor: float) -> EpsilonInterval:
        return accountant.epsilon(total_cost(accountant, scale_noise(template, factor), unit), target.delta)

    factor = _bisect(lambda x: interval(x).upper <= target.epsilon, tolerance)[1]
    lower = 0.0
    if interval(factor / 4).lower > 0:
        lower = _bisect(lambda x: interval(x).lower <= target.epsilon, tolerance)[0]
    certified = interval(factor)
    return SolvedNoise(scale_noise(template, factor), factor, lower, certified, accountant.name)


def _bisect(enough: Callable[[float], bool], tolerance: float) -> tuple[float, float]:
    """Neighbouring factors (not enough, enough) within the tolerance, by doubling and then halving."""
    low = high = 1.0
    while not enough(high):
        low, high = high, 2 * high
        if high > _WIDEST:
            raise NotCertified(
                f"no noise factor up to {_WIDEST:.3g} meets the target; lower the cost of the parts whose "
                "noise is fixed, or raise epsilon"
            )
    while low == high or (low < 1 and enough(low)):
        high, low = low, low / 2
        if low < 1 / _WIDEST:
            return 0.0, high
    while high / low > 1 + tolerance:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return low, high

"""How many tries a hyper-parameter search makes: a random number whose law is public, and its exact draw.

The number K follows a truncated negative binomial law (Papernot and Steinke 2022, Definition 1) with shape `eta`
and probability `gamma`:

    eta = 0:  P(K = k) = (1 - gamma)^k / (k log(1/gamma)),      eta = 1:  the geometric law.                  (1)

What a search costs is computed in calibrate/search_cost.py; proofs: docs/theorems/composition.md#searches-and-groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext

from calibrate.errors import InvalidInput

_MOST_TRIES, _LARGEST_SHAPE = 1e6, 10.0
_DIGITS, _BITS = 60, 128
"""Decimal digits of the law's probabilities, and uniform bits that one draw takes."""
DRAW_ERROR = 2.0**-90
"""Total variation between the law and what `RandomTries.drawn_by` draws from uniform bits (equation 4)."""


@dataclass(frozen=True)
class RandomTries:
    """How many tries there are: at least one.

    `shape` is eta of equation 1, from 0 (cheapest, most uneven) on; 1 is the geometric law.
    """

    gamma: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.gamma < 1:
            raise InvalidInput("gamma", self.gamma, "must lie strictly between 0 and 1", "give the mean instead")
        if not 0 <= self.shape <= _LARGEST_SHAPE:
            raise InvalidInput("shape", self.shape, f"must be in [0, {_LARGEST_SHAPE:g}]", "give 0 or 1")

    @classmethod
    def with_mean(cls, mean: float, shape: float = 0.0) -> RandomTries:
        """The law with this mean number of tries."""
        if isinstance(mean, bool) or not 1 < mean <= _MOST_TRIES:
            rule = f"must be above 1 and at most {_MOST_TRIES:g}"
            raise InvalidInput("tries", mean, rule, "give the mean number of tries, such as 10")
        low, high = cls(math.exp(-60.0), shape), cls(1 - 1e-12, shape)
        for _ in range(200):  # the mean falls in gamma
            middle = cls(math.sqrt(low.gamma) * math.sqrt(high.gamma), shape)
            if middle.gamma in (low.gamma, high.gamma):
                break
            low, high = (middle, high) if middle.mean > mean else (low, middle)
        return low

    @property
    def mean(self) -> float:
        """E K of equation 1."""
        gamma, shape = self.gamma, self.shape
        if shape == 0:
            return (1 / gamma - 1) / -math.log(gamma)
        return shape * (1 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))

    def generating(self, x: float) -> float:
        """E x^K, for x in [0, 1]: what makes the published law of a best try out of the law of one."""
        left, gamma = 1 - (1 - self.gamma) * x, self.gamma
        if self.shape == 0:
            return math.log(left) / math.log(gamma)
        return float((left**-self.shape - 1) / (gamma**-self.shape - 1))

    def probability(self, tries: int) -> float:
        """P(K = tries)."""
        if self.shape == 0:
            return float((1 - self.gamma) ** tries / (tries * -math.log(self.gamma)))
        log_ways = math.lgamma(tries + self.shape) - math.lgamma(self.shape) - math.lgamma(tries + 1)
        return math.exp(log_ways + tries * math.log1p(-self.gamma)) / math.expm1(-self.shape * math.log(self.gamma))

    def drawn_by(self, bits: int) -> int:
        """The number of tries for 128 uniform bits, given as a whole number: the inverse of the distribution function.

        Guarantee: for uniform bits the law of the result is within `DRAW_ERROR` of equation 1 in total variation.
        """
        if not 0 <= bits < 1 << _BITS:
            raise InvalidInput("bits", bits, f"must have {_BITS} bits", "draw them again")
        with localcontext() as context:
            context.prec = _DIGITS
            gamma, shape = Decimal(self.gamma), Decimal(self.shape)
            left = 1 - gamma
            # P(K = 1), and P(K = k + 1) = P(K = k) (1 - gamma) (k + shape) / (k + 1)
            chance = left / -gamma.ln() if shape == 0 else shape * left / ((-shape * gamma.ln()).exp() - 1)
            rest, tries = 1 - Decimal(bits) / (1 << _BITS), 1
            rest -= chance
            while rest > 0 and chance > 0:
                chance *= left * (tries + shape) / (tries + 1)
                rest -= chance
                tries += 1
        return tries

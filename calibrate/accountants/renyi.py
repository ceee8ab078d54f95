"""The Renyi accountant: adds Renyi divergences order by order, converts once at the end.

Looser than a privacy loss distribution, but its formulas share nothing with one: a second opinion that errs
on the private side. The conversion is that of Canonne, Kamath and Steinke (2020, Proposition 12).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibrate.accountants.dominating_pairs import (
    FixedSizeReplacePair,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
)
from calibrate.accountants.pair_counts import priced_pairs
from calibrate.accountants.renyi_divergences import poisson_gaussian_rdp, rdp_of_pair
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit
from calibrate.releases import Leaf
from calibrate.validation import open_unit

__all__ = ["RenyiAccountant", "RenyiCurve", "epsilon_at_order", "epsilon_from_rdp", "poisson_gaussian_rdp"]

DEFAULT_ORDERS: tuple[float, ...] = (
    *(1 + step / 10 for step in range(1, 100)),
    *(float(order) for order in range(11, 65)),
    *(80.0, 96.0, 128.0, 192.0, 256.0, 512.0, 1024.0),
)

_OUTWARD = 1e-10
"""Relative rounding allowance on each price; the formulas themselves lose less than 1e-12."""


def epsilon_at_order(rdp: float, order: float, delta: float) -> float:
    """rdp + ln((a-1)/a) - (ln delta + ln a)/(a-1): epsilon at one order, as printed in FedFDP's Theorem 2.

    Guarantee: an (a, rdp)-Renyi private release is (this, delta)-private (Canonne, Kamath and Steinke 2020,
    Proposition 12); it may be negative, which means epsilon 0.
    """
    if not order > 1:
        raise InvalidInput("order", order, "must be greater than 1", "give for example 2")
    open_unit("delta", delta)
    return rdp + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)


def epsilon_from_rdp(orders: Sequence[float], rdp: Sequence[float], delta: float) -> float:
    """The best epsilon over all orders, never below 0."""
    if len(orders) != len(rdp) or not orders:
        raise InvalidInput(
            "orders", len(orders), "must match the Renyi values one to one", "give one value an order"
        )
    return max(0.0, min(epsilon_at_order(value, a, delta) for a, value in zip(orders, rdp, strict=True)))


@dataclass(frozen=True)
class RenyiCurve:
    """Upper bounds on the Renyi divergence, one for each order of the accountant."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class RenyiAccountant:
    """Prices every pair of the support table by its Renyi divergence; gives the upper side only.

    Guarantee: Renyi divergences of adaptively composed releases add (Mironov 2017, Proposition 1); see
    docs/theorems/accountants.md, "renyi", for each pair. No lower bound is claimed: lower is 0.
    """

    orders: tuple[float, ...] = DEFAULT_ORDERS
    name = "renyi"

    def __post_init__(self) -> None:
        if not self.orders or min(self.orders) <= 1 or not all(map(math.isfinite, self.orders)):
            raise InvalidInput(
                "orders", self.orders, "must be finite and greater than 1", "give for example 2 .. 64"
            )

    def price(self, leaf: Leaf, unit: PrivacyUnit) -> RenyiCurve:
        pairs = priced_pairs(self.name, leaf, unit, _SUPPORTED)
        total = np.sum([rdp_of_pair(pair, self.orders) for pair in pairs], axis=0)
        return RenyiCurve(tuple((total * (1 + _OUTWARD)).tolist()))

    def self_composed(self, cost: RenyiCurve, times: int) -> RenyiCurve:
        return RenyiCurve(tuple(value * times for value in cost.values))

    def composed(self, first: RenyiCurve, second: RenyiCurve) -> RenyiCurve:
        return RenyiCurve(tuple(a + b for a, b in zip(first.values, second.values, strict=True)))

    def epsilon(self, cost: RenyiCurve, delta: float) -> EpsilonInterval:
        if not any(cost.values):  # nothing was published: the conversion would still charge its logarithms
            return EpsilonInterval(0.0, 0.0)
        return EpsilonInterval(0.0, epsilon_from_rdp(self.orders, cost.values, delta) * (1 + _OUTWARD))


_SUPPORTED = (
    GaussianPair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
    FixedSizeReplacePair,
    MixedGaussianPair,
    LaplacePair,
    RandomizedResponsePair,
)

"""The moments accountant of Abadi et al. (2016), as printed: log moments up to order 32, tail bound at the end.

Kept because published budgets were computed with it. It covers what that paper covers: Gaussian releases of a
full or a secret Poisson batch under add-remove. Both directions are integrated numerically, as in the paper;
the binomial sum of the Renyi accountant plays no part here, so the two check each other (equation A6 of
docs/theorems/accountants.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibrate.accountants.opinions.renyi import log_mixture_moment
from calibrate.accountants.pairs import DominatingPair, Free, GaussianPair, SubsampledGaussianPair, Unbounded
from calibrate.accountants.support import priced_pairs
from calibrate.errors import NotCertified
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit
from calibrate.releases import Leaf

LARGEST_MOMENT = 32
"""The paper: "it suffices to compute alpha(lambda) for lambda <= 32"."""

_OUTWARD = 1e-10


@dataclass(frozen=True)
class LogMoments:
    """alpha(lambda) for lambda = 1 .. LARGEST_MOMENT, each rounded up."""

    values: tuple[float, ...]


class MomentsAccountant:
    """Upper bounds by log moments; no lower bound is claimed, so lower is 0.

    Guarantee: log moments of adaptively composed releases add, and epsilon = min over lambda of
    (alpha(lambda) + ln(1/delta)) / lambda (Abadi et al. 2016, Theorem 2; record, add-remove).
    """

    name = "moments"

    def price(self, leaf: Leaf, unit: PrivacyUnit) -> LogMoments:
        total = LogMoments((0.0,) * LARGEST_MOMENT)
        for pair in priced_pairs(self.name, leaf, unit, (GaussianPair, SubsampledGaussianPair)):
            total = self.compose(total, _log_moments(pair))
        return total

    def self_compose(self, cost: LogMoments, times: int) -> LogMoments:
        return LogMoments(tuple(value * times for value in cost.values))

    def compose(self, first: LogMoments, second: LogMoments) -> LogMoments:
        return LogMoments(tuple(a + b for a, b in zip(first.values, second.values, strict=True)))

    def epsilon(self, cost: LogMoments, delta: float) -> EpsilonInterval:
        if not any(cost.values):
            return EpsilonInterval(0.0, 0.0)
        bounds = ((moment - math.log(delta)) / order for order, moment in enumerate(cost.values, start=1))
        return EpsilonInterval(0.0, min(bounds) * (1 + _OUTWARD))


def _log_moments(pair: DominatingPair) -> LogMoments:
    return LogMoments(tuple(_log_moment(pair, order) * (1 + _OUTWARD) for order in range(1, LARGEST_MOMENT + 1)))


def _log_moment(pair: DominatingPair, order: int) -> float:
    """The larger of log E_P[(P/Q)^lambda] and log E_Q[(Q/P)^lambda]."""
    match pair:
        case GaussianPair(mu):
            return order * (order + 1) * mu**2 / 2
        case SubsampledGaussianPair(rate, z):
            # E_P[(P/Q)^l] = int P^(l+1) Q^(-l); the mirror image is int P^(-l) Q^(l+1).
            return max(
                log_mixture_moment(rate, z, 1.0, 0.0, order + 1.0), log_mixture_moment(rate, z, 1.0, 0.0, -float(order))
            )
        case Unbounded():
            return math.inf
        case Free():
            return 0.0
        case _:
            raise NotCertified(f"the moments accountant has no formula for {pair!r}")

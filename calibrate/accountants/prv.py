"""prv-accountant (Gopi, Lee and Wutschitz 2021) as a third opinion, with both directions of a sampled Gaussian.

That package knows only the direction in which a record is removed; the mirror image is added here as a privacy
random variable of its own, and the larger epsilon of the two counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from scipy.special import ndtr

from calibrate.accountants.pairs import DominatingPair, GaussianPair, SubsampledGaussianPair
from calibrate.accountants.support import CountingAccountant, PairCounts
from calibrate.arrays import Floats
from calibrate.errors import NotCertified, positive
from calibrate.privacy_unit import EpsilonInterval

_DELTA_ERROR = 1e-3
"""Allowed error of delta, as a share of delta; the authors' own suggestion."""


class _Direction(Enum):
    REMOVE = "remove"
    ADD = "add"


@dataclass(frozen=True)
class PrvAccountant(CountingAccountant):
    """Two-sided accounting of Gaussian releases of full or secret Poisson batches (record, add-remove).

    Guarantee: |epsilon error| <= `epsilon_error` and delta error <= delta / 1000 as proved by Gopi, Lee and
    Wutschitz (2021, Theorem 5.5) for exact arithmetic; the package's floating-point error is not bounded, so
    this accountant is for comparison and no promise is issued from it.
    """

    epsilon_error: float = 0.01
    name = "prv"
    supported = (GaussianPair, SubsampledGaussianPair)

    def __post_init__(self) -> None:
        positive("epsilon error", self.epsilon_error)

    def _interval(self, cost: PairCounts, delta: float) -> EpsilonInterval:
        one_sided = all(isinstance(pair, GaussianPair) for pair, _ in cost.counts)
        directions = (_Direction.REMOVE,) if one_sided else tuple(_Direction)
        intervals = [self._one_direction(cost, delta, direction) for direction in directions]
        return EpsilonInterval(max(i.lower for i in intervals), max(i.upper for i in intervals))

    def _one_direction(self, cost: PairCounts, delta: float, direction: _Direction) -> EpsilonInterval:
        from prv_accountant import PRVAccountant

        counts = [times for _, times in cost.counts]
        try:
            accountant = PRVAccountant(
                prvs=[_random_variable(pair, direction) for pair, _ in cost.counts],
                max_self_compositions=counts,
                eps_error=self.epsilon_error,
                delta_error=_DELTA_ERROR * delta,
            )
            lower, _, upper = accountant.compute_epsilon(delta, counts)
        except (RuntimeError, ValueError, AssertionError) as problem:
            raise NotCertified(f"prv-accountant gave no answer at delta = {delta}: {problem}") from problem
        if not math.isfinite(upper):
            raise NotCertified(f"prv-accountant gave epsilon = {upper} at delta = {delta}")
        return EpsilonInterval(max(0.0, lower), max(0.0, upper))


def _random_variable(pair: DominatingPair, direction: _Direction) -> Any:
    from prv_accountant import privacy_random_variables as prvs

    match pair:
        case GaussianPair(mu):
            return prvs.GaussianMechanism(noise_multiplier=1 / mu)
        case SubsampledGaussianPair(rate, z):
            removed = prvs.PoissonSubsampledGaussianMechanism(rate, z)
            return removed if direction is _Direction.REMOVE else _addition_variable(rate, z, removed)
        case _:
            raise NotCertified(f"the prv accountant has no random variable for {pair!r}")


def _addition_variable(rate: float, z: float, removed: Any) -> Any:
    """The loss -log(1 - q + q exp((2x - 1)/(2 z^2))) under x ~ N(0, z^2)."""
    from prv_accountant.privacy_random_variables import PrivacyRandomVariable

    class AddedToPoissonBatch(PrivacyRandomVariable):  # type: ignore[misc]
        def cdf(self, t: Any) -> Floats:
            above = np.maximum(-np.asarray(t, dtype=float) - math.log1p(-rate), 0.0)
            with np.errstate(divide="ignore"):
                log_ratio = above + np.log(-np.expm1(-above)) + math.log1p(-rate) - math.log(rate)
            return np.asarray(ndtr(-(0.5 / z + z * log_ratio)))

        def rdp(self, alpha: float) -> float:
            """The other direction's divergence, which is never smaller; it only sizes the grid."""
            return float(removed.rdp(alpha))

    return AddedToPoissonBatch()

"""Loss laws of Gaussian releases on secret batches: Poisson under both relations, fixed size under replace-one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import erf

from calibrate.accountants.losses.law import (
    DEVIATIONS_COVERED,
    LARGEST_LOSS,
    Atom,
    Buckets,
    Nodes,
    PrivacyLossLaw,
    exponent_of_mixed_ratio,
    log_mixed_ratio,
    log_normal_density,
    mixture_buckets,
    normal_reach,
    trapezoid,
)
from calibrate.arrays import Floats

_LARGE = 40.0
"""Above this sinh(x) is exp(x) / 2 in double precision."""

# The two directions of a Poisson-subsampled Gaussian under add-remove (equation 3 of the proofs).
#
# With z the noise multiplier, r(x) = 1 - q + q exp((2x - 1) / (2 z^2)) is the likelihood ratio of the mixture
# M = (1-q) N(0, z^2) + q N(1, z^2) to N(0, z^2). Removing a unit compares M with N(0, z^2): the loss is
# log r(x). Adding one compares N(0, z^2) with M: the loss is -log r(x), written below in the mirrored
# variable y = -x so that it increases.


@dataclass(frozen=True)
class SubsampledRemoval(PrivacyLossLaw):
    """P = (1-q) N(0, z^2) + q N(1, z^2), Q = N(0, z^2), with 0 < q < 1."""

    rate: float
    noise_multiplier: float

    def loss(self, x: Floats) -> Floats:
        return log_mixed_ratio((2 * x - 1) / (2 * self.noise_multiplier**2), self.rate)

    def position(self, loss: Floats) -> Floats:
        """The x at which the loss takes the given values; -infinity at and below its infimum."""
        return 0.5 + self.noise_multiplier**2 * exponent_of_mixed_ratio(loss, self.rate)

    def span(self, log_mass: float) -> tuple[float, float]:
        reach = normal_reach(log_mass) * self.noise_multiplier
        low, high = self.loss(np.array([-reach, 1 + reach]))
        return float(low), min(LARGEST_LOSS, float(high))

    def buckets(self, edges: Floats) -> Buckets:
        q = self.rate
        return mixture_buckets(self.position(edges), {0.0: 1 - q, 1.0: q}, {0.0: 1.0}, self.noise_multiplier)

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        z = self.noise_multiplier
        x, spacing = trapezoid(1 + largest_tilt, z, _last(self, largest_loss))
        losses = self.loss(x)
        return Nodes(log_normal_density(x, z) + losses + math.log(spacing), losses)


@dataclass(frozen=True)
class SubsampledAddition(PrivacyLossLaw):
    """P = N(0, z^2), Q = (1-q) N(0, z^2) + q N(-1, z^2) (mirrored), with 0 < q < 1; bounded above."""

    rate: float
    noise_multiplier: float

    @property
    def largest(self) -> float:
        return -math.log1p(-self.rate)

    def loss(self, y: Floats) -> Floats:
        return -log_mixed_ratio(-(2 * y + 1) / (2 * self.noise_multiplier**2), self.rate)

    def position(self, loss: Floats) -> Floats:
        """The y at which the loss takes the given values; infinity at and above its supremum."""
        return -0.5 - self.noise_multiplier**2 * exponent_of_mixed_ratio(-loss, self.rate)

    def span(self, log_mass: float) -> tuple[float, float]:
        reach = normal_reach(log_mass) * self.noise_multiplier
        low, high = self.loss(np.array([-reach, reach]))
        return max(-LARGEST_LOSS, float(low)), float(high)

    def buckets(self, edges: Floats) -> Buckets:
        q = self.rate
        return mixture_buckets(self.position(edges), {0.0: 1.0}, {0.0: 1 - q, -1.0: q}, self.noise_multiplier)

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        # exp(tilt * loss) moves the mode to y = tilt * (posterior of taking part), which is below
        # tilt * q / (1-q) * exp(-(y + 1/2) / z^2): then y exp(y / z^2) < moved and y < z^2 log(1 + moved / z^2).
        z, q = self.noise_multiplier, self.rate
        moved = largest_tilt * q / (1 - q) * math.exp(-0.5 / z**2)
        y, spacing = trapezoid(min(largest_tilt * q, z * z * math.log1p(moved / z**2)), z)
        return Nodes(log_normal_density(y, z) + math.log(spacing), self.loss(y))


# A Poisson-subsampled Gaussian under replace-one: the unit's vector turns into its opposite (equation 4).
#
# P = (1-q) N(0, z^2) + q N(1, z^2), Q = (1-q) N(0, z^2) + q N(-1, z^2). Reflecting x exchanges P and Q, so one
# direction is enough. The loss is log r(x) - log r(-x) with r of the subsampled Gaussian. Solving the quadratic
# equation exp(loss) r(-x) = r(x) for exp(x / z^2) gives
#
#     x = z^2 (loss/2 + asinh((1-q)/q * exp(1/(2 z^2)) * sinh(loss/2))),
#
# which has no cancellation.


@dataclass(frozen=True)
class SubsampledReplacement(PrivacyLossLaw):
    """P = (1-q) N(0, z^2) + q N(1, z^2), Q = (1-q) N(0, z^2) + q N(-1, z^2), with 0 < q < 1."""

    rate: float
    noise_multiplier: float

    def _log_ratio(self, x: Floats) -> Floats:
        return log_mixed_ratio((2 * x - 1) / (2 * self.noise_multiplier**2), self.rate)

    def loss(self, x: Floats) -> Floats:
        return self._log_ratio(x) - self._log_ratio(-x)

    def position(self, loss: Floats) -> Floats:
        """The x at which the loss takes the given values."""
        log_factor = math.log1p(-self.rate) - math.log(self.rate) + 0.5 / self.noise_multiplier**2
        size = np.abs(loss) / 2
        with np.errstate(divide="ignore", over="ignore"):
            log_sinh = np.where(size < _LARGE, np.log(np.sinh(np.minimum(size, _LARGE))), size - math.log(2))
            log_argument = log_factor + log_sinh
            moderate = np.arcsinh(np.exp(np.minimum(log_argument, 300.0)))
        far = log_argument + math.log(2)  # asinh(s) = log(2 s) up to s^-2 / 4
        steps = size + np.where(log_argument <= 300.0, moderate, far)
        return self.noise_multiplier**2 * np.sign(loss) * steps

    def span(self, log_mass: float) -> tuple[float, float]:
        reach = normal_reach(log_mass) * self.noise_multiplier
        low, high = self.loss(np.array([-reach, 1 + reach]))
        return max(-LARGEST_LOSS, float(low)), min(LARGEST_LOSS, float(high))

    def buckets(self, edges: Floats) -> Buckets:
        q = self.rate
        return mixture_buckets(self.position(edges), {0.0: 1 - q, 1.0: q}, {0.0: 1 - q, -1.0: q}, self.noise_multiplier)

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        # The slope of the loss is at most (1 + q) / z^2 for x >= 0, which bounds how far a tilt moves the mode.
        z = self.noise_multiplier
        x, spacing = trapezoid(1 + largest_tilt * (1 + self.rate), z, _last(self, largest_loss))
        losses = self.loss(x)
        return Nodes(log_normal_density(x, z) + self._log_ratio(x) + math.log(spacing), losses)


# Fixed-size batches under replace-one: the pointwise larger of two profiles, as one symmetric loss law
# (equation 6).
#
# Let R be the removal pair ((1-q) N(0, z^2) + q N(1, z^2), N(0, z^2)) and A its mirror image. For e >= 0 the
# profile of R is the larger one, for e < 0 that of A. The larger curve is the profile of a pair of its own:
#
# * its positive losses are those of R (x > 1/2 under the mixture),
# * its negative losses are those of A (x > 1/2 under N(0, z^2), loss -log r(x)),
# * what is missing to total mass one sits at loss 0: (1-q) (2 Phi(1/(2z)) - 1), under P and Q alike.
#
# Composing this law bounds every replace-one composition from above (docs/theorems/certified-accountant.md).

_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(10)


@dataclass(frozen=True)
class LargerOfBothDirections(PrivacyLossLaw):
    """The symmetric law whose profile is the pointwise maximum of a removal pair's and its mirror's."""

    rate: float
    noise_multiplier: float

    @property
    def _positive(self) -> SubsampledRemoval:
        return SubsampledRemoval(self.rate, self.noise_multiplier)

    @property
    def _negative(self) -> SubsampledAddition:
        return SubsampledAddition(self.rate, self.noise_multiplier)

    @property
    def atoms(self) -> tuple[Atom, ...]:
        half_distance = 1 / (2 * self.noise_multiplier)
        return (Atom(0.0, (1 - self.rate) * float(erf(half_distance / math.sqrt(2)))),)

    def span(self, log_mass: float) -> tuple[float, float]:
        return self._negative.span(log_mass)[0], self._positive.span(log_mass)[1]

    def buckets(self, edges: Floats) -> Buckets:
        right = _within(self._positive.buckets(np.maximum(edges, 0.0)), edges[1:] > 0)
        left = _within(self._negative.buckets(np.minimum(edges, 0.0)), edges[:-1] < 0)
        not_positive = float(self._positive.buckets(np.zeros(2)).below)
        return Buckets(
            p=left.p + right.p,
            q=left.q + right.q,
            p_error=left.p_error + right.p_error,
            q_error=left.q_error + right.q_error,
            below=left.below + (max(0.0, right.below - not_positive) + 1e-15 if edges[0] > 0 else 0.0),
            above=right.above if edges[-1] >= 0 else 1.0,
        )

    def nodes(self, largest_tilt: float, largest_loss: float = math.inf) -> Nodes:
        z = self.noise_multiplier
        last = max(_last(self._positive, largest_loss), 0.5) + z
        x, log_weights = _half_line(min(1 + largest_tilt + DEVIATIONS_COVERED * z, last), min(z, z * z))
        losses = self._positive.loss(x)
        log_null = log_normal_density(x, z) + log_weights
        return Nodes(
            log_weights=np.concatenate((log_null[::-1], log_null + losses)),
            losses=np.concatenate((-losses[::-1], losses)),
        )


def _last(law: SubsampledRemoval | SubsampledReplacement, largest_loss: float) -> float:
    """The x beyond which every loss exceeds `largest_loss`."""
    return float(law.position(np.array([largest_loss]))[0]) if largest_loss < math.inf else math.inf


def _within(buckets: Buckets, wanted: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Buckets:
    """Buckets that collapsed to a point carry neither mass nor error."""
    return replace(
        buckets,
        p=np.where(wanted, buckets.p, 0.0),
        q=np.where(wanted, buckets.q, 0.0),
        p_error=np.where(wanted, buckets.p_error, 0.0),
        q_error=np.where(wanted, buckets.q_error, 0.0),
    )


def _half_line(reach: float, panel: float) -> tuple[Floats, Floats]:
    """Gauss-Legendre panels from x = 1/2, where the loss is 0, to x = 1/2 + reach; points and log weights."""
    panels = math.ceil(reach / panel)
    width = reach / panels
    starts = 0.5 + width * np.arange(panels)
    x = (starts[:, None] + width * (1 + _POINTS) / 2).ravel()
    return x, np.tile(np.log(_WEIGHTS * width / 2), panels)

"""Privacy loss distributions that a pair dominates, on a grid: for lower bounds on epsilon.

dp-accounting's optimistic estimate rounds every loss down, which loses half a step per round. Here neighbouring
outcomes are *merged* instead, which is post-processing and so can only lose information: with p_i, q_i the P-
and Q-mass of the losses in [e_i, e_(i+1)], the share lambda_i of that bucket is merged downward at e_i and the
rest upward at e_(i+1). At e_i the merged outcome has loss at least e_i if

    lambda_i * x_i >= (1 - lambda_(i-1)) * y_(i-1),   x_i = p_i - q_i exp(e_i),   y_i = q_i exp(e_(i+1)) - p_i,

and lambda_i = max(w_i, w_(i+1)) with w_i = y_(i-1) / (x_i + y_(i-1)) always satisfies it. What is lost is of
second order in the step (docs/theorems/accountants.md, equation A3).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from scipy.special import ndtr

from calibrate.accountants.pairs import (
    DominatingPair,
    FixedSizeReplacePair,
    Free,
    GaussianPair,
    LaplacePair,
    MixedGaussianPair,
    RandomAllocationPair,
    RandomizedResponsePair,
    SubsampledGaussianPair,
    SubsampledReplacePair,
    Unbounded,
)
from calibrate.arrays import Floats
from calibrate.errors import NotCertified

_DEVIATIONS = 10.0
_NEGLIGIBLE = 1e-25
"""Components with less weight are left out, which is optimistic."""
_ON_GRID = 1e-9
"""An atom this close (in steps) to a grid point is put on it; the accountant's slack on delta covers it."""


@dataclass(frozen=True)
class _Buckets:
    """P- and Q-mass of the losses in [index, index + 1] * step, for index = first, first + 1, ..

    `on_grid` lists (index, P-mass) of atoms whose loss is a grid point already and needs no merging.
    """

    first: int
    p: Floats
    q: Floats
    on_grid: tuple[tuple[int, float], ...] = ()

    def mirrored(self, step: float) -> _Buckets:
        atoms = tuple((-index, mass * math.exp(-index * step)) for index, mass in self.on_grid)
        return _Buckets(-(self.first + len(self.p)), self.q[::-1], self.p[::-1], atoms)


def optimistic_loss(pair: DominatingPair, step: float) -> Any:
    """A dp-accounting PrivacyLossDistribution on multiples of `step` whose curve lies below the pair's.

    For `FixedSizeReplacePair` it is the direction that a real data set attains, and its mirror image.
    """
    match pair:
        case GaussianPair(mu):
            return _distribution(_gaussian_mixture(((1.0, mu),), step), step)
        case MixedGaussianPair(components):
            return _distribution(_gaussian_mixture(components, step), step)
        case SubsampledGaussianPair(rate, z) | FixedSizeReplacePair(rate, z):
            buckets = _sampled_gaussian(rate, z, step)
            merged, mirrored = _merge(buckets, step), _merge(buckets.mirrored(step), step)
            return privacy_loss_distribution.PrivacyLossDistribution(merged, mirrored)
        case SubsampledReplacePair(rate, z):
            return _distribution(_replaced_in_poisson_batch(rate, z, step), step)
        case LaplacePair(scale):
            return _distribution(_laplace(scale, step), step)
        case RandomizedResponsePair(epsilon, categories):
            return _distribution(_randomised_response(epsilon, categories, step), step)
        case RandomAllocationPair() | Free() | Unbounded():
            raise NotCertified(f"{pair!r} has no privacy loss distribution on a grid")
        case _:
            assert_never(pair)


def _distribution(buckets: _Buckets, step: float) -> Any:
    return privacy_loss_distribution.PrivacyLossDistribution(_merge(buckets, step))


def _merge(buckets: _Buckets, step: float) -> Any:
    edges = step * np.arange(buckets.first, buckets.first + len(buckets.p) + 1)
    p, q = buckets.p, buckets.q
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.maximum(p - q * np.exp(edges[:-1]), 0.0)
        y = np.maximum(q * np.exp(edges[1:]) - p, 0.0)
    # Losses so large that q underflows or exp overflows: x >= 0 and y <= p (exp(step) - 1) always hold.
    lost = (q == 0) | ~np.isfinite(x) | ~np.isfinite(y)
    x[lost], y[lost] = 0.0, p[lost] * math.expm1(step)
    # w belongs to the edges. The first bucket has no partner below (w = 0 asks nothing of it), the last none
    # above (w = 1 sends all of it down).
    w = np.zeros(len(edges))
    w[-1] = 1.0
    total = x[1:] + y[:-1]
    np.divide(y[:-1], total, out=w[1:-1], where=total > 0)
    down = np.maximum(w[:-1], w[1:])
    mass = np.zeros(len(edges))
    mass[:-1] += down * p
    mass[1:] += (1 - down) * p
    for index, atom in buckets.on_grid:
        mass[index - buckets.first] += atom
    return pld_pmf.DensePLDPmf(step, buckets.first, mass, 0.0, False)


def _grid(lowest: float, highest: float, step: float) -> tuple[int, Floats]:
    """The edges covering [lowest, highest] and the loss 0; what lies beyond is left out, which is optimistic."""
    first, last = min(-1, math.floor(lowest / step)), max(1, math.ceil(highest / step))
    return first, np.asarray(step * np.arange(first, last + 1), dtype=float)


def _normal_masses(cuts: Floats, mean: float, deviation: float) -> Floats:
    """Mass of N(mean, deviation^2) between increasing cuts, without cancellation in either tail."""
    u = (cuts - mean) / deviation
    return np.where(u[1:] <= 0, ndtr(u[1:]) - ndtr(u[:-1]), ndtr(-u[:-1]) - ndtr(-u[1:]))


def _gaussian_mixture(components: tuple[tuple[float, float], ...], step: float) -> _Buckets:
    kept = [(weight, mu) for weight, mu in components if weight > _NEGLIGIBLE]
    largest = max(mu**2 / 2 + _DEVIATIONS * mu for _, mu in kept)
    first, edges = _grid(-largest, largest, step)
    p, q, at_zero = np.zeros(len(edges) - 1), np.zeros(len(edges) - 1), 0.0
    for weight, mu in kept:
        if mu == 0:
            at_zero += weight
        else:
            cuts = edges / mu + mu / 2
            p += weight * _normal_masses(cuts, mu, 1.0)
            q += weight * _normal_masses(cuts, 0.0, 1.0)
    return _Buckets(first, p, q, ((0, at_zero),))


def _sampled_gaussian(rate: float, z: float, step: float) -> _Buckets:
    """((1-q) N(0, z^2) + q N(1, z^2), N(0, z^2)): the loss log(1 - q + q exp((2x - 1)/(2 z^2))) grows with x."""

    def loss(x: float) -> float:
        return float(np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * z * z)))

    first, edges = _grid(loss(-_DEVIATIONS * z), loss(1 + _DEVIATIONS * z), step)
    above = np.maximum(edges - math.log1p(-rate), 0.0)
    with np.errstate(divide="ignore"):
        # exp(e) = 1 - q + q t  <=>  log t = log(1-q) - log q + log(expm1(e - log(1-q)))
        log_ratio = above + np.log(-np.expm1(-above)) + math.log1p(-rate) - math.log(rate)
    cuts = 0.5 + z * z * log_ratio
    q = _normal_masses(cuts, 0.0, z)
    return _Buckets(first, (1 - rate) * q + rate * _normal_masses(cuts, 1.0, z), q)


def _replaced_in_poisson_batch(rate: float, z: float, step: float) -> _Buckets:
    """((1-q) N(0) + q N(1), (1-q) N(0) + q N(-1)) at deviation z; x(e) = z^2 (asinh(c sinh(e/2)) + e/2)."""
    log_c = 1 / (2 * z * z) + math.log1p(-rate) - math.log(rate)
    reach = 1 + _DEVIATIONS * z
    here, there = math.log1p(-rate), math.log(rate)
    largest = float(
        np.logaddexp(here, there + (2 * reach - 1) / (2 * z * z))
        - np.logaddexp(here, there + (-2 * reach - 1) / (2 * z * z))
    )
    first, edges = _grid(-largest, largest, step)
    half = np.abs(edges) / 2
    with np.errstate(divide="ignore"):
        log_argument = log_c + half + np.log(-np.expm1(-2 * half) / 2)
    # asinh(exp(t)) = t + log(1 + sqrt(1 + exp(-2t))) for t >= 0, and plainly below.
    high = np.maximum(log_argument, 0.0)
    asinh = np.where(
        log_argument > 0,
        high + np.log1p(np.sqrt(1 + np.exp(-2 * high))),
        np.arcsinh(np.exp(np.minimum(log_argument, 0.0))),
    )
    cuts = z * z * np.sign(edges) * (asinh + half)
    middle = (1 - rate) * _normal_masses(cuts, 0.0, z)
    p = middle + rate * _normal_masses(cuts, 1.0, z)
    return _Buckets(first, p, middle + rate * _normal_masses(cuts, -1.0, z))


def _laplace(scale: float, step: float) -> _Buckets:
    """Loss (2x - 1)/b between -1/b and 1/b, with half of P at the top and half of Q at the bottom."""
    top = 1 / scale
    first, edges = _grid(-top, top, step)
    inside = np.clip(edges, -top, top)
    p = 0.5 * math.exp(-top / 2) * np.diff(np.exp(inside / 2))
    q = 0.5 * math.exp(-top / 2) * -np.diff(np.exp(-inside / 2))
    return _with_atoms(_Buckets(first, p, q), ((top, 0.5), (-top, 0.5 * math.exp(-top))), step)


def _randomised_response(epsilon: float, categories: int, step: float) -> _Buckets:
    first, edges = _grid(-epsilon, epsilon, step)
    nothing = np.zeros(len(edges) - 1)
    keep = 1 / (1 + (categories - 1) * math.exp(-epsilon))
    other = keep * math.exp(-epsilon)
    atoms = ((epsilon, keep), (-epsilon, other), (0.0, (categories - 2) * other))
    return _with_atoms(_Buckets(first, nothing, nothing.copy()), atoms, step)


def _with_atoms(buckets: _Buckets, atoms: tuple[tuple[float, float], ...], step: float) -> _Buckets:
    """Puts atoms (loss, P-mass) on their grid point, or into the bucket around them."""
    p, q, on_grid = buckets.p.copy(), buckets.q.copy(), list(buckets.on_grid)
    for loss, mass in atoms:
        nearest = round(loss / step)
        if abs(loss / step - nearest) < _ON_GRID:
            on_grid.append((nearest, mass))
        else:
            index = math.floor(loss / step) - buckets.first
            p[index] += mass
            q[index] += mass * math.exp(-loss)
    return _Buckets(buckets.first, p, q, tuple(on_grid))

"""Composing lattice laws and reading delta off, with every error term counted.

The laws are tilted (mass * exp(c * loss), normalised), so that the interesting losses near epsilon are likely,
and their Fourier transforms on Z/N are raised to the counts. Delta is then a *finite* sum over frequencies
(docs/theorems/certified-accountant.md, equations 10 and 11),

    delta(eps) = exp(log M - c eps) * (1/N) * sum_k G_k I_k(eps),

where M is the product of the normalisers, G_k the transform of the tilted composition and I_k the transform
of exp(-c u) (1 - exp(-u)), u > 0, a difference of two geometric series. Errors, all bounded here:

* wrap-around: the series in I_k run to infinity, so every loss above eps is counted at least once with its
  own weight (upper side: nothing to add). On the lower side, loss below eps that aliases into the window
  (eps, eps + period] adds at most exp(-c * period) to delta, loss above the window is bounded by Chernoff;
* frequencies with |G_k| < exp(-70) are left out and bounded by that;
* rounding: worst cases, see `_COEFFICIENT_ROUNDINGS`, `_STEP_ROUNDINGS` and section 4 of the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from calibrate.accountants.certified.grid import LatticeLaw
from calibrate.accountants.losses.law import UNIT_ROUNDOFF
from calibrate.arrays import Floats, Integers
from calibrate.errors import NotCertified

CountedLaws = Sequence[tuple[LatticeLaw, int]]

_NEGLIGIBLE_LOG = -70.0
_COEFFICIENT_ROUNDINGS = 32.0
"""Absolute error of one Fourier coefficient of a probability vector, in units of roundoff * log2(N): equation 17."""
_POWER_ROUNDINGS = 16.0
"""Absolute error of the logarithm of one coefficient, in units of roundoff."""
_STEP_ROUNDINGS, _EXPONENT_ROUNDINGS = 128.0, 8.0
"""Relative error of one step's tilted masses, in units of roundoff: as such, and per unit of the largest exponent."""
_TERM_ROUNDINGS = 64.0
"""Relative error of one term of the final sum, in units of roundoff."""
_FIXED_SLACK = 1e-10
"""Relative error of the final sum, on top of the above."""
_LARGEST_LENGTH = 1 << 23
"""Lattice points of one composition: about half a gibibyte."""
SURPLUS_TILTS = np.array([0.35, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0])
"""Further tilts, in inverse deviations, at which Chernoff's bound above the window is tried."""


@dataclass(frozen=True)
class Window:
    """Where the composition is read off: near `epsilon`, after tilting, where the deviation is as given.

    `period` is the least length of the window; it grows until the tilted mass above it, which wraps around
    and costs precision, is below `wrap`, or there are `most_points` points.
    """

    epsilon: float
    tilt: float
    deviation: float
    log_delta: float
    period: float
    wrap: float
    most_points: int = _LARGEST_LENGTH


@dataclass(frozen=True)
class LatticeComposition:
    """The tilted transform of a composition on Z/N, at the frequencies that matter.

    `wobble` bounds the relative rounding error of each G_k, `left_out` the sum of |G_k| over the other k.
    All losses are counted from `offset`, which only lower bounds use; it is rounded down.
    `surplus` holds further tilts and the growth of log M they bring, for Chernoff's bound above the window.
    """

    step: float
    length: int
    tilt: float
    log_normaliser: float
    shift: int
    frequency: Integers
    transform: NDArray[np.complex128]
    wobble: Floats
    left_out: float
    infinite: float
    relative_slack: float
    surplus: tuple[Floats, Floats]
    offset: float

    @property
    def period(self) -> float:
        return self.length * self.step

    def delta_upper(self, epsilon: float) -> float:
        """Delta at `epsilon`, rounded up; a certificate if the laws were pessimistic."""
        epsilon -= self.offset
        value, error = self._sum(epsilon)
        bound = (max(value, 0.0) + error) * (1 + self._slack(epsilon)) + math.exp(-self.tilt * self.period)
        return _safe_exp(self.log_normaliser - self.tilt * epsilon + math.log(bound)) + self.infinite

    def delta_lower(self, epsilon: float) -> float:
        """Delta at `epsilon`, rounded down; a certificate if the laws were optimistic."""
        epsilon -= self.offset
        value, error = self._sum(epsilon)
        wrapped = _above(self.surplus, epsilon + self.period) + math.exp(-self.tilt * self.period)
        bound = (value - error - wrapped) * (1 - self._slack(epsilon))
        if bound <= 0:
            return 0.0
        delta = _safe_exp(self.log_normaliser - self.tilt * epsilon + math.log(bound))
        return max(0.0, delta - math.exp(-self.tilt * self.period) * (1 + 1e-9))

    def wrapped_share(self, epsilon: float) -> float:
        """How much of the result at `epsilon` may be loss from above the window: a longer one would be tighter."""
        epsilon -= self.offset
        value, _ = self._sum(epsilon)
        return _above(self.surplus, epsilon + self.period) / max(value, 1e-300)

    def _slack(self, epsilon: float) -> float:
        """Relative rounding error of exp(log M - c eps) times the sum."""
        return self.relative_slack + 8 * UNIT_ROUNDOFF * (abs(self.log_normaliser) + self.tilt * abs(epsilon))

    def _sum(self, epsilon: float) -> tuple[float, float]:
        """(1/N) sum_k G_k I_k(eps) and a bound on its error (rounding and left-out frequencies).

        I_k is the difference of two geometric series with ratios a r and a exp(-h) r (a = exp(-c h), r the
        rotation). On a common denominator its numerator is exp(-c u) ((1 - exp(-u)) + a r (exp(-u) - exp(-h)))
        with u the distance from epsilon to the next lattice point: no cancellation, also far in the tail.
        """
        if not math.isfinite(epsilon / self.step):
            raise NotCertified("epsilon is too large to be certified; use more noise, or fewer rounds")
        first = math.floor(epsilon / self.step) + 1
        start = first * self.step - epsilon
        turns = self.frequency * ((first - self.shift) % self.length) % self.length
        rotation, over_denominator = self._series
        decay = math.exp(-self.tilt * self.step)
        rest = decay * (math.expm1(-start) - math.expm1(-self.step))
        numerator = math.exp(-self.tilt * start) * (-math.expm1(-start) + rest * rotation)
        terms = over_denominator * numerator * np.exp(self._turn * turns)
        value = float(terms.real.sum()) / self.length
        # The numerator's two positive parts may cancel at high frequencies: its error is that of their sum.
        largest = math.exp(-self.tilt * start) * (-math.expm1(-start) + rest)
        # |I_k| is at most I_0, because the summand is positive, and that at most 1 / (1 - a).
        left_out = self.left_out / -math.expm1(-self.tilt * self.step)
        return value, (largest * self._doubtful + left_out) / self.length

    @cached_property
    def _doubtful(self) -> float:
        """The sum of |G_k over the common denominator| times the relative error of the whole term."""
        return float(np.abs(self._series[1]) @ (self.wobble + _TERM_ROUNDINGS * UNIT_ROUNDOFF)) * (1 + 1e-9)

    @property
    def _turn(self) -> complex:
        return 2j * math.pi / self.length

    @cached_property
    def _series(self) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
        """What of G_k I_k does not depend on epsilon: the rotation, and G_k over the common denominator.

        Real data: each frequency but 0 and N/2 stands for itself and its conjugate.
        """
        turned = self._turn * self.frequency
        single = (self.frequency == 0) | (2 * self.frequency == self.length)
        weighted = self.transform * np.where(single, 1.0, 2.0)
        low = np.expm1(turned - self.tilt * self.step)
        high = np.expm1(turned - (self.tilt + 1) * self.step)
        return np.exp(turned), weighted / (low * high)


def compose(laws: CountedLaws, step: float, window: Window) -> LatticeComposition:
    """Compose lattice laws of the given step, tilted and windowed as asked."""
    c = window.tilt
    tilted = [_tilt(law, step, c) for law, _ in laws]
    log_m = sum(count * part for (_, part), (_, count) in zip(tilted, laws, strict=True))
    surplus = _surplus_tilts(laws, step, c, log_m, window.deviation)
    offset = math.fsum(count * law.offset for law, count in laws)
    length = _length(replace(window, epsilon=window.epsilon - offset), step, surplus)
    roundoff = _COEFFICIENT_ROUNDINGS * UNIT_ROUNDOFF * math.log2(length)
    spectra, shift = [], 0
    for (law, count), (weights, _) in zip(laws, tilted, strict=True):
        centre = round(float(weights @ law.index))
        shift += centre * count
        circle = np.bincount((law.index - centre) % length, weights=weights, minlength=length)
        spectra.append((fft.rfft(circle), count))
    kept, left_out = _frequencies_that_matter(spectra, roundoff)
    log_transform = np.zeros(len(kept), dtype=np.complex128)
    wobble = np.zeros(len(kept))
    for spectrum, count in spectra:
        values = spectrum[kept]
        with np.errstate(divide="ignore"):
            log_transform += count * np.log(values)
            doubt = np.minimum(roundoff / np.abs(values), 1.0)
            # |log(1 + e)| <= d / (1 - d) for |e| <= d < 1, and a power multiplies it.
            wobble += count * (doubt / np.maximum(1.0 - doubt, 1e-3) + _POWER_ROUNDINGS * UNIT_ROUNDOFF)
    infinite = sum(count * law.infinite for law, count in laws)
    return LatticeComposition(
        step=step,
        length=length,
        tilt=c,
        log_normaliser=log_m,
        shift=shift,
        frequency=kept,
        transform=np.exp(log_transform),
        wobble=np.expm1(np.minimum(wobble, 50.0)),
        left_out=left_out,
        infinite=infinite * (1 + 1e-6) if infinite < 1e-6 else min(1.0, infinite * math.exp(infinite)),
        relative_slack=_FIXED_SLACK + math.fsum(count * _step_error(law, step * c) for law, count in laws),
        surplus=surplus,
        offset=offset - 4 * UNIT_ROUNDOFF * abs(offset),
    )


def log_normaliser(laws: CountedLaws, step: float, tilt: float) -> float:
    """log E exp(tilt * total loss) of a composition of lattice laws."""
    return sum(count * (_tilt(law, step, tilt)[1] + tilt * law.offset) for law, count in laws)


def _tilt(law: LatticeLaw, step: float, tilt: float) -> tuple[Floats, float]:
    """Tilted probabilities of a lattice law and the logarithm of their normaliser."""
    exponent = tilt * step * law.index
    top = float(exponent[-1])
    top = top if top > 300.0 else 0.0  # no shift where none is needed: log M stays accurate
    weights = law.mass * np.exp(exponent - top)
    total = float(weights.sum())
    if not 0 < total < math.inf:
        raise NotCertified("a loss law lost all its mass on the lattice; ask for more precision")
    return weights / total, math.log(total) + top


def _step_error(law: LatticeLaw, tilt_per_step: float) -> float:
    """Relative error of the tilted masses of one step: exp() of an exponent that carries two roundings."""
    largest = tilt_per_step * max(abs(int(law.index[0])), abs(int(law.index[-1])))
    return UNIT_ROUNDOFF * (_STEP_ROUNDINGS + _EXPONENT_ROUNDINGS * largest)


def _surplus_tilts(
    laws: CountedLaws, step: float, tilt: float, log_m: float, deviation: float
) -> tuple[Floats, Floats]:
    tilts = SURPLUS_TILTS / deviation
    growth = np.array([sum(n * _tilt(law, step, tilt + extra)[1] for law, n in laws) for extra in tilts])
    return tilts, growth - log_m


def _above(surplus: tuple[Floats, Floats], loss: float) -> float:
    """Chernoff's bound on the tilted mass above `loss`."""
    tilts, growth = surplus
    return _safe_exp(min(0.0, float((growth - tilts * loss).min())))


def period_for(surplus: tuple[Floats, Floats], epsilon: float, shortest: float, deviation: float, wrap: float) -> float:
    """A window's length, from `shortest` to about 60 deviations, above which at most `wrap` of the tilted mass lies."""
    period = shortest
    while _above(surplus, epsilon + period) > wrap and period < 60 * deviation:
        period *= 1.2
    return period


def _length(window: Window, step: float, surplus: tuple[Floats, Floats]) -> int:
    """How many lattice points the window needs so that wrap-around is negligible on both sides."""
    longest = min(60 * window.deviation, window.most_points * step / 1.3)
    period = period_for(surplus, window.epsilon, window.period, longest / 60, window.wrap)
    if period / step > _LARGEST_LENGTH:
        raise NotCertified(
            f"the composition needs {period / step:.3g} lattice points, more than {_LARGEST_LENGTH}; "
            "ask for less precision"
        )
    return int(fft.next_fast_len(math.ceil(period / step) + 2, real=True))


def _frequencies_that_matter(
    spectra: Sequence[tuple[NDArray[np.complex128], int]], roundoff: float
) -> tuple[Integers, float]:
    """Frequencies whose composed transform may exceed exp(-70), and a bound on the sum over the others."""
    if len(spectra) == 1:
        spectrum, count = spectra[0]
        matter = _squares(spectrum) > math.exp(2 * _NEGLIGIBLE_LOG / count) - 3 * roundoff
    else:
        logs = np.zeros(len(spectra[0][0]))
        for spectrum, count in spectra:
            logs += 0.5 * count * np.log(_squares(spectrum) + 3 * roundoff)
        matter = logs > _NEGLIGIBLE_LOG
    kept = np.flatnonzero(matter)
    return kept, 2 * (len(matter) - len(kept)) * math.exp(_NEGLIGIBLE_LOG)


def _squares(spectrum: NDArray[np.complex128]) -> Floats:
    """Squared absolute values in one pass."""
    parts = spectrum.view(np.float64).reshape(-1, 2)
    return np.asarray(np.einsum("ij,ij->i", parts, parts), dtype=np.float64)


def _safe_exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf

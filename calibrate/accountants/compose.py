"""Compositions on a lattice: how fine it must be, and delta with every error term counted.

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

Putting the laws on the lattice changes log delta by about tilt^2 * steps * step^2 / 12. What it really changes is the
change of the cumulant function at the saddle, which `on_lattice` computes cheaply before anything is composed; if that
is more than was asked for, the lattice is refined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from calibrate.accountants.contour import Cumulants, LossTransform, narrow_tilt, shortest_period
from calibrate.accountants.directions import Composition, Side
from calibrate.accountants.grid import LatticeLaw, lattice_edges, optimistic, optimistic_with_merged_bulk, pessimistic
from calibrate.accountants.losses import UNIT_ROUNDOFF, Nodes, PrivacyLossLaw
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
_DENSE = 1 << 12
"""Number of lattice points around the mean are looked at to say how fast a transform decays."""
_LEAST_TURN = 1 - math.cos(math.pi / 4) - 1e-12
_LARGEST_DIRECT_WORK = 1 << 18
"""Frequencies times points up to which each Fourier coefficient is summed by itself instead of a fast transform."""
_ROW = 8
_FEW_TERMS = 1 << 11
"""With more terms than this the final sum is transformed back, so that every further epsilon is free."""
_VISIBLE = 1e-4
"""If rounding while transforming back could move delta by more than this share, the sum is taken by itself."""
_LARGEST_POWER = 1 << 12
"""Up to this count a power is taken by multiplying, beyond by logarithms."""
SURPLUS_TILTS = np.array([0.35, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0])
"""Further tilts, in inverse deviations, at which Chernoff's bound above the window is tried."""


@dataclass(frozen=True)
class Window:
    """Where the composition is evaluated: near `epsilon`, after tilting, where the deviation is as given.

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
        # Equation 10: exp(log M - c eps) times the sum of equation 11, plus the mass at infinity.
        return _safe_exp(self.log_normaliser - self.tilt * epsilon + math.log(bound)) + self.infinite

    def delta_lower(self, epsilon: float) -> float:
        """Delta at `epsilon`, rounded down; a certificate if the laws were optimistic."""
        epsilon -= self.offset
        value, error = self._sum(epsilon)
        # Losses above the window are counted in it (section 4), which a lower bound must take off again.
        wrapped = _above(self.surplus, epsilon + self.period) + math.exp(-self.tilt * self.period)
        bound = (value - error - wrapped) * (1 - self._slack(epsilon))
        if bound <= 0:
            return 0.0
        # Equation 10; what aliases into the window from below adds at most exp(-c * period).
        delta = _safe_exp(self.log_normaliser - self.tilt * epsilon + math.log(bound))
        return max(0.0, delta - math.exp(-self.tilt * self.period) * (1 + 1e-9))

    def wrapped_share(self, epsilon: float) -> float:
        """How much of the result at `epsilon` may be loss from above the window: a longer one would be tighter."""
        epsilon -= self.offset
        value, _ = self._sum(epsilon)
        return _above(self.surplus, epsilon + self.period) / max(value, 1e-300)

    def doubtful_share(self, epsilon: float) -> float:
        """How much of the result at `epsilon` may be rounding; infinity where nothing else is left of it."""
        value, error = self._sum(epsilon - self.offset)
        return error / value if value > 0 else math.inf

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
        decay = math.exp(-self.tilt * self.step)
        rest = decay * (math.expm1(-start) - math.expm1(-self.step))
        place = (first - self.shift) % self.length
        scale, within = math.exp(-self.tilt * start), -math.expm1(-start)
        here, beyond = self._at(place) if self._all_places is None else self._looked_up(place)
        value, doubtful = scale * (within * here + rest * beyond), self._doubtful
        surplus = (self._roundings - _TERM_ROUNDINGS) * UNIT_ROUNDOFF * self._absolute
        if scale * (within + rest) * surplus > _VISIBLE * self.length * value:  # then the sum itself is worth its time
            here, beyond = self._at(place)
            value, doubtful = scale * (within * here + rest * beyond), doubtful - surplus
        # The numerator's two positive parts may cancel at high frequencies: its error is that of their sum.
        largest = math.exp(-self.tilt * start) * (-math.expm1(-start) + rest)
        # |I_k| is at most I_0, because the summand is positive, and that at most 1 / (1 - a).
        left_out = self.left_out / -math.expm1(-self.tilt * self.step)
        return value, (largest * doubtful * (1 + 1e-9) + left_out) / self.length

    @cached_property
    def _doubtful(self) -> float:
        """The sum of |G_k over the common denominator| times the relative error of the whole term."""
        return float(np.abs(self._series[1]) @ (self.wobble + self._roundings * UNIT_ROUNDOFF)) * (1 + 1e-9)

    @cached_property
    def _absolute(self) -> float:
        """The sum of |G_k over the common denominator|."""
        return float(np.abs(self._series[1]).sum())

    @property
    def _roundings(self) -> float:
        """Those of a term of the sum, or of the transform back (equation 17)."""
        back = 0.0 if self._all_places is None else _COEFFICIENT_ROUNDINGS * math.log2(self.length)
        return _TERM_ROUNDINGS + back

    def _at(self, place: int) -> tuple[float, float]:
        """(1/N) sum_k G_k r^place over the common denominator, and the same one place further."""
        rotation, over_denominator = self._series
        terms = over_denominator * np.exp(2j * math.pi / self.length * (self.frequency * place % self.length))
        return float(terms.real.sum()) / self.length, float((terms * rotation).real.sum()) / self.length

    def _looked_up(self, place: int) -> tuple[float, float]:
        assert self._all_places is not None
        return float(self._all_places[place]), float(self._all_places[(place + 1) % self.length])

    @cached_property
    def _all_places(self) -> Floats | None:
        """What `_at` says, at all places by one transform back; None for few terms."""
        if len(self.frequency) < _FEW_TERMS:
            return None
        half = np.zeros(self.length // 2 + 1, dtype=np.complex128)
        half[self.frequency] = self._series[1] * np.where(self._single, 1.0, 0.5)
        return np.asarray(fft.irfft(half, self.length), dtype=np.float64)

    @property
    def _single(self) -> NDArray[np.bool_]:
        """Real data: each frequency but 0 and N/2 stands for itself and its conjugate."""
        return np.asarray((self.frequency == 0) | (2 * self.frequency == self.length))

    @cached_property
    def _series(self) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
        """What of G_k I_k does not depend on epsilon: the rotation r, and G_k over the common denominator.

        The denominator is (a r - 1) (a exp(-h) r - 1), by sine and cosine of half the angle and without cancellation.
        """
        half = math.pi / self.length * self.frequency
        sine, cosine = np.sin(half), np.cos(half)
        square, double = 2 * sine * sine, 2 * sine * cosine
        low, high = (
            _complex(math.expm1(-rate) * (1 - square) - square, math.exp(-rate) * double)
            for rate in (self.tilt * self.step, (self.tilt + 1) * self.step)
        )
        weighted = self.transform * np.where(self._single, 1.0, 2.0)
        return _complex(1 - square, double), weighted / (low * high)


def _complex(real: Floats, imaginary: Floats) -> NDArray[np.complex128]:
    number = np.empty(len(real), dtype=np.complex128)
    number.real, number.imag = real, imaginary
    return number


def compose(laws: CountedLaws, step: float, window: Window) -> LatticeComposition:
    """Compose lattice laws of the given step, tilted and windowed as asked."""
    c = window.tilt
    tilted = [_tilt(law, step, c) for law, _ in laws]
    log_m = sum(count * part for (_, part), (_, count) in zip(tilted, laws, strict=True))
    surplus = _surplus_tilts(laws, step, c, log_m, window.deviation)
    offset = math.fsum(count * law.offset for law, count in laws)
    length = _length(replace(window, epsilon=window.epsilon - offset), step, surplus)
    centred = [
        _Centred(law.index - (centre := round(float(weights @ law.index))), weights, centre, count)
        for (law, count), (weights, _) in zip(laws, tilted, strict=True)
    ]
    shift = sum(each.centre * each.count for each in centred)
    spectra, roundoff = _spectra(centred, length)
    kept, left_out = _frequencies_that_matter(spectra, roundoff, length)
    transform = np.ones(len(kept), dtype=np.complex128)
    wobble = np.zeros(len(kept))
    for spectrum, count in spectra:
        values = spectrum[kept]
        # G_k of equation 11: the product of the laws' transforms, each to its count.
        transform *= _power(values, count)
        with np.errstate(divide="ignore"):
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
        transform=transform,
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
    # mass * exp(c * loss), divided by its sum: the logarithms of these sums make log M of equation 10.
    weights = law.mass * np.exp(exponent - top)
    total = float(weights.sum())
    if not 0 < total < math.inf:
        raise NotCertified("nearly every loss is too large to be held; use more noise, or a larger delta")
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


@dataclass(frozen=True)
class _Centred:
    """A tilted law counted from its mean, which is `centre`, and how often it is composed."""

    index: Integers
    weights: Floats
    centre: int
    count: int


_Spectra = list[tuple[NDArray[np.complex128], int]]


def _spectra(laws: Sequence[_Centred], length: int) -> tuple[_Spectra, float]:
    """The laws' transforms, from frequency 0 to the last that may matter, and a bound on the rounding of each entry."""
    wanted = _frequencies_worth_computing(laws, length)
    points = max(len(law.index) for law in laws)
    if wanted is not None and wanted * points <= _LARGEST_DIRECT_WORK:
        spectra = [(_direct_transform(law, wanted, length), law.count) for law in laws]
        return spectra, (_TERM_ROUNDINGS + 2 * points) * UNIT_ROUNDOFF
    circles = (np.bincount(law.index % length, weights=law.weights, minlength=length) for law in laws)
    spectra = [(fft.rfft(circle), law.count) for circle, law in zip(circles, laws, strict=True)]
    return spectra, _COEFFICIENT_ROUNDINGS * UNIT_ROUNDOFF * math.log2(length)


def _direct_transform(law: _Centred, wanted: int, length: int) -> NDArray[np.complex128]:
    """The first `wanted` Fourier coefficients, each as the sum that it is."""
    high, low = np.arange(0, wanted, _ROW), np.arange(_ROW)
    turns = np.append(high, low)[:, None] * (law.index % length) % length
    rotation = np.exp(-2j * math.pi / length * turns)
    first, rest = rotation[: len(high)] * law.weights, rotation[len(high) :]
    return np.asarray((first @ rest.T).ravel()[:wanted])


def _frequencies_worth_computing(laws: Sequence[_Centred], length: int) -> int | None:
    """How many frequencies there are before all |G_k| are surely below exp(-70); None where this bound does not say.

    For masses a, b at a distance of d lattice points |a + b exp(i d t)| <= a + b - 2 min(a, b) (1 - |cos(d t/2)|).
    Summed over disjoint pairs with total W = sum of min(a, b), and raised to the count, |G(t)| is at most
    exp(-2 count W (1 - |cos(d t/2)|)) (equation 18). Distances 1, 2, 4, .. cover the angles pi/2 to pi, pi/4 to pi/2,
    .. one after another.
    """
    dense = [_dense(law) for law in laws]
    weight, distance = 0.0, 0
    for d in (1 << power for power in range(_DENSE.bit_length() - 1)):
        pairs = (np.minimum(*each.reshape(-1, 2, d).swapaxes(0, 1)).sum() for each in dense)
        total = float(sum(law.count * pair for law, pair in zip(laws, pairs, strict=True))) * (1 - 1e-9)
        if 2 * total * _LEAST_TURN < -_NEGLIGIBLE_LOG:
            break
        weight, distance = total, d
    if distance == 0:
        return None
    # 1 - cos(a) = 2 sin(a/2)^2, without cancellation for any number of rounds.
    angle = 4 / distance * math.asin(math.sqrt(-_NEGLIGIBLE_LOG / (4 * weight))) * (1 + 1e-9)
    return min(length // 2 + 1, math.ceil(angle * length / (2 * math.pi)) + 1)


def _dense(law: _Centred) -> Floats:
    """The masses near the mean, one entry per lattice point."""
    near = np.abs(law.index + 0.5) < _DENSE // 2
    dense = np.zeros(_DENSE)
    dense[law.index[near] + _DENSE // 2] = law.weights[near]
    return dense


def _frequencies_that_matter(spectra: _Spectra, roundoff: float, length: int) -> tuple[Integers, float]:
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
    return kept, 2 * (length // 2 + 1 - len(kept)) * math.exp(_NEGLIGIBLE_LOG)


def _power(values: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """Values to the power `count`, each right to `_POWER_ROUNDINGS` * count roundoffs."""
    if count > _LARGEST_POWER:
        with np.errstate(divide="ignore"):
            return np.asarray(np.exp(count * np.log(values)))
    power, square, rest = np.ones_like(values), values, count
    while rest:
        power = power * square if rest & 1 else power
        rest >>= 1
        square = square * square if rest else square
    return power


def _squares(spectrum: NDArray[np.complex128]) -> Floats:
    """Squared absolute values in one pass."""
    parts = spectrum.view(np.float64).reshape(-1, 2)
    return np.asarray(np.einsum("ij,ij->i", parts, parts), dtype=np.float64)


def _safe_exp(exponent: float) -> float:
    return math.exp(exponent) if exponent < 700 else math.inf


_MOST_POINTS, _MOST_POINTS_IF_PRECISE, _PRECISE = 1 << 19, 1 << 22, 1e-5
"""The lattice is not made finer than this many points in the window, less than a second of work; if log delta is asked
for more precisely than `_PRECISE`, which no default does, than a few seconds of work."""


def log_cut(log_delta: float) -> float:
    """Losses that together are rarer than this cannot matter at the given delta."""
    return log_delta - 18.0


@dataclass(frozen=True)
class LatticeSide:
    """A composition on the lattice and by how much that moved log delta at the saddle (never negative)."""

    composed: LatticeComposition
    side: Side
    moved: float

    def log_delta(self, epsilon: float) -> float:
        """log delta at `epsilon`, rounded to the side's own side."""
        if self.side is Side.UPPER:
            delta = self.composed.delta_upper(epsilon)
        else:
            delta = self.composed.delta_lower(epsilon)
        return math.log(delta) if delta > 0 else -math.inf


def on_lattice(
    transform: LossTransform,
    side: Side,
    saddle: Cumulants,
    epsilon: float,
    log_delta: float,
    precision: float,
    most_points: int | None = None,
) -> LatticeSide:
    """Compose on a lattice that moves log delta by about `precision`, if `most_points` are enough for that.

    `saddle` says how sensitive log delta is; `epsilon` and `log_delta` where the result will be evaluated.
    """
    at = narrow_tilt(transform, saddle, epsilon, log_delta)
    most_points = most_points or (_MOST_POINTS if precision >= _PRECISE else _MOST_POINTS_IF_PRECISE)
    deviation, wrap = max(math.sqrt(at.variance), 1 / at.tilt), 1e-6 if side is Side.UPPER else 1e-9
    window = Window(
        epsilon=epsilon,
        tilt=at.tilt,
        deviation=deviation,
        log_delta=log_delta,
        period=period_for(_surplus(transform, at, deviation), epsilon, shortest_period(at, log_delta), deviation, wrap),
        wrap=wrap,
        most_points=2 * most_points,
    )
    moved, step, laws = _fine_enough(transform.composition, side, saddle, window, precision, most_points)
    composed = compose(laws, step, window)
    while composed.wrapped_share(epsilon) > 0.03 and 2 * composed.length < most_points:
        window = replace(window, period=2 * composed.period)
        composed = compose(laws, step, window)
    return LatticeSide(composed, side, moved)


def _surplus(transform: LossTransform, at: Cumulants, deviation: float) -> tuple[Floats, Floats]:
    """Further tilts and the growth of log E exp(tilt L) they bring, by quadrature: how long a window must be."""
    tilts = SURPLUS_TILTS / deviation
    return tilts, np.array([each.value - at.value for each in transform.cumulants_at(at.tilt + tilts)])


def _fine_enough(
    composition: Composition, side: Side, saddle: Cumulants, window: Window, precision: float, most_points: int
) -> tuple[float, float, CountedLaws]:
    """By how much log delta moves, the step, and the laws on that lattice: the best of a few refinements."""
    c, coarsest = saddle.tilt, window.period / most_points
    # A lattice moves log delta by about c^2 h^2 / 12 per step (section 3), which is solved for h.
    step = min(math.sqrt(12 * precision / (1.1 * composition.steps)) / c, 0.05 * window.deviation)
    best, in_vain = None, 0
    while True:
        step = _align(composition, max(step, coarsest))
        laws, before = _lattice_laws(composition, side, step, saddle, window, precision)
        moved = abs(log_normaliser(laws, step, window.tilt) - before) * (c / window.tilt) ** 2
        # A finer lattice that barely helps may be an unlucky one; twice means that it is not the remedy.
        in_vain += best is not None and not moved < 0.5 * best[0]
        if best is None or moved < best[0]:
            best = (moved, step, laws)
        if moved <= 2 * precision or step <= 1.01 * coarsest or in_vain == 2:
            return best
        step /= min(4.0, max(1.5, math.sqrt(moved / precision)))


def _lattice_laws(
    composition: Composition, side: Side, step: float, saddle: Cumulants, window: Window, precision: float
) -> tuple[CountedLaws, float]:
    """Each law on the lattice, and log E exp(tilt L) of the laws before that, cut off at the same losses.

    What is cut off above stays far below delta even after all steps. A law that is moved by more than the precision
    from below is tried with its bulk merged into one atom as well.
    """
    put = pessimistic if side is Side.UPPER else optimistic
    laws, before = [], 0.0
    for law, count in composition.terms:
        low, high = law.span(log_cut(window.log_delta) - math.log(count))
        nodes = law.nodes(saddle.tilt, high)
        log_moment = _log_moment(law, nodes, window.tilt, high)
        # Below this, exp(tilt * loss - log_moment) is so small that even all the mass there would not show.
        unseen = (log_moment + 2 * math.log(window.tilt * step) - 32.0) / window.tilt
        # A law that is composed rarely may be put down coarsely: its error is not multiplied.
        narrowest = step * math.sqrt(composition.steps / (count * len(composition.terms)))
        span = (max(low, unseen), high)
        placed = put(law, lattice_edges(nodes, span, step, saddle.tilt, narrowest), step)
        if side is Side.LOWER and count * (log_moment - log_normaliser([(placed, 1)], step, window.tilt)) > precision:
            merged = optimistic_with_merged_bulk(law, nodes, (low, high), step, saddle.tilt, narrowest)
            candidates = [placed] if merged is None else [placed, merged]
            placed = max(candidates, key=lambda each: log_normaliser([(each, 1)], step, window.tilt))
        laws.append((placed, count))
        before += count * log_moment
    return laws, before


def _log_moment(law: PrivacyLossLaw, nodes: Nodes, tilt: float, largest: float) -> float:
    """log E exp(tilt L) over losses up to `largest`, by quadrature."""
    exponents = (nodes.log_weights + tilt * nodes.losses)[nodes.losses <= largest]
    atoms = [math.log(atom.mass) + tilt * atom.loss for atom in law.atoms if atom.mass > 0]
    exponents = np.append(exponents, atoms)
    top = float(exponents.max())
    return top + math.log(float(np.exp(exponents - top).sum()))


def _align(composition: Composition, step: float) -> float:
    """The nearest finer step that puts all atoms on the lattice, or at least those of the first law with any.

    It is rounded down so that the lattice point is not above the atom.
    """
    losses = [abs(atom.loss) for law, _ in composition.terms for atom in law.atoms if atom.loss != 0]
    if not losses:
        return step
    unit = _common_unit(losses)
    if unit < 2 * step:
        unit = max(losses[:2])
    return unit / math.ceil(unit / step) * (1 - 4e-16)


def _common_unit(losses: list[float]) -> float:
    """The largest number that all losses are multiples of, if they are decimal fractions; else 0."""
    fractions = [Fraction(loss).limit_denominator(10**6) for loss in losses]
    if any(abs(float(each) - loss) > 4e-16 * loss for each, loss in zip(fractions, losses, strict=True)):
        return 0.0
    denominator = math.lcm(*(each.denominator for each in fractions))
    return math.gcd(*(int(each * denominator) for each in fractions)) / denominator

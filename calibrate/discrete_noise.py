"""What it costs that published noise is discrete while accountants price continuous noise.

Proof: docs/theorems/discrete-noise.md. It compares the discrete mechanism with the continuous one rounded to
the grid, value by value; the latter is post-processing of what the accountant priced. The comparison does
not look at how the accountant arrived at its answer, so it holds for sampled batches, several releases of
one batch, adaptive rounds and every accountant.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import assert_never

from calibrate.errors import InvalidInput, count
from calibrate.privacy_unit import EpsilonDelta, NoiseKind

STEPS_PER_SCALE = 1 << 30
"""The noise's scale is at least this many grid steps, so a slack computed with it covers every release."""

MOST_NUMBERS = 1 << 24
"""How many numbers one publication has at most where nothing better is known: the slack counts each of them."""

_TAIL_BITS = 256
_TAIL_EXPONENT = Fraction(178)
"""More than 256 ln 2, so that the tail event of `profile_slack` has probability below 2^-256."""
_LARGEST_EPSILON = 500.0
_ROUND_DOWN = 1 - 2.0**-46
"""Covers the few rounded operations of `ProfileSlack.continuous`, each off by at most 2^-53."""


@dataclass(frozen=True)
class ProfileSlack:
    """If the continuous mechanism is (eps, delta)-DP, the discrete one is what `certified` says.

    Two laws of the transcript, D (discrete, published) and R (continuous, rounded to the grid), satisfy for
    every event S and every data set: D(S) <= exp(a) R(S) + exp(a) * mass and
    R(S) <= exp(b) D(S) + exp(b) * mass, with a + b = `epsilon`.
    """

    epsilon: float
    mass: float

    def __post_init__(self) -> None:
        for argument, value in (("epsilon", self.epsilon), ("mass", self.mass)):
            if not 0 <= value < math.inf:
                raise InvalidInput(argument, value, "must be finite and not negative", "report this as a bug")

    def certified(self, continuous: EpsilonDelta) -> EpsilonDelta:
        """The promise of the discrete mechanism.

        Guarantee: D(S) <= exp(eps + e) D'(S) + exp(e) (delta + (1 + exp(eps)) mass) for neighbouring data
        sets, by chaining the two inequalities above with the accountant's promise (docs/theorems/discrete-noise.md,
        "Combining", last display); the unit is the accountant's. Raises InvalidInput when delta would reach 1:
        then there is no promise left to make.
        """
        if continuous.epsilon > _LARGEST_EPSILON:
            raise InvalidInput("epsilon", continuous.epsilon, "promises nothing", "use more noise or fewer rounds")
        delta = continuous.delta + (1 + math.exp(continuous.epsilon)) * self.mass
        epsilon = continuous.epsilon
        if self.epsilon:
            epsilon = math.nextafter(epsilon + self.epsilon, math.inf)
        return EpsilonDelta(epsilon, _up(delta * math.exp(self.epsilon)))

    def continuous(self, promise: EpsilonDelta) -> EpsilonDelta:
        """What the continuous mechanism must satisfy so that the discrete one keeps the promise.

        Guarantee: `certified` of the result is at most `promise`. Raises InvalidInput where nothing is left.
        """
        if self == NO_SLACK:
            return promise
        epsilon = (promise.epsilon - self.epsilon) * _ROUND_DOWN
        delta = 0.0
        if 0 < epsilon < 700:
            kept_back = (1 + math.exp(promise.epsilon)) * self.mass
            delta = (promise.delta * math.exp(-self.epsilon) * _ROUND_DOWN - kept_back) * _ROUND_DOWN
        if not (epsilon > 0 and delta > 0):
            raise InvalidInput(
                "promise",
                (promise.epsilon, promise.delta),
                f"is used up by the slack of discrete noise ({self.epsilon:.3g}, {self.mass:.3g})",
                "publish fewer values in fewer rounds, or promise a larger delta",
            )
        return EpsilonDelta(epsilon, delta)

    def over_tries(self, mean: float, drawing: float) -> ProfileSlack:
        """The slack of the best of a random number of tries, `mean` on average, whose number is drawn up to `drawing`.

        Guarantee: D and R of one try are within total variation exp(epsilon) - 1 + exp(epsilon) mass; coupled try by
        try, the two searches differ with at most `mean` times that probability, plus the error of the draw
        (docs/theorems/composition.md#searches-and-groups, equation 5).
        """
        distance = math.expm1(self.epsilon) + math.exp(self.epsilon) * self.mass
        return ProfileSlack(0.0, _up(mean * distance + drawing))


NO_SLACK = ProfileSlack(0.0, 0.0)


def slack_of_noise(kind: NoiseKind, numbers: int, publications: int) -> ProfileSlack:
    """The slack of publishing this many noisy numbers this often on the engine's grid.

    Guarantee: Theorem 3 (Gaussian) and Theorem 5 (Laplace) of docs/theorems/discrete-noise.md; the grid has at least
    STEPS_PER_SCALE steps per noise scale.
    """
    if not numbers:
        return NO_SLACK
    match kind:
        case NoiseKind.GAUSSIAN:
            return profile_slack(STEPS_PER_SCALE, numbers, publications)
        case NoiseKind.LAPLACE:
            return laplace_distance_slack(STEPS_PER_SCALE, numbers, publications)
        case _:
            assert_never(kind)


def profile_slack(sigma_in_steps: Fraction | int, dimension: int, rounds: int) -> ProfileSlack:
    """Slack of `rounds` discrete Gaussian vectors of `dimension` values each: all of it in epsilon.

    Guarantee: Theorem 3 of docs/theorems/discrete-noise.md with N = dimension * rounds values:
    epsilon = N / (24 sigma^2) + N / (24 sigma^4) + (sqrt(N) (1 + 1 / (2 sigma)) + sqrt(2 t))^2 / (24 sigma^2)
    and mass = exp(-t) <= 2^-256. About N / (12 sigma^2) for large N. Needs sigma of at least one step.
    """
    sigma = _steps("sigma_in_steps", sigma_in_steps)
    values = _values(dimension, rounds)
    root = _root_up(Fraction(values)) * (1 + 1 / (2 * sigma)) + _root_up(2 * _TAIL_EXPONENT)  # rho / sigma
    epsilon = (values + Fraction(values) / sigma**2 + root**2) / (24 * sigma**2)  # e_1 of (1), then e_2
    return ProfileSlack(_float_up(epsilon), 2.0**-_TAIL_BITS)


def gaussian_distance_slack(sigma_in_steps: Fraction | int, dimension: int, rounds: int) -> ProfileSlack:
    """The same as `profile_slack` with all of the slack in delta: epsilon stays what it was.

    Guarantee: Theorem 2 of docs/theorems/discrete-noise.md: the two transcripts are within total variation
    N / (24 sigma^2).
    """
    sigma = _steps("sigma_in_steps", sigma_in_steps)
    return ProfileSlack(0.0, _float_up(_values(dimension, rounds) / (24 * sigma**2)))


def laplace_distance_slack(scale_in_steps: Fraction | int, dimension: int, rounds: int) -> ProfileSlack:
    """Slack of discrete Laplace vectors against an accountant that uses the whole Laplace profile.

    Guarantee: Theorem 5 of docs/theorems/discrete-noise.md: total variation at most N / (8 scale^2). Pure
    epsilon (L1 sensitivity over scale) needs no slack at all.
    """
    scale = _steps("scale_in_steps", scale_in_steps)
    return ProfileSlack(0.0, _float_up(_values(dimension, rounds) / (8 * scale**2)))


def combined(slacks: Iterable[ProfileSlack]) -> ProfileSlack:
    """The slack of several releases together: both parts add up ("Combining"), with every sum rounded up."""
    epsilon, mass = Fraction(0), Fraction(0)
    for slack in slacks:
        epsilon += Fraction(slack.epsilon)
        mass += Fraction(slack.mass)
    return ProfileSlack(_float_up(epsilon), _float_up(mass))


def _steps(argument: str, value: Fraction | int) -> Fraction:
    exact = Fraction(int(value.numerator), int(value.denominator))  # numpy integers would overflow
    if exact < 1:
        raise InvalidInput(
            argument, value, "must be at least one grid step for a bound to be proved", "use a finer grid"
        )
    return exact


def _values(dimension: int, rounds: int) -> int:
    return count("dimension", dimension) * count("rounds", rounds)


def _root_up(value: Fraction) -> Fraction:
    """A rational at least sqrt(value), within a relative 2^-32 for value >= 1."""
    scaled = math.isqrt(math.ceil(value * (1 << 64)))
    return Fraction(scaled + 1, 1 << 32)


def _float_up(value: Fraction) -> float:
    """A double at least `value`."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def _up(value: float) -> float:
    """A double above the true result of the few operations that gave `value`, each off by at most 2^-52."""
    return value * (1 + 2.0**-48)

"""What a promise keeps back because published noise is discrete while accountants price continuous noise.

The slack (docs/theorems/discrete-noise.md) is tiny, but a promise that is exactly as large as the price of
continuous noise would be false by it. So a budget is priced for a little less than what it promises, and the
difference is in the manifest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import assert_never

from calibrate.discrete_noise_slack import (
    STEPS_PER_SCALE,
    ProfileSlack,
    combined,
    laplace_distance_slack,
    profile_slack,
)
from calibrate.errors import InvalidInput
from calibrate.manifest.mechanism import (
    GaussianNoise,
    InTheClear,
    LaplaceNoise,
    NoiseSampler,
    RandomizedCategory,
)
from calibrate.privacy_unit import EpsilonDelta
from calibrate.releases import (
    Gaussian,
    InSequence,
    Laplace,
    NonPrivate,
    RandomizedResponse,
    Release,
    Repeated,
    Sampled,
    Together,
    scaled,
)

NO_SLACK = ProfileSlack(0.0, 0.0)
_ROUND_DOWN = 1 - 2.0**-46
"""Covers the few rounded operations of `continuous_target`, each off by at most 2^-53."""

_ROUNDING_OF_PRICES = 1e-11
"""Relative margin for accountants that reach the same price by different roads."""


def slack_of(
    releases: Iterable[GaussianNoise | LaplaceNoise | RandomizedCategory | InTheClear],
) -> ProfileSlack:
    """The slack of everything a document publishes with discrete noise, over all rounds.

    Guarantee: Theorems 3 and 5 of docs/theorems/discrete-noise.md, summed over the declared values and their
    publications; the engine's grid has at least STEPS_PER_SCALE steps per noise scale. Randomised response is
    discrete by nature and needs none; seeded research noise promises nothing to take it from.
    """
    return combined(_slack(release) for release in releases)


def continuous_target(promise: EpsilonDelta, slack: ProfileSlack) -> EpsilonDelta:
    """What the continuous mechanism must satisfy so that the discrete one keeps the promise.

    Guarantee: `slack.certified(result)` is at most `promise`. Raises InvalidInput where nothing is left.
    """
    if slack == NO_SLACK:
        return promise
    epsilon = (promise.epsilon - slack.epsilon) * _ROUND_DOWN
    delta = 0.0
    if 0 < epsilon < 700:
        kept_back = (1 + math.exp(promise.epsilon)) * slack.mass
        delta = (promise.delta * math.exp(-slack.epsilon) * _ROUND_DOWN - kept_back) * _ROUND_DOWN
    if not (epsilon > 0 and delta > 0):
        raise InvalidInput(
            "promise",
            (promise.epsilon, promise.delta),
            f"is used up by the slack of discrete noise ({slack.epsilon:.3g}, {slack.mass:.3g})",
            "declare the releases' shapes, publish fewer values, or promise a larger delta",
        )
    return EpsilonDelta(epsilon, delta)


def noise_margin(promise: EpsilonDelta, slack: ProfileSlack) -> float:
    """By which factor to raise noise that was solved for the whole promise, so that it also pays the slack.

    Epsilon falls at least in proportion to the noise, and giving up the share e of delta raises it by about e;
    the factor 8 leaves room. That it suffices is not taken on trust: the result is priced again.
    """
    if slack == NO_SLACK:
        return 1 + _ROUNDING_OF_PRICES
    share_of_epsilon = slack.epsilon / promise.epsilon
    share_of_delta = slack.epsilon + slack.mass * (1 + math.exp(promise.epsilon)) / promise.delta
    return 1 + 8 * (share_of_epsilon + share_of_delta) + _ROUNDING_OF_PRICES


def with_margin(release: Release, factor: float) -> Release:
    """The release with every noise raised by the factor, and every randomised response's epsilon lowered by it."""
    match release:
        case Repeated(inner, times):
            return Repeated(with_margin(inner, factor), times)
        case InSequence(parts):
            return InSequence(tuple(with_margin(part, factor) for part in parts))
        case RandomizedResponse(epsilon, categories):
            return RandomizedResponse(epsilon / factor, categories)
        case Gaussian() | Laplace() | Together() | Sampled() | NonPrivate():
            return scaled(release, factor)
        case _:
            assert_never(release)


def _slack(release: GaussianNoise | LaplaceNoise | RandomizedCategory | InTheClear) -> ProfileSlack:
    match release:
        case GaussianNoise() if release.sampler is NoiseSampler.DISCRETE_GRID and release.values_at_most:
            return profile_slack(STEPS_PER_SCALE, release.values_at_most, release.publications)
        case LaplaceNoise() if release.sampler is NoiseSampler.DISCRETE_GRID and release.values_at_most:
            return laplace_distance_slack(STEPS_PER_SCALE, release.values_at_most, release.publications)
        case _:
            return NO_SLACK

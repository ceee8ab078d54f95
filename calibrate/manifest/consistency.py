"""Whether the parts of a budget document tell the same story.

A document states its noise twice (per named release, and in the priced event), its sampling twice, and its
price three times. A signature under a document that contradicts itself would let each reader believe the
part that suits them, so every contradiction is named and the document refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, assert_never

from calibrate.discrete_noise import STEPS_PER_SCALE, ProfileSlack, combined, laplace_distance_slack, profile_slack
from calibrate.errors import InvalidInput
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    GaussianNoise,
    InTheClear,
    LaplaceNoise,
    NoiseSampler,
    NoiseSource,
    NoPrivacyPromised,
    PrivateGuarantee,
    RandomizedCategory,
)
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval
from calibrate.releases import (
    Gaussian,
    InSequence,
    Laplace,
    Leaf,
    NonPrivate,
    RandomizedResponse,
    Release,
    Repeated,
    Sampled,
    Together,
    multiplicities,
    scale_noise,
)
from calibrate.sampling import (
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    WithReplacement,
    rounds_of,
)

if TYPE_CHECKING:
    from calibrate.manifest.document import BudgetDocument


# What a promise keeps back because published noise is discrete while accountants price continuous noise.
#
# The slack (docs/theorems/discrete-noise.md) is tiny, but a promise that is exactly as large as the price of
# continuous noise would be false by it. So a budget is priced for a little less than what it promises, and the
# difference is in the manifest.

NO_SLACK = ProfileSlack(0.0, 0.0)
_ROUND_DOWN = 1 - 2.0**-46
"""Covers the few rounded operations of `continuous_target`, each off by at most 2^-53."""

_ROUNDING_OF_PRICES = 1e-11
"""Relative margin for accountants that reach the same price by different roads."""


def slack_of(releases: Iterable[GaussianNoise | LaplaceNoise | RandomizedCategory | InTheClear]) -> ProfileSlack:
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
            return scale_noise(release, factor)
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


_ROUNDING = 1e-9

Primitive = Gaussian | Laplace | RandomizedResponse | NonPrivate


def contradictions(document: BudgetDocument) -> tuple[str, ...]:
    """Every contradiction found, each in one clause; empty if the document is consistent."""
    return (
        *_names(document),
        *_noise_against_event(document),
        *_sampling_against_event(document),
        *_sizes_against_event(document),
        *_price(document),
        *_noise_source(document),
    )


def could_both_be_right(first: EpsilonInterval, second: EpsilonInterval) -> bool:
    """Whether two certified intervals overlap, up to rounding that an accountant bounds to first order only."""
    lower, upper = max(first.lower, second.lower), min(first.upper, second.upper)
    return lower * (1 - _ROUNDING) <= upper * (1 + _ROUNDING)


def _names(document: BudgetDocument) -> Iterator[str]:
    names = [declared.name for declared in document.releases]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"two releases are called {name}"
    for declared in document.releases:
        if declared.publications > document.rounds:
            yield f"{declared.name} is published {declared.publications} times in {document.rounds} rounds"


def _noise_against_event(document: BudgetDocument) -> Iterator[str]:
    """No release with other noise than priced, and none published more often than priced.

    Each priced value is a slot that holds as many publications as the event repeats it; releases are put
    into slots of exactly their noise, the most frequent first.
    """
    slots = [slot for leaf, times in _leaves(document) for slot in _slots(leaf, times)]
    left = [times for _, times in slots]
    for declared in sorted(document.releases, key=lambda release: -release.publications):
        wanted = _primitive(declared)
        fitting = [i for i, (priced, _) in enumerate(slots) if priced == wanted]
        if isinstance(declared, InTheClear):
            if not fitting:
                yield f"{declared.name} is published in the clear, but the priced event does not say so"
            continue
        roomy = [i for i in fitting if left[i] >= declared.publications]
        if roomy:
            left[roomy[0]] -= declared.publications
        else:
            yield (
                f"{declared.name} with {wanted} published {declared.publications} times"
                " is not covered by the priced event"
            )


def _sampling_against_event(document: BudgetDocument) -> Iterator[str]:
    declared = [declaration.scheme for declaration in document.sampling]
    priced = {leaf.sampling for leaf, _ in _leaves(document) if isinstance(leaf, Sampled)}
    if len(set(declared)) != len(declared):
        yield "one sampling is declared twice"
    for sampling in sorted(priced.symmetric_difference(declared), key=repr):
        yield f"{sampling} is {'priced but not declared' if sampling in priced else 'declared but not priced'}"


def _sizes_against_event(document: BudgetDocument) -> Iterator[str]:
    """Fewer units than priced mean a larger sampling rate, or more epochs in the same rounds: more privacy loss."""
    smallest = min(silo.size for silo in document.data.silos)
    for declaration in document.sampling:
        population = _population(declaration.scheme)
        if population is not None and population > smallest:
            yield f"a silo of {smallest} units is smaller than the {population} the sampling was priced for"


def _price(document: BudgetDocument) -> Iterator[str]:
    first, second = document.accounting.interval.certified(), document.accounting.second_opinion
    guarantee = document.guarantee
    match guarantee:
        case NoPrivacyPromised():
            return
        case PrivateGuarantee(epsilon=epsilon):
            if first.upper > epsilon:
                yield f"the certified epsilon {first.upper} exceeds the promised {epsilon}"
            else:
                yield from _discreteness(document, EpsilonDelta(epsilon, guarantee.delta))
        case AsPrintedGuarantee(epsilon=true_epsilon):
            if first.upper > (float("inf") if true_epsilon is None else true_epsilon):
                yield f"the certified epsilon {first.upper} exceeds the stated true one {true_epsilon}"
            elif true_epsilon is not None:
                yield from _discreteness(document, EpsilonDelta(true_epsilon, guarantee.delta))
        case _:
            assert_never(guarantee)
    if second is None:
        yield "a price needs a second opinion"
    elif second.accountant == document.accounting.accountant:
        yield f"both opinions are by {second.accountant}"
    elif not could_both_be_right(first, second.interval.certified()):
        yield "the two accountants contradict each other"


def _discreteness(document: BudgetDocument, promise: EpsilonDelta) -> Iterator[str]:
    """The promise must also cover what the accountants do not see: that published noise is discrete."""
    accounting, needed = document.accounting, slack_of(document.releases)
    stated = accounting.discrete_noise.slack()
    if stated.epsilon < needed.epsilon or stated.mass < needed.mass:
        yield f"the slack for discrete noise is at least ({needed.epsilon}, {needed.mass}), not {stated}"
        return
    if accounting.delta is None:
        yield "the price does not say at which delta it holds"
        return
    try:
        continuous = continuous_target(promise, stated)
    except InvalidInput as nothing_left:
        yield str(nothing_left)
        return
    upper = accounting.interval.certified().upper
    if upper > continuous.epsilon or accounting.delta > continuous.delta:
        yield (
            f"the price ({upper}, {accounting.delta}) leaves less than the slack for discrete noise: "
            f"it may be at most ({continuous.epsilon}, {continuous.delta})"
        )


def _noise_source(document: BudgetDocument) -> Iterator[str]:
    research_source = document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY
    for declared in document.releases:
        if isinstance(declared, InTheClear):
            continue
        if (declared.sampler is NoiseSampler.SEEDED_RESEARCH_ONLY) != research_source:
            yield f"the sampler of {declared.name} does not fit the noise source {document.noise_source.value}"


def _leaves(document: BudgetDocument) -> tuple[tuple[Leaf, int], ...]:
    return tuple(multiplicities(document.accounting.event).items())


def _slots(leaf: Leaf, times: int) -> Iterator[tuple[Primitive, int]]:
    match leaf:
        case Gaussian() | Laplace() | RandomizedResponse() | NonPrivate():
            yield leaf, times
        case Together(parts):
            for part in parts:
                yield part, times
        case Sampled(sampling, inner):
            yield from _slots(inner, times * rounds_of(sampling))
        case _:
            assert_never(leaf)


def _primitive(declared: GaussianNoise | LaplaceNoise | RandomizedCategory | InTheClear) -> Primitive:
    match declared:
        case GaussianNoise():
            return Gaussian(declared.noise_multiplier)
        case LaplaceNoise():
            return Laplace(declared.noise_multiplier)
        case RandomizedCategory():
            return RandomizedResponse(declared.epsilon, declared.categories)
        case InTheClear():
            return NonPrivate(declared.why, declared.depends_on_unit)
        case _:
            assert_never(declared)


def _population(sampling: Sampling) -> int | None:
    match sampling:
        case Poisson() | RandomAllocation():
            return None
        case FixedSize(population) | ShuffledEpochs(population) | WithReplacement(population):
            return population
        case _:
            assert_never(sampling)

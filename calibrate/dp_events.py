"""Releases as events of dp_accounting, and back.

Both libraries state noise relative to one contribution bound and apply repetition and sequence in the same way. What
one of them cannot say is refused with the remedy.
"""

from __future__ import annotations

import math

from dp_accounting import dp_event

from calibrate.errors import UnsupportedCombination
from calibrate.releases import (
    Gaussian,
    InSequence,
    Laplace,
    NonPrivate,
    RandomizedResponse,
    Release,
    Repeated,
    Rounds,
    Sampled,
    Together,
    joint_gaussian,
)
from calibrate.sampling import Batch, FixedSize, Poisson, Sampling, TruncatedPoisson, WithReplacement, scheme_of


def to_dp_event(release: Release) -> dp_event.DpEvent:
    """The event of dp_accounting for `release`; raises UnsupportedCombination where it has none."""
    match release:
        case Gaussian(noise_multiplier):
            return dp_event.GaussianDpEvent(noise_multiplier)
        case Laplace(scale):
            return dp_event.LaplaceDpEvent(scale)
        case RandomizedResponse(epsilon, categories):
            return dp_event.RandomizedResponseDpEvent(categories / (math.expm1(epsilon) + categories), categories)
        case NonPrivate(depends_on_unit=depends):
            return dp_event.NonPrivateDpEvent() if depends else dp_event.NoOpDpEvent()
        case Together(releases):
            joint = joint_gaussian(release)
            return to_dp_event(joint) if joint else dp_event.ComposedDpEvent([to_dp_event(each) for each in releases])
        case Sampled(sampling, noisy):
            return _sampled(sampling, noisy)
        case Repeated(inner, times):
            return dp_event.SelfComposedDpEvent(to_dp_event(inner), times)
        case InSequence(releases):
            return dp_event.ComposedDpEvent([to_dp_event(each) for each in releases])
        case Rounds():
            return to_dp_event(release.published)


def _sampled(sampling: Sampling, noisy: Gaussian | Laplace | Together) -> dp_event.DpEvent:
    if sampling.batch is Batch.SECRET:
        match sampling:
            case Poisson(rate):
                return dp_event.PoissonSampledDpEvent(rate, to_dp_event(noisy))
            case FixedSize(population, size):
                return dp_event.SampledWithoutReplacementDpEvent(population, size, to_dp_event(noisy))
            case WithReplacement(population, draws):
                return dp_event.SampledWithReplacementDpEvent(population, draws, to_dp_event(noisy))
            case TruncatedPoisson(rate, population, limit):
                joint = None if isinstance(noisy, Laplace) else joint_gaussian(noisy)
                if joint is not None:
                    return dp_event.TruncatedSubsampledGaussianDpEvent(population, rate, limit, joint.noise_multiplier)
    raise UnsupportedCombination(
        f"{sampling.batch.value} {scheme_of(sampling)} batches as a DpEvent",
        "dp_accounting has no event for them",
        "ask the release itself for its price",
    )


def from_dp_event(event: dp_event.DpEvent) -> Release:
    """The release that an `event` of dp_accounting stands for; raises UnsupportedCombination where there is none.

    >>> import privfair as pf
    >>> pf.from_dp_event((pf.Gaussian(1.0).sampled(pf.Poisson(0.01)) * 1000).to_dp_event())
    pf.Gaussian(1.0).sampled(pf.Poisson(0.01)) * 1000
    """
    match event:
        case dp_event.GaussianDpEvent():
            return Gaussian(event.noise_multiplier)
        case dp_event.LaplaceDpEvent():
            return Laplace(event.noise_multiplier)
        case dp_event.RandomizedResponseDpEvent():
            kept = event.num_buckets / event.noise_parameter - event.num_buckets
            return RandomizedResponse(math.log1p(kept), event.num_buckets)
        case dp_event.NoOpDpEvent():
            return NonPrivate("Nothing is published.", depends_on_unit=False)
        case dp_event.NonPrivateDpEvent():
            return NonPrivate("Declared as not private.", depends_on_unit=True)
        case dp_event.SelfComposedDpEvent():
            return Repeated(from_dp_event(event.event), event.count)
        case dp_event.ComposedDpEvent():
            return InSequence(tuple(from_dp_event(each) for each in event.events))
        case dp_event.PoissonSampledDpEvent():
            return Sampled(Poisson(event.sampling_probability), _on_batches(event.event))
        case dp_event.SampledWithoutReplacementDpEvent():
            return Sampled(FixedSize(event.source_dataset_size, event.sample_size), _on_batches(event.event))
        case dp_event.SampledWithReplacementDpEvent():
            drawn = WithReplacement(event.source_dataset_size, event.sample_size, Batch.SECRET)
            return Sampled(drawn, _on_batches(event.event))
        case dp_event.TruncatedSubsampledGaussianDpEvent():
            cut = (event.sampling_probability, event.dataset_size, event.truncated_batch_size)
            return Sampled(TruncatedPoisson(*cut), Gaussian(event.noise_multiplier))
        case _:
            raise UnsupportedCombination(
                type(event).__name__, "no release here has its price", "price it with dp_accounting"
            )


def _on_batches(event: dp_event.DpEvent) -> Gaussian | Laplace | Together:
    parts = event.events if isinstance(event, dp_event.ComposedDpEvent) else [event]
    releases = tuple(from_dp_event(each) for each in parts)
    values = tuple(each for each in releases if isinstance(each, Gaussian | Laplace))
    if len(values) < len(releases) or not values:
        raise UnsupportedCombination(
            f"{event!r} on sampled batches", "only Gaussian and Laplace values are", "price it with dp_accounting"
        )
    return values[0] if len(values) == 1 else Together(values)

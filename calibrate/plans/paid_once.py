"""Values that are published once, outside the rounds, and paid from the same budget.

Training needs numbers about the data before the first round: how frequent each group is, how to normalise
the features. They are data. Either they are public, or they are published with noise once and used for
ever after (post-processing); a plan that does not pay for them lists them as unprotected.
"""

from __future__ import annotations

import math
from typing import assert_never

from calibrate.claims import Norm
from calibrate.plans.plan import Mechanism, NoisyValue
from calibrate.privacy_unit import Relation
from calibrate.releases import InSequence, Release
from calibrate.validation import positive

HISTOGRAM = "attribute_histogram"
NORMALISATION = "normalisation_statistics"


def attribute_histogram(relation: Relation, noise_ratio: float) -> NoisyValue:
    """The noisy number of records in each group.

    Guarantee: one unit is one record with one group. Replacing it (or its attribute) takes one from a count
    and gives one to another, a distance of sqrt(2); adding it moves one count by one. Under replace-one the
    accountants charge twice the stated bound, which is therefore half the distance.
    """
    match relation:
        case Relation.ADD_REMOVE:
            bound = 1.0
        case Relation.REPLACE_ONE:
            bound = math.sqrt(2) / 2
        case Relation.REPLACE_ATTRIBUTE:
            bound = math.sqrt(2)
        case _:
            assert_never(relation)
    positive("histogram-noise-ratio", noise_ratio)
    return NoisyValue(HISTOGRAM, bound, Norm.L2, noise_ratio, Mechanism.GAUSSIAN)


def normalisation_statistics(clip: float, noise_ratio: float) -> NoisyValue:
    """Noisy sums of features, of their squares and of ones, each unit's whole vector clipped to `clip` in L2."""
    positive("normalisation-clip", clip)
    positive("normalisation-noise-ratio", noise_ratio)
    return NoisyValue(NORMALISATION, clip, Norm.L2, noise_ratio, Mechanism.GAUSSIAN)


def with_once(rounds: Release, once: tuple[NoisyValue, ...]) -> Release:
    """The rounds, preceded by what is published once on the full data."""
    if not once:
        return rounds
    return InSequence((*(value.release() for value in once), rounds))


def optional_ratio(argument: str, ratio: float | None) -> None:
    """Check a noise ratio that may be absent because the value is not published privately."""
    if ratio is not None:
        positive(argument, ratio)

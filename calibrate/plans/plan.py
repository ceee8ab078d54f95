"""What an algorithm really publishes, before any noise is chosen.

A plan turns an algorithm's parameters into a release template: every value a round publishes with its
contribution bound, every value published once, how batches are drawn, and, just as important, what is
published without noise. Calibration multiplies all noise multipliers of the template by one factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, ClassVar, Protocol, assert_never, cast

from calibrate.claims import Norm
from calibrate.errors import InvalidInput, positive
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Gaussian, InSequence, Laplace, Release, Together

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


PlainValue = int | float | str | bool | None | tuple[float, ...]
"""What a plan's parameters are made of, so that they fit a manifest, TOML and JSON."""


class AlgorithmName(Enum):
    STEFFLE = "steffle"
    FEDFDP = "fedfdp"
    FPFL = "fpfl"
    MMD_FEDAVG = "mmd-fedavg"
    GAUSSIAN = "gaussian"
    PAY_ONCE = "pay-once"


@dataclass(frozen=True)
class Flag:
    """How the command line offers a parameter of a plan; its name, type and default are the field's own."""

    metavar: str
    help: str
    choices: tuple[str, ...] | None = None
    """Where not all members of an enum are offered."""


HISTOGRAM_FLAG = Flag(
    "R", "Pay for a noisy histogram of the groups once; R is its noise multiplier relative to a round's."
)
NORMALISATION_FLAG = Flag("R", "Pay for noisy normalisation statistics once; R is relative to a round's multiplier.")
NORMALISATION_CLIP_FLAG = Flag("C", "L2 clip of one unit's normalisation statistics.")
ROUNDS_FLAG = Flag("T", "Rounds of training.")


class Mechanism(Enum):
    """How a value is made noisy."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    RANDOMIZED_RESPONSE = "randomized-response"


@dataclass(frozen=True)
class NoisyValue:
    """One published value: its absolute contribution bound and its noise relative to the other values.

    `sensitivity` follows the convention of `releases.py` for the plan's relation. At calibration factor x
    the noise multiplier is `noise_ratio * x` and the noise itself `sensitivity * noise_ratio * x`
    (standard deviation for Gaussian, scale for Laplace noise).
    """

    name: str
    sensitivity: float
    norm: Norm
    noise_ratio: float
    mechanism: Mechanism

    def __post_init__(self) -> None:
        positive(f"sensitivity of {self.name}", self.sensitivity)
        positive(f"noise ratio of {self.name}", self.noise_ratio)
        wrong_norm = {Mechanism.GAUSSIAN: Norm.L1, Mechanism.LAPLACE: Norm.L2}.get(self.mechanism)
        if self.norm is wrong_norm:
            raise InvalidInput(
                "norm",
                self.norm.value,
                f"does not fit {self.mechanism.value} noise",
                "use L2 for Gaussian, L1 for Laplace",
            )

    def release(self) -> Gaussian | Laplace:
        """The value as a release at factor 1."""
        match self.mechanism:
            case Mechanism.GAUSSIAN:
                return Gaussian(self.noise_ratio)
            case Mechanism.LAPLACE:
                return Laplace(self.noise_ratio)
            case Mechanism.RANDOMIZED_RESPONSE:
                raise InvalidInput(
                    "mechanism", self.mechanism.value, "has no noise multiplier", "price it as RandomizedResponse"
                )
            case _:
                assert_never(self.mechanism)


class Plan(Protocol):
    """One algorithm with its parameters; frozen, validated at construction, not yet calibrated.

    Each field is annotated with its `Flag`. `summary` says what the algorithm protects, `example` shows the flags.
    """

    summary: ClassVar[str]
    example: ClassVar[str]

    @property
    def algorithm(self) -> AlgorithmName: ...

    @property
    def unit(self) -> PrivacyUnit: ...

    @property
    def rounds(self) -> int: ...

    def values(self) -> tuple[NoisyValue, ...]:
        """The noisy values that every round publishes."""
        ...

    def once(self) -> tuple[NoisyValue, ...]:
        """The noisy values published once, outside the rounds."""
        ...

    def template(self) -> Release:
        """Everything the budget pays for, with noise multipliers at factor 1."""
        ...

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        """The release that publishes these values (this plan's own, perhaps with other noise ratios)."""
        ...

    def attained(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release | None:
        """The part of `publish` whose cost some data set really reaches: the lower end is priced from it.

        It is the whole release where the bound is tight, and None where no lower bound is claimed.
        """
        ...

    def joint_noise_ratio(self) -> float | None:
        """The joint noise multiplier of one round's values at factor 1; None if they are not one batch."""
        ...

    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantee to be true, each in one sentence."""
        ...

    def unprotected(self) -> tuple[str, ...]:
        """What is published without noise or is not paid for, and what must hold for that to be acceptable."""
        ...

    def parameters(self) -> dict[str, PlainValue]:
        """The plan's parameters as plain values; `plan_from_mapping` builds the same plan from them."""
        ...


def of_one_batch(values: tuple[NoisyValue, ...]) -> Gaussian | Laplace | Together:
    """Several values of one batch as one release at factor 1."""
    releases = tuple(value.release() for value in values)
    return releases[0] if len(releases) == 1 else Together(releases)


def joint_ratio(values: tuple[NoisyValue, ...]) -> float | None:
    """(sum of ratio^-2)^(-1/2) for Gaussian values of one batch; None if one of them is not Gaussian."""
    if any(value.mechanism is not Mechanism.GAUSSIAN for value in values):
        return None
    return 1 / math.sqrt(math.fsum(1 / value.noise_ratio**2 for value in values))


# A plan's parameters as plain values, and a plan from plain values.


def plain_parameters(plan: DataclassInstance) -> dict[str, PlainValue]:
    """The fields of a plan by name, enums as their values: fit for a manifest, TOML and JSON."""
    plain: dict[str, PlainValue] = {}
    for field in fields(plan):
        value = getattr(plan, field.name)
        plain[field.name] = cast(PlainValue, value.value if isinstance(value, Enum) else value)
    return plain


# Values that are published once, outside the rounds, and paid from the same budget.
#
# Training needs numbers about the data before the first round: how frequent each group is, how to normalise
# the features. They are data. Either they are public, or they are published with noise once and used for
# ever after (post-processing); a plan that does not pay for them lists them as unprotected.

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

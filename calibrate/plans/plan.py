"""What an algorithm really publishes, before any noise is chosen.

A plan turns an algorithm's parameters into a release template: every value a round publishes with its
contribution bound, every value published once, how batches are drawn, and, just as important, what is
published without noise. Calibration multiplies all noise multipliers of the template by one factor.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar, assert_never

from calibrate.discrete_noise import MOST_NUMBERS, ProfileSlack, slack_of_noise
from calibrate.errors import InvalidInput, UnsupportedCombination, positive
from calibrate.privacy_unit import EpsilonDelta, NoiseKind, PrivacyUnit, Relation, bounds_apart
from calibrate.releases import Gaussian, InSequence, Laplace, RandomizedResponse, Release, Repeated, Together
from calibrate.sampling import SamplingName

PlainValue = int | float | str | bool | None | tuple[float, ...] | tuple[str, ...]
"""The types of a plan's parameters, so that they fit a manifest, TOML and JSON."""


class AlgorithmName(Enum):
    STEFFLE = "steffle"
    FEDFDP = "fedfdp"
    FPFL = "fpfl"
    MMD_FEDAVG = "mmd-fedavg"
    GAUSSIAN = "gaussian"
    PAY_ONCE = "pay-once"
    FAIR_PLUGIN = "fair-plugin"
    OWN_LOOP = "own-loop"


@dataclass(frozen=True)
class PluginName:
    """The name of an algorithm that another package brings; none of `AlgorithmName` can be taken."""

    value: str


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


def sampling_flag(help: str, *offered: SamplingName) -> Flag:
    """The flag of a plan that draws its batches in one of these ways."""
    return Flag("", help, tuple(name.value for name in offered))


def check_sampling(given: object, *offered: SamplingName) -> None:
    """Refuse a sampling that the plan does not offer, and its bare name, which plans would not recognise."""
    if not isinstance(given, SamplingName) or given not in offered:
        shown = given.value if isinstance(given, SamplingName) else given
        raise InvalidInput("sampling", shown, "is not one of the choices", f"use {', '.join(offered)}")


@dataclass(frozen=True)
class NoisyValue:
    """One published value: its contribution bound, and its noise as a multiple of that bound.

    `sensitivity` follows the convention of `releases.py` for the plan's relation. The values of a plan have noise
    multipliers that only matter relative to one another; calibration multiplies them all by one factor, and the
    values of a budget have the multipliers that are signed. `numbers` is how many numbers one publication may have
    for the budget to pay for their noise being discrete.
    """

    name: str
    sensitivity: float
    noise_multiplier: float = 1.0
    kind: NoiseKind = NoiseKind.GAUSSIAN
    every_round: bool = True
    times: int | None = None
    """How often it is published, where that is neither in every round nor once."""
    numbers: int = MOST_NUMBERS
    bands: int = 1
    """Over how many rounds in a row its sums are mixed before they get their noise; 1 where they are not."""
    family: str | None = None
    """Values of one family are of disjoint sets of units: a unit that is replaced touches at most two of them."""

    def __post_init__(self) -> None:
        positive(f"sensitivity of {self.name}", self.sensitivity)
        positive(f"noise of {self.name}", self.noise_multiplier)

    @property
    def sigma(self) -> float:
        """The noise in the value's own scale: the standard deviation, or the scale of Laplace noise."""
        return self.noise_multiplier * self.sensitivity

    def release(self) -> Gaussian | Laplace:
        match self.kind:
            case NoiseKind.GAUSSIAN:
                return Gaussian(self.noise_multiplier)
            case NoiseKind.LAPLACE:
                return Laplace(self.noise_multiplier)
            case _:
                assert_never(self.kind)

    def slack(self, rounds: int) -> ProfileSlack:
        """What discrete noise may add to the price of all publications in a run of this many rounds."""
        return slack_of_noise(self.kind, self.numbers, self.publications(rounds))

    def publications(self, rounds: int) -> int:
        """How often it is published in a run of this many rounds."""
        return (rounds if self.every_round else 1) if self.times is None else self.times

    @property
    def often(self) -> str:
        """How often it is published, in words."""
        return ("every round" if self.every_round else "once") if self.times is None else f"{self.times} times"

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "sensitivity": self.sensitivity,
            "noise_multiplier": self.noise_multiplier,
            "sigma": self.sigma,
            "mechanism": self.kind.value,
            "published": self.often,
            **({"bands": self.bands} if self.bands > 1 else {}),
            **({} if self.family is None else {"family": self.family}),
        }


@dataclass(frozen=True)
class RandomizedValue:
    """One category per unit, published once by randomised response: it has a probability instead of noise."""

    name: str
    response: RandomizedResponse

    @property
    def keep_probability(self) -> float:
        """The probability with which the true category is kept."""
        return 1 / (1 + (self.response.categories - 1) * math.exp(-self.response.local_epsilon))

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "sensitivity": 1.0,
            "noise_multiplier": None,
            "sigma": None,
            "mechanism": "randomized-response",
            "published": "once",
            "keep_probability": self.keep_probability,
        }


class Plan(ABC):
    """One algorithm with its parameters: a frozen dataclass, validated at construction, not yet calibrated.

    Each field is annotated with its `Flag`. `summary` says what the algorithm protects, `example` shows the flags.
    """

    algorithm: ClassVar[AlgorithmName | PluginName]
    summary: ClassVar[str]
    example: ClassVar[str]
    newer: ClassVar[tuple[str, ...]] = ()
    """Parameters that documents were written without: they are left out of a document where they are not given."""
    rounds: int

    @property
    @abstractmethod
    def unit(self) -> PrivacyUnit: ...

    @property
    def rounds_per_epoch(self) -> int:
        """The rounds that only have a price together; 1 where each round has its own."""
        return 1

    @abstractmethod
    def values(self) -> tuple[NoisyValue, ...]:
        """The noisy values that every round publishes."""

    def once(self) -> tuple[NoisyValue, ...]:
        """The noisy values published once, outside the rounds."""
        return ()

    def at(self, epsilon: float) -> RandomizedValue | None:
        """The randomised attribute that costs this epsilon; None for plans whose values carry noise instead."""
        return None

    def printed(self, target: EpsilonDelta) -> PaperNoise:
        """The noise that the algorithm's own paper says meets the target. What it costs is for an accountant to say."""
        raise UnsupportedCombination(
            f"{self.algorithm.value} as printed",
            "only SteFFLe's paper prints a closed formula for its noise",
            "calibrate it instead, and compare with `privfair theorems`",
        )

    @abstractmethod
    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        """The release that publishes these values (this plan's own, or the same with other noise multipliers)."""

    def template(self) -> Release:
        """Everything the budget pays for, with the plan's relative noise multipliers."""
        return self.publish(self.values(), self.once())

    def attained(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release | None:
        """The part of `publish` whose cost some data set really reaches: the lower end is priced from it.

        It is the whole release where the bound is tight, and None where no lower bound is claimed.
        """
        return self.publish(values, once)

    def joint_noise_ratio(self) -> float | None:
        """The joint noise multiplier of one round's values before calibration; None if they are not one batch.

        For Gaussian values of one batch it is (sum of multiplier^-2)^(-1/2) (`releases.joint_gaussian`).
        """
        values = self.values()
        if not values or any(value.kind is not NoiseKind.GAUSSIAN for value in values):
            return None
        return 1 / math.sqrt(math.fsum(1 / value.noise_multiplier**2 for value in values))

    arithmetic: ClassVar[str] = (
        "What a unit contributes is computed on a processor (CPU) with IEEE 754 arithmetic; that its matrix products "
        "do not round is checked at start-up (docs/theorems/exact-contributions.md)."
    )
    """What must hold for one unit's part not to depend on others by rounding."""

    @abstractmethod
    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantee to be true."""

    @abstractmethod
    def unprotected(self) -> tuple[str, ...]:
        """What is published without noise or is not paid for, and what must hold for that to be acceptable."""

    def _check_each(self, rule: Callable[[str, Any], object], *names: str) -> None:
        """Hold parameters to a rule of `calibrate.errors`; one that may be left out is held to it where it is given."""
        assert is_dataclass(self)
        optional = {field.name for field in fields(self) if field.default is None}
        for name in names:
            value = getattr(self, name)
            if value is not None or name not in optional:
                rule(name.replace("_", "-"), value)

    def parameters(self) -> dict[str, PlainValue]:
        """The plan's parameters as plain values; `plan_from_mapping` builds the same plan from them."""
        assert is_dataclass(self)
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in values.items() if name not in self.newer or value is not None}
        return {name: value.value if isinstance(value, Enum) else value for name, value in given.items()}


@dataclass(frozen=True)
class PaperNoise:
    """A paper's own noise for a plan, which its authors claim meets the target.

    Every value of the plan needs its noise multiplier (sigma divided by the value's *true* sensitivity).
    """

    plan: Plan
    target: EpsilonDelta
    noise_multipliers: Mapping[str, float]
    place: str
    """Where the paper claims it."""


def of_one_batch(values: tuple[NoisyValue, ...]) -> Gaussian | Laplace | Together:
    """Several values of one batch as one release."""
    releases = tuple(value.release() for value in values)
    return releases[0] if len(releases) == 1 else Together(releases)


# Values that are published once, outside the rounds, and paid from the same budget.
#
# Training needs numbers about the data before the first round: how frequent each group is, how to normalise
# the features. They are data. Either they are public, or they are published with noise once and used
# from then on (post-processing); a plan that does not pay for them lists them as unprotected.

HISTOGRAM = "attribute_histogram"
NORMALISATION = "normalisation_statistics"
SCALES = "scale_histogram"
SCALE_COLUMNS_FLAG = Flag("N", "Scale the first N features, which are numeric columns within public bounds.")
SCALE_SHARE_FLAG = Flag("S", "Share of the squared budget for the histogram that the scales are computed from.")


def histogram_bound(relation: Relation) -> float:
    """The contribution bound of the number of records in each group.

    Guarantee: one unit is one record with one group. Replacing it (or its attribute) takes one from a count
    and gives one to another, a distance of sqrt(2); adding it moves one count by one. The stated bound is that
    distance divided by the number of bounds that the accountants charge for the relation.
    """
    return (1.0 if relation is Relation.ADD_REMOVE else math.sqrt(2)) / bounds_apart(relation)


COUNTED_ONCE = (
    "Each record is in exactly one cell of each histogram, found by comparing it with fixed public edges.",
    "Scales are computed from the noisy counts alone, never from exact ones.",
)
"""What plans with paid scales assume."""


def scale_histogram(columns: int, labels: int, relation: Relation, noise: float) -> NoisyValue:
    """Histograms of this number of columns and labels, published once as one vector.

    Guarantee: one record is in exactly one cell of each histogram, whatever its values and the bounds are, so it adds a
    vector of length sqrt(columns + labels); replaced, it moves sqrt(2) times that (docs/theorems/fair-plugin.md).
    """
    return NoisyValue(SCALES, histogram_bound(relation) * math.sqrt(columns + labels), noise, every_round=False)


def attribute_histogram(relation: Relation, noise_ratio: float | None) -> tuple[NoisyValue, ...]:
    """The noisy number of records in each group; empty if it is not paid for."""
    if noise_ratio is None:
        return ()
    return (NoisyValue(HISTOGRAM, histogram_bound(relation), noise_ratio, every_round=False),)


def normalisation_statistics(clip: float, noise_ratio: float | None) -> tuple[NoisyValue, ...]:
    """Noisy sums of features, of their squares and of ones, each unit's whole vector clipped to `clip` in L2.

    Empty if they are not paid for.
    """
    if noise_ratio is None:
        return ()
    return (NoisyValue(NORMALISATION, clip, noise_ratio, every_round=False),)


def unpaid_normalisation(noise_ratio: float | None) -> tuple[str, ...]:
    """What is left unprotected where normalisation statistics are not paid for."""
    left = "Normalisation statistics must be public, or paid for (normalisation-noise-ratio)."
    return (left,) if noise_ratio is None else ()


def with_once(rounds: Release, once: tuple[NoisyValue, ...]) -> Release:
    """The rounds, preceded by what is published once on the full data."""
    if not once:
        return rounds
    several = (value.release() if value.times is None else Repeated(value.release(), value.times) for value in once)
    return InSequence((*several, rounds))

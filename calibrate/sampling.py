"""How a batch is drawn, and whether an observer learns which records are in it.

Every sampling here draws its batches independently of the data's contents. `Batch.REVEALED` means the
observer may know the batch (for example because something else computed on it is published without
noise); no amplification by sampling is then claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TypeVar, assert_never

from calibrate.errors import InvalidInput, count, rate
from calibrate.notebook import Pasteable

Number = TypeVar("Number", int, float)


class Batch(Enum):
    """Whether an attacker sees which records are in a batch; only a secret batch adds to privacy."""

    SECRET = "secret"
    REVEALED = "revealed"


@dataclass(frozen=True, repr=False)
class Poisson(Pasteable):
    """Each unit joins each batch independently with probability `rate`."""

    rate: float
    batch: Batch = Batch.SECRET

    def __post_init__(self) -> None:
        rate("sampling rate", self.rate)


@dataclass(frozen=True, repr=False)
class FixedSize(Pasteable):
    """A uniformly random subset of exactly `size` out of `population` units, fresh each round.

    Under add-remove `population` counts the unit in question and may be any lower bound on the number of units of the
    larger one of two neighbouring data sets: a larger data set samples each unit more rarely.
    """

    population: int
    size: int
    batch: Batch = Batch.SECRET

    def __post_init__(self) -> None:
        _check_batch(self.population, self.size)

    @property
    def rate(self) -> float:
        return self.size / self.population


@dataclass(frozen=True, repr=False)
class ShuffledEpochs(Pasteable):
    """ONE pass over the data in `batches_per_epoch` disjoint batches of a random permutation.

    A `Sampled(ShuffledEpochs(...), release)` is therefore one whole *epoch*: each unit takes part in
    exactly one of its rounds. Repeat it to get several epochs. Every batch is divided by `size`, the last
    and smaller one too, so that one unit's weight is the same in all of them.
    """

    population: int
    size: int
    batch: Batch = Batch.REVEALED

    def __post_init__(self) -> None:
        _check_batch(self.population, self.size)

    @property
    def batches_per_epoch(self) -> int:
        return -(-self.population // self.size)

    def epochs_for(self, rounds: int) -> int:
        """How many epochs the given number of rounds touches; a started epoch counts whole."""
        return -(-count("rounds", rounds) // self.batches_per_epoch)


@dataclass(frozen=True, repr=False)
class WithReplacement(Pasteable):
    """`draws` independent uniform draws from `population` units; one unit may be drawn several times."""

    population: int
    draws: int
    batch: Batch = Batch.REVEALED

    def __post_init__(self) -> None:
        count("population", self.population)
        count("draws", self.draws)


@dataclass(frozen=True, repr=False)
class RandomAllocation(Pasteable):
    """ONE epoch of `batches` rounds: each unit joins exactly one of them, uniformly and independently of all others.

    A `Sampled(RandomAllocation(...), release)` is therefore one whole epoch, as with shuffled epochs. Sizes of batches
    vary and must stay secret; divisors are public constants. `drawn` counts the rounds of the epoch that happen;
    0, the default, stands for all of them.
    """

    batches: int
    drawn: int = 0
    batch: Batch = Batch.SECRET

    def __post_init__(self) -> None:
        count("batches per epoch", self.batches)
        if self.drawn == 0:
            object.__setattr__(self, "drawn", self.batches)
        if count("rounds of the epoch", self.drawn) > self.batches:
            raise InvalidInput(
                "rounds of the epoch", self.drawn, f"exceed its {self.batches} batches", "begin another epoch"
            )


_BETA_ERROR = 1e-9
"""Relative; tests measure scipy's incomplete beta function against 40 digits."""


@dataclass(frozen=True, repr=False)
class TruncatedPoisson(Pasteable):
    """A Poisson batch of at most `limit` units: of a larger one a uniformly random subset of `limit` is kept.

    So all batches have one shape once they are padded. `population` is the most units that any party has; it is public
    or an upper bound that was signed.
    """

    rate: float
    population: int
    limit: int
    batch: Batch = Batch.SECRET

    def __post_init__(self) -> None:
        rate("sampling rate", self.rate)
        count("most units", self.population)
        count("batch limit", self.limit)
        if self.limit >= self.population:
            raise InvalidInput(
                "batch-limit",
                self.limit,
                f"is not below most-units = {self.population}, so no batch would ever be cut",
                "use poisson sampling, which is the same thing here, or give a smaller limit",
            )
        if self.batch is Batch.REVEALED:
            raise InvalidInput("batch", "revealed", "is not priced for truncated batches", "use Poisson batches")

    @property
    def cut_chance(self) -> float:
        """No less than the probability that the others fill a batch: P(Binomial(population - 1, rate) >= limit).

        The tail is an incomplete beta function (docs/theorems/sampling.md#truncated-poisson-batches, equation 3).
        """
        from scipy.special import betainc  # 0.2 s, which no other sampling needs

        if self.rate == 1:
            return 1.0
        return min(1.0, float(betainc(self.limit, self.population - self.limit, self.rate)) * (1 + _BETA_ERROR))


@dataclass(frozen=True, repr=False)
class Cyclic(Pasteable):
    """ONE cycle of `groups` rounds: units are dealt to groups for good, and round i draws from group i mod `groups`.

    A `Sampled(Cyclic(...), release)` is therefore one whole cycle. Each member of the round's group joins with
    probability `rate`; with 1 all of them do. A unit's group follows from its own content and public numbers, never
    from other units. Its rounds are whole cycles apart, so that the sums of up to `bands` rounds in a row may be mixed
    before noise is added (docs/theorems/banded.md); with one band nothing is mixed.
    """

    groups: int
    rate: float = 1.0
    bands: int = 1
    batch: Batch = Batch.SECRET

    def __post_init__(self) -> None:
        count("groups", self.groups)
        rate("rate within a group", self.rate)
        if count("bands", self.bands) > self.groups:
            rule = f"exceeds the {self.groups} rounds of a cycle, after which a unit comes back"
            raise InvalidInput("bands", self.bands, rule, f"use at most {self.groups}, or more batches per cycle")
        if self.batch is Batch.REVEALED:
            raise InvalidInput("batch", "revealed", "is not priced for cyclic batches", "keep the batch secret")

    def epochs_for(self, rounds: int) -> int:
        """How many cycles the given number of rounds touches; a started cycle counts whole."""
        return -(-count("rounds", rounds) // self.groups)

    def whole_columns(self, rounds: int) -> int:
        """How often a unit of the first group takes part with all `bands` rounds of its mixture published."""
        return max(0, (count("rounds", rounds) - self.bands) // self.groups + 1)


Sampling = Poisson | FixedSize | ShuffledEpochs | WithReplacement | RandomAllocation | TruncatedPoisson | Cyclic
"""A full batch needs no sampling: it is the bare release."""

SCHEMES: dict[str, type] = {
    "poisson": Poisson,
    "fixed-size": FixedSize,
    "shuffled-epochs": ShuffledEpochs,
    "with-replacement": WithReplacement,
    "random-allocation": RandomAllocation,
    "truncated-poisson": TruncatedPoisson,
    "cyclic": Cyclic,
}
"""The samplings as manifests and messages name them."""
_SCHEME_OF = {kind: name for name, kind in SCHEMES.items()}


def scheme_of(sampling: Sampling) -> str:
    """The name of a sampling in manifests and messages."""
    return _SCHEME_OF[type(sampling)]


class SamplingName(StrEnum):
    """How each round's batch is drawn, as plans, command line and Python spell it."""

    FULL = "full"
    POISSON = "poisson"
    FIXED = "fixed"
    SHUFFLED = "shuffled"
    WITH_REPLACEMENT = "with-replacement"
    RANDOM_ALLOCATION = "random-allocation"
    TRUNCATED_POISSON = "truncated-poisson"
    CYCLIC = "cyclic"


def sampling_named(
    name: SamplingName,
    batch: Batch,
    *,
    rate: float | None = None,
    population: int | None = None,
    size: int | None = None,
    batches: int | None = None,
    limit: int | None = None,
    bands: int | None = None,
) -> Sampling | None:
    """The sampling of that name with those of the numbers that it needs; None for the full data."""
    match name:
        case SamplingName.FULL:
            return None
        case SamplingName.POISSON:
            return Poisson(_needed("sampling rate", rate), batch)
        case SamplingName.FIXED:
            return FixedSize(_needed("population", population), _needed("batch size", size), batch)
        case SamplingName.SHUFFLED:
            return ShuffledEpochs(_needed("population", population), _needed("batch size", size), batch)
        case SamplingName.WITH_REPLACEMENT:
            return WithReplacement(_needed("population", population), _needed("draws", size), batch)
        case SamplingName.RANDOM_ALLOCATION:
            return RandomAllocation(_needed("batches per epoch", batches), batch=batch)
        case SamplingName.TRUNCATED_POISSON:
            most = _needed("most units", population)
            return TruncatedPoisson(_needed("sampling rate", rate), most, _needed("batch limit", limit), batch)
        case SamplingName.CYCLIC:
            return Cyclic(_needed("batches per cycle", batches), _needed("rate", rate), bands or 1, batch)
        case _:
            assert_never(name)


def _needed(argument: str, number: Number | None) -> Number:
    if number is None:
        raise InvalidInput(argument, None, "is needed for this sampling", "give it")
    return number


def whole(sampling: Sampling) -> Sampling:
    """The sampling of a whole epoch, whose begun epochs are drawn the same way."""
    return (
        RandomAllocation(sampling.batches, batch=sampling.batch) if isinstance(sampling, RandomAllocation) else sampling
    )


def rounds_of(sampling: Sampling) -> int:
    """How many rounds one `Sampled(sampling, ..)` stands for: those of an epoch, else one."""
    match sampling:
        case ShuffledEpochs():
            return sampling.batches_per_epoch
        case RandomAllocation():
            return sampling.drawn
        case Cyclic():
            return sampling.groups
        case _:
            return 1


def _check_batch(population: int, size: int) -> None:
    count("population", population)
    count("batch size", size)
    if size > population:
        raise InvalidInput(
            "batch size", size, f"exceeds the population of {population}", "use a batch no larger than the data"
        )

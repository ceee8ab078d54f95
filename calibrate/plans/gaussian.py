"""Any DP-SGD: Gaussian values of one batch per round, with the sampling and the relation of the user's choice.

`GaussianPlan` is trained by the engine. With `noise = "banded"` its noise of rounds in a row is correlated so that it
cancels in running sums (docs/theorems/banded.md); batches then go in a cycle. `OwnLoopPlan` is for a training loop that
the user wrote: its named values are drawn and priced as declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import fsum, sqrt
from typing import Annotated, ClassVar

from calibrate.errors import InvalidInput, count, open_unit, positive, rate
from calibrate.plans.plan import (
    COUNTED_ONCE,
    ROUNDS_FLAG,
    SCALE_COLUMNS_FLAG,
    SCALE_SHARE_FLAG,
    AlgorithmName,
    Flag,
    NoisyValue,
    Plan,
    check_sampling,
    of_one_batch,
    sampling_flag,
    scale_histogram,
    with_once,
)
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from calibrate.releases import Release, over_rounds, reached_over_rounds
from calibrate.sampling import Batch, Cyclic, RandomAllocation, Sampling, SamplingName, TruncatedPoisson, sampling_named

_SAMPLINGS = (SamplingName.POISSON, SamplingName.RANDOM_ALLOCATION, SamplingName.TRUNCATED_POISSON, SamplingName.CYCLIC)
"""How the engine can draw secret batches."""


class CorrelatedNoise(Enum):
    """Noise that is not independent between rounds."""

    BANDED = "banded"


_WHOLE = 1e-12
"""A rate so close to one over the batches per cycle takes whole groups."""


@dataclass(frozen=True)
class GaussianPlan(Plan):
    """T rounds of one or more Gaussian values of one secret batch (rate 1: the full data).

    Guarantee: the values of one batch are one release with the joint multiplier inside the sampling
    (`releases.joint_gaussian`). Unit: one record under `relation`; each value's contribution is clipped to
    `clip`. `noise` lists the values' noise multipliers relative to one another. Random allocation is priced for added
    and removed records (docs/theorems/sampling.md#random-allocation), cut batches for parties of at most `most_units`
    records (docs/theorems/sampling.md#truncated-poisson-batches), cyclic batches with or without banded noise for
    groups that records join by their own content (docs/theorems/banded.md).

    With `scale_share` a histogram of every numeric column and of the classes is published before the rounds, and takes
    its share of the squared budget (docs/theorems/fair-plugin.md#paid-scales).
    """

    algorithm = AlgorithmName.GAUSSIAN
    summary: ClassVar[str] = "Any DP-SGD: one or several Gaussian values of a batch, repeated. Protects one record."
    example: ClassVar[str] = "--epsilon 1 --delta 1e-5 --sampling-rate 0.01 --rounds 1000"
    sampling_rate: Annotated[
        float, Flag("Q", "Probability that a unit joins a batch; 1 is the full batch. Not needed with --batches.")
    ]
    rounds: Annotated[int, ROUNDS_FLAG]
    relation: Annotated[
        Relation, Flag("", "How neighbouring data sets differ.", choices=("add-remove", "replace-one"))
    ] = Relation.ADD_REMOVE
    noise: Annotated[
        tuple[float, ...] | CorrelatedNoise,
        Flag(
            "R",
            "Relative noise of one value of the batch; repeat for several. The word banded correlates the noise of "
            "rounds in a row, so that it cancels in running sums; it needs --batches.",
        ),
    ] = (1.0,)
    clip: Annotated[float, Flag("C", "L2 clip of one unit's contribution.")] = 1.0
    sampling: Annotated[
        SamplingName,
        sampling_flag(
            "Batches by independent draws (poisson), the same but never above a limit (truncated-poisson), each "
            "unit in one batch per epoch (random-allocation), or groups in a cycle (cyclic; for banded noise).",
            *_SAMPLINGS,
        ),
    ] = SamplingName.POISSON
    batches: Annotated[int | None, Flag("N", "Batches per epoch of random allocation, or per cycle.")] = None
    batch_limit: Annotated[int | None, Flag("B", "The most units in a batch of truncated Poisson sampling.")] = None
    most_units: Annotated[
        int | None, Flag("N", "The most units that any party has, a public bound, for truncated Poisson sampling.")
    ] = None
    bands: Annotated[
        int | None,
        Flag(
            "B", "Over how many rounds banded noise is correlated, at most the batches per cycle. Default: all of them."
        ),
    ] = None
    scale_columns: Annotated[int | None, SCALE_COLUMNS_FLAG] = None
    scale_share: Annotated[float | None, SCALE_SHARE_FLAG] = None
    newer: ClassVar[tuple[str, ...]] = ("scale_columns", "scale_share")

    def __post_init__(self) -> None:
        check_sampling(self.sampling, *_SAMPLINGS)
        rate("sampling-rate", self.sampling_rate)
        count("rounds", self.rounds)
        positive("clip", self.clip)
        if not isinstance(self.noise, tuple | CorrelatedNoise) or self.noise == ():
            rule = "must be a non-empty tuple, or banded"
            raise InvalidInput("noise", self.noise, rule, "give one ratio for each value, or the word banded")
        for ratio in self.ratios:
            positive("noise", ratio)
        if self.noise is CorrelatedNoise.BANDED and self.sampling is SamplingName.POISSON:
            object.__setattr__(self, "sampling", SamplingName.CYCLIC)  # within a group, Poisson draws
        self._check_batches()
        self._check_bands()
        self._check_scales()

    def _check_scales(self) -> None:
        self._check_each(open_unit, "scale_share")
        if self.scale_columns is None:
            if self.scale_share is not None:
                raise InvalidInput("scale-columns", None, "is needed with shares", "say how many columns are numeric")
            return
        count("scale-columns", self.scale_columns, least=0)
        if self.batch_sampling() is not None or self.relation is Relation.REPLACE_ATTRIBUTE:
            rule = "has a proved price for full batches and whole records alone"
            raise InvalidInput("scale-columns", self.scale_columns, rule, "write sampling-rate = 1, or drop it")
        count("rounds", self.rounds, least=2)

    @property
    def gradient_rounds(self) -> int:
        """In how many rounds gradients are published: not in that of the histogram."""
        return self.rounds - (self.scale_share is not None)

    def _check_batches(self) -> None:
        for name, value in (("batch-limit", self.batch_limit), ("most-units", self.most_units)):
            if (value is not None) != (self.sampling is SamplingName.TRUNCATED_POISSON):
                rule = "is for truncated Poisson sampling" if value else "is needed by truncated Poisson sampling"
                raise InvalidInput(name, value, rule, "give it together with sampling truncated-poisson")
        if self.sampling not in (SamplingName.RANDOM_ALLOCATION, SamplingName.CYCLIC):
            if self.batches is not None:
                raise InvalidInput(
                    "batches",
                    self.batches,
                    "is for random allocation and for cyclic batches",
                    "add sampling random-allocation or cyclic, or drop it",
                )
            return
        if self.sampling is SamplingName.CYCLIC:
            self._check_cycle()
            return
        # A rate that is one over a whole number says it too.
        batches = round(1 / self.sampling_rate) if self.batches is None else count("batches", self.batches)
        object.__setattr__(self, "batches", batches)
        if 1 / batches != self.sampling_rate:
            raise InvalidInput(
                "sampling-rate",
                self.sampling_rate,
                "must be one over the batches per epoch",
                "drop it and give batches, such as 30",
            )
        if self.relation is not Relation.ADD_REMOVE:
            raise InvalidInput(
                "relation",
                self.relation.value,
                "has no proved price with random allocation",
                "use add-remove, or Poisson batches",
            )

    def _check_cycle(self) -> None:
        if self.batches is None:
            raise InvalidInput(
                "batches", None, "is needed by cyclic batches and banded noise", "give batches, such as 20"
            )
        if self.sampling_rate * count("batches", self.batches) > 1 + _WHOLE:
            rule = (
                f"exceeds one over the {self.batches} batches per cycle, at which each record takes part once per cycle"
            )
            raise InvalidInput("sampling-rate", self.sampling_rate, rule, f"give at most 1/{self.batches}, or drop it")
        whole = self.group_rate == 1 and self.relation is Relation.REPLACE_ONE
        if self.relation is not Relation.ADD_REMOVE and not whole:
            raise InvalidInput(
                "relation",
                self.relation.value,
                "has no proved price with batches drawn from groups in a cycle",
                "use add-remove, or for replace-one drop the sampling rate: each record once per cycle",
            )

    def _check_bands(self) -> None:
        if self.noise is not CorrelatedNoise.BANDED:
            if self.bands is not None:
                raise InvalidInput("bands", self.bands, "is for banded noise", "add noise banded, or drop it")
            return
        if self.sampling is not SamplingName.CYCLIC or self.batches is None:
            rule = "has no proved price with banded noise"
            raise InvalidInput("sampling", self.sampling.value, rule, "use cyclic, or drop it")
        object.__setattr__(self, "bands", self.batches if self.bands is None else count("bands", self.bands))
        self.batch_sampling()  # no more bands than batches

    @property
    def ratios(self) -> tuple[float, ...]:
        """The noise multipliers of the batch's values relative to one another; banded noise is that of one value."""
        return self.noise if isinstance(self.noise, tuple) else (1.0,)

    @property
    def group_rate(self) -> float:
        """How likely a member of the round's group joins a cyclic batch; 1 where each takes part once per cycle."""
        within = self.sampling_rate * (self.batches or 1)
        return 1.0 if abs(within - 1) <= _WHOLE else within

    @property
    def unit(self) -> PrivacyUnit:
        return PrivacyUnit.of(self.relation)

    @property
    def rounds_per_epoch(self) -> int:
        return self.batches or 1

    def values(self) -> tuple[NoisyValue, ...]:
        times = None if self.gradient_rounds == self.rounds else self.gradient_rounds
        return tuple(
            NoisyValue(f"value_{index}", self.clip, ratio, times=times, bands=self.bands or 1)
            for index, ratio in enumerate(self.ratios, start=1)
        )

    def once(self) -> tuple[NoisyValue, ...]:
        if self.scale_share is None or self.scale_columns is None:
            return ()
        # Noise r in k publications takes k / r^2 of the squared budget, up to calibration's factor.
        taken = self.gradient_rounds * fsum(1 / ratio**2 for ratio in self.ratios)
        noise = sqrt((1 - self.scale_share) / (self.scale_share * taken))
        return (scale_histogram(self.scale_columns, 1, self.relation, noise),)

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        return with_once(over_rounds(self.batch_sampling(), of_one_batch(values), self.gradient_rounds), once)

    def attained(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release | None:
        reached = reached_over_rounds(self.batch_sampling(), of_one_batch(values), self.gradient_rounds)
        return None if reached is None else with_once(reached, once)

    def batch_sampling(self) -> Sampling | None:
        """How batches are drawn; None for the full data."""
        if self.sampling is SamplingName.POISSON and self.sampling_rate == 1:
            return None
        return sampling_named(
            self.sampling,
            Batch.SECRET,
            rate=self.group_rate if self.sampling is SamplingName.CYCLIC else self.sampling_rate,
            population=self.most_units,
            limit=self.batch_limit,
            batches=self.rounds_per_epoch,
            bands=self.bands,
        )

    def assumptions(self) -> tuple[str, ...]:
        meaning = (
            "the two contributions of one record are at most the clip apart"
            if self.relation is Relation.REPLACE_ATTRIBUTE
            else "each record's contribution to each value has at most the clip as L2 norm"
        )
        mixed = "" if self.bands is None else f", mixed over {self.bands} rounds by the signed column of norm 1"
        return (
            f"The protected unit is one {self.unit.protected.value}, {self.relation.value}.",
            self._drawn(),
            f"The noise is added to sums over the batch{mixed}, and {meaning} ({self.clip:g}).",
            "Sums are divided only by public constants, never by the realised batch size.",
            *(COUNTED_ONCE if self.once() else ()),
        )

    def _drawn(self) -> str:
        match self.batch_sampling():
            case None:
                return "Every round uses the full data."
            case RandomAllocation(batches):
                return (
                    f"In each epoch of {batches} rounds each record joins exactly one batch, uniformly and "
                    "independently of all others, and no one learns which."
                )
            case TruncatedPoisson(population=most, limit=limit):
                return (
                    "Each record joins each batch independently with the sampling rate; of a batch above "
                    f"{limit} records a random {limit} are kept. No party has more than {most} records, and no one "
                    "learns the batch."
                )
            case Cyclic(groups, rate):
                joins = (
                    "all of its records take part" if rate == 1 else "each of its records joins with the same chance"
                )
                return (
                    f"Each record belongs to one of {groups} groups by its own content alone; rounds go through the "
                    f"groups in a fixed cycle, and {joins}" + (", and no one learns which." if rate < 1 else ".")
                )
            case _:
                return "Each record joins each batch independently with the sampling rate, and nobody learns the batch."

    def unprotected(self) -> tuple[str, ...]:
        return ("Whatever else the training publishes, chooses or tunes on the data is not covered.",)


_SIZE_OF = {
    SamplingName.POISSON: ("sampling_rate",),
    SamplingName.TRUNCATED_POISSON: ("sampling_rate", "batch_limit", "most_units"),
    SamplingName.FIXED: ("batch_size",),
    SamplingName.SHUFFLED: ("batch_size",),
    SamplingName.RANDOM_ALLOCATION: ("batches",),
    SamplingName.FULL: (),
}
"""The parameters that say how large batches are."""


@dataclass(frozen=True)
class OwnLoopPlan(Plan):
    """T rounds, each publishing the named sums over one batch; what is summed is the loop's own business.

    Guarantee: the values of one batch are one release with the joint multiplier inside the sampling
    (`releases.joint_gaussian`), priced for one unit under `relation`. That each unit's part of each sum keeps its
    bound is the loop's to ensure; the gate compares the bound and the largest norm that the loop reports with what is
    signed.
    """

    algorithm = AlgorithmName.OWN_LOOP
    summary: ClassVar[str] = (
        "Your training loop in any framework: named sums over a batch, through the gate. Protects one record "
        "or one user."
    )
    arithmetic: ClassVar[str] = (
        "The loop computes what a unit contributes independently of the other units, rounding included, and adds up "
        "without error; neither is checked."
    )
    example: ClassVar[str] = "--epsilon 1 --delta 1e-5 --units 10000 --rounds 1000 --sampling-rate 0.01"
    units: Annotated[int, Flag("N", "Units in the data: a public lower bound; their number for replace relations.")]
    rounds: Annotated[int, ROUNDS_FLAG]
    sampling: Annotated[SamplingName, sampling_flag("How the batch of a round is drawn.", *_SIZE_OF)] = (
        SamplingName.POISSON
    )
    sampling_rate: Annotated[float | None, Flag("Q", "Probability that a unit joins a batch (poisson).")] = None
    batch_size: Annotated[int | None, Flag("M", "Units in a batch (fixed, shuffled).")] = None
    batches: Annotated[int | None, Flag("T", "Batches per epoch (random-allocation).")] = None
    batch_limit: Annotated[int | None, Flag("B", "The most units in a batch (truncated-poisson).")] = None
    most_units: Annotated[int | None, Flag("N", "The most units there are, a public bound (truncated-poisson).")] = None
    names: Annotated[tuple[str, ...], Flag("NAME", "Name of a published value; repeat for several.")] = ("gradient",)
    bounds: Annotated[tuple[float, ...], Flag("C", "L2 bound of one unit's part, one per name; or one for all.")] = (
        1.0,
    )
    noise: Annotated[tuple[float, ...], Flag("R", "Relative noise, one per name; or one for all.")] = (1.0,)
    relation: Annotated[Relation, Flag("", "How neighbouring data sets differ.")] = Relation.ADD_REMOVE
    protects: Annotated[Protected, Flag("", "What one unit is.", choices=("record", "user"))] = Protected.RECORD

    def __post_init__(self) -> None:
        check_sampling(self.sampling, *_SIZE_OF)
        count("units", self.units)
        count("rounds", self.rounds)
        self._check_values()
        self._check_batches()
        _ = self.unit

    def _check_values(self) -> None:
        if not isinstance(self.names, tuple) or not self.names or len(set(self.names)) != len(self.names):
            raise InvalidInput("names", self.names, "must be distinct names, at least one", 'give ("gradient",)')
        for argument, numbers in (("bounds", self.bounds), ("noise", self.noise)):
            if not isinstance(numbers, tuple) or len(numbers) not in (1, len(self.names)):
                raise InvalidInput(argument, numbers, f"must have 1 or {len(self.names)} numbers", "give one per name")
            for number in numbers:
                positive(argument, number)

    def _check_batches(self) -> None:
        wanted = _SIZE_OF[self.sampling]
        for name in dict.fromkeys(name for names in _SIZE_OF.values() for name in names):
            flag, given = name.replace("_", "-"), getattr(self, name)
            if name in wanted and given is None:
                raise InvalidInput(flag, None, f"is needed for {self.sampling.value} batches", f"give {flag}")
            if name not in wanted and given is not None:
                raise InvalidInput(flag, given, f"has no meaning for {self.sampling.value} batches", "drop it")
        self._check_each(rate, "sampling_rate")
        self._check_each(count, "batches", "batch_limit", "most_units")
        if self.batch_size is not None and count("batch-size", self.batch_size) > self.units:
            raise InvalidInput("batch-size", self.batch_size, f"exceeds the {self.units} units", "use a smaller batch")

    @property
    def unit(self) -> PrivacyUnit:
        if self.relation is Relation.REPLACE_ATTRIBUTE:
            return PrivacyUnit.of(self.relation)
        return PrivacyUnit(self.protects, self.relation)

    @property
    def scheme(self) -> Sampling | None:
        """How batches are drawn; None for the full data. Batches are secret wherever a price for that is proved."""
        if self.sampling is SamplingName.POISSON and self.sampling_rate == 1:
            return None
        drawn_anew = self.sampling in (SamplingName.POISSON, SamplingName.FIXED)
        known = self.sampling is SamplingName.SHUFFLED or (drawn_anew and self._apart)
        return sampling_named(
            self.sampling,
            Batch.REVEALED if known else Batch.SECRET,
            rate=self.sampling_rate,
            population=self.most_units or self.units,
            size=self.batch_size,
            batches=self.batches,
            limit=self.batch_limit,
        )

    def values(self) -> tuple[NoisyValue, ...]:
        bounds, noise = (one * len(self.names) if len(one) == 1 else one for one in (self.bounds, self.noise))
        return tuple(NoisyValue(*value) for value in zip(self.names, bounds, noise, strict=True))

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        return over_rounds(self.scheme, of_one_batch(values), self.rounds)

    def attained(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        return reached_over_rounds(self.scheme, of_one_batch(values), self.rounds)

    def assumptions(self) -> tuple[str, ...]:
        batch = {
            SamplingName.POISSON: "Each unit joins each batch independently with the sampling rate.",
            SamplingName.TRUNCATED_POISSON: (
                "Each unit joins each batch independently with the sampling rate; of a batch above the limit a random "
                f"part of {self.batch_limit} is kept, and there are at most {self.most_units} units."
            ),
            SamplingName.FIXED: "Each batch is a fresh uniformly random subset of the signed size.",
            SamplingName.SHUFFLED: "Each epoch goes once through the units in a fresh random order, batch by batch.",
            SamplingName.RANDOM_ALLOCATION: "In each epoch each unit joins exactly one batch, chosen at random.",
            SamplingName.FULL: "Every round uses the full data.",
        }[self.sampling]
        scheme = self.scheme
        if scheme is not None:
            secret = scheme.batch is Batch.SECRET
            batch += " Nobody learns the batch." if secret else " The batches are treated as known to the observer."
        part = (
            "two possible parts are at most the bound apart" if self._apart else "part has at most the bound as L2 norm"
        )
        bounds = ", ".join(f"{value.name} {value.sensitivity:g}" for value in self.values())
        return (
            f"The protected unit is one {self.unit.protected.value}, {self.relation.value}.",
            batch,
            f"Each published value is a sum over the batch in which one unit's {part} ({bounds}).",
            "The loop takes the batch that it is given; nothing else of the data reaches what it publishes or keeps.",
            "Sums are divided only by public constants, never by the realised batch size.",
            "A part beyond its bound or not finite stops the loop with an error; observers do not see such errors.",
        )

    @property
    def _apart(self) -> bool:
        return self.relation is Relation.REPLACE_ATTRIBUTE

    def unprotected(self) -> tuple[str, ...]:
        return (
            "Whatever else the loop publishes, chooses or tunes on the data is not covered.",
            "That a unit's part keeps its bound is checked by the norm that the loop itself reports.",
        )

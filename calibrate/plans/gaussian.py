"""Any DP-SGD: Gaussian values of secret batches, with the sampling and the relation of the user's choice.

With `noise = "banded"` the noise of rounds in a row is correlated so that it cancels in running sums
(docs/theorems/banded.md); batches then go in a cycle.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, ClassVar, assert_never

from calibrate.errors import InvalidInput, count, positive, rate
from calibrate.plans.plan import ROUNDS_FLAG, AlgorithmName, Flag, NoisyValue, Plan, of_one_batch
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Release, Repeated, over_rounds, reached_over_rounds
from calibrate.sampling import Batch, Cyclic, Poisson, RandomAllocation, Sampling, TruncatedPoisson


class BatchSampling(Enum):
    """How secret batches are drawn."""

    POISSON = "poisson"
    RANDOM_ALLOCATION = "random-allocation"
    TRUNCATED_POISSON = "truncated-poisson"
    CYCLIC = "cyclic"


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
    and removed records (docs/theorems/random-allocation.md), cut batches for parties of at most `most_units` records
    (docs/theorems/truncated-poisson.md), cyclic batches with or without banded noise for groups that records join by
    their own content (docs/theorems/banded.md).
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
        BatchSampling,
        Flag(
            "",
            "Batches by independent draws (poisson), the same but never above a limit (truncated-poisson), each "
            "unit in one batch per epoch (random-allocation), or groups in a cycle (cyclic; for banded noise).",
        ),
    ] = BatchSampling.POISSON
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

    def __post_init__(self) -> None:
        rate("sampling-rate", self.sampling_rate)
        count("rounds", self.rounds)
        positive("clip", self.clip)
        if not isinstance(self.noise, tuple | CorrelatedNoise) or self.noise == ():
            rule = "must be a non-empty tuple, or banded"
            raise InvalidInput("noise", self.noise, rule, "give one ratio for each value, or the word banded")
        for ratio in self.ratios:
            positive("noise", ratio)
        if self.noise is CorrelatedNoise.BANDED and self.sampling is BatchSampling.POISSON:
            object.__setattr__(self, "sampling", BatchSampling.CYCLIC)  # within a group, Poisson draws
        self._check_batches()
        self._check_bands()

    def _check_batches(self) -> None:
        for name, value in (("batch-limit", self.batch_limit), ("most-units", self.most_units)):
            if (value is not None) != (self.sampling is BatchSampling.TRUNCATED_POISSON):
                rule = "is for truncated Poisson sampling" if value else "is needed by truncated Poisson sampling"
                raise InvalidInput(name, value, rule, "give it together with sampling truncated-poisson")
        if self.sampling not in (BatchSampling.RANDOM_ALLOCATION, BatchSampling.CYCLIC):
            if self.batches is not None:
                raise InvalidInput(
                    "batches",
                    self.batches,
                    "is for random allocation and for cyclic batches",
                    "add sampling random-allocation or cyclic, or drop it",
                )
            return
        if self.sampling is BatchSampling.CYCLIC:
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
        if self.sampling is not BatchSampling.CYCLIC or self.batches is None:
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
        return tuple(
            NoisyValue(f"value_{index}", self.clip, ratio, bands=self.bands or 1)
            for index, ratio in enumerate(self.ratios, start=1)
        )

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        noisy, sampling = of_one_batch(values), self.batch_sampling()
        return Repeated(noisy, self.rounds) if sampling is None else over_rounds(sampling, noisy, self.rounds)

    def attained(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release | None:
        sampling = self.batch_sampling()
        if not isinstance(sampling, Cyclic):
            return self.publish(values, once)
        return reached_over_rounds(sampling, of_one_batch(values), self.rounds)

    def batch_sampling(self) -> Sampling | None:
        """How batches are drawn; None for the full data."""
        match self.sampling:
            case BatchSampling.POISSON:
                return None if self.sampling_rate == 1 else Poisson(self.sampling_rate, Batch.SECRET)
            case BatchSampling.TRUNCATED_POISSON:
                assert self.most_units is not None
                assert self.batch_limit is not None
                return TruncatedPoisson(self.sampling_rate, self.most_units, self.batch_limit)
            case BatchSampling.RANDOM_ALLOCATION:
                return RandomAllocation(self.rounds_per_epoch, batch=Batch.SECRET)
            case BatchSampling.CYCLIC:
                return Cyclic(self.rounds_per_epoch, self.group_rate, self.bands or 1)
            case _:
                assert_never(self.sampling)

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
        )

    def _drawn(self) -> str:
        match self.batch_sampling():
            case None:
                return "Every round uses the full data."
            case RandomAllocation(batches):
                return (
                    f"In each epoch of {batches} rounds each record joins exactly one batch, uniformly and "
                    "independently of all others, and nobody learns which."
                )
            case TruncatedPoisson(population=most, limit=limit):
                return (
                    "Each record joins each batch independently with the sampling rate; of a batch above "
                    f"{limit} records a random {limit} are kept. No party has more than {most} records, and nobody "
                    "learns the batch."
                )
            case Cyclic(groups, rate):
                joins = (
                    "all of its records take part" if rate == 1 else "each of its records joins with the same chance"
                )
                return (
                    f"Each record belongs to one of {groups} groups by its own content alone; rounds go through the "
                    f"groups in a fixed cycle, and {joins}" + (", and nobody learns which." if rate < 1 else ".")
                )
            case _:
                return "Each record joins each batch independently with the sampling rate, and nobody learns the batch."

    def unprotected(self) -> tuple[str, ...]:
        return ("Whatever else the training publishes, chooses or tunes on the data is not covered.",)

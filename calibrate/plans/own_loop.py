"""A training loop of the user's own: named Gaussian values of one batch per round, drawn and priced as declared."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, ClassVar, assert_never

from calibrate.errors import InvalidInput, count, positive, rate
from calibrate.plans.plan import ROUNDS_FLAG, AlgorithmName, Flag, NoisyValue, Plan, of_one_batch
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from calibrate.releases import Release, Repeated, over_rounds, reached_over_rounds
from calibrate.sampling import Batch, FixedSize, Poisson, RandomAllocation, Sampling, ShuffledEpochs, TruncatedPoisson


class LoopSampling(Enum):
    """How `round_.batch` is drawn."""

    POISSON = "poisson"
    TRUNCATED_POISSON = "truncated-poisson"
    FIXED = "fixed"
    SHUFFLED = "shuffled"
    RANDOM_ALLOCATION = "random-allocation"
    FULL = "full"


_SIZE_OF = {
    LoopSampling.POISSON: ("sampling_rate",),
    LoopSampling.TRUNCATED_POISSON: ("sampling_rate", "batch_limit", "most_units"),
    LoopSampling.FIXED: ("batch_size",),
    LoopSampling.SHUFFLED: ("batch_size",),
    LoopSampling.RANDOM_ALLOCATION: ("batches",),
    LoopSampling.FULL: (),
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
        "A training loop of your own in any framework: named sums over a batch, through the gate. Protects one record "
        "or one user."
    )
    arithmetic: ClassVar[str] = (
        "The loop computes what a unit contributes independently of the other units, rounding included, and adds up "
        "without error; neither is checked."
    )
    example: ClassVar[str] = "--epsilon 1 --delta 1e-5 --units 10000 --rounds 1000 --sampling-rate 0.01"
    units: Annotated[int, Flag("N", "Units in the data: a public lower bound; their number for replace relations.")]
    rounds: Annotated[int, ROUNDS_FLAG]
    sampling: Annotated[LoopSampling, Flag("", "How the batch of a round is drawn.")] = LoopSampling.POISSON
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
        if self.sampling_rate is not None:
            rate("sampling-rate", self.sampling_rate)
        for flag, size in (
            ("batches", self.batches),
            ("batch-limit", self.batch_limit),
            ("most-units", self.most_units),
        ):
            if size is not None:
                count(flag, size)
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
        known = Batch.REVEALED if self.relation is Relation.REPLACE_ATTRIBUTE else Batch.SECRET
        match self.sampling:
            case LoopSampling.FULL:
                return None
            case LoopSampling.POISSON:
                assert self.sampling_rate is not None
                return None if self.sampling_rate == 1 else Poisson(self.sampling_rate, known)
            case LoopSampling.TRUNCATED_POISSON:
                assert self.sampling_rate is not None
                assert self.most_units is not None
                assert self.batch_limit is not None
                return TruncatedPoisson(self.sampling_rate, self.most_units, self.batch_limit)
            case LoopSampling.FIXED:
                assert self.batch_size is not None
                return FixedSize(self.units, self.batch_size, known)
            case LoopSampling.SHUFFLED:
                assert self.batch_size is not None
                return ShuffledEpochs(self.units, self.batch_size, Batch.REVEALED)
            case LoopSampling.RANDOM_ALLOCATION:
                assert self.batches is not None
                return RandomAllocation(self.batches)
            case _:
                assert_never(self.sampling)

    def values(self) -> tuple[NoisyValue, ...]:
        bounds, noise = (one * len(self.names) if len(one) == 1 else one for one in (self.bounds, self.noise))
        return tuple(NoisyValue(*value) for value in zip(self.names, bounds, noise, strict=True))

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        noisy, scheme = of_one_batch(values), self.scheme
        return Repeated(noisy, self.rounds) if scheme is None else over_rounds(scheme, noisy, self.rounds)

    def attained(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        noisy, scheme = of_one_batch(values), self.scheme
        return Repeated(noisy, self.rounds) if scheme is None else reached_over_rounds(scheme, noisy, self.rounds)

    def assumptions(self) -> tuple[str, ...]:
        batch = {
            LoopSampling.POISSON: "Each unit joins each batch independently with the sampling rate.",
            LoopSampling.TRUNCATED_POISSON: (
                "Each unit joins each batch independently with the sampling rate; of a batch above the limit a random "
                f"part of {self.batch_limit} is kept, and there are at most {self.most_units} units."
            ),
            LoopSampling.FIXED: "Each batch is a fresh uniformly random subset of the signed size.",
            LoopSampling.SHUFFLED: "Each epoch goes once through the units in a fresh random order, batch by batch.",
            LoopSampling.RANDOM_ALLOCATION: "In each epoch each unit joins exactly one batch, chosen at random.",
            LoopSampling.FULL: "Every round uses the full data.",
        }[self.sampling]
        scheme = self.scheme
        if scheme is not None:
            secret = scheme.batch is Batch.SECRET
            batch += " Nobody learns the batch." if secret else " The batches count as known to the observer."
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

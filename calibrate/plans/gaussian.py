"""Any DP-SGD: Gaussian values of Poisson batches, with the relation of the user's choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from calibrate.errors import InvalidInput, count, positive, rate
from calibrate.plans.plan import ROUNDS_FLAG, AlgorithmName, Flag, NoisyValue, Plan, of_one_batch
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Release, Repeated, Sampled
from calibrate.sampling import Batch, Poisson


@dataclass(frozen=True)
class GaussianPlan(Plan):
    """T rounds of one or more Gaussian values of one Poisson batch (rate 1: the full data).

    Guarantee: the values of one batch are one release with the joint multiplier inside the sampling
    (`releases.joint_gaussian`). Unit: one record under `relation`; each value's contribution is clipped to
    `clip`. `noise` lists the values' noise multipliers relative to one another.
    """

    algorithm = AlgorithmName.GAUSSIAN
    summary: ClassVar[str] = "Any DP-SGD: one or several Gaussian values of a batch, repeated. Protects one record."
    example: ClassVar[str] = "--epsilon 1 --delta 1e-5 --sampling-rate 0.01 --rounds 1000"
    sampling_rate: Annotated[float, Flag("Q", "Probability that a unit joins a batch (Poisson); 1 is the full batch.")]
    rounds: Annotated[int, ROUNDS_FLAG]
    relation: Annotated[
        Relation, Flag("", "How neighbouring data sets differ.", choices=("add-remove", "replace-one"))
    ] = Relation.ADD_REMOVE
    noise: Annotated[tuple[float, ...], Flag("R", "Relative noise of one value of the batch; repeat for several.")] = (
        1.0,
    )
    clip: Annotated[float, Flag("C", "L2 clip of one unit's contribution.")] = 1.0

    def __post_init__(self) -> None:
        rate("sampling-rate", self.sampling_rate)
        count("rounds", self.rounds)
        positive("clip", self.clip)
        if not isinstance(self.noise, tuple) or not self.noise:
            raise InvalidInput("noise", self.noise, "must be a non-empty tuple", "give one ratio for each value")
        for ratio in self.noise:
            positive("noise", ratio)

    @property
    def unit(self) -> PrivacyUnit:
        return PrivacyUnit.of(self.relation)

    def values(self) -> tuple[NoisyValue, ...]:
        return tuple(NoisyValue(f"value_{index}", self.clip, ratio) for index, ratio in enumerate(self.noise, start=1))

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        noisy = of_one_batch(values)
        if self.sampling_rate == 1:
            return Repeated(noisy, self.rounds)
        return Repeated(Sampled(Poisson(self.sampling_rate, Batch.SECRET), noisy), self.rounds)

    def assumptions(self) -> tuple[str, ...]:
        batch = (
            "Every round uses the full data."
            if self.sampling_rate == 1
            else "Each record joins each batch independently with the sampling rate, and nobody learns the batch."
        )
        meaning = (
            "the two contributions of one record are at most the clip apart"
            if self.relation is Relation.REPLACE_ATTRIBUTE
            else "each record's contribution to each value has at most the clip as L2 norm"
        )
        return (
            f"The protected unit is one {self.unit.protected.value}, {self.relation.value}.",
            batch,
            f"The noise is added to sums over the batch, and {meaning} ({self.clip:g}).",
            "Sums are divided only by public constants, never by the realised batch size.",
        )

    def unprotected(self) -> tuple[str, ...]:
        return ("Whatever else the training publishes, chooses or tunes on the data is not covered.",)

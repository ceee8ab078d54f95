"""FPFL: what the trusted aggregator publishes in T rounds, one noisy sum of the cohort's clipped vectors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, ClassVar, assert_never

from calibrate.errors import InvalidInput, count, positive
from calibrate.plans.plan import (
    NORMALISATION_CLIP_FLAG,
    NORMALISATION_FLAG,
    ROUNDS_FLAG,
    AlgorithmName,
    Flag,
    NoisyValue,
    Plan,
    normalisation_statistics,
    of_one_batch,
    optional_ratio,
    with_once,
)
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from calibrate.releases import Release, Repeated, Sampled
from calibrate.sampling import Batch, FixedSize, Poisson

STATISTICS = "user_statistics"


class CohortSampling(Enum):
    """How the cohort is drawn; it decides the adjacency for which a bound is proved."""

    FIXED = "fixed"
    POISSON = "poisson"


@dataclass(frozen=True)
class FpflPlan(Plan):
    """FPFL with a trusted aggregator and each user's whole vector clipped to `clip`.

    Guarantee: the sum of the cohort's vectors moves by at most C when a user is added or removed, and by at
    most 2C when one is replaced. Poisson cohorts are priced under add-remove, fixed-size cohorts under
    replace-one with both C charged (docs/theorems/fpfl.md, "Adjacency"). Unit: all data of one user.
    """

    algorithm = AlgorithmName.FPFL
    summary: ClassVar[str] = (
        "FPFL: fairness by multipliers under user-level privacy. Protects one user from whoever sees the model; the "
        "aggregator is trusted."
    )
    example: ClassVar[str] = (
        "--epsilon 2 --delta 6e-5 --users 16280 --cohort 200 --rounds 1000 --clip 1 --sampling poisson"
    )
    users: Annotated[int, Flag("K", "Users in the population.")]
    cohort: Annotated[int, Flag("M", "Users in a cohort (expected number, for Poisson).")]
    rounds: Annotated[int, ROUNDS_FLAG]
    clip: Annotated[float, Flag("C", "L2 clip of one user's whole message.")]
    sampling: Annotated[
        CohortSampling, Flag("", "Cohorts of fixed size (replace-one, 2C) or Poisson (add-remove, C).")
    ] = CohortSampling.FIXED
    normalisation_noise_ratio: Annotated[float | None, NORMALISATION_FLAG] = None
    normalisation_clip: Annotated[float, NORMALISATION_CLIP_FLAG] = 1.0

    def __post_init__(self) -> None:
        check_cohort(self.users, self.cohort)
        count("rounds", self.rounds)
        positive("clip", self.clip)
        optional_ratio("normalisation-noise-ratio", self.normalisation_noise_ratio)
        positive("normalisation-clip", self.normalisation_clip)

    @property
    def unit(self) -> PrivacyUnit:
        match self.sampling:
            case CohortSampling.FIXED:
                return PrivacyUnit(Protected.USER, Relation.REPLACE_ONE)
            case CohortSampling.POISSON:
                return PrivacyUnit(Protected.USER, Relation.ADD_REMOVE)
            case _:
                assert_never(self.sampling)

    def values(self) -> tuple[NoisyValue, ...]:
        return (NoisyValue(STATISTICS, self.clip),)

    def once(self) -> tuple[NoisyValue, ...]:
        if self.normalisation_noise_ratio is None:
            return ()
        return (normalisation_statistics(self.normalisation_clip, self.normalisation_noise_ratio),)

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        match self.sampling:
            case CohortSampling.FIXED:
                cohort: FixedSize | Poisson = FixedSize(self.users, self.cohort, Batch.SECRET)
            case CohortSampling.POISSON:
                cohort = Poisson(self.cohort / self.users, Batch.SECRET)
            case _:
                assert_never(self.sampling)
        return with_once(Repeated(Sampled(cohort, of_one_batch(values)), self.rounds), once)

    def assumptions(self) -> tuple[str, ...]:
        drawn = {
            CohortSampling.FIXED: (
                f"Each round's cohort is a fresh uniform subset of exactly {self.cohort} of {self.users} users."
            ),
            CohortSampling.POISSON: (
                f"Each user joins each round's cohort independently with probability {self.cohort}/{self.users}."
            ),
        }[self.sampling]
        return (
            f"The protected unit is all data of one user, {self.unit.relation.value}.",
            drawn,
            "Nobody but the trusted aggregator learns who is in a cohort, not even from silence or timing.",
            f"Each user's whole vector (gradients, group sums and group counts) is clipped to {self.clip:g} in L2.",
            "The aggregator is trusted, adds the noise to the sum, and publishes nothing else.",
            "Divisions by noisy counts happen after the noise and are guarded against small denominators.",
        )

    def unprotected(self) -> tuple[str, ...]:
        number = f"The number of users ({self.users}) and the cohort size are public constants."
        search = "Hyper-parameter search and choosing the best model on private data are not charged."
        if self.normalisation_noise_ratio is not None:
            return (number, search)
        return (number, search, "Normalisation statistics must be public, or paid for (normalisation-noise-ratio).")


def check_cohort(users: int, cohort: int) -> None:
    """Refuse a cohort that is larger than the number of users."""
    count("users", users)
    count("cohort", cohort)
    if cohort > users:
        raise InvalidInput(
            "cohort", cohort, f"exceeds the {users} users", "use a cohort no larger than the number of users"
        )

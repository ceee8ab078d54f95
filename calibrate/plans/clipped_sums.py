"""Noisy sums of clipped contributions in T rounds: of one client's records in FedFDP, of a cohort's users in FPFL.

A FedFDP client sends a noisy clipped gradient and a noisy clipped loss of one batch; FPFL's trusted aggregator
publishes one noisy sum of the cohort's clipped vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from calibrate.errors import InvalidInput, count, positive, rate
from calibrate.plans.plan import (
    NORMALISATION_CLIP_FLAG,
    NORMALISATION_FLAG,
    ROUNDS_FLAG,
    AlgorithmName,
    Flag,
    NoisyValue,
    Plan,
    check_sampling,
    normalisation_statistics,
    of_one_batch,
    sampling_flag,
    unpaid_normalisation,
    with_once,
)
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from calibrate.releases import Release, Repeated, Sampled, over_rounds
from calibrate.sampling import Batch, Poisson, SamplingName, sampling_named

GRADIENT, LOSS = "gradient", "loss"


@dataclass(frozen=True)
class FedfdpPlan(Plan):
    """FedFDP for one client; gradient and loss are two values of one and the same Poisson batch.

    Guarantee: with |1 + lambda Delta| * ||grad|| clipped to `clip` and each loss to [0, loss_clip], adding or
    removing one record moves the sum of the former by at most `clip` (L2) and that of the latter by at most
    `loss_clip`; both together are one Poisson-subsampled Gaussian release with the joint multiplier inside the
    sampling (docs/theorems/fedfdp.md, "One batch, two releases"). Unit: one record, added or removed.

    `loss_noise_ratio` is sigma_l / sigma, both as multipliers of their clips.
    """

    algorithm = AlgorithmName.FEDFDP
    summary: ClassVar[str] = (
        "FedFDP: fair clipping with DP-SGD. Protects one record (add-remove); gradient and loss of a batch are one "
        "joint release."
    )
    example: ClassVar[str] = (
        "--epsilon 2 --delta 1e-5 --sampling-rate 0.05 --rounds 268 --clip 1 --loss-clip 1 \\\n"
        "      --loss-noise-ratio 2.5"
    )
    sampling_rate: Annotated[float, Flag("Q", "Probability that a record joins a batch (Poisson).")]
    rounds: Annotated[int, ROUNDS_FLAG]
    clip: Annotated[float, Flag("C", "L2 clip of one record's weighted gradient.")]
    loss_clip: Annotated[float, Flag("CL", "Clip of one record's loss.")]
    loss_noise_ratio: Annotated[float, Flag("R", "sigma_l = R * sigma: the loss's noise relative to the gradient's.")]
    normalisation_noise_ratio: Annotated[float | None, NORMALISATION_FLAG] = None
    normalisation_clip: Annotated[float, NORMALISATION_CLIP_FLAG] = 1.0

    def __post_init__(self) -> None:
        self._check_each(rate, "sampling_rate")
        self._check_each(count, "rounds")
        self._check_each(positive, "clip", "loss_clip", "loss_noise_ratio")
        self._check_each(positive, "normalisation_noise_ratio", "normalisation_clip")

    @property
    def unit(self) -> PrivacyUnit:
        return PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE)

    def values(self) -> tuple[NoisyValue, ...]:
        return (NoisyValue(GRADIENT, self.clip), NoisyValue(LOSS, self.loss_clip, self.loss_noise_ratio))

    def once(self) -> tuple[NoisyValue, ...]:
        return normalisation_statistics(self.normalisation_clip, self.normalisation_noise_ratio)

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        noisy = Sampled(Poisson(self.sampling_rate, Batch.SECRET), of_one_batch(values))
        return with_once(Repeated(noisy, self.rounds), once)

    def assumptions(self) -> tuple[str, ...]:
        return (
            "The protected unit is one record of one client, added or removed.",
            "Each record joins each batch independently with the sampling rate, and nobody learns the batch.",
            "The noise is added to the sums over the batch, before any division.",
            "The sums are divided by the expected batch size; the realised size is never published or divided by.",
            "An empty batch still publishes noise.",
            (
                f"Each record's factor times gradient is clipped by its absolute size, to {self.clip:g} in L2, also"
                " where 1 + lambda * Delta is negative."
            ),
            "One round is one noisy step on one batch; a client that takes several local steps counts each.",
            (
                "A loss clip that adapts is computed only from values already published, and stays above a positive"
                " constant."
            ),
        )

    def unprotected(self) -> tuple[str, ...]:
        sizes = (
            "The client's number of records (aggregation weight p_i, expected batch size) must be public; under"
            " add-remove it is private data."
        )
        search = "Hyper-parameter search on the same data is not charged."
        return (sizes, search, *unpaid_normalisation(self.normalisation_noise_ratio))


STATISTICS = "user_statistics"


COHORTS = (SamplingName.FIXED, SamplingName.POISSON)
"""How the cohort is drawn; it decides the adjacency for which a bound is proved."""


@dataclass(frozen=True)
class FpflPlan(Plan):
    """FPFL with a trusted aggregator and each user's whole vector clipped to `clip`.

    Guarantee: the sum of the cohort's vectors moves by at most C when a user is added or removed, and by at
    most 2C when one is replaced. Poisson cohorts are priced under add-remove, fixed-size cohorts under
    replace-one with both C charged (docs/theorems/fpfl-and-mmd.md#fpfl, "Adjacency"). Unit: all data of one user.
    """

    algorithm = AlgorithmName.FPFL
    summary: ClassVar[str] = (
        "FPFL: fairness by multipliers under user-level privacy. Protects one user from anyone who sees the model; the "
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
        SamplingName, sampling_flag("Cohorts of fixed size (replace-one, 2C) or Poisson (add-remove, C).", *COHORTS)
    ] = SamplingName.FIXED
    normalisation_noise_ratio: Annotated[float | None, NORMALISATION_FLAG] = None
    normalisation_clip: Annotated[float, NORMALISATION_CLIP_FLAG] = 1.0

    def __post_init__(self) -> None:
        check_sampling(self.sampling, *COHORTS)
        check_cohort(self.users, self.cohort)
        self._check_each(count, "rounds")
        self._check_each(positive, "clip", "normalisation_noise_ratio", "normalisation_clip")

    @property
    def unit(self) -> PrivacyUnit:
        fixed = self.sampling is SamplingName.FIXED
        return PrivacyUnit(Protected.USER, Relation.REPLACE_ONE if fixed else Relation.ADD_REMOVE)

    def values(self) -> tuple[NoisyValue, ...]:
        return (NoisyValue(STATISTICS, self.clip),)

    def once(self) -> tuple[NoisyValue, ...]:
        return normalisation_statistics(self.normalisation_clip, self.normalisation_noise_ratio)

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        sizes = {"population": self.users, "size": self.cohort}
        cohort = sampling_named(self.sampling, Batch.SECRET, rate=self.cohort / self.users, **sizes)
        return with_once(over_rounds(cohort, of_one_batch(values), self.rounds), once)

    def assumptions(self) -> tuple[str, ...]:
        drawn = {
            SamplingName.FIXED: (
                f"Each round's cohort is a fresh uniform subset of exactly {self.cohort} of {self.users} users."
            ),
            SamplingName.POISSON: (
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
        return (number, search, *unpaid_normalisation(self.normalisation_noise_ratio))


def check_cohort(users: int, cohort: int) -> None:
    """Refuse a cohort that is larger than the number of users."""
    count("users", users)
    count("cohort", cohort)
    if cohort > users:
        raise InvalidInput(
            "cohort", cohort, f"exceeds the {users} users", "use a cohort no larger than the number of users"
        )

"""FedFDP: what one client sends in T rounds, a noisy clipped gradient and a noisy clipped loss of one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from calibrate.errors import count, positive, rate
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
from calibrate.sampling import Batch, Poisson

GRADIENT, LOSS = "gradient", "loss"


@dataclass(frozen=True)
class FedfdpPlan(Plan):
    """FedFDP for one client; gradient and loss are two values of one and the same Poisson batch.

    Guarantee: with |1 + lambda Delta| * ||grad|| clipped to `clip` and each loss to [0, loss_clip], adding or
    removing one record moves the sum of the former by at most `clip` (L2) and that of the latter by at most
    `loss_clip`; both together are one Poisson-subsampled Gaussian release with the joint multiplier inside the
    sampling (docs/theorems/fedfdp.md, "One batch, two releases"). Unit: one record, added or removed.

    `loss_noise_ratio` is sigma_l / sigma, both as multipliers of their own clip.
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
        rate("sampling-rate", self.sampling_rate)
        count("rounds", self.rounds)
        positive("clip", self.clip)
        positive("loss-clip", self.loss_clip)
        positive("loss-noise-ratio", self.loss_noise_ratio)
        optional_ratio("normalisation-noise-ratio", self.normalisation_noise_ratio)
        positive("normalisation-clip", self.normalisation_clip)

    @property
    def unit(self) -> PrivacyUnit:
        return PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE)

    def values(self) -> tuple[NoisyValue, ...]:
        return (NoisyValue(GRADIENT, self.clip), NoisyValue(LOSS, self.loss_clip, self.loss_noise_ratio))

    def once(self) -> tuple[NoisyValue, ...]:
        if self.normalisation_noise_ratio is None:
            return ()
        return (normalisation_statistics(self.normalisation_clip, self.normalisation_noise_ratio),)

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
        if self.normalisation_noise_ratio is not None:
            return (sizes, search)
        return (sizes, search, "Normalisation statistics must be public, or paid for (normalisation-noise-ratio).")

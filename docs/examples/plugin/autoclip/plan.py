"""What automatic clipping publishes, and what must hold: all that a price needs. No torch here."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from calibrate.errors import count, positive, rate
from calibrate.plans.plan import Flag, NoisyValue, Plan, PluginName, of_one_batch
from calibrate.privacy_unit import PrivacyUnit, Relation
from calibrate.releases import Release, Repeated, Sampled
from calibrate.sampling import Batch, Poisson

GRADIENT = "gradient"


@dataclass(frozen=True)
class AutoclipPlan(Plan):
    """T noisy sums of gradients that are scaled to R g / (|g| + gamma), on Poisson batches.

    Guarantee: |R g / (|g| + gamma)| < R, so adding or removing one record moves the sum by less than R = `radius`.
    """

    algorithm = PluginName("autoclip")
    summary: ClassVar[str] = "DP-SGD with automatic clipping. Protects one record."
    example: ClassVar[str] = "--epsilon 1 --delta 1e-5 --sampling-rate 0.05 --rounds 100"
    sampling_rate: Annotated[float, Flag("Q", "Probability that a record joins a batch.")]
    rounds: Annotated[int, Flag("T", "Rounds of training.")]
    radius: Annotated[float, Flag("R", "The norm that no record's part reaches.")] = 1.0

    def __post_init__(self) -> None:
        rate("sampling-rate", self.sampling_rate)
        count("rounds", self.rounds)
        positive("radius", self.radius)

    @property
    def unit(self) -> PrivacyUnit:
        return PrivacyUnit.of(Relation.ADD_REMOVE)

    def values(self) -> tuple[NoisyValue, ...]:
        return (NoisyValue(GRADIENT, self.radius),)

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        noisy = of_one_batch(values)
        if self.sampling_rate == 1:
            return Repeated(noisy, self.rounds)
        return Repeated(Sampled(Poisson(self.sampling_rate, Batch.SECRET), noisy), self.rounds)

    def assumptions(self) -> tuple[str, ...]:
        return (
            "The protected unit is one record, which is added or removed.",
            "Each record joins each batch independently with the sampling rate, and nobody learns the batch.",
            "Sums are divided only by public constants, never by the realised batch size.",
        )

    def unprotected(self) -> tuple[str, ...]:
        return ("Whatever else is chosen or tuned on the data is not covered.",)

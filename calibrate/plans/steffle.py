"""SteFFLe: what one silo sends in T rounds of private fair stochastic descent-ascent.

Per round and batch a silo sends the plain loss gradient g, the noisy theta-gradient h_theta and the noisy
W-gradient h_W of the fairness term. Only the two h depend on the sensitive attribute; but g shows the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from calibrate.errors import InvalidInput, UnsupportedCombination, count, open_unit, positive
from calibrate.plans.plan import (
    HISTOGRAM_FLAG,
    ROUNDS_FLAG,
    AlgorithmName,
    Flag,
    NoisyValue,
    PaperNoise,
    Plan,
    attribute_histogram,
    check_sampling,
    of_one_batch,
    sampling_flag,
    with_once,
)
from calibrate.privacy_unit import EpsilonDelta, Norm, PrivacyUnit, Protected, Relation, SensitivityClaim
from calibrate.releases import Release, over_rounds, reached_over_rounds
from calibrate.sampling import Batch, Sampling, SamplingName, sampling_named

H_THETA, H_W = "h_theta", "h_W"


_SAMPLINGS = (SamplingName.SHUFFLED, SamplingName.POISSON, SamplingName.FULL, SamplingName.WITH_REPLACEMENT)
"""How a silo draws its batches. In each case the batch is treated as revealed, because g shows it."""


@dataclass(frozen=True)
class StefflePlan(Plan):
    """SteFFLe for one silo, with W kept in the Frobenius ball of radius `w_radius`.

    Guarantee: replacing one record's attribute moves the batch mean of grad_W psi by at most
    2 sqrt(2) / (m sqrt(rho)) and that of grad_theta psi by at most 2 sqrt(2) D L / (m sqrt(rho)) in L2
    (docs/theorems/steffle.md, "Sensitivities"), whatever the batch. The transcript given the batches is then
    a sequence of Gaussian releases, one for each round the record takes part in. Unit: one record's attribute.

    `theta_share` is the part of a round's budget (of the inverse squared multiplier) spent on h_theta.
    """

    algorithm = AlgorithmName.STEFFLE
    summary: ClassVar[str] = (
        "SteFFLe: private fair federated descent-ascent. Protects one record's sensitive attribute in what a silo "
        "sends; batches are treated as known, because the loss gradient shows them."
    )
    example: ClassVar[str] = (
        "--epsilon 1 --delta 1e-5 --silo-size 7500 --batch-size 256 --rounds 1172 \\\n"
        "      --minority-fraction 0.4 --lipschitz 1 --w-radius 1 --sampling shuffled"
    )
    silo_size: Annotated[int, Flag("N", "Records in the smallest silo.")]
    batch_size: Annotated[int, Flag("M", "Records in a batch; every batch sum is divided by M.")]
    rounds: Annotated[int, ROUNDS_FLAG]
    minority_fraction: Annotated[float, Flag("RHO", "Share of the smallest group, at most 1 / groups.")]
    lipschitz: Annotated[float, Flag("L", "Lipschitz constant of the class probabilities in theta.")]
    w_radius: Annotated[float, Flag("D", "Radius of the Frobenius ball that W is projected onto.")]
    sampling: Annotated[
        SamplingName, sampling_flag("How batches are drawn; they are treated as known to the observer.", *_SAMPLINGS)
    ] = SamplingName.SHUFFLED
    groups: Annotated[int, Flag("K", "Number of sensitive groups.")] = 2
    theta_share: Annotated[float, Flag("S", "Share of a round's budget for h_theta; the rest is h_W's.")] = 0.5
    histogram_noise_ratio: Annotated[float | None, HISTOGRAM_FLAG] = None

    def __post_init__(self) -> None:
        check_sampling(self.sampling, *_SAMPLINGS)
        self._check_each(count, "silo_size", "batch_size", "rounds")
        count("groups", self.groups, least=2)
        self._check_each(positive, "lipschitz", "w_radius", "histogram_noise_ratio")
        self._check_each(open_unit, "minority_fraction", "theta_share")
        if self.minority_fraction * self.groups > 1 + 1e-12:
            raise InvalidInput(
                "minority-fraction",
                self.minority_fraction,
                f"exceeds 1/{self.groups}, and the smallest of {self.groups} groups can't be larger than that",
                "give the smallest group's share of the records",
            )
        if self.batch_size > self.silo_size:
            raise InvalidInput(
                "batch-size",
                self.batch_size,
                f"exceeds the silo of {self.silo_size} records",
                "use a batch no larger than the silo",
            )
        if self.sampling is SamplingName.FULL and self.batch_size != self.silo_size:
            raise InvalidInput(
                "batch-size",
                self.batch_size,
                f"contradicts full batches of {self.silo_size} records",
                "leave the batch size out, or choose another sampling",
            )

    @property
    def unit(self) -> PrivacyUnit:
        return PrivacyUnit(Protected.ATTRIBUTE, Relation.REPLACE_ATTRIBUTE)

    def claims(self) -> tuple[SensitivityClaim, SensitivityClaim]:
        """The two sensitivities with their conditions; proved in docs/theorems/steffle.md."""
        scale = 2 * math.sqrt(2) / (self.batch_size * math.sqrt(self.minority_fraction))
        common = (
            f"every entry of P_S used by the algorithm is at least {self.minority_fraction:g}",
            f"the sum over a batch is divided by {self.batch_size}, whatever the batch's real size",
        )
        theta = (
            *common,
            f"the class probabilities F(x, .) are {self.lipschitz:g}-Lipschitz in theta (L2 to L2)",
            f"W is projected onto the Frobenius ball of radius {self.w_radius:g} before it is used",
        )
        source = "docs/theorems/steffle.md, Sensitivities"
        relation = Relation.REPLACE_ATTRIBUTE
        theta_bound = scale * self.lipschitz * self.w_radius
        return (
            SensitivityClaim("steffle.plan.theta", theta_bound, Norm.L2, relation, theta, source),
            SensitivityClaim("steffle.plan.W", scale, Norm.L2, relation, common, source),
        )

    def values(self) -> tuple[NoisyValue, ...]:
        theta, w = self.claims()
        theta_ratio, w_ratio = 1 / math.sqrt(self.theta_share), 1 / math.sqrt(1 - self.theta_share)
        return (NoisyValue(H_THETA, theta.bound, theta_ratio), NoisyValue(H_W, w.bound, w_ratio))

    def once(self) -> tuple[NoisyValue, ...]:
        return attribute_histogram(self.unit.relation, self.histogram_noise_ratio)

    def printed(self, target: EpsilonDelta) -> PaperNoise:
        if self.histogram_noise_ratio is not None:
            raise UnsupportedCombination(
                "SteFFLe as printed with a noisy histogram",
                "the paper takes the attribute frequencies as known",
                "drop histogram-noise-ratio",
            )
        theta, w = self.claims()
        sigma_w = printed_sigma_w(target, self.rounds, self.silo_size, self.minority_fraction)
        sigma_theta = self.lipschitz * self.w_radius * sigma_w  # sigma_theta = L D sigma_W, as printed
        noise = {H_THETA: sigma_theta / theta.bound, H_W: sigma_w / w.bound}
        return PaperNoise(self, target, noise, "SteFFLe (preprint), Theorem 3.3")

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        return with_once(over_rounds(self._drawn(), of_one_batch(values), self.rounds), once)

    def attained(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        """Shuffled batches: the started epoch in full is an upper bound; really the record is in it by chance."""
        return with_once(reached_over_rounds(self._drawn(), of_one_batch(values), self.rounds), once)

    def _drawn(self) -> Sampling | None:
        sizes = {"population": self.silo_size, "size": self.batch_size}
        return sampling_named(self.sampling, Batch.REVEALED, rate=self.batch_size / self.silo_size, **sizes)

    def assumptions(self) -> tuple[str, ...]:
        theta, _ = self.claims()
        return (
            (
                "The protected unit is one record's sensitive attribute in one silo; features and labels are not"
                " protected."
            ),
            *(f"{text[0].upper()}{text[1:]}." for text in theta.preconditions),
            "The batches are drawn independently of the sensitive attributes.",
            self._batches(),
            "The silo's realised batch size, silence and timing do not depend on the sensitive attributes.",
            *self._frequencies(),
        )

    def _batches(self) -> str:
        if self.sampling is SamplingName.FULL:
            return "Every round uses the whole silo, so there is no batch to keep secret."
        return (
            "The batches count as known to the observer, because the loss gradient g is sent without noise"
            " and shows them; no amplification by sampling is claimed."
        )

    def _frequencies(self) -> tuple[str, ...]:
        if self.histogram_noise_ratio is None:
            return ()
        return (
            (
                "P_S is computed only from the noisy histogram, each entry raised to at least"
                f" {self.minority_fraction:g}."
            ),
        )

    def unprotected(self) -> tuple[str, ...]:
        gradient = (
            "The loss gradient g is sent without noise; this is acceptable only because it does not depend on the"
            " sensitive attribute, and it shows features and labels."
        )
        if self.histogram_noise_ratio is not None:
            return (gradient,)
        return (
            gradient,
            (
                "The attribute frequencies P_S and the minority fraction must be public and not taken from this data;"
                " otherwise pay for them with a noisy histogram (histogram-noise-ratio)."
            ),
        )


def printed_sigma_w(target: EpsilonDelta, rounds: int, silo_size: int, minority_fraction: float) -> float:
    """SteFFLe's Theorem 3.3: sigma_W^2 = 16 T ln(1/delta) / (eps^2 n^2 rho)."""
    variance = 16 * rounds * math.log(1 / target.delta) / minority_fraction
    return math.sqrt(variance) / (target.epsilon * silo_size)

"""Pay once: each record's sensitive attribute is randomised once, and training may use it for ever."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from calibrate.claims import Norm
from calibrate.errors import count
from calibrate.plans.plan import AlgorithmName, Flag, Mechanism, NoisyValue, PlainValue, plain_parameters
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from calibrate.releases import RandomizedResponse, Release

ATTRIBUTE = "randomised_attribute"


@dataclass(frozen=True)
class PayOncePlan:
    """k-ary randomised response on the attribute, once; everything afterwards is post-processing.

    Guarantee: keeping the true group with probability e^eps / (e^eps + k - 1), and otherwise one of the others
    uniformly, changes the likelihood of any answer by at most e^eps (Warner 1965; Kairouz, Oh, Viswanath 2016,
    Section 3). It is pure: delta = 0, and rounds are free. Unit: one record's attribute.
    """

    summary: ClassVar[str] = (
        "Pay once: randomised response on the attribute. Protects one record's sensitive attribute, purely, for as "
        "many rounds as you like."
    )
    example: ClassVar[str] = "--epsilon 1 --delta 1e-5 --groups 2"
    groups: Annotated[int, Flag("K", "Number of sensitive groups.")] = 2
    rounds: Annotated[int, Flag("T", "Rounds of training; they are free.")] = 1

    def __post_init__(self) -> None:
        count("groups", self.groups, least=2)
        count("rounds", self.rounds)

    @property
    def algorithm(self) -> AlgorithmName:
        return AlgorithmName.PAY_ONCE

    @property
    def unit(self) -> PrivacyUnit:
        return PrivacyUnit(Protected.ATTRIBUTE, Relation.REPLACE_ATTRIBUTE)

    def values(self) -> tuple[NoisyValue, ...]:
        return ()

    def once(self) -> tuple[NoisyValue, ...]:
        return (NoisyValue(ATTRIBUTE, 1.0, Norm.L1, 1.0, Mechanism.RANDOMIZED_RESPONSE),)

    def template(self) -> Release:
        """Randomised response at epsilon 1; there is no noise to scale, the epsilon itself is the parameter."""
        return self.at(1.0)

    def at(self, epsilon: float) -> RandomizedResponse:
        return RandomizedResponse(epsilon, self.groups)

    def keep_probability(self, epsilon: float) -> float:
        """The probability with which the true group is kept."""
        return 1 / (1 + (self.groups - 1) * math.exp(-epsilon))

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        return self.template()

    def attained(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        return self.template()

    def joint_noise_ratio(self) -> None:
        return None

    def assumptions(self) -> tuple[str, ...]:
        return (
            "The protected unit is one record's sensitive attribute; features and labels are not protected.",
            "The attribute is randomised once per record with fresh randomness, and never randomised again.",
            "Everything that training, tuning and evaluation see is the randomised attribute, never the true one.",
        )

    def unprotected(self) -> tuple[str, ...]:
        return (
            "Features and labels, and whatever they alone tell about the attribute.",
            "Group frequencies are estimated from the randomised attribute; exact ones must not be used.",
        )

    def parameters(self) -> dict[str, PlainValue]:
        return plain_parameters(self)

"""Pay once: each record's sensitive attribute is randomised once, and training may use it without limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from calibrate.errors import count
from calibrate.plans.plan import AlgorithmName, Flag, NoisyValue, Plan, RandomizedValue
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from calibrate.releases import RandomizedResponse, Release

ATTRIBUTE = "randomised_attribute"


@dataclass(frozen=True)
class PayOncePlan(Plan):
    """k-ary randomised response on the attribute, once; everything afterwards is post-processing.

    Guarantee: keeping the true group with probability e^eps / (e^eps + k - 1), and otherwise one of the others
    uniformly, changes the likelihood of any answer by at most e^eps (Warner 1965; Kairouz, Oh, Viswanath 2016,
    Section 3). It is pure: delta = 0, and rounds are free. Unit: one record's attribute.
    """

    algorithm = AlgorithmName.PAY_ONCE
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
    def unit(self) -> PrivacyUnit:
        return PrivacyUnit(Protected.ATTRIBUTE, Relation.REPLACE_ATTRIBUTE)

    def values(self) -> tuple[NoisyValue, ...]:
        return ()

    def at(self, epsilon: float) -> RandomizedValue:
        """The randomised attribute at this epsilon; there is no noise to scale, the epsilon is the parameter."""
        return RandomizedValue(ATTRIBUTE, RandomizedResponse(epsilon, self.groups))

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        return self.at(1.0).response

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

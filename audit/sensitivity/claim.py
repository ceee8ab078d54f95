"""The claim under test: two neighbouring data sets never give values further apart than a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from calibrate.claims import Norm, SensitivityClaim
from calibrate.errors import positive
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation


@final
@dataclass(frozen=True)
class DistanceClaim:
    """|f(D) - f(D')| <= bound for all neighbours D, D'; an audit judges distances and nothing else.

    A plan's `SensitivityClaim` bounds one unit's *contribution* under add-remove and replace-one; `from_contribution`
    turns it into the distance it implies: under replace-one, twice the bound.
    """

    bound: float
    relation: Relation = Relation.ADD_REMOVE
    protected: Protected = Protected.RECORD
    norm: Norm = Norm.L2

    def __post_init__(self) -> None:
        positive("bound", self.bound)
        _ = self.unit

    @property
    def unit(self) -> PrivacyUnit:
        if self.relation is Relation.REPLACE_ATTRIBUTE:
            return PrivacyUnit(Protected.ATTRIBUTE, self.relation)
        return PrivacyUnit(self.protected, self.relation)

    @classmethod
    def from_contribution(cls, claim: SensitivityClaim, protected: Protected = Protected.RECORD) -> DistanceClaim:
        twice = 2.0 if claim.relation is Relation.REPLACE_ONE else 1.0
        return cls(twice * claim.bound, claim.relation, protected, claim.norm)

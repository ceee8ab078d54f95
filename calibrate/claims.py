"""What a paper or a plan says one unit can change: a sensitivity bound with its conditions and its source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calibrate.errors import InvalidInput, positive
from calibrate.privacy_unit import Relation


class Norm(Enum):
    """In which norm a contribution is bounded; Gaussian noise needs L2, Laplace noise L1."""

    L1 = "L1"
    L2 = "L2"


@dataclass(frozen=True)
class SensitivityClaim:
    """A bound on how far one unit can move a value, and what must hold for it to be true.

    The bound follows the convention of `releases.py`: under add-remove and replace-one it is the largest
    norm of one unit's contribution, under replace-attribute the largest distance between the two
    contributions of one record.
    """

    id: str
    bound: float
    norm: Norm
    relation: Relation
    preconditions: tuple[str, ...]
    citation: str

    def __post_init__(self) -> None:
        positive("bound", self.bound)
        for name in ("id", "citation"):
            if not getattr(self, name).strip():
                raise InvalidInput(name, getattr(self, name), "must not be empty", "name the claim and its source")
        if not isinstance(self.preconditions, tuple):
            raise InvalidInput(
                "preconditions", self.preconditions, "must be a tuple of sentences", "write ('...',) or ()"
            )

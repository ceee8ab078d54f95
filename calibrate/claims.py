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


class NoiseKind(Enum):
    """Which law the noise of a value follows; it decides the norm of the bound."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"

    @property
    def norm(self) -> Norm:
        return Norm.L1 if self is NoiseKind.LAPLACE else Norm.L2


def bounds_apart(relation: Relation) -> float:
    """By how many contribution bounds two neighbouring data sets move a plain sum: the factor 2 of replace-one.

    Every other place that needs the factor asks here, so that it is neither forgotten nor charged twice.
    """
    return 2.0 if relation is Relation.REPLACE_ONE else 1.0


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

    @property
    def distance(self) -> float:
        """How far apart the values of two neighbouring data sets can be."""
        return bounds_apart(self.relation) * self.bound

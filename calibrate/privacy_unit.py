"""What is protected and against which change: the unit, the (epsilon, delta) promise, and what one unit can change."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calibrate.errors import InvalidInput, open_unit, positive


class Protected(Enum):
    """Whose data one neighbouring step changes."""

    RECORD = "record"
    USER = "user"
    ATTRIBUTE = "attribute"


class Relation(Enum):
    """How two neighbouring data sets differ."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
    REPLACE_ATTRIBUTE = "replace-attribute"


@dataclass(frozen=True)
class PrivacyUnit:
    """One protected unit and the relation between neighbouring data sets.

    `REPLACE_ATTRIBUTE` changes only the sensitive attribute of one record; features and label stay and
    are *not* protected.
    """

    protected: Protected
    relation: Relation

    def __post_init__(self) -> None:
        attribute = self.protected is Protected.ATTRIBUTE
        if attribute != (self.relation is Relation.REPLACE_ATTRIBUTE):
            raise InvalidInput(
                "relation",
                self.relation.value,
                f"does not fit the protected unit {self.protected.value!r}",
                "use replace-attribute exactly when the unit is an attribute",
            )

    @classmethod
    def of(cls, relation: Relation) -> PrivacyUnit:
        """The unit a relation speaks of by default: a record, or a record's attribute."""
        attribute = relation is Relation.REPLACE_ATTRIBUTE
        return cls(Protected.ATTRIBUTE if attribute else Protected.RECORD, relation)

    @classmethod
    def named(cls, relation: str | Relation | PrivacyUnit) -> PrivacyUnit:
        """The unit of a relation, given as its text or enum; a unit is returned as it is."""
        if isinstance(relation, PrivacyUnit):
            return relation
        try:
            return cls.of(Relation(relation))
        except ValueError:
            known = ", ".join(each.value for each in Relation)
            raise InvalidInput("relation", relation, "is not known", f"use {known}") from None


@dataclass(frozen=True)
class EpsilonDelta:
    """The promise: every event is at most exp(epsilon) times likelier, up to delta."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        open_unit("delta", self.delta)


@dataclass(frozen=True)
class CertifiedInterval:
    """A certified enclosure of a number: it is at least `lower` and at most `upper`."""

    lower: float
    upper: float

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= self.upper:
            raise InvalidInput(
                "interval", (self.lower, self.upper), "must satisfy 0 <= lower <= upper", "report this as a bug"
            )

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        return f"[<b>{self.lower:.6g}</b>, <b>{self.upper:.6g}</b>] (certified; promise the upper end)"


@dataclass(frozen=True)
class EpsilonInterval(CertifiedInterval):
    """A certified enclosure of the true epsilon; `upper` is what may be promised.

    >>> EpsilonInterval(0.99, 1.0).overlaps(EpsilonInterval(1.0, 1.2))
    True
    """

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        return f"&epsilon; &isin; {super()._repr_html_()}"

    def overlaps(self, other: EpsilonInterval) -> bool:
        """Whether some epsilon is in this interval and in `other`."""
        return self.lower <= other.upper and other.lower <= self.upper

    def agrees_with(self, other: EpsilonInterval) -> bool:
        """Whether this interval and `other` can both be right: they overlap once each end moves outward by a billionth.

        Rounding that an accountant bounds to first order only must not look like a contradiction.
        """
        lower, upper = max(self.lower, other.lower), min(self.upper, other.upper)
        return lower * (1 - _ROUNDING) <= upper * (1 + _ROUNDING)


_ROUNDING = 1e-9


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

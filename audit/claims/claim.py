"""What is claimed about which function: neighbouring data sets never give values further apart than a bound."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, assert_never, final

import numpy as np
import torch
from torch import Tensor

from audit.claims.domain import Domain, NeighbouringPair
from calibrate.errors import InvalidInput, positive
from calibrate.privacy_unit import Norm, PrivacyUnit, Protected, Relation, SensitivityClaim


@final
@dataclass(frozen=True)
class DistanceClaim:
    """|f(D) - f(D')| <= bound for all neighbours D, D'; an audit judges distances and nothing else.

    A plan's `SensitivityClaim` bounds one unit's *contribution* under add-remove and replace-one; `from_contribution`
    turns it into the distance it implies.
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
        """Whose data differs between neighbours, and how."""
        if self.relation is Relation.REPLACE_ATTRIBUTE:
            return PrivacyUnit(Protected.ATTRIBUTE, self.relation)
        return PrivacyUnit(self.protected, self.relation)

    @classmethod
    def from_contribution(cls, claim: SensitivityClaim, protected: Protected = Protected.RECORD) -> DistanceClaim:
        """The distance that a bound on one unit's contribution implies."""
        return cls(claim.distance, claim.relation, protected, claim.norm)


class Arrays(Enum):
    """What the function takes and computes with; through torch, gradients are exact."""

    NUMPY = "numpy"
    TORCH = "torch"


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """A function whose parameters are named after columns and public values of the domain.

    It may return a number, an array, or a tuple of them, which is measured as one vector. A value that is not finite
    counts as infinitely far from everything: no noise hides it.
    """

    function: Callable[..., Any]
    domain: Domain
    arrays: Arrays = Arrays.NUMPY

    def __post_init__(self) -> None:
        _ = self.parameters

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Columns and public values that the function takes."""
        taken = []
        for name, parameter in inspect.signature(self.function).parameters.items():
            if name in self.domain.names and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
                taken.append(name)
            elif parameter.default is inspect.Parameter.empty:
                raise InvalidInput(
                    "function",
                    f"{getattr(self.function, '__name__', 'function')}(.. {name} ..)",
                    f"takes a parameter that is none of {', '.join(self.domain.names)}",
                    "name the parameters after the domain's columns and public values",
                )
        return tuple(taken)

    def distance(self, pair: NeighbouringPair, norm: Norm) -> float:
        """How far apart the function's values on the two data sets are."""
        with warnings.catch_warnings(), np.errstate(all="ignore"), torch.no_grad():
            warnings.simplefilter("ignore")
            return float(self.distance_of(pair.before, pair.after, pair.public, norm))

    def distance_of(
        self, before: Mapping[str, Any], after: Mapping[str, Any], public: Mapping[str, Any], norm: Norm
    ) -> Tensor:
        """The same for arrays or tensors; differentiable where the function is, and given tensors."""
        first, second = self._value(before, public), self._value(after, public)
        if first.shape != second.shape:
            raise InvalidInput(
                "function",
                (tuple(first.shape), tuple(second.shape)),
                "returns values of different sizes on neighbouring data sets, so they have no distance",
                "return a value whose shape does not depend on the records",
            )
        if not bool(torch.isfinite(first).all() and torch.isfinite(second).all()):
            return torch.tensor(math.inf, dtype=torch.float64)
        difference = first - second
        length: Tensor = torch.linalg.vector_norm(difference, ord=1 if norm is Norm.L1 else 2)
        return length

    def _value(self, records: Mapping[str, Any], public: Mapping[str, Any]) -> Tensor:
        given = {name: records[name] if name in records else public[name] for name in self.parameters}
        match self.arrays:
            case Arrays.NUMPY:
                returned = self.function(**{name: _copy(value) for name, value in given.items()})
            case Arrays.TORCH:
                returned = self.function(**{name: _tensor(value) for name, value in given.items()})
            case _:
                assert_never(self.arrays)
        return _flatten(returned)


def _copy(value: Any) -> Any:
    return value.detach().numpy().copy() if isinstance(value, Tensor) else np.array(value)


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))


def _flatten(returned: Any) -> Tensor:
    if isinstance(returned, (tuple, list)) and any(isinstance(part, (Tensor, np.ndarray)) for part in returned):
        return torch.cat([_flatten(part) for part in returned])
    if isinstance(returned, Tensor):
        return returned.reshape(-1).to(torch.float64)
    return torch.from_numpy(np.asarray(returned, dtype=np.float64).reshape(-1).copy())

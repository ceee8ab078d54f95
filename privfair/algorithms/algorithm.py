"""What an algorithm is: a pure contribution on the silo's side, an update from published values alone.

`contribution` sees private data and changes nothing, so an audit can call it on neighbouring data. `update` sees
only what left the gate, so that everything after the gate is post-processing shows in its signature.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, cached_property
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import CheckFailed
from privfair.batches.randomness import Indexes, WordSource
from privfair.contribution import BoundedContribution, Published
from privfair.models.model import Records

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class SiloTensors:
    """One silo's training records as tensors; a unit's number is its row (or its user, see `unit_of_row`)."""

    name: str
    x: Tensor
    y: Tensor
    s: Tensor
    unit_of_row: Tensor | None = None
    """For user-level privacy: which user each row belongs to; None where a unit is a record."""
    client_of_row: Tensor | None = None
    """For a party that collects several clients' records: which client each row is from; units stay records."""
    record_numbers: Tensor | None = None
    """Where attributes are held apart from records: each row's number among the records of all holders."""
    users: int = 0
    """For user-level privacy: how many users there are, those without a row included; 0 where the rows say it."""
    copies: int = 1
    """In a hypothetical population each user stands so often: unit u has the rows of user u modulo users / copies."""

    def __len__(self) -> int:
        return len(self.y)

    def batch(self, rows: Tensor) -> Records:
        """These records: their features, and `of` any other column. All of them are not copied."""
        whole = len(rows) == len(self) and torch.equal(rows, torch.arange(len(self), dtype=rows.dtype))
        return Records(self.x, None if whole else rows)

    def columns(self, rows: Tensor) -> tuple[Records, Tensor, Tensor]:
        """Features, classes and groups of these records."""
        x = self.batch(rows)
        return x, x.of(self.y), x.of(self.s)

    @property
    def units(self) -> int:
        """How many protected units there are: records, or users."""
        if self.unit_of_row is None:
            return len(self)
        return max(self.users, int(self.unit_of_row.max()) + 1 if len(self) else 0)


@dataclass(frozen=True)
class ClearValue:
    """A value sent without noise: why that is acceptable, and whether the protected unit can influence it."""

    name: str
    why: str
    depends_on_unit: bool


@dataclass(frozen=True, eq=False)
class Message:
    """What a silo wants to send in one round; the gate decides."""

    noisy: tuple[BoundedContribution, ...] = ()
    randomized: Mapping[str, NDArray[np.int64]] | None = None
    """Categories to be sent through randomised response, by name."""
    clear: Mapping[str, Floats] | None = None

    @property
    def values(self) -> dict[str, NDArray[Any]]:
        """Every value in the message by name, as it is before the gate."""
        return {**{value.name: value.values for value in self.noisy}, **(self.randomized or {}), **(self.clear or {})}


Received = Mapping[str, Mapping[str, Published]]
"""By silo, then by name: what the gate let out this round."""


class Algorithm(ABC, Generic[State]):
    """What an algorithm is to the engine; its parameters are fixed at construction.

    Every algorithm answers the questions below. Two more have defaults, for the few algorithms that need them: a second
    message per step (`replies`, `reply`) and batches that are not drawn from all units alike (`draws`, `draw`).
    """

    replies: ClassVar[bool] = False
    """Whether a step has a second message, computed from the published values of the first."""
    draws: ClassVar[bool] = False
    """Whether the algorithm draws its own batches, for example so many records of each group."""

    @abstractmethod
    def clear_values(self) -> tuple[ClearValue, ...]:
        """Everything sent without noise."""

    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of every published value, by name."""

    @abstractmethod
    def start(self) -> State:
        """The state before the first step."""

    @abstractmethod
    def contribution(self, state: State, step: int, silo: SiloTensors, batch: Tensor) -> Message:
        """What the silo sends, computed on the rows (or users) `batch`; pure.

        `step` counts the updates made so far. Which values are sent may depend on it and on the state, never on
        the records.
        """

    def reply(self, state: State, step: int, silo: SiloTensors, batch: Tensor, received: Received) -> Message:
        """What the silo sends after `received` was published in this very step, under other names; pure."""
        return Message()

    def draw(self, silo: SiloTensors, source: WordSource) -> Indexes:
        """A fresh batch; all its randomness comes from `source`. Asked only where `draws`."""
        raise NotImplementedError(f"{type(self).__name__} leaves its batches to the engine")

    def deciding_features(self) -> tuple[int, ...]:
        """The features that, with class and group, decide for which set a record is drawn; an audit keeps them."""
        return ()

    @abstractmethod
    def update(self, state: State, received: Received) -> State:
        """The next state, from published values alone."""

    @abstractmethod
    def theta(self, state: State) -> Tensor:
        """The model's parameter vector."""

    def remarks(self, state: State) -> tuple[str, ...]:
        """What whoever uses the model must know about how training ended, from published values alone."""
        return ()

    def checkpoint(self, state: State) -> dict[str, Floats]:
        """The state as named arrays, one per field; it holds published values and what follows from them alone."""
        return _arrays(state)

    def restore(self, arrays: Mapping[str, Floats]) -> State:
        """The state that `checkpoint` wrote as these arrays."""
        restored: State = _restore(self._like, arrays)
        return restored

    @cached_property
    def _like(self) -> State:
        """Types and precision of a state; only these are looked at."""
        return self.start()


def _arrays(state: Any) -> dict[str, Floats]:
    """The fields of a frozen state by name, those of nested states among them; what is None is left out."""
    arrays: dict[str, Floats] = {}
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            arrays[field.name] = np.array(value.detach().numpy(), dtype=np.float64)
        elif is_dataclass(value):
            arrays |= _arrays(value)
        elif isinstance(value, Mapping):
            arrays |= {f"{field.name} of {key}": item.numpy().astype(np.float64) for key, item in value.items()}
        elif value is not None:
            arrays[field.name] = np.array(value, dtype=np.float64)
    return arrays


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _restore(like: Any, arrays: Mapping[str, Floats]) -> Any:
    """A state of the type of `like`, a starting state, which also tells the precision of the tensors."""
    kind: type = type(like)
    hints, values = _hints(kind), {}
    precision = next((value.dtype for value in vars(like).values() if isinstance(value, Tensor)), torch.float64)
    for field in fields(like):
        before, hint = getattr(like, field.name), hints[field.name]
        if is_dataclass(before):
            values[field.name] = _restore(before, arrays)
        elif isinstance(before, Mapping):
            prefix = f"{field.name} of "
            named = {name: array for name, array in arrays.items() if name.startswith(prefix)}
            values[field.name] = {name.removeprefix(prefix): torch.from_numpy(a.copy()) for name, a in named.items()}
        elif field.name in arrays:
            values[field.name] = _as_field(hint, np.array(arrays[field.name]), precision)
        elif NoneType in get_args(hint):
            values[field.name] = None
        else:
            raise CheckFailed(f"a state without {field.name!r} is of another algorithm or version")
    return type(like)(**values)


def _as_field(hint: Any, array: Floats, precision: torch.dtype) -> Any:
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    if Tensor in kinds:
        return torch.from_numpy(array).to(precision)
    if get_origin(kinds[0]) is tuple:
        return tuple(array.tolist())
    return kinds[0](array) if kinds[0] in (bool, int, float) else array

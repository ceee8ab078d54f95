"""A planted bug: a known way to get private training wrong, as a small patch of our own engine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any
from unittest.mock import patch

import numpy as np

from privfair.algorithms.algorithm import Message
from privfair.contribution import BoundedContribution
from tests.planted_bugs.workshop import Engine


class Caught(Enum):
    """The layers of an audit, cheapest first."""

    SEARCH = "sensitivity search"
    CONFORMANCE = "conformance"
    PROBE = "L0 probes"
    NOISE = "L1 noise"
    ATTACK = "L2 attack"


@dataclass(frozen=True)
class Bug:
    """`plant` patches the engine for as long as it is entered; `by` are the layers that must catch it."""

    name: str
    engine: Engine
    plant: Callable[[], AbstractContextManager[Any]]
    by: tuple[Caught, ...]
    claim: str | None = None
    """The sensitivity claim whose search is asked too."""
    updates: int | None = None
    """Steps of the run, where the bug takes more than were signed."""
    attacked: bool = False
    """Whether the statistical attack is asked too, for the page; it takes longer than all other layers."""

    def __str__(self) -> str:
        return self.name


Contribution = Callable[..., Message]


def sending(owner: type, wrong: Callable[..., Message]) -> AbstractContextManager[Any]:
    """`owner.contribution` becomes `wrong(right, self, state, round, silo, batch)`; its own checks are blinded."""
    right: Contribution = owner.contribution  # type: ignore[attr-defined]

    def contribution(self: Any, state: Any, round: int, silo: Any, batch: Any) -> Message:
        return blinded(wrong(right, self, state, round, silo, batch))

    return patch.object(owner, "contribution", contribution)


def blinded(message: Message) -> Message:
    """What the gate would refuse is measured as if it were right: a bug that is not even noticed by its author."""
    noisy = tuple(replace(part, measured=min(part.measured, part.bound)) for part in message.noisy)
    return replace(message, noisy=noisy)


def with_values(message: Message, change: Callable[[str, np.ndarray], np.ndarray]) -> Message:
    """The message with every noisy value changed."""
    noisy = tuple(
        BoundedContribution(part.name, change(part.name, part.values), part.bound, part.measured)
        for part in message.noisy
    )
    return replace(message, noisy=noisy)


def together(*patches: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
    """Several patches as one."""
    stack = ExitStack()
    for one in patches:
        stack.enter_context(one)
    return stack

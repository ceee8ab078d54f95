"""Scores that somebody else's attack gave each record, in a column of the two files."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, final

import numpy as np

from audit.attacks.membership.records import RecordTables
from audit.attacks.membership.result import AttackName
from audit.attacks.membership.signals import Signals
from calibrate.arrays import Floats


class Direction(Enum):
    """Which end of a score means "member"."""

    LARGER = "larger"
    SMALLER = "smaller"
    """For example a loss."""


@final
@dataclass(frozen=True)
class UserScore:
    """The score as it is; for the bound on epsilon it must have been made without knowing who is a member."""

    name: ClassVar[AttackName] = AttackName.SCORE
    least_models: ClassVar[int] = 0

    def scores(self, signals: Signals) -> Floats:
        return signals.target


def read_scores(tables: RecordTables, column: str, direction: Direction = Direction.LARGER) -> Floats:
    """One score a record, members first; larger means "member"."""
    values = np.concatenate([table.numbers(column) for table in (tables.members, tables.nonmembers)])
    return values if direction is Direction.LARGER else -values

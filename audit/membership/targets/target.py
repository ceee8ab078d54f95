"""What every target can do: give its signal on records, and say which shadow models resemble it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol, final

import numpy as np

from audit.membership.records import AuditedRecords, RecordTables
from audit.membership.shadow.train import ShadowRecipe
from audit.membership.signals import Signals, phi_from_logits, phi_from_probabilities
from audit.report.results import AttackName
from calibrate.arrays import Floats, Integers
from calibrate.errors import InvalidInput
from privfair.data.read import BadData


class OutputKind(Enum):
    """What a model's outputs are."""

    BY_LOOK = "by-look"
    """Probabilities if every row is at least 0 and adds up to 1, else logits."""
    PROBABILITIES = "probabilities"
    LOGITS = "logits"


class Target(Protocol):
    """A trained model under attack."""

    @property
    def kind(self) -> str: ...

    @property
    def source(self) -> str:
        """The file or folder, or a name."""
        ...

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """In the order of the outputs; None if the model does not say."""
        ...

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The columns it takes, if it knows them by name."""
        ...

    def signal(self, records: AuditedRecords) -> Floats:
        """phi of every row."""
        ...

    def shadow_recipe(self, records: AuditedRecords) -> ShadowRecipe:
        """Models that resemble it, where nothing else is asked for."""
        ...


def numeric_inputs(records: AuditedRecords, source: str) -> Floats:
    """The columns in the files' order; text has no place in a model that takes numbers alone."""
    for name, values in records.columns.items():
        if values.dtype.kind not in "biuf":
            raise BadData(
                source,
                "takes numbers, and this column of the records holds text",
                "encode it as the model expects, or leave it out (--drop)",
                column=name,
            )
    return np.column_stack([values.astype(np.float64) for values in records.columns.values()])


def phi_of_outputs(outputs: Floats, labels: Integers, kind: OutputKind, source: str) -> Floats:
    """phi from a model's raw outputs; a single output column must be explained."""
    table = np.asarray(outputs, dtype=np.float64)
    table = table[:, np.newaxis] if table.ndim == 1 else table
    if table.ndim != 2 or len(table) != len(labels):
        raise InvalidInput(
            "model", source, f"gave outputs of shape {table.shape}, not one row per record", "check its output"
        )
    if not np.isfinite(table).all():
        raise InvalidInput("model", source, "gave outputs that are not finite", "check model and records")
    if table.shape[1] == 1:
        table = _two_columns(table[:, 0], kind, source)
    looks_like_probabilities = (table >= 0).all() and np.allclose(table.sum(axis=1), 1.0, atol=1e-3)
    if labels.max() >= table.shape[1]:
        raise InvalidInput(
            "model",
            source,
            f"has {table.shape[1]} outputs, and the records have a class number {int(labels.max())}",
            "name the classes in the model's order (--classes)",
        )
    if kind is OutputKind.PROBABILITIES or (kind is OutputKind.BY_LOOK and looks_like_probabilities):
        return phi_from_probabilities(table, labels)
    return phi_from_logits(table, labels)


def _two_columns(single: Floats, kind: OutputKind, source: str) -> Floats:
    match kind:
        case OutputKind.PROBABILITIES:
            return np.column_stack((1 - single, single))
        case OutputKind.LOGITS:
            return np.column_stack((np.zeros_like(single), single))
        case OutputKind.BY_LOOK:
            raise InvalidInput(
                "model",
                source,
                "has one output column, which may be a probability or a logit of the second class",
                "say which: --outputs probabilities or --outputs logits",
            )


# Scores that somebody else's attack gave each record, in a column of the two files.


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
    """One score per record, members first; larger means "member"."""
    values = np.concatenate([table.numbers(column) for table in (tables.members, tables.nonmembers)])
    return values if direction is Direction.LARGER else -values

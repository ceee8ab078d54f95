"""What the columns of a table mean: target, sensitive attribute, features, and their public facts.

A schema is the single source of numbering. Class and group numbers are positions in its lists; a list that is
not declared is resolved once over *all* silos (sorted) and remembered as a fact read off the data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any

from calibrate.errors import InvalidInput
from privfair.data.facts import Json, digest
from privfair.data.scaling import (
    NonPrivateStandardisation,
    PaidScaling,
    PublicBounds,
    PublicMeanScale,
    Scaling,
    Transform,
    Unscaled,
    scaling_as_json,
)

SCHEMA_VERSION = 1


class Coverage(Enum):
    """What every silo must contain before it may take part."""

    ALL_GROUPS_TWO_CLASSES = "all-groups"
    ANYTHING = "anything"


@dataclass(frozen=True)
class CodedColumn:
    """A column whose cells are names from a list: the target, the attribute or a categorical feature.

    `values` in order is the numbering; `None` asks to read it off the data. `merge` replaces names first, as a
    tuple of (name in the file, name in the list).
    """

    name: str
    values: tuple[str, ...] | None = None
    merge: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.values is not None:
            if not self.values or len(set(self.values)) != len(self.values):
                raise InvalidInput(
                    f"values of column {self.name!r}", self.values, "must be distinct and not empty", "list each once"
                )
            for source, target in self.merge:
                if target not in self.values or source in self.values:
                    raise InvalidInput(
                        f"merge of column {self.name!r}",
                        f"{source} -> {target}",
                        "must lead from a name outside the list to a name in it",
                        "mend the list or the merge",
                    )

    def as_json(self) -> dict[str, Json]:
        return {
            "column": self.name,
            "values": None if self.values is None else list(self.values),
            "merge": [[source, target] for source, target in self.merge],
        }


@dataclass(frozen=True)
class NumericColumn:
    """A number and how it is scaled; for each of its `steps` there is a feature that says whether it is reached.

    Steps let a linear model bend. They are values of the file, in ascending order, and public like any constant here.
    """

    name: str
    scaling: Scaling
    steps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        finite = all(math.isfinite(step) for step in self.steps)
        if not finite or any(low >= high for low, high in pairwise(self.steps)):
            raise InvalidInput(
                f"steps of column {self.name!r}",
                self.steps,
                "must be finite numbers in ascending order",
                "list each once, the smallest first",
            )

    @property
    def step_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}>={step:g}" for step in self.steps)

    def as_json(self) -> dict[str, Json]:
        document: dict[str, Json] = {"column": self.name, "scaling": scaling_as_json(self.scaling)}
        return document | ({"steps": list(self.steps)} if self.steps else {})


@dataclass(frozen=True)
class Schema:
    """The meaning of a table.

    Features are the numeric columns in order, then the categorical ones, one-hot, then the numeric columns' steps.
    """

    target: CodedColumn
    sensitive: CodedColumn | None
    numeric: tuple[NumericColumn, ...] = ()
    categorical: tuple[CodedColumn, ...] = ()
    silo_column: str | None = None
    coverage: Coverage = Coverage.ALL_GROUPS_TWO_CLASSES
    side_columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.numeric and not self.categorical:
            raise InvalidInput(
                "schema", "no features", "must have a feature", "declare a numeric or categorical column"
            )
        features = [c.name for c in self.numeric] + [c.name for c in self.categorical]
        if len(set(features)) != len(features):
            twice = sorted({name for name in features if features.count(name) > 1})
            raise InvalidInput("schema", twice, "a column must be declared once", "drop one of the declarations")
        self._require_role_apart("target", self.target.name, features)
        if self.sensitive is not None:
            # The gradient of the loss is published without noise under attribute privacy, so an attribute among
            # the features would be published with it.
            self._require_role_apart("sensitive", self.sensitive.name, features)
            self._require_role_apart("sensitive", self.sensitive.name, [self.target.name])
            if self.silo_column == self.sensitive.name:
                raise InvalidInput(
                    "silo column", self.silo_column, "must not be the sensitive column", "split by another column"
                )
            if self.sensitive.name in self.side_columns:
                raise InvalidInput(
                    "kept column", self.sensitive.name, "must not be the sensitive column", "keep another column"
                )
            self._require_two("groups", self.sensitive)
        self._require_two("classes", self.target)

    @staticmethod
    def _require_role_apart(role: str, name: str, others: list[str]) -> None:
        if name in others:
            raise InvalidInput(
                f"{role} column", name, "must not be a feature or have another role", "declare it in one place only"
            )

    @staticmethod
    def _require_two(what: str, column: CodedColumn) -> None:
        if column.values is not None and len(column.values) < 2:
            raise InvalidInput(what, column.values, "must be at least two", "list every value the column can take")

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that a file must have, in the order of the schema."""
        extra = tuple(name for name in (self.silo_column, *self.side_columns) if name is not None)
        sensitive = () if self.sensitive is None else (self.sensitive.name,)
        features = tuple(c.name for c in self.numeric) + tuple(c.name for c in self.categorical)
        return tuple(dict.fromkeys((self.target.name, *sensitive, *features, *extra)))

    @property
    def unresolved(self) -> tuple[str, ...]:
        """The coded columns whose list is not declared and must be read off the data."""
        coded = (self.target, *(() if self.sensitive is None else (self.sensitive,)), *self.categorical)
        return tuple(column.name for column in coded if column.values is None)

    @property
    def feature_names(self) -> tuple[str, ...]:
        names = [column.name for column in self.numeric]
        for column in self.categorical:
            names += [f"{column.name}={value}" for value in column.values or ()]
        for numeric in self.numeric:
            names += numeric.step_names
        return tuple(names)

    def as_json(self) -> dict[str, Json]:
        """Everything that decides how a file becomes arrays; which column names the silo is not part of it."""
        return {
            "version": SCHEMA_VERSION,
            "target": self.target.as_json(),
            "sensitive": None if self.sensitive is None else self.sensitive.as_json(),
            "numeric": [column.as_json() for column in self.numeric],
            "categorical": [column.as_json() for column in self.categorical],
        }

    @property
    def digest(self) -> str:
        return digest(self.as_json())


# A schema as JSON and back, so that a run folder can carry the schema its model was trained with.


def schema_from_json(document: Json) -> Schema:
    """The inverse of `Schema.as_json`; the result has the same digest, or this raises.

    Which column named the silo and what each silo had to hold are not part of the document: they belong to the
    files, not to the meaning of a record.
    """
    try:
        schema = _schema(document)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("schema", "document", f"is not a schema ({error})", "take it from a run") from None
    if schema.as_json() != document:
        raise InvalidInput("schema", "document", "has fields that this version does not know", "take it from a run")
    return schema


def _schema(document: Any) -> Schema:
    if document["version"] != SCHEMA_VERSION:
        raise ValueError(f"version {document['version']!r} is not known")
    return Schema(
        target=_coded(document["target"]),
        sensitive=None if document["sensitive"] is None else _coded(document["sensitive"]),
        numeric=tuple(
            NumericColumn(entry["column"], _scaling(entry["scaling"]), tuple(entry.get("steps", ())))
            for entry in document["numeric"]
        ),
        categorical=tuple(_coded(entry) for entry in document["categorical"]),
    )


def _coded(entry: Any) -> CodedColumn:
    values = None if entry["values"] is None else tuple(entry["values"])
    return CodedColumn(entry["column"], values, tuple((source, target) for source, target in entry["merge"]))


def _scaling(entry: Any) -> Scaling:
    match entry["kind"]:
        case "public-bounds":
            return PublicBounds(entry["low"], entry["high"], Transform(entry["transform"]))
        case "public-mean-scale":
            return PublicMeanScale(entry["mean"], entry["scale"], Transform(entry["transform"]), entry["reach"])
        case "paid":
            known = (entry["mean"], entry["scale"], entry["receipt"], Transform(entry["transform"]), entry["reach"])
            return PaidScaling(*known)
        case "non-private-standardisation":
            return NonPrivateStandardisation(Transform(entry["transform"]))
        case "unscaled":
            return Unscaled()
        case other:
            raise ValueError(f"scaling {other!r} is not known")

"""What the columns of a table mean: target, sensitive attribute, features, how numbers are scaled, and public facts.

A schema is the single source of numbering. Class and group numbers are positions in its lists; a list that is
not declared is resolved once over *all* silos (sorted) and remembered as a fact taken from the data.

A numeric column becomes a feature by public constants, or not at all. The union `Scaling` is closed. Statistics of
private records enter only by a door with a name on it: `NonPrivateStandardisation`, which every run that protects
features refuses (see `DerivedFact`). Scales that are paid for come after the schema (docs/theorems/fair-plugin.md).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import pairwise, product
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, JsonValue, TypeAdapter

from calibrate.arrays import AnyFloats
from calibrate.errors import InvalidInput, positive
from calibrate.manifest.strict_json import Json
from privfair.data.stability import digest


class Transform(Enum):
    """A fixed monotone map applied before scaling."""

    IDENTITY = "identity"
    SIGNED_LOG = "signed-log"

    def apply(self, values: AnyFloats) -> AnyFloats:
        if self is Transform.IDENTITY:
            return values
        return np.sign(values) * np.log1p(np.abs(values))


@dataclass(frozen=True)
class PublicBounds:
    """Values are clipped to [low, high] and mapped linearly to [0, 1] (after the transform).

    The bounds must be known without looking at the records: from a codebook, a law, a form's limits.
    """

    low: float
    high: float
    transform: Transform = Transform.IDENTITY
    kind: Literal["public-bounds"] = "public-bounds"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidInput(
                "bounds",
                (self.low, self.high),
                "must be two finite numbers, the lower first",
                "give for example 0, 100",
            )

    def apply(self, values: AnyFloats) -> AnyFloats:
        ends = self.transform.apply(np.array([self.low, self.high], dtype=np.float64))
        inside = self.transform.apply(np.clip(values, self.low, self.high))
        return np.asarray((inside - ends[0]) / (ends[1] - ends[0]))


@dataclass(frozen=True)
class _MeanScale:
    """(transform(value) - mean) / scale, clipped to [-reach, reach].

    So one absurd cell cannot dominate a record's gradient.
    """

    mean: float
    scale: float
    transform: Transform = Transform.IDENTITY
    reach: float = 10.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.mean):
            raise InvalidInput("mean", self.mean, "must be a finite number", "give the public mean")
        positive("scale", self.scale)
        positive("reach", self.reach)

    def apply(self, values: AnyFloats) -> AnyFloats:
        scaled = (self.transform.apply(values) - self.mean) / self.scale
        return np.asarray(np.clip(scaled, -self.reach, self.reach))


@dataclass(frozen=True)
class PublicMeanScale(_MeanScale):
    """A mean and a scale that are public knowledge."""

    kind: Literal["public-mean-scale"] = "public-mean-scale"


@dataclass(frozen=True)
class NonPrivateStandardisation:
    """Mean 0 and variance 1 over the training records: a fact about private data, used without payment."""

    transform: Transform = Transform.IDENTITY
    kind: Literal["non-private-standardisation"] = "non-private-standardisation"

    def apply(self, values: AnyFloats) -> AnyFloats:
        return self.transform.apply(values)


@dataclass(frozen=True)
class Unscaled:
    """The value as the file has it."""

    kind: Literal["unscaled"] = "unscaled"

    def apply(self, values: AnyFloats) -> AnyFloats:
        return values


Scaling = PublicBounds | PublicMeanScale | NonPrivateStandardisation | Unscaled


SCHEMA_VERSION = 1
NO_CATEGORY = "no-category"

ColumnName = Annotated[str, Field(alias="column")]


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

    name: ColumnName
    values: tuple[str, ...] | None = None
    merge: tuple[tuple[str, str], ...] = ()
    unseen: str | None = None
    """The listed value (or `NO_CATEGORY`: none of them) that stands for an unlisted or missing one in records to be
    predicted; None refuses them. In training records an unlisted value is always an error."""
    parts: tuple[CodedColumn, ...] = ()
    """The columns whose values together are one value of this one; none of a column that a file has itself."""

    @classmethod
    def product(cls, parts: Sequence[CodedColumn]) -> CodedColumn:
        """One column whose values are all combinations of the parts' values, the last part's varying fastest."""
        if len(parts) == 1:
            return parts[0]
        unlisted = [part.name for part in parts if part.values is None]
        if unlisted:
            rule = "must list their values to be combined"
            raise InvalidInput("sensitive", ", ".join(unlisted), rule, "list them in the schema")
        values = tuple(" & ".join(names) for names in product(*(part.values or () for part in parts)))
        return cls(" & ".join(part.name for part in parts), values, parts=tuple(parts))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a file that it is read from."""
        return tuple(part.name for part in self.parts) or (self.name,)

    def __post_init__(self) -> None:
        if self.unseen is not None and self.unseen not in (*(self.values or ()), NO_CATEGORY):
            raise InvalidInput(
                f"unseen of column {self.name!r}",
                self.unseen,
                f"must be a listed value or {NO_CATEGORY!r}",
                "list it under values",
            )
        if self.values is not None:
            if not self.values:
                rule, remedy = "are not filled in", 'list them, for example ["no", "yes"], from a codebook or a form'
                raise InvalidInput(f"values of column {self.name!r}", self.values, rule, remedy)
            if len(set(self.values)) != len(self.values):
                raise InvalidInput(f"values of column {self.name!r}", self.values, "must be distinct", "list each once")
            for source, target in self.merge:
                if target not in self.values or source in self.values:
                    raise InvalidInput(
                        f"merge of column {self.name!r}",
                        f"{source} -> {target}",
                        "must lead from a name outside the list to a name in it",
                        "fix the list or the merge",
                    )


@dataclass(frozen=True)
class Missing:
    """What replaces a cell without a number: a public value, and whether a separate feature marks it."""

    value: float
    indicator: bool = False

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise InvalidInput("missing", self.value, "must be a finite number", "give a public value")


@dataclass(frozen=True)
class NumericColumn:
    """A number and how it is scaled; for each of its `steps` there is a feature that says whether it is reached.

    Steps let a linear model bend. They are values of the file, in ascending order, and public like any constant here.
    """

    name: ColumnName
    scaling: Annotated[Scaling, Field(discriminator="kind")]
    steps: tuple[float, ...] = ()
    missing: Missing | None = None

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

    @property
    def fill(self) -> float | None:
        """What stands for a missing number; None if there must not be one."""
        return None if self.missing is None else self.missing.value


@dataclass(frozen=True)
class Schema:
    """The meaning of a table.

    Features are the numeric columns in order, then the categorical ones, one-hot, then the numeric columns' steps, then
    the indicators of missing numbers.
    """

    target: CodedColumn
    sensitive: CodedColumn | None
    numeric: tuple[NumericColumn, ...] = ()
    categorical: tuple[CodedColumn, ...] = ()
    silo_column: str | None = None
    silo_names: tuple[str, ...] | None = None
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
            for name in self.sensitive.columns:
                self._require_role_apart("sensitive", name, features)
                self._require_role_apart("sensitive", name, [self.target.name])
                for use, names in (("silo", (self.silo_column,)), ("kept", self.side_columns)):
                    if name in names:
                        rule = "must not be the sensitive column"
                        raise InvalidInput(f"{use} column", name, rule, "name another column")
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
        sensitive = () if self.sensitive is None else self.sensitive.columns
        features = tuple(c.name for c in self.numeric) + tuple(c.name for c in self.categorical)
        return tuple(dict.fromkeys((self.target.name, *sensitive, *features, *extra)))

    @property
    def unresolved(self) -> tuple[str, ...]:
        """The coded columns whose list is not declared and must be taken from the data."""
        coded = (self.target, *(() if self.sensitive is None else (self.sensitive,)), *self.categorical)
        return tuple(column.name for column in coded if column.values is None)

    @property
    def feature_names(self) -> tuple[str, ...]:
        names = [column.name for column in self.numeric]
        for column in self.categorical:
            names += [f"{column.name}={value}" for value in column.values or ()]
        for numeric in self.numeric:
            names += numeric.step_names
        names += [f"{column.name} is missing" for column in self.with_indicator]
        return tuple(names)

    @property
    def with_indicator(self) -> tuple[NumericColumn, ...]:
        """The numeric columns with a feature that says whether the number is missing."""
        return tuple(column for column in self.numeric if column.missing is not None and column.missing.indicator)

    def as_json(self) -> dict[str, JsonValue]:
        """Everything that decides how a file becomes arrays."""
        columns = _adapter().dump_python(self, mode="json", by_alias=True, include=set(_COLUMNS))
        # What is not declared is left out, as documents were written before it could be.
        for column in columns["numeric"]:
            for key in ("steps", "missing"):
                if not column[key]:
                    del column[key]
        groups = [columns["sensitive"], *columns["sensitive"]["parts"]] if self.sensitive else []
        for coded in (columns["target"], *columns["categorical"], *groups):
            for key in ("unseen", "parts"):
                if not coded[key]:
                    del coded[key]
        return {"version": SCHEMA_VERSION, **columns}

    @property
    def digest(self) -> str:
        return digest(self.as_json())


@cache
def _adapter() -> TypeAdapter[Schema]:
    return TypeAdapter(Schema)


# A schema as JSON and back, so that a run folder can carry the schema its model was trained with.

_COLUMNS = ("target", "sensitive", "numeric", "categorical")
"""What decides how a file becomes arrays; which column names the silo does not."""


def schema_from_json(document: Mapping[str, Json]) -> Schema:
    """The inverse of `Schema.as_json`; the result has the same digest, or this raises.

    Which column named the silo and what each silo had to hold are not part of the document: they belong to the
    files, not to the meaning of a record.
    """
    try:
        parts = {name: document[name] for name in _COLUMNS}
        schema = _adapter().validate_json(json.dumps(parts), strict=True)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            "schema", "document", f"is not a schema ({type(error).__name__})", "take it from a run"
        ) from None
    if schema.as_json() != document:
        raise InvalidInput("schema", "document", "is not of this version, or has unknown fields", "take it from a run")
    return schema

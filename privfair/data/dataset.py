"""Records in memory: features, labels and groups with the names behind every number, and the silos that hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import AnyFloats, Integers
from calibrate.errors import InvalidInput
from calibrate.manifest.document import DataBinding
from calibrate.privacy_unit import PrivacyUnit
from privfair.data.read import MISSING
from privfair.data.schema import Schema
from privfair.data.stability import DerivedFact, NothingPromised, Stability, require_allowed

EVERYONE: tuple[str, ...] = ("everyone",)
"""The group names of a data set without a sensitive attribute."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Records as arrays that cannot be written to.

    `label[i]` indexes `class_names` and `group[i]` indexes `group_names`. The numbering comes from the
    schema, once for all silos: two data sets with the same `schema_digest` use the same numbers. `features` has one
    row per record; further axes are free (images). `side_columns` are kept for partitions and are never
    features. `steps` are the steps that only this data set's loader makes. `unscaled_features` still wait for
    non-private standardisation. `schema` is what a table was encoded with, every list filled in; images and made-up
    data have none.
    """

    features: AnyFloats
    label: Integers
    group: Integers
    feature_names: tuple[str, ...]
    class_names: tuple[str, ...]
    group_names: tuple[str, ...]
    schema_digest: str
    schema: Schema | None = None
    side_columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    derived: tuple[DerivedFact, ...] = ()
    steps: tuple[Stability, ...] = ()
    unscaled_features: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        features = np.asarray(self.features)
        if features.ndim < 2 or not np.issubdtype(features.dtype, np.floating):
            raise InvalidInput(
                "features",
                (features.shape, str(features.dtype)),
                "must be a floating-point array with one row per record",
                "give an array of shape (records, features)",
            )
        if not np.isfinite(features).all():
            raise InvalidInput("features", "NaN or infinity", "must be finite", "drop or impute such records first")
        if features.ndim == 2 and features.shape[1] != len(self.feature_names):
            raise InvalidInput(
                "feature_names", len(self.feature_names), f"must name all {features.shape[1]} columns", "name each once"
            )
        for names, argument in ((self.class_names, "class_names"), (self.group_names, "group_names")):
            if len(set(names)) != len(names) or not names:
                raise InvalidInput(argument, names, "must be distinct and not empty", "name each once")
        label = _codes("label", self.label, len(features), len(self.class_names))
        group = _codes("group", self.group, len(features), len(self.group_names))
        sides = {name: _side_column(name, values, len(features)) for name, values in self.side_columns.items()}
        object.__setattr__(self, "features", _read_only(features))
        object.__setattr__(self, "label", label)
        object.__setattr__(self, "group", group)
        object.__setattr__(self, "side_columns", MappingProxyType(sides))

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        """Names and shapes only: a log or a traceback must not show records."""
        return (
            f"Dataset({len(self)} records, feature shape {self.feature_shape}, "
            f"classes {self.class_names}, groups {self.group_names})"
        )

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def groups(self) -> int:
        return len(self.group_names)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        return tuple(self.features.shape[1:])

    def rows(self, indexes: Integers) -> Dataset:
        """The records at `indexes`, in that order."""
        return replace(
            self,
            features=self.features[indexes],
            label=self.label[indexes],
            group=self.group[indexes],
            side_columns={name: values[indexes] for name, values in self.side_columns.items()},
        )

    def side_column(self, name: str) -> NDArray[Any]:
        """A column that is not a feature, for instance the one that says which silo a record belongs to."""
        if name not in self.side_columns:
            raise InvalidInput(
                "column", name, "is not kept next to the features", f"choose one of {sorted(self.side_columns)}"
            )
        return self.side_columns[name]

    def identifiers(self, name: str) -> list[str]:
        """What a side column calls each record's person, silo or the record itself, spelled by its own cell alone.

        Decimals are refused, and so are records without a value: as numbers with gaps they would be spelled in another
        way than without, and everybody without an id would be one and the same person.
        """
        column = self.side_column(name)
        if column.dtype.kind == "f":
            rule, remedy = "holds decimal numbers, and is to tell people or records apart", "use text or whole numbers"
            raise InvalidInput("column", name, rule, remedy)
        cells = [str(cell) for cell in column.tolist()]
        if any(cell.strip().lower() in MISSING for cell in set(cells)):
            rule = "has records without a value, and is to tell people or records apart"
            raise InvalidInput("column", name, rule, "give every record one, or drop these records")
        return cells

    def group_counts(self) -> Integers:
        return np.bincount(self.group, minlength=self.groups)

    def class_counts(self) -> Integers:
        return np.bincount(self.label, minlength=self.classes)

    def require_allowed(self, promise: PrivacyUnit | NothingPromised) -> None:
        """Refuse to be used under a promise that does not cover what was taken from the data."""
        require_allowed(self.derived, promise)


def pool(datasets: tuple[Dataset, ...]) -> Dataset:
    """All records of several data sets with one schema, one after the other."""
    if not datasets:
        raise InvalidInput("datasets", (), "must not be empty", "give at least one data set")
    first = datasets[0]
    for other in datasets[1:]:
        require_alike(first, other)
    sides = set(first.side_columns).intersection(*(d.side_columns for d in datasets))
    return replace(
        first,
        features=np.concatenate([d.features for d in datasets]),
        label=np.concatenate([d.label for d in datasets]),
        group=np.concatenate([d.group for d in datasets]),
        side_columns={name: np.concatenate([d.side_columns[name] for d in datasets]) for name in sorted(sides)},
        derived=tuple(dict.fromkeys(fact for d in datasets for fact in d.derived)),
    )


def require_alike(first: Dataset, other: Dataset) -> None:
    """Refuse a data set that numbers classes, groups or features in another way than the first."""
    for what in ("schema_digest", "feature_names", "class_names", "group_names", "feature_shape", "unscaled_features"):
        if getattr(first, what) != getattr(other, what):
            raise InvalidInput(
                what,
                getattr(other, what),
                f"differs from {getattr(first, what)!r} of another silo, so classes, groups or features would be "
                "numbered differently",
                "load all silos with one schema",
            )


def _codes(argument: str, values: Integers, records: int, names: int) -> Integers:
    codes = np.asarray(values)
    if codes.shape != (records,) or not np.issubdtype(codes.dtype, np.integer):
        raise InvalidInput(
            argument, (codes.shape, str(codes.dtype)), f"must be {records} whole numbers", "give one code per record"
        )
    if records and not (codes.min() >= 0 and codes.max() < names):
        raise InvalidInput(
            argument, "a code", f"must be between 0 and {names - 1}", "number by the names of the schema"
        )
    return _read_only(codes.astype(np.int64))


def _side_column(name: str, values: NDArray[Any], records: int) -> NDArray[Any]:
    column = np.asarray(values)
    if column.shape != (records,):
        raise InvalidInput(name, column.shape, f"must hold {records} values", "give one value per record")
    return _read_only(column)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.setflags(write=False)
    return view


# The silos that hold records: all share one schema; the train and test part of each.


@dataclass(frozen=True, eq=False)
class Silo:
    """One holder of data, for instance a hospital; `name` is public."""

    name: str
    data: Dataset

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InvalidInput("silo name", self.name, "must not be empty", "give each silo a name")

    def __len__(self) -> int:
        return len(self.data)


@dataclass(frozen=True, eq=False)
class Silos:
    """All silos of a run, in a fixed order, with classes, groups and features numbered the same in each."""

    members: tuple[Silo, ...]

    def __post_init__(self) -> None:
        if not self.members:
            raise InvalidInput("silos", (), "must not be empty", "give at least one silo")
        if len(set(self.names)) != len(self.members):
            raise InvalidInput("silos", self.names, "must have distinct names", "rename one of them")
        for other in self.members[1:]:
            require_alike(self.members[0].data, other.data)

    def __iter__(self) -> Iterator[Silo]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __getitem__(self, position: int) -> Silo:
        return self.members[position]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(silo.name for silo in self.members)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(silo) for silo in self.members)

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.members[0].data.class_names

    @property
    def group_names(self) -> tuple[str, ...]:
        return self.members[0].data.group_names

    def pooled(self) -> Dataset:
        """All records of all silos: for measuring, for central baselines, never for a federated run."""
        return pool(tuple(silo.data for silo in self.members))

    def binding(self) -> DataBinding:
        """What a manifest binds: names, sizes and the schema's digest.

        The records are not hashed: a digest of private records is a publication, because anyone who guesses the
        records can check the guess.
        """
        return DataBinding.of(self[0].data.schema_digest, zip(self.names, self.sizes, strict=True))

    def require_allowed(self, promise: PrivacyUnit | NothingPromised) -> None:
        """Refuse facts taken from the data that the promise does not cover."""
        for silo in self.members:
            silo.data.require_allowed(promise)


@dataclass(frozen=True, eq=False)
class TrainTest:
    """The same silos twice: the records that train and the records that measure."""

    train: Silos
    test: Silos

    def __post_init__(self) -> None:
        if self.train.names != self.test.names:
            raise InvalidInput("test", self.test.names, "must hold the training silos", "split silo by silo")
        require_alike(self.train[0].data, self.test[0].data)

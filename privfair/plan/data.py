"""The [data] section of a plan: which records, who holds them, and which of them only measure.

::

    [data]
    dataset = "credit-card"              # a benchmark ...
    # path = "credit.csv"                #   from this file instead of the installed data package
    # scaling = "public"                 #   or "non-private-standardisation"
    # files = ["north.csv", "south.csv"] # ... or files of your own, one a silo,
    # schema = "schema.toml"             #   and what their columns mean (docs/data.md)
    # test-files = ["n-test.csv", ...]   #   test records in files of their own
    test-fraction = 0.25                 # of every silo's records; they train nothing
    seed = 0                             # of partition and split

    [data.partition]                     # left out: files are silos, a benchmark is one silo
    kind = "heterogeneous"               # equal | heterogeneous | dirichlet | by-column | pooled
    silos = 3
    column = "AGE"
    h = 0.75

    [data.unfair]                        # grey images only: FPFL's pens and chalk, three groups (docs/data.md)
    writers = 3383

    [data.users]                         # user-level privacy: one aggregator, records grouped by user
    kind = "poisson"                     # poisson (mean) | column (column)
    mean = 2.0

    [data.attributes]                    # left out: every silo holds the attributes of its own records
    silos = ["registry"]                 # attributes lie in these silos, dealt out at random by the seed;
    # files = ["registry.csv"]           #   or as these files say (the attribute, and the column `record`
    # record = "person"                  #   by which they are joined to the files of the records)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, assert_never

from calibrate.errors import InvalidInput, count, open_unit, positive
from privfair.data.benchmark_files import BenchmarkScaling
from privfair.data.benchmarks import Benchmark
from privfair.data.partition import (
    PAPERS_TEST_FRACTION,
    ByColumn,
    DirichletByLabel,
    EqualAtRandom,
    Heterogeneous,
    Partition,
)
from privfair.data.unfair_images import UnfairImages
from privfair.plan.file import key_names, read_section, refuse_unknown


@dataclass(frozen=True)
class BenchmarkSource:
    dataset: Benchmark
    path: Path | None = None
    scaling: BenchmarkScaling = BenchmarkScaling.PUBLIC


@dataclass(frozen=True)
class FileSource:
    files: tuple[Path, ...]
    schema: Path
    test_files: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not self.files:
            raise InvalidInput("[data] files", (), "must not be empty", "name one file for each silo")


@dataclass(frozen=True)
class Pooled:
    """All records in one silo."""


@dataclass(frozen=True)
class PoissonUsers:
    """Records handed to users at random, `mean` a user."""

    mean: float = 2.0

    def __post_init__(self) -> None:
        positive("[data.users] mean", self.mean)


@dataclass(frozen=True)
class UsersOfColumn:
    """One user for each value of a column that the schema keeps."""

    column: str


@dataclass(frozen=True)
class DealtAttributes:
    """Attributes apart from records, dealt out to silos of these names at random."""

    silos: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.silos or len(set(self.silos)) != len(self.silos):
            raise InvalidInput(
                "[data.attributes] silos", self.silos, "must be distinct, at least one", "name each silo once"
            )


@dataclass(frozen=True)
class AttributesInFiles:
    """Attributes apart from records, in files of their own: one a sensitive silo, joined by the column `record`."""

    files: tuple[Path, ...]
    record: str

    def __post_init__(self) -> None:
        if not self.files:
            raise InvalidInput("[data.attributes] files", (), "must not be empty", "name one for each silo")


@dataclass(frozen=True)
class DataPlan:
    source: BenchmarkSource | FileSource
    partition: Partition | Pooled | None = None
    users: PoissonUsers | UsersOfColumn | None = None
    test_fraction: float = PAPERS_TEST_FRACTION
    seed: int = 0
    unfair: UnfairImages | None = None
    attributes: DealtAttributes | AttributesInFiles | None = None

    def __post_init__(self) -> None:
        if self.attributes is not None and self.users is not None:
            raise InvalidInput("[data.attributes]", "(a table)", "excludes [data.users]", "drop one of the two tables")
        if isinstance(self.attributes, AttributesInFiles) and not isinstance(self.source, FileSource):
            raise InvalidInput(
                "[data.attributes] files",
                "(files)",
                "can't be joined to a benchmark",
                'write silos = ["registry"] to deal its attributes out',
            )
        open_unit("[data] test-fraction", self.test_fraction)
        count("[data] seed", self.seed, least=0)
        if self.unfair is not None and isinstance(self.source, FileSource):
            raise InvalidInput(
                "[data.unfair]", "(a table)", "is for images, not for files of one's own", "name a dataset"
            )
        if self.users is not None and self.partition is not None:
            raise InvalidInput(
                "[data.users]", "(a table)", "excludes [data.partition]", "users are one party: drop the partition"
            )


@dataclass(frozen=True)
class _Common:
    test_fraction: float = PAPERS_TEST_FRACTION
    seed: int = 0


class _PartitionKind(Enum):
    EQUAL = "equal"
    HETEROGENEOUS = "heterogeneous"
    DIRICHLET = "dirichlet"
    BY_COLUMN = "by-column"
    POOLED = "pooled"


class _UserKind(Enum):
    POISSON = "poisson"
    COLUMN = "column"


@dataclass(frozen=True)
class _Partitioned:
    kind: _PartitionKind


@dataclass(frozen=True)
class _Grouped:
    kind: _UserKind


def read_data_plan(section: Mapping[str, Any], folder: Path) -> DataPlan:
    """The typed [data] section; an empty one is refused."""
    source_kind = _source_kind(section)
    tables = {"partition", "users", "unfair", "attributes"}
    refuse_unknown("data", section, (*key_names(source_kind), *key_names(_Common), *sorted(tables)))
    for name in tables & set(section):
        if not isinstance(section[name], dict):
            raise InvalidInput(f"[data] {name}", section[name], "must be a table", f"write [data.{name}]")
    plain = {key: value for key, value in section.items() if key not in tables}
    common_keys = set(key_names(_Common))
    own = {key: value for key, value in plain.items() if key.replace("_", "-") not in common_keys}
    source = read_section(source_kind, "data", own, folder)
    common = read_section(_Common, "data", {k: v for k, v in plain.items() if k not in own})
    return DataPlan(
        source=source,
        partition=_partition(section["partition"], source) if "partition" in section else None,
        users=_users(section["users"]) if "users" in section else None,
        test_fraction=common.test_fraction,
        seed=common.seed,
        unfair=read_section(UnfairImages, "data.unfair", section["unfair"]) if "unfair" in section else None,
        attributes=_attributes(section["attributes"], folder) if "attributes" in section else None,
    )


def _source_kind(section: Mapping[str, Any]) -> type[BenchmarkSource] | type[FileSource]:
    if ("dataset" in section) == ("files" in section):
        raise InvalidInput(
            "[data]",
            sorted(section),
            "must name either a dataset or files",
            'write dataset = "credit-card", or files = ["north.csv", ...] and schema = "schema.toml"',
        )
    return BenchmarkSource if "dataset" in section else FileSource


def _partition(table: Mapping[str, Any], source: BenchmarkSource | FileSource) -> Partition | Pooled:
    kind, rest = _kind("data.partition", table, _Partitioned)
    match kind:
        case _PartitionKind.EQUAL:
            return read_section(EqualAtRandom, "data.partition", rest)
        case _PartitionKind.HETEROGENEOUS:
            if isinstance(source, BenchmarkSource) and "column" not in rest:
                rest = {**rest, "column": source.dataset.age_column}
            return read_section(Heterogeneous, "data.partition", rest)
        case _PartitionKind.DIRICHLET:
            return read_section(DirichletByLabel, "data.partition", rest)
        case _PartitionKind.BY_COLUMN:
            return read_section(ByColumn, "data.partition", rest)
        case _PartitionKind.POOLED:
            return read_section(Pooled, "data.partition", rest)
        case _:
            assert_never(kind)


def _attributes(table: Mapping[str, Any], folder: Path) -> DealtAttributes | AttributesInFiles:
    if ("silos" in table) == ("files" in table):
        raise InvalidInput(
            "[data.attributes]",
            sorted(table),
            "must name either silos or files",
            'write silos = ["registry"], or files = ["registry.csv"] and record = "person"',
        )
    if "silos" in table:
        return read_section(DealtAttributes, "data.attributes", table)
    return read_section(AttributesInFiles, "data.attributes", table, folder)


def _users(table: Mapping[str, Any]) -> PoissonUsers | UsersOfColumn:
    kind, rest = _kind("data.users", table, _Grouped)
    match kind:
        case _UserKind.POISSON:
            return read_section(PoissonUsers, "data.users", rest)
        case _UserKind.COLUMN:
            return read_section(UsersOfColumn, "data.users", rest)
        case _:
            assert_never(kind)


def _kind(place: str, table: Mapping[str, Any], holder: Any) -> tuple[Any, dict[str, Any]]:
    """The `kind` of a table and its other keys."""
    named = {key: value for key, value in table.items() if key == "kind"}
    return read_section(holder, place, named).kind, {k: v for k, v in table.items() if k != "kind"}

"""The [data] section of a plan: which records, who holds them, and which of them only measure; read without a record.

::

    [data]
    dataset = "credit-card"              # a benchmark ...
    # path = "credit.csv"                #   from this file instead of the installed data package
    # scaling = "public"                 #   or "non-private-standardisation"
    # features = "pixels"                #   of images; or "oriented-gradients"
    # files = ["north.csv", "south.csv"] # ... or your own files, one per silo,
    # schema = "schema.toml"             #   and what their columns mean (docs/data.md)
    # test-files = ["n-test.csv", ...]   #   test records in separate files
    # (or a table [data.silos] and schema, where each site keeps its own file behind a guard: docs/how-to/federation.md)
    test-fraction = 0.25                 # of every silo's records; they train nothing (0: all train, none measures)
    seed = 0                             # of partition and split
    # split = "record"                   # record | position; left out: by record where units can be added or removed
    # id-column = "patient"              # by record: decided by this kept column, not by features and class
    at-least = 5000                      # units that each silo has at least, where units can be added or removed;
                                         #   or a table [data.at-least] with a number for each silo
    # treated-as-public = ["classes"]    # taken from the records: the budget names it among what is not protected

    [data.partition]                     # left out: files are silos, a benchmark is one silo
    kind = "heterogeneous"               # equal | heterogeneous | dirichlet | by-column | pooled
    silos = 3
    column = "AGE"
    h = 0.75
    # cuts = [30, 40]                    # public cuts, needed where records are protected

    [data.unfair]                        # grey images only: FPFL's pens and chalk, three groups (docs/data.md)
    writers = 3383

    [data.users]                         # user-level privacy: one aggregator, records grouped by user
    kind = "poisson"                     # poisson (mean, users) | column (column)
    mean = 2.0
    users = 1000                         # their public number, needed where users are protected

    [data.silos]                         # instead of dataset or files: the silos' names, and their public sizes in
    north = 3000                         #   units: exact, or at least this number where units can be added or removed

    [data.identity]                      # which data set this is, whatever its size: budgets add up under this name
    name = "patients"
    custodian = "North Hospital"
    version = "2026"

    [data.attributes]                    # left out: every silo holds the attributes of its records
    silos = ["registry"]                 # attributes are in these silos, dealt out at random by the seed;
    # files = ["registry.csv"]           #   or as these files say (the attribute, and the column `record`
    # record = "person"                  #   by which they are joined to the files of the records)
    # [data.attributes.registries]       #   or, where files stay at their sites, at these sites, with exact sizes;
    # census = 9000                      #   `record` names the column with a person's number at every site
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from calibrate.errors import InvalidInput, count, nearest, open_unit
from calibrate.manifest.document import DataIdentity
from calibrate.manifest.strict_json import in_our_words
from calibrate.plugins import PluginGroup, Plugins
from privfair.plan.sections import Checked, Count, Positive, Section, Whole, key_names, read_section, refuse_unknown

PAPERS_TEST_FRACTION = 0.25
"""Train to test 3:1, as in the experiments of SteFFLe and of MMD-fair FedAvg."""


class Benchmark(Enum):
    ADULT = "adult"
    CREDIT_CARD = "credit-card"
    COMPAS = "compas"
    COMMUNITIES_CRIME = "communities-crime"
    FASHION_MNIST = "fashion-mnist"
    MNIST = "mnist"
    CIFAR_10 = "cifar-10"

    @property
    def age_column(self) -> str:
        """The side column by which SteFFLe's Algorithm 3 cuts this data set."""
        columns = {Benchmark.ADULT: "age", Benchmark.CREDIT_CARD: "AGE", Benchmark.COMPAS: "age-num"}
        if self not in columns:
            raise InvalidInput("dataset", self.value, "has no age column", "name another column or partition")
        return columns[self]


DatasetLoader = Callable[[Path | None], Any]
"""A data set of another package: a `Dataset`, from a path or None. Its `derived` and `steps` say what was read
off the records and how stable every step is; a promise stands on them."""


def _read_loader(name: str, found: object) -> DatasetLoader | None:
    return found if callable(found) else None


DATASET_PLUGINS: Plugins[DatasetLoader] = Plugins(
    PluginGroup.DATASETS,
    "a function of a path (or None) that returns a privfair.data.dataset.Dataset",
    _read_loader,
    lambda: {benchmark.value for benchmark in Benchmark},
)
"""The data sets of other packages."""


class BenchmarkScaling(Enum):
    """Which constants a benchmark's numeric columns are scaled with.

    `PUBLIC` uses the constants written in the loader. `NON_PRIVATE_STANDARDISATION` is what experiments do: mean
    and variance of the training records, which only runs that leave features unprotected accept.
    `PUBLIC_WITH_STEPS` adds indicators of round values of some columns, where a loader knows any (Adult).
    """

    PUBLIC = "public"
    PUBLIC_WITH_STEPS = "public-with-steps"
    NON_PRIVATE_STANDARDISATION = "non-private-standardisation"


class ImageFeatures(Enum):
    """What a model sees of an image: its pixels, or `oriented_gradients`."""

    PIXELS = "pixels"
    ORIENTED_GRADIENTS = "oriented-gradients"


PEN_SHARE = 0.45


@dataclass(frozen=True)
class UnfairImages:
    """How many writers the records are dealt to, each record to a uniformly drawn one; 3,383 in the paper."""

    writers: int = 3_383

    def __post_init__(self) -> None:
        count("[data.unfair] writers", self.writers, least=3)

    @property
    def of_each_group(self) -> tuple[int, int, int]:
        """Writers with a black pen, with a blue pen, with chalk."""
        pens = int(PEN_SHARE * self.writers)
        return pens, pens, self.writers - 2 * pens


@dataclass(frozen=True)
class EqualAtRandom(Checked):
    """`silos` random parts; by position their sizes differ by at most one."""

    silos: Count


@dataclass(frozen=True)
class Heterogeneous(Checked):
    """SteFFLe's Algorithm 3: a fraction `h` of each silo comes from its own slice of `column`, the rest is mixed.

    h = 0 is `EqualAtRandom`; h = 1 sorts the table by the column and cuts it. With `cuts`, public values of the
    column in ascending order, the slices are fixed beforehand and each record is dealt on its own.
    """

    silos: Count
    column: str
    h: float
    cuts: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cuts is not None and (len(self.cuts) != self.silos - 1 or sorted(set(self.cuts)) != [*self.cuts]):
            raise InvalidInput("cuts", self.cuts, "must be one fewer than silos, in ascending order", "list each once")
        if not 0 <= self.h <= 1:
            raise InvalidInput("h", self.h, "must be in [0, 1]", "0 is homogeneous, 1 fully heterogeneous")


@dataclass(frozen=True)
class DirichletByLabel(Checked):
    """Each class is shared out in proportions drawn from Dirichlet(beta, ..., beta); small beta is uneven.

    By position draws are repeated until every silo has at least `least` records; by record there is one draw.
    """

    silos: Count
    beta: Positive
    least: Whole = 1


@dataclass(frozen=True)
class ByColumn:
    """One silo for each value of a side column, in sorted order; values with fewer than `least` records go.

    With `names`, the public list of silos, the silos are these, and records of other values go.
    """

    column: str
    least: int = 1
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        count("least", self.least)
        if self.names is not None and (self.least > 1 or len(set(self.names)) != len(self.names) or not self.names):
            raise InvalidInput("names", self.names, "must be distinct, not empty, and without least", "drop least")


Partition = EqualAtRandom | Heterogeneous | DirichletByLabel | ByColumn


@dataclass(frozen=True)
class BenchmarkSource:
    dataset: Benchmark
    path: Path | None = None
    scaling: BenchmarkScaling = BenchmarkScaling.PUBLIC
    features: ImageFeatures = ImageFeatures.PIXELS


@dataclass(frozen=True)
class PluginSource:
    """A data set that another package loads; it answers for every step from its files to the table."""

    dataset: str
    path: Path | None = None

    @property
    def code(self) -> dict[str, str]:
        """The digest of the package that loads it, to be signed."""
        return DATASET_PLUGINS.code(self.dataset)


@dataclass(frozen=True)
class FileSource:
    files: tuple[Path, ...]
    schema: Path
    test_files: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if not self.files:
            raise InvalidInput("[data] files", (), "must not be empty", "name one file for each silo")


@dataclass(frozen=True)
class SiteSource:
    """Files that stay at their own sites: the plan names the silos, and each site names its own file."""

    silos: Mapping[str, int]
    """Signed: the public size of each silo in units, exact, or a lower bound if units can be added or removed."""
    schema: Path

    def __post_init__(self) -> None:
        if not self.silos:
            raise InvalidInput("[data.silos]", {}, "must not be empty", "write north = 3000, for example, for each")
        for name, size in self.silos.items():
            count(f"[data.silos] {name}", size)


DataSource = BenchmarkSource | PluginSource | FileSource | SiteSource


@dataclass(frozen=True)
class Pooled:
    """All records in one silo."""


@dataclass(frozen=True)
class PoissonUsers(Checked):
    """Records handed to users at random, `mean` per user; with `users`, to that many, each record on its own."""

    place = "[data.users]"
    mean: Positive = 2.0
    users: Count | None = None
    copies: Count = 1
    """How often each user is in a hypothetical population; more than once only for research."""


@dataclass(frozen=True)
class UsersOfColumn(Checked):
    """One user for each value of a column that the schema keeps."""

    place = "[data.users]"
    column: str
    copies: Count = 1
    """As for dealt users."""


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
    """Attributes apart from records, in separate files: one per sensitive silo, joined by the column `record`."""

    files: tuple[Path, ...]
    record: str

    def __post_init__(self) -> None:
        if not self.files:
            raise InvalidInput("[data.attributes] files", (), "must not be empty", "name one for each silo")


@dataclass(frozen=True)
class AttributesAtSites:
    """Attributes apart from records, at separate sites: the registries' exact sizes, joined by `record`."""

    registries: Mapping[str, int]
    record: str

    def __post_init__(self) -> None:
        if not self.registries:
            raise InvalidInput("[data.attributes.registries]", {}, "must not be empty", "write census = 9000")
        for name, size in self.registries.items():
            count(f"[data.attributes.registries] {name}", size)


class SplitRule(Enum):
    """What decides whether a record trains or measures: the record itself, or its position in the file."""

    RECORD = "record"
    POSITION = "position"


@dataclass(frozen=True)
class _Keys:
    """The keys of [data] that are neither its source nor tables."""

    test_fraction: float = PAPERS_TEST_FRACTION
    seed: int = 0
    split: SplitRule | None = None
    id_column: str | None = None
    at_least: int | Mapping[str, int] | None = None
    """A public lower bound of each silo's units, for all silos or for each."""
    treated_as_public: tuple[str, ...] = ()
    """What was taken from the records, such as classes of a frame; the budget names it as not protected."""


@dataclass(frozen=True, kw_only=True)
class DataPlan(_Keys):
    """The [data] section."""

    source: DataSource
    partition: Partition | Pooled | None = None
    users: PoissonUsers | UsersOfColumn | None = None
    unfair: UnfairImages | None = None
    attributes: DealtAttributes | AttributesInFiles | AttributesAtSites | None = None
    identity: DataIdentity | None = None

    def __post_init__(self) -> None:
        for bound in self.at_least.values() if isinstance(self.at_least, Mapping) else (self.at_least,):
            if bound == 0:
                remedy = "write a public number of units (training records, or persons) that each site certainly has"
                raise InvalidInput("at-least", 0, "is not filled in", remedy)
            if bound is not None:
                count("at-least", bound)
        if self.attributes is not None and self.users is not None:
            raise InvalidInput("[data.attributes]", "(a table)", "excludes [data.users]", "drop one of the two tables")
        if isinstance(self.attributes, AttributesInFiles) and not isinstance(self.source, FileSource):
            raise InvalidInput(
                "[data.attributes] files",
                "(files)",
                "can't be joined to a benchmark",
                'write silos = ["registry"] to deal its attributes out',
            )
        if isinstance(self.attributes, AttributesAtSites) and not isinstance(self.source, SiteSource):
            raise InvalidInput(
                "[data.attributes] registries",
                "(a table)",
                "are separate sites, and this plan names files",
                "write files = [...] under [data.attributes], or [data.silos] in place of files",
            )
        if self.test_fraction != 0:
            open_unit("[data] test-fraction", self.test_fraction)
        count("[data] seed", self.seed, least=0)
        if isinstance(self.source, SiteSource):
            self._require_sites()
        if self.unfair is not None and not isinstance(self.source, BenchmarkSource):
            raise InvalidInput("[data.unfair]", "(a table)", "is for images, not for your own files", "name a dataset")
        if self.users is not None and self.partition is not None:
            raise InvalidInput(
                "[data.users]", "(a table)", "excludes [data.partition]", "users are one party: drop the partition"
            )

    def _require_sites(self) -> None:
        """Refuse what needs the files of several sites in one place."""
        sized = self.at_least is not None and not isinstance(self.users, UsersOfColumn)
        at_sites = self.attributes is None or isinstance(self.attributes, AttributesAtSites)
        for key, given, why in (
            ("[data.partition]", self.partition is not None, "cuts records that no site may see together"),
            ("[data.attributes] silos or files", not at_sites, "would be read in one place; name registries"),
            ("[data.unfair]", self.unfair is not None, "is for images"),
            ("[data] at-least", sized, "follows from the sizes in [data.silos]"),
            ("[data] treated-as-public", bool(self.treated_as_public), "is for frames of one process"),
            ("[data] split", self.split is not None, "means nothing: no record is held out at a site"),
        ):
            if given:
                raise InvalidInput(key, "(given)", f"{why}", "drop it, or train in one process with files = [...]")


_PARTITIONS: dict[str, type[Partition | Pooled]] = {
    "equal": EqualAtRandom,
    "heterogeneous": Heterogeneous,
    "dirichlet": DirichletByLabel,
    "by-column": ByColumn,
    "pooled": Pooled,
}
_USERS: dict[str, type[PoissonUsers | UsersOfColumn]] = {"poisson": PoissonUsers, "column": UsersOfColumn}
_TABLES = ("partition", "users", "unfair", "attributes", "identity")

Kind = TypeVar("Kind")


def read_data_plan(section: Mapping[str, Any], folder: Path) -> DataPlan:
    """The typed [data] section; an empty one is refused. Paths are relative to `folder`, the plan's own."""
    named = PluginSource if DATASET_PLUGINS.find(str(section.get("dataset"))) is not None else BenchmarkSource
    source_kind: type[DataSource] = _one_of(
        "data",
        section,
        {"dataset": named, "files": FileSource, "silos": SiteSource},
        'write dataset = "credit-card", or files = ["north.csv", ...] and schema = "schema.toml"',
    )
    refuse_unknown("data", section, (*key_names(source_kind), *key_names(_Keys), *_TABLES))
    tables = {name: section[name] for name in _TABLES if name in section}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise InvalidInput(f"[data] {name}", table, "must be a table", f"write [data.{name}]")
    shared = {key: value for key, value in section.items() if key.replace("_", "-") in key_names(_Keys)}
    own = {key: value for key, value in section.items() if key not in shared and key not in tables}
    source = read_section(source_kind, "data", own, folder)
    common = read_section(_Keys, "data", shared)
    return DataPlan(
        source=source,
        partition=_partition(tables["partition"], source) if "partition" in tables else None,
        users=_of_kind("data.users", tables["users"], _USERS) if "users" in tables else None,
        **vars(common),
        unfair=read_section(UnfairImages, "data.unfair", tables["unfair"]) if "unfair" in tables else None,
        attributes=_attributes(tables["attributes"], folder) if "attributes" in tables else None,
        identity=_identity(tables["identity"]) if "identity" in tables else None,
    )


def _identity(table: Mapping[str, Any]) -> DataIdentity:
    with in_our_words("[data.identity]"):
        found = DataIdentity.model_validate(dict(table))
    found.require_safe()
    return found


def _partition(table: Mapping[str, Any], source: DataSource) -> Partition | Pooled:
    if table.get("kind") == "heterogeneous" and isinstance(source, BenchmarkSource) and "column" not in table:
        table = {**table, "column": source.dataset.age_column}
    return _of_kind("data.partition", table, _PARTITIONS)


def _attributes(table: Mapping[str, Any], folder: Path) -> DealtAttributes | AttributesInFiles | AttributesAtSites:
    kind: type[DealtAttributes] | type[AttributesInFiles] | type[AttributesAtSites] = _one_of(
        "data.attributes",
        table,
        {"silos": DealtAttributes, "files": AttributesInFiles, "registries": AttributesAtSites},
        'write silos = ["registry"], or files = ["registry.csv"] and record = "person"',
    )
    return read_section(kind, "data.attributes", table, folder)


def _one_of(place: str, table: Mapping[str, Any], kinds: Mapping[str, Kind], remedy: str) -> Kind:
    """The kind whose key is in the table; exactly one of the keys must."""
    given = [kind for key, kind in kinds.items() if key in table]
    if len(given) != 1:
        first, *others = kinds
        article = "a " if first == "dataset" else ""
        rule = f"must name either {article}{first} or {' or '.join(others)}"
        raise InvalidInput(f"[{place}]", sorted(table), rule, remedy)
    return given[0]


def _of_kind(place: str, table: Mapping[str, Any], kinds: Mapping[str, type[Section]]) -> Section:
    """The table read as the type that its `kind` names."""
    kind = table.get("kind")
    if kind is None:
        raise InvalidInput(f"[{place}] kind", None, "is needed", f"write kind = ... under [{place}]")
    if kind not in kinds:
        raise InvalidInput(f"[{place}] kind", kind, "is not one of the choices", nearest(str(kind), tuple(kinds)))
    return read_section(kinds[kind], place, {key: value for key, value in table.items() if key != "kind"})

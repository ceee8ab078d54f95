"""From the [data] section to what trains and what measures."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import assert_never

import numpy as np
import torch
from pydantic import JsonValue

from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.manifest.document import DataBinding
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from privfair.algorithms.algorithm import SiloTensors
from privfair.data import stability
from privfair.data.attributes import (
    AttributeFiles,
    HeldApart,
    attributes_by_column,
    deal_attributes,
    join_sites,
    read_attribute_files,
    require_distinct_records,
)
from privfair.data.benchmarks import load_benchmark, load_plugin_dataset
from privfair.data.dataset import EVERYONE, Dataset, Silo, Silos
from privfair.data.encode import (
    Standardisation,
    fit_standardisation,
    load_own_silo,
    load_own_silos,
    load_own_train_test,
)
from privfair.data.images import oriented_gradients, unfair_images
from privfair.data.infer import FileLayout, silo_name
from privfair.data.partition import (
    UserRecords,
    cut_into_silos,
    poisson_users,
    split_silos,
    stability_of,
    users_by_column,
    users_by_record,
)
from privfair.data.schema import NonPrivateStandardisation, Schema
from privfair.data.schema_toml import OwnFormat, load_schema
from privfair.data.stability import NothingPromised, RecordHash, Stability, known_of_silos, known_of_tests
from privfair.federation.coordinator import PublicFacts
from privfair.plan.data import (
    AttributesAtSites,
    AttributesInFiles,
    BenchmarkSource,
    ByColumn,
    DataPlan,
    DealtAttributes,
    EqualAtRandom,
    FileSource,
    ImageFeatures,
    PluginSource,
    PoissonUsers,
    Pooled,
    SiteSource,
    SplitRule,
    UsersOfColumn,
)

CENTRAL = "central"
USERS = "users"


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The parties with their training records, and the test records silo by silo."""

    parties: Silos
    test: Silos | None
    """Records that only measure; None where each site keeps all of its records for training."""
    standardisation: Standardisation | None
    users: UserRecords | None = None
    layout: FileLayout = field(default_factory=FileLayout)
    """How most training files are written, and so, it is supposed, the files to predict from."""
    clients: tuple[tuple[str, int], ...] = ()
    """Whose records a central party holds, one client after the other: names and sizes."""
    apart: HeldApart | None = None
    """Where attributes are held apart from records: who holds which; its parties are `parties`."""
    steps: tuple[Stability, ...] = ()
    """Every step from the files to the parties, with its claim about neighbouring files."""
    at_least: int | Mapping[str, int] | None = None
    """A public lower bound of each party's units."""
    shared_with_test: str | None = None
    """Why the test files are not apart from the training files; None if they are."""
    treated_as_public: tuple[str, ...] = ()
    """As the plan has it."""

    @property
    def binding(self) -> DataBinding:
        """Parties, exact sizes in protected units, schema digest."""
        if self.users is None:
            return self.parties.binding()
        return DataBinding.of(self.users.data.schema_digest, ((USERS, len(self.users)),))

    def binding_for(self, unit: PrivacyUnit) -> DataBinding:
        """What a manifest signs under a promise to `unit`.

        Guarantee: where units can be added or removed the sizes are declared lower bounds, the same for two
        neighbouring files; else they are exact, and equal for neighbours.
        """
        exact = self.binding
        if unit.relation is not Relation.ADD_REMOVE:
            return exact
        bounds = [(silo.name, self._lower_bound(silo.name)) for silo in exact.silos]
        for silo, (_, bound) in zip(exact.silos, bounds, strict=True):
            if silo.size < bound:
                raise InvalidInput("[data] at-least", bound, f"exceeds what {silo.name!r} has", "declare less")
        return DataBinding.of(exact.schema_digest, bounds)

    def _lower_bound(self, party: str) -> int:
        bound = self.at_least.get(party) if isinstance(self.at_least, Mapping) else self.at_least
        if bound is None:
            raise InvalidInput(
                "[data] at-least",
                self.at_least,
                f"is needed for {party!r}: an exact size reveals who is in the file if units can be added or removed",
                "write at-least = 1000, for example, a public number of units that each silo certainly has",
            )
        return bound

    def not_protected(self, unit: PrivacyUnit) -> tuple[str, ...]:
        """What is known of the data in addition to the noise, for the manifest: one entry per fact."""
        separate = None if self.test is None else stability.SEPARATE_TEST_FILES in self.steps
        known = known_of_silos(unit, len(self.parties), apart=self.apart is not None)
        return (*known_of_tests(separate, self.treated_as_public), *known)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        return self.parties[0].data.feature_shape

    @property
    def facts(self) -> PublicFacts:
        """What model and algorithm are built from."""
        first, apart = self.parties[0].data, () if self.apart is None else self.apart.sensitive
        return PublicFacts(
            self.feature_shape, first.classes, first.groups, self.clients, apart, encoding=self.encoding()
        )

    def require_allowed(self, promise: PrivacyUnit | NothingPromised, research: bool = False) -> None:
        """Refuse facts taken from the data that the promise does not cover, and users or records mixed up.

        Users may be copied only under research noise, which protects no one and marks its output.
        """
        self.parties.require_allowed(promise)
        if isinstance(promise, PrivacyUnit):
            by_user = promise.protected is Protected.USER
            if by_user != (self.users is not None):
                raise InvalidInput(
                    "[data.users]",
                    None if self.users is None else "(a table)",
                    f"does not fit a promise to each {promise.protected.value}",
                    "group records by user exactly when users are promised privacy",
                )
            for step in self.steps:
                if not (research and step is stability.USERS_COPIED):
                    step.require(promise)
            if self.clients and promise.relation is Relation.ADD_REMOVE:
                raise UnsupportedCombination(
                    f"clients of one aggregator with add-remove privacy of one {promise.protected.value}",
                    "the algorithm is told each client's exact number of records, which reveals who is in the file",
                    "use an algorithm whose silos send for themselves, or replace-one",
                )
            if self.shared_with_test is not None:
                raise UnsupportedCombination(
                    "a promise with these test-files",
                    f"{self.shared_with_test}, and exact metrics on them are written",
                    "give test-files without training records, or leave test-files out",
                )

    def tensors(self, dtype: torch.dtype) -> tuple[SiloTensors, ...]:
        """The parties' training records; features in the model's own number format."""
        owners = None if self.users is None else torch.from_numpy(self.users.owners)
        sizes = torch.tensor([size for _, size in self.clients])
        clients = torch.repeat_interleave(torch.arange(len(sizes)), sizes) if self.clients else None
        if self.apart is None:
            users, copies = (0, 1) if self.users is None else (len(self.users), self.users.copies)
            return tuple(
                replace(silo_tensors(silo, dtype, owners, clients), users=users, copies=copies) for silo in self.parties
            )
        return tuple(
            replace(silo_tensors(silo, dtype, owners, clients), record_numbers=torch.from_numpy(numbers))
            for silo, numbers in zip(self.parties, self.apart.numbers, strict=True)
        )

    def encoding(self) -> dict[str, JsonValue]:
        """How a record becomes features, for `privfair predict`."""
        data = self.parties[0].data
        names = (data.feature_names, data.class_names, data.group_names)
        return _encoding(data.schema, self.standardisation, *names, self.layout)


def _encoding(
    schema: Schema | None,
    standardisation: Standardisation | None,
    features: tuple[str, ...],
    classes: tuple[str, ...],
    groups: tuple[str, ...],
    layout: FileLayout,
) -> dict[str, JsonValue]:
    return {
        "schema": None if schema is None else schema.as_json(),
        "standardisation": None if standardisation is None else standardisation.as_json(),
        "feature_names": list(features),
        "class_names": list(classes),
        "group_names": list(groups),
        "delimiter": layout.delimiter,
        "decimal": layout.decimal,
    }


def load_training_data(plan: DataPlan, *, central: bool = False, unit: PrivacyUnit | None = None) -> TrainingData:
    """Load, cut, split and scale; `central` puts all training records into one party and keeps the test silos.

    `unit` is the one that the manifest speaks of: where it can be added or removed, records are split and dealt one by
    one, and by user where users are protected. None is for data of which nothing is promised.
    """
    own = load_schema(plan.source.schema) if isinstance(plan.source, FileSource) else None
    by = _decider(plan, unit)
    train, test, steps = _train_test(plan, own, by)
    loaded = TrainingData(
        parties=train,
        test=test,
        standardisation=None,
        layout=FileLayout() if own is None else own.layouts.usual,
        steps=(stability.READ, *train[0].data.steps, *_encoding_steps(own), *steps, stability.BATCHES),
        at_least=plan.at_least,
        treated_as_public=plan.treated_as_public,
        shared_with_test=_shared_with_test(plan, train, test),
    )
    if train[0].data.unscaled_features:
        fitted = fit_standardisation(train)
        train, test = fitted.apply_to_silos(train), None if test is None else fitted.apply_to_silos(test)
        loaded = replace(loaded, parties=train, test=test, standardisation=fitted)
    if plan.users is not None:
        return _by_user(loaded, plan.users, plan.seed)
    if plan.attributes is not None:
        apart = _separate_attributes(plan, train, central)
        return replace(loaded, parties=apart.parties, apart=apart, steps=(*loaded.steps, stability.ATTRIBUTES_APART))
    return _at_one_party(loaded) if central else loaded


def _at_one_party(loaded: TrainingData) -> TrainingData:
    """All silos' training records at one aggregator."""
    silos = loaded.parties
    clients = tuple(zip(silos.names, silos.sizes, strict=True))
    return replace(loaded, parties=Silos((Silo(CENTRAL, silos.pooled()),)), clients=clients)


# Files that stay at their own sites: what a plan says of them in public, and what one site loads from its files.


def site_facts(
    plan: DataPlan, *, central: bool = False, unit: PrivacyUnit | None = None
) -> tuple[PublicFacts, DataBinding]:
    """What follows from the plan and its schema alone, where each site keeps its own file; and what is to be signed."""
    source, own = site_format(plan)
    schema, clients, registries = own.schema, tuple(source.silos.items()), _registries(plan)
    if registries and central:
        raise _one_party_holds_everything()
    match plan.users:
        case None:
            silos = ((CENTRAL, sum(source.silos.values())),) if central else (*clients, *registries.items())
        case PoissonUsers(users=int(number), copies=1):
            silos = ((USERS, number),)
        case UsersOfColumn(copies=1) if isinstance(plan.at_least, int) and unit is not None:
            silos = ((USERS, plan.at_least),)
        case _:
            raise InvalidInput(
                "[data.users]",
                "(a table)",
                "does not fix the number of users, and no site may be asked before the budget is signed",
                "write users = 1000 under [data.users], or at-least = 1000 under [data] for users of a column",
            )
    groups = EVERYONE if schema.sensitive is None else schema.sensitive.values or ()
    facts = PublicFacts(
        feature_shape=(len(schema.feature_names),),
        classes=len(schema.target.values or ()),
        groups=len(groups),
        clients=clients if central else (),
        sensitive=tuple(registries),
        encoding=_encoding(schema, None, schema.feature_names, schema.target.values or (), groups, own.layouts.usual),
    )
    return facts, DataBinding.of(schema.digest, silos)


def site_format(plan: DataPlan) -> tuple[SiteSource, OwnFormat]:
    """The plan's sites and their schema, refused where a site alone could not encode its records as the others do."""
    if not isinstance(plan.source, SiteSource):
        raise InvalidInput(
            "[data]",
            "(files or a dataset)",
            "does not name silos whose files stay at their own sites",
            "write a table [data.silos] with the size of each silo in place of files, and have that plan signed",
        )
    own = load_schema(plan.source.schema)
    if isinstance(plan.attributes, AttributesAtSites):
        own = replace(own, schema=_with_record_numbers(own.schema, plan.attributes.record))
    pooled = [column.name for column in own.schema.numeric if isinstance(column.scaling, NonPrivateStandardisation)]
    if pooled:
        raise UnsupportedCombination(
            f"non-private standardisation of {', '.join(pooled)} across sites",
            "mean and scale of all sites' records would have to be published",
            "give bounds = [low, high], or mean and scale, in the schema",
        )
    for rule, found in (
        ("must list the values of every coded column", own.schema.unresolved),
        ("must not cut a site's file into silos", own.schema.silo_column),
    ):
        if found:
            raise InvalidInput("schema", found, rule, "declare it in the schema, the same at every site")
    return plan.source, own


def _registries(plan: DataPlan) -> Mapping[str, int]:
    """The sites that hold nothing but attributes, with their sizes."""
    return plan.attributes.registries if isinstance(plan.attributes, AttributesAtSites) else {}


def _with_record_numbers(schema: Schema, record: str) -> Schema:
    if schema.sensitive is None:
        raise InvalidInput("[data.attributes]", "registries", "needs a [sensitive] column in the schema", "name it")
    kept = schema.side_columns if record in schema.side_columns else (*schema.side_columns, record)
    return replace(schema, side_columns=kept)


def site_files(plan: DataPlan) -> dict[str, bytes]:
    """The schema by its name, to be kept next to a copy of the plan, if the plan looks for it in its own folder."""
    source, _ = site_format(plan)
    return {source.schema.name: source.schema.read_bytes()}


def load_site_data(
    plan: DataPlan, files: Mapping[str, Path], *, central: bool = False, unit: PrivacyUnit | None = None
) -> TrainingData:
    """What the sites of these files hold, by silo: one of them for its own guard, all of them for an aggregator.

    No record is held out, and nothing about a record decides which silo it belongs to.
    """
    source, own = site_format(plan)
    registries = _registries(plan)
    known = {name: files[name] for name in (*source.silos, *registries) if name in files}
    strangers = sorted(files.keys() - source.silos.keys() - registries.keys())
    together = central or plan.users is not None
    if strangers or not known or (together and len(known) < len(source.silos)):
        raise InvalidInput(
            "--data",
            strangers or sorted(known),
            "must name the silos of the plan" + (", all of them where one party collects them" if together else ""),
            f"give a file for {', '.join((*source.silos, *registries))}",
        )
    silos = Silos(
        tuple(
            load_own_silo(file, own, name, attribute=not registries or name in registries)
            for name, file in known.items()
        )
    )
    loaded = TrainingData(
        parties=silos,
        test=None,
        standardisation=None,
        layout=own.layouts.usual,
        steps=(stability.READ, *silos[0].data.steps, *_encoding_steps(own), stability.BATCHES),
        at_least=source.silos if plan.users is None else plan.at_least,
    )
    if plan.users is not None:
        return _by_user(loaded, plan.users, plan.seed)
    if isinstance(plan.attributes, AttributesAtSites):
        if 1 < len(known) < len(source.silos) + len(registries):
            raise InvalidInput("--data", sorted(known), "must be one site's file, or all of them", "give all files")
        return _at_sites(loaded, plan.attributes, known)
    return _at_one_party(loaded) if central else loaded


def _at_sites(loaded: TrainingData, plan: AttributesAtSites, files: Mapping[str, Path]) -> TrainingData:
    """Holders and registries as they were loaded: one of them for its guard, or all of them, joined, for an auditor."""
    for silo in loaded.parties:
        require_distinct_records(silo, plan.record, str(files[silo.name]))
    held = [silo for silo in loaded.parties if silo.name in plan.registries]
    apart: HeldApart | None = None
    if len(loaded.parties) > 1:
        holders = tuple(silo for silo in loaded.parties if silo.name not in plan.registries)
        apart = join_sites(Silos(holders), Silos(tuple(held)), plan.record)
    elif held:
        apart = HeldApart(loaded.parties, loaded.parties.names, (np.arange(len(held[0]), dtype=np.int64),))
    return replace(loaded, apart=apart, steps=(*loaded.steps, stability.ATTRIBUTES_APART))


def _encoding_steps(own: OwnFormat | None) -> tuple[Stability, ...]:
    filled = own is not None and any(column.missing is not None for column in own.schema.numeric)
    return (stability.FILLED, stability.ENCODED) if filled else (stability.ENCODED,)


def _decider(plan: DataPlan, unit: PrivacyUnit | None) -> RecordHash | None:
    """What decides a record's silo and side; None for its position."""
    if unit is not None and unit.protected is Protected.USER and isinstance(plan.users, UsersOfColumn):
        return RecordHash(plan.users.column)
    rule = plan.split
    if rule is None:
        replaced = unit is None or (unit.relation is not Relation.ADD_REMOVE and unit.protected is not Protected.USER)
        rule = SplitRule.POSITION if replaced else SplitRule.RECORD
    return RecordHash(plan.id_column) if rule is SplitRule.RECORD else None


def _train_test(
    plan: DataPlan, own: OwnFormat | None, by: RecordHash | None
) -> tuple[Silos, Silos | None, tuple[Stability, ...]]:
    """The silos' training and test records (None where none are held out), and the steps that led to them."""
    match plan.source:
        case BenchmarkSource(dataset, path, scaling, features):
            whole = load_benchmark(dataset, path, scaling)
            if plan.unfair is not None:
                whole = unfair_images(whole, plan.unfair, plan.seed, None if by is None else RecordHash())
            if features is ImageFeatures.ORIENTED_GRADIENTS:
                whole = oriented_gradients(whole)
            silos, steps = _cut(whole, plan, by)
        case PluginSource(dataset=name, path=path):
            silos, steps = _cut(load_plugin_dataset(name, path), plan, by)
        case FileSource(files=files, test_files=test_files):
            assert own is not None
            held: AttributeFiles | None = None
            if isinstance(plan.attributes, AttributesInFiles):
                held = read_attribute_files(plan.attributes.files, plan.attributes.record, own.schema, own.layouts)
            column, names = own.schema.silo_column, own.schema.silo_names
            steps = () if column is None else (stability_of(ByColumn(column, names=names), by),)
            if test_files:
                if plan.partition is not None:
                    rule = "excludes test-files: cutting would mix training and test records"
                    raise InvalidInput("[data.partition]", "(a table)", rule, "drop one of the two")
                apart = load_own_train_test(files, test_files, own, held)
                return apart.train, apart.test, (*steps, stability.SEPARATE_TEST_FILES)
            silos = load_own_silos(files, own, held)
            if plan.partition is not None:
                silos, cut = _cut(silos.pooled(), plan, by)
                steps = (*steps, *cut)
        case SiteSource():
            raise InvalidInput(
                "[data.silos]",
                "(a table)",
                "names silos whose files stay at their own sites",
                "start `privfair serve` at each site and train with --guards",
            )
        case _:
            assert_never(plan.source)
    if plan.test_fraction == 0:
        return silos, None, steps
    parts = split_silos(silos, plan.seed, plan.test_fraction, by)
    return parts.train, parts.test, (*steps, _of_split(plan, by))


def _of_split(plan: DataPlan, by: RecordHash | None) -> Stability:
    if by is None:
        return stability.SPLIT_BY_POSITION
    if isinstance(plan.users, PoissonUsers):
        return stability.SPLIT_BEFORE_DEALING
    return stability.SPLIT_BY_RECORD if plan.users is None else stability.SPLIT_BY_USER


_MOST_ALIKE = 0.1
"""Honest test records may equal training records; where more than this share does, and no id column tells them apart,
the files are taken to overlap."""


def _shared_with_test(plan: DataPlan, training: Silos, testing: Silos | None) -> str | None:
    """Why test files are not apart from training files: the same file, the same ids, or too many equal records."""
    if not isinstance(plan.source, FileSource) or not plan.source.test_files or testing is None:
        return None
    if _identities(plan.source.files) & _identities(plan.source.test_files):
        return "a test file is a training file"
    by = RecordHash(plan.id_column)
    train, test = (by.words(part.pooled(), plan.seed, "overlap") for part in (training, testing))
    alike = float(np.isin(test, train).mean())
    if plan.id_column is not None:
        return "training and test files share ids" if alike > 0 else None
    return "many test records equal training records" if alike > _MOST_ALIKE else None


def _identities(files: tuple[Path, ...]) -> set[object]:
    """What makes two names the same file: its place on disk, or its content."""
    found: set[object] = set()
    for file in files:
        status = file.stat()
        found |= {(status.st_dev, status.st_ino), hashlib.sha256(file.read_bytes()).digest()}
    return found


def _separate_attributes(plan: DataPlan, train: Silos, central: bool) -> HeldApart:
    if central:
        raise _one_party_holds_everything()
    match plan.attributes:
        case DealtAttributes(silos):
            return deal_attributes(train, silos, plan.seed)
        case AttributesInFiles(files):
            return attributes_by_column(train, tuple(silo_name(file) for file in files))
        case None | AttributesAtSites():
            raise AssertionError("asked only where attributes are held apart, and files are here")
        case _:
            assert_never(plan.attributes)


def _one_party_holds_everything() -> InvalidInput:
    return InvalidInput("[data.attributes]", "(a table)", "means nothing where one party holds everything", "drop it")


def _cut(whole: Dataset, plan: DataPlan, by: RecordHash | None) -> tuple[Silos, tuple[Stability, ...]]:
    match plan.partition:
        case None:
            return cut_into_silos(whole, EqualAtRandom(1), plan.seed), (stability.POOLED,)
        case Pooled():
            return Silos((Silo("all", whole),)), (stability.POOLED,)
        case partition:
            return cut_into_silos(whole, partition, plan.seed, by), (stability_of(partition, by),)


def _by_user(loaded: TrainingData, kind: PoissonUsers | UsersOfColumn, seed: int) -> TrainingData:
    """All training records as one party whose units are users; a declared number of them is a public bound."""
    records, at_least = loaded.parties.pooled(), loaded.at_least
    match kind:
        case PoissonUsers(mean=mean, users=None):
            users, step = poisson_users(records, seed, mean), stability.USERS_DEALT_BY_POSITION
        case PoissonUsers(users=int(number)):
            users, step, at_least = users_by_record(records, seed, number), stability.USERS_DEALT_BY_RECORD, number
        case UsersOfColumn(column):
            users, step = users_by_column(records, column), stability.USERS_OF_COLUMN
        case _:
            raise AssertionError("users are dealt, or named by a column")
    party, steps = Silos((Silo(USERS, users.data),)), (*loaded.steps, stability.POOLED, step)
    if kind.copies > 1:
        users, steps = replace(users, copies=kind.copies), (*steps, stability.USERS_COPIED)
        at_least = at_least * kind.copies if isinstance(at_least, int) else at_least
    return replace(loaded, parties=party, users=users, at_least=at_least, steps=steps)


def silo_tensors(
    silo: Silo, dtype: torch.dtype, owners: torch.Tensor | None = None, clients: torch.Tensor | None = None
) -> SiloTensors:
    """The records of a silo as tensors: each row's owner where users are protected, its client where one collects."""
    x, y, s = (torch.from_numpy(np.array(one)) for one in (silo.data.features, silo.data.label, silo.data.group))
    return SiloTensors(silo.name, x.to(dtype), y, s, owners, clients)

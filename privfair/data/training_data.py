"""From the [data] section to what trains and what measures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, assert_never

import numpy as np
import torch

from calibrate.arrays import Integers
from calibrate.errors import InvalidInput
from calibrate.manifest.document import DataBinding
from calibrate.privacy_unit import PrivacyUnit, Protected
from privfair.algorithms.algorithm import SiloTensors
from privfair.data.attributes import AttributeFiles, HeldApart, dealt_out, held_by_column, read_attribute_files
from privfair.data.benchmark_files import Standardisation, fit_standardisation
from privfair.data.benchmarks import load_benchmark
from privfair.data.dataset import Dataset
from privfair.data.facts import NoPrivacyPromised
from privfair.data.own_files import load_own_silos, load_own_train_test, silo_name
from privfair.data.partition import EqualAtRandom, cut_into_silos, split_silos
from privfair.data.schema_toml import OwnFormat, load_schema
from privfair.data.silos import Silo, Silos, TrainTest
from privfair.data.unfair_images import unfair_images
from privfair.data.users import UserRecords, poisson_users, users_by_column
from privfair.plan.data import (
    AttributesInFiles,
    BenchmarkSource,
    DataPlan,
    DealtAttributes,
    FileSource,
    PoissonUsers,
    Pooled,
    UsersOfColumn,
)

CENTRAL = "central"
USERS = "users"


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The parties with their training records, and the test records silo by silo."""

    parties: Silos
    test: Silos
    standardisation: Standardisation | None
    users: UserRecords | None = None
    delimiter: str = ","
    """Of the training files, and so of the files to predict from."""
    clients: tuple[tuple[str, int], ...] = ()
    """Whose records a central party holds, one client after the other: names and sizes."""
    apart: HeldApart | None = None
    """Where attributes are held apart from records: who holds which; its parties are `parties`."""

    @property
    def binding(self) -> DataBinding:
        """What a manifest binds: parties, sizes in protected units, schema digest."""
        return self.parties.binding() if self.users is None else self.users.binding(USERS)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        return self.parties[0].data.feature_shape

    def require_allowed(self, promise: PrivacyUnit | NoPrivacyPromised) -> None:
        """Refuse facts read off the data that the promise does not cover, and users or records mixed up."""
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

    def not_protected(self) -> tuple[str, ...]:
        """What the steps from the files to these records leave out of a promise, one sentence each."""
        return ()

    def tensors(self, dtype: torch.dtype) -> tuple[SiloTensors, ...]:
        """The parties' training records; features in the model's own number format."""
        owners = None if self.users is None else torch.from_numpy(_owners(self.users))
        sizes = torch.tensor([size for _, size in self.clients])
        clients = torch.repeat_interleave(torch.arange(len(sizes)), sizes) if self.clients else None
        if self.apart is None:
            return tuple(_tensors(silo, dtype, owners, clients) for silo in self.parties)
        return tuple(
            replace(_tensors(silo, dtype, owners, clients), record_numbers=torch.from_numpy(numbers))
            for silo, numbers in zip(self.parties, self.apart.numbers, strict=True)
        )

    def encoding(self) -> dict[str, Any]:
        """How a record becomes features, for `privfair predict`."""
        data = self.parties[0].data
        return {
            "schema": None if data.schema is None else data.schema.as_json(),
            "standardisation": None if self.standardisation is None else self.standardisation.as_json(),
            "feature_names": list(data.feature_names),
            "class_names": list(data.class_names),
            "group_names": list(data.group_names),
            "delimiter": self.delimiter,
        }


def load_training_data(plan: DataPlan, *, central: bool = False) -> TrainingData:
    """Load, cut, split and scale; `central` puts all training records into one party and keeps the test silos."""
    own = load_schema(plan.source.schema) if isinstance(plan.source, FileSource) else None
    parts = _train_test(plan, own)
    standardisation, delimiter = None, "," if own is None else own.delimiter
    if parts.train[0].data.unscaled_features:
        standardisation = fit_standardisation(parts.train)
        parts = TrainTest(standardisation.apply_to_silos(parts.train), standardisation.apply_to_silos(parts.test))
    if plan.users is not None:
        users = _by_user(plan.users, parts.train.pooled(), plan.seed)
        party = Silos((Silo(USERS, users.data),))
        return TrainingData(party, parts.test, standardisation, users, delimiter)
    if plan.attributes is not None:
        apart = _held_apart(plan, parts.train, central)
        return TrainingData(apart.parties, parts.test, standardisation, None, delimiter, apart=apart)
    if not central:
        return TrainingData(parts.train, parts.test, standardisation, None, delimiter)
    clients = tuple(zip(parts.train.names, parts.train.sizes, strict=True))
    parties = Silos((Silo(CENTRAL, parts.train.pooled()),))
    return TrainingData(parties, parts.test, standardisation, None, delimiter, clients)


def _train_test(plan: DataPlan, own: OwnFormat | None) -> TrainTest:
    match plan.source:
        case BenchmarkSource(dataset, path, scaling):
            whole = load_benchmark(dataset, path, scaling)
            if plan.unfair is not None:
                whole = unfair_images(whole, plan.unfair, plan.seed)
            return split_silos(_cut(whole, plan), plan.seed, plan.test_fraction)
        case FileSource(files=files, test_files=test_files):
            assert own is not None
            held = _attribute_files(plan, own)
            if test_files:
                _refuse_cutting(plan)
                return load_own_train_test(files, test_files, own, held)
            silos = load_own_silos(files, own, held)
            if plan.partition is not None:
                silos = _cut(silos.pooled(), plan)
            return split_silos(silos, plan.seed, plan.test_fraction)
        case _:
            assert_never(plan.source)


def _attribute_files(plan: DataPlan, own: OwnFormat) -> AttributeFiles | None:
    if not isinstance(plan.attributes, AttributesInFiles):
        return None
    return read_attribute_files(plan.attributes.files, plan.attributes.record, own.schema, own.delimiter)


def _held_apart(plan: DataPlan, train: Silos, central: bool) -> HeldApart:
    if central:
        raise InvalidInput(
            "[data.attributes]", "(a table)", "means nothing where one party holds everything", "drop it"
        )
    match plan.attributes:
        case DealtAttributes(silos):
            return dealt_out(train, silos, plan.seed)
        case AttributesInFiles(files):
            return held_by_column(train, tuple(silo_name(file) for file in files))
        case None:
            raise AssertionError("asked only where attributes are held apart")
        case _:
            assert_never(plan.attributes)


def _cut(whole: Dataset, plan: DataPlan) -> Silos:
    match plan.partition:
        case None:
            return cut_into_silos(whole, EqualAtRandom(1), plan.seed)
        case Pooled():
            return Silos((Silo("all", whole),))
        case partition:
            return cut_into_silos(whole, partition, plan.seed)


def _refuse_cutting(plan: DataPlan) -> None:
    if plan.partition is not None:
        raise InvalidInput(
            "[data.partition]",
            "(a table)",
            "excludes test-files: cutting would mix training and test records",
            "drop one of the two",
        )


def _by_user(kind: PoissonUsers | UsersOfColumn, records: Dataset, seed: int) -> UserRecords:
    match kind:
        case PoissonUsers(mean):
            return poisson_users(records, seed, mean)
        case UsersOfColumn(column):
            return users_by_column(records, column)
        case _:
            assert_never(kind)


def _owners(users: UserRecords) -> Integers:
    return np.repeat(np.arange(len(users), dtype=np.int64), users.records_per_user)


def _tensors(silo: Silo, dtype: torch.dtype, owners: torch.Tensor | None, clients: torch.Tensor | None) -> SiloTensors:
    data = silo.data
    return SiloTensors(
        name=silo.name,
        x=torch.from_numpy(np.array(data.features)).to(dtype),
        y=torch.from_numpy(np.array(data.label)),
        s=torch.from_numpy(np.array(data.group)),
        unit_of_row=owners,
        client_of_row=clients,
    )

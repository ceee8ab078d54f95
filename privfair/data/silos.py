"""Who holds which records: silos that share one schema, and the train and test part of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from calibrate.errors import InvalidInput
from calibrate.manifest.document import DataBinding
from calibrate.privacy_unit import PrivacyUnit
from privfair.data.dataset import Dataset, pool, require_alike
from privfair.data.facts import NothingPromised


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
    """All silos of a run, in a fixed order, with classes, groups and features numbered alike in each."""

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

    @property
    def schema_digest(self) -> str:
        return self.members[0].data.schema_digest

    def pooled(self) -> Dataset:
        """All records of all silos: for measuring, for central baselines, never for a federated run."""
        return pool(tuple(silo.data for silo in self.members))

    def binding(self) -> DataBinding:
        """What a manifest binds: names, sizes and the schema's digest.

        The records are not hashed: a digest of private records is a publication, because whoever guesses the
        records can check the guess.
        """
        return DataBinding.of(self.schema_digest, zip(self.names, self.sizes, strict=True))

    def require_allowed(self, promise: PrivacyUnit | NothingPromised) -> None:
        """Refuse facts read off the data that the promise does not cover."""
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

"""Which data a promise covers: what may be read from records, and what each step does to neighbouring files.

A mean, a list of categories or the number of groups that is taken from private records is a publication that no budget
pays for. Each such fact is written down in the data set, and a run that promises privacy refuses the facts its promise
does not cover.

A promise speaks of the file that was handed in, and a price of the units that the algorithm sees. They are the same
promise only if every step in between is *stable*: one unit added, removed or replaced in the file changes at most so
many units after the step. Each step says so by a `Stability` claim, proved in docs/theorems/stability.md; a step
without a claim for the promised unit is refused with an error that names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from calibrate.errors import UnsupportedCombination, count
from calibrate.manifest import strict_json
from calibrate.manifest.strict_json import Json
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from privfair.plan.data import AttributesInFiles, BenchmarkSource, DataPlan, FileSource, PluginSource, SiteSource

if TYPE_CHECKING:
    from privfair.data.dataset import Dataset


def digest(value: Json) -> str:
    """SHA-256 of the canonical JSON (RFC 8785) of a value, as `sha256:` and 64 hexadecimal digits."""
    return f"sha256:{strict_json.digest(value)}"


class FactKind(Enum):
    """Which part of the records a fact was read from."""

    SCALE = "the scale of a numeric feature"
    CATEGORIES = "the categories of a feature"
    CLASSES = "the list of classes"
    GROUPS = "the list of groups"
    ATTRIBUTE_IN_FEATURES = "a feature from which the sensitive attribute was made"


@dataclass(frozen=True)
class DerivedFact:
    """One column and what was taken from it."""

    kind: FactKind
    column: str


@dataclass(frozen=True)
class NothingPromised:
    """The explicit opposite of a privacy unit; `why` is shown wherever the run is shown."""

    why: str


_REMEDY = {
    FactKind.SCALE: "give public bounds or a public mean and scale, or pay for noisy statistics",
    FactKind.CATEGORIES: "write the public list of categories into the schema",
    FactKind.CLASSES: "write the classes into the schema",
    FactKind.GROUPS: "write the groups into the schema",
    FactKind.ATTRIBUTE_IN_FEATURES: "leave that feature out",
}

_REVEALS_ATTRIBUTE = (FactKind.GROUPS, FactKind.ATTRIBUTE_IN_FEATURES)


def _forbidden(kind: FactKind, unit: PrivacyUnit) -> bool:
    # Replacing an attribute leaves x and y as they are, so facts about x and y are the same in both
    # neighbouring data sets. Replacing a record or a user may change any of them; what the features
    # contain is then irrelevant, because the whole record is protected.
    if unit.protected is Protected.ATTRIBUTE:
        return kind in _REVEALS_ATTRIBUTE
    return kind is not FactKind.ATTRIBUTE_IN_FEATURES


def require_allowed(facts: tuple[DerivedFact, ...], promise: PrivacyUnit | NothingPromised) -> None:
    """Raise `UnsupportedCombination` at the first fact that the promise does not cover.

    Guarantee: if this returns for a `PrivacyUnit`, none of the listed facts differs between two data sets
    that are neighbours in that unit's relation, so using them costs no budget.
    """
    for fact in facts:
        if isinstance(promise, PrivacyUnit) and _forbidden(fact.kind, promise):
            raise UnsupportedCombination(
                f"{fact.kind.value} (column {fact.column!r}) read from the data, "
                f"with {promise.relation.value} privacy of one {promise.protected.value},",
                "it can differ between neighbouring data sets and no budget pays for it",
                _REMEDY[fact.kind],
            )


ATTRIBUTE = PrivacyUnit(Protected.ATTRIBUTE, Relation.REPLACE_ATTRIBUTE)
RECORD_ADDED = PrivacyUnit(Protected.RECORD, Relation.ADD_REMOVE)
RECORD_REPLACED = PrivacyUnit(Protected.RECORD, Relation.REPLACE_ONE)
USER_ADDED = PrivacyUnit(Protected.USER, Relation.ADD_REMOVE)
USER_REPLACED = PrivacyUnit(Protected.USER, Relation.REPLACE_ONE)
EVERY_UNIT = (ATTRIBUTE, RECORD_ADDED, RECORD_REPLACED, USER_ADDED, USER_REPLACED)


@dataclass(frozen=True)
class Change:
    """How data after a step differ, if the files before it differ in one unit: in `units` units, by `relation`."""

    units: int
    relation: Relation


@dataclass(frozen=True)
class Stability:
    """The claim of one step: for each unit of the file with a proof, what changes after the step.

    `step` names the step in a refusal, `remedy` what to do instead, `proof` the statement of
    docs/theorems/stability.md that proves the claim.
    """

    step: str
    changes: Mapping[PrivacyUnit, Change]
    proof: str
    remedy: str = ""

    @classmethod
    def one_to_one(cls, step: str, units: Iterable[PrivacyUnit], proof: str, remedy: str = "") -> Stability:
        """A step after which one unit, changed in the same way, is all that differs."""
        return cls(step, {unit: Change(1, unit.relation) for unit in units}, proof, remedy)

    def require(self, unit: PrivacyUnit) -> None:
        """Refuse the step under a promise to `unit`, unless one changed unit provably stays one.

        Guarantee: if this returns for every step of a run, two files that are neighbours in the unit's relation
        become parties' data that are equal or neighbours in the same relation, so that the signed price is the
        price of the file (docs/theorems/stability.md, Theorem 1).
        """
        change = self.changes.get(unit)
        if change == Change(1, unit.relation):
            return
        if change is None:
            why = "no proof says how many units after it one unit of the file changes"
        else:
            why = f"one unit of the file can become {change.units} of {change.relation.value}, which nothing prices"
        raise UnsupportedCombination(
            f"{self.step} with {unit.relation.value} privacy of one {unit.protected.value}", why, self.remedy
        )


READ = Stability.one_to_one("reading the files", EVERY_UNIT, "Lemma 1")
ENCODED = Stability.one_to_one("encoding and scaling by the schema's public constants", EVERY_UNIT, "Lemma 2")
FILLED = Stability.one_to_one("filling in missing numbers by the schema's public values", EVERY_UNIT, "Lemma 2")
POOLED = Stability.one_to_one("pooling", EVERY_UNIT, "Lemma 3")
BATCHES = Stability.one_to_one("drawing batches", EVERY_UNIT, "Lemma 8")
COMPLETE_ROWS = Stability(
    "dropping the records with a missing cell",
    {unit: Change(1, unit.relation) for unit in (ATTRIBUTE, RECORD_ADDED, USER_ADDED, USER_REPLACED)}
    | {RECORD_REPLACED: Change(1, Relation.ADD_REMOVE)},
    "Lemma 2",
    "give a file without missing cells",
)
SEPARATE_TEST_FILES = Stability.one_to_one("test records in separate files", EVERY_UNIT, "Lemma 3")
SPLIT_BY_POSITION = Stability.one_to_one(
    "splitting train and test by position",
    (ATTRIBUTE, RECORD_REPLACED),
    "Lemma 4",
    'leave split out or write split = "record" under [data], or give test-files',
)
_BY_RECORD = {unit: Change(1, unit.relation) for unit in (ATTRIBUTE, RECORD_ADDED)}
_BY_RECORD[RECORD_REPLACED] = Change(2, Relation.ADD_REMOVE)
SPLIT_BY_RECORD = Stability(
    "splitting train and test by record",
    _BY_RECORD,
    "Lemma 5",
    'write split = "position" under [data], or give test-files',
)
SPLIT_BY_USER = Stability.one_to_one(
    "splitting train and test by user", (ATTRIBUTE, USER_ADDED, USER_REPLACED), "Lemma 5", "give test-files"
)
SPLIT_BEFORE_DEALING = Stability.one_to_one(
    "splitting records that are then dealt to users", (ATTRIBUTE, USER_ADDED, USER_REPLACED), "Lemma 7"
)
USERS_OF_COLUMN = Stability.one_to_one("grouping by user", (ATTRIBUTE, USER_ADDED, USER_REPLACED), "Lemma 6")
USERS_DEALT_BY_RECORD = Stability.one_to_one(
    "dealing records to a declared number of users", (ATTRIBUTE, USER_ADDED, USER_REPLACED), "Lemma 7"
)
USERS_COPIED = Stability.one_to_one(
    "copying users into a hypothetical population",
    (),
    "",
    "leave copies out of [data.users]; for research on public data write noise-source = 'seeded-research'",
)
"""One user of the file is many of the population, so no promise about the population is one about the user."""
USERS_DEALT_BY_POSITION = Stability.one_to_one(
    "dealing records to users by position",
    (),
    "",
    "write the public number of users, users = 1000 for example, under [data.users], or group by a column",
)
CUT_BY_POSITION = Stability.one_to_one(
    "cutting into silos by position", (ATTRIBUTE, RECORD_REPLACED), "Lemma 4", "give one file per silo"
)
CUT_BY_RANK = Stability.one_to_one(
    "cutting into silos by the rank of a column, or by a share of each class",
    (ATTRIBUTE,),
    "Lemma 4",
    "declare public cuts = [...] under [data.partition], use another partition, or give one file per silo",
)
CUT_BY_RECORD = Stability("cutting into silos by record", _BY_RECORD, "Lemma 5", "give one file per silo")
SILOS_READ_OFF = Stability.one_to_one(
    "silos named by a column of the file",
    (ATTRIBUTE,),
    "Lemma 4",
    "declare the silos' public names: names = [...] next to `column`, without `least`",
)
SILOS_DECLARED = Stability.one_to_one("silos with declared names", EVERY_UNIT, "Lemma 5")
ATTRIBUTES_APART = Stability.one_to_one(
    "attributes held apart from records", (ATTRIBUTE,), "Lemma 4", "drop [data.attributes]"
)
WRITERS_BY_POSITION = Stability.one_to_one(
    "unfair images drawn by position", (ATTRIBUTE, RECORD_REPLACED), "Lemma 4", "use an algorithm that protects users"
)
WRITERS_BY_RECORD = Stability.one_to_one(
    "unfair images drawn by record", (ATTRIBUTE, RECORD_ADDED, USER_ADDED, USER_REPLACED), "Lemma 7"
)


@dataclass(frozen=True)
class RecordHash:
    """64 uniform bits for each record, which no other record influences: equal records get equal bits.

    With `column` they depend on that side column (a record's id, or its user's), else on features and class; never
    on the protected attribute. The seed is the key: public, and signed with the plan.
    """

    column: str | None = None

    def words(self, data: Dataset, seed: int, purpose: str) -> NDArray[np.uint64]:
        """The bits of each record for one purpose; different purposes give independent-looking bits."""
        key = hashlib.blake2b(str(count("seed", seed, least=0)).encode(), digest_size=32).digest()
        start = hashlib.blake2b(purpose.encode() + b"\0", digest_size=8, key=key)
        digests, copied = bytearray(), start.copy
        for content in self._contents(data):
            one = copied()
            one.update(content)
            digests += one.digest()
        return np.frombuffer(bytes(digests), dtype="<u8").astype(np.uint64)

    def _contents(self, data: Dataset) -> Iterable[bytes | memoryview]:
        if self.column is not None:
            return (value.encode() for value in data.identifiers(self.column))
        features, labels = np.ascontiguousarray(data.features), data.label.astype("<i8")
        if not len(labels):
            return ()
        rows = features.reshape(len(features), -1).view(np.uint8)
        table = np.hstack([rows, labels.reshape(-1, 1).view(np.uint8)])  # each row's bytes, then its label's
        content, width = table.data.cast("B"), table.shape[1]
        return (content[begin : begin + width] for begin in range(0, len(content), width))

    def below(self, data: Dataset, seed: int, purpose: str, probability: float) -> NDArray[np.bool_]:
        """A coin of each record's own that falls true with `probability`."""
        return self.words(data, seed, purpose) < np.uint64(min(int(probability * 2.0**64), 2**64 - 1))

    def one_of(self, data: Dataset, seed: int, purpose: str, choices: int) -> NDArray[np.int64]:
        """A number of each record's own, uniform on 0 .. choices - 1 up to 2^-64 times `choices`."""
        return (self.words(data, seed, purpose) % np.uint64(choices)).astype(np.int64)


# What a manifest says is not protected about the data, from the plan and public facts alone.


def data_here(plan: DataPlan) -> bool:
    """Whether the files that the plan names, or the schema of files that stay at their sites, are on this machine."""
    files: list[Path] = []
    match plan.source:
        case SiteSource(schema=schema):
            files = [schema]
        case FileSource(files=own, schema=schema, test_files=test_files):
            files = [*own, schema, *test_files]
        case BenchmarkSource(path=Path() as path) | PluginSource(path=Path() as path):
            files = [path]
    if isinstance(plan.attributes, AttributesInFiles):
        files += plan.attributes.files
    return all(path.exists() for path in files)


def known_of_plan(plan: DataPlan, unit: PrivacyUnit, parties: int) -> tuple[str, ...]:
    """What `TrainingData.not_protected` gives for a plan whose data are elsewhere, with this number of parties."""
    apart = known_of_silos(unit, parties, apart=plan.attributes is not None)
    if isinstance(plan.source, SiteSource):
        return apart
    separate: bool | None = isinstance(plan.source, FileSource) and bool(plan.source.test_files)
    if plan.test_fraction == 0 and not separate:
        separate = None
    return (*known_of_tests(separate, plan.treated_as_public), *apart)


def known_of_tests(separate: bool | None, treated_as_public: tuple[str, ...]) -> tuple[str, ...]:
    """What test records reveal, in `separate` files or held out (None: there are none), and what frames do."""
    held_out = "Records in the test files" if separate else "Records held out of the files"
    measured = f"{held_out} for measuring: exact metrics on them are written; a threshold may be chosen by them."
    public = f"Treated as public, though read off the records: {', '.join(treated_as_public)}."
    return (*(() if separate is None else (measured,)), *((public,) if treated_as_public else ()))


def known_of_silos(unit: PrivacyUnit, parties: int, *, apart: bool) -> tuple[str, ...]:
    """What is known of `parties` silos under a promise to `unit`, for the manifest: one entry per fact.

    `apart` says whether attributes are held by others than the records.
    """
    handed = (
        "Which records have their attribute in which sensitive silo; features, classes and drawn batches of these"
        " records, which their holders hand to it."
    )
    who = "records" if unit.protected is Protected.ATTRIBUTE else f"{unit.protected.value}s"
    sizes = "at least" if unit.relation is Relation.ADD_REMOVE else "exactly"
    public_silo = "Which silo a record belongs to, and which names the silos have."
    return (
        *((handed,) if apart else ()),
        f"That each silo has {sizes} the signed number of {who}.",
        "Whether the files pass the checks made before training: a refusal is seen by whoever starts it.",
        *((public_silo,) if parties > 1 else ()),
    )

"""`pf.Plan` and `pf.TrainedModel`: from data frames to a model that keeps a signed promise, and to its audit."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict, Unpack, final

import numpy as np
from numpy.typing import NDArray

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from calibrate.manifest.issue import request_bytes
from calibrate.manifest.trust import FolderTrust, TrustFile
from calibrate.notebook import as_html
from calibrate.privacy_unit import EpsilonDelta
from privfair.api.budget import Asking, Key, PricedBudget, issuer_of
from privfair.api.draft import draft
from privfair.api.frames import (
    Declared,
    Described,
    Frame,
    TreatedAsPublic,
    Values,
    arrow_table,
    describe,
    read_frame,
    require_silo_name,
    toml_text,
    write_frames,
)
from privfair.api.reading import audit_run, report
from privfair.data.read import BadData, RawTable, from_arrow
from privfair.fairness.measurement import emptiness
from privfair.ledger import Ledger
from privfair.ledger.entries import claimant_here
from privfair.plan.plan import RECIPES, count_features
from privfair.plan.plan import Plan as WrittenPlan
from privfair.plan.settings import PublicNumbers, recipe, trains_its_own_way
from privfair.run.folder import RunFolder
from privfair.run.metrics import predict
from privfair.run.open_run import TrustInForce
from privfair.run.prepare import prepare_run
from privfair.run.public import Progress, RunPromise, promise_of
from privfair.run.signed_budget import BudgetSource, SignedBudget, envelope_of
from privfair.training import TrainingResult, execute

if TYPE_CHECKING:
    from audit.report.results import AuditReport

Protect = Literal["attribute", "record", "user"]
_NO_REASON = "asked for from Python"


class SelfSigned(UserWarning):
    """Only this process attests the budget, or remembers that it was spent."""


class EmptyModel(UserWarning):
    """The model answers the held-out records (nearly) all the same: its gaps are small, and that is not fairness."""


def _private_folder(owner: object, prefix: str) -> Path:
    """A folder for this user alone, in memory where there is a place for that; gone when `owner` is."""
    place = "/dev/shm" if os.path.isdir("/dev/shm") and os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    return folder


@final
@dataclass(frozen=True, eq=False)
class Plan(WrittenPlan):
    """What is to be trained, on which records, under which promise: a plan file, or frames in memory.

    Nothing is spent by a plan. `sign` (or `request`, for someone else's signature) makes a budget for exactly this
    plan and these records; `train` spends it, once.
    """

    _owner: object | None = field(default=None, repr=False)
    """What the private folder of a plan built from frames lives as long as."""

    @classmethod
    def from_file(cls, path: str | Path) -> Plan:
        """The plan in a TOML file (docs/training.md).

        Args:
            path: of the file; data files that it names are relative to it.
        """
        return cls.read(Path(path))

    @classmethod
    def from_frames(
        cls,
        frames: Frame | Mapping[str, Frame],
        *,
        target: str,
        epsilon: float,
        delta: float,
        sensitive: str | None = None,
        protect: Protect = "attribute",
        user: str | None = None,
        features: Sequence[str] | None = None,
        classes: Values | None = None,
        groups: Values | None = None,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        categories: Mapping[str, Values] | None = None,
        at_least: int | Mapping[str, int] | None = None,
        rounds: int | None = None,
        algorithm: str | None = None,
        group_shares: Sequence[float] | None = None,
        test_fraction: float = 0.0,
        dataset: tuple[str, str, str] | None = None,
        privacy: Mapping[str, Any] | None = None,
        training: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> Plan:
        """A plan for records in data frames.

        Args:
            frames: one frame, or one per silo by the silo's name: pandas, polars, pyarrow, a numpy array with named
                fields, or a mapping from column names to columns.
            target: the column with the class to be predicted.
            epsilon: the promise.
            delta: the probability with which the promise may fail.
            sensitive: the column with the sensitive attribute, which is never a feature.
            protect: what one unit is: a record's sensitive "attribute", a whole "record", or all data of a "user".
            user: the column that tells whose record it is, for protect="user".
            features: the columns that the model may see; by default all others.
            classes: the classes in their order, known without looking at the records.
            groups: the groups of the sensitive attribute, known in the same way.
            bounds: public bounds of numeric features; values outside are clipped.
            categories: public lists of the values of categorical features.
            at_least: a public lower bound of each silo's records (of the users, for protect="user").
            rounds: of training; by default as many as fit the promise and the sizes, as every setting.
            algorithm: by default "pay-once" for an attribute ("steffle" is the other choice), "gaussian" (DP-SGD) for a
                record ("fair-plugin" is fair to groups, too), "fpfl" for a user.
            group_shares: for "steffle", the public share of each group, in the order of `groups`; None pays for a noisy
                histogram from the same budget.
            test_fraction: the share of records that is held out and measured; exact metrics are not private.
            dataset: the data's declared identity (name, custodian, version), by which a ledger keeps its totals.
            privacy: further keys of the plan's [privacy] section.
            training: further keys of its [training] section, such as {"fairness": 20.0} or {"model": "perceptron"}.
            seed: of the split and of the first model.

        >>> import privfair as pf
        >>> frame = {"age": [20, 70] * 9, "sex": ["f", "f", "m"] * 6, "ill": ["no", "yes"] * 9}
        >>> plan = pf.Plan.from_frames(frame, target="ill", sensitive="sex", groups=["f", "m"], epsilon=1.0, delta=1e-5)
        >>> plan.algorithm, plan.price().promise.text
        ('pay-once', 'epsilon 1 at delta 1e-05 for one attribute')

        What is protected and not declared (classes, groups, bounds, categories, sizes) is taken from the records, is
        public with the warning `TreatedAsPublic`, and listed among what the budget does not protect.
        """
        named = _by_silo(frames)
        arrow = {require_silo_name(name): arrow_table(frame, f"frame {name!r}") for name, frame in named.items()}
        tables = {name: from_arrow(table, f"frame {name!r}") for name, table in arrow.items()}
        _require_roles(protect, sensitive, user)
        declared = Declared(target, sensitive, user, features, classes, groups, bounds=bounds, categories=categories)
        described = describe(tables, declared)
        asked = _Asked(
            *(protect, described, tables, user, at_least, test_fraction, rounds),
            algorithm=algorithm,
            shares=group_shares,
            target=EpsilonDelta(epsilon, delta),
            own=(privacy or {}, training or {}),
        )
        document = asked.document() | {"target": {"epsilon": float(epsilon), "delta": float(delta)}}
        document["privacy"] |= _dashed(privacy)
        document["training"] = {"seed": seed} | document["training"] | _dashed(training)
        document["data"] = {"files": [], "schema": "schema.toml", "seed": seed} | document["data"]
        if dataset is not None:
            document["data"]["identity"] = dict(zip(("name", "custodian", "version"), dataset, strict=True))
        if public := asked.treated_as_public():
            document["data"]["treated-as-public"] = list(public)
            remedy = "declare classes=, groups=, bounds=, categories= or at_least= where they are known beforehand"
            warnings.warn(
                f"taken from the records and treated as public: {', '.join(public)}; {remedy}", TreatedAsPublic, 2
            )
        return cls._written(document, described.schema, arrow)

    @classmethod
    def _written(cls, document: _Sections, schema: Mapping[str, object], arrow: Mapping[str, Any]) -> Plan:
        owner = _Owner()
        folder = _private_folder(owner, "privfair-plan-")
        document["data"]["files"] = list(write_frames(folder, arrow))
        (folder / "schema.toml").write_text(toml_text(schema), encoding="utf-8")
        (folder / "plan.toml").write_text(toml_text(document), encoding="utf-8")
        return replace(cls.read(folder / "plan.toml"), _owner=owner)

    @property
    def text(self) -> str:
        """The plan as a plan file says it."""
        return self.content.decode("utf-8")

    def price(self, **asked: Unpack[Asking]) -> PricedBudget:
        """The budget this plan needs, priced by two accountants and signed by no one.

        Args:
            asked: ledger, the one that the budget may be spent from (its path, URL or id; by default any); why, the
                justification that is in the budget; valid_days, how long it may be spent;
                unsafe_seeded_research_noise, reproducible noise that protects no one, for experiments on public data.
        """
        asked.setdefault("why", _NO_REASON)
        with self._in_words_of_frames():
            return PricedBudget(draft(self, issuer_of(**asked)))

    def sign(self, key: Key, **asked: Unpack[Asking]) -> SignedBudget:
        """The budget for this plan under your own signature.

        Args:
            key: a private key (`pf.generate_key()`), or the path of its file.
            asked: what `price` takes: ledger, why, valid_days.
        """
        return self.price(**asked).sign(key)

    def request(self, path: str | Path, *, by: str | None = None, **asked: Unpack[Asking]) -> Path:
        """Write the budget as a request, for an officer to read and to sign with `privfair budget sign`.

        Args:
            path: of the file to write.
            by: who asks, in words; by default the user of this machine.
            asked: what `price` takes: ledger, why, valid_days.
        """
        who = claimant_here().rpartition(", process")[0] if by is None else by
        Path(path).write_bytes(request_bytes(self.price(**asked).draft, who, self.content))
        return Path(path)

    def train(
        self,
        budget: BudgetSource,
        *,
        trust: str | Path | TrustFile | None = None,
        ledger: str | Path | None = None,
        out: str | Path | None = None,
        resume: bool = False,
        root: str | Path | None = None,
        anchor: str | Path | None = None,
        progress: Callable[[Progress], None] | None = None,
    ) -> TrainedModel:
        """Verify and spend the budget, and return the model.

        Args:
            budget: the signed budget: a path, its bytes, or what `sign` returned.
            trust: whose signatures count: a trust file's path or object; None trusts the budget's own key and warns.
            ledger: where the budget is spent; None makes a ledger that is discarded, and warns.
            out: the folder for the run's files; None keeps them as long as the model lives.
            resume: continue an interrupted run in `out`.
            root: the public key that signs the trust file, if one does.
            anchor: the ledger's anchor file; by default next to a ledger file.
            progress: called after each step.

        Guarantee: as `privfair.train`: nothing computed from records leaves except through the gate, under the budget.
        """
        own = SignedBudget(envelope_of(budget)) if not isinstance(budget, SignedBudget) else budget
        if trust is None or ledger is None:
            warnings.warn(
                "the budget is its own witness (no trust file, or a ledger that is discarded): good for trying out, "
                "and worth nothing to anybody else; give trust= and ledger=",
                SelfSigned,
                stacklevel=2,
            )
        trusted = TrustInForce(own.own_trust() if trust is None else trust, root)
        keeper = _Owner()
        folder = _private_folder(keeper, "privfair-run-") if out is None or ledger is None else None
        place = Path(out) if out is not None else (folder or Path()) / "run"
        book: str | Path = ledger if ledger is not None else (folder or Path()) / "ledger.db"
        if ledger is None:
            Ledger.create(book).close()
        with self._in_words_of_frames():
            prepared = prepare_run(self.path, own.envelope, trusted.file, searching=True)
        result = execute(prepared, place, book, anchor, resume, progress, trusted)
        if result.warning is not None:
            kind = UserWarning if emptiness(result.measured) is None else EmptyModel
            warnings.warn(result.warning, kind, stacklevel=2)
        return TrainedModel(place, trusted.file, self, result, book, None if anchor is None else Path(anchor), keeper)

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        target = self.target_section
        price = f"epsilon {target.get('epsilon')} at delta {target.get('delta')}"
        return as_html(self.algorithm, f", {price}: not signed, nothing spent", code=self.text)

    @contextmanager
    def _in_words_of_frames(self) -> Iterator[None]:
        """Complaints about a frame name the frame, not the file it was written to."""
        try:
            yield
        except BadData as wrong:
            if self._owner is None:
                raise
            names = [f"frame {Path(file).stem!r}" for file in wrong.file.split(", ")]
            raise BadData(", ".join(names), wrong.rule, wrong.remedy, column=wrong.column, line=wrong.line) from None


class _Owner:
    """Something to hang a folder's life on."""


class _Sections(TypedDict):
    """A plan file's content."""

    algorithm: str
    privacy: dict[str, object]
    data: dict[str, object]
    training: dict[str, object]
    target: NotRequired[dict[str, float]]


@dataclass(frozen=True, eq=False)
class _Asked:
    """What the caller wants of a plan of frames, and the plan that follows from it."""

    protect: Protect
    described: Described
    tables: Mapping[str, RawTable]
    user: str | None
    at_least: int | Mapping[str, int] | None
    test_fraction: float
    rounds: int | None
    algorithm: str | None
    shares: Sequence[float] | None
    target: EpsilonDelta
    own: tuple[Mapping[str, Any], Mapping[str, Any]]
    """What the caller says in the sections [privacy] and [training]."""

    def document(self) -> _Sections:
        """The plan's sections without target, by what is protected."""
        data: dict[str, object] = {"test-fraction": float(self.test_fraction)}
        privacy: dict[str, object]
        training: dict[str, object]
        match self.protect:
            case "attribute":
                name = self.algorithm or "pay-once"
                privacy = {"groups": len(self.described.groups), "rounds": self.rounds or 100}
                training = {"warm-start": 50} if name == "pay-once" else {}
                if name == "steffle":
                    privacy |= self._of_steffle()
                    if self.shares is not None:
                        training = {"group-frequencies": [float(share) for share in self.shares]}
                return {"algorithm": name, "privacy": privacy, "data": data, "training": training}
            case "record":
                data["at-least"] = self._sizes()
                privacy, training = self._of_records()
                name = self.algorithm or "gaussian"
                return {"algorithm": name, "privacy": privacy, "data": data, "training": training}
            case "user":
                users = self._users()
                data |= {"at-least": users, "users": {"kind": "column", "column": self.user}}
                cohort = {"users": users, "cohort": max(1, users // 10), "clip": 2.0, "sampling": "poisson"}
                training = {"choice": "smoothed"} if self.described.groups else {"notion": "none"}
                privacy = {**cohort, "rounds": self.rounds or 100}
                return {"algorithm": self.algorithm or "fpfl", "privacy": privacy, "data": data, "training": training}
            case _:
                raise InvalidInput(
                    "protect", self.protect, "is not one of the choices", "use attribute, record or user"
                )

    def _of_records(self) -> tuple[dict[str, object], dict[str, object]]:
        """The settings that follow from public numbers, or those of a plan that brings its own steps."""
        fair, sizes = self.algorithm == "fair-plugin", self._sizes()
        features = count_features(self.described.schema)
        rounds: dict[str, object] = {} if self.rounds is None else {"rounds": self.rounds}
        own = trains_its_own_way({**self.own[0], **rounds}, self.own[1]) or self.algorithm not in (None, *RECIPES)
        if features is None or own:
            usual: dict[str, object] = {"sampling-rate": 0.05, "rounds": 300, "clip": 1.0}
            usual = {"groups": len(self.described.groups), "rounds": 100} if fair else usual
            return usual | rounds, {}
        sites = len(self.tables)
        records = sum(sizes.values()) if isinstance(sizes, dict) else sizes * sites
        groups = len(self.described.groups) if fair else 0
        known = PublicNumbers(records, sites, *features, groups)
        privacy, training = recipe(known, self.target)
        return privacy | rounds, training

    def _of_steffle(self) -> dict[str, object]:
        """Full batches of the smallest silo; group shares that are public, or a histogram that is paid for."""
        size = min(table.records for table in self.tables.values())
        common = {"silo-size": size, "sampling": "full", "lipschitz": 0.5, "w-radius": 0.5}
        if self.shares is not None:
            return {**common, "minority-fraction": float(min(self.shares))}
        return {**common, "minority-fraction": 0.5 / len(self.described.groups), "histogram-noise-ratio": 1.0}

    def treated_as_public(self) -> tuple[str, ...]:
        """What the promise does not cover although it was taken from the records."""
        if self.protect == "attribute":
            return self.described.of_attribute  # labels and features are not protected, so nothing else needs to be
        sizes = () if self.at_least is not None else ("the number of users",) if self.user else ("the silos' sizes",)
        return (*self.described.of_features, *self.described.of_attribute, *sizes)

    def _sizes(self) -> int | dict[str, int]:
        if self.at_least is not None:
            return self.at_least if isinstance(self.at_least, int) else dict(self.at_least)
        kept = 1.0 if self.test_fraction == 0 else 0.8 * (1 - self.test_fraction)
        return {name: max(1, int(kept * table.records)) for name, table in self.tables.items()}

    def _users(self) -> int:
        assert self.user is not None
        if self.at_least is not None:
            return self.at_least if isinstance(self.at_least, int) else sum(self.at_least.values())
        kept = 1.0 if self.test_fraction == 0 else 0.8 * (1 - self.test_fraction)
        found = np.unique(np.concatenate([table.names(self.user) for table in self.tables.values()]))
        return max(1, int(kept * len(found)))


def _by_silo(frames: Any) -> dict[str, Frame]:
    """The frames by silo; a mapping of columns is one frame, a mapping of frames is several."""
    if not isinstance(frames, Mapping):
        return {"data": frames}
    if not frames:
        raise InvalidInput("frames", {}, "must not be empty", "give one frame for each silo")
    several = any(
        isinstance(value, Mapping)
        or hasattr(value, "columns")
        or getattr(value, "ndim", 1) == 2
        or getattr(getattr(value, "dtype", None), "names", None) is not None
        for value in frames.values()
    )
    return dict(frames) if several else {"data": frames}


def _require_roles(protect: str, sensitive: str | None, user: str | None) -> None:
    if protect == "attribute" and sensitive is None:
        raise InvalidInput("sensitive", None, "is needed to protect an attribute", "name its column")
    if (protect == "user") != (user is not None):
        raise InvalidInput("user", user, 'goes with protect="user"', "name the column that tells whose record it is")


def _dashed(section: Mapping[str, Any] | None) -> dict[str, object]:
    return {key.replace("_", "-"): list(v) if isinstance(v, tuple) else v for key, v in (section or {}).items()}


@final
class TrainedModel:
    """A model with the promise it keeps; made by `Plan.train`, or opened from a run folder."""

    def __init__(
        self,
        folder: Path,
        trust: TrustFile,
        plan: Plan | None,
        result: TrainingResult,
        ledger: str | Path,
        anchor: Path | None,
        keeper: object,
    ) -> None:
        self.folder = folder
        """The run folder, as `privfair audit` and `privfair report` read it."""
        self.result = result
        """How the run went; its metrics are of test records and not private."""
        self._trust = trust
        self._plan = plan
        self._ledger = ledger
        self._anchor = anchor
        self._keeper = keeper

    @property
    def budget(self) -> SignedBudget:
        """The budget that was spent."""
        return SignedBudget.load(self.folder / "budget.json")

    @property
    def promise(self) -> RunPromise:
        """What is promised, to whom, and what is not protected."""
        return promise_of(self.budget.document)

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes, in the order of the columns of `predict_proba`."""
        folder = RunFolder(self.folder)
        return tuple(folder.read_json(folder.encoding)["class_names"])

    def predict(self, frame: Frame) -> NDArray[np.str_]:
        """The most likely class of each record, by its name.

        Args:
            frame: records with the model's features; further columns are ignored.
        """
        return np.array(self._predicted(frame).predicted)

    def predict_proba(self, frame: Frame) -> Floats:
        """The probability of each class, one row per record and one column per class.

        Args:
            frame: records with the model's features; further columns are ignored.
        """
        return np.array(self._predicted(frame).probabilities, dtype=np.float64)

    def audit(
        self,
        *,
        reruns: int | None = None,
        seed: int = 0,
        confidence: float | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> AuditReport:
        """Audit the run: conformance, probes, noise and attacks, as `privfair audit`.

        Args:
            reruns: how often the statistical attack runs the training again (4 by default); 0 leaves it out.
            seed: of the auditor's coins.
            confidence: of the lower bound on epsilon; by default what suits the algorithm (0.95; pay-once 0.999).
            progress: called with a sentence before each layer.
        """
        return audit_run(
            self.folder,
            trust=self._trust,
            ledger=self._ledger,
            anchor=self._anchor,
            plan=None if self._plan is None else self._plan.path,
            trust_code=True,
            reruns=reruns,
            seed=seed,
            confidence=confidence,
            progress=progress,
        )

    def report(self, path: str | Path, audit: AuditReport | None = None) -> Path:
        """Write the page about this run for a privacy officer, as `privfair report`.

        Args:
            path: of the HTML file.
            audit: what `audit` returned, to be shown next to the promise.
        """
        return report(self.folder, path, audit=audit, trust=self._trust)

    def save(self, path: str | Path) -> Path:
        """Copy the run folder, without the secret that could continue the run.

        Args:
            path: a folder that does not exist yet.
        """
        shutil.copytree(self.folder, path, ignore=shutil.ignore_patterns("claim.token", "lock", "origin.json"))
        return Path(path)

    def _predicted(self, frame: Frame) -> Any:
        return predict(self.folder, read_frame(frame, "frame"), FolderTrust(self._trust, code=True))

    def _repr_html_(self) -> str:
        """How a notebook shows it: what is promised before how well it does."""
        result, promise = self.result, self.promise
        measured = "" if result.accuracy is None else f" Accuracy {result.accuracy:.3f} on test records (not private)."
        warned = "" if result.warning is None else as_html(result.warning)
        return as_html(promise.text, measured) + warned + as_html("Not protected:", items=promise.not_protected)

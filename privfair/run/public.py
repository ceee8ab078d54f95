"""What is known of a run without a single record: its signed plan, its promise, its model and its algorithm."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, assert_never, final

from pydantic import BaseModel, ConfigDict, JsonValue, model_serializer, model_validator
from torch import Tensor

from calibrate.errors import PrivfairError, Refused, UnsupportedCombination
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import AsPrintedGuarantee, NoiseSource, NoPrivacyPromised, PrivateGuarantee
from calibrate.manifest.strict_json import Step
from calibrate.manifest.trust import UNTRUSTED, FolderTrust, TrustFile
from calibrate.manifest.verify import AuthenticManifest, authenticate, read_unverified, require_signed_code
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from privfair.algorithms.algorithm import Algorithm
from privfair.algorithms.recipe import require_signed
from privfair.durable import read_named
from privfair.fairness.measurement import Measured
from privfair.federation.coordinator import Position, PublicFacts, RunObserver
from privfair.models.model import Model
from privfair.plan.data import FileSource
from privfair.plan.plan import Plan
from privfair.plan.training import TrainingPlan, build, read_training_plan, training_plan
from privfair.run.folder import RunFolder

# What a run promises, in the few words that are in every output, and as the terms the ledger claims.


class RunPromise(BaseModel):
    """`epsilon` is None where nothing finite is promised; `claimed_epsilon` is what a paper claims of its noise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    text: str
    unit: PrivacyUnit
    epsilon: float | None
    delta: float
    claimed_epsilon: float | None
    not_protected: tuple[str, ...]
    research_noise: bool

    @property
    def nothing(self) -> bool:
        """Whether no one is protected."""
        return self.epsilon is None

    @property
    def json_delta(self) -> float | None:
        """The delta of files and outputs: None where nothing is promised."""
        return None if self.nothing else self.delta

    @model_serializer
    def as_json(self) -> dict[str, JsonValue]:
        return {
            "kind": self.kind,
            "text": self.text,
            "unit": self.unit.protected.value,
            "adjacency": self.unit.relation.value,
            "epsilon": self.epsilon,
            "delta": self.json_delta,
            "claimed_epsilon": self.claimed_epsilon,
            "not_protected": list(self.not_protected),
            "research_noise": self.research_noise,
        }

    @model_validator(mode="before")
    @classmethod
    def _of_json(cls, found: object) -> object:
        """The unit of `as_json` is two keys, and its delta may be null."""
        if not isinstance(found, dict) or "adjacency" not in found:
            return found
        given = dict(found)
        unit = PrivacyUnit(Protected(given.get("unit")), Relation(given.pop("adjacency")))
        not_protected = tuple(given.get("not_protected") or ())
        return {**given, "unit": unit, "delta": given.get("delta") or 0.0, "not_protected": not_protected}


def promise_of(document: BudgetDocument) -> RunPromise:
    """The promise of a manifest; seeded research noise turns every promise into none."""
    guarantee = document.guarantee
    research = document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY
    claimed: float | None = None
    match guarantee:
        case PrivateGuarantee(epsilon=epsilon, delta=delta):
            true: float | None = epsilon
            text = f"epsilon {epsilon:g} at delta {delta:g} for one {guarantee.unit.value}"
        case AsPrintedGuarantee(epsilon=true, delta=delta, claimed_epsilon=claimed):
            found = "no finite epsilon" if true is None else f"epsilon {true:.4g}"
            text = f"AS PRINTED: the paper claims epsilon {claimed:g}, the true cost is {found} at delta {delta:g}"
        case NoPrivacyPromised(why=why):
            true, delta = None, 0.0
            text = f"NO PRIVACY PROMISED: {why}"
        case _:
            assert_never(guarantee)
    if research:
        true = None
        text = f"UNSAFE RESEARCH NOISE, nobody is protected (the noise would otherwise mean: {text})"
    return RunPromise(
        kind=guarantee.kind,
        text=text,
        unit=guarantee.privacy_unit(),
        epsilon=true,
        delta=delta,
        claimed_epsilon=claimed,
        not_protected=guarantee.not_protected,
        research_noise=research,
    )


@dataclass(frozen=True, eq=False)
class PublicRun:
    """A plan with the authentic manifest that was signed for it: all that a coordinator knows, without a record."""

    plan: TrainingPlan
    envelope: bytes
    manifest: AuthenticManifest
    trust: TrustFile | None = None

    @property
    def document(self) -> BudgetDocument:
        return self.manifest.document

    def build(self, facts: PublicFacts) -> tuple[Model, Algorithm[Any]]:
        """Model and algorithm with the parameters that were signed."""
        if not isinstance(self.document.guarantee, NoPrivacyPromised):
            self.plan.refuse_unpromised_keys()
        parameters = require_signed(self.document, self.plan.file.privacy)
        return build(self.plan, facts, parameters, self.document.data, self.document)


def read_signed_plan(path: Path, envelope: bytes, trust: TrustFile, *, searching: bool = False) -> PublicRun:
    """Authenticate the manifest, compare the plan's bytes with the signed digest, and only then parse them.

    A plan with a [search] is refused unless `searching`: anyone who shows a run would show a try.
    """
    authentic = authenticate(envelope, trust)
    content = read_named(path, "plan")
    signed, given = authentic.document.config_digest, hashlib.sha256(content).hexdigest()
    if given != signed:
        raise Step.PLAN.refuse(f"the budget is for the plan {signed[:12]}, not for {given[:12]}")
    plan = training_plan(Plan.parse(content, path))
    if plan.data.identity != authentic.document.dataset:
        named = (one and one.label for one in (authentic.document.dataset, plan.data.identity))
        raise Step.DATA.refuse("the budget is for the data set {!a}, the plan names {!a}".format(*named))
    if not searching:
        refuse_search(plan)
    return PublicRun(plan, envelope, authentic, trust)


def refuse_search(plan: TrainingPlan) -> None:
    """Raise where the plan has a [search]: for anyone who needs to see every message of a run."""
    if plan.file.search is not None:
        raise UnsupportedCombination(
            "a plan with a [search] outside of `privfair train` in one process",
            "only the best try may be shown, so there are neither guards nor a transcript to audit",
            "train it with --ledger, and audit its model with `privfair audit --model`",
        )


@dataclass(frozen=True)
class Progress:
    """What a progress display may show after a step."""

    step: int
    updates: int
    charged: int
    signed: int
    metrics: Measured | None


Measure = Callable[[Model, Tensor, int, int | None], Measured]
"""The metrics of a model with these parameters after a step and a round; written where they belong."""


@final
class Measuring(RunObserver):
    """Measures the model as often as the plan says, and tells a display of every step."""

    def __init__(
        self,
        plan: TrainingPlan,
        document: BudgetDocument,
        built: tuple[Model, Algorithm[Any]],
        measure: Measure | None,
        progress: Callable[[Progress], None] | None,
        charged: Callable[[Position[Any]], int],
        exhausted: Callable[[], bool] = lambda: False,
    ) -> None:
        """`charged` are the rounds spent by then, `exhausted` whether this step was the last one for want of rounds."""
        self._training, self._signed, self._updates = plan.training, document.rounds, plan.updates(document.rounds)
        self._model, self._algorithm = built
        self._write, self._progress = measure, progress
        self._charged, self._exhausted = charged, exhausted
        self.metrics: Measured | None = None
        """Of the last step that was measured."""
        self.measured = -1
        """That step; no earlier one is measured again."""
        self.step = 0

    def on_step(self, position: Position[Any]) -> None:
        self.step = position.step
        metrics = self.measure(position, last=self._exhausted())
        if self._progress is not None:
            charged = self._charged(position)
            self._progress(Progress(position.step, self._updates, charged, self._signed, metrics))

    def measure(self, position: Position[Any], *, last: bool = False) -> Measured | None:
        """The metrics after this step, where it is one that is measured, as the last one always is."""
        due = last or self._training.measures(position.step, self._updates)
        if not due or self._write is None or position.step <= self.measured:
            return None
        theta = self._algorithm.theta(position.state)
        self.metrics, self.measured = self._write(self._model, theta, position.step, position.round), position.step
        return self.metrics


# The plan of a run folder, which may come from anyone: nothing of it runs before it was authenticated and trusted.


@dataclass(frozen=True, eq=False)
class FolderPlan:
    """The plan and the manifest of a run folder; the manifest is authentic where trusted signers were named."""

    plan: TrainingPlan
    envelope: bytes
    document: BudgetDocument
    manifest_digest: str
    authentic: AuthenticManifest | None


def read_folder_plan(
    folder: RunFolder, trusted: FolderTrust = UNTRUSTED, plan_path: Path | None = None, model_only: bool = False
) -> FolderPlan:
    """Read, in this order, the manifest (authenticated where signers are named) and the plan.

    A plan with the user's code is refused unless its digest and the digests of its files are the signed ones; and if
    the files are in the run folder, unless the manifest is authentic and `trusted.code` was given. `plan_path` is the
    plan in its own place: then its code is the reader's own and not the folder's. With `model_only` the reader promises
    to build nothing but the model, so that the user's own loss does not count.
    """
    envelope = read_named(folder.manifest, "run folder", "name a whole run folder")
    # A run of the past stays readable after its budget expired: reading spends nothing, and `bind` refuses it.
    authentic = None if trusted.signers is None else authenticate(envelope, trusted.signers, for_reading=True)
    claimed = authentic or read_unverified(envelope)
    plan = read_training_plan(folder.plan if plan_path is None else plan_path)
    code, own = plan.code_digests(), plan.own_code()
    runs = [name for name in own if not model_only or (plan.model.code is not None and name == plan.model.code.name)]
    if runs and plan_path is None:
        _require_trusted(folder, runs, trusted)
    if runs or len(code) > len(own):  # the packages of plug-ins are the reader's own, and must be the signed ones
        signed, given = claimed.document.config_digest, plan.file.digest
        if signed != given:
            raise Step.PLAN.refuse(f"the budget is for the plan {signed[:12]}, not for {given[:12]}, which brings code")
        require_signed_code(claimed.document, code)
    return FolderPlan(plan, envelope, claimed.document, claimed.digest, authentic)


def original_plan(folder: RunFolder) -> Path | None:
    """Where the run says that its plan lay, if the same plan still lies there; None if it need not be known.

    A plan that names data files relative to itself is read from its own place. The folder may come from anybody, so
    a plan that brings code is never looked for: then the reader has to name it.
    """
    try:
        plan = read_training_plan(folder.plan)
        source = plan.data.source
        if not isinstance(source, FileSource) or plan.own_code():
            return None
        if all(file.is_file() for file in (source.schema, *source.files)):
            return None
        origin = Path(str(folder.read_json(folder.origin)["plan"]))
        return origin if origin.is_file() and origin.read_bytes() == folder.plan.read_bytes() else None
    except (PrivfairError, KeyError, OSError, ValueError):
        return None


def _require_trusted(folder: RunFolder, names: list[str], trusted: FolderTrust) -> None:
    brings = f"{folder.path} brings its own code ({', '.join(names)}), which would run"
    if not trusted.code:
        raise Refused(f"{brings}; read it, and add --trust-code with --trust if you know who wrote it")
    if trusted.signers is None:
        raise Refused(f"{brings}, and no signature was checked; name the trust file with --trust")

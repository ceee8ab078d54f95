"""Everything that is checked before a run spends anything: manifest, plan, data, algorithm, in this order.

The manifest is authenticated before any record is read, and the plan's bytes are compared with the signed
digest before they are parsed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import NoPrivacyPromised
from calibrate.manifest.strict_json import Step
from calibrate.manifest.trust import TrustFile
from calibrate.manifest.verify import Run, VerifiedManifest, authenticate, bind
from calibrate.privacy_unit import PrivacyUnit
from calibrate.sampling import Sampling
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.batches.participation import declared_sampling
from privfair.data.facts import NoPrivacyPromised as NothingToCover
from privfair.data.training_data import TrainingData, load_training_data
from privfair.federation.local_party import PartySetup, require_declared
from privfair.ledger import ManifestTerms
from privfair.models.model import Model
from privfair.plan.privacy import require_signed
from privfair.plan.training import TrainingPlan, read_training_plan
from privfair.run.metrics import HeldOutRecords
from privfair.run.public import Promise, build, promise_of


def facts_covered(document: BudgetDocument) -> PrivacyUnit | NothingToCover:
    """Against which promise facts read off the data are judged: research on a private plan keeps its rules."""
    guarantee = document.guarantee
    if isinstance(guarantee, NoPrivacyPromised):
        return NothingToCover(guarantee.why)
    return guarantee.privacy_unit()


def claim_terms(manifest: VerifiedManifest) -> ManifestTerms:
    """What the ledger is to enforce of a verified manifest."""
    document, promise = manifest.document, promise_of(manifest.document)
    return ManifestTerms(
        manifest_digest=manifest.digest,
        nonce=document.nonce,
        envelope_digest=manifest.authentic.envelope_digest,
        rounds=document.rounds,
        epsilon=promise.epsilon,
        delta=promise.delta,
        dataset=f"data {document.data.digest()[:16]}" if document.dataset is None else document.dataset.label,
        data_digest=document.data.digest(),
        valid_until=document.validity.not_after,
        unit=promise.unit,
        ledgers=tuple(bound.ledger for bound in document.ledgers),
        purpose=document.justification,
        signers=tuple(f"{one.role.value} {one.key_id[:16]}" for one in manifest.signatures),
        curve=None if promise.epsilon is None else document.renyi_curve(),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedRun:
    """A plan with its data, model and algorithm under one budget: what training and auditing have in common."""

    plan: TrainingPlan
    plan_bytes: bytes
    envelope: bytes
    document: BudgetDocument
    data: TrainingData
    model: Model
    algorithm: Algorithm[Any]
    silos: tuple[SiloTensors, ...]

    @property
    def promise(self) -> Promise:
        return promise_of(self.document)

    @property
    def sampling(self) -> Sampling | None:
        """How batches are drawn; None for full batches, and for an algorithm that draws its own."""
        if self.algorithm.draws:
            return None
        if isinstance(self.document.guarantee, NoPrivacyPromised):
            smallest = min(silo.size for silo in self.document.data.silos)
            return self.plan.unpromised_sampling(require_signed(self.document, self.plan.file.privacy), smallest)
        return declared_sampling(self.document)

    def under(self, manifest: VerifiedManifest, envelope: bytes) -> PreparedRun:
        """The same run, to be trained under a manifest that was verified for it."""
        return PreparedRun(
            plan=self.plan,
            plan_bytes=self.plan_bytes,
            envelope=envelope,
            document=manifest.document,
            data=self.data,
            model=self.model,
            algorithm=self.algorithm,
            silos=self.silos,
            manifest=manifest,
            updates=self.plan.updates(manifest.document.rounds),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedRun(PlannedRun):
    """A run whose manifest is verified; nothing is spent yet."""

    manifest: VerifiedManifest
    updates: int

    @cached_property
    def held_out(self) -> HeldOutRecords:
        """The test records, ready to be measured."""
        if self.data.test is None:
            raise InvalidInput("[data]", "(sites)", "holds no record out for measuring", "train with --guards")
        return HeldOutRecords(self.data.test, self.plan.model.dtype, self.plan.training.positive)

    @property
    def setup(self) -> PartySetup:
        """What the silos' side of this run is made from."""
        return PartySetup(
            manifest=self.manifest,
            algorithm=self.algorithm,
            silos=self.silos,
            sampling=self.sampling,
            seed=self.plan.training.seed,
            block=self.plan.block(self.document.rounds),
            sensitive=() if self.data.apart is None else self.data.apart.sensitive,
        )


def prepare_run(plan_path: Path, envelope: bytes, trust: TrustFile) -> PreparedRun:
    """Verify and build; raises `Refused` or `InvalidInput`, and has spent nothing by then."""
    authentic = authenticate(envelope, trust)
    document, plan_bytes = authentic.document, _plan_bytes(plan_path)
    given = hashlib.sha256(plan_bytes).hexdigest()
    if given != document.config_digest:
        raise Step.PLAN.refuse(f"the budget is for the plan {document.config_digest[:12]}, not for {given[:12]}")
    plan = read_training_plan(plan_path)
    data = load_training_data(plan.data, central=plan.recipe.central, unit=document.guarantee.privacy_unit())
    manifest = bind(authentic, Run(plan.file.digest, data.binding, plan.code_digests()))
    data.require_allowed(facts_covered(document))
    if not isinstance(document.guarantee, NoPrivacyPromised):
        plan.refuse_unpromised_keys()
    parameters = require_signed(document, plan.file.privacy)
    model, algorithm = build(plan, data.facts, parameters, document.data, document)
    require_declared(algorithm, document)
    planned = PlannedRun(
        plan=plan,
        plan_bytes=plan_bytes,
        envelope=envelope,
        document=document,
        data=data,
        model=model,
        algorithm=algorithm,
        silos=data.tensors(plan.model.dtype),
    )
    prepared = planned.under(manifest, envelope)
    _ = prepared.held_out, prepared.sampling  # refused now, before anything is spent
    return prepared


def _plan_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput("plan", str(path), f"cannot be read ({error.strerror})", "check the path") from error

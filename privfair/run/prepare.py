"""Everything that is checked before a run spends anything: manifest, plan, data, algorithm, in this order.

The manifest is authenticated before any record is read (`run.public`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument, DataBinding
from calibrate.manifest.mechanism import NoiseSource, NoPrivacyPromised
from calibrate.manifest.trust import TrustFile
from calibrate.manifest.verify import IntendedRun, SiloData, VerifiedManifest, bind
from calibrate.privacy_unit import PrivacyUnit
from calibrate.sampling import Sampling
from privfair.algorithms.algorithm import Algorithm
from privfair.algorithms.recipe import require_signed
from privfair.batches.participation import declared_sampling, require_population
from privfair.batches.randomness import SeededWords
from privfair.data.stability import NothingPromised as NothingToCover
from privfair.data.training_data import TrainingData, load_site_data, load_training_data, site_facts
from privfair.durable import replace_file
from privfair.federation.coordinator import PublicFacts
from privfair.federation.local_party import PartySetup, require_declared
from privfair.ledger import ManifestTerms
from privfair.ledger.entries import undeclared_dataset
from privfair.models.model import Model
from privfair.plan.data import AttributesAtSites
from privfair.plan.plan import SearchPlan, search_plan
from privfair.plan.training import TrainingPlan, training_plan
from privfair.run.folder import RunFolder, json_file, save_model
from privfair.run.metrics import HeldOutRecords
from privfair.run.public import PublicRun, RunPromise, promise_of, read_signed_plan
from privfair.run.record import RunRecord


def facts_covered(document: BudgetDocument) -> PrivacyUnit | NothingToCover:
    """Against which promise facts taken from the data are judged: research on a private plan keeps its rules."""
    guarantee = document.guarantee
    if isinstance(guarantee, NoPrivacyPromised):
        return NothingToCover(guarantee.why)
    return guarantee.privacy_unit()


def claim_terms(manifest: VerifiedManifest, silo: str | None = None) -> ManifestTerms:
    """What the ledger is to enforce of a verified manifest; the ledger of `silo` where it has its own."""
    document, promise = manifest.document, promise_of(manifest.document)
    bound = tuple(one.ledger for one in document.ledgers if silo is None or one.silo in (None, silo))
    return ManifestTerms(
        manifest_digest=manifest.digest,
        nonce=document.nonce,
        envelope_digest=manifest.authentic.envelope_digest,
        rounds=document.rounds,
        epsilon=promise.epsilon,
        delta=promise.delta,
        dataset=undeclared_dataset(document.data.digest()) if document.dataset is None else document.dataset.label,
        data_digest=document.data.digest(),
        valid_until=document.validity.not_after,
        unit=promise.unit,
        ledgers=bound,
        purpose=document.justification,
        signers=tuple(f"{one.role.value} {one.key_id[:16]}" for one in manifest.signatures),
        curve=None if promise.epsilon is None else document.renyi_curve(),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Run(PartySetup):
    """What would be computed: a plan with its data, model and algorithm under one budget. Nothing here can spend."""

    plan: TrainingPlan
    envelope: bytes
    data: TrainingData
    facts: PublicFacts
    model: Model
    updates: int

    @classmethod
    def planned(
        cls, plan: TrainingPlan, document: BudgetDocument, algorithm: Algorithm[Any], data: TrainingData, **more: Any
    ) -> Self:
        """With the batches, blocks and steps of this plan under this document; `more` are the other fields."""
        return cls(
            plan=plan,
            document=document,
            algorithm=algorithm,
            data=data,
            sampling=_sampling(plan, document, algorithm),
            seed=plan.training.seed,
            block=plan.block(document.rounds),
            sensitive=() if data.apart is None else data.apart.sensitive,
            updates=plan.updates(document.rounds),
            **more,
        )

    @property
    def promise(self) -> RunPromise:
        return promise_of(self.document)

    @property
    def parts(self) -> Mapping[str, Any]:
        """Its fields with their names, for a run that is more than this."""
        return {one.name: getattr(self, one.name) for one in fields(Run)}

    def under(self, manifest: VerifiedManifest, envelope: bytes) -> PreparedRun:
        """The same run, to be trained under a manifest that was verified for it."""
        same = {"silos": self.silos, "facts": self.facts, "model": self.model}
        signed = {"manifest": manifest, "envelope": envelope}
        return PreparedRun.planned(self.plan, manifest.document, self.algorithm, self.data, **same, **signed)


def _sampling(plan: TrainingPlan, document: BudgetDocument, algorithm: Algorithm[Any]) -> Sampling | None:
    """How batches are drawn; None for full batches, and for an algorithm that draws its own."""
    if algorithm.draws:
        return None
    if isinstance(document.guarantee, NoPrivacyPromised):
        smallest = min(silo.size for silo in document.data.silos)
        return plan.unpromised_sampling(require_signed(document, plan.file.privacy), smallest)
    return declared_sampling(document)


@dataclass(frozen=True, eq=False, kw_only=True)
class PreparedRun(Run):
    """A run with the verified manifest that `OpenRun` may spend on it; nothing is spent yet."""

    manifest: VerifiedManifest
    search: SearchPlan | None = None
    """Where the best of several tries is to be shown; None for a run."""
    tries: tuple[PreparedRun, ...] = ()
    """The same run with each setting of the search."""

    @cached_property
    def held_out(self) -> HeldOutRecords | None:
        """The test records, ready to be measured; None where no record is held out."""
        if self.data.test is None:
            return None
        return HeldOutRecords(self.data.test, self.plan.model.dtype, self.plan.training.positive)

    @property
    def record_numbers(self) -> list[str]:
        """By which number holders and registries at their own sites know each record of the first party."""
        attributes = self.plan.data.attributes
        assert isinstance(attributes, AttributesAtSites)
        return self.data.parties[0].data.identifiers(attributes.record)

    def record(self, ledger: str, **more: object) -> RunRecord:
        """run.json before anything is claimed; `more` are the fields that not every run has."""
        return RunRecord.begun(self.manifest.authentic, self.updates, self.sampling, ledger=ledger, **more)

    def files(self) -> dict[str, bytes]:
        """What a run folder keeps of it from the beginning, by file name."""
        return {
            "plan.toml": self.plan.file.content,
            **self.plan.file.beside,
            "budget.json": self.envelope,
            "encoding.json": json_file(self.data.encoding()),
            "origin.json": json_file({"plan": str(self.plan.file.path.absolute())}),
        }

    def save_model(self, folder: RunFolder, theta: Tensor) -> None:
        """Write the model with the user's own code that it needs."""
        for name, code in self.plan.own_code().items():
            replace_file(folder.path / name, code)
        save_model(folder, self.model, theta, self.data.encoding(), self.promise.text)


Sites = Mapping[str, Path]
"""Each silo's file, for a plan that names silos and no files."""


def prepare_run(
    plan_path: Path, envelope: bytes, trust: TrustFile, sites: Sites | None = None, *, searching: bool = False
) -> PreparedRun:
    """Verify and build; raises `Refused` or `InvalidInput`, and has spent nothing by then.

    `sites` are the files of all silos in one place, for an auditor who has them. With `searching` the plan may have a
    [search].
    """
    signed = read_signed_plan(plan_path, envelope, trust, searching=searching)
    data = load_data(signed.plan, signed.document, sites or {})
    prepared = _prepare(signed, data, data.binding, data.facts)
    if not sites:
        _ = prepared.held_out  # refused now, before anything is spent
    search = search_plan(signed.plan.file)
    return prepared if search is None else _with_tries(prepared, signed, search)


def _with_tries(prepared: PreparedRun, signed: PublicRun, search: SearchPlan) -> PreparedRun:
    """The run with a run for each setting of its search, all of them over the same records."""
    if prepared.held_out is None:
        raise InvalidInput(
            "[search]", "(a table)", "needs held-out records to judge tries by", "add test-files or a held-out share"
        )
    data = prepared.data
    tries = tuple(
        replace(
            _prepare(replace(signed, plan=training_plan(file)), data, data.binding, data.facts), silos=prepared.silos
        )
        for file in search.plans
    )
    return replace(prepared, search=search, tries=tries)


def load_data(plan: TrainingPlan, document: BudgetDocument, sites: Sites) -> TrainingData:
    """The data of all parties of a run: as the plan says, or from the silos' files where it names none."""
    unit, central = document.guarantee.privacy_unit(), plan.recipe.central
    if sites:
        return load_site_data(plan.data, sites, central=central, unit=unit)
    return load_training_data(plan.data, central=central, unit=unit)


def prepare_site(plan_path: Path, envelope: bytes, trust: TrustFile, party: str, files: Sites) -> PreparedRun:
    """The same for one party alone, whose `files` (by silo) are the only ones that are read."""
    signed = read_signed_plan(plan_path, envelope, trust)
    plan, unit = signed.plan, signed.document.guarantee.privacy_unit()
    facts, binding = site_facts(plan.data, central=plan.recipe.central, unit=unit)
    if party not in {silo.name for silo in binding.silos}:
        known = ", ".join(silo.name for silo in binding.silos)
        raise InvalidInput("--party", party, f"is not a party of the plan, which has {known}", "name one of them")
    if not plan.code_digests():  # code is built when its digests were verified, with the data
        _ = signed.build(facts)[0].size  # a machine whose products round is refused now
    data = load_site_data(plan.data, files, central=plan.recipe.central, unit=unit)
    (own,) = data.binding.silos
    return _prepare(signed, data, SiloData(own.name, own.size, data.binding.schema_digest), facts)


def _prepare(signed: PublicRun, data: TrainingData, own: DataBinding | SiloData, facts: PublicFacts) -> PreparedRun:
    plan, document = signed.plan, signed.document
    manifest = bind(signed.manifest, IntendedRun(plan.file.digest, own, plan.code_digests()))
    data.require_allowed(facts_covered(document), document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY)
    model, algorithm = signed.build(facts)
    require_declared(algorithm, document)
    silos, parts = data.tensors(plan.model.dtype), {"facts": facts, "model": model, "envelope": signed.envelope}
    prepared = PreparedRun.planned(plan, document, algorithm, data, silos=silos, manifest=manifest, **parts)
    # What is refused below is refused now, before anything is spent.
    if algorithm.draws:
        for silo in prepared.silos:
            algorithm.draw(silo, SeededWords(0, "trial draw"))
    else:
        for party, units in prepared.units.items():
            if party not in prepared.sensitive:
                require_population(party, units, prepared.sampling)
    return prepared

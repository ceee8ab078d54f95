"""One run of an experiment on the engine: the algorithm's own class, the gate, the ledger and the round loop.

Data sets of experiments are public and noise must be repeatable, so budgets are signed for seeded research noise:
calibrated, priced and enforced like any other, but protecting nobody. Files live in a folder that goes with the run.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from calibrate.budget import CertifiedBudget
from calibrate.manifest.document import BudgetDocument, DataBinding, Issuer
from calibrate.manifest.draft import BudgetSubject, NoPromise, draft_document
from calibrate.manifest.issue import issue
from calibrate.manifest.keys import Role, generate
from calibrate.manifest.mechanism import InTheClear
from calibrate.manifest.trust import TrustedKey, TrustFile
from calibrate.manifest.verify import IntendedRun, VerifiedManifest, verify
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from calibrate.sampling import Sampling
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.batches.participation import declared_sampling
from privfair.federation.coordinator import Position, run_steps
from privfair.federation.local_party import PartySetup, require_declared
from privfair.run.open_run import OpenRun

_BLOCK = 32
_RECORD = PrivacyUnit(Protected.RECORD, Relation.REPLACE_ONE)
_WHY = "A public data set in an experiment."


@dataclass(frozen=True, eq=False)
class Signed:
    """A verified manifest, and how batches are drawn under it."""

    manifest: VerifiedManifest
    sampling: Sampling | None
    rounds: int


def promised(algorithm: Algorithm[Any], budget: CertifiedBudget, units: dict[str, int]) -> Signed:
    """The calibrated budget, signed for this algorithm on parties of these sizes."""
    shapes = {name: tuple(shape) for name, shape in algorithm.shapes().items()}
    issuer = Issuer(lifetime=timedelta(days=1), why=_WHY, research_noise=True)
    document = draft_document(budget, BudgetSubject(_binding(units), shapes=shapes), issuer).document
    require_declared(algorithm, document)
    sampling = None if algorithm.draws else declared_sampling(document)
    return Signed(_verified(document), sampling, budget.plan.rounds)


def unpromised(
    algorithm: Algorithm[Any], rounds: int, units: dict[str, int], sampling: Sampling | None = None
) -> Signed:
    """A manifest that promises nothing: every value goes out as it is."""
    clear = tuple(
        InTheClear(
            name=name,
            publications=rounds,
            shape=tuple(shape),
            why="Without privacy, for comparison.",
            depends_on_unit=True,
        )
        for name, shape in algorithm.shapes().items()
    )
    subject = BudgetSubject(_binding(units), clear=clear, config_digest="00" * 32)
    price = NoPromise("experiment", _RECORD, rounds, "Without privacy, for comparison.")
    document = draft_document(price, subject, Issuer(lifetime=timedelta(days=1), why=_WHY)).document
    return Signed(_verified(document), sampling, rounds)


def train(
    algorithm: Algorithm[Any],
    signed: Signed,
    silos: tuple[SiloTensors, ...],
    seed: int,
    watch: Callable[[Position[Any]], None] | None = None,
) -> Tensor:
    """The trained parameters; `seed` draws batches and research noise."""
    setup = PartySetup(signed.manifest.document, algorithm, silos, signed.sampling, seed, _BLOCK)
    start = position = Position(algorithm.start())
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that research noise protects nobody is said on the page
        with OpenRun.apart(signed.manifest, Path(folder)) as spending:
            for position in run_steps(algorithm, spending.parties(setup), start, signed.rounds):
                if watch is not None:
                    watch(position)
            spending.finish()
    return algorithm.theta(position.state)


def first_noise(budget: CertifiedBudget | None) -> float | None:
    """The noise multiplier of a budget's first value, for the rows of a page; None without a budget."""
    return None if budget is None else budget.value(budget.values[0].name).noise_multiplier


def _binding(units: dict[str, int]) -> DataBinding:
    return DataBinding.of("00" * 32, tuple(units.items()))


def _verified(document: BudgetDocument) -> VerifiedManifest:
    key = generate()
    start = datetime.now(UTC) - timedelta(days=1)
    trust = TrustFile(keys=(TrustedKey.of(key.public, Role.PRIVACY_OFFICER, start),))
    return verify(issue(document, key), trust, IntendedRun(document.config_digest, document.data))

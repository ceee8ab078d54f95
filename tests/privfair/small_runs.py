"""Small data, an officer's desk and signed manifests for tests of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.budget import calibrate_plan
from calibrate.manifest.document import BudgetDocument, DataBinding, Issuer
from calibrate.manifest.draft import BudgetSubject, draft_document
from calibrate.manifest.issue import issue
from calibrate.manifest.keys import Role, SigningKey, generate, load_private, save
from calibrate.manifest.mechanism import InTheClear, NoiseSource
from calibrate.manifest.trust import TrustedKey, TrustFile
from calibrate.manifest.verify import IntendedRun, VerifiedManifest, verify
from calibrate.plans.plan import Plan
from calibrate.privacy_unit import EpsilonDelta
from privfair.gate import Gate, open_gate
from privfair.ledger import Claim, Ledger
from privfair.run.folder import RunFolder
from privfair.run.open_run import OpenRun
from privfair.run.public import Progress
from privfair.training import TrainingResult, train
from privfair.transcript import ValueSpec
from tests.privfair.ledgers import open_ledger

SCHEMA = """
version = 1
[target]
column = "default"
classes = ["no", "yes"]
[sensitive]
column = "sex"
groups = ["female", "male"]
[numeric.age]
bounds = [18, 98]
[numeric.income]
mean = 10.0
scale = 2.0
[categorical.job]
values = ["clerk", "nurse", "other"]
"""
FEATURES = 5

FEDSGD = """algorithm = "fedsgd"
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
[training]
rounds = {rounds}
batch-size = 32
learning-rate = 1.0
{more}
"""

GAUSSIAN = """algorithm = "gaussian"
[target]
epsilon = 8.0
delta = 1e-5
[privacy]
sampling-rate = {rate}
rounds = {rounds}
clip = 1.0
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
at-least = 100
[training]
learning-rate = 1.0
{more}
"""

FPFL = """algorithm = "fpfl"
[target]
epsilon = 8.0
delta = 1e-3
[privacy]
users = 200
cohort = 40
rounds = 5
clip = 1.0
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
[data.users]
kind = "poisson"
users = 200
[training]
learning-rate = 0.1
"""


STEFFLE = """algorithm = "steffle"
[target]
epsilon = {epsilon}
delta = 1e-5
[privacy]
silo-size = 120
batch-size = {batch}
rounds = {rounds}
minority-fraction = {minority}
lipschitz = {lipschitz}
w-radius = {radius}
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
[training]
{more}
"""


def steffle_plan(
    rounds: int,
    more: str = "",
    *,
    epsilon: float = 2.0,
    batch: int = 20,
    minority: float = 0.5,
    lipschitz: float = 1.0,
    radius: float = 0.5,
    shares: tuple[float, ...] = (0.5, 0.5),
) -> str:
    """SteFFLe on the three small silos; `more` are further lines of [training]."""
    privacy = {"batch": batch, "minority": minority, "lipschitz": lipschitz, "radius": radius}
    return STEFFLE.format(
        rounds=rounds, epsilon=epsilon, **privacy, more=f"group-frequencies = {list(shares)}\n{more}".rstrip()
    )


def write_silos(folder: Path, sizes: tuple[int, ...] = (160, 200, 180), seed: int = 0) -> None:
    """Three CSV files and their schema; older and better paid people default less, men a little more."""
    generator = np.random.default_rng(seed)
    for name, size in zip(("north", "south", "west"), sizes, strict=True):
        age = generator.integers(18, 90, size)
        income = generator.normal(10, 2, size)
        male = generator.random(size) < 0.5
        score = 2.0 - 0.05 * (age - 18) - 0.4 * (income - 10) + 0.5 * male + generator.normal(0, 1, size)
        jobs = generator.choice(["clerk", "nurse", "other"], size)
        rows = ["age,income,job,sex,default"]
        rows += [
            f"{a},{i:.3f},{j},{'male' if m else 'female'},{'yes' if s > 0 else 'no'}"
            for a, i, j, m, s in zip(age, income, jobs, male, score, strict=True)
        ]
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "schema.toml").write_text(SCHEMA, encoding="utf-8")


@dataclass(frozen=True)
class Desk:
    """A folder with data, one plan, an officer's key and the trust file."""

    folder: Path

    @classmethod
    def at(cls, folder: Path, plan: str, write_data: Callable[[Path], None] = write_silos) -> Desk:
        """Everything that a run needs but the budget; `write_data` writes the files that the plan names."""
        folder.mkdir(parents=True, exist_ok=True)
        write_data(folder)
        desk = cls(folder)
        desk.plan.write_text(plan, encoding="utf-8")
        key = generate()
        save(key, Role.PRIVACY_OFFICER, desk.key)
        desk.trust.write_bytes(trusting(key).to_bytes())
        open_ledger(desk.ledger).close()
        return desk

    @property
    def plan(self) -> Path:
        return self.folder / "plan.toml"

    @property
    def key(self) -> Path:
        return self.folder / "officer.pem"

    @property
    def trust(self) -> Path:
        return self.folder / "trust.json"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.db"

    def budget(self, name: str = "budget.json", research_noise: bool = False) -> Path:
        """The signed manifest of the plan: calibrated where the plan has a target, else without a promise."""
        from privfair.api.draft import Promise, Unprotected, draft
        from privfair.plan.plan import Plan

        out, file = self.folder / name, Plan.read(self.plan)
        promise: Promise = "calibrated" if file.target_section else Unprotected("a test")
        drafted = draft(file, Issuer(research_noise=research_noise), promise)
        out.write_bytes(issue(drafted, load_private(self.key)))
        return out

    def train(
        self, manifest: Path, out: str = "run", resume: bool = False, progress: Callable[[Progress], None] | None = None
    ) -> TrainingResult:
        return train(
            self.plan,
            manifest=manifest,
            trust=self.trust,
            ledger=self.ledger,
            out=self.folder / out,
            resume=resume,
            progress=progress,
        )


def trusting(key: SigningKey) -> TrustFile:
    start = datetime.now(UTC) - timedelta(days=1)
    return TrustFile(keys=(TrustedKey.of(key.public, Role.PRIVACY_OFFICER, start),))


def verified(document: BudgetDocument) -> VerifiedManifest:
    """The document, signed by a fresh key and verified."""
    key = generate()
    return verify(issue(document, key), trusting(key), IntendedRun(document.config_digest, document.data))


def document_of(
    plan: Plan,
    target: EpsilonDelta,
    silos: tuple[tuple[str, int], ...] = (("north", 100), ("south", 120)),
    clear: tuple[InTheClear, ...] = (),
    shapes: dict[str, tuple[int, ...]] | None = None,
    lifetime: timedelta = timedelta(days=1),
    noise_source: NoiseSource = NoiseSource.OPERATING_SYSTEM,
) -> BudgetDocument:
    subject = BudgetSubject(DataBinding.of("ab" * 32, silos), clear=clear, shapes=shapes or {})
    research = noise_source is NoiseSource.SEEDED_RESEARCH_ONLY
    issuer = Issuer(lifetime=lifetime, why="a test", research_noise=research)
    return draft_document(calibrate_plan(plan, target), subject, issuer).document


@dataclass(frozen=True)
class OpenGate:
    """A gate with all that stands behind it."""

    gate: Gate
    claim: Claim
    ledger: Ledger
    transcript: Path
    manifest: VerifiedManifest

    @property
    def document(self) -> BudgetDocument:
        return self.manifest.document


def gate_for(document: BudgetDocument, folder: Path, shapes: dict[str, tuple[int, ...]], **options: Any) -> OpenGate:
    """Claim the document's manifest in a fresh ledger and open its gate."""
    manifest = verified(document)
    folder.mkdir(exist_ok=True)
    ledger = open_ledger(folder / "ledger.db")
    claim = OpenRun(manifest, ledger, RunFolder(folder)).begin().claim
    values = tuple(ValueSpec(name, shape) for name, shape in shapes.items())
    place = folder / "transcript.bin"
    return OpenGate(open_gate(manifest, claim, place, values, **options), claim, ledger, place, manifest)

"""Runs and their audits: folders that training left behind, as reports, alone or side by side.

A run folder may come from anybody. Nothing of it is shown as markup and no code of it runs; pages are made anew from
its numbers, and say whether the signatures of its budget were checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from audit.report.page import ReportContent, read_audit, report_content
from audit.report.results import AuditReport
from calibrate.errors import InvalidInput, PrivfairError
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.show import protected_text
from calibrate.manifest.trust import TrustFile
from calibrate.manifest.verify import read_unverified
from privfair.run.record import ClaimEntry, Receipts, RunRecord

_MOST_AUDITS = 50


@dataclass(frozen=True)
class RunOnDesk:
    """One run folder: its budget, how far it got, and the audit that speaks of it."""

    path: Path
    digest: str
    document: BudgetDocument
    record: RunRecord
    claim: ClaimEntry | None
    """Its ledger's, of a run in one process."""
    audit: AuditReport | None

    @property
    def name(self) -> str:
        return self.path.name

    def facts(self) -> dict[str, str]:
        """What two runs are compared by, in reading order."""
        guarantee, claim = self.document.guarantee, self.claim
        epsilon, delta = getattr(guarantee, "epsilon", None), getattr(guarantee, "delta", None)
        facts = {
            "algorithm": self.document.algorithm,
            "protected": protected_text(guarantee),
            "promise": "none" if epsilon is None else f"epsilon {epsilon:g} at delta {delta:g}",
            "purpose": self.document.justification,
            "status": self.record.status.value,
            "rounds charged": f"{self.record.rounds.charged} of {self.document.rounds}",
            "audit": "not audited" if self.audit is None else f"{self.audit.verdict.value}: {self.audit.why}",
            "claimed": "no receipt" if claim is None else f"{claim.at} by {claim.by}",
            "budget": self.digest,
        }
        for key, value in self.record.overall.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                facts[f"{key.replace('_', ' ')} (test records, not private)"] = f"{value:.4f}"
        return facts

    def content(self, trust: TrustFile | None) -> ReportContent:
        """What its report shows."""
        return report_content(self.path, self.audit, trust)


@dataclass(frozen=True)
class Runs:
    found: tuple[RunOnDesk, ...]
    unreadable: tuple[tuple[str, str], ...]

    def run(self, name: str) -> RunOnDesk:
        for one in self.found:
            if one.name == name:
                return one
        raise InvalidInput("run", name[:80], "is not among the runs", "open the list of runs again")


def open_runs(folders: Iterable[Path]) -> Runs:
    """The runs directly inside these folders, in the order of their names."""
    found: dict[str, RunOnDesk] = {}
    unreadable: list[tuple[str, str]] = []
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_symlink() or not (path / "budget.json").is_file() or not (path / "run.json").is_file():
                continue
            try:
                found.setdefault(path.name, _run(path))
            except PrivfairError as broken:
                unreadable.append((path.name, str(broken)))
    return Runs(tuple(found.values()), tuple(unreadable))


def _run(path: Path) -> RunOnDesk:
    manifest = read_unverified((path / "budget.json").read_bytes())
    record, receipts = RunRecord.read(path / "run.json"), path / "receipts.json"
    claim = Receipts.read(receipts).claim if receipts.exists() and not record.engine else None
    return RunOnDesk(path, manifest.digest, manifest.document, record, claim, _audit_of(path, manifest.digest))


def _audit_of(path: Path, digest: str) -> AuditReport | None:
    """The newest audit, in the run folder or beside it, that says it is about this budget."""
    places = [*path.glob("*audit*.json"), *path.parent.glob("*audit*.json")]
    for place in sorted(places, key=lambda one: one.stat().st_mtime, reverse=True)[:_MOST_AUDITS]:
        try:
            audit = read_audit(place)
        except PrivfairError:
            continue
        if audit.subjects.get("manifest") == digest:
            return audit
    return None

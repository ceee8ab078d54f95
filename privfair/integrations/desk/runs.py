"""Runs and their audits: folders that training left behind, as reports, alone or side by side.

A run folder may come from anybody. Nothing of it is shown as markup and no code of it runs; pages are made anew from
its numbers, and say whether the signatures of its budget were checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from audit.report.page import ReportContent, read_audit, report_content
from audit.report.results import AuditReport
from calibrate.errors import InvalidInput, PrivfairError
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.show import protected_text
from calibrate.manifest.trust import TrustFile
from calibrate.manifest.verify import read_unverified

_MOST_AUDITS = 50
_LARGEST = 8 << 20


@dataclass(frozen=True)
class RunOnDesk:
    """One run folder: its budget, how far it got, and the audit that speaks of it."""

    path: Path
    digest: str
    document: BudgetDocument
    summary: dict[str, Any]
    receipts: dict[str, Any]
    audit: AuditReport | None

    @property
    def name(self) -> str:
        return self.path.name

    def facts(self) -> dict[str, str]:
        """What two runs are compared by, in reading order."""
        guarantee, overall = self.document.guarantee, _table(_table(self.summary.get("metrics")).get("overall"))
        epsilon, delta = getattr(guarantee, "epsilon", None), getattr(guarantee, "delta", None)
        rounds = _table(self.summary.get("rounds"))
        claim = _table(self.receipts.get("claim"))
        facts = {
            "algorithm": self.document.algorithm,
            "protected": protected_text(guarantee),
            "promise": "none" if epsilon is None else f"epsilon {epsilon:g} at delta {delta:g}",
            "purpose": self.document.justification,
            "status": str(self.summary.get("status", "unknown")),
            "rounds charged": f"{rounds.get('charged', 0)} of {self.document.rounds}",
            "audit": "not audited" if self.audit is None else f"{self.audit.verdict.value}: {self.audit.why}",
            "claimed": f"{claim['at']} by {claim.get('by', 'nobody known')}" if "at" in claim else "no receipt",
            "budget": self.digest,
        }
        for key, value in overall.items():
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
    summary, receipts = (_json(path / name) for name in ("run.json", "receipts.json"))
    return RunOnDesk(path, manifest.digest, manifest.document, summary, receipts, _audit_of(path, manifest.digest))


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


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST:
            return {}
        return _table(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return {}


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

"""What a report shows, from a run folder that may come from anyone: budget, metrics and receipts; needs no engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from audit.report.figures import Metrics
from audit.report.page import ReportContent
from audit.report.results import AuditReport
from calibrate.epsilon_so_far import EpsilonSoFar
from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import InTheClear
from calibrate.manifest.strict_json import first_fault
from calibrate.manifest.trust import TrustFile
from calibrate.manifest.verify import authenticate, read_unverified
from privfair.durable import read_named

_POINTS = 12
"""Number of points of the figure of epsilon by rounds."""


def report_content(run: Path | None, audit: AuditReport | None, trust: TrustFile | None) -> ReportContent:
    """What the page of a run folder, or of a model's audit alone, shows; needs no engine.

    run: The folder, None for a model. audit: Its audit, if any. trust: Whose signatures count; None checks none.
    """
    if run is None:
        return ReportContent(None, audit, (), ())
    if not any((run / name).exists() for name in ("run.json", "claim.token")):
        raise InvalidInput("run folder", str(run), "holds no run", "name the --out of a training run")
    envelope = read_named(run / "budget.json", "RUN")
    manifest = read_unverified(envelope) if trust is None else authenticate(envelope, trust, for_reading=True)
    metrics, budget = _metrics(run / "metrics.jsonl"), _budget(manifest.document)
    return ReportContent(manifest, audit, metrics, budget, *_parties(run / "receipts.json"))


def _parties(path: Path) -> tuple[str, tuple[dict[str, Any], ...]]:
    """The engine of a run over guards and its parties' receipts; nothing for a run in one process."""
    try:
        found = json.loads(path.read_text("utf-8")) if path.exists() else {}
        if not isinstance(found, dict) or "parties" not in found:
            return "", ()
        rows = tuple(
            {
                "party": name,
                "ledger": str(one["ledger"]),
                "charged": int(one["rounds"]["charged"]),
                "releases": int(one["releases"]),
                "transcript": str(one["transcript"]),
                "signed": one["signed"] is not None,
            }
            for name, one in found["parties"].items()
        )
        return str(found["engine"]), rows
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        rule = "is not the receipts of a run"
        raise InvalidInput("RUN", str(path), rule, "put the run's own file back, or remove it") from None


def _metrics(path: Path) -> Metrics:
    """One line per step, as far as the page reads it; refused where it is something else."""
    try:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        found = tuple(json.loads(line) for line in lines)
        if all(isinstance(line, dict) and isinstance(line["overall"]["groups"], dict) for line in found):
            return found
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise InvalidInput("RUN", str(path), "is not the metrics of a run", "put the run's own file back, or remove it")


def read_audit(path: Path) -> AuditReport:
    """An audit's JSON, checked, so that a page never shows half of another file."""
    try:
        return AuditReport.model_validate_json(read_named(path, "--audit"))
    except ValidationError as broken:
        raise InvalidInput(
            "--audit", str(path), f"is not an audit ({first_fault(broken)})", "give what `privfair audit --out` wrote"
        ) from None


def _budget(document: BudgetDocument) -> tuple[tuple[int, float], ...]:
    """Certified epsilon after a few numbers of rounds, for the figure."""
    prices, rounds = EpsilonSoFar(document), document.rounds
    whole = prices.after(rounds)
    if whole is not None and _paid_at_once(document):
        return ((0, 0.0), (0, whole), (rounds, whole))
    grid = sorted({round(rounds * point / _POINTS) for point in range(_POINTS + 1)})
    spent = [(count, prices.after(count)) for count in grid]
    return tuple((count, epsilon) for count, epsilon in spent if epsilon is not None)


def _paid_at_once(document: BudgetDocument) -> bool:
    """Whether everything private is published once, before the first round, so that rounds are free."""
    noisy = [declared for declared in document.releases if not isinstance(declared, InTheClear)]
    return all(declared.publications == 1 for declared in noisy)

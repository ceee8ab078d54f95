"""`privfair report`: one page about a run or a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from audit.report.page import ReportContent
    from audit.report.results import AuditReport
    from calibrate.manifest.document import BudgetDocument

_PATH = click.Path(path_type=Path, dir_okay=False)
_POINTS = 12


@click.command("report", short_help="one page about a run, for a privacy officer")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--out", type=_PATH, required=True, help="HTML file to write.")
@click.option("--audit", "audit_path", type=_PATH, help="JSON report that `privfair audit --out` wrote.")
def command(run: Path | None, out: Path, audit_path: Path | None) -> None:
    """Write a self-contained HTML page: verdict, promise, figures, what is not protected, evidence.

    \b
    Example:
      privfair audit run/ --trust trust.json --ledger ledger.db --out audit.json
      privfair report run/ --audit audit.json --out report.html
    Without RUN the page is about the model that was audited with --model.
    """
    from audit.report.page import render
    from privfair.cli.output import write_bytes

    if run is None and audit_path is None:
        raise click.UsageError("name a RUN folder, or the --audit of a model")
    audit = None if audit_path is None else _read_audit(audit_path)
    write_bytes(out, render(_content(run, audit)).encode())
    click.echo(f"report written to {out}")


def _content(run: Path | None, audit: AuditReport | None) -> ReportContent:
    from audit.report.page import ReportContent
    from calibrate.manifest.verify import read_unverified
    from privfair.run.folder import RunFolder

    if run is None:
        return ReportContent(None, audit, (), ())
    folder = RunFolder.existing(run)
    manifest = read_unverified(folder.manifest.read_bytes())
    lines = folder.metrics.read_text("utf-8").splitlines() if folder.metrics.exists() else []
    return ReportContent(manifest, audit, tuple(json.loads(line) for line in lines), _budget(manifest.document))


def _read_audit(path: Path) -> AuditReport:
    """An audit's JSON, checked, so that a page never shows half of another file."""
    from pydantic import ValidationError

    from audit.report.results import AuditReport
    from calibrate.errors import InvalidInput
    from calibrate.manifest.strict_json import first_fault
    from privfair.cli.output import read_bytes

    try:
        return AuditReport.model_validate_json(read_bytes(path, "--audit"))
    except ValidationError as broken:
        raise InvalidInput(
            "--audit", str(path), f"is not an audit ({first_fault(broken)})", "give what `privfair audit --out` wrote"
        ) from None


def _budget(document: BudgetDocument) -> tuple[tuple[int, float], ...]:
    """Certified epsilon after a few numbers of rounds, for the figure."""
    from privfair.cli.epsilon_so_far import EpsilonSoFar

    prices = EpsilonSoFar(document)
    grid = sorted({round(document.rounds * point / _POINTS) for point in range(_POINTS + 1)})
    spent = [(rounds, prices.after(rounds)) for rounds in grid]
    return tuple((rounds, epsilon) for rounds, epsilon in spent if epsilon is not None)

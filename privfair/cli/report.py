"""`privfair report`: one page about a run or a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privfair.cli.keys import read_trust_file
from privfair.cli.output import json_option, print_json, print_wrapped, read_bytes, write_bytes

if TYPE_CHECKING:
    from audit.report.page import ReportContent
    from audit.report.results import AuditReport
    from calibrate.manifest.document import BudgetDocument
    from calibrate.manifest.trust import TrustFile

_PATH = click.Path(path_type=Path, dir_okay=False)
_POINTS = 12


@click.command("report", short_help="one page about a run, for a privacy officer")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--out", type=_PATH, required=True, help="HTML file to write.")
@click.option("--audit", "audit_path", type=_PATH, help="JSON report that `privfair audit --out` wrote.")
@click.option("--trust", "trust_path", type=_PATH, help="Trust file by which the run's manifest is verified.")
@click.option("--root", type=_PATH, help="Public root key that signed the trust file.")
@json_option
def command(
    run: Path | None, out: Path, audit_path: Path | None, trust_path: Path | None, root: Path | None, as_json: bool
) -> None:
    """Write a self-contained HTML page: verdict, promise, figures, what is not protected, evidence.

    \b
    Example:
      privfair audit run/ --trust trust.json --ledger ledger.db --out audit.json
      privfair report run/ --audit audit.json --trust trust.json --out report.html
    Without --trust the page says in red that nobody checked the manifest's signatures.
    Without RUN the page is about the model that was audited with --model.
    """
    from audit.report.page import empty_model, protection_lines, render

    if run is None and audit_path is None:
        raise click.UsageError("name a RUN folder, or the --audit of a model")
    audit = None if audit_path is None else read_audit(audit_path)
    trust = None if trust_path is None else read_trust_file(trust_path, root)
    content = report_content(run, audit, trust)
    write_bytes(out, render(content).encode())
    checked = run is None or trust is not None
    protection = [] if content.manifest is None else list(protection_lines(content.manifest.document))
    warning = empty_model(content)
    if as_json:
        facts = {"signatures_checked": None if run is None else trust is not None, "warning": warning}
        print_json({"report": str(out), **facts, "protection": protection})
        return
    print_wrapped(*protection)
    if warning is not None:
        print_wrapped(f"WARNING  {warning}")
    click.echo(f"report written to {out}{'' if checked else '; SIGNATURES NOT CHECKED: give --trust'}")


def report_content(run: Path | None, audit: AuditReport | None, trust: TrustFile | None) -> ReportContent:
    """What the page of a run folder, or of a model's audit alone, shows; needs no engine.

    run: The folder, None for a model. audit: Its audit, if any. trust: Whose signatures count; None checks none.
    """
    from audit.report.page import ReportContent
    from calibrate.errors import InvalidInput
    from calibrate.manifest.verify import authenticate, read_unverified

    if run is None:
        return ReportContent(None, audit, (), ())
    if not any((run / name).exists() for name in ("run.json", "claim.token")):
        raise InvalidInput("run folder", str(run), "holds no run", "name the --out of a training run")
    envelope = read_bytes(run / "budget.json", "RUN")
    manifest = read_unverified(envelope) if trust is None else authenticate(envelope, trust, for_reading=True)
    metrics, budget = _metrics(run / "metrics.jsonl"), _budget(manifest.document)
    return ReportContent(manifest, audit, metrics, budget, *_parties(run / "receipts.json"))


def _parties(path: Path) -> tuple[str, tuple[dict[str, Any], ...]]:
    """The engine of a run over guards and its parties' receipts; nothing for a run in one process."""
    from calibrate.errors import InvalidInput

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


def _metrics(path: Path) -> tuple[dict[str, Any], ...]:
    """One line per step, as far as the page reads it; refused where it is something else."""
    from calibrate.errors import InvalidInput

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
    from pydantic import ValidationError

    from audit.report.results import AuditReport
    from calibrate.errors import InvalidInput
    from calibrate.manifest.strict_json import first_fault

    try:
        return AuditReport.model_validate_json(read_bytes(path, "--audit"))
    except ValidationError as broken:
        raise InvalidInput(
            "--audit", str(path), f"is not an audit ({first_fault(broken)})", "give what `privfair audit --out` wrote"
        ) from None


def _budget(document: BudgetDocument) -> tuple[tuple[int, float], ...]:
    """Certified epsilon after a few numbers of rounds, for the figure."""
    from privfair.cli.epsilon_so_far import EpsilonSoFar

    prices, rounds = EpsilonSoFar(document), document.rounds
    whole = prices.after(rounds)
    if whole is not None and _paid_at_once(document):
        return ((0, 0.0), (0, whole), (rounds, whole))
    grid = sorted({round(rounds * point / _POINTS) for point in range(_POINTS + 1)})
    spent = [(count, prices.after(count)) for count in grid]
    return tuple((count, epsilon) for count, epsilon in spent if epsilon is not None)


def _paid_at_once(document: BudgetDocument) -> bool:
    """Whether everything private is published once, before the first round, so that rounds are free."""
    from calibrate.manifest.mechanism import InTheClear

    noisy = [declared for declared in document.releases if not isinstance(declared, InTheClear)]
    return all(declared.publications == 1 for declared in noisy)

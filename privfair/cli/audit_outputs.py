"""What `privfair audit` leaves behind: JSON, JUnit XML, and a statement signed by the auditor."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from calibrate.errors import InvalidInput
from calibrate.manifest.document import PAYLOAD_TYPE
from calibrate.manifest.keys import load_private, sign
from calibrate.manifest.mechanism import instant_from_text
from calibrate.manifest.strict_json import canonical
from calibrate.manifest.verify import read_unverified
from privfair.cli.keys import ask_password, read_trust_file
from privfair.cli.options import FILE, FOLDER, json_option, options, required_trust_options
from privfair.cli.output import print_json
from privfair.durable import read_named, write_named

if TYPE_CHECKING:
    from audit.report.results import AuditReport

output_options = options(
    click.option("--out", type=FILE, help="File to which the report is also written, as JSON."),
    click.option("--junit", type=FILE, help="File to which the report is also written, as JUnit XML for a CI system."),
    click.option(
        "--sign", "sign_path", type=FILE, help="Private key of the auditor, with which the verdict is signed."
    ),
    click.option("--statement", type=FILE, help="File for the signed statement; needs --sign."),
    click.option(
        "--test-result",
        type=FILE,
        help="File for the verdict as a signed in-toto Test Result, for tools that know no other; needs --sign.",
    ),
)


@dataclass(frozen=True)
class OutputFlags:
    """The files asked for."""

    out: Path | None
    junit: Path | None
    sign_path: Path | None
    statement: Path | None
    test_result: Path | None = None

    def __post_init__(self) -> None:
        if self.test_result is not None and self.sign_path is None:
            raise click.UsageError("--test-result FILE needs --sign KEY")
        if (self.sign_path is None) != (self.statement is None and self.test_result is None):
            raise click.UsageError("--sign KEY and --statement FILE go together")
        self._require_places()

    def _require_places(self) -> None:
        """What would spoil the end of a long audit is said before it begins."""
        if self.sign_path is not None:
            read_named(self.sign_path, "--sign")
        named = (
            *(("--out", self.out), ("--junit", self.junit)),
            *(("--statement", self.statement), ("--test-result", self.test_result)),
        )
        for argument, path in named:
            if path is not None and not path.parent.is_dir():
                rule = "must lie in an existing folder"
                raise InvalidInput(argument, str(path), rule, "create the folder first")


def run_subjects(run: Path) -> dict[str, str]:
    """SHA-256 of what an audit of a run is about: its model, manifest and transcript."""
    from privfair.run.folder import RunFolder

    folder = RunFolder.existing(run)
    found = {"manifest": read_unverified(folder.manifest.read_bytes()).digest}
    for name, path in (("model", folder.model), ("transcript", folder.transcript)):
        if path.exists():
            found[name] = _digest(path)
    return found


def model_subjects(model: Path | None) -> dict[str, str]:
    """The same for a model alone: a file, or the folder of a run."""
    if model is None:
        return {}
    return run_subjects(model) if model.is_dir() else {"model": _digest(model)}


def write_outputs(flags: OutputFlags, report: AuditReport) -> None:
    """Write what was asked for; the statement last, so that it is never signed for a report that was not written."""
    if flags.out is not None:
        write_named(flags.out, json.dumps(report.to_json(), indent=2).encode() + b"\n")
    if flags.junit is not None:
        from audit.report.exports import junit_xml

        write_named(flags.junit, junit_xml(report))
    if flags.sign_path is not None and flags.statement is not None:
        write_named(flags.statement, _sign(flags.sign_path, report))
        click.echo(f"  signed statement written to {flags.statement}", err=True)
    if flags.sign_path is not None and flags.test_result is not None:
        write_named(flags.test_result, _sign_test_result(flags.sign_path, report))
        click.echo(f"  signed test result written to {flags.test_result}", err=True)


def _sign(key_path: Path, report: AuditReport) -> bytes:
    from audit.report.statement import AuditPredicate, sign_audit

    at = instant_from_text(report.audited_at)
    assert isinstance(at, datetime)
    return sign_audit(AuditPredicate.of(report, at), report.subjects, load_private(key_path, ask_password))


def _sign_test_result(key_path: Path, report: AuditReport) -> bytes:
    from audit.report.exports import result_statement

    statement = result_statement(report, dict(report.subjects))
    return sign(PAYLOAD_TYPE, canonical(statement), load_private(key_path, ask_password))


def _digest(path: Path) -> str:

    return hashlib.sha256(read_named(path, "model")).hexdigest()


_OF_A_RUN = ("run.json", "claim.token", "budget.json", "transcript.bin")


def require_run(folder: Path) -> None:
    """Refuse a folder without any of a run's files, before anything heavy is loaded."""
    if not any((folder / name).exists() for name in _OF_A_RUN):
        raise InvalidInput("run folder", str(folder), "holds no run", "name the --out of a training run")


# `privfair audit verify`: is a signed audit genuine, and about this very model?


@click.command("verify", short_help="check a signed audit")
@click.argument("statement", type=FILE)
@required_trust_options
@click.option("--run", type=FOLDER, help="Run that the audit must be about.")
@click.option("--model", type=FILE, help="Model file that the audit must be about.")
@click.option("--report", "report_path", type=FILE, help="JSON report that the statement must have been signed for.")
@click.option(
    "--require",
    type=click.Choice(["consistent", "not-violated"]),
    help="Verdict that the statement must have; exit code 1 otherwise.",
)
@json_option
def verify_command(
    statement: Path,
    trust_path: Path,
    root: Path | None,
    run: Path | None,
    model: Path | None,
    report_path: Path | None,
    require: str | None,
    as_json: bool,
) -> None:
    """Check who signed an audit and what it is about; exit code 3 if it cannot be believed.

    \b
    Example:
      privfair keys generate --role auditor --out auditor.pem
      privfair keys trust --key auditor.pem --role auditor --out auditors.json
      privfair audit run/ --sign auditor.pem --statement audit.signed.json --out audit.json
      privfair audit verify audit.signed.json --trust auditors.json --run run/ --report audit.json
    """
    if (run is None) == (model is None):
        raise click.UsageError("name what it must be about: --run FOLDER or --model FILE, one of the two")
    if run is not None:
        require_run(run)
    from audit.report.statement import verify_audit

    subjects = model_subjects(model) if run is None else run_subjects(run)
    found = verify_audit(read_named(statement, "STATEMENT"), read_trust_file(trust_path, root), subjects)
    if report_path is not None:
        _require_same(found.predicate.report_digest, report_path)
    if as_json:
        print_json(
            {
                "verified": True,
                "auditor": found.auditor.key_id,
                "subjects": dict(found.subjects),
                "predicate": found.predicate.to_json(),
            }
        )
    else:
        said = found.predicate
        click.echo(f"{statement}: signed by auditor {found.auditor.key_id}, {said.audited_at:%Y-%m-%d %H:%M} UTC")
        click.echo(f"{said.verdict.upper()}: {said.why}")
        if said.epsilon_lower is not None:
            click.echo(f"epsilon is at least {said.epsilon_lower:.4g} with {100 * (1 - said.alpha):g}% confidence")
    if _fails(found.predicate.verdict, require):
        sys.exit(1)


def _fails(verdict: str, require: str | None) -> bool:
    match require:
        case "consistent":
            return verdict != "consistent"
        case "not-violated":
            return verdict == "violated"
        case _:
            return False


def _require_same(signed: str, path: Path) -> None:
    from audit.report.statement import AuditRefused, report_digest

    content = read_named(path, "--report")
    try:
        report = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidInput("--report", str(path), "is not JSON", "give what `privfair audit --out` wrote") from None
    if report_digest(report) != signed:
        raise AuditRefused(f"{path} is not the report that was signed; give the report as it was written")

"""`privfair audit verify`: is a signed audit genuine, and about this very model?"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from privfair.cli.keys import read_trust_file, trust_options
from privfair.cli.output import json_option, print_json

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("verify", short_help="check a signed audit")
@click.argument("statement", type=_FILE)
@trust_options
@click.option("--run", type=click.Path(path_type=Path, file_okay=False), help="The run it must be about.")
@click.option("--model", type=_FILE, help="The model file it must be about.")
@click.option(
    "--report", "report_path", type=_FILE, help="The audit's JSON that it must have been signed for."
)
@click.option(
    "--require",
    type=click.Choice(["consistent", "not-violated"]),
    help="Exit code 1 unless the signed verdict is this.",
)
@json_option
def command(
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
    from audit.report.statement import verify_audit
    from privfair.cli.audit_outputs import model_subjects, run_subjects
    from privfair.cli.files import read_bytes

    if (run is None) == (model is None):
        raise click.UsageError("name what it must be about: --run FOLDER or --model FILE, one of the two")
    subjects = model_subjects(model) if run is None else run_subjects(run)
    found = verify_audit(read_bytes(statement, "STATEMENT"), read_trust_file(trust_path, root), subjects)
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
        click.echo(
            f"{statement}: signed by auditor {found.auditor.key_id}, {said.audited_at:%Y-%m-%d %H:%M} UTC"
        )
        click.echo(f"{said.verdict.upper()}: {said.why}")
        if said.epsilon_lower is not None:
            click.echo(
                f"epsilon is at least {said.epsilon_lower:.4g} with {100 * (1 - said.alpha):g}% confidence"
            )
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
    from audit.report.predicate import report_digest
    from audit.report.statement import AuditRefused
    from calibrate.errors import InvalidInput
    from privfair.cli.files import read_bytes

    content = read_bytes(path, "--report")
    try:
        report = json.loads(content)
    except ValueError:
        raise InvalidInput(
            "--report", str(path), "is not JSON", "give what `privfair audit --out` wrote"
        ) from None
    if report_digest(report) != signed:
        raise AuditRefused(f"{path} is not the report that was signed; give the report as it was written")

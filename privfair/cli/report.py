"""`privfair report`: one page about a run or a model."""

from __future__ import annotations

from pathlib import Path

import click

from privfair.cli.keys import read_trust_file
from privfair.cli.output import json_option, print_json, print_wrapped
from privfair.durable import write_named

_PATH = click.Path(path_type=Path, dir_okay=False)


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
    from audit.report.page import empty_model, protection_lines, read_audit, render, report_content

    if run is None and audit_path is None:
        raise click.UsageError("name a RUN folder, or the --audit of a model")
    audit = None if audit_path is None else read_audit(audit_path)
    trust = None if trust_path is None else read_trust_file(trust_path, root)
    content = report_content(run, audit, trust)
    write_named(out, render(content).encode())
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

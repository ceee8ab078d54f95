"""`privfair card`: a model card for hubs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from privfair.cli.keys import read_trust_file
from privfair.cli.output import json_option, options, print_json
from privfair.durable import write_named

_PATH = click.Path(path_type=Path, dir_okay=False)

run_options = options(
    click.argument("run", type=click.Path(path_type=Path, file_okay=False)),
    click.option("--out", type=_PATH, help="File to write; standard output without it."),
    click.option("--audit", "audit_path", type=_PATH, help="JSON report that `privfair audit --out` wrote."),
    click.option("--trust", "trust_path", type=_PATH, help="Trust file by which the run's manifest is verified."),
    click.option("--root", type=_PATH, help="Public root key that signed the trust file."),
    json_option,
)


def write_or_print(text: str, out: Path | None, document: dict[str, Any] | None = None) -> None:
    """To the file, or to standard output where none was named; with `document` that is what standard output gets."""
    if document is not None:
        if out is not None:
            write_named(out, text.encode())
        print_json({**document, "out": None if out is None else str(out)})
        return
    if out is None:
        click.echo(text, nl=False)
        return
    write_named(out, text.encode())
    click.echo(f"written to {out}", err=True)


@click.command("card", short_help="a model card of a run, for model hubs")
@run_options
@click.option("--name", help="Name of the model; the run folder's name without it.")
@click.option("--license", help="Licence of the model as hubs spell it, such as apache-2.0.")
@click.option("--with-metrics", is_flag=True, help="Tell the numbers on held-out records, which are not private.")
def command(
    run: Path,
    out: Path | None,
    audit_path: Path | None,
    trust_path: Path | None,
    root: Path | None,
    as_json: bool,
    name: str | None,
    license: str | None,
    with_metrics: bool,
) -> None:
    """Write a model card: Markdown with the front matter that hubs read.

    \b
    Example:
      privfair card run/ --trust trust.json --audit audit.json --license apache-2.0 --out README.md
    Without --trust the card says that nobody checked the signatures.
    """
    from audit.report.exports import CardFacts, model_card
    from audit.report.page import read_audit, report_content

    trust = None if trust_path is None else read_trust_file(trust_path, root)
    audit = None if audit_path is None else read_audit(audit_path)
    facts = CardFacts(name or run.resolve().name, license, with_metrics)
    text = model_card(report_content(run, audit, trust), facts)
    write_or_print(text, out, {"card": text} if as_json else None)

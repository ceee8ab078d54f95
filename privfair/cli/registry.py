"""`privfair registry`: an entry for OpenDP's deployments registry."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from privfair.cli.card import run_options, write_or_print
from privfair.cli.keys import read_trust_file

_SECTORS = ("Technology", "Healthcare", "Education", "Government", "Energy", "Finance")


@click.command("registry", short_help="an entry for OpenDP's deployments registry, as YAML")
@run_options
@click.option("--name", help="Name of the data product; the run folder's name without it.")
@click.option(
    "--curator", "curators", multiple=True, help="Who publishes the model; the declared custodian without it."
)
@click.option("--region", required=True, help="Which region the data describe, or whose laws apply.")
@click.option("--author", "authors", multiple=True, required=True, help="Who filled out the entry; may be repeated.")
@click.option("--sector", type=click.Choice(_SECTORS), help="Industry or domain that the data describe.")
@click.option("--intended-use", help="Intended use; the budget's justification without it.")
@click.option("--date", "published", type=click.DateTime(["%Y-%m-%d"]), help="Day of publication; today without it.")
def command(
    run: Path,
    out: Path | None,
    audit_path: Path | None,
    trust_path: Path | None,
    root: Path | None,
    as_json: bool,
    name: str | None,
    curators: tuple[str, ...],
    region: str,
    authors: tuple[str, ...],
    sector: str | None,
    intended_use: str | None,
    published: datetime | None,
) -> None:
    """Write what the registry of differential privacy deployments asks for, as far as a run knows it.

    \b
    Example:
      privfair registry run/ --region Norway --curator "North Hospital" --author "A. Lund" --out entry.yaml
    A run that promises nothing is refused.
    """
    from audit.report.exports import RegistryFacts, as_yaml, registry_entry
    from audit.report.page import read_audit, report_content
    from calibrate.errors import InvalidInput

    trust = None if trust_path is None else read_trust_file(trust_path, root)
    content = report_content(run, None if audit_path is None else read_audit(audit_path), trust)
    assert content.manifest is not None
    declared = content.manifest.document.dataset
    curators = curators or (() if declared is None else (declared.custodian,))
    if not curators:
        raise InvalidInput("--curator", None, "is needed: the budget names no custodian", "say who publishes it")
    day = (datetime.now(UTC) if published is None else published).date()
    facts = RegistryFacts(name or run.resolve().name, curators, region, authors, day, intended_use, sector)
    entry = registry_entry(content, facts)
    write_or_print(as_yaml(entry), out, {"entry": entry} if as_json else None)

"""`privfair ledger`: what was claimed, charged and released."""

from __future__ import annotations

from pathlib import Path

import click

from privfair.cli.output import json_option, options, print_json, print_rich

_location = options(
    click.argument("location", metavar="LEDGER"),
    click.option(
        "--anchor",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Anchor file; default: LEDGER.anchor beside a file.",
    ),
)


@click.group("ledger", short_help="what was claimed, charged and released")
def command() -> None:
    """Look at a ledger: a file path, or a URL postgresql+psycopg://... ."""


@command.command("status")
@_location
@json_option
def status(location: str, anchor: Path | None, as_json: bool) -> None:
    """Rounds signed, charged and released, manifest by manifest."""
    from privfair.ledger import Access, Ledger

    with Ledger.open(location, anchor, Access.READ) as ledger:
        found = ledger.status()
    rows = [
        {
            "manifest": one.manifest_digest,
            "state": one.state.value,
            "rounds_signed": one.rounds,
            "rounds_charged": one.charged,
            "rounds_released": one.released_rounds,
            "epsilon": one.epsilon,
            "delta": one.delta,
        }
        for one in found.manifests
    ]
    if as_json:
        print_json({"ledger": location, "entries": found.entries, "head": found.head.hash, "manifests": rows})
        return
    from rich.table import Table

    table = Table("manifest", "state", "signed", "charged", "released", "epsilon", "delta", title=str(location))
    for row in rows:
        shown = ("none promised" if row[key] is None else str(row[key]) for key in list(row)[1:])
        table.add_row(str(row["manifest"])[:12], *shown)
    print_rich(table, f"{found.entries} entries, head {found.head.hash[:16]}")


@command.command("verify")
@_location
@json_option
def verify(location: str, anchor: Path | None, as_json: bool) -> None:
    """Read every entry again by all rules, and compare the end with the anchor."""
    from privfair.ledger import Access, Ledger

    with Ledger.open(location, anchor, Access.READ) as ledger:
        entries, head = ledger.verify()
    if as_json:
        print_json({"ledger": location, "entries": entries, "head": head.hash, "intact": True})
    else:
        click.echo(f"intact: {entries} entries, head {head.hash}")


@command.command("anchor")
@_location
@json_option
def anchor(location: str, anchor: Path | None, as_json: bool) -> None:
    """Print the anchor (sequence and head), to be kept where the ledger's host cannot change it."""
    from privfair.ledger import Access, Ledger

    with Ledger.open(location, anchor, Access.READ) as ledger:
        found = ledger.anchor()
    if as_json:
        print_json({"seq": found.head.seq, "head": found.head.hash, "ledger": found.ledger})
    else:
        click.echo(f"{found.head.seq} {found.head.hash}")

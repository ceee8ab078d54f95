"""`privfair desk`: the officer's pages on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from privfair.cli.keys import ask_password, read_trust_file
from privfair.cli.output import json_option, print_json

_FILE = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command("desk", short_help="the officer's pages on this machine: plan, sign, ledger, runs")
@click.option("--ledger", required=True, metavar="LEDGER", help="Ledger to show: a file path or a PostgreSQL URL.")
@click.option("--inbox", type=_FOLDER, required=True, help="Folder with requests; answers are written beside them.")
@click.option("--key", "key_path", type=_FILE, help="Private key that signs; without it the desk only shows.")
@click.option("--runs", type=_FOLDER, multiple=True, help="Folder with run folders. Default: that of the ledger.")
@click.option("--trust", "trust_path", type=_FILE, help="Trust file by which budgets of runs are checked.")
@click.option("--root", type=_FILE, help="Public root key that signed the trust file.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1. Default: any that is free.")
@click.option("--open", "open_browser", is_flag=True, help="Open the pages in this machine's browser.")
@json_option
def command(
    ledger: str,
    inbox: Path,
    key_path: Path | None,
    runs: tuple[Path, ...],
    trust_path: Path | None,
    root: Path | None,
    port: int,
    open_browser: bool,
    as_json: bool,
) -> None:
    """Serve the officer's desk on 127.0.0.1 until Ctrl-C: planner, requests to sign, ledger, runs and audits.

    The address that is printed holds a token that opens the desk once, in one browser. Nothing is loaded from or sent
    to another machine.

    \b
    Example:
      privfair desk --ledger ledger.db --inbox inbox/ --key officer.pem --trust trust.json
    """
    from calibrate.manifest.keys import load_private
    from privfair.integrations.desk.app import DeskPapers, serve
    from privfair.integrations.desk.books import open_books

    open_books(ledger)  # refused here rather than on the first page
    papers = DeskPapers(
        ledger=ledger,
        inbox=inbox,
        runs=runs or (() if "://" in ledger else (Path(ledger).resolve().parent,)),
        key=None if key_path is None else load_private(key_path, ask_password),
        trust=None if trust_path is None else read_trust_file(trust_path, root),
    )

    def say(address: str) -> None:
        if as_json:
            print_json({"address": address, "read_only": papers.key is None})
        else:
            click.echo(f"The desk is open, once, at {address}")
            click.echo("Read-only: give --key to sign." if papers.key is None else "It can sign. Ctrl-C closes it.")
        if open_browser:
            click.launch(address)

    serve(papers, port, say)

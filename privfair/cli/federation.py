"""`privfair federation`: several sites, tried on one machine."""

from __future__ import annotations

from pathlib import Path

import click

from privfair.cli.help import Subcommands
from privfair.cli.keys import trust_options
from privfair.cli.output import json_option, print_json, print_rich, steps_option

_PATH = click.Path(path_type=Path, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)
_EXAMPLE = """
\b
Example (the plan names silos, not files: [data.silos] north = 160 ...):
  privfair federation run plan.toml --engine guards --manifest budget.json --trust trust.json \\
      --data north=north.csv --data south=south.csv --folder sites/ --out run/
  privfair federation run plan.toml --engine flower ... (with privfair[flower]; nvflare likewise)
"""


@click.group("federation", cls=Subcommands, short_help="several sites, tried on one machine")
def command() -> None:
    """Try a federation of guards on one machine before it goes to three; docs/how-to/federation.md has both."""


@command.command("run", epilog=_EXAMPLE)
@click.argument("plan", type=_PATH)
@click.option(
    "--engine",
    type=click.Choice(["guards", "flower", "nvflare"]),
    required=True,
    help="What carries the messages: unix sockets alone, Flower, or NVFlare's simulator, on 127.0.0.1.",
)
@click.option("--manifest", type=_PATH, required=True, help="The signed budget for this plan.")
@trust_options
@click.option(
    "--data",
    "files",
    multiple=True,
    required=True,
    metavar="PARTY=[SILO=]FILE",
    help="A party and its records; a party that collects several silos is given once per silo.",
)
@click.option("--ledger", "ledgers", multiple=True, metavar="PARTY=LEDGER", help="A party's ledger, if it has one.")
@click.option("--folder", type=_FOLDER, required=True, help="Folder for what each party keeps; made if need be.")
@click.option("--test-file", "test_files", type=_PATH, multiple=True, help="A file of public records to measure on.")
@click.option("--out", type=_FOLDER, required=True, help="Folder for the coordinator's run.")
@steps_option
@click.option("--resume", is_flag=True, help="Go on with the interrupted run in --out.")
@json_option
def run(
    plan: Path,
    engine: str,
    manifest: Path,
    trust_path: Path,
    root: Path | None,
    files: tuple[str, ...],
    ledgers: tuple[str, ...],
    folder: Path,
    test_files: tuple[Path, ...],
    out: Path,
    steps_per_message: int,
    resume: bool,
    as_json: bool,
) -> None:
    """Start a guard per party on this machine, train over them, and stop everything again.

    Each party's ledger, transcript and log stay in --folder, the coordinator's run in --out. A ledger is made for a
    party that brings none, which is right for a trial and for nothing else: at a site `privfair ledger init` makes it.
    """
    from privfair.federation.trial import (
        Trial,
        require_flower,
        require_nvflare,
        run_flower_app,
        run_nvflare_job,
        start_flower,
        start_guards,
        train_over_sockets,
    )

    if engine == "flower":
        require_flower()
    if engine == "nvflare":
        require_nvflare()
    data: dict[str, tuple[str, ...]] = {}
    for party, file in _named("--data", files):
        data[party] = (*data.get(party, ()), file)
    trial = Trial(plan, manifest, trust_path, root, data, folder, dict(_named("--ledger", ledgers)), steps_per_message)
    with start_guards(trial) as sockets:
        click.echo(f"{len(sockets)} guards answer", err=True)
        if engine == "guards":
            train_over_sockets(trial, sockets, out, test_files, resume)
        elif engine == "nvflare":
            run_nvflare_job(trial, sockets, out, test_files, resume, folder / "nvflare")
        else:
            logs = folder / "flower"
            with start_flower(sockets, logs) as address:
                click.echo(f"Flower's SuperLink answers at {address}; its logs are in {logs}", err=True)
                run_flower_app(address, trial, out, test_files, resume, logs)
    _show(out, as_json)


@command.command("gather")
@click.argument("run", type=_FOLDER)
@click.argument("sites", nargs=-1, required=True, metavar="PARTY=FOLDER...")
@json_option
def gather(run: Path, sites: tuple[str, ...], as_json: bool) -> None:
    """Put what each party hands over beside the coordinator's RUN, so that it can be audited as one run.

    \b
    FOLDER is the --folder of the party's guard, or a copy of it. Transcript, steps, batches and receipt are taken;
    neither records, nor the claim's token, nor the log. Then:
      privfair audit RUN --trust trust.json --ledger north=north.db ... [--data north=north.csv ...]
    """
    from privfair.federation.gather import gather_run

    gathered = gather_run(run, {name: Path(folder) for name, folder in _named("PARTY=FOLDER", sites)})
    if as_json:
        print_json(gathered)
        return
    print_rich(
        *(
            f"{name}: {found['steps']} steps, transcript {found['transcript']}"
            for name, found in gathered["parties"].items()
        ),
        f"{run}: transcript of all parties {gathered['transcript']}; audit it with `privfair audit {run}`",
    )


def _show(out: Path, as_json: bool) -> None:
    from privfair.run.folder import RunFolder

    folder = RunFolder(out)
    document = folder.read_json(folder.summary)
    if as_json:
        print_json(document)
        return
    rounds = document["rounds"]
    print_rich(
        f"{document['engine']}: {rounds['steps']} steps, {rounds['charged']} of {rounds['signed']} signed rounds "
        f"charged by {len(document['ledgers'])} parties",
        f"run folder: {out}; receipts of the parties: {folder.receipts}",
    )


def _named(option: str, given: tuple[str, ...]) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in given]
    for text, (name, equals, value) in zip(given, pairs, strict=True):
        if not (name and equals and value):
            raise click.UsageError(f"{option} {text!r} must be PARTY=..., for example {option} north=north.csv")
    return [(name, value) for name, _, value in pairs]

"""Services: a guard at one site, a federation tried on one machine, the officer's pages."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from calibrate.manifest.keys import load_private
from privfair.cli.help import Subcommands
from privfair.cli.keys import ask_password, read_trust_file
from privfair.cli.options import (
    FILE,
    FOLDER,
    anchor_option,
    budget_option,
    json_option,
    required_trust_options,
    resume_option,
    steps_option,
    trust_options,
)
from privfair.cli.output import print_answer, print_json, print_rich
from privfair.data.infer import silo_name
from privfair.durable import read_named
from privfair.federation.gather import gather_run
from privfair.federation.guard import GuardOptions, serve_guard
from privfair.federation.policy import ANYTHING, read_policy
from privfair.federation.registries import SitesKey
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
from privfair.integrations.desk.app import DeskPapers, serve
from privfair.integrations.desk.books import open_books
from privfair.run.folder import RunFolder
from privfair.run.prepare import prepare_site
from privfair.run.record import RunRecord
from privfair.training import TrustInForce

_THERE = click.Path(path_type=Path, file_okay=False, exists=True)
_GUARD_EXAMPLE = """
\b
Example, at the site of north (docs/how-to/federation.md has units for systemd):
  privfair ledger init north/ledger.db
  privfair guard serve --party north --data north.csv --plan plan.toml --manifest budget.json \\
      --trust trust.json --ledger north/ledger.db --folder north/run --socket north/guard.sock
\b
and where the coordinator runs:
  privfair train plan.toml --guards guards.toml --manifest budget.json --trust trust.json --out run/
"""


@click.group("guard", cls=Subcommands, short_help="one silo's data, ledger and noise in a process of its own")
def guard_command() -> None:
    """Stand between a silo's records and whoever coordinates a federation.

    A guard holds the silo's file, its ledger, its noise and its transcript, and answers four questions at a socket:
    who are you, what do you contribute to this step, what do you reply, finish. Nothing else leaves it.
    """


@guard_command.command("serve", epilog=_GUARD_EXAMPLE)
@click.option("--party", required=True, help="Name of this silo, as the plan has it.")
@click.option(
    "--data",
    "files",
    multiple=True,
    required=True,
    metavar="[SILO=]FILE",
    help="The silo's own records; for a party that collects several silos' records, one per silo.",
)
@click.option("--plan", type=FILE, help="The signed plan; plan.toml beside the manifest unless given.")
@budget_option
@required_trust_options
@click.option("--ledger", required=True, metavar="LEDGER", help="This silo's own ledger: file or PostgreSQL URL.")
@anchor_option
@click.option(
    "--folder",
    type=FOLDER,
    required=True,
    help="Folder of this silo for transcript, batches, steps and log; kept for resuming and for audits.",
)
@click.option("--socket", "socket_path", type=FILE, required=True, help="Unix socket at which the guard answers.")
@click.option("--policy", "policy_path", type=FILE, help="The site's own policy (TOML), which can only tighten.")
@click.option("--key", "key_path", type=FILE, help="The silo's own key, which signs its receipt.")
@click.option(
    "--sites-key",
    type=FILE,
    help="Key that holders of records and registries share (openssl rand -hex 32); for plans with registries.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds for a frame to arrive, and for an answer to be read.",
)
@json_option
def guard_serve(
    party: str,
    files: tuple[str, ...],
    plan: Path | None,
    budget: Path,
    trust_path: Path,
    root: Path | None,
    ledger: str,
    anchor: Path | None,
    folder: Path,
    socket_path: Path,
    policy_path: Path | None,
    key_path: Path | None,
    sites_key: Path | None,
    deadline: float,
    as_json: bool,
) -> None:
    """Answer a coordinator's questions until the process is stopped (SIGTERM, Ctrl-C).

    Everything is verified first: manifest, plan, own records, policy; then the manifest is claimed in the silo's own
    ledger. A guard that was killed is started again with the same command and goes on where it stopped.
    """
    trust = TrustInForce(trust_path, root)
    options = GuardOptions(
        policy=ANYTHING if policy_path is None else read_policy(policy_path),
        trust=trust,
        key=None if key_path is None else load_private(key_path, ask_password),
        sites_key=None if sites_key is None else SitesKey.read(sites_key),
        deadline=deadline,
    )
    plan_path = budget.with_name("plan.toml") if plan is None else plan
    run = prepare_site(plan_path, read_named(budget, "--budget"), trust.file, party, _by_silo(party, files))

    def ready() -> None:
        said = f"ready: the guard of {party} answers at {socket_path}"
        print_answer({"ready": True, "party": party, "socket": str(socket_path)}, as_json, said)
        sys.stdout.flush()

    serve_guard(run, folder, ledger, socket_path, options, ready, anchor)


def _by_silo(party: str, files: tuple[str, ...]) -> dict[str, Path]:
    """`SILO=FILE`, or a file: the party's own if it is the only one, else the silo of the file's name."""
    found: dict[str, Path] = {}
    for text in files:
        name, equals, place = text.partition("=")
        path = Path(place if equals else text)
        found[name if equals else party if len(files) == 1 else silo_name(path)] = path
    return found


_FEDERATION_EXAMPLE = """
\b
Example (the plan names silos, not files: [data.silos] north = 160 ...):
  privfair federation run plan.toml --engine guards --manifest budget.json --trust trust.json \\
      --data north=north.csv --data south=south.csv --folder sites/ --out run/
  privfair federation run plan.toml --engine flower ... (with privfair[flower]; nvflare likewise)
"""


@click.group("federation", cls=Subcommands, short_help="several sites, tried on one machine")
def federation_command() -> None:
    """Try a federation of guards on one machine before it goes to three; docs/how-to/federation.md has both."""


@federation_command.command("run", epilog=_FEDERATION_EXAMPLE)
@click.argument("plan", type=FILE)
@click.option(
    "--engine",
    type=click.Choice(["guards", "flower", "nvflare"]),
    required=True,
    help="What carries the messages: unix sockets alone, Flower, or NVFlare's simulator, on 127.0.0.1.",
)
@budget_option
@required_trust_options
@click.option(
    "--data",
    "files",
    multiple=True,
    required=True,
    metavar="PARTY=[SILO=]FILE",
    help="A party and its records; a party that collects several silos is given once per silo.",
)
@click.option("--ledger", "ledgers", multiple=True, metavar="PARTY=LEDGER", help="A party's ledger, if it has one.")
@click.option("--folder", type=FOLDER, required=True, help="Folder for what each party keeps; made if need be.")
@click.option("--test-file", "test_files", type=FILE, multiple=True, help="A file of public records to measure on.")
@click.option("--out", type=FOLDER, required=True, help="Folder for the coordinator's run.")
@steps_option
@resume_option
@json_option
def run(
    plan: Path,
    engine: str,
    budget: Path,
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
    if engine == "flower":
        require_flower()
    if engine == "nvflare":
        require_nvflare()
    data: dict[str, tuple[str, ...]] = {}
    for party, file in _named("--data", files):
        data[party] = (*data.get(party, ()), file)
    named = dict(_named("--ledger", ledgers))
    trial = Trial(plan, budget, trust_path, root, data, folder, named, steps_per_message=steps_per_message)
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


@federation_command.command("gather")
@click.argument("run", type=FOLDER)
@click.argument("sites", nargs=-1, required=True, metavar="PARTY=FOLDER...")
@json_option
def gather(run: Path, sites: tuple[str, ...], as_json: bool) -> None:
    """Put what each party hands over beside the coordinator's RUN, so that it can be audited as one run.

    \b
    FOLDER is the --folder of the party's guard, or a copy of it. Transcript, steps, batches and receipt are taken;
    neither records, nor the claim's token, nor the log. Then:
      privfair audit RUN --trust trust.json --ledger north=north.db ... [--data north=north.csv ...]
    """
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

    folder = RunFolder(out)
    record = RunRecord.read(folder.summary)
    if as_json:
        print_json(record.as_json())
        return
    rounds = record.rounds
    print_rich(
        f"{record.engine}: {rounds.steps} steps, {rounds.charged} of {rounds.signed} signed rounds "
        f"charged by {len(record.ledgers)} parties",
        f"run folder: {out}; receipts of the parties: {folder.receipts}",
    )


def _named(option: str, given: tuple[str, ...]) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in given]
    for text, (name, equals, value) in zip(given, pairs, strict=True):
        if not (name and equals and value):
            raise click.UsageError(f"{option} {text!r} must be PARTY=..., for example {option} north=north.csv")
    return [(name, value) for name, _, value in pairs]


@click.command("desk", short_help="the officer's pages on this machine: plan, sign, ledger, runs")
@click.option("--ledger", required=True, metavar="LEDGER", help="Ledger to show: a file path or a PostgreSQL URL.")
@click.option("--inbox", type=_THERE, required=True, help="Folder with requests; answers are written beside them.")
@click.option("--key", "key_path", type=FILE, help="Private key that signs; without it the desk only shows.")
@click.option("--runs", type=_THERE, multiple=True, help="Folder with run folders. Default: that of the ledger.")
@trust_options
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1. Default: any that is free.")
@click.option("--open", "open_browser", is_flag=True, help="Open the pages in this machine's browser.")
@json_option
def desk_command(
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

"""Services: a guard at one site, a federation tried on one machine, the officer's pages."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from calibrate.manifest.keys import load_private
from privfair.cli.config import (
    anchor_for,
    ask_password,
    config_path,
    configured,
    configured_trust,
    needed_ledger,
    read_trust_file,
    root_for,
    user_config,
)
from privfair.cli.options import (
    FILE,
    FOLDER,
    Subcommands,
    asked,
    budget_option,
    required_trust_options,
    resume_option,
    steps_option,
)
from privfair.cli.output import answer, print_json, print_rich
from privfair.durable import read_named
from privfair.federation.countersign import serve_witness
from privfair.federation.guard import GuardOptions, serve_guard
from privfair.federation.policy import ANYTHING, Site, WitnessSite, read_policy
from privfair.federation.registries import SitesKey
from privfair.federation.sockets import unix_socket
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
from privfair.integrations.desk.books import open_books
from privfair.ledger.journal import EVENTS, JsonEvents
from privfair.run.folder import RunFolder
from privfair.run.open_run import TrustInForce
from privfair.run.prepare import prepare_site
from privfair.run.record import RunRecord

_THERE = click.Path(path_type=Path, file_okay=False, exists=True)


@click.command("serve", short_help="run one site's guard")
@click.argument("site", metavar="SITE.toml", type=FILE)
@click.option("--check", is_flag=True, help="Verify everything that a start verifies, and claim and serve nothing.")
def serve_command(site: Path, check: bool) -> None:
    """Run what SITE.toml describes until the process is stopped (SIGTERM, Ctrl-C).

    A guard holds one site's records, ledger, noise and transcript, and answers four questions at a socket: who are
    you, what do you contribute to this step, what do you reply, finish. Nothing else leaves it. Budget, plan, records
    and policy are verified first; then the budget is claimed in the site's ledger. A guard that was killed is started
    again with the same command and resumes where it stopped.

    \b
    Example, at the site of north (docs/how-to/federation.md has units for systemd):
      role   = "guard"            trust  = "trust.json"
      party  = "north"            ledger = "ledger.db"
      data   = "north.csv"        folder = "run"
      budget = "budget.json"      socket = "guard.sock"
    """
    unix_socket().close()  # refused here where there are none, before anything is read
    witness = WitnessSite.read(site)
    if witness is not None:
        _serve_witness(witness, check)
        return
    found, config = Site.read(site), user_config()
    trust_path, ledger = found.trust or config.trust, found.ledger or config.ledger
    for key, value in (("trust", trust_path), ("ledger", ledger)):
        if value is None:
            raise click.UsageError(f"{site} needs the key `{key}`, or {config_path()} does")
    assert trust_path is not None
    assert ledger is not None
    trust = TrustInForce(trust_path, found.root or root_for(trust_path))
    options = GuardOptions(
        policy=ANYTHING if found.policy is None else read_policy(found.policy),
        trust=trust,
        key=None if found.key is None else load_private(found.key, ask_password),
        sites_key=None if found.sites_key is None else SitesKey.read(found.sites_key),
        deadline=found.deadline,
        witness=found.witness or config.witness,
    )
    run = prepare_site(found.plan_path, read_named(found.budget, "budget"), trust.file, found.party, found.files)
    if check:
        options.policy.require_manifest(run.manifest)
        answer({"ready": False, "party": found.party}, f"the guard of {found.party} can start: privfair serve {site}")
        return

    def ready() -> None:
        told = f"ready: the guard of {found.party} answers at {found.socket}"
        document = {"ready": True, "party": found.party, "socket": str(found.socket)}
        answer(document, told)
        sys.stdout.flush()

    told = logging.StreamHandler()
    told.setFormatter(JsonEvents() if asked().as_json else logging.Formatter("%(levelname)s %(message)s"))
    logging.basicConfig(handlers=[told])
    EVENTS.setLevel(logging.WARNING if asked().quiet else logging.INFO)
    serve_guard(run, found.folder, ledger, found.socket, options, ready, found.anchor or anchor_for(ledger))


def _serve_witness(site: WitnessSite, check: bool) -> None:
    key = load_private(site.key, ask_password)
    document = {"ready": not check, "witness": key.key_id, "socket": str(site.socket)}
    if check:
        answer(document, f"the witness {key.key_id} can start")
        return

    def ready() -> None:
        answer(document, f"ready: the witness {key.key_id} answers at {site.socket}")
        sys.stdout.flush()

    serve_witness(site.folder, site.socket, key, ready)


_FEDERATION_EXAMPLE = """
\b
Example (the plan names silos, not files: [data.silos] north = 160 ...):
  privfair federation run plan.toml --engine guards --budget budget.json --trust trust.json \\
      --data north=north.csv --data south=south.csv --folder sites/ --out run/
  privfair federation run plan.toml --engine flower ... (with the extra flower; the same for nvflare)
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
    _show(out)


def _show(out: Path) -> None:

    folder = RunFolder(out)
    record = RunRecord.read(folder.summary)
    if asked().as_json:
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


@click.command("ui", short_help="privacy officer's pages on 127.0.0.1")
@needed_ledger
@click.option("--inbox", type=_THERE, required=True, help="Folder with requests; answers are written next to them.")
@configured("key", "--key", "key_path", type=FILE, help="Private key that signs [default: config; else read-only].")
@click.option("--runs", type=_THERE, multiple=True, help="Folder with run folders [default: that of the ledger].")
@configured_trust
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1 [default: any that is free].")
def ui_command(
    ledger: str, inbox: Path, key_path: Path | None, runs: tuple[Path, ...], trust_path: Path | None, port: int
) -> None:
    """Serve the officer's pages on 127.0.0.1 until Ctrl-C: planner, requests to sign, ledger, runs and audits.

    The address that is printed holds a token that opens the pages once, in one browser. Nothing is loaded from or sent
    to another machine.

    \b
    Example:
      privfair ui --ledger ledger.db --inbox inbox/ --key officer.pem --trust trust.json
    """
    unix_socket().close()  # the pages' keys and cookies rely on a POSIX system's file permissions
    from privfair.integrations.desk.app import DeskPapers, serve

    open_books(ledger)  # refused here rather than on the first page
    papers = DeskPapers(
        ledger=ledger,
        inbox=inbox,
        runs=runs or (() if "://" in ledger else (Path(ledger).resolve().parent,)),
        key=None if key_path is None else load_private(key_path, ask_password),
        trust=None if trust_path is None else read_trust_file(trust_path),
    )

    def say(address: str) -> None:
        if asked().as_json:
            print_json({"address": address, "read_only": papers.key is None})
        else:
            click.echo(f"The desk is open, once, at {address}")
            click.echo("Read-only: give --key to sign." if papers.key is None else "It can sign. Ctrl-C closes it.")

    serve(papers, port, say)

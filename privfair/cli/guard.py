"""`privfair guard`: one silo's data, ledger and noise in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from privfair.cli.help import Subcommands
from privfair.cli.keys import ask_password, trust_options
from privfair.cli.output import json_option, print_answer, show_values_option
from privfair.durable import read_named

_PATH = click.Path(path_type=Path, dir_okay=False)
_EXAMPLE = """
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
def command() -> None:
    """Stand between a silo's records and whoever coordinates a federation.

    A guard holds the silo's file, its ledger, its noise and its transcript, and answers four questions at a socket:
    who are you, what do you contribute to this step, what do you reply, finish. Nothing else leaves it.
    """


@command.command("serve", epilog=_EXAMPLE)
@click.option("--party", required=True, help="Name of this silo, as the plan has it.")
@click.option(
    "--data",
    "files",
    multiple=True,
    required=True,
    metavar="[SILO=]FILE",
    help="The silo's own records; for a party that collects several silos' records, one per silo.",
)
@click.option("--plan", type=_PATH, help="The signed plan; plan.toml beside the manifest unless given.")
@click.option("--manifest", type=_PATH, required=True, help="The signed budget for this plan.")
@trust_options
@click.option("--ledger", required=True, metavar="LEDGER", help="This silo's own ledger: file or PostgreSQL URL.")
@click.option("--anchor", type=_PATH, help="Anchor file of the ledger; LEDGER.anchor beside a file unless given.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder of this silo for transcript, batches, steps and log; kept for resuming and for audits.",
)
@click.option("--socket", "socket_path", type=_PATH, required=True, help="Unix socket at which the guard answers.")
@click.option("--policy", "policy_path", type=_PATH, help="The site's own policy (TOML), which can only tighten.")
@click.option("--key", "key_path", type=_PATH, help="The silo's own key, which signs its receipt.")
@click.option(
    "--sites-key",
    type=_PATH,
    help="Key that holders of records and registries share (openssl rand -hex 32); for plans with registries.",
)
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds for a frame to arrive, and for an answer to be read.",
)
@show_values_option
@json_option
def serve(
    party: str,
    files: tuple[str, ...],
    plan: Path | None,
    manifest: Path,
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
    from calibrate.manifest.keys import load_private
    from privfair.federation.guard import GuardOptions, serve_guard
    from privfair.federation.policy import ANYTHING, read_policy
    from privfair.federation.registries import SitesKey
    from privfair.run.prepare import prepare_site
    from privfair.training import TrustInForce

    trust = TrustInForce(trust_path, root)
    options = GuardOptions(
        policy=ANYTHING if policy_path is None else read_policy(policy_path),
        trust=trust,
        key=None if key_path is None else load_private(key_path, ask_password),
        sites_key=None if sites_key is None else SitesKey.read(sites_key),
        deadline=deadline,
    )
    plan_path = manifest.with_name("plan.toml") if plan is None else plan
    run = prepare_site(plan_path, read_named(manifest, "--manifest"), trust.file, party, _by_silo(party, files))

    def ready() -> None:
        said = f"ready: the guard of {party} answers at {socket_path}"
        print_answer({"ready": True, "party": party, "socket": str(socket_path)}, as_json, said)
        sys.stdout.flush()

    serve_guard(run, folder, ledger, socket_path, options, ready, anchor)


def _by_silo(party: str, files: tuple[str, ...]) -> dict[str, Path]:
    """`SILO=FILE`, or a file: the party's own if it is the only one, else the silo of the file's name."""
    from privfair.data.own_files import silo_name

    found: dict[str, Path] = {}
    for text in files:
        name, equals, place = text.partition("=")
        path = Path(place if equals else text)
        found[name if equals else party if len(files) == 1 else silo_name(path)] = path
    return found

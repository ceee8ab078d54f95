"""`privfair audit`: test a claim about a run, a model, a training function or a sensitivity."""

from __future__ import annotations

import importlib
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from audit.settings import DEFAULTS, AuditOptions
from calibrate.errors import InvalidInput
from calibrate.manifest.keys import load_public
from calibrate.manifest.trust import FolderTrust
from privfair.cli.audit_result import FORMER, ResultFlags, finish, require_run, result_options, run_subjects, say
from privfair.cli.config import configured_trust, read_trust_file, user_config
from privfair.cli.ledger import open_ledger
from privfair.cli.options import FILE, FOLDER, GLOBAL_OPTIONS, Renamed, Subcommands, with_our_help
from privfair.cli.output import progress_bar
from privfair.durable import read_toml
from privfair.ledger import LedgerAccess
from privfair.plan.sections import refuse_unknown

if TYPE_CHECKING:
    from audit.report.results import AuditReport

_COMMANDS = {
    "run": ("audit", "run_command", "does a training run keep its privacy guarantee?"),
    "model": ("audit_model", "model_command", "what does a model reveal about its training records?"),
    "training": ("audit_model", "training_command", "does a training function keep its guarantee?"),
    "sensitivity": ("audit_sensitivity", "claim_command", "are neighbouring data sets further apart than claimed?"),
}
"""By subcommand its module, its name there, and its line in the help, for which nothing is loaded."""
_OF_A_MODEL = {"--model", "--members", "--nonmembers", "--score"}


class _Audit(Subcommands):
    """A group whose former spellings name no subcommand: `audit RUN` for `run`, `audit --members ..` for `model`.

    A folder that is called like a subcommand is spelled with a slash.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(f"privfair.cli.{module}"), attribute)
        return with_our_help(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        everywhere = {name for option in GLOBAL_OPTIONS for name in option.opts if option.is_flag}
        first = next((word for word in args if word not in everywhere), "--help")
        if first not in ("-h", "--help", *self.list_commands(ctx)):
            ctx.meta[FORMER] = True
            of_model = any(word.partition("=")[0] in _OF_A_MODEL for word in args)
            args = ["model" if of_model else "run", *args]
        return super().parse_args(ctx, args)


@click.group("audit", cls=_Audit, short_help="run, model, training, sensitivity")
def audit_command() -> None:
    """Test a claim. Exit code 1 if it is refuted, 0 otherwise.

    \b
    Examples:
      privfair audit run run/ --trust trust.json --ledger ledger.db
      privfair audit model model.onnx --members in.csv --nonmembers out.csv
      privfair audit training my_code:train --data data.csv --label diagnosis
      privfair audit sensitivity steffle.lemma-B.1.W
    """


def _take_settings(ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Let a TOML file answer for options that are not given, under their names."""
    if path is None:
        return
    given = read_toml(path, "--settings")
    options = [param for param in ctx.command.params if isinstance(param, click.Option) and param.expose_value]
    known = {name.removeprefix("--"): option for option in options for name in option.opts}
    refuse_unknown(path.name, given, known)
    found: dict[str, object] = {}
    for key, value in given.items():
        option = known[key.replace("_", "-")]
        if isinstance(value, dict) or (isinstance(value, list) and not option.multiple):
            raise InvalidInput(f"[{path.name}] {key}", "(several values)", "takes one value", "write one value")
        found[option.name or ""] = [value] if option.multiple and not isinstance(value, list) else value
    ctx.default_map = found


settings_option = click.option(
    "--settings",
    type=FILE,
    is_eager=True,
    expose_value=False,
    callback=_take_settings,
    help="Rare settings (docs/audit.md#settings).",
)
rare_option = partial(click.option, hidden=True)
"""What --settings is for; given on the command line it is taken, too."""
trust_code_option = rare_option(
    "--trust-code", is_flag=True, help="Run the code that the run folder brings, if its digest is signed."
)
seed_option = rare_option(
    "--seed", type=click.IntRange(min=0), default=0, help="Seed of the auditor's coins and choices."
)


@dataclass(frozen=True)
class InHand:
    """What the auditor brings of a run, in addition to its folder."""

    plan_path: Path | None
    ledgers: tuple[str, ...]
    files: tuple[str, ...]
    sites: tuple[str, ...]
    site_keys: tuple[str, ...]


def _folder_named_run() -> Path | None:
    """The folder `run`, if there is one: the former spelling of its audit reads `audit run`."""
    return Path("run") if Path("run").is_dir() else None


@audit_command.command("run")
@click.argument("run", type=FOLDER, default=_folder_named_run)
@configured_trust
@click.option(
    "--ledger", "ledgers", multiple=True, metavar="[SITE=]LEDGER", help="Ledger; once per site [default: config]."
)
@click.option("--plan", "plan_path", type=FILE, help="Plan [default: where the run was trained].")
@click.option("--data", "files", multiple=True, metavar="SITE=FILE", help="A site's records (federated runs).")
@click.option("--site", "sites", multiple=True, metavar="SITE=FOLDER", help="A site's guard folder (federated runs).")
@click.option("--reruns", type=click.IntRange(min=0), default=DEFAULTS.reruns, show_default=True, help="Attack reruns.")
@click.option(
    *("--seconds", "--budget-seconds", "budget_seconds"),
    cls=Renamed,
    type=click.FloatRange(min=0),
    default=DEFAULTS.budget_seconds,
    show_default=True,
    help="Processor seconds for units one by one and for undecided attacks.",
)
@click.option("--confidence", type=float, help="Confidence of all bounds together [default: by algorithm].")
@result_options
@settings_option
@click.option(
    "--site-key", "site_keys", multiple=True, hidden=True, help="Public key of a site, SITE=PUB, for its receipt."
)
@click.option(
    "--attribute-inference/--no-attribute-inference",
    "infer",
    default=True,
    hidden=True,
    help="Whether to guess the sensitive attribute of the run's records from its model.",
)
@trust_code_option
@seed_option
def run_command(
    run: Path | None,
    trust_path: Path | None,
    plan_path: Path | None,
    ledgers: tuple[str, ...],
    files: tuple[str, ...],
    sites: tuple[str, ...],
    site_keys: tuple[str, ...],
    reruns: int,
    budget_seconds: float,
    confidence: float | None,
    infer: bool,
    trust_code: bool,
    seed: int,
    result: ResultFlags,
) -> None:
    """Test whether a training run keeps its privacy guarantee.

    Verdict: consistent, violated or inconclusive. Exit code 1 if violated.

    \b
    Four layers, cheapest first:
      conformance  manifest, ledger, transcript, plan, batches and model match
                   each other; the price is computed again
      probes       noise off: no neighbour moves a message further than signed;
                   batches and fresh noise in a rehearsal
      noise        the noise in the messages is what was signed, or (secret
                   batches) at least as much
      attack       the same code runs again on coins as attributes, or with
                   canaries in the data; what it reveals of them bounds epsilon
    """
    if run is None:
        raise click.UsageError("name a RUN folder")
    if any(limit.of_area for limit in result.limits):
        raise click.UsageError("--fail-above auc=... is for `privfair audit model`: a run has no membership attack")
    require_run(run)
    if sites:
        from privfair.federation.gather import gather_run

        gather_run(run, _named("--site", sites, "SITE=FOLDER"))
    trusted = FolderTrust(None if trust_path is None else read_trust_file(trust_path), trust_code)
    plan_path = plan_path or _place_of_plan(run)
    in_hand = InHand(plan_path, ledgers, files, sites, site_keys)
    options = AuditOptions(reruns, seed, confidence, budget_seconds)
    report = _judge_run(run, in_hand, trusted, options)
    say("attribute inference: does the model reveal more than imputation?")
    from privfair.cli.audit_judge import attribute_of_run  # loads the attacks

    inferred = attribute_of_run(infer, run, trusted, plan_path, seed, report.confidence)
    finish(result, report, subjects=run_subjects(run), **inferred)


def _judge_run(run: Path, given: InHand, trusted: FolderTrust, options: AuditOptions) -> AuditReport:
    from audit.runs.papers import SitesInHand
    from audit.runs.run_audit import audit_run

    own = user_config().ledger
    places = given.ledgers or (() if own is None or given.files or given.sites else (own,))
    named = dict(_by_site(text) for text in places)
    if len(named) < len(places) or (None in named and len(named) > 1):
        raise click.UsageError("--ledger is given once; of a federated run once per site, as SITE=LEDGER")
    files = _named("--data", given.files, "SITE=FILE")
    keys = {site: load_public(path) for site, path in _named("--site-key", given.site_keys, "SITE=PUB").items()}
    with ExitStack() as opened:
        ledgers = {site: opened.enter_context(open_ledger(place, LedgerAccess.READ)) for site, place in named.items()}
        sites = SitesInHand(files, {site: book for site, book in ledgers.items() if site is not None}, keys)
        counted = opened.enter_context(progress_bar("auditing"))
        return audit_run(
            run, options, trusted, ledgers.get(None), say, plan_path=given.plan_path, sites=sites, counted=counted
        )


def _by_site(text: str) -> tuple[str | None, str]:
    """`SITE=LEDGER`, or a ledger alone; a PostgreSQL URL may hold `=` after its own `:`."""
    site, equals, place = text.partition("=")
    return (site, place) if equals and not set(":/") & set(site) else (None, text)


def _named(option: str, texts: tuple[str, ...], form: str) -> dict[str, Path]:
    found = {}
    for text in texts:
        name, equals, place = text.partition("=")
        if not equals:
            raise click.UsageError(f"{option} {text}: write {form}")
        found[name] = Path(place)
    return found


def _place_of_plan(run: Path) -> Path | None:
    """The plan where it was trained, if its files are next to it; reported, because the run folder names the place."""
    from privfair.run.folder import RunFolder
    from privfair.run.public import original_plan

    found = original_plan(RunFolder.existing(run))
    if found is not None:
        say(f"plan and data files: where the run was trained, in {found.parent} (--plan names another place)")
    return found

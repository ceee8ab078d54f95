"""`privfair audit`: does the run keep its promise?"""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from audit.settings import CONFIDENCE, DEFAULTS, AuditOptions
from calibrate.manifest.keys import load_public
from privfair.cli.audit_flags import AttributeFlags, ModelFlags, attribute_options, model_options
from privfair.cli.audit_outputs import (
    OutputFlags,
    model_subjects,
    output_options,
    require_run,
    run_subjects,
    verify_command,
    write_outputs,
)
from privfair.cli.audit_show import show_report
from privfair.cli.audit_training import training_command
from privfair.cli.help import with_our_help, write_options_in_parts
from privfair.cli.keys import read_trust_file
from privfair.cli.options import FILE, FOLDER, anchor_option, folder_trust_options, json_option
from privfair.cli.output import print_json, progress_bar
from privfair.run.folder_trust import FolderTrust

if TYPE_CHECKING:
    from audit.report.results import AuditReport


@dataclass(frozen=True)
class Limit:
    """What must not be proved: an epsilon above `value`, or an area under the curve of a membership attack."""

    value: float
    of_area: bool

    def exceeded(self, report: AuditReport) -> str | None:
        """The sentence that says so, if the report proves it: by the bound, or by the lower end of an interval."""
        if not self.of_area:
            lower = report.epsilon_lower
            return None if lower is None or lower <= self.value else f"epsilon >= {lower:.3f}, above {self.value:g}"
        areas = () if report.membership is None else report.membership.attacks
        found = max((one.auc.lower for one in areas), default=0.0)
        return None if found <= self.value else f"area >= {found:.3f} for a membership attack, above {self.value:g}"


def _parse_limits(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Limit, ...]:
    """An epsilon ("2", "epsilon=2") or an area ("auc=0.6"), each."""
    found = []
    for value in values:
        kind, _, number = value.lower().rpartition("=")
        try:
            limit = Limit(float(number), kind == "auc")
        except ValueError:
            limit = Limit(math.nan, False)
        if kind not in ("", "auc", "epsilon") or not 0 <= limit.value < math.inf:
            raise click.BadParameter(f"{value!r} is not a limit; give an epsilon (2) or an area (auc=0.6)", ctx, param)
        found.append(limit)
    return tuple(found)


class _WithVerify(click.Command):
    """`audit RUN`, `audit training FUNCTION`, `audit verify STATEMENT`; folders of these names are spelled ./verify."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] == "verify":
            return with_our_help(verify_command).make_context(f"{info_name} verify", args[1:], parent, **extra)
        if args and args[0] == "training":
            return with_our_help(training_command).make_context(f"{info_name} training", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parts = {
            "Options of a run": _RUN_OPTIONS,
            "Options of a model (--model, or --score)": {"sensitive", *(field.name for field in fields(ModelFlags))},
        }
        write_options_in_parts(self, ctx, formatter, parts)


_RUN_OPTIONS = frozenset(
    ("plan_path", "ledgers", "files", "site_keys", "anchor", "reruns", "budget_seconds", "infer", "trust_code")
)


@click.command("audit", cls=_WithVerify, short_help="does a run keep its promise?")
@click.argument("run", type=FOLDER, required=False)
@click.option(
    "--plan", "plan_path", type=FILE, help="The original plan, needed if it names data files relative to its own place."
)
@folder_trust_options
@click.option(
    "--ledger",
    "ledgers",
    multiple=True,
    metavar="[PARTY=]LEDGER",
    help="The run's ledger, to compare its charges with the releases; of a run over guards one per party.",
)
@click.option(
    "--data",
    "files",
    multiple=True,
    metavar="SILO=FILE",
    help="Of a run over guards: the records of one silo; with those of all silos the whole audit is possible.",
)
@click.option(
    "--site-key",
    "site_keys",
    multiple=True,
    metavar="PARTY=PUB",
    help="Of a run over guards: the public key of one party, to check the signature under its receipt.",
)
@anchor_option
@click.option(
    "--reruns",
    type=click.IntRange(min=0),
    default=DEFAULTS.reruns,
    show_default=True,
    help="Number of reruns on coins; with canaries each stands for up to 50 short runs or 10 seconds.",
)
@click.option(
    "--budget-seconds",
    type=click.FloatRange(min=0),
    default=DEFAULTS.budget_seconds,
    show_default=True,
    help="Processor seconds for trying the second half of the units, and for more reruns of an undecided attack.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed of the auditor's coins, random pairs and shadow models.",
)
@click.option(
    "--confidence",
    type=float,
    show_default="0.95; for pay-once 0.999",
    help="Confidence of the lower bound on epsilon and of all intervals.",
)
@click.option(
    "--fail-above",
    "limits",
    multiple=True,
    callback=_parse_limits,
    metavar="EPSILON|auc=AREA",
    help="Exit code 1 if epsilon, or the area of a membership attack (auc=0.6), is proved to be above this.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show every check, every attack and the rates by group.")
@output_options
@attribute_options
@model_options
@json_option
def audit_command(
    run: Path | None,
    plan_path: Path | None,
    trust_path: Path | None,
    root: Path | None,
    trust_code: bool,
    ledgers: tuple[str, ...],
    files: tuple[str, ...],
    site_keys: tuple[str, ...],
    anchor: Path | None,
    reruns: int,
    budget_seconds: float,
    seed: int,
    confidence: float | None,
    limits: tuple[Limit, ...],
    verbose: bool,
    out: Path | None,
    junit: Path | None,
    sign_path: Path | None,
    statement: Path | None,
    test_result: Path | None,
    sensitive: str | None,
    infer: bool,
    as_json: bool,
    **model: Any,
) -> None:
    """Doubt a training run: verdict consistent, violated or inconclusive, with the evidence.

    \b
    Four layers, cheapest first:
      conformance  manifest, ledger, transcript, plan, batches and model name
                   one another; the price is computed again
      probes       noise off: no neighbour moves a message further than signed;
                   batches and fresh noise in a rehearsal
      noise        the noise in the messages is what was signed, or (secret
                   batches) at least as much
      attack       the same code runs again on coins as attributes, or with
                   canaries in the data; what it betrays of them bounds epsilon

    Beside them: does the model tell more of the attribute for members than for others?

    Exit code 1 if the promise is refuted, or what --fail-above names is exceeded; 0 otherwise.

    \b
    Also for a model (docs/audit-membership.md), for anyone's training function
    (docs/audit-training.md), and to check a signed audit:
      privfair audit --model M --members A.csv --nonmembers B.csv --label COLUMN
      privfair audit training module:function --data D.csv --label COLUMN --epsilon E --delta D
      privfair audit verify STATEMENT --trust auditors.json --run RUN

    Without a claimed --epsilon the verdict is leaks or no-leak-found, with the largest epsilon that is refuted.
    """
    flags, outputs = ModelFlags(**model), OutputFlags(out, junit, sign_path, statement, test_result)
    of_model = CONFIDENCE if confidence is None else confidence
    _refuse_early(flags, run, limits, sensitive, of_model)
    from privfair.cli.audit_model import attribute_of_model, attribute_of_run, judge_model  # loads the attacks

    attribute = AttributeFlags(sensitive, infer)
    trusted = FolderTrust(None if trust_path is None else read_trust_file(trust_path, root), trust_code)
    if flags.asked_for:
        report = judge_model(flags, trusted, seed, of_model)
        inferred = attribute_of_model(attribute, flags, trusted, seed, of_model)
        subjects = model_subjects(flags.model_path)
    else:
        assert run is not None
        plan_path = plan_path or _where_it_lay(run)
        in_hand = _RunFlags(plan_path, ledgers, files, site_keys, anchor)
        report = _judge_run(run, in_hand, trusted, AuditOptions(reruns, seed, confidence, budget_seconds))
        _say("attribute inference: does the model tell more than imputation?")
        inferred = attribute_of_run(attribute, run, trusted, plan_path, seed, report.confidence)
        subjects = run_subjects(run)
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    report = report.model_copy(update={**inferred, "subjects": subjects, "audited_at": now})
    write_outputs(outputs, report)
    if as_json:
        print_json(report.to_json())
    else:
        show_report(report, verbose)
    exceeded = [text for text in (limit.exceeded(report) for limit in limits) if text is not None]
    for text in exceeded:
        _say(text)
    if exceeded or report.verdict.value == "violated":
        sys.exit(1)


def _refuse_early(
    flags: ModelFlags, run: Path | None, limits: tuple[Limit, ...], sensitive: str | None, confidence: float
) -> None:
    """Whatever can be refused by the flags and the paths alone, before anything heavy is loaded."""
    if flags.asked_for:
        flags.require_complete(run, sensitive, confidence)
    elif any(limit.of_area for limit in limits):
        raise click.UsageError("--fail-above auc=... needs --model: a run has no membership attack")
    elif run is None:
        raise click.UsageError("name a RUN folder, or --model with --members and --nonmembers")
    else:
        require_run(run)


@dataclass(frozen=True)
class _RunFlags:
    plan_path: Path | None
    ledgers: tuple[str, ...]
    files: tuple[str, ...]
    keys: tuple[str, ...]
    anchor: Path | None


def _judge_run(run: Path, flags: _RunFlags, trusted: FolderTrust, options: AuditOptions) -> AuditReport:
    from audit.runs.papers import SitesInHand
    from audit.runs.run_audit import audit_run
    from privfair.ledger import Ledger, LedgerAccess

    named = dict(_by_party(text) for text in flags.ledgers)
    if len(named) < len(flags.ledgers) or (None in named and len(named) > 1):
        raise click.UsageError("--ledger is given once; of a run over guards once per party, as PARTY=LEDGER")
    files = _named("--data", flags.files, "SILO=FILE")
    keys = {party: load_public(path) for party, path in _named("--site-key", flags.keys, "PARTY=PUB").items()}
    with ExitStack() as opened:
        ledgers = {
            party: opened.enter_context(Ledger.open(place, flags.anchor, LedgerAccess.READ))
            for party, place in named.items()
        }
        sites = SitesInHand(files, {party: book for party, book in ledgers.items() if party is not None}, keys)
        counted = opened.enter_context(progress_bar("auditing"))
        return audit_run(
            run, options, trusted, ledgers.get(None), _say, plan_path=flags.plan_path, sites=sites, counted=counted
        )


def _by_party(text: str) -> tuple[str | None, str]:
    """`PARTY=LEDGER`, or a ledger alone; a PostgreSQL URL may hold `=` after its own `:`."""
    party, equals, place = text.partition("=")
    return (party, place) if equals and not set(":/") & set(party) else (None, text)


def _named(option: str, texts: tuple[str, ...], form: str) -> dict[str, Path]:
    found = {}
    for text in texts:
        name, equals, place = text.partition("=")
        if not equals:
            raise click.UsageError(f"{option} {text}: write {form}")
        found[name] = Path(place)
    return found


def _where_it_lay(run: Path) -> Path | None:
    """The plan where it was trained, if its files lie beside it; said, because it is taken from the folder."""
    from privfair.run.folder import RunFolder
    from privfair.run.trusted_plan import original_plan

    found = original_plan(RunFolder.existing(run))
    if found is not None:
        _say(f"plan and data files: where the run was trained, in {found.parent} (--plan names another place)")
    return found


def _say(text: str) -> None:
    click.echo(f"  {text}", err=True)

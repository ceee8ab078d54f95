"""`privfair audit`: does the run keep its promise?"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privfair.cli.audit_model import (
    AttributeFlags,
    ModelFlags,
    attribute_of_model,
    attribute_of_run,
    attribute_options,
    judge_model,
    model_options,
    show_membership,
)
from privfair.cli.audit_outputs import OutputFlags, dated, model_subjects, output_options, run_subjects, write_outputs
from privfair.cli.audit_outputs import command as verify_command
from privfair.cli.output import json_option, print_json, print_rich

if TYPE_CHECKING:
    from audit.verdict import Verdict
    from calibrate.manifest.trust import TrustFile

_PATH = click.Path(path_type=Path, dir_okay=False)
_COLOURS = {"consistent": "green", "violated": "red", "inconclusive": "yellow"}


class _WithVerify(click.Command):
    """`audit RUN`, and `audit verify STATEMENT`; a folder of that name is spelled ./verify."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] == "verify":
            return verify_command.make_context(f"{info_name} verify", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


@click.command("audit", cls=_WithVerify, short_help="does a run keep its promise?")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option("--plan", "plan_path", type=_PATH, help="The plan in its own place, if it names files relative to it.")
@click.option("--trust", "trust_path", type=_PATH, help="Trust file, to check the manifest's signatures.")
@click.option("--root", type=_PATH, help="Public key that signed the trust file, where it is signed.")
@click.option("--ledger", help="The run's ledger, to compare charges and releases.")
@click.option("--anchor", type=_PATH, help="The ledger's anchor; default: LEDGER.anchor beside a file.")
@click.option(
    "--reruns",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Effort of the attack: reruns on coins; with canaries, for each 10 s of computing and up to 50 runs.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the auditor's coins.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of the lower bound on epsilon.")
@output_options
@attribute_options
@model_options
@json_option
def command(
    run: Path | None,
    plan_path: Path | None,
    trust_path: Path | None,
    root: Path | None,
    ledger: str | None,
    anchor: Path | None,
    reruns: int,
    seed: int,
    confidence: float,
    out: Path | None,
    junit: Path | None,
    sign_path: Path | None,
    statement: Path | None,
    sensitive: str | None,
    infer: bool,
    as_json: bool,
    **model: Any,
) -> None:
    """Doubt a training run: verdict consistent, violated or inconclusive, with the evidence.

    \b
    Four layers, cheapest first:
      conformance   manifest, ledger, transcript, plan, batches and model name one another; the price is recomputed
      L0            noise off: no neighbour moves a message further than signed; batches and noise in a rehearsal
      L1            the noise in the messages is what was signed, or (secret batches) at least as much
      L2            reruns of the same code with coins as attributes, or with canaries in the data for promises
                    about records and users; what the transcript betrays of them bounds epsilon
    Beside them: can the attribute be guessed from the model better than without it, for members only?
    Or of a model (docs/audit-membership.md), with members and non-members of its training data:
      privfair audit --model M --members A.csv --nonmembers B.csv --label COLUMN [--sensitive COLUMN]
    Signed audits are checked by: privfair audit verify STATEMENT --trust auditors.json --run RUN
    Exit code 1 when violated.
    """
    from privfair.cli.keys import read_trust_file

    outputs, attribute = OutputFlags(out, junit, sign_path, statement), AttributeFlags(sensitive, infer)
    trust = None if trust_path is None else read_trust_file(trust_path, root)
    flags = ModelFlags(**model)
    membership = None
    if flags.asked_for:
        membership = judge_model(flags, run, trust, seed, confidence)
        verdict, document = membership.verdict, membership.to_json()
        inferred = attribute_of_model(attribute, flags, seed, confidence)
        subjects = model_subjects(flags.model_path)
    elif run is None:
        raise click.UsageError("name a RUN folder, or --model with --members and --nonmembers")
    else:
        verdict = _judge_run(run, _RunFlags(plan_path, ledger, anchor, reruns), trust, seed, confidence)
        document = verdict.to_json()
        _say("attribute inference: does the model tell more than imputation?")
        inferred = attribute_of_run(attribute, run, plan_path, seed, confidence)
        subjects = run_subjects(run)
    document = dated({**document, **inferred.to_json()}, subjects)
    write_outputs(outputs, document)
    if as_json:
        print_json(document)
    else:
        _show(verdict)
        if membership is not None:
            show_membership(membership)
        inferred.show()
    if document["verdict"] == "violated":
        sys.exit(1)


@dataclass(frozen=True)
class _RunFlags:
    plan_path: Path | None
    ledger: str | None
    anchor: Path | None
    reruns: int


def _judge_run(run: Path, flags: _RunFlags, trust: TrustFile | None, seed: int, confidence: float) -> Verdict:
    from audit.run_audit import AuditOptions, audit_run
    from privfair.ledger import Access, Ledger

    options = AuditOptions(flags.reruns, seed, confidence)
    if flags.ledger is None:
        return audit_run(run, options, trust, None, _say, flags.plan_path)
    with Ledger.open(flags.ledger, flags.anchor, Access.READ) as opened:
        return audit_run(run, options, trust, opened, _say, flags.plan_path)


def _say(text: str) -> None:
    click.echo(f"  {text}", err=True)


def _show(verdict: Verdict) -> None:
    from rich.markup import escape
    from rich.table import Table

    colour = _COLOURS[verdict.word.value]
    lines: list[object] = [f"[bold {colour}]{verdict.word.value.upper()}[/]  {escape(verdict.why)}"]
    if verdict.promise is not None:
        lines.append(f"on trial: epsilon {verdict.promise.epsilon:g} at delta {verdict.promise.delta:g}")
    for attack in verdict.attacks:
        lines.append(
            f"{attack.name}: epsilon is at least {attack.bound.epsilon:.3f} with "
            f"{100 * verdict.confidence:g}% confidence; {escape(attack.evidence)}; power {attack.power:.2f}"
        )
    table = Table("layer", "check", "outcome", "finding")
    for check in verdict.checks:
        table.add_row(check.layer.value, escape(check.name), check.outcome.value, escape(check.finding))
    print_rich(*lines, table)

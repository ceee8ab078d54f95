"""`privfair audit`: does the run keep its promise?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privfair.cli.audit_model import ModelFlags, judge_model, model_options, show_membership
from privfair.cli.output import json_option, print_json, print_rich

if TYPE_CHECKING:
    from audit.verdict import Verdict

_PATH = click.Path(path_type=Path, dir_okay=False)
_COLOURS = {"consistent": "green", "violated": "red", "inconclusive": "yellow"}


@click.command("audit", short_help="does a run keep its promise?")
@click.argument("run", type=click.Path(path_type=Path, file_okay=False), required=False)
@click.option(
    "--plan", "plan_path", type=_PATH, help="The plan in its own place, if it names files relative to it."
)
@click.option("--trust", "trust_path", type=_PATH, help="Trust file, to check the manifest's signatures.")
@click.option("--root", type=_PATH, help="Public key that signed the trust file, where it is signed.")
@click.option("--ledger", help="The run's ledger, to compare charges and releases.")
@click.option("--anchor", type=_PATH, help="The ledger's anchor; default: LEDGER.anchor beside a file.")
@click.option(
    "--reruns",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Reruns on coins for the attack.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of the auditor's coins."
)
@click.option(
    "--confidence", type=float, default=0.95, show_default=True, help="Of the lower bound on epsilon."
)
@click.option("--out", type=_PATH, help="Also write the verdict as JSON to this file.")
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
    as_json: bool,
    **model: Any,
) -> None:
    """Doubt a training run: verdict consistent, violated or inconclusive, with the evidence.

    \b
    Three layers, cheapest first:
      conformance   manifest, ledger, transcript, plan, batches and model name one another; the price is recomputed
      L1            the noise in the messages is what was signed (where batches are known)
      L2            reruns of the same code with coins as attributes; what the transcript betrays bounds epsilon
    Or of a model (docs/audit-membership.md), with members and non-members of its training data:
      privfair audit --model M --members A.csv --nonmembers B.csv --label COLUMN
    Exit code 1 when violated.
    """
    from audit.run_audit import AuditOptions, audit_run
    from privfair.cli.files import write_bytes
    from privfair.cli.keys import read_trust_file
    from privfair.ledger import Access, Ledger

    options = AuditOptions(reruns, seed, confidence)
    trust = None if trust_path is None else read_trust_file(trust_path, root)
    flags = ModelFlags(**model)

    def say(text: str) -> None:
        click.echo(f"  {text}", err=True)

    membership = None
    if flags.asked_for:
        membership = judge_model(flags, run, trust, seed, confidence)
        verdict = membership.verdict
    elif run is None:
        raise click.UsageError("name a RUN folder, or --model with --members and --nonmembers")
    elif ledger is None:
        verdict = audit_run(run, options, trust, None, say, plan_path)
    else:
        with Ledger.open(ledger, anchor, Access.READ) as opened:
            verdict = audit_run(run, options, trust, opened, say, plan_path)
    document = verdict.to_json() if membership is None else membership.to_json()
    if out is not None:
        write_bytes(out, json.dumps(document, indent=2).encode() + b"\n")
    if as_json:
        print_json(document)
    else:
        _show(verdict)
        if membership is not None:
            show_membership(membership)
    if document["verdict"] == "violated":
        sys.exit(1)


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

"""`privfair run`: a whole plan, to try it out: calibrate, sign with a key of one's own, train, audit, report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from audit.settings import DEFAULTS
from privfair.cli.output import checks_text, json_option, print_json, threads_option, threshold_options
from privfair.cli.pipeline import Pipeline, leave_if_refuted
from privfair.cli.train import quality_lines

_SELF_SIGNED = (
    "with a key made on the spot: nobody but you has agreed to this budget. For real data let an officer sign "
    "(privfair request, privfair sign)."
)


@click.command("run", short_help="calibrate, sign, train, audit and report a plan, to try it out")
@click.argument("plan", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="New folder for everything; PLAN's folder with -run at the end unless given.",
)
@click.option(
    "--reruns", type=click.IntRange(min=0), default=DEFAULTS.reruns, show_default=True, help="Number of reruns."
)
@threshold_options
@threads_option
@click.option("-v", "--verbose", is_flag=True, help="Show every command, and all it prints.")
@json_option
def command(
    plan: Path,
    out: Path | None,
    reruns: int,
    threshold: float | None,
    target_gap: float | None,
    target_rate: float | None,
    verbose: bool,
    as_json: bool,
) -> None:
    """Take PLAN from noise to report in one go, under a budget that you sign yourself.

    For trying out: what was printed is in log.txt and what was run in commands.sh of the new folder. Exit code 1 if the
    audit refutes the promise.

    \b
    Example:
      privfair run plan.toml --target-gap 0.05
    """
    _refuse_search(plan)
    folder = out or _free(plan)
    pipeline = Pipeline(folder, as_json, verbose and not as_json)
    pipeline.say("A budget for this plan, signed with a key of one's own")
    budget = pipeline.sign(plan, "--why", "trial run, self-signed")
    pipeline.tell(f"calibrated  {budget['algorithm']}: epsilon {budget['epsilon']:g} at delta {budget['delta']:g}")
    pipeline.tell(f"signed      {_SELF_SIGNED}", indent="            ")
    pipeline.say("Training")
    chosen = (("--threshold", threshold), ("--target-gap", target_gap), ("--target-rate", target_rate))
    flags = tuple(word for name, value in chosen if value is not None for word in (name, value))
    trained = pipeline.answer(*pipeline.train_words(plan, "run"), *flags, progress=True)
    pipeline.tell(f"trained     {trained['rounds']} rounds")
    pipeline.say("The audit")
    verdict, report = pipeline.audit("--reruns", reruns, "--plan", plan)
    result = {
        "budget": {key: budget[key] for key in ("algorithm", "epsilon", "delta")},
        "self_signed": True,
        "train": trained,
        "audit": {key: verdict[key] for key in ("verdict", "why", "epsilon_lower", "confidence")},
        "report": str(report),
        "folder": str(folder),
    }
    if as_json:
        print_json(result)
    else:
        _conclude(pipeline, trained, verdict, report)
    leave_if_refuted(verdict)


def _conclude(pipeline: Pipeline, trained: dict[str, Any], verdict: dict[str, Any], report: Path) -> None:
    pipeline.tell(f"audited     {checks_text([check['outcome'] for check in verdict['checks']])}", "")
    pipeline.tell(f"{verdict['verdict'].upper()}: {verdict['why']}", "")
    decision, measured = trained["decision"], trained
    if decision["rule"] != "default" and decision["held_out"] is not None:
        measured = {**trained, **decision["held_out"]}
        pipeline.tell(f"threshold {decision['threshold']:g} ({decision['rule']})")
    pipeline.tell("On the held-out records (these numbers are not private):")
    pipeline.tell(*quality_lines(measured, trained["warning"]))
    pipeline.tell("", f"Protected: {trained['protected']}.", f"NOT protected: {trained['not_protected_in_short']}.", "")
    run = pipeline.path("run")
    pipeline.tell(f"Open  {report}", f"Type  privfair predict {run} --input NEW.csv --out predictions.csv")
    pipeline.tell(f"      privfair frontier {run} --plot frontier.svg")


def _refuse_search(plan: Path) -> None:
    """Before anything is written: a search has no transcript, and `run` audits what it trains."""
    from calibrate.errors import InvalidInput
    from privfair.plan.file import read_plan_file

    if read_plan_file(plan).search is not None:
        rule = "shows its best try alone, and no run that could be audited"
        raise InvalidInput("[search]", "(a table)", rule, "use `privfair calibrate` and `privfair train`")


def _free(plan: Path) -> Path:
    """plan-run, plan-run-2, ..: the first that is not there."""
    base = plan.with_name(f"{plan.stem}-run")
    places = (base if number == 1 else base.with_name(f"{base.name}-{number}") for number in range(1, 10_000))
    return next(place for place in places if not place.exists())

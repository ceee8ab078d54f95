"""Which published theorems hold."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import click
from rich.table import Table

from calibrate.errors import InvalidInput
from calibrate.theorems.catalogue import judge_all, read_theorems, theorem_named
from calibrate.theorems.theorem import Direction, EpsilonComparison, Outcome, Theorem, Verdict
from privfair.cli.options import Subcommands, asked
from privfair.cli.output import epsilon_text, print_json, print_rich
from privfair.plan.own_code import UserFunction

_COLOURS = {"holds": "green", "fails": "red", "undecided": "yellow", "not applicable": "yellow"}


@click.group("theorems", cls=Subcommands, invoke_without_command=True)
@click.pass_context
def theorems_command(ctx: click.Context) -> None:
    """Check privacy claims, of four published methods or your own, by computation."""
    if ctx.invoked_subcommand is None:
        _list()


@theorems_command.command("list")
def list_command() -> None:
    """Every claim at its paper's own setting; with -v the reasons."""
    _list()


@theorems_command.command("check")
@click.argument("id", metavar="ID|FILE.py")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Change a parameter of the claim.")
def check_command(id: str, settings: tuple[str, ...]) -> None:
    """One claim at its paper's setting, changed where --set says so; -v adds source and parameters.

    FILE.py is your Python file that defines THEOREMS, a tuple of calibrate.theorems.theorem.Theorem; it is
    run, and all its claims are judged, each with the parameters of --set that it knows.

    \b
    Examples:
      privfair theorems check steffle.theorem-3.3 --set epsilon=9
      privfair theorems check my_paper.py
    """
    if id.endswith(".py"):
        _check_file(Path(id), _settings(settings))
        return
    theorem = theorem_named(id)
    verdict = theorem.judge(_settings(settings))
    if asked().as_json:
        print_json(verdict.to_json() | theorem.source())
    else:
        _show_verdict(theorem, verdict)


def _check_file(path: Path, settings: dict[str, object]) -> None:

    code = UserFunction.read("theorems check", path.parent, path.name, "THEOREMS", None, "my_paper.py")
    theorems = read_theorems(None, getattr(code.run(), "THEOREMS", None))
    if theorems is None:
        rule = "must define THEOREMS, a tuple of calibrate.theorems.theorem.Theorem"
        raise InvalidInput("FILE.py", str(path), rule, "see docs/plugins.md")
    known = {name for theorem in theorems for one in theorem.parameters for name in (one.name, *one.symbols)}
    unknown = [name for name in settings if name not in known and name.replace("-", "_") not in known]
    if unknown:
        raise InvalidInput("--set", unknown[0], f"is not a parameter of a claim in {path.name}", "check its spelling")
    judged = []
    for theorem in theorems:
        own = {name for one in theorem.parameters for name in (one.name, *one.symbols)}
        given = {name: value for name, value in settings.items() if name in own or name.replace("-", "_") in own}
        with code.running(f"when {theorem.id} is judged"):
            judged.append((theorem, theorem.judge(given)))
    if asked().as_json:
        print_json([{"place": theorem.place} | verdict.to_json() for theorem, verdict in judged])
        return
    for theorem, verdict in judged:
        _show_verdict(theorem, verdict)


def _settings(settings: tuple[str, ...]) -> dict[str, object]:

    given: dict[str, object] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InvalidInput("--set", text, "must look like name=value", "write for example --set epsilon=2")
        if name.strip() in given:
            raise InvalidInput("--set", text, "sets a parameter twice", "set each parameter once")
        given[name.strip()] = value.strip()
    return given


def _list() -> None:

    judged = judge_all()
    if asked().as_json:
        print_json(
            [{"place": theorem.place, "restates": theorem.restates} | verdict.to_json() for theorem, verdict in judged]
        )
        return

    heads = ("paper", "all", "claim", "claimed", "computed", "factor")
    table = Table(*heads, box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        column.no_wrap = True
    for theorem, verdict in judged:
        claimed, found = _short_numbers(verdict)
        mark = ("" if verdict.misprint is None else "*") + ("" if theorem.restates is None else "=")
        outcomes = (_in_short(_coloured(verdict.outcome)), _in_short(_quantified(verdict)))
        table.add_row(*outcomes, theorem.id + mark, claimed, found, _factor(verdict))
    counted = [verdict for theorem, verdict in judged if theorem.restates is None]
    counts = Counter(verdict.outcome.value for verdict in counted)
    failing = sum(each.as_quantified is not None and each.as_quantified.outcome.value == "fails" for each in counted)
    plural = {"fails": "fail", "holds": "hold"}
    said = ", ".join(f"{number} {plural.get(outcome, outcome)}" for outcome, number in counts.most_common())
    lines: list[object] = [
        table,
        "",
        "paper: at the paper's own setting; all: as the claim is quantified.",
        "n/a: not applicable; open: undecided; factor: computed / claimed;",
        "*: a misprint, `theorems check ID` says which; =: restates another claim, not counted again.",
        f"[bold]{len(counted)} claims: {said} at the paper's setting; {failing} fail as quantified.[/bold]",
    ]
    if asked().verbose:
        lines += [f"{theorem.id}: {verdict.finding.why}." for theorem, verdict in judged]
    print_rich(*lines, "Why: `theorems check ID`. Other settings: `theorems check ID --set name=value`.")


def _coloured(outcome: Outcome) -> str:
    colour = _COLOURS[outcome.value]
    return f"[{colour}]{outcome.value}[/{colour}]"


def _in_short(outcome: str) -> str:
    """For a column that must be narrow at 80 columns."""
    return outcome.replace("not applicable", "n/a").replace("undecided", "open")


def _quantified(verdict: Verdict) -> str:
    return "" if verdict.as_quantified is None else _coloured(verdict.as_quantified.outcome)


def _numbers(verdict: Verdict) -> tuple[str, str]:

    comparison = verdict.finding.comparison
    if isinstance(comparison, EpsilonComparison):
        true = comparison.true
        return f"epsilon {comparison.claimed:g}", f"epsilon {epsilon_text(true.lower, true.upper)}"
    return f"{comparison.direction.value} {comparison.claimed:.6g}", f"{comparison.found:.6g}"


def _short_numbers(verdict: Verdict) -> tuple[str, str]:
    """The numbers with four digits, for a table of 80 columns."""
    comparison = verdict.finding.comparison
    if isinstance(comparison, EpsilonComparison):
        lower, upper = f"{comparison.true.lower:.4g}", f"{comparison.true.upper:.4g}"
        return f"eps {comparison.claimed:.4g}", upper if lower == upper else f"[{lower}, {upper}]"
    sign = {Direction.AT_MOST: "<=", Direction.AT_LEAST: ">=", Direction.EXACTLY: "="}[comparison.direction]
    return f"{sign} {comparison.claimed:.4g}", f"{comparison.found:.4g}"


def _factor(verdict: Verdict) -> str:
    """How many times the claim the computed number is, by the end that may be promised."""
    comparison = verdict.finding.comparison
    true = comparison.true.upper if isinstance(comparison, EpsilonComparison) else comparison.found
    return "" if not comparison.claimed or not math.isfinite(true) else f"{true / comparison.claimed:.3g}"


def _show_verdict(theorem: Theorem, verdict: Verdict) -> None:
    claimed, found = _numbers(verdict)
    lines: list[object] = [
        f"[bold]{theorem.id}[/bold]  {theorem.place}",
        f"printed:  {theorem.formula}",
        f"here:     {_coloured(verdict.outcome)}   claimed {claimed}, computed {found}",
        f"why:      {verdict.finding.why}",
        *_all_settings(verdict),
    ]
    lines += [f"  [{'x' if rule.holds else ' '}] {rule.text}".replace("[", "\\[", 1) for rule in verdict.preconditions]
    lines += [f"granted:  {text}" for text in verdict.finding.granted]
    lines += [f"  {name} = {value}" for name, value in verdict.finding.details.items()]
    if asked().verbose:
        table = Table("parameter", "paper's value", "meaning")
        for parameter in theorem.parameters:
            table.add_row(parameter.name, str(parameter.shown_default), parameter.meaning)
        lines += [f"source:   {theorem.citation}", table]
    print_rich(*lines)


def _all_settings(verdict: Verdict) -> list[str]:
    """What follows for all settings, with the counterexample, and what was misprinted."""
    lines = []
    if verdict.as_quantified is not None:
        example = verdict.as_quantified.counterexample or {}
        at = "; at " + ", ".join(f"{name}={value}" for name, value in example.items()) if example else ""
        lines.append(f"for all:  {_coloured(verdict.as_quantified.outcome)}   {verdict.as_quantified.why}{at}")
    if verdict.misprint is not None:
        lines.append(f"misprint: {verdict.misprint.what}; corrected it {_coloured(verdict.misprint.corrected)} here")
    return lines

"""`privfair theorems`: which published guarantees hold, computed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from privfair.cli.output import epsilon_text, json_option, print_json, print_rich

if TYPE_CHECKING:
    from calibrate.theorems.theorem import Theorem
    from calibrate.theorems.verdict import Verdict

_COLOURS = {"holds": "green", "fails": "red", "undecided": "yellow", "not applicable": "yellow"}


@click.group("theorems", invoke_without_command=True, short_help="which published privacy theorems hold, computed")
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """Judge the privacy claims of four papers by computation.

    \b
    privfair theorems                               every claim at its paper's own setting
    privfair theorems check ID [--set name=value]   one claim, at any setting
    privfair theorems show ID                       a claim's formula, conditions and parameters
    """
    if ctx.invoked_subcommand is None:
        _list(as_json)
    else:
        ctx.obj = as_json


@command.command("list")
@json_option
@click.pass_obj
def list_all(from_group: bool, as_json: bool) -> None:
    """Every claim at its paper's own setting."""
    _list(as_json or bool(from_group))


@command.command("check")
@click.argument("id")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Change a parameter of the claim.")
@json_option
@click.pass_obj
def check(from_group: bool, id: str, settings: tuple[str, ...], as_json: bool) -> None:
    """One claim at its paper's setting, changed where --set says so.

    \b
    Example:
      privfair theorems check steffle.theorem-3.3 --set epsilon=9
    """
    from calibrate.theorems.catalogue import theorem_named

    theorem = theorem_named(id)
    verdict = theorem.judge(_settings(settings))
    if as_json or from_group:
        print_json(verdict.to_json())
    else:
        _show_verdict(theorem, verdict)


@command.command("show")
@click.argument("id")
@json_option
@click.pass_obj
def show(from_group: bool, id: str, as_json: bool) -> None:
    """A claim's printed formula, its source, and the parameters that --set can change."""
    from enum import Enum

    from calibrate.theorems.catalogue import theorem_named

    theorem = theorem_named(id)
    parameters = [
        {
            "name": parameter.name,
            "default": parameter.default.value if isinstance(parameter.default, Enum) else parameter.default,
            "meaning": parameter.meaning,
            "symbols": list(parameter.symbols),
        }
        for parameter in theorem.parameters
    ]
    if as_json or from_group:
        print_json(
            {
                "id": theorem.id,
                "citation": theorem.citation,
                "place": theorem.place,
                "formula": theorem.formula,
                "parameters": parameters,
            }
        )
        return
    from rich.table import Table

    table = Table("parameter", "paper's value", "meaning")
    for row in parameters:
        table.add_row(str(row["name"]), str(row["default"]), str(row["meaning"]))
    print_rich(f"[bold]{theorem.id}[/bold]  {theorem.place}", theorem.citation, f"printed: {theorem.formula}", table)


def _settings(settings: tuple[str, ...]) -> dict[str, object]:
    from calibrate.errors import InvalidInput

    given: dict[str, object] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InvalidInput("--set", text, "must look like name=value", "write for example --set epsilon=2")
        if name.strip() in given:
            raise InvalidInput("--set", text, "sets a parameter twice", "set each parameter once")
        given[name.strip()] = value.strip()
    return given


def _list(as_json: bool) -> None:
    from calibrate.theorems.catalogue import judge_all

    judged = judge_all()
    if as_json:
        print_json([{"place": theorem.place} | verdict.to_json() for theorem, verdict in judged])
        return
    from rich.table import Table

    table = Table(title="Published privacy claims at their papers' own settings", show_lines=True)
    table.add_column("claim", no_wrap=True)
    for heading in ("verdict", "claimed", "computed", "why"):
        table.add_column(heading)
    for theorem, verdict in judged:
        claimed, found = _numbers(verdict)
        colour = _COLOURS[verdict.outcome.value]
        table.add_row(theorem.id, f"[{colour}]{verdict.outcome.value}[/{colour}]", claimed, found, verdict.finding.why)
    print_rich(table, "One claim in detail, or at another setting: privfair theorems check ID --set name=value")


def _numbers(verdict: Verdict) -> tuple[str, str]:
    from calibrate.theorems.verdict import EpsilonComparison

    comparison = verdict.finding.comparison
    if isinstance(comparison, EpsilonComparison):
        true = comparison.true
        return f"epsilon {comparison.claimed:g}", f"epsilon {epsilon_text(true.lower, true.upper)}"
    return f"{comparison.direction.value} {comparison.claimed:.6g}", f"{comparison.found:.6g}"


def _show_verdict(theorem: Theorem, verdict: Verdict) -> None:
    claimed, found = _numbers(verdict)
    colour = _COLOURS[verdict.outcome.value]
    lines = [
        f"[bold]{theorem.id}[/bold]  {theorem.place}",
        f"printed:  {theorem.formula}",
        f"verdict:  [{colour}]{verdict.outcome.value}[/{colour}]   claimed {claimed}, computed {found}",
        f"why:      {verdict.finding.why}",
    ]
    lines += [f"  [{'x' if rule.holds else ' '}] {rule.text}".replace("[", "\\[", 1) for rule in verdict.preconditions]
    lines += [f"granted:  {text}" for text in verdict.finding.granted]
    lines += [f"  {name} = {value}" for name, value in verdict.finding.details.items()]
    print_rich(*lines)

"""Numbers without a plan: what noise costs, what a budget allows, and which published theorems hold."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Unpack

import click
from rich.table import Table

from calibrate.accountants.registry import AccountantName
from calibrate.errors import InvalidInput, NotCertified, UnsupportedCombination, open_unit
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval
from calibrate.questions import BatchDrawing, NoisyRounds, Solved, price, solve_missing
from calibrate.search_cost import price_search
from calibrate.theorems.catalogue import judge_all, read_theorems, theorem_named
from calibrate.theorems.theorem import Direction, EpsilonComparison, Outcome, Theorem, Verdict
from calibrate.tries import RandomTries
from privfair.cli.options import FILE, Renamed, Subcommands, asked
from privfair.cli.output import answer, epsilon_text, print_json, print_rich
from privfair.cli.plots import plot_rounds
from privfair.plan.own_code import UserFunction

_EXAMPLES = """
\b
Examples:
  privfair account --noise-multiplier 1 --rounds 1000 --sampling-rate 0.01 --delta 1e-5
  privfair account --epsilon 1 --rounds 1000 --sampling-rate 0.01 --delta 1e-5
  privfair account --epsilon 1 --noise-multiplier 1.5 --sampling-rate 0.01 --delta 1e-5
  privfair account --noise-multiplier 3.965 --sampling shuffled --sampling-rate 256/7500 --rounds 1172 \\
      --delta 1e-5 --relation replace-attribute
Several --noise-multiplier are several values of the same batch. For replace-one and add-remove a
multiplier is noise / (norm bound of one unit's contribution); for replace-attribute it is
noise / (largest distance between a record's two contributions).
"""


_SAMPLINGS = (
    *("poisson", "truncated-poisson", "fixed", "shuffled", "random-allocation", "with-replacement", "cyclic", "full"),
)


@click.command("account", epilog=_EXAMPLES)
@click.option("--epsilon", type=float, metavar="E", help="Epsilon to keep; left out, it is solved for.")
@click.option(
    *("--noise-multiplier", "multipliers"),
    type=float,
    multiple=True,
    metavar="Z",
    help="Standard deviation of the noise relative to the contribution bound; once per value, or left out.",
)
@click.option("--rounds", type=int, metavar="T", show_default="1, or solved for", help="Number of rounds published.")
@click.option("--delta", type=float, required=True, metavar="D", help="Delta that goes with epsilon.")
@click.option(
    "--sampling",
    type=click.Choice(_SAMPLINGS),
    metavar="KIND",
    help=f"How each round's batch is drawn: {', '.join(_SAMPLINGS[:-1])} or {_SAMPLINGS[-1]}.",
    show_default="poisson with a sampling rate, else full",
)
@click.option(
    "--sampling-rate",
    metavar="Q",
    help="Batch size / population, as a decimal or a fraction m/n. Shuffled and with-replacement need m/n, "
    "random-allocation 1/t for t batches per epoch.",
)
@click.option("--batches", type=int, metavar="N", help="Batches per epoch or cycle, instead of the sampling rate 1/N.")
@click.option("--batch-limit", type=int, metavar="B", help="The most units in a truncated Poisson batch.")
@click.option(
    *("--max-units", "--most-units", "most_units"),
    cls=Renamed,
    type=int,
    metavar="N",
    help="The most units that any party has, for truncated Poisson batches.",
)
@click.option(
    "--relation",
    type=click.Choice(["add-remove", "replace-one", "replace-attribute"]),
    default="add-remove",
    show_default=True,
    help="How two neighbouring data sets differ.",
)
@click.option(
    "--accountant",
    type=click.Choice(["best", "all", "certified", "pld", "renyi", "moments", "prv", "gaussian", "revealed"]),
    default="best",
    show_default=True,
    help="The tightest certified accountant, a named one, or a table of all; for epsilon only.",
)
@click.option(
    "--tries",
    type=float,
    metavar="M",
    help="Price a hyper-parameter search: the best of a secret random number of tries, M on average, is shown.",
)
@click.option("--plot", type=FILE, help="Write a figure: epsilon against rounds, noise against epsilon.")
@click.option(
    "--bands", type=int, hidden=True, help="Rounds over which banded noise is correlated, for cyclic batches."
)
@click.option(
    "--batch", type=click.Choice(["secret", "revealed"]), hidden=True, help="Whether the observer knows the batch."
)
@click.option("--tries-shape", type=float, default=0.0, hidden=True, help="Shape of the law of the number of tries.")
def account_command(
    epsilon: float | None,
    multipliers: tuple[float, ...],
    rounds: int | None,
    delta: float,
    accountant: str,
    tries: float | None,
    tries_shape: float,
    plot: Path | None,
    **drawn: Unpack[BatchDrawing],
) -> None:
    """Solve for the one value you leave out: epsilon, noise multiplier or rounds.

    With all three given it is the sampling rate. Answers are certified: epsilon is an interval around the smallest
    true one, and noise, rounds and rate keep it.
    """
    if epsilon is not None and (tries is not None or accountant != "best"):
        raise click.UsageError("--tries and --accountant go with a given noise: leave out --epsilon")
    if epsilon is None and not multipliers:
        raise click.UsageError("give --noise-multiplier to get epsilon, or --epsilon to get the noise that keeps it")
    open_unit("--delta", delta)
    try:
        kind, value, described = solve_missing(epsilon, delta, multipliers, rounds, **drawn)
    except InvalidInput as bad:
        raise InvalidInput(f"--{bad.argument.replace('_', '-')}", bad.value, bad.rule, bad.remedy) from None
    if accountant == "all":
        _print_all(described, delta)
        return
    if tries is None:
        interval, name = price(described, delta, accountant)
    else:
        law = RandomTries.with_mean(tries, tries_shape)
        interval, name = price_search(described.published, described.unit, delta, law), "renyi"
    found: dict[str, object] = {"epsilon": {"lower": interval.lower, "upper": interval.upper}, "accountant": name}
    lines = [f"epsilon = {epsilon_text(interval.lower, interval.upper)} at delta = {delta:g}   ({name} accountant)"]
    if kind is not Solved.EPSILON:
        found[kind.replace("-", "_")] = value
        lines.insert(0, f"{kind.replace('-', ' ')} = {value:.7g} keeps epsilon <= {epsilon:g}")
        if kind is Solved.NOISE and interval.upper == 0:
            lines.append("No noise is needed: delta is at least the chance that a unit takes part in any round.")
    found["kind"] = kind
    if plot is not None:
        plot_rounds(described, EpsilonDelta(epsilon or interval.upper, delta), plot)
        found["plot"] = str(plot)
        lines.append(f"plot written to {plot}")
    answer(found, *lines)


def _print_all(described: NoisyRounds, delta: float) -> None:

    answers: dict[str, EpsilonInterval | str] = {}
    for name in AccountantName:
        try:
            answers[name.value] = price(described, delta, name)[0]
        except (UnsupportedCombination, NotCertified) as no:
            answers[name.value] = str(no)
    if all(isinstance(found, str) for found in answers.values()):
        price(described, delta)  # raises the reason with its remedy
    if asked().as_json:
        print_json(
            [
                {"accountant": name, "refused": found}
                if isinstance(found, str)
                else {"accountant": name, "epsilon": {"lower": found.lower, "upper": found.upper}}
                for name, found in answers.items()
            ]
        )
        return
    table = Table("accountant", "epsilon", title=f"epsilon at delta = {delta:g}")
    for label, found in answers.items():
        text = f"[dim]{found}[/dim]" if isinstance(found, str) else epsilon_text(found.lower, found.upper)
        table.add_row(label, text)
    print_rich(table)


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

"""Numbers without a plan: what noise costs, and what a budget allows."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import click
from rich.table import Table

from calibrate.accountants.registry import AccountantName
from calibrate.errors import InvalidInput, NotCertified, UnsupportedCombination, open_unit
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval
from calibrate.questions import BatchDrawing, NoisyRounds, Solved, price, solve_missing
from calibrate.search_cost import price_search
from calibrate.tries import RandomTries
from privfair.cli.options import FILE, Renamed, asked
from privfair.cli.output import answer, epsilon_text, print_json, print_rich
from privfair.cli.plots import plot_rounds

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

"""`privfair account`: what does this noise cost?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from privfair.cli.output import epsilon_text, json_option, print_json, print_rich

if TYPE_CHECKING:
    from calibrate.questions import NoisyRounds

_EXAMPLES = """
\b
Examples:
  privfair account --noise-multiplier 1.4146 --sampling poisson --sampling-rate 0.01 --rounds 1000 --delta 1e-5
  privfair account --noise-multiplier 1 --sampling random-allocation --sampling-rate 1/1000 --rounds 3000 --delta 1e-5
  privfair account --noise-multiplier 4 --sampling cyclic --batches 20 --bands 20 --rounds 200 --delta 1e-5
  privfair account --noise-multiplier 3.965 --sampling shuffled --sampling-rate 256/7500 --rounds 1172 \\
      --delta 1e-5 --relation replace-attribute
Several --noise-multiplier are several values of the same batch. For replace-one and add-remove a
multiplier is noise / (norm bound of one unit's contribution); for replace-attribute it is
noise / (largest distance between a record's two contributions).
"""


_SAMPLINGS = (
    *("poisson", "truncated-poisson", "fixed", "shuffled", "random-allocation", "with-replacement", "cyclic", "full"),
)


@click.command("account", epilog=_EXAMPLES, short_help="the epsilon of given noise, as a certified interval")
@click.option(
    "--noise-multiplier",
    "multipliers",
    type=float,
    multiple=True,
    required=True,
    metavar="Z",
    help="Standard deviation of the noise relative to the contribution bound; give it once per value.",
)
@click.option(
    "--sampling",
    type=click.Choice(_SAMPLINGS),
    default="full",
    show_default=True,
    metavar="KIND",
    help=f"How each round's batch is drawn: {', '.join(_SAMPLINGS[:-1])} or {_SAMPLINGS[-1]}.",
)
@click.option(
    "--sampling-rate",
    metavar="Q",
    help="Batch size / population, as a decimal or a fraction m/n. Shuffled and with-replacement need m/n, "
    "random-allocation 1/t for t batches per epoch.",
)
@click.option("--batch-limit", type=int, metavar="B", help="The most units in a truncated Poisson batch.")
@click.option(
    "--most-units", type=int, metavar="N", help="The most units that any party has, for truncated Poisson batches."
)
@click.option("--batches", type=int, metavar="N", help="Batches per epoch or cycle, instead of the sampling rate 1/N.")
@click.option(
    "--bands", type=int, metavar="B", help="Rounds over which banded noise is correlated, for cyclic batches."
)
@click.option("--rounds", type=int, default=1, show_default=True, metavar="T", help="Number of rounds published.")
@click.option("--delta", type=float, required=True, metavar="D", help="Delta at which epsilon is computed.")
@click.option(
    "--relation",
    type=click.Choice(["add-remove", "replace-one", "replace-attribute"]),
    default="add-remove",
    show_default=True,
    help="How two neighbouring data sets differ.",
)
@click.option(
    "--batch",
    type=click.Choice(["secret", "revealed"]),
    help="Does the observer know the batch? Default: secret where an amplification bound is proved, else revealed.",
)
@click.option(
    "--accountant",
    type=click.Choice(["best", "all", "certified", "pld", "renyi", "moments", "prv", "gaussian", "revealed"]),
    default="best",
    show_default=True,
    help="The tightest certified accountant, a named one, or a table of all.",
)
@click.option(
    "--tries",
    type=float,
    metavar="M",
    help="Price a hyper-parameter search: the best of a secret random number of tries, M on average, is shown.",
)
@click.option(
    "--tries-shape",
    type=float,
    default=0.0,
    show_default=True,
    metavar="ETA",
    help="Shape of the number of tries' truncated negative binomial law; 1 is the geometric law.",
)
@json_option
def command(
    multipliers: tuple[float, ...],
    sampling: str,
    sampling_rate: str | None,
    batch_limit: int | None,
    most_units: int | None,
    batches: int | None,
    bands: int | None,
    rounds: int,
    delta: float,
    relation: str,
    batch: str | None,
    accountant: str,
    tries: float | None,
    tries_shape: float,
    as_json: bool,
) -> None:
    """Price given noise: a certified interval [lower, upper] for epsilon at the given delta."""
    from calibrate.errors import InvalidInput, open_unit
    from calibrate.questions import noisy_rounds, price

    open_unit("--delta", delta)
    try:
        drawn = (sampling_rate, sampling, relation, batch, batches, None, batch_limit, most_units, bands)
        asked = noisy_rounds(multipliers, rounds, *drawn)
    except InvalidInput as bad:
        raise InvalidInput(f"--{bad.argument.replace('_', '-')}", bad.value, bad.rule, bad.remedy) from None
    if accountant == "all":
        _print_all(asked, delta, as_json)
        return
    if tries is None:
        interval, name = price(asked, delta, accountant)
    else:
        from calibrate.search_cost import price_search
        from calibrate.tries import RandomTries

        interval, name = (
            price_search(asked.published, asked.unit, delta, RandomTries.with_mean(tries, tries_shape)),
            "renyi",
        )
    if as_json:
        print_json({"epsilon": {"lower": interval.lower, "upper": interval.upper}, "accountant": name})
    else:
        print_rich(
            f"epsilon = {epsilon_text(interval.lower, interval.upper)} at delta = {delta:g}   ({name} accountant)"
        )


def _print_all(asked: NoisyRounds, delta: float, as_json: bool) -> None:
    from rich.table import Table

    from calibrate.accountants.registry import AccountantName
    from calibrate.errors import NotCertified, UnsupportedCombination
    from calibrate.privacy_unit import EpsilonInterval
    from calibrate.questions import price

    answers: dict[str, EpsilonInterval | str] = {}
    for name in AccountantName:
        try:
            answers[name.value] = price(asked, delta, name)[0]
        except (UnsupportedCombination, NotCertified) as no:
            answers[name.value] = str(no)
    if all(isinstance(answer, str) for answer in answers.values()):
        price(asked, delta)  # raises the reason with its remedy
    rows = [
        {"accountant": name, "refused": answer}
        if isinstance(answer, str)
        else {"accountant": name, "epsilon": {"lower": answer.lower, "upper": answer.upper}}
        for name, answer in answers.items()
    ]
    if as_json:
        print_json(rows)
        return
    table = Table("accountant", "epsilon", title=f"epsilon at delta = {delta:g}")
    for label, answer in answers.items():
        text = f"[dim]{answer}[/dim]" if isinstance(answer, str) else epsilon_text(answer.lower, answer.upper)
        table.add_row(label, text)
    print_rich(table)

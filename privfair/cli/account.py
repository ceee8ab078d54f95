"""`privfair account`: what does this noise cost?"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import click

from privfair.cli.output import epsilon_text, json_option, print_json, print_rich

if TYPE_CHECKING:
    from calibrate.privacy_unit import PrivacyUnit
    from calibrate.releases import Release
    from calibrate.sampling import Batch, Sampling

_LEAST_NOISE = 0.01
_EXAMPLES = """
\b
Examples:
  privfair account --noise-multiplier 1.4146 --sampling poisson --sampling-rate 0.01 --rounds 1000 --delta 1e-5
  privfair account --noise-multiplier 3.965 --sampling shuffled --sampling-rate 0.0341 --rounds 1172 \\
      --delta 1e-5 --relation replace-attribute
Several --noise-multiplier are several values of the same batch. For replace-one and add-remove a
multiplier is noise / (norm bound of one unit's contribution); for replace-attribute it is
noise / (largest distance between a record's two contributions).
"""


@click.command("account", epilog=_EXAMPLES, short_help="the epsilon of given noise, as a certified interval")
@click.option("--noise-multiplier", "multipliers", type=float, multiple=True, required=True, metavar="Z")
@click.option(
    "--sampling",
    type=click.Choice(["poisson", "fixed", "shuffled", "with-replacement", "full"]),
    default="full",
    show_default=True,
    help="How each round's batch is drawn.",
)
@click.option("--sampling-rate", type=str, metavar="Q", help="Batch size / population, as a decimal or a fraction m/n.")
@click.option("--rounds", type=int, default=1, show_default=True, metavar="T")
@click.option("--delta", type=float, required=True, metavar="D")
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
    help="The tightest certified one, a named one, or a table of all.",
)
@json_option
def command(
    multipliers: tuple[float, ...],
    sampling: str,
    sampling_rate: str | None,
    rounds: int,
    delta: float,
    relation: str,
    batch: str | None,
    accountant: str,
    as_json: bool,
) -> None:
    """Price given noise: a certified interval [lower, upper] for epsilon at the given delta."""
    from calibrate.errors import open_unit
    from calibrate.privacy_unit import PrivacyUnit, Relation

    open_unit("--delta", delta)
    _require_some_noise(multipliers)
    unit = PrivacyUnit.of(Relation(relation))
    release = _release(multipliers, _sampling(sampling, sampling_rate, _batch(batch, sampling, relation)), rounds)
    if accountant == "all":
        _print_all(release, unit, delta, as_json)
        return
    priced = _price(accountant, release, unit, delta)
    if as_json:
        print_json({"epsilon": {"lower": priced[1], "upper": priced[2]}, "accountant": priced[0]})
    else:
        print_rich(f"epsilon = {epsilon_text(priced[1], priced[2])} at delta = {delta:g}   ({priced[0]} accountant)")


def _require_some_noise(multipliers: tuple[float, ...]) -> None:
    """Below this, epsilon is in the thousands, and the accountants run out of numbers before they answer."""
    from calibrate.errors import InvalidInput

    for multiplier in multipliers:
        if 0 < multiplier < _LEAST_NOISE:
            rule = f"is below {_LEAST_NOISE:g}, which protects nobody: epsilon is in the thousands"
            raise InvalidInput("--noise-multiplier", multiplier, rule, f"give {_LEAST_NOISE:g} or more")


def _batch(batch: str | None, sampling: str, relation: str) -> Batch:
    from calibrate.sampling import Batch

    if batch is not None:
        return Batch(batch)
    amplified = sampling in ("poisson", "fixed") and relation != "replace-attribute"
    return Batch.SECRET if amplified else Batch.REVEALED


def _sampling(kind: str, rate: str | None, batch: Batch) -> Sampling | None:
    from calibrate.errors import InvalidInput
    from calibrate.sampling import FixedSize, Poisson, ShuffledEpochs, WithReplacement

    if kind == "full":
        if rate is not None and len(set(_ratio(rate))) != 1:
            raise InvalidInput("--sampling-rate", rate, "contradicts --sampling full", "drop it, or name a sampling")
        return None
    if rate is None:
        raise InvalidInput("--sampling-rate", rate, f"is needed for --sampling {kind}", "give batch / population")
    size, population = _ratio(rate)
    if not 0 < size <= population:
        raise InvalidInput("--sampling-rate", rate, "must lie in (0, 1]", "give a fraction such as 0.01 or 256/7500")
    if kind == "poisson":
        return Poisson(size / population, batch)
    if kind == "fixed":
        return FixedSize(population, size, batch)
    if kind == "shuffled":
        return ShuffledEpochs(population, size, batch)
    if "/" not in rate:
        raise InvalidInput(
            "--sampling-rate", rate, "with-replacement needs both numbers", "give draws/population, such as 256/7500"
        )
    return WithReplacement(population, size, batch)


def _ratio(text: str) -> tuple[int, int]:
    """Batch and population as given in "256/7500", or a decimal as its exact fraction."""
    from calibrate.errors import InvalidInput

    try:
        if "/" in text:
            size, population = (int(part) for part in text.split("/"))
            return size, population
        return Fraction(text).as_integer_ratio()
    except ValueError:
        raise InvalidInput("--sampling-rate", text, "is not a number", "give 0.01 or 256/7500") from None


def _release(multipliers: tuple[float, ...], sampling: Sampling | None, rounds: int) -> Release:
    from calibrate.releases import Gaussian, Repeated, Sampled, Together
    from calibrate.sampling import ShuffledEpochs

    values = tuple(Gaussian(multiplier) for multiplier in multipliers)
    one = values[0] if len(values) == 1 else Together(values)
    if sampling is None:
        return Repeated(one, rounds)
    times = sampling.epochs_for(rounds) if isinstance(sampling, ShuffledEpochs) else rounds
    return Repeated(Sampled(sampling, one), times)


def _price(name: str, release: Release, unit: PrivacyUnit, delta: float) -> tuple[str, float, float]:
    from calibrate.accountants import registry
    from calibrate.accountants.accountant import epsilon_of

    if name == "best":
        priced = registry.best_epsilon(release, unit, delta)
        return priced.accountant_name.value, priced.interval.lower, priced.interval.upper
    interval = epsilon_of(registry.get(registry.AccountantName(name)), release, unit, delta)
    return name, interval.lower, interval.upper


def _print_all(release: Release, unit: PrivacyUnit, delta: float, as_json: bool) -> None:
    from rich.table import Table

    from calibrate.accountants import registry
    from calibrate.errors import NotCertified, UnsupportedCombination

    rows: list[tuple[str, float, float] | tuple[str, str]] = []
    for name in registry.AccountantName:
        try:
            rows.append(_price(name.value, release, unit, delta))
        except (UnsupportedCombination, NotCertified) as no:
            rows.append((name.value, str(no)))
    if all(len(row) == 2 for row in rows):
        _price("best", release, unit, delta)  # raises the reason with its remedy
    if as_json:
        print_json(
            [
                {"accountant": row[0], "epsilon": {"lower": row[1], "upper": row[2]}}
                if len(row) == 3
                else {"accountant": row[0], "refused": row[1]}
                for row in rows
            ]
        )
        return
    table = Table("accountant", "epsilon", title=f"epsilon at delta = {delta:g}")
    for row in rows:
        table.add_row(row[0], epsilon_text(row[1], row[2]) if len(row) == 3 else f"[dim]{row[1]}[/dim]")
    print_rich(table)

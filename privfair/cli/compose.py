"""`privfair compose`: what several budgets promise to one person who is in all of them."""

from __future__ import annotations

from pathlib import Path

import click

from privfair.cli.output import json_option, print_json
from privfair.durable import read_named


@click.command("compose", short_help="one person's promise over several budgets or silos")
@click.argument("budgets", type=click.Path(path_type=Path, dir_okay=False), nargs=-1, required=True, metavar="BUDGET..")
@click.option(
    "--silos",
    type=click.IntRange(min=1),
    metavar="N",
    help="In at most how many silos of each budget the person's data are; every silo unless given.",
)
@json_option
def command(budgets: tuple[Path, ...], silos: int | None, as_json: bool) -> None:
    """Add up what BUDGETs promise to one person, who pays once per silo and per budget they are in.

    The sum holds for the coarsest unit that every budget protects. Signatures are not checked.

    \b
    Example: a patient of two hospitals that trained together, then of one that trained alone
      privfair compose both.json alone.json --silos 2
    """
    from calibrate.compose import compose, compose_beforehand
    from calibrate.manifest.verify import read_unverified
    from privfair.api.reading import promises_of

    documents = [(path.name, read_unverified(read_named(path, "BUDGET")).document) for path in budgets]
    given = promises_of(documents, silos)
    basic = compose(given)
    total = compose_beforehand(given, [document.renyi_curve() for _, document in documents])
    by = "basic" if total == basic else "renyi"
    unit = {"unit": total.unit.protected.value, "adjacency": total.unit.relation.value}
    if as_json:
        parts = [
            {"budget": str(path), "epsilon": one.epsilon, "delta": one.delta, "silos": one.times}
            for path, one in zip(budgets, given, strict=True)
        ]
        found = {"epsilon": total.epsilon, "delta": total.delta, "by": by, "basic_epsilon": basic.epsilon}
        print_json({**unit, **found, "budgets": parts})
        return
    for path, one in zip(budgets, given, strict=True):
        click.echo(f"{path}: epsilon {one.epsilon:g}, delta {one.delta:g}, in {one.times} silo(s)")
    click.echo(
        f"together: epsilon {total.epsilon:g} at delta {total.delta:g} for one {unit['unit']} ({unit['adjacency']})"
    )
    if by == "renyi":
        click.echo(
            "by Renyi composition, for budgets that were signed without looking at one another's results;\n"
            f"by basic composition, which holds for any: epsilon {basic.epsilon:g}"
        )

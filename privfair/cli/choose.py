"""`privfair choose`: which algorithm, for what must be protected from whom."""

from __future__ import annotations

import sys

import click

from calibrate.choose import QUESTIONS, Fair, Need, Observer, Question, choose
from calibrate.privacy_unit import Protected
from privfair.cli.output import json_option, print_json, print_wrapped

_PROTECT, _FROM, _FAIR = QUESTIONS


@click.command("choose", short_help="which algorithm, for what must be protected from whom")
@click.option(
    "--protect", type=click.Choice(list(_PROTECT.answers)), help="What must stay secret: the unit of the promise."
)
@click.option("--from", "observer", type=click.Choice(list(_FROM.answers)), help="From whom it must stay secret.")
@click.option("--sites", type=click.IntRange(min=1), metavar="N", help="How many sites hold the records.")
@click.option("--fair", type=click.Choice(list(_FAIR.answers)), help="To whom the model should be fair.")
@json_option
def command(protect: str | None, observer: str | None, sites: int | None, fair: str | None, as_json: bool) -> None:
    """Say what must be protected, from whom, and get algorithm, unit and reasons.

    What is not given as an option is asked for; with --json everything has a default.

    \b
    Example:
      privfair choose --protect attribute --from coordinator --sites 3 --fair groups
    """
    if not as_json and not sys.stdin.isatty() and None in (protect, observer, sites, fair):
        raise click.UsageError("nobody is there to be asked: give --protect, --from, --sites and --fair, or --json")
    if not as_json:
        protect = protect or _ask(_PROTECT)
        observer = observer or _ask(_FROM)
        sites = sites or click.prompt("How many sites hold the records?", type=click.IntRange(min=1), default=1)
        fair = fair or _ask(_FAIR)
    need = Need(
        Protected(protect or "attribute"), Observer(observer or "coordinator"), sites or 1, Fair(fair or "groups")
    )
    choice = choose(need)
    protection = choice.protection()
    if as_json:
        print_json({**choice.to_json(), "adjacency": choice.privacy_unit().relation.value, **protection.to_json()})
        return
    print_wrapped(f"Algorithm: {choice.algorithm}, protecting one {choice.unit.value}.")
    print_wrapped("At epsilon 1 and delta 1e-5:", *(f"  {line}" for line in protection.lines()), indent="    ")
    print_wrapped("Why:", *(f"  - {text}" for text in choice.why), indent="    ")
    print_wrapped("Instead, perhaps:", *(f"  - {text}" for text in choice.instead), indent="    ")
    print_wrapped("", f"Next: {choice.next_command}")


def _ask(question: Question) -> str:
    click.echo(question.text)
    for name, meaning in question.answers.items():
        click.echo(f"  {name:<12} {meaning}")
    found: str = click.prompt("  your answer", type=click.Choice(list(question.answers)), show_choices=False)
    return found

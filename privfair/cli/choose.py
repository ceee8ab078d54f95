"""`privfair choose`: which algorithm, for what must be protected from whom."""

from __future__ import annotations

import sys

import click

from privfair.cli.output import json_option, print_json, print_wrapped

_PROTECT = {
    "attribute": "one sensitive attribute of each record (sex, origin, diagnosis); the rest may be seen",
    "record": "everything about each record, and whether it is there",
    "user": "everything about each person, who may have many records",
}
_FROM = {
    "model": "those who get the trained model; one party may see all records",
    "coordinator": "also the server and the other sites: nothing readable leaves a site",
}
_FAIR = {
    "groups": "alike for the groups of a sensitive attribute",
    "sites": "as good for the worst site as for the others",
    "nothing": "fairness is not asked for",
}


@click.command("choose", short_help="which algorithm, for what must be protected from whom")
@click.option("--protect", type=click.Choice(list(_PROTECT)), help="What must stay secret: the unit of the promise.")
@click.option("--from", "observer", type=click.Choice(list(_FROM)), help="From whom it must stay secret.")
@click.option("--sites", type=click.IntRange(min=1), metavar="N", help="How many sites hold the records.")
@click.option("--fair", type=click.Choice(list(_FAIR)), help="To whom the model should be fair.")
@json_option
def command(protect: str | None, observer: str | None, sites: int | None, fair: str | None, as_json: bool) -> None:
    """Say what must be protected, from whom, and get algorithm, unit and reasons.

    What is not given as an option is asked for; with --json everything has a default.

    \b
    Example:
      privfair choose --protect attribute --from coordinator --sites 3 --fair groups
    """
    from calibrate.choose import Fair, Need, Observer, choose
    from calibrate.meaning import Protection
    from calibrate.plans.from_mapping import plan_from_mapping
    from calibrate.privacy_unit import EpsilonDelta, Protected

    if not as_json and not sys.stdin.isatty() and None in (protect, observer, sites, fair):
        raise click.UsageError("nobody is there to be asked: give --protect, --from, --sites and --fair, or --json")
    if not as_json:
        protect = protect or _ask("What must be protected?", _PROTECT)
        observer = observer or _ask("From whom?", _FROM)
        sites = sites or click.prompt("How many sites hold the records?", type=click.IntRange(min=1), default=1)
        fair = fair or _ask("To whom should the model be fair?", _FAIR)
    need = Need(
        Protected(protect or "attribute"), Observer(observer or "coordinator"), sites or 1, Fair(fair or "groups")
    )
    choice = choose(need)
    import tomllib

    unit = plan_from_mapping(choice.algorithm, tomllib.loads(choice.privacy)).unit
    protection = Protection(unit, EpsilonDelta(1.0, 1e-5))
    if as_json:
        print_json({**choice.to_json(), "adjacency": unit.relation.value, **protection.to_json()})
        return
    print_wrapped(f"Algorithm: {choice.algorithm}, protecting one {choice.unit.value}.")
    print_wrapped("At epsilon 1 and delta 1e-5:", *(f"  {line}" for line in protection.lines()), indent="    ")
    print_wrapped("Why:", *(f"  - {text}" for text in choice.why), indent="    ")
    print_wrapped("Instead, perhaps:", *(f"  - {text}" for text in choice.instead), indent="    ")
    column = " --user COLUMN" if choice.unit is Protected.USER else " --sensitive COLUMN"
    print_wrapped("", f"Next: privfair init FILES --target COLUMN{column} --protect {choice.unit.value}")


def _ask(question: str, answers: dict[str, str]) -> str:
    click.echo(question)
    for name, meaning in answers.items():
        click.echo(f"  {name:<12} {meaning}")
    found: str = click.prompt("  your answer", type=click.Choice(list(answers)), show_choices=False)
    return found

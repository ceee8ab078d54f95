"""`privfair sensitivity`: two neighbouring data sets that break a claimed bound, or how hard was looked for them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from privfair.cli import sensitivity_report
from privfair.cli.help import Subcommands
from privfair.cli.output import json_option, print_json, print_rich, print_wrapped

if TYPE_CHECKING:
    from audit.claims.falsify import CataloguedClaim, Search, SearchResult

_RELATIONS = ("add-remove", "replace-one", "replace-attribute")


@click.group("sensitivity", cls=Subcommands, short_help="refute a claimed sensitivity, or say how hard it was tried")
def command() -> None:
    """Put a sensitivity claim to the test.

    \b
    sensitivity list                              the claims known by id
    sensitivity check ID                          one of them
    sensitivity check module:function --claim 1   your own function
    sensitivity report PLAN.toml                  how far real data is from
                                                  the worst case
    """


command.add_command(sensitivity_report.command)


@command.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """The claims that can be checked by id."""
    from audit.claims.catalogue import claim_named, ids

    entries = [claim_named(id) for id in ids()]
    if as_json:
        print_json([{"id": each.id, "says": each.says, "claimed": each.claim.bound} for each in entries])
        return
    for each in entries:
        click.echo(each.id)
        print_wrapped(f"    {each.says}", indent="    ")


@command.command("check")
@click.argument("what", metavar="ID|MODULE:FUNCTION")
@click.option("--claim", type=float, help="Bound to test; required for a function of your own.")
@click.option(
    "--relation",
    type=click.Choice(_RELATIONS),
    default=None,
    help="How neighbouring data sets differ; add-remove unless given.",
)
@click.option(
    "--protected",
    type=click.Choice(["record", "user"]),
    default=None,
    help="Unit that is protected; record unless given.",
)
@click.option("--norm", type=click.Choice(["L1", "L2"]), default=None, help="Norm of the distance; L2 unless given.")
@click.option(
    "--domain",
    "domain_name",
    help="Data sets of the claim, as module:name of a Domain; DOMAIN beside the function unless given.",
)
@click.option(
    "--arrays",
    type=click.Choice(["numpy", "torch"]),
    default=None,
    help="Kind of arrays that the function takes; numpy unless given.",
)
@click.option(
    "--pairs", type=click.IntRange(min=1), default=800, show_default=True, help="Number of random pairs of neighbours."
)
@click.option("--climbs", type=click.IntRange(min=0), default=6, show_default=True, help="Number of gradient ascents.")
@click.option(
    "--steps", type=click.IntRange(min=0), default=80, show_default=True, help="Number of steps of each ascent."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the search.")
@json_option
def check(
    what: str,
    claim: float | None,
    relation: str | None,
    protected: str | None,
    norm: str | None,
    domain_name: str | None,
    arrays: str | None,
    pairs: int,
    climbs: int,
    steps: int,
    seed: int,
    as_json: bool,
) -> None:
    """Search for neighbouring data sets further apart than claimed; exit code 1 if there are any.

    The function's parameters are named after the columns and public values of its DOMAIN (audit.claims.claim).

    \b
    Examples:
      privfair sensitivity check steffle.lemma-B.1.W
      privfair sensitivity check my_module:clipped_mean --claim 0.25 --relation replace-one --json
    """
    from audit.claims.falsify import Search

    stated = {"relation": relation, "protected": protected, "norm": norm, "arrays": arrays, "domain": domain_name}
    entry = _claim_of_function(what, claim, stated) if ":" in what else _claim_of_id(what, claim, stated)
    result = _check(entry, Search(pairs, climbs, steps, seed))
    if as_json:
        print_json({"id": entry.id} | result.to_json())
    else:
        print_rich(f"[bold]{entry.id}[/bold]")
        click.echo(f"claim: {entry.says}\n{result}")
    sys.exit(1 if result.refuted else 0)


def _check(entry: CataloguedClaim, search: Search) -> SearchResult:
    """A function that raises has refuted nothing: it must not leave with the exit code of a refutation."""
    from calibrate.errors import InvalidInput, PrivfairError

    try:
        return entry.check(search)
    except PrivfairError:
        raise
    except Exception as error:
        if ":" not in entry.id:
            raise
        rule = f"raised {type(error).__name__} on a data set of its domain ({error})"
        raise InvalidInput("function", entry.id, rule, "fix the function, or narrow its domain") from error


def _claim_of_id(id: str, claim: float | None, stated: dict[str, str | None]) -> CataloguedClaim:
    """A claim of the catalogue, perhaps with another bound; what it is about is fixed."""
    from dataclasses import replace

    from audit.claims.catalogue import claim_named
    from calibrate.errors import InvalidInput

    given = [name for name, value in stated.items() if value is not None]
    if given:
        raise InvalidInput(f"--{given[0]}", stated[given[0]], f"is fixed by {id}", "use it with module:function")
    entry = claim_named(id)
    if claim is None:
        return entry
    return replace(entry, says=f"{entry.says}; here {claim:g}", claim=replace(entry.claim, bound=claim))


def _claim_of_function(what: str, claim: float | None, stated: dict[str, str | None]) -> CataloguedClaim:
    from audit.claims.claim import Arrays, DistanceClaim, Domain, Subject
    from audit.claims.falsify import CataloguedClaim
    from audit.named import load_named
    from calibrate.errors import InvalidInput
    from calibrate.privacy_unit import Norm, Protected, Relation

    if claim is None:
        raise InvalidInput("--claim", None, "is needed for a function of your own", "state the bound to test")
    domain = load_named(stated["domain"] or what.partition(":")[0] + ":DOMAIN")
    if not isinstance(domain, Domain):
        raise InvalidInput("--domain", stated["domain"], "is not a Domain", "name an audit.claims.claim.Domain")
    bound = DistanceClaim(
        claim,
        Relation(stated["relation"] or "add-remove"),
        Protected(stated["protected"] or "record"),
        Norm(stated["norm"] or "L2"),
    )
    subject = Subject(load_named(what), domain, Arrays(stated["arrays"] or "numpy"))
    says = f"{what} moves by at most {claim:g} ({bound.norm.value}, {bound.relation.value})"
    return CataloguedClaim(what, says, bound, subject)

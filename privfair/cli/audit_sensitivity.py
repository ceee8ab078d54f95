"""`privfair audit sensitivity`: search for neighbouring data sets that break a claimed bound."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click
from rich.table import Table

from audit.claims.catalogue import claim_named, ids
from audit.claims.claim import Arrays, DistanceClaim, Domain, Subject
from audit.claims.falsify import CataloguedClaim, Search, SearchResult
from audit.named import load_named
from audit.probes.sensitivity import NOTE, local_sensitivity
from audit.report.results import LocalSensitivity
from audit.runs.rerun import rehearse
from calibrate.errors import InvalidInput, PrivfairError
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import NoPrivacyPromised
from calibrate.manifest.verify import read_unverified
from calibrate.privacy_unit import Norm, Protected, Relation
from privfair.api.draft import draft
from privfair.cli.audit import rare_option, seed_option, settings_option
from privfair.cli.options import Subcommands, asked
from privfair.cli.output import print_json, print_rich, print_wrapped
from privfair.durable import read_named
from privfair.plan.plan import Plan


@click.command("sensitivity")
@click.argument("what", metavar="ID|MODULE:FUNCTION", required=False)
@click.option("--claim", type=float, help="Bound to test; needed for your own function.")
@click.option(
    "--relation",
    type=click.Choice(["add-remove", "replace-one", "replace-attribute"]),
    help="How neighbouring data sets differ [default: add-remove].",
)
@click.option("--protected", type=click.Choice(["record", "user"]), help="Unit that is protected [default: record].")
@click.option("--norm", type=click.Choice(["L1", "L2"]), help="Norm of the distance [default: L2].")
@click.option("--domain", help="Data sets of the claim, as module:name of a Domain [default: DOMAIN of the module].")
@click.option("--arrays", type=click.Choice(["numpy", "torch"]), help="Kind of arrays it takes [default: numpy].")
@settings_option
@rare_option("--pairs", type=click.IntRange(min=1), default=800, help="Number of random pairs of neighbours.")
@rare_option("--climbs", type=click.IntRange(min=0), default=6, help="Number of gradient ascents.")
@rare_option("--steps", type=click.IntRange(min=0), default=80, help="Number of steps of each ascent.")
@seed_option
def claim_command(
    what: str | None, claim: float | None, pairs: int, climbs: int, steps: int, seed: int, **stated: str | None
) -> None:
    """Search for neighbouring data sets further apart than claimed; exit code 1 if there are any.

    Without an argument the claims known by id are listed. Your function's parameters are named after the
    columns and public values of its DOMAIN (audit.claims.claim).

    \b
    Examples:
      privfair audit sensitivity steffle.lemma-B.1.W
      privfair audit sensitivity my_module:clipped_mean --claim 0.25 --relation replace-one
    """
    if what is None:
        _list_claims()
        return
    entry = _claim_of_function(what, claim, stated) if ":" in what else _claim_of_id(what, claim, stated)
    result = _check(entry, Search(pairs, climbs, steps, seed))
    if asked().as_json:
        print_json({"id": entry.id} | result.to_json())
    else:
        click.echo(f"{entry.id}\nclaim: {entry.says}\n{result}")
    sys.exit(1 if result.refuted else 0)


def _list_claims() -> None:
    entries = [claim_named(id) for id in ids()]
    if asked().as_json:
        print_json([{"id": each.id, "says": each.says, "claimed": each.claim.bound} for each in entries])
        return
    for each in entries:
        click.echo(each.id)
        print_wrapped(f"    {each.says}", indent="    ")


@click.group("sensitivity", cls=Subcommands, hidden=True)
def sensitivity_command() -> None:
    """Former spelling of `privfair audit sensitivity`."""


sensitivity_command.add_command(claim_command, "check")


def show_local_sensitivity(plan: Path, budget: Path | None, rounds: int, units: int) -> None:
    """What the units of this very data set move, round by round, and what the worst case would.

    The plan is rehearsed for some rounds in a temporary folder; no budget is spent. The numbers never
    lower the noise, and are not for publication: they are computed from private records.
    """
    document = _document(plan, budget)
    found = local_sensitivity(rehearse(plan, document, rounds), units, 0)
    unit = document.guarantee.privacy_unit()
    if asked().as_json:
        print_json(
            {
                "plan": str(plan),
                "kind": "sensitivity",
                "unit": unit.protected.value,
                "relation": unit.relation.value,
                "noise_may_be_lowered": False,
                "note": NOTE,
                "releases": [one.to_json() for one in found],
            }
        )
        return
    _show(found, f"one {unit.protected.value}, {unit.relation.value}", NOTE)


def _document(plan: Path, budget: Path | None) -> BudgetDocument:
    """The budget given, or an unsigned one calibrated for the plan's target."""
    if budget is not None:
        document = read_unverified(read_named(budget, "--budget")).document
        if isinstance(document.guarantee, NoPrivacyPromised):
            rule = "promises no privacy, so it signs no bound"
            raise InvalidInput("--budget", str(budget), rule, "give a private plan")
        return document
    return draft(Plan.read(plan)).document


def _show(found: tuple[LocalSensitivity, ...], unit: str, note: str) -> None:

    lines: list[object] = [f"[bold]local sensitivity[/bold] for {unit}, as shares of the worst case"]
    for one in found:
        table = Table("step", "largest", "median", title=f"{one.name} (worst case {one.worst_case:.6g})")
        for step in one.by_step:
            table.add_row(str(step.step), f"{100 * step.largest_share:.1f}%", f"{100 * step.median_share:.1f}%")
        lines.append(table)
    print_rich(*lines, note)


def _check(entry: CataloguedClaim, search: Search) -> SearchResult:
    """A function that raises has refuted nothing: it must not leave with the exit code of a refutation."""
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
    """A claim of the catalogue, with another bound if one is given; its function is fixed."""
    given = [name for name, value in stated.items() if value is not None]
    if given:
        raise InvalidInput(f"--{given[0]}", stated[given[0]], f"is fixed by {id}", "use it with module:function")
    entry = claim_named(id)
    if claim is None:
        return entry
    return replace(entry, says=f"{entry.says}; here {claim:g}", claim=replace(entry.claim, bound=claim))


def _claim_of_function(what: str, claim: float | None, stated: dict[str, str | None]) -> CataloguedClaim:

    if claim is None:
        raise InvalidInput("--claim", None, "is needed for your own function", "state the bound to test")
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

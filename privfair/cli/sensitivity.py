"""Sensitivity: search for neighbours that break a claimed bound, and how far real data is from it."""

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
from privfair.cli.help import Subcommands
from privfair.cli.options import FILE, json_option
from privfair.cli.output import print_json, print_rich, print_wrapped
from privfair.plan.plan import Plan


@click.command("report")
@click.argument("plan", type=FILE)
@click.option("--manifest", type=FILE, help="Signed budget of the plan; calibrated now for its target unless given.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=32, show_default=True, help="Number of rounds to rehearse."
)
@click.option(
    "--units",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Number of units to leave out or replace in each batch.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed for the choice of units.")
@json_option
def sensitivity_report_command(
    plan: Path, manifest: Path | None, rounds: int, units: int, seed: int, as_json: bool
) -> None:
    """What the units of this very data set move, round by round, beside what the worst case would.

    The plan is rehearsed for some rounds in a folder that is thrown away; nobody's budget is touched. The numbers never
    lower the noise, and are not for publication: they are computed from private records.

    \b
    Example:
      privfair sensitivity report plan.toml --manifest budget.json
    """
    document = _document(plan, manifest)
    found = local_sensitivity(rehearse(plan, document, rounds), units, seed)
    unit = document.guarantee.privacy_unit()
    if as_json:
        print_json(
            {
                "plan": str(plan),
                "unit": unit.protected.value,
                "relation": unit.relation.value,
                "noise_may_be_lowered": False,
                "note": NOTE,
                "releases": [one.to_json() for one in found],
            }
        )
        return
    _show(found, f"one {unit.protected.value}, {unit.relation.value}", NOTE)


def _document(plan: Path, manifest: Path | None) -> BudgetDocument:
    """The budget given, or one calibrated for the plan's target, which nobody signs."""
    if manifest is not None:
        if not manifest.is_file():
            raise InvalidInput("--manifest", str(manifest), "is not a file", "check the path")
        document = read_unverified(manifest.read_bytes()).document
        if isinstance(document.guarantee, NoPrivacyPromised):
            raise InvalidInput(
                "--manifest", str(manifest), "promises no privacy, so it signs no bound", "give a private plan"
            )
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


_RELATIONS = ("add-remove", "replace-one", "replace-attribute")


@click.group("sensitivity", cls=Subcommands, short_help="refute a claimed sensitivity, or say how hard it was tried")
def sensitivity_command() -> None:
    """Put a sensitivity claim to the test.

    \b
    sensitivity list                              the claims known by id
    sensitivity check ID                          one of them
    sensitivity check module:function --claim 1   your own function
    sensitivity report PLAN.toml                  how far real data is from
                                                  the worst case
    """


sensitivity_command.add_command(sensitivity_report_command)


@sensitivity_command.command("list")
@json_option
def list_all(as_json: bool) -> None:
    """The claims that can be checked by id."""
    entries = [claim_named(id) for id in ids()]
    if as_json:
        print_json([{"id": each.id, "says": each.says, "claimed": each.claim.bound} for each in entries])
        return
    for each in entries:
        click.echo(each.id)
        print_wrapped(f"    {each.says}", indent="    ")


@sensitivity_command.command("check")
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
    given = [name for name, value in stated.items() if value is not None]
    if given:
        raise InvalidInput(f"--{given[0]}", stated[given[0]], f"is fixed by {id}", "use it with module:function")
    entry = claim_named(id)
    if claim is None:
        return entry
    return replace(entry, says=f"{entry.says}; here {claim:g}", claim=replace(entry.claim, bound=claim))


def _claim_of_function(what: str, claim: float | None, stated: dict[str, str | None]) -> CataloguedClaim:

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

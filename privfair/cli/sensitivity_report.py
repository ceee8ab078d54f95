"""`privfair sensitivity report`: how far a plan's data is from the worst case that its noise is made for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfair.cli.output import json_option, print_json, print_rich

if TYPE_CHECKING:
    from audit.report.results import LocalSensitivity
    from calibrate.manifest.document import BudgetDocument

_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command("report")
@click.argument("plan", type=_PATH)
@click.option("--manifest", type=_PATH, help="Signed budget of the plan; calibrated now for its target unless given.")
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
def command(plan: Path, manifest: Path | None, rounds: int, units: int, seed: int, as_json: bool) -> None:
    """What the units of this very data set move, round by round, beside what the worst case would.

    The plan is rehearsed for some rounds in a folder that is thrown away; nobody's budget is touched. The numbers never
    lower the noise, and are not for publication: they are computed from private records.

    \b
    Example:
      privfair sensitivity report plan.toml --manifest budget.json
    """
    from audit.probes.rehearsal import rehearse
    from audit.probes.sensitivity import NOTE, local_sensitivity

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
    from calibrate.errors import InvalidInput
    from calibrate.manifest.mechanism import NoPrivacyPromised
    from calibrate.manifest.verify import read_unverified
    from privfair.api.draft import draft
    from privfair.plan.file import read_plan_file

    if manifest is not None:
        if not manifest.is_file():
            raise InvalidInput("--manifest", str(manifest), "is not a file", "check the path")
        document = read_unverified(manifest.read_bytes()).document
        if isinstance(document.guarantee, NoPrivacyPromised):
            raise InvalidInput(
                "--manifest", str(manifest), "promises no privacy, so it signs no bound", "give a private plan"
            )
        return document
    return draft(read_plan_file(plan)).document


def _show(found: tuple[LocalSensitivity, ...], unit: str, note: str) -> None:
    from rich.table import Table

    lines: list[object] = [f"[bold]local sensitivity[/bold] for {unit}, as shares of the worst case"]
    for one in found:
        table = Table("step", "largest", "median", title=f"{one.name} (worst case {one.worst_case:.6g})")
        for step in one.by_step:
            table.add_row(str(step.step), f"{100 * step.largest_share:.1f}%", f"{100 * step.median_share:.1f}%")
        lines.append(table)
    print_rich(*lines, note)

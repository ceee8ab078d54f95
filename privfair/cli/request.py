"""`privfair request`: ask an officer to sign a budget, with a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privfair.cli.output import json_option, ledger_option, print_json, show_values_option
from privfair.durable import read_named, write_named

if TYPE_CHECKING:
    from calibrate.manifest.issue import BudgetDraft
    from privfair.plan.file import PlanFile

_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command("request", short_help="ask an officer for a budget, with a file")
@click.argument("plan", type=_PATH)
@click.option("--out", type=_PATH, default=Path("request.json"), show_default=True, help="File to write.")
@click.option("--why", required=True, metavar="TEXT", help="The purpose, which the officer reads and the budget keeps.")
@click.option("--by", "asked_by", metavar="TEXT", help="Who asks. Default: the user of this machine.")
@click.option("--epsilon", type=float, metavar="E", help="The promise asked for, if the plan has no [target].")
@click.option("--delta", type=float, metavar="D", help="The delta asked for, if the plan has no [target].")
@click.option("--silo", "silos", multiple=True, metavar="NAME=SIZE", help="A silo, if the plan names no data.")
@ledger_option
@click.option(
    "--valid-days", type=click.IntRange(1, 36_500), default=90, show_default=True, help="Days until it expires."
)
@click.option("--as-printed", is_flag=True, help="Ask for the paper's own noise, with its true epsilon.")
@click.option("--no-privacy", metavar="WHY", help="Ask to train without noise and without a promise, for this reason.")
@click.option(
    "--unsafe-seeded-research-noise",
    "research_noise",
    is_flag=True,
    help="Ask for reproducible noise that protects nobody; for experiments on public data.",
)
@click.option("--since", type=_PATH, help="An earlier request or budget, to say what changed since.")
@show_values_option
@json_option
def command(plan: Path, out: Path, asked_by: str | None, since: Path | None, as_json: bool, **asked: Any) -> None:
    """Calibrate a PLAN and write the budget it needs as a request, unsigned, for the officer to read and sign.

    \b
    Example:
      privfair request plan.toml --why "readmission model for ward 7" --ledger ledger.db
      privfair sign request.json --key officer.pem --out budget.json      (the officer)
    """
    from calibrate.manifest.request import plain_words, read_request, request_bytes
    from privfair.cli.sign import changes_since
    from privfair.plan.file import read_plan_file

    draft = _draft(read_plan_file(plan), **asked)
    content = request_bytes(draft, asked_by or _user(), read_named(plan, "PLAN"))
    request = read_request(content)
    write_named(out, content)
    changed = None if since is None else changes_since(since, request.document)
    if as_json:
        print_json(
            {
                "request": str(out),
                "digest": request.digest,
                "algorithm": request.document.algorithm,
                "epsilon": getattr(request.document.guarantee, "epsilon", None),
                "delta": getattr(request.document.guarantee, "delta", None),
                "changes": changed,
            }
        )
        return
    from privfair.cli.explain import print_lines

    print_lines(plain_words(request.document))
    for line in changed or ():
        print_lines((f"Changed since {since}: {line}",))
    print_lines((f"The request is in {out}; the officer signs it with `privfair sign {out} --key KEY`.",))


def _user() -> str:
    from privfair.ledger.terms import claimant_here

    return claimant_here().rpartition(", process")[0]


def _draft(
    file: PlanFile, epsilon: float | None, delta: float | None, as_printed: bool, no_privacy: str | None, **asked: Any
) -> BudgetDraft:
    from privfair.api.draft import Unprotected, draft
    from privfair.cli.manifest import issuer_from_flags

    issuer = issuer_from_flags(**asked)
    if as_printed and no_privacy is not None:
        raise click.UsageError("--as-printed and --no-privacy exclude each other")
    if no_privacy is not None:
        return draft(file, issuer, Unprotected(no_privacy))
    return draft(file, issuer, "as-printed" if as_printed else "calibrated", file.target(epsilon, delta))

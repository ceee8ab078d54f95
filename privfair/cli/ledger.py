"""`privfair ledger`: make a ledger, look at it, cap what a data set may spend, and keep it safe."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfair.cli.help import Subcommands
from privfair.cli.output import json_option, options, print_json, print_wrapped
from privfair.cli.witness import command as witness

if TYPE_CHECKING:
    from privfair.ledger import DataBudgetStatus, LedgerStatus, ManifestStatus

_FILE = click.Path(path_type=Path, dir_okay=False)
_anchor_option = click.option("--anchor", type=_FILE, help="Anchor file; LEDGER.anchor beside a file unless given.")
_location = options(click.argument("location", metavar="LEDGER"), _anchor_option)
_BAR = 20


@click.group("ledger", cls=Subcommands, short_help="what was claimed, charged and released")
def command() -> None:
    """Make and read a ledger: a file path, or a URL postgresql+psycopg://... ."""


@command.command("init")
@_location
@click.option("--bound-only", is_flag=True, help="Refuse manifests that were signed for no ledger in particular.")
@json_option
def init(location: str, anchor: Path | None, bound_only: bool, as_json: bool) -> None:
    """Make a ledger with an identity of its own; no other command makes one.

    Sign budgets for this identity: every other ledger then refuses them.
    """
    from privfair.ledger import Ledger

    with Ledger.create(location, anchor, bound_only=bound_only) as ledger:
        identity = ledger.identity
    if as_json:
        print_json({"ledger": location, "id": identity})
    else:
        click.echo(f"made ledger {identity} at {location}; keep its anchor on other storage if you can")


@command.command("status")
@_location
@json_option
def status(location: str, anchor: Path | None, as_json: bool) -> None:
    """What was spent and is left per data set and unit, and every manifest claimed."""
    from privfair.ledger import Ledger, LedgerAccess

    with Ledger.open(location, anchor, LedgerAccess.READ) as ledger:
        found = ledger.status()
    if as_json:
        print_json(_status_json(location, found))
        return
    click.echo(f"{location}: ledger {found.ledger[:16]}, {found.entries} entries, head {found.head.hash[:16]}")
    for budget in found.budgets:
        print_wrapped("", *_spent_lines(budget), indent="    ")
    for manifest in found.manifests:
        print_wrapped(*_manifest_text(manifest).split("\n"), indent="    ")


def _status_json(location: str, found: LedgerStatus) -> dict[str, object]:
    return {
        "ledger": location,
        "id": found.ledger,
        "entries": found.entries,
        "head": found.head.hash,
        "anchor": found.anchor.value,
        "budgets": [asdict(budget) | {"left": budget.left} for budget in found.budgets],
        "manifests": [
            {
                "manifest": one.manifest_digest,
                "state": one.state.value,
                "rounds_signed": one.rounds,
                "rounds_charged": one.charged,
                "rounds_released": one.released_rounds,
                "epsilon": one.epsilon,
                "delta": one.delta,
                "unit": one.unit,
                "dataset": one.dataset,
                "purpose": one.purpose,
                "signers": list(one.signers),
                "claimed_at": one.claimed_at,
                "valid_until": one.valid_until,
                "claimant": one.claimant,
                "abandoned": one.abandoned,
                "bound": one.bound,
                "dataset_declared": one.dataset_declared,
            }
            for one in found.manifests
        ],
    }


def _spent_lines(budget: DataBudgetStatus) -> tuple[str, str]:
    from privfair.ledger.status import unit_in_words

    return f"{budget.dataset}, {unit_in_words(budget.unit)}:", f"  {_spent_text(budget)}"


def _spent_text(budget: DataBudgetStatus) -> str:
    """One line with a bar: how much of the budget is spent, or that there is none."""
    if budget.claimed_epsilon is None:
        return "nothing bounds what was released (a claim promised this unit no privacy)"
    spent = f"epsilon {budget.claimed_epsilon:g}"
    if budget.epsilon is None or budget.left is None:
        running = "" if budget.odometer_epsilon is None else f" ({budget.odometer_epsilon:g} by Renyi divergences)"
        return f"{spent} claimed{running}, no budget is set"
    filled = round(_BAR * min(1.0, 1 - budget.left / budget.epsilon))
    why = ", spent by a restore" if budget.spent_by_restore else ""
    bar = "#" * filled + "." * (_BAR - filled)
    if budget.filter == "renyi" and budget.used is not None:
        share = f"{budget.used:.0%} of epsilon {budget.epsilon:g} by its Renyi filter"
        return f"{share} [{bar}], {budget.claimed_epsilon:g} by basic composition{why}"
    return f"{spent} of {budget.epsilon:g} [{bar}] {budget.left:g} left{why}"


def _manifest_text(one: ManifestStatus) -> str:
    from privfair.ledger.status import unit_in_words

    promise = "no privacy promised" if one.epsilon is None else f"epsilon {one.epsilon:g}, delta {one.delta:g}"
    lines = [
        f"\nmanifest {one.manifest_digest[:12]}: {one.state.value}, claimed {one.claimed_at}",
        f"  {promise} for {unit_in_words(one.unit)}",
        f"  {one.charged} of {one.rounds} rounds charged, {one.released_rounds} released; data set {one.dataset}",
        f"  purpose: {one.purpose or 'not said'}; signed by {', '.join(one.signers) or 'nobody known'}",
    ]
    if one.abandoned is not None:
        lines.append(f"  abandoned: {one.abandoned}")
    if not one.bound:
        lines.append("  signed for no ledger in particular: another ledger would take it too (`ledger witness` tells)")
    if not one.dataset_declared:
        lines.append("  its data set was not declared: with another size it counts as another data set")
    return "\n".join(lines)


@command.command("verify")
@_location
@json_option
def verify(location: str, anchor: Path | None, as_json: bool) -> None:
    """Read every entry again by all rules, and compare the end with the anchor."""
    from privfair.ledger import Ledger, LedgerAccess

    with Ledger.open(location, anchor, LedgerAccess.READ) as ledger:
        entries, head = ledger.verify()
    if as_json:
        print_json({"ledger": location, "entries": entries, "head": head.hash, "intact": True})
    else:
        click.echo(f"intact: {entries} entries, head {head.hash}")


@command.command("anchor")
@_location
@json_option
def anchor(location: str, anchor: Path | None, as_json: bool) -> None:
    """Print the anchor (sequence and head), to be kept where the ledger's host cannot change it."""
    from privfair.ledger import Ledger, LedgerAccess

    with Ledger.open(location, anchor, LedgerAccess.READ) as ledger:
        found = ledger.anchor()
    if as_json:
        print_json({"seq": found.head.seq, "head": found.head.hash, "ledger": found.ledger})
    else:
        click.echo(f"{found.head.seq} {found.head.hash}")


@command.command("trust")
@_location
@click.option("--trust", "trust_path", type=_FILE, required=True, help="Trust file that the ledger is to remember.")
@click.option("--root", type=_FILE, help="Public root key that signed the trust file, where it is signed.")
@json_option
def trust(location: str, anchor: Path | None, trust_path: Path, root: Path | None, as_json: bool) -> None:
    """Let the ledger remember a trust file now, not at the next run: earlier ones are refused from then on.

    The handover of `privfair keys rotate-root` is shown to a ledger in this way.
    """
    from privfair.ledger import Ledger
    from privfair.training import TrustInForce

    seen = TrustInForce(trust_path, root).seen
    with Ledger.open(location, anchor) as ledger:
        ledger.remember_trust(seen)
    if as_json:
        print_json({"ledger": location, "sequence": seen.sequence, "root": seen.root, "successor": seen.successor})
    else:
        click.echo(f"{location}: remembers trust file {seen.sequence}; earlier ones are refused")


@command.command("adopt")
@click.argument("location", metavar="LEDGER")
@click.option("--anchor", type=_FILE, required=True, help="The new anchor file to write.")
@click.option("--seq", type=click.IntRange(min=1), required=True, help="Number of an entry that the ledger had.")
@click.option("--head", required=True, help="Digest of that entry, noted elsewhere than in the ledger.")
@json_option
def adopt(location: str, anchor: Path, seq: int, head: str, as_json: bool) -> None:
    """Give an existing ledger a new anchor file, given an end it is known to have had.

    Number and digest must come from elsewhere: another host's anchor, a signed report, the officer's notes.
    """
    from privfair.ledger import Head, Ledger

    with Ledger.adopt(location, anchor, Head(seq, head)) as ledger:
        found = ledger.anchor()
    if as_json:
        print_json({"seq": found.head.seq, "head": found.head.hash, "ledger": found.ledger, "anchor": str(anchor)})
    else:
        click.echo(f"{anchor} is now the anchor of ledger {found.ledger[:16]}, at entry {found.head.seq}")


@command.command("backup")
@_location
@click.option("--out", type=_FILE, required=True, help="New file for the copy.")
@json_option
def backup(location: str, anchor: Path | None, out: Path, as_json: bool) -> None:
    """Copy every entry to a new file, on whichever database the ledger is."""
    from privfair.ledger import Ledger, LedgerAccess

    with Ledger.open(location, anchor, LedgerAccess.READ) as ledger:
        found = ledger.backup(out)
    if as_json:
        print_json({"backup": str(out), "seq": found.head.seq, "head": found.head.hash, "ledger": found.ledger})
    else:
        click.echo(f"{out} holds {found.head.seq} entries, head {found.head.hash}")


@command.command("restore")
@click.argument("backup", type=_FILE)
@_location
@json_option
def restore(backup: Path, location: str, anchor: Path | None, as_json: bool) -> None:
    """Make a ledger of a BACKUP, at a place that has none, and say what that costs.

    Nothing is lost if the anchor file is still there and shows that the backup is complete. Otherwise nobody knows
    what was claimed afterwards: the ledger gets a new identity, open runs are over, and every budget counts as spent.
    """
    from privfair.ledger import Ledger
    from privfair.ledger.ledger import read_backup

    before = read_backup(backup)[1].ledger
    with Ledger.restore(backup, location, anchor) as ledger:
        found = ledger.status()
    lost = found.ledger != before
    if as_json:
        print_json(_status_json(location, found) | {"complete": not lost})
        return
    click.echo(f"{location}: {found.entries} entries are back")
    if lost:
        click.echo(
            "Entries after the backup are lost, so:\n"
            f"- the ledger is now {found.ledger}; manifests signed for {before[:16]} are refused\n"
            "- runs that were open can't go on; their rounds stay spent\n"
            "- every budget counts as spent, because lost claims may have used it\n"
            "Have new manifests signed for the new identity."
        )
    else:
        click.echo("The anchor shows that the backup is complete: nothing is lost.")


@command.command("abandon")
@_location
@click.option("--manifest", required=True, help="Digest of the claimed manifest, or how it begins.")
@click.option("--why", required=True, help="Reason, which stays on record.")
@json_option
def abandon(location: str, anchor: Path | None, manifest: str, why: str, as_json: bool) -> None:
    """Give a run up: it can't be resumed, and the rounds it charged stay spent."""
    from calibrate.errors import InvalidInput
    from privfair.ledger import Ledger

    with Ledger.open(location, anchor) as ledger:
        known = [one.manifest_digest for one in ledger.status().manifests]
        meant = [digest for digest in known if manifest and digest.startswith(manifest)]
        if len(meant) != 1:
            raise InvalidInput(
                "--manifest", manifest, f"fits {len(meant)} claims", "give the digest that `ledger status` shows"
            )
        found = ledger.abandon(meant[0], why)
    if as_json:
        print_json({"manifest": meant[0], "rounds_charged": found.charged, "state": found.state.value})
    else:
        click.echo(f"manifest {meant[0][:12]} is abandoned; {found.charged} of its {found.rounds} rounds stay spent")


@command.group("budget", cls=Subcommands, short_help="cap what all claims on a data set may promise together")
def budget() -> None:
    """Cap what all claims on a data set may promise together."""


@budget.command("set")
@click.argument("dataset", metavar="DATASET")
@click.option("--ledger", "location", required=True, metavar="LEDGER", help="Ledger that keeps the budget.")
@_anchor_option
@click.option(
    "--unit", type=click.Choice(["record", "user", "attribute"]), required=True, help="Unit that the budget protects."
)
@click.option(
    "--relation",
    type=click.Choice(["add-remove", "replace-one"]),
    default="add-remove",
    show_default=True,
    help="How neighbouring data sets differ, for a record or a user.",
)
@click.option("--epsilon", type=float, required=True, help="Largest total epsilon.")
@click.option("--delta", type=float, required=True, help="Largest total delta.")
@click.option(
    "--filter",
    "filter_by",
    type=click.Choice(["smaller", "basic", "renyi"]),
    default="smaller",
    show_default=True,
    help="Proof that keeps the total: basic composition, a Renyi filter, or the one that lets the first claim be "
    "repeated more often.",
)
@json_option
def set_budget(
    dataset: str,
    location: str,
    anchor: Path | None,
    unit: str,
    relation: str,
    epsilon: float,
    delta: float,
    filter_by: str,
    as_json: bool,
) -> None:
    """Set the total for a DATASET, named as its manifests declare it; it is set once and never raised.

    A claim about a coarser unit (user, record) also spends the budgets of finer ones (record, attribute).
    """
    from calibrate.compose import BudgetFilter
    from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
    from privfair.ledger import Ledger

    meant = "replace-attribute" if unit == "attribute" else relation
    with Ledger.open(location, anchor) as ledger:
        protected = PrivacyUnit(Protected(unit), Relation(meant))
        ledger.set_budget(dataset, protected, epsilon, delta, BudgetFilter(filter_by))
        found = [one for one in ledger.status().budgets if one.dataset == dataset]
    if as_json:
        print_json([asdict(one) | {"left": one.left} for one in found])
    else:
        for one in found:
            print_wrapped(*_spent_lines(one), indent="    ")


command.add_command(witness)

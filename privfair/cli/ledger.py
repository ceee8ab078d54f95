"""A ledger: what was claimed, charged and released, and a log of claims that others can read."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from calibrate.compose import BudgetFilter
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from privfair.cli.help import Subcommands
from privfair.cli.options import FILE, anchor_option, json_option, options, required_trust_options
from privfair.cli.output import print_json, print_wrapped
from privfair.durable import read_named, write_named
from privfair.ledger import DataBudgetStatus, Head, Ledger, LedgerAccess, LedgerStatus, ManifestStatus
from privfair.ledger.book import short
from privfair.ledger.ledger import read_backup
from privfair.ledger.status import unit_in_words
from privfair.ledger.witness import (
    ClaimReceipt,
    LogHead,
    LogProof,
    NotedHeads,
    WitnessLog,
    contains_head,
    hashed,
    head_of,
    second_uses,
)

_PLACE = click.Path(path_type=Path)
_log = click.argument("place", metavar="LOG", type=_PLACE)
_note = click.option(
    "--note", type=FILE, help="File that remembers the log's head; LEDGER.witness beside a file unless given."
)
_manifest = click.option("--manifest", help="Digest of a claimed manifest, or how it begins: proves that it is logged.")


@click.group("witness", cls=Subcommands, short_help="log claims where others see a second use")
def witness_command() -> None:
    """Log claims to a shared LOG: a file, or a folder with one file per ledger.

    The log is a Merkle tree (RFC 6962) that only grows. It holds digests and dates, no data. A budget that was claimed
    a second time, on another machine or in a copy of a ledger, is seen when logs are verified or compared: exit code 1.
    """


def _notes(location: str, note: Path | None) -> NotedHeads:

    if note is None and "://" in location:
        raise InvalidInput("--note", None, "a ledger on a server has no file beside it", "name a file, kept for good")
    return NotedHeads(Path(f"{location}.witness") if note is None else note)


def _finish(place: Path, answer: dict[str, object], wrong: list[str], as_json: bool, well: str) -> None:
    if as_json:
        print_json({"log": str(place), **answer, "problems": wrong})
    else:
        for problem in wrong:
            click.echo(f"SECOND USE OR CHANGED LOG: {problem}")
        if not wrong:
            click.echo(well)
    if wrong:
        raise SystemExit(1)


@witness_command.command("add")
@_log
@click.option("--ledger", "location", required=True, metavar="LEDGER", help="Ledger whose claims are logged.")
@anchor_option
@_note
@json_option
def add(place: Path, location: str, anchor: Path | None, note: Path | None, as_json: bool) -> None:
    """Log every claim of a ledger that LOG does not have yet, and remember the log's head."""
    notes = _notes(location, note)
    with Ledger.open(location, anchor, LedgerAccess.READ) as ledger:
        receipts, identity = ledger.receipts(), ledger.identity
    log = WitnessLog.at(place, identity)
    before = hashed(log.read())
    notes.require(log, before)
    leaves = hashed(log.append(receipts))
    _remember(notes, place)
    head = head_of(leaves)
    wrong = list(second_uses(_everything(place)))
    answer = {"size": head.size, "root": head.root, "added": len(leaves) - len(before)}
    _finish(place, answer, wrong, as_json, f"{len(leaves) - len(before)} claim(s) logged; head {head}")


def _remember(notes: NotedHeads, place: Path) -> None:
    """Hold every log at a place against what was noted of it, and note it as it is now."""
    for log in WitnessLog.all_at(place):
        leaves = hashed(log.read())
        notes.require(log, leaves)
        notes.note(log, leaves)


def _everything(place: Path) -> list[ClaimReceipt]:

    return [receipt for log in WitnessLog.all_at(place) for receipt in log.read()]


@witness_command.command("verify")
@_log
@click.option("--ledger", "location", metavar="LEDGER", help="Ledger whose claims must all be logged.")
@anchor_option
@_note
@click.option("--head", "heads", multiple=True, metavar="SIZE:ROOT", help="Head that the log is known to have had.")
@json_option
def witness_verify(
    place: Path, location: str | None, anchor: Path | None, note: Path | None, heads: tuple[str, ...], as_json: bool
) -> None:
    """Read LOG again: no second use, nothing taken out since a head was noted, and a ledger's claims all there."""
    logs = WitnessLog.all_at(place)
    trees = {log: hashed(log.read()) for log in logs}
    receipts = _everything(place)
    wrong = list(second_uses(receipts))
    for noted in map(LogHead.parse, heads):
        if not any(contains_head(leaves, noted) for leaves in trees.values()):
            wrong.append(f"no log here begins with the {noted.size} receipts of root {short(noted.root)}")
    if location is not None:
        _remember(_notes(location, note), place)
        with Ledger.open(location, anchor, LedgerAccess.READ) as ledger:
            missing = [one for one in ledger.receipts() if one not in set(receipts)]
        wrong += [f"the claim of manifest {short(one.manifest)} is not logged; add it" for one in missing]
    answer = {
        "logs": [{"file": str(log.path), **vars(head_of(leaves))} for log, leaves in trees.items()],
        "receipts": len(receipts),
    }
    well = "\n".join(
        f"{log.path}: intact, {len(leaves)} receipt(s), head {head_of(leaves)}" for log, leaves in trees.items()
    )
    _finish(place, answer, wrong, as_json, well)


@witness_command.command("compare")
@_log
@click.argument("others", nargs=-1, required=True, metavar="OTHER..", type=_PLACE)
@json_option
def compare(place: Path, others: tuple[Path, ...], as_json: bool) -> None:
    """Hold logs, or copies of one log, side by side: a budget that was used in two places is found.

    Copies of one log must be the beginning of one another: two files of the same name that are not were forked.
    """
    logs = [log for one in (place, *others) for log in WitnessLog.all_at(one)]
    wrong = list(second_uses(receipt for log in logs for receipt in log.read()))
    for number, log in enumerate(logs):
        for other in logs[number + 1 :]:
            if other.path.name == log.path.name:
                first, second = sorted((hashed(log.read()), hashed(other.read())), key=len)
                if second[: len(first)] != first:
                    wrong.append(f"{log.path} and {other.path} are two histories of one log")
    answer = {"others": [str(one) for one in others], "logs": len(logs)}
    _finish(place, answer, wrong, as_json, f"{len(logs)} logs agree: no budget was used twice in them")


@witness_command.command("prove")
@_log
@_manifest
@click.option("--since", metavar="SIZE:ROOT", help="Earlier head of the log: proves that nothing was changed since.")
@click.option("--out", type=FILE, required=True, help="New file for the proof.")
@json_option
def prove(place: Path, manifest: str | None, since: str | None, out: Path, as_json: bool) -> None:
    """Write a proof of some hundred bytes, for somebody who has a head of LOG and not the log."""
    if (manifest is None) == (since is None):
        raise InvalidInput("--manifest", manifest, "or --since must be given, and not both", "say what is to be proved")
    logs = WitnessLog.all_at(place)
    proof = LogProof.of_claim(logs, manifest) if manifest is not None else LogProof.of_growth(logs, str(since))
    write_named(out, proof.encode())
    if as_json:
        print_json({"log": str(place), "proof": str(out), "head": proof.head})
    else:
        click.echo(f"{out} holds for head {proof.head}")


@witness_command.command("check")
@click.argument("proof", metavar="PROOF", type=FILE)
@click.option("--head", required=True, metavar="SIZE:ROOT", help="Head of the log, from somebody you trust.")
@json_option
def check(proof: Path, head: str, as_json: bool) -> None:
    """Check a PROOF against a head, without the log."""
    given, found = LogHead.parse(head), LogProof.decode(read_named(proof, "PROOF"))
    wrong = [] if found.holds_for(given) else ["the proof does not lead to this head"]
    _finish(proof, {"head": head, "proves": found.statement}, wrong, as_json, f"proved: {found.statement}")


_location = options(click.argument("location", metavar="LEDGER"), anchor_option)
_BAR = 20


@click.group("ledger", cls=Subcommands, short_help="what was claimed, charged and released")
def ledger_command() -> None:
    """Make and read a ledger: a file path, or a URL postgresql+psycopg://... ."""


@ledger_command.command("init")
@_location
@click.option("--bound-only", is_flag=True, help="Refuse manifests that were signed for no ledger in particular.")
@json_option
def init(location: str, anchor: Path | None, bound_only: bool, as_json: bool) -> None:
    """Make a ledger with an identity of its own; no other command makes one.

    Sign budgets for this identity: every other ledger then refuses them.
    """
    with Ledger.create(location, anchor, bound_only=bound_only) as ledger:
        identity = ledger.identity
    if as_json:
        print_json({"ledger": location, "id": identity})
    else:
        click.echo(f"made ledger {identity} at {location}; keep its anchor on other storage if you can")


@ledger_command.command("status")
@_location
@json_option
def status(location: str, anchor: Path | None, as_json: bool) -> None:
    """What was spent and is left per data set and unit, and every manifest claimed."""
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
                "manifest": one.claim.manifest,
                "state": one.state.value,
                "rounds_signed": one.claim.rounds,
                "rounds_charged": one.charged,
                "rounds_released": one.released_rounds,
                "epsilon": one.claim.epsilon,
                "delta": one.claim.delta,
                "unit": one.claim.unit,
                "dataset": one.claim.dataset,
                "purpose": one.claim.purpose,
                "signers": list(one.claim.signers),
                "claimed_at": one.claim.at,
                "valid_until": one.claim.valid_until,
                "claimant": one.claim.claimant,
                "abandoned": one.abandoned,
                "bound": bool(one.claim.ledgers),
                "dataset_declared": one.dataset_declared,
            }
            for one in found.manifests
        ],
    }


def _spent_lines(budget: DataBudgetStatus) -> tuple[str, str]:

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

    claim = one.claim
    promise = "no privacy promised" if claim.epsilon is None else f"epsilon {claim.epsilon:g}, delta {claim.delta:g}"
    lines = [
        f"\nmanifest {claim.manifest[:12]}: {one.state.value}, claimed {claim.at}",
        f"  {promise} for {unit_in_words(claim.unit)}",
        f"  {one.charged} of {claim.rounds} rounds charged, {one.released_rounds} released; data set {claim.dataset}",
        f"  purpose: {claim.purpose or 'not said'}; signed by {', '.join(claim.signers) or 'nobody known'}",
    ]
    if one.abandoned is not None:
        lines.append(f"  abandoned: {one.abandoned}")
    if not claim.ledgers:
        lines.append("  signed for no ledger in particular: another ledger would take it too (`ledger witness` tells)")
    if not one.dataset_declared:
        lines.append("  its data set was not declared: with another size it counts as another data set")
    return "\n".join(lines)


@ledger_command.command("verify")
@_location
@json_option
def ledger_verify(location: str, anchor: Path | None, as_json: bool) -> None:
    """Read every entry again by all rules, and compare the end with the anchor."""
    with Ledger.open(location, anchor, LedgerAccess.READ) as ledger:
        entries, head = ledger.verify()
    if as_json:
        print_json({"ledger": location, "entries": entries, "head": head.hash, "intact": True})
    else:
        click.echo(f"intact: {entries} entries, head {head.hash}")


@ledger_command.command("anchor")
@_location
@json_option
def anchor(location: str, anchor: Path | None, as_json: bool) -> None:
    """Print the anchor (sequence and head), to be kept where the ledger's host cannot change it."""
    with Ledger.open(location, anchor, LedgerAccess.READ) as ledger:
        found = ledger.anchor()
    if as_json:
        print_json({"seq": found.head.seq, "head": found.head.hash, "ledger": found.ledger})
    else:
        click.echo(f"{found.head.seq} {found.head.hash}")


@ledger_command.command("trust")
@_location
@required_trust_options
@json_option
def trust(location: str, anchor: Path | None, trust_path: Path, root: Path | None, as_json: bool) -> None:
    """Let the ledger remember a trust file now, not at the next run: earlier ones are refused from then on.

    The handover of `privfair keys rotate-root` is shown to a ledger in this way.
    """
    from privfair.training import TrustInForce

    seen = TrustInForce(trust_path, root).seen
    with Ledger.open(location, anchor) as ledger:
        ledger.remember_trust(seen)
    if as_json:
        print_json({"ledger": location, "sequence": seen.sequence, "root": seen.root, "successor": seen.successor})
    else:
        click.echo(f"{location}: remembers trust file {seen.sequence}; earlier ones are refused")


@ledger_command.command("adopt")
@click.argument("location", metavar="LEDGER")
@click.option("--anchor", type=FILE, required=True, help="The new anchor file to write.")
@click.option("--seq", type=click.IntRange(min=1), required=True, help="Number of an entry that the ledger had.")
@click.option("--head", required=True, help="Digest of that entry, noted elsewhere than in the ledger.")
@json_option
def adopt(location: str, anchor: Path, seq: int, head: str, as_json: bool) -> None:
    """Give an existing ledger a new anchor file, given an end it is known to have had.

    Number and digest must come from elsewhere: another host's anchor, a signed report, the officer's notes.
    """
    with Ledger.adopt(location, anchor, Head(seq, head)) as ledger:
        found = ledger.anchor()
    if as_json:
        print_json({"seq": found.head.seq, "head": found.head.hash, "ledger": found.ledger, "anchor": str(anchor)})
    else:
        click.echo(f"{anchor} is now the anchor of ledger {found.ledger[:16]}, at entry {found.head.seq}")


@ledger_command.command("backup")
@_location
@click.option("--out", type=FILE, required=True, help="New file for the copy.")
@json_option
def backup(location: str, anchor: Path | None, out: Path, as_json: bool) -> None:
    """Copy every entry to a new file, on whichever database the ledger is."""
    with Ledger.open(location, anchor, LedgerAccess.READ) as ledger:
        found = ledger.backup(out)
    if as_json:
        print_json({"backup": str(out), "seq": found.head.seq, "head": found.head.hash, "ledger": found.ledger})
    else:
        click.echo(f"{out} holds {found.head.seq} entries, head {found.head.hash}")


@ledger_command.command("restore")
@click.argument("backup", type=FILE)
@_location
@json_option
def restore(backup: Path, location: str, anchor: Path | None, as_json: bool) -> None:
    """Make a ledger of a BACKUP, at a place that has none, and say what that costs.

    Nothing is lost if the anchor file is still there and shows that the backup is complete. Otherwise nobody knows
    what was claimed afterwards: the ledger gets a new identity, open runs are over, and every budget counts as spent.
    """
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


@ledger_command.command("abandon")
@_location
@click.option("--manifest", required=True, help="Digest of the claimed manifest, or how it begins.")
@click.option("--why", required=True, help="Reason, which stays on record.")
@json_option
def abandon(location: str, anchor: Path | None, manifest: str, why: str, as_json: bool) -> None:
    """Give a run up: it can't be resumed, and the rounds it charged stay spent."""
    with Ledger.open(location, anchor) as ledger:
        meant = [one for one in ledger.status().manifests if manifest and one.claim.manifest.startswith(manifest)]
        if len(meant) != 1:
            raise InvalidInput(
                "--manifest", manifest, f"fits {len(meant)} claims", "give the digest that `ledger status` shows"
            )
        end = ledger.abandon(digest := meant[0].claim.manifest, why)
    if as_json:
        print_json({"manifest": digest, "rounds_charged": end.charged, "state": end.state.value})
    else:
        click.echo(f"manifest {digest[:12]} is abandoned; {end.charged} of its {end.claim.rounds} rounds stay spent")


@ledger_command.group("budget", cls=Subcommands, short_help="cap what all claims on a data set may promise together")
def budget() -> None:
    """Cap what all claims on a data set may promise together."""


@budget.command("set")
@click.argument("dataset", metavar="DATASET")
@click.option("--ledger", "location", required=True, metavar="LEDGER", help="Ledger that keeps the budget.")
@anchor_option
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


ledger_command.add_command(witness_command)

"""A ledger: what was claimed, charged and released, and a log of claims that others can read."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from calibrate.compose import BudgetFilter
from calibrate.errors import InvalidInput
from calibrate.manifest.verify import read_unverified
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation
from calibrate.releases import Gaussian, Release
from calibrate.sampling import Poisson
from privfair.api.charge import DECLARED, SharedLedger
from privfair.cli.config import anchor_for, configured_ledger, fill_from_config, needed_ledger
from privfair.cli.options import FILE, Subcommands, asked
from privfair.cli.output import answer, print_json, print_wrapped
from privfair.durable import write_named
from privfair.ledger import DataBudgetStatus, Head, Ledger, LedgerAccess, LedgerStatus, ManifestStatus
from privfair.ledger.claim import unit_in_words
from privfair.ledger.entries import unit_text
from privfair.ledger.ledger import default_anchor, read_backup
from privfair.ledger.witness import LogProof, NotedHeads, WitnessLog, hashed, head_of, receipts_at, second_uses

_location = click.argument(
    "location", metavar="LEDGER", required=False, callback=fill_from_config("ledger", required=True)
)
_BAR = 20


def open_ledger(location: str, access: LedgerAccess = LedgerAccess.WRITE) -> Ledger:
    """The ledger at a place, with the anchor that the user's configuration names for it."""
    return Ledger.open(location, anchor_for(location), access)


def noted_heads(location: str) -> NotedHeads:
    """What a ledger remembers of logs: LEDGER.witness next to a file, ANCHOR.witness for a ledger on a server."""
    if "://" not in location:
        return NotedHeads(Path(f"{location}.witness"))
    anchor = anchor_for(location)
    if anchor is None:
        rule = "is on a server, so that nothing next to it can remember a log"
        raise InvalidInput("--ledger", None, rule, "name it with its `anchor` in your config.toml")
    return NotedHeads(anchor.with_name(f"{anchor.name}.witness"))


@click.group("ledger", cls=Subcommands, short_help="what was claimed, charged and released")
def ledger_command() -> None:
    """Make and read a ledger: a file path, or a URL postgresql+psycopg://... .

    Each command takes the ledger of your configuration where none is named.
    """


@ledger_command.command("init")
@_location
@click.option("--bound-only", is_flag=True, help="Refuse budgets that were signed for no ledger in particular.")
@click.option("--anchor", type=FILE, hidden=True, help="Anchor file [default: config, else LEDGER.anchor].")
def init(location: str, bound_only: bool, anchor: Path | None) -> None:
    """Make a ledger with a new identity; no other command makes one.

    Sign budgets for this identity: every other ledger then refuses them.
    """
    with Ledger.create(location, anchor or anchor_for(location), bound_only=bound_only) as ledger:
        identity = ledger.identity
    told = f"made ledger {identity} at {location}; keep its anchor on other storage if you can"
    answer({"ledger": location, "id": identity}, told)


@ledger_command.command("status")
@_location
@click.option("--anchor", is_flag=True, help="Print number and digest of the last entry alone, to be kept elsewhere.")
def status(location: str, anchor: bool) -> None:
    """What was spent and is left per data set and unit, and every budget claimed."""
    with open_ledger(location, LedgerAccess.READ) as ledger:
        if anchor:
            end = ledger.anchor()
            answer(
                {"kind": "anchor", "seq": end.head.seq, "head": end.head.hash, "ledger": end.ledger},
                f"{end.head.seq}:{end.head.hash}",
            )
            return
        found = ledger.status()
    if asked().as_json:
        print_json({"kind": "status", **_status_json(location, found)})
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
                "declared": one.claim.declared,
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
        f"  purpose: {claim.purpose or 'not stated'}; "
        + (claim.declared or f"signed by {', '.join(claim.signers) or 'no known key'}"),
    ]
    if one.abandoned is not None:
        lines.append(f"  abandoned: {one.abandoned}")
    if not claim.ledgers:
        lines.append("  signed for no ledger in particular: another ledger would take it too (`ledger publish` tells)")
    if not one.dataset_declared:
        lines.append("  its data set was not declared: with another size it is treated as another data set")
    return "\n".join(lines)


_unit = click.option(
    "--unit", type=click.Choice(["record", "user", "attribute"]), required=True, help="Unit that is protected."
)
_relation = click.option(
    "--relation",
    type=click.Choice(["add-remove", "replace-one"]),
    default="add-remove",
    show_default=True,
    help="How neighbouring data sets differ, for a record or a user.",
)


def _protected(unit: str, relation: str) -> PrivacyUnit:
    return PrivacyUnit(Protected(unit), Relation("replace-attribute" if unit == "attribute" else relation))


@ledger_command.command("limit")
@click.argument("dataset", metavar="DATASET")
@needed_ledger
@_unit
@_relation
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
def limit(dataset: str, ledger: str, unit: str, relation: str, epsilon: float, delta: float, filter_by: str) -> None:
    """Limit what all claims on a DATASET, named as its budgets declare it, may cost together; set once, never raised.

    A claim about a coarser unit (user, record) also spends the limits of finer ones (record, attribute).
    """
    with open_ledger(ledger) as opened:
        opened.set_budget(dataset, _protected(unit, relation), epsilon, delta, BudgetFilter(filter_by))
        found = [one for one in opened.status().budgets if one.dataset == dataset]
    if asked().as_json:
        print_json([asdict(one) | {"left": one.left} for one in found])
        return
    for one in found:
        print_wrapped(*_spent_lines(one), indent="    ")


@ledger_command.command("charge")
@click.argument("dataset", metavar="DATASET")
@needed_ledger
@click.option("--epsilon", type=float, help="Cost that the other tool states. Leave it out to describe the release.")
@click.option("--noise-multiplier", type=float, metavar="Z", help="Gaussian noise relative to the sensitivity.")
@click.option("--sampling-rate", type=float, metavar="Q", help="Poisson batches at this rate [default: all records].")
@click.option("--rounds", type=int, default=1, show_default=True, help="Number of rounds released.")
@click.option("--delta", type=float, default=0.0, show_default=True, help="Delta that goes with epsilon.")
@_unit
@_relation
@click.option("--why", default="", help="Purpose, for the record.")
def charge(
    dataset: str,
    ledger: str,
    epsilon: float | None,
    noise_multiplier: float | None,
    sampling_rate: float | None,
    rounds: int,
    delta: float,
    unit: str,
    relation: str,
    why: str,
) -> None:
    """Charge another tool's release to a DATASET that has a limit, before it is made; release only on exit code 0.

    The entry says "declared, not enforced": no gate checks what the other tool does.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise click.UsageError("give --epsilon, or --noise-multiplier to have it priced")
    release: Release | None = None
    if noise_multiplier is not None:
        once = Gaussian(noise_multiplier)
        release = (once if sampling_rate is None else once.sampled(Poisson(sampling_rate))) * rounds
    elif sampling_rate is not None or rounds != 1:
        raise click.UsageError("--sampling-rate and --rounds go with --noise-multiplier")
    protected = _protected(unit, relation)
    with SharedLedger(ledger, anchor_for(ledger)) as opened:
        paid = opened.charge(dataset, release=release, epsilon=epsilon, delta=delta, relation=protected, why=why)
    found: dict[str, object] = {"kind": "charged", "guarantee": DECLARED, "receipt": paid.receipt.model_dump()}
    found |= {"epsilon": paid.epsilon, "delta": delta, "unit": unit_text(paid.unit), "dataset": dataset}
    told = f"charged epsilon {paid.epsilon:g}, delta {delta:g} in entry {paid.receipt.seq} ({DECLARED})"
    totals = [asdict(one) | {"left": one.left} for one in paid.totals]
    answer(found | {"budgets": totals}, told, *(line for one in paid.totals for line in _spent_lines(one)))


@ledger_command.command("publish")
@click.argument("place", metavar="LOG", type=click.Path(path_type=Path))
@configured_ledger
@click.option(
    "--proof",
    "proofs",
    multiple=True,
    metavar="WHAT=FILE",
    help="Write a proof of some hundred bytes that a claim (the digest of its budget) or an earlier head (SIZE:ROOT) "
    "is in LOG.",
)
def publish(place: Path, ledger: str | None, proofs: tuple[str, ...]) -> None:
    """Add every claim of a ledger to a shared LOG: a file, or a folder with one file per ledger.

    The log is a Merkle tree (RFC 6962) that only grows. It holds digests and dates, no data. `privfair verify LOG`
    finds a budget that was claimed a second time, on another machine or in a copy of a ledger.
    """
    if ledger is None and not proofs:
        raise click.UsageError("--ledger is needed: give it, or write `ledger = ...` in your config.toml")
    added, log = (0, WitnessLog.all_at(place)[0]) if ledger is None else _publish(place, ledger)
    logs = WitnessLog.all_at(place)
    for text in proofs:
        what, equals, file = text.partition("=")
        if not equals:
            raise click.UsageError(f"--proof {text}: write WHAT=FILE, for example --proof 3f9a12c0=proof.json")
        proof = LogProof.of_growth(logs, what) if ":" in what else LogProof.of_claim(logs, what)
        write_named(Path(file), proof.encode())
    head, wrong = head_of(hashed(log.read())), list(second_uses(receipts_at(place)))
    document = {"log": str(place), "size": head.size, "root": head.root, "added": added, "problems": wrong}
    answer(document, *(f"SECOND USE: {one}" for one in wrong), f"{added} claim(s) added; head {head}")
    if wrong:
        raise SystemExit(3)


def _publish(place: Path, location: str) -> tuple[int, WitnessLog]:
    """Add what the ledger's log does not have yet, and remember the heads of all logs at the place."""
    notes = noted_heads(location)
    with open_ledger(location, LedgerAccess.READ) as ledger:
        receipts, identity = ledger.receipts(), ledger.identity
    log = WitnessLog.at(place, identity)
    before = hashed(log.read())
    notes.require(log, before)
    number = len(log.append(receipts)) - len(before)
    notes.remember(place)
    return number, log


@ledger_command.command("backup")
@_location
@click.option("--out", type=FILE, required=True, help="New file for the copy.")
def backup(location: str, out: Path) -> None:
    """Copy every entry to a new file, on whichever database the ledger is."""
    with open_ledger(location, LedgerAccess.READ) as ledger:
        found = ledger.backup(out)
    answer(
        {"backup": str(out), "seq": found.head.seq, "head": found.head.hash, "ledger": found.ledger},
        f"{out} holds {found.head.seq} entries, head {found.head.hash}",
    )


@ledger_command.command("restore")
@click.argument("backup", type=FILE, required=False)
@click.argument("location", metavar="LEDGER", required=False, callback=fill_from_config("ledger"))
@click.option("--head", metavar="SEQ:DIGEST", help="An end that the ledger had, to make its lost anchor again.")
@click.pass_context
def restore(ctx: click.Context, backup: Path | None, location: str | None, head: str | None) -> None:
    """Make a ledger of a BACKUP, at a place that has none, and say what that costs.

    Nothing is lost if the anchor file is still there and shows that the backup is complete. Otherwise later claims are
    unknown: the ledger gets a new identity, open runs end, and every budget is treated as spent.

    \b
    An existing ledger whose anchor file is lost gets a new one, given number
    and digest of an entry from elsewhere: another host's anchor, the officer's
    notes, `ledger status --anchor`.
      privfair ledger restore LEDGER --head 12:DIGEST
    """
    if head is not None and (backup or location):
        _make_anchor(str(backup or location), head)
        return
    if backup is None or location is None:
        raise click.UsageError("name BACKUP and LEDGER, or LEDGER and --head SEQ:DIGEST if its anchor is lost", ctx)
    before = read_backup(backup)[1].ledger
    with Ledger.restore(backup, location, anchor_for(location)) as ledger:
        found = ledger.status()
    lost = found.ledger != before
    if asked().as_json:
        print_json({"kind": "restored", **_status_json(location, found), "complete": not lost})
        return
    click.echo(f"{location}: {found.entries} entries are back")
    if lost:
        click.echo(
            "Entries after the backup are lost, so:\n"
            f"- the ledger is now {found.ledger}; manifests signed for {before[:16]} are refused\n"
            "- runs that were open can't be resumed; their rounds stay spent\n"
            "- every budget is treated as spent, because lost claims may have used it\n"
            "Have new manifests signed for the new identity."
        )
    else:
        click.echo("The anchor shows that the backup is complete: nothing is lost.")


def _make_anchor(location: str, head: str) -> None:
    seq, colon, digest = head.partition(":")
    if not (colon and seq.isascii() and seq.isdecimal() and int(seq)):
        raise click.UsageError("--head must be SEQ:DIGEST, as `privfair ledger status --anchor` prints it")
    place = anchor_for(location) or default_anchor(location, LedgerAccess.WRITE)
    assert place is not None
    with Ledger.adopt(location, place, Head(int(seq), digest)) as ledger:
        found = ledger.anchor()
    document = {"kind": "anchor", "seq": found.head.seq, "head": found.head.hash, "ledger": found.ledger}
    told = f"{place} is now the anchor of ledger {found.ledger[:16]}, at entry {found.head.seq}"
    answer(document | {"anchor": str(place)}, told)


@ledger_command.command("abandon")
@_location
@click.option("--run", "claimed", required=True, metavar="RUN|DIGEST", help="Run folder, or digest of its budget.")
@click.option("--why", required=True, help="Reason, which stays on record.")
def abandon(location: str, claimed: str, why: str) -> None:
    """Give a run up: it can't be resumed, and the rounds it charged stay spent."""
    signed = Path(claimed, "budget.json")
    if claimed and signed.is_file():
        claimed = read_unverified(signed.read_bytes()).digest
    with open_ledger(location) as ledger:
        known = [one.claim.manifest for one in ledger.status().manifests]
        meant = [digest for digest in known if claimed and digest.startswith(claimed)]
        if len(meant) != 1:
            remedy = "give the run folder, or the digest that `ledger status` shows"
            raise InvalidInput("--run", claimed, f"fits {len(meant)} claims", remedy)
        found = ledger.abandon(meant[0], why)
    answer(
        {"manifest": meant[0], "rounds_charged": found.charged, "state": found.state.value},
        f"manifest {meant[0][:12]} is abandoned; {found.charged} of its {found.claim.rounds} rounds stay spent",
    )

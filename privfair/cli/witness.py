"""`privfair ledger witness`: claims in a log that others can read, so that a second use is seen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfair.cli.help import Subcommands
from privfair.cli.output import json_option, print_json

if TYPE_CHECKING:
    from privfair.ledger.witness import ClaimReceipt, NotedHeads

_PLACE = click.Path(path_type=Path)
_FILE = click.Path(path_type=Path, dir_okay=False)
_log = click.argument("place", metavar="LOG", type=_PLACE)
_anchor = click.option("--anchor", type=_FILE, help="Anchor file; LEDGER.anchor beside a file unless given.")
_note = click.option(
    "--note", type=_FILE, help="File that remembers the log's head; LEDGER.witness beside a file unless given."
)
_manifest = click.option("--manifest", help="Digest of a claimed manifest, or how it begins: proves that it is logged.")


@click.group("witness", cls=Subcommands, short_help="log claims where others see a second use")
def command() -> None:
    """Log claims to a shared LOG: a file, or a folder with one file per ledger.

    The log is a Merkle tree (RFC 6962) that only grows. It holds digests and dates, no data. A budget that was claimed
    a second time, on another machine or in a copy of a ledger, is seen when logs are verified or compared: exit code 1.
    """


def _notes(location: str, note: Path | None) -> NotedHeads:
    from calibrate.errors import InvalidInput
    from privfair.ledger.witness import NotedHeads

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


@command.command("add")
@_log
@click.option("--ledger", "location", required=True, metavar="LEDGER", help="Ledger whose claims are logged.")
@_anchor
@_note
@json_option
def add(place: Path, location: str, anchor: Path | None, note: Path | None, as_json: bool) -> None:
    """Log every claim of a ledger that LOG does not have yet, and remember the log's head."""
    from privfair.ledger import Ledger, LedgerAccess
    from privfair.ledger.witness import WitnessLog, hashed, head_of, second_uses

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
    from privfair.ledger.witness import WitnessLog, hashed

    for log in WitnessLog.all_at(place):
        leaves = hashed(log.read())
        notes.require(log, leaves)
        notes.note(log, leaves)


def _everything(place: Path) -> list[ClaimReceipt]:
    from privfair.ledger.witness import WitnessLog

    return [receipt for log in WitnessLog.all_at(place) for receipt in log.read()]


@command.command("verify")
@_log
@click.option("--ledger", "location", metavar="LEDGER", help="Ledger whose claims must all be logged.")
@_anchor
@_note
@click.option("--head", "heads", multiple=True, metavar="SIZE:ROOT", help="Head that the log is known to have had.")
@json_option
def verify(
    place: Path, location: str | None, anchor: Path | None, note: Path | None, heads: tuple[str, ...], as_json: bool
) -> None:
    """Read LOG again: no second use, nothing taken out since a head was noted, and a ledger's claims all there."""
    from privfair.ledger import Ledger, LedgerAccess
    from privfair.ledger.book import short
    from privfair.ledger.witness import LogHead, WitnessLog, contains_head, hashed, head_of, second_uses

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


@command.command("compare")
@_log
@click.argument("others", nargs=-1, required=True, metavar="OTHER..", type=_PLACE)
@json_option
def compare(place: Path, others: tuple[Path, ...], as_json: bool) -> None:
    """Hold logs, or copies of one log, side by side: a budget that was used in two places is found.

    Copies of one log must be the beginning of one another: two files of the same name that are not were forked.
    """
    from privfair.ledger.witness import WitnessLog, hashed, second_uses

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


@command.command("prove")
@_log
@_manifest
@click.option("--since", metavar="SIZE:ROOT", help="Earlier head of the log: proves that nothing was changed since.")
@click.option("--out", type=_FILE, required=True, help="New file for the proof.")
@json_option
def prove(place: Path, manifest: str | None, since: str | None, out: Path, as_json: bool) -> None:
    """Write a proof of some hundred bytes, for somebody who has a head of LOG and not the log."""
    from calibrate.errors import InvalidInput
    from privfair.durable import write_named
    from privfair.ledger.witness import LogProof, WitnessLog

    if (manifest is None) == (since is None):
        raise InvalidInput("--manifest", manifest, "or --since must be given, and not both", "say what is to be proved")
    logs = WitnessLog.all_at(place)
    proof = LogProof.of_claim(logs, manifest) if manifest is not None else LogProof.of_growth(logs, str(since))
    write_named(out, proof.encode())
    if as_json:
        print_json({"log": str(place), "proof": str(out), "head": proof.head})
    else:
        click.echo(f"{out} holds for head {proof.head}")


@command.command("check")
@click.argument("proof", metavar="PROOF", type=_FILE)
@click.option("--head", required=True, metavar="SIZE:ROOT", help="Head of the log, from somebody you trust.")
@json_option
def check(proof: Path, head: str, as_json: bool) -> None:
    """Check a PROOF against a head, without the log."""
    from privfair.durable import read_named
    from privfair.ledger.witness import LogHead, LogProof

    given, found = LogHead.parse(head), LogProof.decode(read_named(proof, "PROOF"))
    wrong = [] if found.holds_for(given) else ["the proof does not lead to this head"]
    _finish(proof, {"head": head, "proves": found.statement}, wrong, as_json, f"proved: {found.statement}")

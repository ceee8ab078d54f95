"""`privfair verify FILE`: is this file genuine and whole? What kind of file it is shows in its content."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import click

from calibrate.errors import Refused
from calibrate.manifest.keys import BrokenEnvelope, open_envelope
from calibrate.manifest.strict_json import NotStrictJson, parse, parse_object
from calibrate.manifest.verify import authenticate
from privfair.cli.audit_result import require_run, require_same_report, subjects_of
from privfair.cli.config import configured_trust, needed_trust, read_trust_file
from privfair.cli.ledger import noted_heads, open_ledger
from privfair.cli.options import FILE, Subcommands, asked
from privfair.cli.output import answer, print_json, print_wrapped
from privfair.durable import LARGEST_FILE, read_named
from privfair.ledger import LedgerAccess
from privfair.ledger.book import short
from privfair.ledger.witness import (
    LogHead,
    LogProof,
    WitnessLog,
    contains_head,
    forks,
    hashed,
    head_of,
    receipts_at,
    second_uses,
)


class Kind(Enum):
    """What can be verified."""

    BUDGET = "budget"
    AUDIT = "audit"
    LEDGER = "ledger"
    LOG = "log"
    PROOF = "proof"


_OPTIONS = {
    Kind.BUDGET: ("trust", "recompute"),
    Kind.AUDIT: ("trust", "run", "report", "require"),
    Kind.LEDGER: ("log",),
    Kind.LOG: ("log",),
    Kind.PROOF: ("log",),
}
"""By kind the options that it has a use for; --trust may come from the configuration and disturbs no kind."""


def kind_of(place: str, damaged: Kind) -> Kind:
    """What is at a place, by its content; `damaged` for a signed file whose payload cannot be read.

    `Refused` where it is none of these, or too damaged to tell.
    """
    path = Path(place)
    if "://" in place:
        return Kind.LEDGER
    if path.is_dir() or path.suffix == ".log":
        return Kind.LOG
    content = read_named(path, "FILE", most=LARGEST_FILE)
    if content.startswith(b"SQLite format 3\0"):
        return Kind.LEDGER
    if b'"payload"' in content:
        return _kind_signed(content, damaged)
    for text, kind in ((content, Kind.PROOF), (content.partition(b"\n")[0], Kind.LOG)):
        try:
            keys = parse_object(text).keys()
        except NotStrictJson:
            continue
        if {Kind.PROOF: {"head", "path"}, Kind.LOG: {"claim", "manifest", "seq"}}[kind] <= keys:
            return kind
    raise Refused(f"{place} is no budget, audit statement, ledger, log or proof, or it is damaged; check the path")


def _kind_signed(content: bytes, damaged: Kind) -> Kind:
    """An audit statement names its type; anything else that is signed must be a budget, whose steps list mistakes."""
    try:
        statement = parse(open_envelope(content).payload)
    except (BrokenEnvelope, NotStrictJson):
        return damaged
    named = str(statement.get("predicateType")) if isinstance(statement, Mapping) else ""
    return Kind.AUDIT if named.startswith("urn:privfair:audit:") else Kind.BUDGET


@click.command("verify", short_help="check a budget, audit, ledger, log or proof")
@click.argument("file")
@configured_trust
@click.option("--recompute", is_flag=True, help="Of a budget: price the signed event again with two accountants.")
@click.option("--run", type=click.Path(path_type=Path), help="Of an audit: run folder or model file it is about.")
@click.option("--report", type=FILE, help="Of an audit: JSON report that the statement was signed for.")
@click.option(
    "--require",
    type=click.Choice(["consistent", "not-violated"]),
    help="Of an audit: verdict that it must have; exit code 1 otherwise.",
)
@click.option(
    "--log",
    "logs",
    multiple=True,
    metavar="LOG|SIZE:ROOT",
    help="Of a ledger, log or proof: a log, a copy of it, or a head that it had.",
)
def verify_command(
    file: str,
    trust_path: Path | None,
    recompute: bool,
    run: Path | None,
    report: Path | None,
    require: str | None,
    logs: tuple[str, ...],
) -> None:
    """Check signature, chain or log of FILE; exit code 3 if it cannot be believed.

    \b
    FILE is                and what is checked
      a budget             signatures, roles, validity, meaning
      an audit statement   the auditor's signature, and that it is about --run
      a ledger             every entry by all rules, and the end by its anchor;
                           with --log that the log has all its claims
      a log of claims      no second use, nothing taken out; with --log that it
                           agrees with other logs, copies and known heads
      a proof              that it leads to the head --log

    \b
    Examples:
      privfair verify budget.json --trust trust.json
      privfair verify audit.signed.json --trust auditors.json --run run/
      privfair verify ledger.db --log witness.log
    """
    kind = kind_of(file, Kind.AUDIT if run or report or require else Kind.BUDGET)
    given = {"recompute": recompute, "run": run, "report": report, "require": require, "log": logs}
    for name, value in given.items():
        if value and name not in _OPTIONS[kind]:
            raise click.UsageError(f"--{name} has no use here: what {file} holds is: {kind.value}")
    match kind:
        case Kind.BUDGET:
            document, text = _verify_budget(Path(file), _needed(trust_path), recompute)
            answer({**document, "guarantee": document["kind"], "kind": kind.value}, *text)
        case Kind.AUDIT:
            _verify_audit(Path(file), _needed(trust_path), run, report, require)
        case Kind.LEDGER:
            _verify_ledger(file, logs)
        case Kind.LOG:
            _verify_log(Path(file), logs)
        case Kind.PROOF:
            _verify_proof(Path(file), logs)


def _needed(trust_path: Path | None) -> Path:
    if trust_path is None:
        raise click.UsageError("--trust is needed: give it, or write `trust = ...` in your config.toml")
    return trust_path


def _verify_budget(file: Path, trust_path: Path, recompute: bool) -> tuple[dict[str, object], tuple[str, ...]]:
    manifest = authenticate(read_named(file, "FILE"), read_trust_file(trust_path))
    if recompute:
        from calibrate.manifest.issue import recompute as price_again  # loads the accountants

        price_again(manifest.document)
    document: dict[str, object] = {
        "verified": True,
        "digest": manifest.digest,
        "signed_by": [{"role": s.role.value, "key_id": s.key_id} for s in manifest.signatures],
        "algorithm": manifest.document.algorithm,
        "kind": manifest.document.guarantee.kind,
        "rounds": manifest.document.rounds,
        "recomputed": recompute,
    }
    roles = ", ".join(signature.role.value for signature in manifest.signatures)
    priced = "; its price was computed again and holds" if recompute else ""
    return document, (f"{file}: verified, signed by {roles}{priced}", f"digest {manifest.digest}")


@click.group("manifest", cls=Subcommands, hidden=True)
def manifest_command() -> None:
    """Former spelling of `privfair budget sign` and `privfair verify`, whose documents other programs read."""


@manifest_command.command("verify")
@click.argument("file", type=FILE)
@needed_trust
@click.option("--recompute", is_flag=True, help="Price the signed event again with two accountants.")
def verify_manifest(file: Path, trust_path: Path, recompute: bool) -> None:
    """Check a budget; `kind` in the document is the kind of its guarantee."""
    document, text = _verify_budget(file, trust_path, recompute)
    answer(document, *text)


def _verify_audit(
    statement: Path, trust_path: Path, subject: Path | None, report: Path | None, require: str | None
) -> None:
    if subject is None:
        raise click.UsageError(f"{statement} is an audit: name the run or model that it must be about with --run PATH")
    if subject.is_dir():
        require_run(subject)
    from audit.report.statement import verify_audit  # loads the reports

    found = verify_audit(read_named(statement, "FILE"), read_trust_file(trust_path), subjects_of(subject))
    if report is not None:
        require_same_report(found.predicate.report_digest, report)
    if asked().as_json:
        print_json(
            {
                "kind": Kind.AUDIT.value,
                "verified": True,
                "auditor": found.auditor.key_id,
                "subjects": dict(found.subjects),
                "predicate": found.predicate.to_json(),
            }
        )
    else:
        told = found.predicate
        click.echo(f"{statement}: signed by auditor {found.auditor.key_id}, {told.audited_at:%Y-%m-%d %H:%M} UTC")
        click.echo(f"{told.verdict.upper()}: {told.why}")
        if told.epsilon_lower is not None:
            click.echo(f"epsilon is at least {told.epsilon_lower:.4g} with {100 * (1 - told.alpha):g}% confidence")
    verdict = found.predicate.verdict
    if (require == "consistent" and verdict != "consistent") or (require == "not-violated" and verdict == "violated"):
        sys.exit(1)


def _verify_ledger(location: str, logs: tuple[str, ...]) -> None:
    """Read every entry again by all rules, and compare the end with the anchor, and the claims with the logs."""
    with open_ledger(location, LedgerAccess.READ) as ledger:
        entries, head = ledger.verify()
        claims = ledger.receipts() if logs else ()
    wrong: list[str] = []
    for place in map(Path, logs):
        noted_heads(location).remember(place)
        logged = receipts_at(place)
        wrong += second_uses(logged)
        missing = [one for one in claims if one not in set(logged)]
        wrong += [f"the claim of manifest {short(one.manifest)} is not in {place}; publish it" for one in missing]
    document = {"ledger": location, "entries": entries, "head": head.hash, "intact": True}
    _conclude(Kind.LEDGER, document, wrong, f"intact: {entries} entries, head {head.hash}")


def _verify_log(place: Path, others: tuple[str, ...]) -> None:
    """No second use in the log and the others, no fork of a log, and every known head is one that a log had."""
    heads = [LogHead.parse(text) for text in others if ":" in text]
    copies = [Path(text) for text in others if ":" not in text]
    logs = [log for one in (place, *copies) for log in WitnessLog.all_at(one)]
    trees = {log: hashed(log.read()) for log in WitnessLog.all_at(place)}
    receipts = [receipt for log in logs for receipt in log.read()]
    wrong = [*second_uses(receipts), *forks(logs)]
    for noted in heads:
        if not any(contains_head(leaves, noted) for leaves in trees.values()):
            wrong.append(f"no log here begins with the {noted.size} receipts of root {short(noted.root)}")
    document = {
        "log": str(place),
        "logs": [{"file": str(log.path), **vars(head_of(leaves))} for log, leaves in trees.items()],
        "others": [str(one) for one in copies],
        "receipts": len(receipts),
    }
    well = [f"{log.path}: intact, {len(leaves)} receipt(s), head {head_of(leaves)}" for log, leaves in trees.items()]
    _conclude(Kind.LOG, document, wrong, *well)


def _verify_proof(proof: Path, logs: tuple[str, ...]) -> None:
    """Check a proof by a head from someone the user trusts, or by the log itself."""
    found = LogProof.decode(read_named(proof, "FILE"))
    if len(logs) != 1:
        raise click.UsageError(f"{proof} is a proof: give the one log or head that it must lead to with --log")
    head = LogHead.parse(logs[0] if ":" in logs[0] else found.head)
    wrong = [] if found.holds_for(head) else ["the proof does not lead to this head"]
    if ":" not in logs[0] and not any(
        contains_head(hashed(log.read()), head) for log in WitnessLog.all_at(Path(logs[0]))
    ):
        wrong.append(f"{logs[0]} never had the head of the proof")
    document = {"log": str(proof), "head": str(head), "proves": found.statement}
    _conclude(Kind.PROOF, document, wrong, f"proved: {found.statement}")


def _conclude(kind: Kind, document: Mapping[str, object], wrong: list[str], *well: str) -> None:
    if asked().as_json:
        print_json({"kind": kind.value, **document, "problems": wrong})
    else:
        print_wrapped(*(f"SECOND USE OR CHANGED LOG: {problem}" for problem in wrong))
        print_wrapped(*(well if not wrong else ()))
    if wrong:
        sys.exit(Refused.exit_code)

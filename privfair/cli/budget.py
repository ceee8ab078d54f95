"""A budget on its way: requested, signed or declined, and shown."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Unpack

import click

from calibrate.compose import compose, compose_beforehand
from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument, Issuer, plan_digest
from calibrate.manifest.issue import (
    BudgetDraft,
    BudgetRequest,
    Declined,
    add_signature,
    answer_path,
    answers_no,
    decline_request,
    read_declined,
    read_request,
    request_bytes,
    sign_request,
)
from calibrate.manifest.keys import load_private
from calibrate.manifest.mechanism import instant_to_text
from calibrate.manifest.show import changes, meaning_of, plain_words, protected_text, render
from calibrate.manifest.strict_json import digest_of_bytes
from calibrate.manifest.verify import authenticate, read_unverified
from calibrate.meaning import Meaning
from calibrate.privacy_unit import EpsilonDelta
from privfair.cli.calibrate import IssuerFlags, days_option, issuer_from_flags
from privfair.cli.config import ask_password, configured, configured_trust, read_trust_file
from privfair.cli.options import FILE, Subcommands, asked
from privfair.cli.output import answer, print_json, print_wrapped
from privfair.cli.verify import manifest_command
from privfair.durable import read_named, write_named
from privfair.ledger import Ledger, LedgerAccess, LedgerStatus
from privfair.ledger.entries import claimant_here
from privfair.plan.plan import Plan, Promise, Unprotected

if TYPE_CHECKING:
    from privfair.api.draft import Compared


@click.group("budget", cls=Subcommands, short_help="request, sign, show")
def budget_command() -> None:
    """A budget says what may be published, with how much noise, for how many rounds, on which data.

    \b
    Example, the engineer and then the officer:
      privfair budget request plan.toml --why "readmission model for ward 7"
      privfair budget sign request.json --key officer.pem --out budget.json
    """


def print_lines(lines: Iterable[str]) -> None:
    """Sentences at 80 columns, for reading."""
    for line in lines:
        click.echo(textwrap.fill(line, 80, subsequent_indent="  ", break_long_words=False))


def drafting() -> ModuleType:
    """The module that writes budgets; it loads the engine."""
    from privfair.api import draft

    return draft


def _draft(
    file: Plan,
    issuer: Issuer,
    epsilon: float | None = None,
    delta: float | None = None,
    as_printed: bool = False,
    no_privacy: str | None = None,
) -> BudgetDraft:
    """The budget of a plan, priced twice."""
    if as_printed and no_privacy is not None:
        raise click.UsageError("--as-printed and --no-privacy exclude each other")
    promise: Promise = "as-printed" if as_printed else "calibrated" if no_privacy is None else Unprotected(no_privacy)
    unset = no_privacy is not None or (epsilon is None and delta is None)
    drafted: BudgetDraft = drafting().draft(file, issuer, promise, None if unset else file.target(epsilon, delta))
    return drafted


_since = click.option("--since", type=FILE, help="Earlier request or budget, to show what changed since.")


@budget_command.command("request")
@click.argument("plan", type=FILE)
@click.option("--why", required=True, metavar="TEXT", help="Purpose, which the officer reads and the budget keeps.")
@click.option("--by", "asked_by", metavar="TEXT", help="Who asks [default: the user of this machine].")
@_since
@configured(
    *("ledger", "--ledger", "ledgers"),
    multiple=True,
    metavar="[SILO=]PATH|ID",
    help="The one ledger in which the budget may be used; once per silo with SILO= [default: config].",
)
@click.option("--out", type=FILE, default=Path("request.json"), show_default=True, help="File to write.")
@click.option("--epsilon", type=float, hidden=True, help="The epsilon asked for, if the plan has no [target].")
@click.option("--delta", type=float, hidden=True, help="The delta asked for, if the plan has no [target].")
@click.option("--silo", "silos", multiple=True, hidden=True, help="A silo, NAME=SIZE, if the plan names no data.")
@days_option
@click.option("--as-printed", is_flag=True, hidden=True, help="Ask for the paper's own noise, with its true epsilon.")
@click.option("--no-privacy", hidden=True, help="Ask to train without noise and without a guarantee, for this reason.")
@click.option(
    *("--unsafe-seeded-research-noise", "research_noise"),
    is_flag=True,
    hidden=True,
    help="Ask for reproducible noise that protects no one; for experiments on public data.",
)
def request_command(
    plan: Path,
    out: Path,
    asked_by: str | None,
    since: Path | None,
    epsilon: float | None,
    delta: float | None,
    as_printed: bool,
    no_privacy: str | None,
    **flags: Unpack[IssuerFlags],
) -> None:
    """Calibrate a PLAN and write the budget it needs, unsigned, for the officer to read and sign."""
    drafted = _draft(Plan.read(plan), issuer_from_flags(**flags), epsilon, delta, as_printed, no_privacy)
    content = request_bytes(drafted, asked_by or _user(), read_named(plan, "PLAN"))
    request = read_request(content)
    write_named(out, content)
    changed = None if since is None else changes_since(since, request.document)
    if asked().as_json:
        guarantee = request.document.guarantee
        print_json(
            {
                "request": str(out),
                "digest": request.digest,
                "algorithm": request.document.algorithm,
                "epsilon": getattr(guarantee, "epsilon", None),
                "delta": getattr(guarantee, "delta", None),
                "changes": changed,
            }
        )
        return
    print_lines(plain_words(request.document))
    print_lines(f"Changed since {since}: {line}" for line in changed or ())
    print_lines((f"The request is in {out}; the officer signs it with `privfair budget sign {out} --key KEY`.",))


def _user() -> str:
    return claimant_here().rpartition(", process")[0]


_key = configured(
    "key", "--key", "key_path", type=FILE, required=True, help="Private key that signs [default: config]."
)


@budget_command.command("sign")
@click.argument("file", type=FILE)
@_key
@click.option("--decline", metavar="REASON", help="Decline the request, with this reason, instead of signing.")
@_since
@configured("ledger", "--ledger", metavar="PATH|ID", hidden=True, help="The ledger for which is signed.")
@click.option("--yes", is_flag=True, help="Do not ask before signing; needed where there is no terminal.")
@click.option(
    "--out", type=FILE, help="Answer [default: NAME-signed.json or NAME-declined.json; for a budget, the file itself]."
)
def sign_command(
    file: Path, key_path: Path, out: Path | None, since: Path | None, decline: str | None, ledger: str | None, yes: bool
) -> None:
    """Show what FILE guarantees and sign it, or decline it with a reason.

    FILE is a request, a PLAN (requested and signed in one go), or a budget that needs one more signature. The budget
    is drafted again from its plan and priced by two accountants on this machine: what differs from the draft is
    refused, and what nothing here confirms is listed. Data, schema and code are looked for next to FILE.

    \b
    Examples:
      privfair budget sign request.json --since last-budget.json --out budget.json
      privfair budget sign request.json --decline "epsilon 8 is too much for this purpose"
    """
    content = read_named(file, "FILE")
    if b'"payload"' in content:
        if decline is not None:
            raise click.UsageError("--decline answers a request; a budget that is signed already is revoked by its key")
        document = read_unverified(content).document
        changed = None if since is None else changes_since(since, document)
        compared = _compared(document, plan_next_to(file, document), file, ledger)
        if not asked().as_json:
            _show_document(document, since, changed)
            print_lines(compared.lines)
        _confirm(yes)
        added = _added(file, key_path, out)
        answer({"kind": "budget", **added, "changes": changed, "compared": compared.lines}, _added_text(added))
        return
    kind = "plan" if file.suffix == ".toml" else "request"
    if kind == "plan":
        issuer = issuer_from_flags(ledgers=() if ledger is None else (ledger,))
        content = request_bytes(_draft(Plan.read(file), issuer), _user(), content)
    request = read_request(content)
    changed = None if since is None else changes_since(since, request.document)
    if not asked().as_json:
        print_lines((f"{request.asked_by} asked at {instant_to_text(request.asked_at)} for:",))
        _show_document(request.document, since, changed)
    key = load_private(key_path, ask_password)
    lines: tuple[str, ...] = ()
    if decline is None:
        compared = _compared(request.document, request.plan, file, ledger)
        lines = compared.lines
        if not asked().as_json:
            print_lines(lines)
        _confirm(yes)
        reply = sign_request(request, key, compared.drafted)
    else:
        reply = decline_request(request, decline, key)
    target = out or answer_path(file.with_suffix(".json"), signed=decline is None)
    write_named(target, reply)
    if asked().as_json:
        print_json(
            {
                "kind": kind,
                "request": request.digest,
                "answer": "signed" if decline is None else "declined",
                "file": str(target),
                "signed_by": key.key_id,
                "changes": changed,
                "compared": lines,
            }
        )
        return
    word = "Signed" if decline is None else "Declined"
    print_lines((f"{word} with key {key.key_id}: return {target} to {request.asked_by}.",))


def _compared(document: BudgetDocument, plan: str | None, file: Path, ledger: str | None) -> Compared:
    """The budget drafted again on this machine."""
    known: LedgerStatus | str | None = ledger
    if ledger is not None and not re.fullmatch(r"[0-9a-f]{64}", ledger):
        with Ledger.open(ledger, access=LedgerAccess.READ) as books:
            known = books.status()
    found: Compared = drafting().compare(document, plan, file.parent, known)
    return found


def plan_next_to(file: Path, document: BudgetDocument) -> str | None:
    """The text of the plan file next to `file` that a signed budget is for; None for a budget of parameters alone.

    Refused where there is none, because nothing then shows what the budget follows from.
    """
    if document.config_digest == plan_digest(document.algorithm, document.parameters):
        return None
    for path in sorted(file.parent.glob("*.toml")):
        content = path.read_bytes()
        if digest_of_bytes(content) == document.config_digest:
            return content.decode()
    rule = f"is for the plan {document.config_digest[:12]}, which is not next to it"
    raise InvalidInput("FILE", str(file), rule, "put plan, schema and code in its folder, then sign it")


def _confirm(yes: bool) -> None:
    if yes:
        return
    if asked().as_json or not sys.stdin.isatty():
        raise click.UsageError("nothing was signed: read the request, and give --yes to sign it without a question")
    click.confirm("Sign it?", abort=True, err=True)


def _show_document(document: BudgetDocument, since: Path | None, changed: list[str] | None) -> None:
    print_lines(plain_words(document))
    print_lines(f"Not protected: {line}" for line in document.guarantee.not_protected)
    if changed is None:
        print_lines(("Not compared with an earlier budget: give --since FILE to see what changed.",))
    elif not changed:
        print_lines((f"Nothing changed since {since} but the times and the nonce.",))
    else:
        print_lines(f"Changed since {since}: {line}" for line in changed)


def changes_since(path: Path, document: BudgetDocument) -> list[str]:
    """What is different in `document` from an earlier request or signed budget, one line each."""
    content = read_named(path, "--since")
    try:
        before = read_request(content).document
    except InvalidInput:
        before = read_unverified(content).document
    return [change.sentence for change in changes(before, document)]


def _added(file: Path, key_path: Path, out: Path | None) -> dict[str, object]:
    """Sign a budget once more, after pricing it again, and write it."""
    key = load_private(key_path, ask_password)
    signed = add_signature(read_named(file, "FILE"), key)
    write_named(out or file, signed)
    number = len(read_unverified(signed).claimed_key_ids)
    return {"manifest": str(out or file), "signed_by": key.key_id, "signatures": number}


def _added_text(added: dict[str, object]) -> str:
    return f"{added['manifest']}: signed with key {added['signed_by']}; {added['signatures']} signatures now"


@budget_command.command("show")
@click.argument("files", type=FILE, nargs=-1, metavar="FILE..")
@configured_trust
@click.option("--explain", is_flag=True, help="Explain what the guarantee means.")
@click.option(
    "--group", type=click.IntRange(min=1), metavar="K", help="Explain it for K units together, like a family."
)
@click.option("--epsilon", type=float, metavar="E", help="Explain this epsilon instead of a file.")
@click.option("--delta", type=float, metavar="D", help="Delta that goes with --epsilon.")
@click.option(
    "--silos",
    type=click.IntRange(min=1),
    metavar="N",
    help="Of several files: in at most N silos of each budget are one person's data [default: all].",
)
def show_command(
    files: tuple[Path, ...],
    trust_path: Path | None,
    explain: bool,
    group: int | None,
    epsilon: float | None,
    delta: float | None,
    silos: int | None,
) -> None:
    """Show a budget, a request or its refusal; of several budgets, what they guarantee one person together.

    One person pays once per silo and per budget they are in. The sum holds for the coarsest unit that every budget
    protects; signatures are not checked for it.

    \b
    Examples:
      privfair budget show budget.json --explain --trust trust.json
      privfair budget show --epsilon 1 --delta 1e-5
      privfair budget show both-hospitals.json one-hospital.json --silos 2
    """
    if bool(files) == (epsilon is not None or delta is not None) or (epsilon is None) != (delta is None):
        raise click.UsageError("give either a budget file, or both --epsilon and --delta")
    if epsilon is not None and delta is not None:
        meaning = Meaning(EpsilonDelta(epsilon, delta))
        document = {"kind": "explanation", **meaning.to_json(), **_group_json(meaning, group)}
        answer(document, *meaning.sentences("one unit"), *_group_lines(meaning, group, "unit"))
    elif len(files) > 1:
        _show_composed(files, silos)
    else:
        content = read_named(files[0], "BUDGET")
        if b'"payload"' not in content:
            _show_request(read_request(content))
        elif answers_no(content):
            _show_declined(read_declined(content))
        elif explain or group is not None:
            _explain(content, trust_path, group)
        else:
            _show_page(content, trust_path)


def _show_request(request: BudgetRequest) -> None:
    if asked().as_json:
        print_json({"kind": "request", "digest": request.digest, "document": request.document.to_json()})
        return
    print_lines((f"A request, not signed; {request.asked_by} asked at {instant_to_text(request.asked_at)} for:",))
    _show_document(request.document, None, [])


def _show_declined(declined: Declined) -> None:
    found = {"kind": "declined", "verified": False, **declined.model_dump(mode="json", by_alias=True)}
    at = instant_to_text(declined.declined_at)
    answer(found, f"Declined at {at}: {declined.reason}", "SIGNATURE NOT CHECKED. Change the plan and ask again.")


def _show_page(content: bytes, trust_path: Path | None) -> None:
    """A page for an officer: what is guaranteed to whom, what is not protected, what it assumes."""
    manifest = (
        read_unverified(content)
        if trust_path is None
        else authenticate(content, read_trust_file(trust_path), for_reading=True)
    )
    if asked().as_json:
        verified = trust_path is not None
        found = {"digest": manifest.digest, "verified": verified, "document": manifest.document.to_json()}
        print_json({"kind": "budget", **found})
    else:
        click.echo(render(manifest))


def _group_json(meaning: Meaning, size: int | None) -> dict[str, object]:
    """The guarantee to a group, where one was asked for; null where nothing is left of it."""
    if size is None:
        return {}
    together = meaning.for_group(size)
    return {"group": {"size": size, "meaning": None if together is None else together.to_json()}}


def _group_lines(meaning: Meaning, size: int | None, unit: str) -> tuple[str, ...]:
    if size is None:
        return ()
    together = meaning.for_group(size)
    if together is None:
        return (f"To {size} {unit}s together nothing is promised.",)
    promise = together.promise
    return (
        f"To {size} {unit}s together epsilon {promise.epsilon:.4g} at delta {promise.delta:.3g} is promised.",
        together.sentences(f"these {size} {unit}s")[0],
    )


def _explain(content: bytes, trust_path: Path | None, group: int | None) -> None:
    from audit.report.page import protection_lines  # the result types, which signing need not load

    if trust_path is None:
        document, remark = read_unverified(content).document, None
    else:
        found = authenticate(content, read_trust_file(trust_path), for_reading=True)
        document, remark = found.document, found.remark
    guarantee = document.guarantee
    meaning = meaning_of(guarantee)
    if asked().as_json:
        print_json(
            {
                "kind": "explanation",
                "verified": trust_path is not None,
                "algorithm": document.algorithm,
                "protected": protected_text(guarantee),
                "not_protected": list(guarantee.not_protected),
                "rounds": document.rounds,
                "retention": document.retention,
                "meaning": None if meaning is None else meaning.to_json(),
                **({} if meaning is None else _group_json(meaning, group)),
            }
        )
        return
    if trust_path is None:
        print_lines(("SIGNATURES NOT CHECKED: give --trust to know who signed this.",))
    if remark is not None:
        print_lines((remark,))
    print_lines(protection_lines(document))
    if meaning is None:
        print_lines(("There is no finite guarantee: no one is protected from an observer of this run.",))
    else:
        print_lines(meaning.sentences(protected_text(guarantee).split(",")[0]))
        print_lines(_group_lines(meaning, group, guarantee.privacy_unit().protected.value))
    print_lines((f"It covers {document.rounds} rounds of {document.algorithm} and can be spent once.",))
    print_lines(("Not protected, one by one:",))
    print_wrapped(*(f"- {line}" for line in guarantee.not_protected))
    if document.retention_text is not None:
        print_lines((document.retention_text,))


def _show_composed(budgets: tuple[Path, ...], silos: int | None) -> None:
    from privfair.api.reading import promises_of

    documents = [(path.name, read_unverified(read_named(path, "BUDGET")).document) for path in budgets]
    given = promises_of(documents, silos)
    basic = compose(given)
    total = compose_beforehand(given, [document.renyi_curve() for _, document in documents])
    by = "basic" if total == basic else "renyi"
    unit = {"unit": total.unit.protected.value, "adjacency": total.unit.relation.value}
    if asked().as_json:
        parts = [
            {"budget": str(path), "epsilon": one.epsilon, "delta": one.delta, "silos": one.times}
            for path, one in zip(budgets, given, strict=True)
        ]
        found = {"epsilon": total.epsilon, "delta": total.delta, "by": by, "basic_epsilon": basic.epsilon}
        print_json({"kind": "composition", **unit, **found, "budgets": parts})
        return
    for path, one in zip(budgets, given, strict=True):
        click.echo(f"{path}: epsilon {one.epsilon:g}, delta {one.delta:g}, in {one.times} silo(s)")
    click.echo(
        f"together: epsilon {total.epsilon:g} at delta {total.delta:g} for one {unit['unit']} ({unit['adjacency']})"
    )
    if by == "renyi":
        click.echo(
            "by Renyi composition, for budgets that were signed without looking at one another's results;\n"
            f"by basic composition, which holds for any: epsilon {basic.epsilon:g}"
        )


@manifest_command.command("sign")
@click.argument("file", type=FILE)
@_key
@click.option("--out", type=FILE, help="Signed budget [default: FILE].")
def sign_manifest(file: Path, key_path: Path, out: Path | None) -> None:
    """Add a signature without a question."""
    added = _added(file, key_path, out)
    answer(added, _added_text(added))

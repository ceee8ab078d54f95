"""A budget on its way: requested, signed or declined, verified, shown, explained and composed."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from calibrate.compose import compose, compose_beforehand
from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument, LedgerBinding
from calibrate.manifest.draft import Issuer
from calibrate.manifest.issue import (
    BudgetDraft,
    BudgetRequest,
    add_signature,
    answer_path,
    decline_request,
    read_request,
    request_bytes,
    sign_request,
)
from calibrate.manifest.issue import recompute as price_again
from calibrate.manifest.keys import load_private
from calibrate.manifest.mechanism import instant_to_text
from calibrate.manifest.show import changes, meaning_of, plain_words, protected_text, render
from calibrate.manifest.verify import authenticate, read_unverified
from calibrate.meaning import Meaning
from calibrate.privacy_unit import EpsilonDelta
from privfair.cli.help import Subcommands
from privfair.cli.keys import ask_password, read_trust_file
from privfair.cli.options import FILE, json_option, ledger_option, options, required_trust_options, trust_options
from privfair.cli.output import print_json, print_wrapped
from privfair.durable import read_named, write_named
from privfair.ledger import Ledger, LedgerAccess
from privfair.ledger.terms import claimant_here
from privfair.plan.plan import Plan


@click.command("explain", short_help="a budget or an epsilon in plain words")
@click.argument("budget", type=FILE, required=False)
@trust_options
@click.option("--epsilon", type=float, metavar="E", help="Explain this epsilon instead of a budget file.")
@click.option("--delta", type=float, metavar="D", help="Delta that goes with --epsilon.")
@click.option(
    "--group",
    type=click.IntRange(min=1),
    metavar="K",
    help="Explain the promise to K units together, such as the members of a family.",
)
@json_option
def explain_command(
    budget: Path | None,
    trust_path: Path | None,
    root: Path | None,
    epsilon: float | None,
    delta: float | None,
    group: int | None,
    as_json: bool,
) -> None:
    """Say what a promise means: who is protected, how often an observer can be right, what is not protected.

    \b
    Examples:
      privfair explain budget.json --trust trust.json
      privfair explain --epsilon 1 --delta 1e-5
    """
    if (budget is None) == (epsilon is None or delta is None):
        raise click.UsageError("give either a budget file, or both --epsilon and --delta")
    if budget is not None:
        _explain_budget(budget, trust_path, root, group, as_json)
        return
    assert epsilon is not None
    assert delta is not None
    meaning = Meaning(EpsilonDelta(epsilon, delta))
    if as_json:
        print_json(meaning.to_json() | _group_json(meaning, group))
    else:
        print_lines(meaning.sentences("one unit"))
        print_lines(_group_lines(meaning, group, "unit"))


def _group_json(meaning: Meaning, size: int | None) -> dict[str, object]:
    """The promise to a group, where one was asked for; null where nothing is left of it."""
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


def _explain_budget(path: Path, trust_path: Path | None, root: Path | None, group: int | None, as_json: bool) -> None:
    from audit.report.page import protection_lines  # the result types, which signing need not load

    content = read_named(path, "BUDGET")
    if trust_path is None:
        document, checked, remark = read_unverified(content).document, False, None
    else:
        found = authenticate(content, read_trust_file(trust_path, root), for_reading=True)
        document, checked, remark = found.document, True, found.remark
    guarantee = document.guarantee
    meaning = meaning_of(guarantee)
    if as_json:
        print_json(
            {
                "verified": checked,
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
    if not checked:
        print_lines(("SIGNATURES NOT CHECKED: give --trust to know whether anybody signed this.",))
    if remark is not None:
        print_lines((remark,))
    print_lines(protection_lines(document))
    if meaning is None:
        print_lines(("There is no finite promise: nobody is protected from an observer of this run.",))
    else:
        print_lines(meaning.sentences(protected_text(guarantee).split(",")[0]))
        print_lines(_group_lines(meaning, group, guarantee.privacy_unit().protected.value))
    print_lines((f"It covers {document.rounds} rounds of {document.algorithm} and can be spent once.",))
    print_lines(("Not protected, one by one:",))
    print_wrapped(*(f"- {line}" for line in guarantee.not_protected))
    if document.retention_text is not None:
        print_lines((document.retention_text,))


def print_lines(lines: Iterable[str]) -> None:
    """Sentences at 80 columns, for reading."""
    for line in lines:
        click.echo(textwrap.fill(line, 80, subsequent_indent="  ", break_long_words=False))


_file = click.argument("file", type=FILE)


def issuer_from_flags(
    *,
    silos: tuple[str, ...] = (),
    ledgers: tuple[str, ...] = (),
    valid_days: int,
    why: str,
    research_noise: bool = False,
    **_: object,
) -> Issuer:
    """What the flags of `calibrate --out` say about the manifest, beside where to write it."""
    return Issuer(
        silos=tuple(_named_size(text) for text in silos),
        ledgers=tuple(_ledger(text) for text in ledgers),
        lifetime=timedelta(days=valid_days),
        why=why,
        research_noise=research_noise,
    )


def _ledger(text: str) -> LedgerBinding:
    """`ID`, `PATH` or a PostgreSQL URL, or one of them after `SILO=`; an id has 64 hexadecimal digits."""
    named = re.fullmatch(r"(?:([^=/:]+)=)?(.+)", text)
    if named is None:
        raise click.UsageError("--ledger: name a ledger by its path or by its id, for example --ledger ledger.db")
    silo, place = named.groups()
    if not re.fullmatch(r"[0-9a-f]{64}", place):
        with Ledger.open(place, access=LedgerAccess.READ) as ledger:
            place = ledger.status().ledger
    return LedgerBinding(ledger=place, silo=silo)


def _named_size(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not equals or not name.strip() or not size.strip().isdigit() or int(size) < 1:
        raise click.UsageError(f"--silo {text}: write NAME=SIZE, for example --silo north=7500")
    return name.strip(), int(size)


@click.group("manifest", cls=Subcommands, short_help="sign, verify and read a budget")
def manifest_command() -> None:
    """A budget manifest says what may be published, with how much noise, for how many rounds, on which data.

    `privfair calibrate ... --out budget.json --key officer.pem` writes one.
    """


@manifest_command.command("sign")
@_file
@click.option("--key", "key_path", type=FILE, required=True, help="The private key that signs.")
@click.option("--out", type=FILE, help="Default: FILE itself.")
@json_option
def sign_manifest(file: Path, key_path: Path, out: Path | None, as_json: bool) -> None:
    """Add a signature, after pricing the budget again with two accountants. Read it first: `manifest show`."""
    key = load_private(key_path, ask_password)
    signed = add_signature(read_named(file, "FILE"), key)
    write_named(out or file, signed)
    signatures = read_unverified(signed).claimed_key_ids
    if as_json:
        print_json({"manifest": str(out or file), "signed_by": key.key_id, "signatures": len(signatures)})
    else:
        click.echo(f"{out or file}: signed with key {key.key_id}; {len(signatures)} signatures now")


@manifest_command.command("verify")
@_file
@required_trust_options
@click.option("--recompute", is_flag=True, help="Also price the signed event again with two accountants.")
@json_option
def verify_manifest(file: Path, trust_path: Path, root: Path | None, recompute: bool, as_json: bool) -> None:
    """Check signatures, roles, validity and meaning; exit code 3 and the failed step otherwise."""
    manifest = authenticate(read_named(file, "FILE"), read_trust_file(trust_path, root))
    if recompute:
        price_again(manifest.document)
    if as_json:
        print_json(
            {
                "verified": True,
                "digest": manifest.digest,
                "signed_by": [{"role": s.role.value, "key_id": s.key_id} for s in manifest.signatures],
                "algorithm": manifest.document.algorithm,
                "kind": manifest.document.guarantee.kind,
                "rounds": manifest.document.rounds,
                "recomputed": recompute,
            }
        )
        return
    roles = ", ".join(signature.role.value for signature in manifest.signatures)
    priced = "; its price was computed again and holds" if recompute else ""
    click.echo(f"{file}: verified, signed by {roles}{priced}\ndigest {manifest.digest}")


@manifest_command.command("show")
@_file
@options(trust_options)
@json_option
def show_manifest(file: Path, trust_path: Path | None, root: Path | None, as_json: bool) -> None:
    """A page for an officer: what is promised to whom, what is not protected, what it assumes."""
    content = read_named(file, "FILE")
    manifest = (
        read_unverified(content)
        if trust_path is None
        else authenticate(content, read_trust_file(trust_path, root), for_reading=True)
    )
    if as_json:
        print_json(
            {"digest": manifest.digest, "verified": trust_path is not None, "document": manifest.document.to_json()}
        )
    else:
        click.echo(render(manifest))


@click.command("sign", short_help="sign or decline a request, as the officer")
@click.argument("file", metavar="REQUEST", type=FILE)
@click.option("--key", "key_path", type=FILE, required=True, help="The officer's private key.")
@click.option("--out", type=FILE, help="Where the answer goes. Default: NAME-signed.json or NAME-declined.json.")
@click.option("--since", type=FILE, help="An earlier request or budget, to show what changed since.")
@click.option("--decline", metavar="REASON", help="Decline, with this reason, instead of signing.")
@click.option("--yes", is_flag=True, help="Do not ask before signing; needed where there is no terminal.")
@json_option
def sign_command(
    file: Path, key_path: Path, out: Path | None, since: Path | None, decline: str | None, yes: bool, as_json: bool
) -> None:
    """Show a request in plain words with what changed since the last one, and sign it, or decline with a reason.

    The budget is priced again by two accountants on this machine before it is signed. Texts and the names of silos are
    the engineer's.

    \b
    Examples:
      privfair sign request.json --key officer.pem --since last-budget.json --out budget.json
      privfair sign request.json --key officer.pem --decline "epsilon 8 is too much for this purpose"
    """
    request = read_request(read_named(file, "REQUEST"))
    changed = None if since is None else changes_since(since, request.document)
    if not as_json:
        _show(request, since, changed)
    if decline is None and not yes:
        if as_json or not sys.stdin.isatty():
            raise click.UsageError("nothing was signed: read the request, and give --yes to sign it without a question")
        click.confirm("Sign it?", abort=True, err=True)
    key = load_private(key_path, ask_password)
    answer = sign_request(request, key) if decline is None else decline_request(request, decline, key)
    target = out or answer_path(file, signed=decline is None)
    write_named(target, answer)
    if as_json:
        print_json(
            {
                "request": request.digest,
                "answer": "signed" if decline is None else "declined",
                "file": str(target),
                "signed_by": key.key_id,
                "changes": changed,
            }
        )
        return
    word = "Signed" if decline is None else "Declined"
    print_lines((f"{word} with key {key.key_id}: return {target} to {request.asked_by}.",))


def changes_since(path: Path, document: BudgetDocument) -> list[str]:
    """What is different in `document` from an earlier request or signed budget, one sentence each."""
    content = read_named(path, "--since")
    try:
        before = read_request(content).document
    except InvalidInput:
        before = read_unverified(content).document
    return [change.sentence for change in changes(before, document)]


def _show(request: BudgetRequest, since: Path | None, changed: list[str] | None) -> None:

    print_lines((f"{request.asked_by} asked at {instant_to_text(request.asked_at)} for:",))
    print_lines(plain_words(request.document))
    print_lines(f"Not protected: {line}" for line in request.document.guarantee.not_protected)
    if changed is None:
        print_lines(("Not compared with an earlier budget: give --since FILE to see what changed.",))
    elif not changed:
        print_lines((f"Nothing changed since {since} but the times and the nonce.",))
    else:
        print_lines(f"Changed since {since}: {line}" for line in changed)


@click.command("request", short_help="ask an officer for a budget, with a file")
@click.argument("plan", type=FILE)
@click.option("--out", type=FILE, default=Path("request.json"), show_default=True, help="File to write.")
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
@click.option("--since", type=FILE, help="An earlier request or budget, to say what changed since.")
@json_option
def request_command(
    plan: Path, out: Path, asked_by: str | None, since: Path | None, as_json: bool, **asked: Any
) -> None:
    """Calibrate a PLAN and write the budget it needs as a request, unsigned, for the officer to read and sign.

    \b
    Example:
      privfair request plan.toml --why "readmission model for ward 7" --ledger ledger.db
      privfair sign request.json --key officer.pem --out budget.json      (the officer)
    """
    draft = _draft(Plan.read(plan), **asked)
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

    print_lines(plain_words(request.document))
    for line in changed or ():
        print_lines((f"Changed since {since}: {line}",))
    print_lines((f"The request is in {out}; the officer signs it with `privfair sign {out} --key KEY`.",))


def _user() -> str:

    return claimant_here().rpartition(", process")[0]


def _draft(
    file: Plan, epsilon: float | None, delta: float | None, as_printed: bool, no_privacy: str | None, **asked: Any
) -> BudgetDraft:
    from privfair.api.draft import Unprotected, draft

    issuer = issuer_from_flags(**asked)
    if as_printed and no_privacy is not None:
        raise click.UsageError("--as-printed and --no-privacy exclude each other")
    if no_privacy is not None:
        return draft(file, issuer, Unprotected(no_privacy))
    return draft(file, issuer, "as-printed" if as_printed else "calibrated", file.target(epsilon, delta))


@click.command("compose", short_help="one person's promise over several budgets or silos")
@click.argument("budgets", type=FILE, nargs=-1, required=True, metavar="BUDGET..")
@click.option(
    "--silos",
    type=click.IntRange(min=1),
    metavar="N",
    help="In at most how many silos of each budget the person's data are; every silo unless given.",
)
@json_option
def compose_command(budgets: tuple[Path, ...], silos: int | None, as_json: bool) -> None:
    """Add up what BUDGETs promise to one person, who pays once per silo and per budget they are in.

    The sum holds for the coarsest unit that every budget protects. Signatures are not checked.

    \b
    Example: a patient of two hospitals that trained together, then of one that trained alone
      privfair compose both.json alone.json --silos 2
    """
    from privfair.api.reading import promises_of

    documents = [(path.name, read_unverified(read_named(path, "BUDGET")).document) for path in budgets]
    given = promises_of(documents, silos)
    basic = compose(given)
    total = compose_beforehand(given, [document.renyi_curve() for _, document in documents])
    by = "basic" if total == basic else "renyi"
    unit = {"unit": total.unit.protected.value, "adjacency": total.unit.relation.value}
    if as_json:
        parts = [
            {"budget": str(path), "epsilon": one.epsilon, "delta": one.delta, "silos": one.times}
            for path, one in zip(budgets, given, strict=True)
        ]
        found = {"epsilon": total.epsilon, "delta": total.delta, "by": by, "basic_epsilon": basic.epsilon}
        print_json({**unit, **found, "budgets": parts})
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

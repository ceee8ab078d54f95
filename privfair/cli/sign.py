"""`privfair sign`: an officer reads a request, and signs or declines it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfair.cli.explain import print_lines
from privfair.cli.keys import ask_password
from privfair.cli.output import json_option, print_json
from privfair.durable import read_named, write_named

if TYPE_CHECKING:
    from calibrate.manifest.document import BudgetDocument
    from calibrate.manifest.request import BudgetRequest

_PATH = click.Path(path_type=Path, dir_okay=False)


@click.command("sign", short_help="sign or decline a request, as the officer")
@click.argument("file", metavar="REQUEST", type=_PATH)
@click.option("--key", "key_path", type=_PATH, required=True, help="The officer's private key.")
@click.option("--out", type=_PATH, help="Where the answer goes. Default: NAME-signed.json or NAME-declined.json.")
@click.option("--since", type=_PATH, help="An earlier request or budget, to show what changed since.")
@click.option("--decline", metavar="REASON", help="Decline, with this reason, instead of signing.")
@click.option("--yes", is_flag=True, help="Do not ask before signing; needed where there is no terminal.")
@json_option
def command(
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
    from calibrate.manifest.keys import load_private
    from calibrate.manifest.request import answer_path, decline_request, read_request, sign_request

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
    from calibrate.errors import InvalidInput
    from calibrate.manifest.request import changes, read_request
    from calibrate.manifest.verify import read_unverified

    content = read_named(path, "--since")
    try:
        before = read_request(content).document
    except InvalidInput:
        before = read_unverified(content).document
    return [change.sentence for change in changes(before, document)]


def _show(request: BudgetRequest, since: Path | None, changed: list[str] | None) -> None:
    from calibrate.manifest.mechanism import instant_to_text
    from calibrate.manifest.request import plain_words

    print_lines((f"{request.asked_by} asked at {instant_to_text(request.asked_at)} for:",))
    print_lines(plain_words(request.document))
    print_lines(f"Not protected: {line}" for line in request.document.guarantee.not_protected)
    if changed is None:
        print_lines(("Not compared with an earlier budget: give --since FILE to see what changed.",))
    elif not changed:
        print_lines((f"Nothing changed since {since} but the times and the nonce.",))
    else:
        print_lines(f"Changed since {since}: {line}" for line in changed)

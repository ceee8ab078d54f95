"""`privfair manifest`: sign, verify and read budget manifests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfair.cli.help import Subcommands
from privfair.cli.keys import ask_password, read_trust_file, trust_options
from privfair.cli.output import json_option, options, print_json
from privfair.durable import read_named, write_named

if TYPE_CHECKING:
    from calibrate.manifest.document import LedgerBinding
    from calibrate.manifest.draft import Issuer
    from calibrate.manifest.issue import BudgetDraft

_file = click.argument("file", type=click.Path(path_type=Path, dir_okay=False))


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
    from datetime import timedelta

    from calibrate.manifest.draft import Issuer

    return Issuer(
        silos=tuple(_named_size(text) for text in silos),
        ledgers=tuple(_ledger(text) for text in ledgers),
        lifetime=timedelta(days=valid_days),
        why=why,
        research_noise=research_noise,
    )


def _ledger(text: str) -> LedgerBinding:
    """`ID`, `PATH` or a PostgreSQL URL, or one of them after `SILO=`; an id has 64 hexadecimal digits."""
    import re

    from calibrate.manifest.document import LedgerBinding
    from privfair.ledger import Ledger, LedgerAccess

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


def write_manifest(draft: BudgetDraft, out: Path, key_path: Path) -> str:
    """Sign the draft with the key in a file, and write the manifest; its path."""
    from calibrate.manifest.issue import issue
    from calibrate.manifest.keys import load_private

    write_named(out, issue(draft, load_private(key_path, ask_password)))
    return str(out)


@click.group("manifest", cls=Subcommands, short_help="sign, verify and read a budget")
def command() -> None:
    """A budget manifest says what may be published, with how much noise, for how many rounds, on which data.

    `privfair calibrate ... --out budget.json --key officer.pem` writes one.
    """


@command.command("sign")
@_file
@click.option(
    "--key",
    "key_path",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The private key that signs.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Default: FILE itself.")
@json_option
def sign(file: Path, key_path: Path, out: Path | None, as_json: bool) -> None:
    """Add a signature, after pricing the budget again with two accountants. Read it first: `manifest show`."""
    from calibrate.manifest.issue import add_signature
    from calibrate.manifest.keys import load_private
    from calibrate.manifest.verify import read_unverified

    key = load_private(key_path, ask_password)
    signed = add_signature(read_named(file, "FILE"), key)
    write_named(out or file, signed)
    signatures = read_unverified(signed).claimed_key_ids
    if as_json:
        print_json({"manifest": str(out or file), "signed_by": key.key_id, "signatures": len(signatures)})
    else:
        click.echo(f"{out or file}: signed with key {key.key_id}; {len(signatures)} signatures now")


@command.command("verify")
@_file
@trust_options
@click.option("--recompute", is_flag=True, help="Also price the signed event again with two accountants.")
@json_option
def verify(file: Path, trust_path: Path, root: Path | None, recompute: bool, as_json: bool) -> None:
    """Check signatures, roles, validity and meaning; exit code 3 and the failed step otherwise."""
    from calibrate.manifest.verify import authenticate

    manifest = authenticate(read_named(file, "FILE"), read_trust_file(trust_path, root))
    if recompute:
        from calibrate.manifest.issue import recompute as price_again

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


@command.command("show")
@_file
@options(
    click.option("--trust", "trust_path", type=click.Path(path_type=Path, dir_okay=False), help="Check signatures."),
    click.option("--root", type=click.Path(path_type=Path, dir_okay=False), help="Public key of a signed trust file."),
)
@json_option
def show(file: Path, trust_path: Path | None, root: Path | None, as_json: bool) -> None:
    """A page for an officer: what is promised to whom, what is not protected, what it assumes."""
    from calibrate.manifest.show import render
    from calibrate.manifest.verify import authenticate, read_unverified

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

"""`privfair keys`: who may sign a budget."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from calibrate.errors import TrustRefused
from calibrate.manifest import keys
from calibrate.manifest.keys import PASSWORD_VARIABLE, Role, SigningKey, load_private, load_public
from calibrate.manifest.strict_json import in_our_words
from calibrate.manifest.trust import Revocation, TrustedKey, TrustFile, read_trust
from privfair.cli.help import Subcommands
from privfair.cli.options import FILE, json_option, options
from privfair.cli.output import print_answer, print_json
from privfair.durable import read_named, write_named

ROLES = ("privacy-officer", "data-owner", "auditor")
_DAYS = click.IntRange(min=1, max=36_500)

required_trust_options = options(
    click.option("--trust", "trust_path", type=FILE, required=True, help="Trust file: whose signatures are required."),
    click.option("--root", type=FILE, help="Public key that signed the trust file, where it is signed."),
)


def ask_password() -> bytes:
    """The password of an encrypted key: from PRIVFAIR_KEY_PASSWORD, else asked for on the terminal."""
    given = os.environ.get(PASSWORD_VARIABLE)
    return (given if given else click.prompt("Password of the key", hide_input=True, err=True)).encode()


def read_trust_file(path: Path, root: Path | None) -> TrustFile:
    """The trust file at `path`, checked by the root key where one is given."""
    return read_trust(read_named(path, "--trust"), None if root is None else load_public(root, ask_password))


_out = click.option("--out", type=FILE, required=True, help="The trust file, which is written anew.")
_root = click.option("--root", "root_path", type=FILE, help="The private root key that signs the trust file.")
_file_days = click.option(
    "--file-valid-days", type=_DAYS, help="Days until the trust file itself is stale and a newer one is asked for."
)
_key_days = click.option(
    "--valid-days", type=_DAYS, default=730, show_default=True, help="Days for which signatures of the key count."
)


@click.group("keys", cls=Subcommands, short_help="make keys and say whom to trust")
def keys_command() -> None:
    """Make signing keys, and write the trust file that says whose signatures a budget needs.

    Each change writes the next trust file in a sequence. With a root key the file is signed, and a ledger that has
    seen it takes no earlier one; without a root key it is for trying things out.

    \b
    Example:
      privfair keys generate --role root --out root.pem
      privfair keys generate --role privacy-officer --out officer.pem
      privfair keys trust --key officer.pem --role privacy-officer --out trust.json --root root.pem
      privfair keys generate --role privacy-officer --out successor.pem
      privfair keys rotate --key-id ID --key successor.pem --out trust.json --root root.pem
      privfair keys revoke --key-id ID --why "the laptop was stolen" --out trust.json --root root.pem
    """


@keys_command.command("generate")
@click.option("--role", type=click.Choice((*ROLES, "root")), required=True, help="For whom the key speaks.")
@click.option("--out", type=FILE, required=True, help="New PEM file.")
@click.option(
    "--algorithm",
    type=click.Choice(["ed25519", "ecdsa-p256"]),
    default="ed25519",
    show_default=True,
    help="Kind of key; ecdsa-p256 is for key stores that have no Ed25519.",
)
@click.option("--encrypt", is_flag=True, help="Protect the file by a password (asked for, or PRIVFAIR_KEY_PASSWORD).")
@json_option
def generate(role: str, out: Path, algorithm: str, encrypt: bool, as_json: bool) -> None:
    """Make a key pair: OUT (readable by you alone) and OUT.pub. An existing file is never overwritten."""
    key = keys.generate(keys.KeyAlgorithm(algorithm))
    named = None if role == keys.ROOT else keys.Role(role)
    public = keys.save(key, named, out, ask_password() if encrypt else None)
    if as_json:
        print_json({"key_id": key.key_id, "role": role, "private": str(out), "public": str(public)})
    else:
        click.echo(f"{role} key {key.key_id}\nprivate key: {out}\npublic key:  {public}")


@keys_command.command("trust")
@click.option("--key", "key_path", type=FILE, required=True, help="The key to trust; its public half is enough.")
@click.option("--role", type=click.Choice(ROLES), required=True, help="For whom the key speaks.")
@_out
@click.option("--append", is_flag=True, help="Add the key to the trust file that is there.")
@_key_days
@_file_days
@_root
@json_option
def trust(
    key_path: Path,
    role: str,
    out: Path,
    append: bool,
    valid_days: int,
    file_valid_days: int | None,
    root_path: Path | None,
    as_json: bool,
) -> None:
    """Trust a key for a role. Every role in the file must sign a budget; with one role, its signature is enough.

    Auditors are the exception: they sign audits, and budgets neither need nor take their signature.
    """
    now, root = _now(), _root_key(root_path)
    entry = TrustedKey.of(load_public(key_path, ask_password), Role(role), now, now + timedelta(days=valid_days))
    if append:
        trusted = _read(out, root).with_key(entry)
    elif out.exists():
        raise TrustRefused(f"{out} exists; add --append to add a key to it, or choose another name")
    else:
        trusted = TrustFile(keys=(entry,))
    _write(trusted, out, root, file_valid_days)
    if as_json:
        print_json({"trust": str(out), "roles": [r.value for r in trusted.roles], "keys": len(trusted.keys)})
    else:
        needed = " and ".join(r.value for r in trusted.roles) or "an officer or owner, who is not listed yet"
        click.echo(f"{out}: a budget needs the signature of {needed}")


@keys_command.command("revoke")
@click.option("--key-id", required=True, help="Id of the key, as `keys generate` printed it.")
@click.option("--why", required=True, help="The reason, for the record.")
@_out
@_file_days
@_root
@json_option
def revoke(
    key_id: str, why: str, out: Path, file_valid_days: int | None, root_path: Path | None, as_json: bool
) -> None:
    """Revoke a key from now on, also for what it signed earlier; a run under such a budget stops at its next block."""
    with in_our_words("--why"):
        revocation = Revocation(at=_now(), why=why)
    root = _root_key(root_path)
    _write(_read(out, root).with_revoked(key_id, revocation), out, root, file_valid_days)
    said = f"{out}: key {key_id} is revoked; budgets it signed are refused from now on"
    print_answer({"trust": str(out), "revoked": key_id}, as_json, said)


@keys_command.command("rotate")
@click.option("--key-id", required=True, help="Id of the key that is replaced, as `keys generate` printed it.")
@click.option("--key", "key_path", type=FILE, required=True, help="The key that takes its place and its role.")
@_out
@_key_days
@_file_days
@_root
@json_option
def rotate(
    key_id: str,
    key_path: Path,
    out: Path,
    valid_days: int,
    file_valid_days: int | None,
    root_path: Path | None,
    as_json: bool,
) -> None:
    """Replace a key by a new one of the same role; the old one is revoked at the same instant.

    Budgets that the old key signed are used further once the new one has signed them too: `privfair manifest sign`.
    """
    now, root = _now(), _root_key(root_path)
    successor = load_public(key_path, ask_password)
    rotated = _read(out, root).with_rotated(key_id, successor, now, now + timedelta(days=valid_days))
    _write(rotated, out, root, file_valid_days)
    said = f"{out}: key {successor.key_id} takes the place of {key_id}; sign budgets again with `manifest sign`"
    print_answer({"trust": str(out), "key_id": successor.key_id, "revoked": key_id}, as_json, said)


@keys_command.command("rotate-root")
@_out
@click.option("--handover", type=FILE, required=True, help="New file: the last trust file of the old root key.")
@click.option("--root", "root_path", type=FILE, required=True, help="The private root key that gives way.")
@click.option("--new-root", "new_path", type=FILE, required=True, help="The private root key that takes its place.")
@_file_days
@json_option
def rotate_root(
    out: Path, handover: Path, root_path: Path, new_path: Path, file_valid_days: int | None, as_json: bool
) -> None:
    """Replace the root key: HANDOVER, signed by the old one, names the new one, which signs the trust file from now on.

    Show the handover to each ledger once, with `privfair ledger trust LEDGER --trust HANDOVER --root OLD.pub`: from
    then on it takes files of the new root key and no others. A ledger that never saw it refuses the new key.
    """
    old, new = _root_key(root_path), _root_key(new_path)
    assert old is not None
    assert new is not None
    if handover.exists():
        raise TrustRefused(f"{handover} exists; choose another name for the handover")
    if old.key_id == new.key_id:
        raise TrustRefused(f"key {new.key_id} is the root key already; make a new one with `keys generate --role root`")
    last = _read(out, old).handed_over(new.public)
    _write(last, handover, old, None)
    _write(last.taken_over(), out, new, file_valid_days)
    print_answer(
        {"trust": str(out), "handover": str(handover), "root": new.key_id, "old_root": old.key_id},
        as_json,
        f"{handover}: root key {old.key_id[:16]} hands over to {new.key_id[:16]}; show it to each ledger once",
        f"{out}: signed by the new root key; give its public half with --root from now on",
    )


@keys_command.command("sign")
@_out
@_file_days
@click.option("--root", "root_path", type=FILE, required=True, help="The private root key that signs the trust file.")
@json_option
def sign(out: Path, file_valid_days: int | None, root_path: Path, as_json: bool) -> None:
    """Sign a trust file that is not signed yet with a root key; from then on every change needs that key."""
    root = _root_key(root_path)
    assert root is not None
    _write(_read(out, None), out, root, file_valid_days)
    said = f"{out}: signed by the root key; give its public half with --root wherever the file is used"
    print_answer({"trust": str(out), "root": root.key_id}, as_json, said)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _root_key(path: Path | None) -> SigningKey | None:

    return None if path is None else load_private(path, ask_password)


def _read(path: Path, root: SigningKey | None) -> TrustFile:

    return read_trust(read_named(path, "--out"), None if root is None else root.public)


def _write(trusted: TrustFile, path: Path, root: SigningKey | None, file_valid_days: int | None) -> None:
    if file_valid_days is not None:
        trusted = trusted.until(_now() + timedelta(days=file_valid_days))
    write_named(path, trusted.to_bytes() if root is None else trusted.signed(root))

"""`privfair keys`: who may sign a budget."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from privfair.cli.output import json_option, options, print_json

ROLES = ("privacy-officer", "data-owner", "auditor")

role_option = click.option("--role", type=click.Choice(ROLES), required=True, help="For whom the key speaks.")
trust_options = options(
    click.option(
        "--trust",
        "trust_path",
        type=click.Path(path_type=Path, dir_okay=False),
        required=True,
        help="Trust file: whose signatures are required.",
    ),
    click.option(
        "--root",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Public key that signed the trust file, where it is signed.",
    ),
)


def ask_password() -> bytes:
    """The password of an encrypted key: from PRIVFAIR_KEY_PASSWORD, else asked for on the terminal."""
    import os

    from calibrate.manifest.keys import PASSWORD_VARIABLE

    given = os.environ.get(PASSWORD_VARIABLE)
    return (given if given else click.prompt("Password of the key", hide_input=True, err=True)).encode()


def read_trust_file(path: Path, root: Path | None):  # type: ignore[no-untyped-def]
    """The trust file at `path`, checked by the root key where one is given."""
    from calibrate.manifest.keys import load_public
    from calibrate.manifest.trust import read_trust
    from privfair.cli.output import read_bytes

    return read_trust(read_bytes(path, "--trust"), None if root is None else load_public(root, ask_password))


@click.group("keys", short_help="make keys and say whom to trust")
def command() -> None:
    """Make signing keys, and write the trust file that says whose signatures a budget needs.

    \b
    Example:
      privfair keys generate --role privacy-officer --out officer.pem
      privfair keys trust --key officer.pem --role privacy-officer --out trust.json
      privfair keys generate --role data-owner --out owner.pem
      privfair keys trust --key owner.pem --role data-owner --out trust.json --append
    """


@command.command("generate")
@role_option
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="New PEM file.")
@click.option("--algorithm", type=click.Choice(["ed25519", "ecdsa-p256"]), default="ed25519", show_default=True)
@click.option("--encrypt", is_flag=True, help="Protect the file by a password (asked for, or PRIVFAIR_KEY_PASSWORD).")
@json_option
def generate(role: str, out: Path, algorithm: str, encrypt: bool, as_json: bool) -> None:
    """Make a key pair: OUT (readable by you alone) and OUT.pub. An existing file is never overwritten."""
    from calibrate.manifest import keys

    key = keys.generate(keys.KeyAlgorithm(algorithm))
    public = keys.save(key, keys.Role(role), out, ask_password() if encrypt else None)
    if as_json:
        print_json({"key_id": key.key_id, "role": role, "private": str(out), "public": str(public)})
    else:
        click.echo(f"{role} key {key.key_id}\nprivate key: {out}\npublic key:  {public}")


@command.command("trust")
@click.option("--key", "key_path", type=click.Path(path_type=Path, dir_okay=False), required=True)
@role_option
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Trust file.")
@click.option("--append", is_flag=True, help="Add the key to the trust file that is there.")
@click.option("--valid-days", type=click.IntRange(min=1), default=730, show_default=True)
@json_option
def trust(key_path: Path, role: str, out: Path, append: bool, valid_days: int, as_json: bool) -> None:
    """Trust a key for a role. Every role in the file must sign a budget; with one role, its signature is enough.

    Auditors are the exception: they sign audits, and budgets neither need nor take their signature.
    """
    from datetime import timedelta

    from calibrate.errors import TrustRefused
    from calibrate.manifest.keys import Role, load_public
    from calibrate.manifest.trust import TrustedKey, TrustFile, read_trust
    from privfair.cli.output import read_bytes, write_bytes

    now = datetime.now(UTC).replace(microsecond=0)
    entry = TrustedKey.of(load_public(key_path, ask_password), Role(role), now, now + timedelta(days=valid_days))
    if append:
        trusted = read_trust(read_bytes(out, "--out")).with_key(entry)
    elif out.exists():
        raise TrustRefused(f"{out} exists; add --append to add a key to it, or choose another name")
    else:
        trusted = TrustFile(keys=(entry,))
    write_bytes(out, trusted.to_bytes())
    if as_json:
        print_json({"trust": str(out), "roles": [r.value for r in trusted.roles], "keys": len(trusted.keys)})
    else:
        needed = " and ".join(r.value for r in trusted.roles) or "an officer or owner, who is not listed yet"
        click.echo(f"{out}: a budget needs the signature of {needed}")


@command.command("revoke")
@click.option("--key-id", required=True, help="Id of the key, as `keys generate` printed it.")
@click.option("--why", required=True, help="The reason, for the record.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Trust file.")
def revoke(key_id: str, why: str, out: Path) -> None:
    """Revoke a key from now on, also for what it signed earlier."""
    from calibrate.manifest.trust import Revocation, read_trust
    from privfair.cli.output import read_bytes, write_bytes

    now = datetime.now(UTC).replace(microsecond=0)
    trusted = read_trust(read_bytes(out, "--out")).with_revoked(key_id, Revocation(at=now, why=why))
    write_bytes(out, trusted.to_bytes())
    click.echo(f"{out}: key {key_id} is revoked; budgets it signed are refused from now on")

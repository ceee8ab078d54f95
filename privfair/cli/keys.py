"""Keys: who may sign a budget, and who no longer may."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from calibrate.errors import TrustRefused
from calibrate.manifest import keys
from calibrate.manifest.keys import Role, SigningKey, load_private, load_public
from calibrate.manifest.strict_json import in_our_words
from calibrate.manifest.trust import Revocation, TrustedKey, TrustFile, read_trust
from privfair.cli.config import anchor_for, ask_password, root_for
from privfair.cli.options import FILE, Subcommands, options
from privfair.cli.output import answer
from privfair.durable import read_named, write_named
from privfair.ledger import Ledger

ROLES = tuple(role.value for role in Role)
_DAYS = click.IntRange(min=1, max=36_500)


class _RoleChoice(click.Choice[str]):
    """A role; a guard's key also names its party, guard:PARTY."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        role, _, party = value.partition(":")
        if (role == Role.GUARD.value) is not bool(party):
            self.fail("a guard's key needs its party, guard:PARTY, and no other role takes one", param, ctx)
        return f"{super().convert(role, param, ctx)}:{party}" if party else super().convert(role, param, ctx)


@click.group("keys", cls=Subcommands, short_help="generate, trust, revoke")
def keys_command() -> None:
    """Make signing keys, and write the trust file that says whose signatures a budget needs.

    Each change writes the next trust file in a sequence. With a root key the file is signed, and a ledger that has
    seen it takes no earlier one; without a root key it is for trying things out.

    \b
    Example:
      privfair keys generate --role root --out root.pem
      privfair keys generate --role privacy-officer --out officer.pem
      privfair keys trust --key officer.pem --role privacy-officer --out trust.json --root root.pem
      privfair keys trust --replaces ID --key successor.pem --out trust.json --root root.pem
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
def generate(role: str, out: Path, algorithm: str, encrypt: bool) -> None:
    """Make a key pair: OUT (readable by you alone) and OUT.pub. An existing file is never overwritten."""
    key = keys.generate(keys.KeyAlgorithm(algorithm))
    named = None if role == keys.ROOT else keys.Role(role)
    public = keys.save(key, named, out, ask_password() if encrypt else None)
    answer(
        {"key_id": key.key_id, "role": role, "private": str(out), "public": str(public)},
        *(f"{role} key {key.key_id}", f"private key: {out}", f"public key:  {public}"),
    )


_change_options = options(
    click.option("--root", "root_path", type=FILE, help="Private root key that signs the trust file."),
    click.option("--out", type=FILE, required=True, help="Trust file, which is read and written."),
)


@keys_command.command("trust")
@click.option("--key", "key_path", type=FILE, help="Key to trust; its public half is enough.")
@click.option("--role", type=_RoleChoice(ROLES), help="For whom the key speaks; a guard's as guard:PARTY.")
@click.option("--append", is_flag=True, help="Add the key to the trust file that is there.")
@click.option(
    "--replaces", metavar="KEY_ID", help="Key whose role the new one takes; it is revoked at the same instant."
)
@click.option(
    "--valid-days", type=_DAYS, default=730, show_default=True, help="Days for which the key's signatures count."
)
@click.option("--file-valid-days", type=_DAYS, help="Days until the trust file is stale and a newer one is needed.")
@click.option("--new-root", "new_path", type=FILE, help="Private root key that takes the place of --root.")
@click.option("--ledger", metavar="LEDGER", help="Ledger that remembers the trust file and refuses earlier ones.")
@_change_options
def trust(
    key_path: Path | None,
    role: str | None,
    append: bool,
    replaces: str | None,
    valid_days: int,
    file_valid_days: int | None,
    new_path: Path | None,
    ledger: str | None,
    root_path: Path | None,
    out: Path,
) -> None:
    """Trust a key for a role. Every role in the file must sign a budget; with one role, its signature is enough.

    Auditors, coordinators and guards are the exception: budgets neither need nor take their signature. With keys of
    coordinators and guards in the file, guards answer signed questions only.

    \b
    Also, always with --out FILE:
      --key NEW --replaces ID      a new key for an old one; sign budgets again
      --root KEY                   sign a file that is not signed yet
      --root OLD --new-root NEW    a new root key; FILE-handover.json, which the
                                   old one signs, is for other ledgers
      --ledger LEDGER              show the file to a ledger before the next run
    """
    lifetime = None if file_valid_days is None else timedelta(days=file_valid_days)
    if key_path is not None:
        if replaces is None:
            change = _add(key_path, role, append, valid_days, lifetime, out, root_path)
        else:
            change = _replace(key_path, replaces, valid_days, lifetime, out, root_path)
    elif new_path is not None:
        change = _hand_over(out, root_path, new_path, lifetime, ledger)
        root_path = new_path
    elif root_path is not None and ledger is None:
        change = _sign(out, root_path, lifetime)
    elif ledger is not None:
        change = {"trust": str(out)}, ()
    else:
        raise click.UsageError("name what to trust: --key KEY, or --root, --new-root or --ledger (see --help)")
    document, sentences = change
    if ledger is not None:
        document |= _show_ledger(ledger, out, root_path)
        sentences += (f"{ledger}: remembers the trust file; earlier ones are refused",)
    answer(document, *sentences)


Change = tuple[dict[str, object], tuple[str, ...]]
"""What a change of the trust file is told as: a document, and sentences."""


def _add(
    key_path: Path,
    role: str | None,
    append: bool,
    valid_days: int,
    lifetime: timedelta | None,
    out: Path,
    root_path: Path | None,
) -> Change:
    if role is None:
        raise click.UsageError("--key needs --role ROLE, or --replaces KEY_ID")
    now, root = _now(), _root_key(root_path)
    speaker, _, party = role.partition(":")
    until = now + timedelta(days=valid_days)
    entry = TrustedKey.of(load_public(key_path, ask_password), Role(speaker), now, until, party or None)
    if append:
        trusted = _read(out, root).with_key(entry)
    elif out.exists():
        raise TrustRefused(f"{out} exists; add --append to add a key to it, or choose another name")
    else:
        trusted = TrustFile(keys=(entry,))
    _write(trusted, out, root, lifetime)
    needed = " and ".join(r.value for r in trusted.roles) or "an officer or owner, who is not listed yet"
    document = {"trust": str(out), "roles": [r.value for r in trusted.roles], "keys": len(trusted.keys)}
    return document, (f"{out}: a budget needs the signature of {needed}",)


def _replace(
    key_path: Path, key_id: str, valid_days: int, lifetime: timedelta | None, out: Path, root_path: Path | None
) -> Change:
    now, root = _now(), _root_key(root_path)
    successor = load_public(key_path, ask_password)
    rotated = _read(out, root).with_rotated(key_id, successor, now, now + timedelta(days=valid_days))
    _write(rotated, out, root, lifetime)
    told = f"{out}: key {successor.key_id} takes the place of {key_id}; sign budgets again with `privfair budget sign`"
    return {"trust": str(out), "key_id": successor.key_id, "revoked": key_id}, (told,)


def _hand_over(
    out: Path, root_path: Path | None, new_path: Path, lifetime: timedelta | None, ledger: str | None
) -> Change:
    """Replace the root key: a last file, signed by the old one, names the new one, which signs from now on.

    A ledger is shown the handover once, and from then on takes files of the new root key and no others. A ledger that
    never saw it refuses the new key.
    """
    if root_path is None:
        raise click.UsageError("--new-root needs --root, the private root key that gives way")
    handover = out.with_name(f"{out.stem}-handover.json")
    old, new = load_private(root_path, ask_password), load_private(new_path, ask_password)
    if handover.exists():
        raise TrustRefused(f"{handover} exists; move the earlier handover away")
    if old.key_id == new.key_id:
        raise TrustRefused(f"key {new.key_id} is the root key already; make a new one with `keys generate --role root`")
    last = _read(out, old).handed_over(new.public)
    _write(last, handover, old, None)
    if ledger is not None:
        _show_ledger(ledger, handover, root_path)
    _write(last.taken_over(), out, new, lifetime)
    return (
        {"trust": str(out), "handover": str(handover), "root": new.key_id, "old_root": old.key_id},
        (
            f"{handover}: root key {old.key_id[:16]} hands over to {new.key_id[:16]}; show it to each ledger once",
            f"{out}: signed by the new root key; name its public half as `root` in config.toml from now on",
        ),
    )


def _sign(out: Path, root_path: Path, lifetime: timedelta | None) -> Change:
    root = load_private(root_path, ask_password)
    _write(_read(out, None), out, root, lifetime)
    told = f"{out}: signed by the root key; name its public half as `root` in config.toml"
    return {"trust": str(out), "root": root.key_id}, (told,)


def _show_ledger(location: str, trust_path: Path, root_path: Path | None) -> dict[str, object]:
    """Let a ledger remember a trust file now, not at the next run."""
    root_path = root_path or root_for(trust_path)
    root = None if root_path is None else load_public(root_path, ask_password)
    seen = read_trust(read_named(trust_path, "--out"), root).seen(root)
    with Ledger.open(location, anchor_for(location)) as ledger:
        ledger.remember_trust(seen)
    return {"ledger": location, "sequence": seen.sequence, "root": seen.root, "successor": seen.successor}


@keys_command.command("revoke")
@click.option("--key-id", required=True, help="Id of the key, as `keys generate` printed it.")
@click.option("--why", required=True, help="Reason, for the record.")
@_change_options
def revoke(key_id: str, why: str, out: Path, root_path: Path | None) -> None:
    """Revoke a key from now on, also for what it signed earlier; a run under such a budget stops at its next block."""
    with in_our_words("--why"):
        revocation = Revocation(at=_now(), why=why)
    root = _root_key(root_path)
    _write(_read(out, root).with_revoked(key_id, revocation), out, root, None)
    told = f"{out}: key {key_id} is revoked; budgets it signed are refused from now on"
    answer({"trust": str(out), "revoked": key_id}, told)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _root_key(path: Path | None) -> SigningKey | None:
    return None if path is None else load_private(path, ask_password)


def _read(path: Path, root: SigningKey | None) -> TrustFile:
    return read_trust(read_named(path, "--out"), None if root is None else root.public)


def _write(trusted: TrustFile, path: Path, root: SigningKey | None, lifetime: timedelta | None) -> None:
    if lifetime is not None:
        trusted = trusted.until(_now() + lifetime)
    write_named(path, trusted.to_bytes() if root is None else trusted.signed(root))

"""The user's configuration: whom they trust, and where their ledger, its anchor and their key are.

::

    trust  = "trust.json"        # paths are relative to this file
    root   = "root.pub"          # public root key that signed the trust file
    ledger = "ledger.db"         # or a URL, postgresql+psycopg://...
    anchor = "ledger.anchor"     # where it is not next to the ledger
    key    = "officer.pem"
    witness = "witness.sock"     # of budgets that name a witness: its socket

The file is `config.toml` in the user's configuration folder, or what --config names. It is never looked for next to a
plan or a run, which may come from anyone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from calibrate.manifest.keys import PASSWORD_VARIABLE, load_public
from calibrate.manifest.trust import TrustFile, read_trust
from privfair.cli.options import FILE, asked
from privfair.durable import read_named, read_toml
from privfair.plan.sections import read_section


@dataclass(frozen=True)
class UserConfig:
    """What the user decided once for all commands; every key may be left out."""

    trust: Path | None = None
    root: Path | None = None
    ledger: str | None = None
    anchor: Path | None = None
    key: Path | None = None
    witness: Path | None = None


def config_path() -> Path:
    """The file of this invocation: what --config names, else `config.toml` in the user's configuration folder.

    A relative XDG_CONFIG_HOME counts for nothing: it would be looked for in the current folder.
    """
    home = os.environ.get("XDG_CONFIG_HOME", "")
    folder = Path(home) if os.path.isabs(home) else Path.home() / ".config"
    return asked().config or folder / "privfair" / "config.toml"


def user_config() -> UserConfig:
    """The configuration of this invocation; empty where the user has none."""
    path = config_path()
    if asked().config is None and not path.exists():
        return UserConfig()
    folder = path.parent.absolute()
    found = read_toml(path, "--config")
    found = {key: os.path.expanduser(text) if isinstance(text, str) else text for key, text in found.items()}
    config = read_section(UserConfig, path.name, found, folder)
    return replace(config, ledger=None if config.ledger is None else place_from(folder, config.ledger))


def place_from(folder: Path, ledger: str) -> str:
    """The place of a ledger as a file in `folder` names it: a URL, or a path relative to the folder."""
    return ledger if "://" in ledger else str(folder / ledger)


def root_for(trust: Path) -> Path | None:
    """The root key of a trust file: the configured one, for the configured file and for every signed one.

    An unsigned file that the user names in place of the configured one is taken as it is.
    """
    config = user_config()
    signed = b'"payload"' in read_named(trust, "--trust")
    return config.root if signed or (config.trust is not None and _same(trust, config.trust)) else None


def anchor_for(ledger: str) -> Path | None:
    """The anchor file of a ledger, where it is the configured one; LEDGER.anchor counts otherwise."""
    config = user_config()
    return config.anchor if config.ledger is not None and _same(ledger, config.ledger) else None


def _same(one: str | Path, other: str | Path) -> bool:
    return one == other or ("://" not in str(one) and os.path.realpath(one) == os.path.realpath(other))


def ask_password() -> bytes:
    """The password of an encrypted key: from PRIVFAIR_KEY_PASSWORD, else asked for on the terminal."""
    given = os.environ.get(PASSWORD_VARIABLE)
    if not given and not sys.stdin.isatty():
        raise click.UsageError(f"the key's password is needed, and no terminal can ask for it: set {PASSWORD_VARIABLE}")
    return (given if given else click.prompt("Password of the key", hide_input=True, err=True)).encode()


def read_trust_file(path: Path, root: Path | None = None) -> TrustFile:
    """The trust file at `path`, checked by the given root key, else by the configured one."""
    content, root = read_named(path, "--trust"), root or root_for(path)
    return read_trust(content, None if root is None else load_public(root, ask_password))


def fill_from_config(name: str, required: bool = False) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """What an option or argument that is not given stands for: the key `name` of the configuration."""

    def fill(_: click.Context, param: click.Parameter, value: Any) -> Any:
        if value not in (None, ()):
            return value
        found = getattr(user_config(), name)
        if found is None and required:
            shown = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name
            raise click.UsageError(f"{shown} is needed: give it, or write `{name} = ...` in {config_path()}")
        return value if found is None else (found,) if param.multiple else found

    return fill


def configured(name: str, *names: str, required: bool = False, **more: Any) -> Callable[[Any], Any]:
    """An option that the key `name` of the configuration fills in where it is not given."""
    return click.option(*names, callback=fill_from_config(name, required), **more)


_TRUST = ("trust", "--trust", "trust_path")
_LEDGER = ("ledger", "--ledger")
configured_trust = configured(*_TRUST, type=FILE, help="Trust file: whose signatures count [default: config].")
needed_trust = configured(
    *_TRUST, type=FILE, required=True, help="Trust file: whose signatures are needed [default: config]."
)
configured_ledger = configured(*_LEDGER, metavar="LEDGER", help="Ledger file or URL [default: config].")
needed_ledger = configured(*_LEDGER, required=True, metavar="LEDGER", help="Ledger file or URL [default: config].")

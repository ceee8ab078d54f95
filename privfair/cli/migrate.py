"""`privfair migrate`: which version each file is of, and what becomes of it here.

A signature covers exact bytes and a ledger is a chain of digests, so neither can be rewritten into a newer version:
such a file is read as it is, or refused with the remedy. What nobody signed can be written anew, beside the old one.
"""

from __future__ import annotations

import base64
import json
import sqlite3
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from calibrate.errors import InvalidInput, PrivfairError, Refused
from privfair.cli.output import json_option, print_json, print_wrapped, write_bytes

_SQLITE = b"SQLite format 3\0"
_OLD = ".before-migration"
_MIGRATED, _CAN_BE, _AS_IT_IS, _REFUSED = "migrated", "can be migrated", "read as it is", "refused"
_MOST_BYTES = 50_000_000
"""Of a text file that is looked into; what privfair writes as text is far smaller."""


@dataclass(frozen=True)
class Found:
    """One file: what it is, of which version, and what becomes of it here."""

    path: Path
    kind: str
    version: str
    outcome: str
    why: str = ""
    text: str | None = None
    """The file in this version's format, where it can be written anew."""


@click.command("migrate", short_help="files of older versions: read, migrated, or the remedy")
@click.argument("paths", type=click.Path(path_type=Path, exists=True), nargs=-1, required=True, metavar="PATH..")
@click.option("--write", is_flag=True, help="Write what can be migrated, beside a copy of the old file.")
@json_option
def command(paths: tuple[Path, ...], write: bool, as_json: bool) -> None:
    """Say of plans, schemas, budgets, requests, trust files, ledgers, audits and run folders which version they are of.

    Nothing that is signed is ever changed, and no ledger is: such files are read as they are, or refused with the
    remedy. Nothing is written without --write. Exit code 3 if a file is refused.

    \b
    Examples:
      privfair migrate plan-run/
      privfair migrate schema.toml --write
    """
    found = [one for path in paths for one in look_into(path)]
    if write:
        found = [_write(one) for one in found]
    if as_json:
        keys = ("path", "kind", "version", "outcome", "why")
        print_json({"files": [{key: str(getattr(one, key)) for key in keys} for one in found]})
    else:
        for one in found:
            print_wrapped(f"{one.path}: {one.kind}, {one.version}: {one.outcome}{'; ' + one.why if one.why else ''}")
        counted = {outcome: sum(one.outcome == outcome for one in found) for outcome in (_MIGRATED, _CAN_BE, _REFUSED)}
        said = ", ".join(f"{number} {outcome}" for outcome, number in counted.items() if number)
        print_wrapped(f"{len(found)} file{'' if len(found) == 1 else 's'}: {said or 'all are read as they are'}")
    if any(one.outcome == _REFUSED for one in found):
        sys.exit(Refused.exit_code)


def look_into(path: Path) -> Iterator[Found]:
    """The files of privfair in a folder and below it, or the one file, each with its version; others are passed over.

    Raises `InvalidInput` where there is none at all.
    """
    files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    seen = [one for file in files for one in (_look(file),) if one is not None]
    if not seen:
        raise InvalidInput("PATH", str(path), "is, or holds, no file that privfair writes", "name another")
    yield from seen


def _look(path: Path) -> Found | None:
    with path.open("rb") as stream:
        start = stream.read(len(_SQLITE))
    if start == _SQLITE:
        return _look_at_ledger(path)
    if path.name in ("transcript.bin", "batches.bin"):
        return _look_at_frames(path, start[:8].decode("ascii", "replace"))
    if path.suffix not in (".toml", ".json", ".anchor") or path.stat().st_size > _MOST_BYTES:
        return None
    try:
        text = path.read_text("utf-8")
        fields = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    return _look_at_plan(path, text, fields) if path.suffix == ".toml" else _look_at_json(path, fields)


def _look_at_ledger(path: Path) -> Found | None:
    from contextlib import closing

    from privfair.ledger import Ledger, LedgerAccess
    from privfair.ledger.store import TABLE

    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as opened:
            first = opened.execute(f"SELECT body FROM {TABLE} WHERE seq = 1").fetchone()
        version = f"version {json.loads(first[0])['version']}"
    except (sqlite3.Error, ValueError, KeyError, TypeError):
        return None  # another program's database

    def read() -> None:
        with Ledger.open(path, access=LedgerAccess.READ) as ledger:
            ledger.verify()

    return _read(path, "ledger", version, read)


def _look_at_frames(path: Path, version: str) -> Found:
    from privfair.batches.record import BatchRecord
    from privfair.transcript import Transcript

    if path.name == "batches.bin":
        return _read(path, "batches", version, lambda: BatchRecord.read(path))
    return _read(path, "transcript", version, lambda: Transcript.read(path))


def _look_at_plan(path: Path, text: str, fields: dict[str, Any]) -> Found | None:
    from privfair.data.schema import SCHEMA_VERSION
    from privfair.data.schema_toml import load_schema, parse_schema
    from privfair.plan.file import read_plan_file

    if "algorithm" in fields:
        return _read(path, "plan", "no version", lambda: read_plan_file(path))
    if not {"target", "numeric", "categorical"} & fields.keys():
        return None
    if "version" in fields:
        return _read(path, "schema", f"version {fields['version']}", lambda: load_schema(path))
    newer = f"version = {SCHEMA_VERSION}\n{text}"
    tried = _read(path, "schema", "no version", lambda: parse_schema(newer, str(path)))
    if tried.outcome == _REFUSED:
        return tried
    why = f"nobody signed its text, and with version = {SCHEMA_VERSION} it means what it says; give --write"
    return Found(path, "schema", "no version", _CAN_BE, why, newer)


def _look_at_json(path: Path, fields: dict[str, Any]) -> Found | None:
    from audit.report.results import AuditReport
    from calibrate.manifest.document import PAYLOAD_TYPE
    from calibrate.manifest.request import read_request
    from calibrate.manifest.trust import read_trust
    from calibrate.manifest.verify import read_unverified
    from privfair.ledger.anchor import AnchorFile
    from privfair.run.folder import RunFolder

    folder, content = RunFolder(path.parent), path.read_bytes()
    version = f"version {fields['version']}" if "version" in fields else "no version"
    if fields.get("payloadType") == PAYLOAD_TYPE:
        return _read(path, "budget", _payload(fields, "predicateType"), lambda: read_unverified(content))
    if "payloadType" in fields:
        of = _payload(fields, "type", "predicateType", "_type")
        return Found(path, "signed statement", of, _AS_IT_IS, "its signature is checked where it is used")
    if str(fields.get("type")).startswith("urn:privfair:trust:"):
        return _read(path, "trust file", str(fields["type"])[:80], lambda: read_trust(content))
    if str(fields.get("format")).startswith("urn:privfair:request:"):
        return _read(path, "request", str(fields["format"])[:80], lambda: read_request(content))
    if path.suffix == ".anchor" or {"ledger", "seq", "head"} <= fields.keys():
        return _read(path, "anchor", version, AnchorFile(path).read)
    if {"verdict", "checks", "attacks"} <= fields.keys():
        return _read(path, "audit", version, lambda: AuditReport.model_validate_json(content))
    if path in (folder.summary, folder.encoding, folder.frontier, folder.receipts):
        return _read(path, "file of a run", version, lambda: folder.read_json(path))
    return None


def _payload(fields: dict[str, Any], *names: str) -> str:
    """What an envelope says that it holds; nobody has checked a signature."""
    try:
        inside = json.loads(base64.b64decode(fields["payload"]))
        return next(str(inside[name])[:80] for name in names if name in inside)
    except (ValueError, KeyError, TypeError, StopIteration, RecursionError):
        return "no version"


def _read(path: Path, kind: str, version: str, read: Callable[[], object]) -> Found:
    """The file as the program itself reads it; what that refuses is refused here, in the same words."""
    from pydantic import ValidationError

    try:
        read()
    except PrivfairError as refusal:
        return Found(path, kind, version, _REFUSED, str(refusal))
    except ValidationError:
        return Found(path, kind, version, _REFUSED, "it is not of this version; audit the run again with --out")
    return Found(path, kind, version, _AS_IT_IS)


def _write(one: Found) -> Found:
    """The file in this version's format, if there is one to write, beside a copy of the old one."""
    if one.text is None:
        return one
    kept = one.path.with_name(one.path.name + _OLD)
    if kept.exists():
        raise InvalidInput("PATH", str(kept), "exists already", "move the earlier copy away first")
    write_bytes(kept, one.path.read_bytes())
    write_bytes(one.path, one.text.encode())
    return replace(one, outcome=_MIGRATED, why=f"the old one is {kept.name}")

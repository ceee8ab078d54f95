"""Files of other versions are refused by whatever reads them, with the remedy; nothing is guessed or rewritten."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from runpy import run_path

import pytest

from audit.report.page import read_audit
from calibrate.errors import PrivfairError
from calibrate.manifest.document import PAYLOAD_TYPE, PREDICATE_TYPE, statement_bytes
from calibrate.manifest.issue import read_request
from calibrate.manifest.keys import generate, sign
from calibrate.manifest.trust import read_trust
from calibrate.manifest.verify import read_unverified
from privfair.batches.participation import BatchRecord
from privfair.data.schema_toml import load_schema
from privfair.ledger import Ledger, LedgerAccess
from privfair.ledger.entries import GENESIS
from privfair.ledger.journal import AnchorFile
from privfair.ledger.store import TABLE
from privfair.run.folder import RunFolder
from privfair.transcript import Transcript

SCHEMA = '[target]\ncolumn = "y"\nclasses = ["n", "y"]\n[numeric.age]\nbounds = [0, 100]\n'


def _budget(version: str) -> bytes:
    samples = run_path(str(Path(__file__).parents[1] / "calibrate" / "tampered" / "samples.py"))
    statement = statement_bytes(samples["document"]()).replace(PREDICATE_TYPE.encode(), version.encode())
    return sign(PAYLOAD_TYPE, statement, generate())


def _old_ledger(path: Path) -> None:
    """A ledger whose first entry is of version 1, in the table that a ledger has."""
    Ledger.create(path).close()
    with sqlite3.connect(path) as opened:
        schema = [row[0] for row in opened.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
    path.unlink()
    path.with_name(path.name + ".anchor").unlink()
    body = '{"at":"2026-01-01T00:00:00Z","kind":"opened","ledger":"00","prev":"","seq":1,"version":1}'
    row = {"seq": 1, "prev": GENESIS.hash, "hash": hashlib.sha256(body.encode()).hexdigest(), "body": body}
    with sqlite3.connect(path) as opened:
        for statement in schema:
            opened.execute(statement)
        marks = ", ".join(f":{name}" for name in row)
        opened.execute(f"INSERT INTO {TABLE} ({', '.join(row)}) VALUES ({marks})", row)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    (folder / "run").mkdir()
    (folder / "budget.json").write_bytes(_budget("urn:privfair:budget:v1"))
    (folder / "trust.json").write_text(json.dumps({"type": "urn:privfair:trust:v0", "keys": []}))
    (folder / "request.json").write_text(json.dumps({"format": "urn:privfair:request:v0"}))
    (folder / "audit.json").write_text(json.dumps({"verdict": "consistent", "checks": 1, "attacks": []}))
    (folder / "old.anchor").write_text(json.dumps({"version": 0, "ledger": "00" * 32, "seq": 1, "head": "00" * 32}))
    (folder / "schema.toml").write_text("version = 0\n" + SCHEMA)
    (folder / "run" / "run.json").write_text('{"version": 0}')
    (folder / "run" / "transcript.bin").write_bytes(b"PFTRANS0" + bytes(100))
    (folder / "run" / "batches.bin").write_bytes(b"PFBATCH0" + bytes(100))
    _old_ledger(folder / "ledger.db")
    return folder


def _verify_ledger(path: Path) -> None:
    with Ledger.open(path, access=LedgerAccess.READ) as ledger:
        ledger.verify()


READERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "budget.json": (
        lambda path: read_unverified(path.read_bytes()),
        "have the budget calibrated and signed again by this version",
    ),
    "trust.json": (lambda path: read_trust(path.read_bytes()), "write it again with `keys trust`"),
    "request.json": (lambda path: read_request(path.read_bytes()), "give what `privfair budget request` wrote"),
    "audit.json": (read_audit, "give what `privfair audit --out` wrote"),
    "old.anchor": (lambda path: AnchorFile(path).read(), "put the true anchor back"),
    "schema.toml": (load_schema, "write version = 1"),
    "run/run.json": (
        lambda path: RunFolder(path.parent).read_json(path),
        "read it with the version of privfair that wrote it",
    ),
    "run/transcript.bin": (Transcript.read, "read it with the version of privfair that wrote it"),
    "run/batches.bin": (BatchRecord.read, "read it with the version of privfair that wrote it"),
    "ledger.db": (_verify_ledger, "make a new one with `privfair ledger init`"),
}
"""By file its reader, and the remedy that its refusal names."""


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_an_older_version_is_refused_with_the_remedy_and_left_as_it_is(old: Path, name: str) -> None:
    read, remedy = READERS[name]
    before = (old / name).read_bytes()
    with pytest.raises(PrivfairError, match=re.escape(remedy)):
        read(old / name)
    assert (old / name).read_bytes() == before


def test_a_schema_without_a_version_is_refused_with_the_line_to_write(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    with pytest.raises(PrivfairError, match="write version = 1"):
        load_schema(tmp_path / "schema.toml")

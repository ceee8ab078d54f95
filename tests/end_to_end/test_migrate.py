"""`privfair migrate`: files of other versions are read, migrated or refused with the remedy; nothing is guessed."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from pathlib import Path
from runpy import run_path

import pytest

from calibrate.manifest.document import PAYLOAD_TYPE, PREDICATE_TYPE, statement_bytes
from calibrate.manifest.keys import generate, sign
from privfair.ledger import Ledger
from privfair.ledger.entries import GENESIS
from privfair.ledger.store import TABLE
from tests.end_to_end.command_line import privfair

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


def test_whatever_cannot_be_migrated_is_refused_by_name_with_the_remedy(old: Path) -> None:
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    done = privfair("migrate", old, "--write", "--json")
    assert done.code == 3
    files = {Path(one["path"]).name: one for one in done.json()["files"]}
    remedies = {
        "budget.json": "have the budget calibrated and signed again by this version",
        "trust.json": "write it again with `keys trust`",
        "request.json": "give what `privfair request` wrote",
        "audit.json": "audit the run again",
        "old.anchor": "put the true anchor back",
        "schema.toml": "write version = 1",
        "run.json": "read it with the version of privfair that wrote it",
        "transcript.bin": "read it with the version of privfair that wrote it",
        "batches.bin": "read it with the version of privfair that wrote it",
        "ledger.db": "make a new one with `privfair ledger init`",
    }
    assert files.keys() == remedies.keys()
    for name, remedy in remedies.items():
        assert files[name]["outcome"] == "refused", name
        assert remedy in files[name]["why"], (name, files[name]["why"])
    assert files["ledger.db"]["version"] == "version 1"
    assert {path: path.read_bytes() for path in before} == before


def test_a_schema_without_a_version_is_written_anew_beside_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    path.write_text(SCHEMA)
    looked = privfair("migrate", path)
    assert looked.code == 0
    assert "1 can be migrated" in looked.out
    assert path.read_text() == SCHEMA
    done = privfair("migrate", tmp_path, "--write")
    assert done.code == 0
    assert "1 migrated" in done.out
    assert path.read_text() == "version = 1\n" + SCHEMA
    assert (tmp_path / "schema.toml.before-migration").read_text() == SCHEMA
    assert "all are read as they are" in privfair("migrate", path).out
    path.write_text(SCHEMA)
    again = privfair("migrate", path, "--write")
    assert again.code == 2
    assert "move the earlier copy away" in again.err
    path.write_text(SCHEMA.replace("bounds", "bonds"))
    assert privfair("migrate", path).code == 3


def test_what_this_version_wrote_is_read_as_it_is_and_other_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "budget.json").write_bytes(_budget(PREDICATE_TYPE))
    Ledger.create(tmp_path / "ledger.db").close()
    (tmp_path / "notes.json").write_text('["mine"]')
    (tmp_path / "broken.toml").write_text("= [")
    with sqlite3.connect(tmp_path / "other.db") as opened:
        opened.execute("CREATE TABLE mine (x)")
    done = privfair("migrate", tmp_path, "--json")
    assert done.code == 0, done.out
    kinds = {Path(one["path"]).name: (one["kind"], one["outcome"]) for one in done.json()["files"]}
    assert kinds == {
        "budget.json": ("budget", "read as it is"),
        "ledger.db": ("ledger", "read as it is"),
        "ledger.db.anchor": ("anchor", "read as it is"),
    }
    nothing = privfair("migrate", tmp_path / "other.db")
    assert nothing.code == 2
    assert "no file that privfair writes" in nothing.err

"""A file of another version is refused in one sentence that names the remedy; nothing is guessed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from runpy import run_path

import pytest

from calibrate.errors import ManifestRefused, Refused, TrustRefused
from calibrate.manifest.document import PREDICATE_TYPE, statement_bytes
from calibrate.manifest.keys import generate, sign
from calibrate.manifest.trust import TRUST_TYPE, read_trust
from calibrate.manifest.verify import PAYLOAD_TYPE, read_unverified
from privfair.batches.participation import BatchRecord
from privfair.data.read import BadData
from privfair.data.schema_toml import parse_schema
from privfair.ledger import RolledBack, Unavailable
from privfair.ledger.entries import GENESIS, Link, read_link
from privfair.ledger.journal import AnchorFile
from privfair.run.folder import RunFolder
from privfair.transcript import Transcript
from privfair.transcript.storage import TranscriptRefused

_ROOT = Path(__file__).parents[1]


def test_a_budget_of_an_older_version_is_answered_with_a_new_signature() -> None:
    samples = run_path(str(_ROOT / "calibrate" / "tampered" / "samples.py"))
    older = statement_bytes(samples["document"]()).replace(PREDICATE_TYPE.encode(), b"urn:privfair:budget:v1")
    with pytest.raises(ManifestRefused, match="have the budget calibrated and signed again by this version"):
        read_unverified(sign(PAYLOAD_TYPE, older, generate()))


def test_a_trust_file_of_an_older_version_is_answered_with_the_command_that_writes_it() -> None:
    older = json.dumps({"type": TRUST_TYPE.replace("v1", "v0"), "sequence": 1, "validUntil": None, "keys": []})
    with pytest.raises(TrustRefused, match=r"at type: .*write it again with `keys trust`"):
        read_trust(older.encode())


def test_a_ledger_of_an_older_version_is_answered_with_a_new_ledger() -> None:
    body = '{"at":"2026-01-01T00:00:00Z","kind":"opened","ledger":"00","prev":"","seq":1,"version":1}'
    row = Link(1, GENESIS.hash, hashlib.sha256(body.encode()).hexdigest(), body)
    with pytest.raises(Unavailable, match="make a new one with `privfair ledger init`"):
        read_link(row, GENESIS)


def test_an_anchor_of_another_version_is_not_taken_for_a_missing_one(tmp_path: Path) -> None:
    path = tmp_path / "ledger.anchor"
    path.write_text(json.dumps({"version": 0, "ledger": "00" * 32, "seq": 1, "head": "00" * 32}))
    with pytest.raises(RolledBack, match="put the true anchor back"):
        AnchorFile(path).read()


@pytest.mark.parametrize("name", ["run.json", "encoding.json", "frontier.json", "receipts.json"])
def test_a_run_file_of_another_version_is_answered_with_the_version_that_wrote_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text('{"version": 0}')
    with pytest.raises(Refused, match=f"{name} is of another version than 1; read it with the version of privfair"):
        RunFolder(tmp_path).read_json(tmp_path / name)


def test_a_transcript_of_another_version_is_answered_with_the_version_that_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "transcript.bin"
    path.write_bytes(b"PFTRANS0" + bytes(100))
    with pytest.raises(TranscriptRefused, match="another version; read it with the version of privfair"):
        Transcript.read(path)


def test_a_batch_record_of_another_version_is_answered_with_the_version_that_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "batches.bin"
    path.write_bytes(b"PFBATCH0" + bytes(100))
    with pytest.raises(Refused, match="another version; read it with the version of privfair"):
        BatchRecord.read(path)


def test_a_schema_of_another_version_is_answered_with_the_one_that_is_known() -> None:
    with pytest.raises(BadData, match="version 0 is not known; write version = 1"):
        parse_schema("version = 0\n[target]\ncolumn = 'x'\n")

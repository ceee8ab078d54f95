"""Twenty manifests of every kind, pinned byte for byte: they verify, show and can be priced again forever.

tests/privfair/test_pinned_drafts.py drafts them again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from calibrate.manifest.issue import recompute
from calibrate.manifest.show import as_json, render
from calibrate.manifest.trust import TrustFile, read_trust
from calibrate.manifest.verify import IntendedRun, read_unverified, verify

PINNED = Path(__file__).parent / "pinned_manifests"
MANIFESTS = sorted(path for path in PINNED.glob("*.json") if path.name != "trust.json")
NOW = datetime(2026, 11, 1, 13, tzinfo=UTC)


@pytest.fixture(scope="module")
def trust() -> TrustFile:
    return read_trust((PINNED / "trust.json").read_bytes(), at=NOW)


def test_there_are_twenty() -> None:
    assert len(MANIFESTS) == 20


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_pinned_manifest_verifies_shows_and_is_priced_again(path: Path, trust: TrustFile) -> None:
    envelope = path.read_bytes()
    document = read_unverified(envelope).document
    code = {each.name: each.sha256 for each in document.code}
    verified = verify(envelope, trust, IntendedRun(document.config_digest, document.data, code), NOW)
    assert document.algorithm in render(verified)
    assert as_json(verified)["checked"] == "signatures, plan and data"
    assert (recompute(document) is None) == path.stem.endswith("no-privacy")

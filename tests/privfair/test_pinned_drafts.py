"""The same plan, issuer, key, date and nonce give the same signed bytes as they did when they were pinned."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.privfair.pinned_drafts import PINNED, PLANS, signed


@pytest.mark.parametrize("name", PLANS)
def test_drafting_again_gives_the_pinned_bytes(name: str, tmp_path: Path) -> None:
    assert signed(name, tmp_path) == (PINNED / f"{name}.json").read_bytes()

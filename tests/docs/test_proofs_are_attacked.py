"""Every page of proofs names a test that attacks it, and every test that is named exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROOFS = sorted((ROOT / "docs" / "theorems").glob("*.md"))


@pytest.mark.parametrize("page", PROOFS, ids=lambda page: page.stem)
def test_a_proof_names_tests_that_exist(page: Path) -> None:
    named = re.findall(r"tests/[\w/*]+(?:\.py)?", page.read_text(encoding="utf-8"))
    assert named, f"{page.name} names no test that attacks it"
    assert not [name for name in named if not list(ROOT.glob(name))]


def test_there_are_proofs() -> None:
    assert len(PROOFS) >= 13

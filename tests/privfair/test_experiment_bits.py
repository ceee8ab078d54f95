"""Accuracy by bits: the page is that of its rows, and a row is what training gives again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from privfair.data.images import DEBIAN_FOLDER
from privfair_experiments import PAGES, bits


def test_the_page_is_that_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "PAGE", tmp_path / "page.md")
    bits.write_page(bits.known())
    assert (tmp_path / "page.md").read_text("utf-8") == (PAGES / "bits.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.skipif(not DEBIAN_FOLDER.exists(), reason="needs Debian's dataset-fashion-mnist")
@pytest.mark.parametrize("variant", ["7 bits", "13 bits"])
def test_a_row_is_what_training_gives(variant: str) -> None:
    """Exact sums have no order; scores are measured in float32, so an image or two may change sides elsewhere."""
    torch.set_num_threads(1)
    accuracy, _ = bits.train("MLP", variant, 1.0, 0, bits.images())
    assert accuracy == pytest.approx(bits.known()["MLP", variant, 1.0, 0], abs=3e-4)

"""What notebooks show: no text of a plan, a path or a finding becomes markup."""

from __future__ import annotations

from calibrate.notebook import as_html

HOSTILE = "<script>alert(1)</script>\"'&"


def test_every_text_is_escaped() -> None:
    shown = as_html(HOSTILE, HOSTILE, [(HOSTILE, 1.5)], header=(HOSTILE, HOSTILE), items=[HOSTILE], code=HOSTILE)
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") == 7


def test_what_is_empty_is_left_out() -> None:
    assert as_html("epsilon 1") == "<p><b>epsilon 1</b></p>"
    assert "table" not in as_html("epsilon 1", header=("value",))

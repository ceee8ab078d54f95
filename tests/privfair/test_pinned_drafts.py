"""The same plan, issuer, key, date and nonce give the same signed document as they did when they were pinned.

Processors round exponentials and logarithms differently, so noise and prices may differ in their last digits; words,
structure and the way to bytes and signatures may not.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from calibrate.manifest.document import PAYLOAD_TYPE
from calibrate.manifest.keys import add_signature, open_envelope, sign
from calibrate.manifest.strict_json import canonical
from tests.privfair.pinned_drafts import OFFICER, OWNER, PINNED, PLANS, signed

ROUNDING = 1e-9
"""Relative difference of a number on two processors; the largest seen is 3e-10."""


def assert_same(found: Any, pinned: Any, where: str = "") -> None:
    """Equal, but for the last digits of numbers that are not whole."""
    if isinstance(pinned, dict):
        assert isinstance(found, dict), where
        assert list(found) == list(pinned), where
        for key, value in pinned.items():
            assert_same(found[key], value, f"{where}/{key}")
    elif isinstance(pinned, list):
        assert isinstance(found, list), where
        assert len(found) == len(pinned), where
        for place, (one, other) in enumerate(zip(found, pinned, strict=True)):
            assert_same(one, other, f"{where}[{place}]")
    elif isinstance(pinned, float):
        assert isinstance(found, float), where
        assert math.isclose(found, pinned, rel_tol=ROUNDING), where
    else:
        assert found == pinned, where


@pytest.mark.parametrize("name", PLANS)
def test_drafting_again_gives_the_pinned_document(name: str, tmp_path: Path) -> None:
    pinned = (PINNED / f"{name}.json").read_bytes()
    payload, found = open_envelope(pinned).payload, open_envelope(signed(name, tmp_path)).payload
    assert_same(json.loads(found), json.loads(payload))
    assert canonical(json.loads(found)) == found
    assert canonical(json.loads(payload)) == payload
    again = sign(PAYLOAD_TYPE, payload, OFFICER)
    both = len(json.loads(pinned)["signatures"]) == 2
    assert (add_signature(open_envelope(again), OWNER) if both else again) == pinned


@pytest.mark.parametrize("changed", [{"a": [1.0 + 1e-8]}, {"a": [1]}, {"a": [1.0, 2.0]}, {"b": [1.0]}, {"a": "1.0"}])
def test_other_documents_are_noticed(changed: Any) -> None:
    with pytest.raises(AssertionError):
        assert_same(changed, {"a": [1.0]})

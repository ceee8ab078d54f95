"""The same plan, issuer, key, date and nonce give the same signed document as they did when they were pinned.

Processors round exponentials and logarithms differently, so noise and prices may differ in their last digits; words,
structure and the way to bytes and signatures may not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibrate.manifest.document import PAYLOAD_TYPE
from calibrate.manifest.keys import add_signature, open_envelope, sign
from calibrate.manifest.strict_json import canonical
from tests.privfair.pinned_drafts import OFFICER, OWNER, PINNED, PLANS, signed

ROUNDING = 1e-9
"""Relative difference of a number on two processors; the largest seen is 3e-10."""
LESS_NOISE, DEARER = 1e-4, 10.0
"""A later solver may find noise that is smaller by this share; prices then rise by at most this many times as much."""
_NOISES, _PRICES = ("noiseMultiplier", "sigma", "scale"), ("interval", "renyi")


def assert_same(found: Any, pinned: Any, where: str = "", less: float = 0.0) -> None:
    """Equal, but for last digits and for one factor on all noise of the document: smaller by the share `less`."""
    if isinstance(pinned, dict):
        assert isinstance(found, dict), where
        assert list(found) == list(pinned), where
        for key, value in pinned.items():
            assert_same(found[key], value, f"{where}/{key}", less)
    elif isinstance(pinned, list):
        assert isinstance(found, list), where
        assert len(found) == len(pinned), where
        for place, (one, other) in enumerate(zip(found, pinned, strict=True)):
            assert_same(one, other, f"{where}[{place}]", less)
    elif isinstance(pinned, float):
        assert isinstance(found, float), where
        steps = {step.split("[")[0] for step in where.split("/")}
        expected = pinned * (1 - less) if not steps.isdisjoint(_NOISES) else pinned
        dearer = 0.0 if steps.isdisjoint(_PRICES) else DEARER * less
        assert expected * (1 - ROUNDING) <= found <= expected * (1 + dearer + ROUNDING), where
    else:
        assert found == pinned, where


def less_noise(found: Any, pinned: Any) -> float:
    """By what share the first noise of a document is smaller than the pinned one."""
    first, other = (
        next((row[key] for row in each["predicate"]["releases"] for key in _NOISES if key in row), 1.0)
        for each in (found, pinned)
    )
    return float(1 - first / other)


@pytest.mark.parametrize("name", PLANS)
def test_drafting_again_gives_the_pinned_document(name: str, tmp_path: Path) -> None:
    pinned = (PINNED / f"{name}.json").read_bytes()
    payload, found = open_envelope(pinned).payload, open_envelope(signed(name, tmp_path)).payload
    less = less_noise(json.loads(found), json.loads(payload))
    assert -ROUNDING <= less <= LESS_NOISE
    assert_same(json.loads(found), json.loads(payload), less=max(0.0, less))
    assert canonical(json.loads(found)) == found
    assert canonical(json.loads(payload)) == payload
    again = sign(PAYLOAD_TYPE, payload, OFFICER)
    both = len(json.loads(pinned)["signatures"]) == 2
    assert (add_signature(open_envelope(again), OWNER) if both else again) == pinned


@pytest.mark.parametrize("changed", [{"sigma": 0.999991}, {"interval": 0.99999}, {"delta": 1.00001}])
def test_less_noise_changes_all_noise_by_one_factor_and_prices_upwards_only(changed: dict[str, float]) -> None:
    right = {"sigma": 0.99999, "interval": 1.00005, "delta": 1.0}
    assert_same(right, dict.fromkeys(right, 1.0), less=1e-5)
    with pytest.raises(AssertionError):
        assert_same(right | changed, dict.fromkeys(right, 1.0), less=1e-5)


@pytest.mark.parametrize("changed", [{"a": [1.0 + 1e-8]}, {"a": [1]}, {"a": [1.0, 2.0]}, {"b": [1.0]}, {"a": "1.0"}])
def test_other_documents_are_noticed(changed: Any) -> None:
    with pytest.raises(AssertionError):
        assert_same(changed, {"a": [1.0]})

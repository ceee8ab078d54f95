"""Noise that is there speaks for a promise priced with it, and not for somebody's claim."""

from __future__ import annotations

import pytest

from audit.check import Check, Layer, Outcome
from audit.verdict import Promise, Standing, Verdict, Word

NOISE = Check(Layer.NOISE, "variance", Outcome.PASSED, "noise measures 1.0000 of the signed sigma")


@pytest.mark.parametrize(
    ("standing", "word"), [(Standing.PRICED, Word.CONSISTENT), (Standing.CLAIMED, Word.INCONCLUSIVE)]
)
def test_measured_noise_supports_only_what_was_priced_with_it(standing: Standing, word: Word) -> None:
    promise = Promise(1.0, 1e-5, "somebody's words", standing)
    assert Verdict(promise, (NOISE,), (), 0.95).word is word


def test_a_claim_is_not_priced_unless_said_so() -> None:
    assert Promise(1.0, 1e-5, "what the auditor was told").standing is Standing.CLAIMED


def test_no_attack_is_credited_where_none_ran() -> None:
    why = Verdict(Promise(1.0, 1e-5, "promised", Standing.PRICED), (NOISE,), (), 0.95).why
    assert "attack" not in why
    assert "all of the signed noise" in why

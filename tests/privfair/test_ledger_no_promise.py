"""A manifest that promises nothing can be claimed and charged, but never beside a budget for the same data."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import ManifestTerms
from privfair.ledger.entries import BudgetExceeded
from tests.privfair.ledgers import DATASET, open_ledger

UNIT = PrivacyUnit.of(Relation.REPLACE_ONE)
DATA = hashlib.sha256(b"data").hexdigest()


def terms(name: str, epsilon: float | None) -> ManifestTerms:
    return ManifestTerms(
        manifest_digest=hashlib.sha256(name.encode()).hexdigest(),
        nonce=f"nonce of {name}",
        envelope_digest=hashlib.sha256(b"envelope").hexdigest(),
        rounds=5,
        epsilon=epsilon,
        delta=1e-5,
        dataset=DATASET,
        data_digest=DATA,
        valid_until=datetime.now(UTC) + timedelta(days=1),
        unit=UNIT,
    )


def test_it_is_claimed_charged_and_shown_without_an_epsilon(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.db") as ledger:
        claim = ledger.claim(terms("baseline", None))
        assert claim.charge(5) == range(5)
    with open_ledger(tmp_path / "ledger.db") as again:
        (shown,) = again.status().manifests
        assert shown.claim.epsilon is None
        assert shown.charged == 5


def test_data_with_a_budget_refuses_it(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.db") as ledger:
        ledger.set_budget(DATASET, UNIT, epsilon=2.0, delta=1e-4)
        with pytest.raises(BudgetExceeded, match="promises no privacy"):
            ledger.claim(terms("baseline", None))
        ledger.claim(terms("private", 1.0))


def test_no_budget_is_set_on_data_that_was_used_without_a_promise(tmp_path: Path) -> None:
    with open_ledger(tmp_path / "ledger.db") as ledger:
        ledger.claim(terms("baseline", None))
        with pytest.raises(BudgetExceeded, match="promised nothing for record by replace-one"):
            ledger.set_budget(DATASET, UNIT, epsilon=2.0, delta=1e-4)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, float("inf"), float("nan")])
def test_none_is_the_only_way_to_promise_nothing(epsilon: float) -> None:
    with pytest.raises(InvalidInput):
        terms("odd", epsilon)

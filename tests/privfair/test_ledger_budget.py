"""The total budget of a data set, and which terms and places a ledger takes at all."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import BudgetExceeded, Ledger, ManifestTerms

UNIT = PrivacyUnit.of(Relation.REPLACE_ONE)
DATA = hashlib.sha256(b"data").hexdigest()


def terms(name: str = "m", **changes: object) -> ManifestTerms:
    content: dict[str, object] = {
        "manifest_digest": hashlib.sha256(name.encode()).hexdigest(),
        "nonce": f"nonce of {name}",
        "envelope_digest": hashlib.sha256(b"envelope" + name.encode()).hexdigest(),
        "rounds": 10,
        "epsilon": 1.0,
        "delta": 1e-5,
        "data_digest": DATA,
        "valid_until": datetime.now(UTC) + timedelta(days=1),
        "unit": UNIT,
    }
    return ManifestTerms(**{**content, **changes})  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(tmp_path / "ledger.db")


def test_the_data_sets_budget_adds_decimals_exactly(ledger: Ledger) -> None:
    """Ten claims of 0.1 fit a budget of 1, though ten floats of 0.1 add up to a little less or more."""
    ledger.set_budget(DATA, UNIT, epsilon=1.0, delta=1e-4)
    for number in range(10):
        ledger.claim(terms(f"m{number}", epsilon=0.1, delta=1e-5))
    with pytest.raises(BudgetExceeded, match=r"epsilon budget 1\.0, earlier claims took 1\.0"):
        ledger.claim(terms("m10", epsilon=1e-9, delta=1e-5))
    ledger.claim(terms("elsewhere", epsilon=5.0, data_digest="0" * 64))
    (budget,) = ledger.status().budgets
    assert (budget.claimed_epsilon, budget.claimed_delta) == (1.0, 1e-4)


def test_delta_has_a_budget_too(ledger: Ledger) -> None:
    ledger.set_budget(DATA, UNIT, epsilon=10.0, delta=1e-5)
    ledger.claim(terms("first", delta=1e-5))
    with pytest.raises(BudgetExceeded, match="delta budget"):
        ledger.claim(terms("second", delta=1e-9))
    ledger.claim(terms("pure", delta=0.0))


def test_a_budget_is_set_once_counts_what_was_claimed_before_and_needs_one_unit(ledger: Ledger) -> None:
    ledger.claim(terms("before", epsilon=0.75))
    with pytest.raises(BudgetExceeded, match="unit of the claims"):
        ledger.set_budget(DATA, PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE), 1.0, 1e-4)
    ledger.set_budget(DATA, UNIT, 1.0, 1e-4)
    with pytest.raises(BudgetExceeded, match="never raised"):
        ledger.set_budget(DATA, UNIT, 2.0, 1e-4)
    with pytest.raises(BudgetExceeded, match="epsilon"):
        ledger.claim(terms("after", epsilon=0.5))
    with pytest.raises(BudgetExceeded, match="cannot be added up"):
        ledger.claim(terms("unit", epsilon=0.1, unit=PrivacyUnit.of(Relation.ADD_REMOVE)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("manifest_digest", "ABC"),
        ("envelope_digest", "g" * 64),
        ("data_digest", "0" * 63),
        ("nonce", ""),
        ("nonce", "line\nbreak"),
        ("rounds", 0),
        ("rounds", True),
        ("epsilon", 0.0),
        ("epsilon", float("nan")),
        ("epsilon", float("inf")),
        ("delta", 1.0),
        ("delta", -1e-9),
        ("delta", float("nan")),
        ("valid_until", datetime(2030, 1, 1)),  # no time zone
    ],
)
def test_terms_are_checked_when_made(field: str, value: object) -> None:
    with pytest.raises(InvalidInput):
        terms(**{field: value})


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("mysql://host/db", "must be a file path or"),
        ("sqlite:///x.db", "must be a file path or"),
        (":memory:", "must be a file path or"),
        ("no/such/folder/ledger.db", "existing folder"),
        ("postgresql+psycopg://host/db", "anchor"),
    ],
)
def test_a_place_that_cannot_be_a_ledger_is_refused(location: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Ledger.open(location)

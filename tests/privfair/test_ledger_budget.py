"""The total budget of a data set, and which terms and places a ledger takes at all."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from pathlib import Path

import pytest

from calibrate.compose import ORDERS, BudgetFilter, Cost, RenyiFilter, SignedCurve, Spent
from calibrate.discrete_noise import ProfileSlack
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import ClaimEnded, ClaimState, Ledger, ManifestTerms, RolledBack, Unavailable
from privfair.ledger.entries import BudgetExceeded, NotIntact, WrongLedger, undeclared_dataset
from tests.privfair.ledgers import DATASET, LEDGER, new_ledger, open_ledger

UNIT = PrivacyUnit.of(Relation.REPLACE_ONE)
ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)
DATA = hashlib.sha256(b"data").hexdigest()


def terms(name: str = "m", **changes: object) -> ManifestTerms:
    content: dict[str, object] = {
        "manifest_digest": hashlib.sha256(name.encode()).hexdigest(),
        "nonce": f"nonce of {name}",
        "envelope_digest": hashlib.sha256(b"envelope" + name.encode()).hexdigest(),
        "rounds": 10,
        "epsilon": 1.0,
        "delta": 1e-5,
        "dataset": DATASET,
        "data_digest": DATA,
        "valid_until": datetime.now(UTC) + timedelta(days=1),
        "unit": UNIT,
    }
    return ManifestTerms(**{**content, **changes})  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(tmp_path / "ledger.db")


def test_the_data_sets_budget_adds_decimals_exactly(ledger: Ledger) -> None:
    """Ten claims of 0.1 fit a budget of 1, though ten floats of 0.1 add up to a little less or more."""
    ledger.set_budget(DATASET, UNIT, epsilon=1.0, delta=1e-4)
    for number in range(10):
        ledger.claim(terms(f"m{number}", epsilon=0.1, delta=1e-5))
    with pytest.raises(BudgetExceeded, match=r"epsilon 1\.0, earlier claims took 1 and this one asks for 1e-09"):
        ledger.claim(terms("m10", epsilon=1e-9, delta=1e-5))
    ledger.claim(terms("elsewhere", epsilon=5.0, dataset="another data set"))
    budget, elsewhere = ledger.status().budgets
    assert (budget.claimed_epsilon, budget.claimed_delta, budget.left) == (1.0, 1e-4, 0.0)
    assert (elsewhere.epsilon, elsewhere.claimed_epsilon, elsewhere.left) == (None, 5.0, None)


def test_one_record_fewer_is_the_same_data_set(ledger: Ledger) -> None:
    """The declared identity is what a budget is kept by, not the digest of names and sizes."""
    ledger.set_budget(DATASET, UNIT, epsilon=1.0, delta=1e-4)
    ledger.claim(terms("all records", epsilon=0.75))
    with pytest.raises(BudgetExceeded):
        ledger.claim(terms("one record fewer", epsilon=0.75, data_digest="0" * 64))


def test_delta_has_a_budget_too(ledger: Ledger) -> None:
    ledger.set_budget(DATASET, UNIT, epsilon=10.0, delta=1e-5)
    ledger.claim(terms("first", delta=1e-5))
    with pytest.raises(BudgetExceeded, match="of delta 1e-05"):
        ledger.claim(terms("second", delta=1e-9))
    ledger.claim(terms("pure", delta=0.0))


def test_a_budget_is_set_once_and_counts_what_was_claimed_before(ledger: Ledger) -> None:
    ledger.claim(terms("before", epsilon=0.75))
    ledger.set_budget(DATASET, UNIT, 1.0, 1e-4)
    with pytest.raises(BudgetExceeded, match="never raised"):
        ledger.set_budget(DATASET, UNIT, 2.0, 1e-4)
    with pytest.raises(BudgetExceeded, match="epsilon"):
        ledger.claim(terms("after", epsilon=0.5))


def test_a_release_about_a_record_spends_the_attributes_budget_too(ledger: Ledger) -> None:
    ledger.set_budget(DATASET, ATTRIBUTE, 1.0, 1e-4)
    ledger.claim(terms("records", epsilon=0.75))
    with pytest.raises(BudgetExceeded, match="attribute by replace-attribute of epsilon"):
        ledger.claim(terms("attributes", epsilon=0.5, unit=ATTRIBUTE))
    ledger.claim(terms("less", epsilon=0.25, unit=ATTRIBUTE))


def test_an_add_remove_promise_counts_twice_where_units_are_replaced(ledger: Ledger) -> None:
    ledger.set_budget(DATASET, UNIT, 1.0, 1e-4)
    with pytest.raises(BudgetExceeded, match=r"asks for 1\.2"):
        ledger.claim(terms("too much", epsilon=0.6, unit=PrivacyUnit.of(Relation.ADD_REMOVE)))
    ledger.claim(terms("enough", epsilon=0.5, unit=PrivacyUnit.of(Relation.ADD_REMOVE)))
    assert ledger.status().budgets[0].claimed_epsilon == 1.0


def test_a_promise_about_attributes_does_not_fit_a_budget_for_records(ledger: Ledger) -> None:
    ledger.set_budget(DATASET, UNIT, 1.0, 1e-4)
    with pytest.raises(BudgetExceeded, match="would bound nothing any more"):
        ledger.claim(terms("attributes", epsilon=0.1, unit=ATTRIBUTE))


def gaussian_curve(sigma: float) -> SignedCurve:
    """What one Gaussian release of this noise multiplier has: order / (2 sigma^2)."""
    return SignedCurve(tuple((order, order / (2 * sigma**2)) for order in ORDERS), ProfileSlack(1e-10, 2.0**-250))


def test_a_renyi_filter_admits_more_claims_and_no_more_than_its_total(ledger: Ledger) -> None:
    """Claims of epsilon 0.35 at delta 1e-5: two fit by basic composition, several more are proved to fit."""
    ledger.set_budget(DATASET, UNIT, epsilon=1.0, delta=1e-4)
    assert ledger.status().budgets[0].filter == "smaller"
    found = RenyiFilter.of(1.0, 1e-4)
    assert found is not None
    made = int(found.repeats(Spent(Cost(Fraction(0), Fraction(0)), gaussian_curve(12.0))))
    assert 4 < made < 20
    for number in range(made):
        ledger.claim(terms(f"m{number}", epsilon=0.35, curve=gaussian_curve(12.0)))
    with pytest.raises(BudgetExceeded, match=r"of its Renyi filter and this one asks for"):
        ledger.claim(terms("one more", epsilon=0.35, curve=gaussian_curve(12.0)))
    budget = ledger.status().budgets[0]
    assert (budget.filter, budget.claimed_epsilon) == ("renyi", pytest.approx(0.35 * made))
    assert budget.used == pytest.approx(1.0, abs=1.5 / made)
    assert budget.left == pytest.approx(1 - budget.used)
    assert budget.odometer_epsilon is not None
    assert 1.0 <= budget.odometer_epsilon <= 2.0
    with pytest.raises(BudgetExceeded, match="states no Renyi divergences"):
        ledger.claim(terms("old", epsilon=1e-6))
    ledger.verify()


def test_a_budget_keeps_the_filter_that_its_first_claim_decided(ledger: Ledger) -> None:
    """A choice in view of later claims would depend on data; an officer may also name the filter."""
    ledger.set_budget(DATASET, UNIT, epsilon=1.0, delta=1e-4)
    ledger.claim(terms("large", epsilon=0.9, curve=gaussian_curve(4.0)))
    with pytest.raises(BudgetExceeded, match=r"of epsilon 1\.0, earlier claims took 0\.9"):
        ledger.claim(terms("small", epsilon=0.2, curve=gaussian_curve(1000.0)))
    ledger.set_budget("other", UNIT, 1.0, 1e-4, BudgetFilter.RENYI)
    with pytest.raises(BudgetExceeded, match="so it must be signed again"):
        ledger.claim(terms("no curve", epsilon=0.1, dataset="other"))
    ledger.set_budget("basic", UNIT, 1.0, 1e-4, BudgetFilter.BASIC)
    ledger.claim(terms("first", epsilon=0.6, dataset="basic", curve=gaussian_curve(1000.0)))
    with pytest.raises(BudgetExceeded, match="of epsilon"):
        ledger.claim(terms("second", epsilon=0.6, dataset="basic", curve=gaussian_curve(1000.0)))
    with pytest.raises(InvalidInput, match="has no proof"):
        ledger.set_budget("pure", UNIT, 1.0, 0.0, BudgetFilter.RENYI)


def test_a_ledger_of_the_second_format_goes_on_by_basic_composition() -> None:
    from privfair.ledger.book import Book
    from privfair.ledger.entries import Link

    book, first = Book(), {"at": "2026-01-01T00:00:00Z"}
    opened = {"kind": "open", "ledger": LEDGER, "version": 2}
    capped = {"dataset": "d", "delta": 0.5, "epsilon": 1, "kind": "budget", "unit": "record by replace-one"}
    for seq, content in enumerate((opened, capped), start=1):
        body = json.dumps(first | content | {"prev": book.head.hash, "seq": seq}, sort_keys=True, separators=(",", ":"))
        book.replay(Link(seq, book.head.hash, hashlib.sha256(body.encode()).hexdigest(), body))
    assert book.filter_on("d", UNIT, None) is None
    assert book.budgets["d", UNIT].epsilon == 1.0


def test_every_other_ledger_refuses_a_manifest(tmp_path: Path, ledger: Ledger) -> None:
    with Ledger.create(tmp_path / "second.db") as second, pytest.raises(WrongLedger, match="signed for ledger 1e1e1e"):
        second.claim(terms(ledgers=(LEDGER,)))
    ledger.claim(terms(ledgers=("0" * 64, LEDGER)))


def test_a_ledger_may_refuse_what_was_signed_for_none(tmp_path: Path) -> None:
    """A budget that names no ledger could be claimed in a second one as well."""
    with Ledger.create(tmp_path / "strict.db", bound_only=True) as strict:
        with pytest.raises(WrongLedger, match="signed for no ledger in particular"):
            strict.claim(terms())
        strict.claim(terms(ledgers=(strict.identity,)))
        assert strict.status().manifests[0].claim.ledgers
        strict.verify()


def test_status_tells_what_was_left_undeclared(ledger: Ledger) -> None:
    ledger.claim(terms("no name", dataset=undeclared_dataset(DATA)))
    ledger.claim(terms("named"))
    first, second = ledger.status().manifests
    assert (first.claim.ledgers, first.dataset_declared, second.dataset_declared) == ((), False, True)


def test_opening_makes_no_ledger(tmp_path: Path) -> None:
    """A typo in a path must not give a budget a second life."""
    with pytest.raises(Unavailable, match="privfair ledger init"):
        Ledger.open(tmp_path / "typo.db")
    assert not list(tmp_path.iterdir())
    Ledger.create(tmp_path / "ledger.db").close()
    with pytest.raises(WrongLedger, match="a ledger is never replaced"):
        Ledger.create(tmp_path / "ledger.db")
    (tmp_path / "ledger.db").unlink()
    with pytest.raises(RolledBack):
        Ledger.create(tmp_path / "ledger.db")


def test_an_abandoned_run_stays_spent_and_says_why(ledger: Ledger) -> None:
    claim = ledger.claim(terms())
    claim.charge(4)
    ledger.abandon(claim.manifest, "the machine is gone")
    (status,) = ledger.status().manifests
    assert (status.state, status.charged, status.abandoned) == (ClaimState.ABANDONED, 4, "the machine is gone")
    with pytest.raises(ClaimEnded):
        claim.charge(1)
    with pytest.raises(ClaimEnded):
        ledger.abandon(claim.manifest, "again")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A backup of a ledger in which one run is open, and a budget is partly spent."""
    with new_ledger(tmp_path / "first.db") as ledger:
        ledger.set_budget(DATASET, UNIT, 2.0, 1e-4)
        ledger.claim(terms("before", ledgers=(LEDGER,))).charge(4)
        ledger.backup(tmp_path / "backup")
    return tmp_path / "backup"


def test_a_backup_that_is_complete_goes_on(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "first.db").unlink()
    with Ledger.restore(saved, tmp_path / "first.db") as ledger:
        assert ledger.identity == LEDGER
        assert ledger.status().manifests[0].state is ClaimState.OPEN
        ledger.claim(terms("next", ledgers=(LEDGER,)))


@pytest.mark.parametrize("anchor", ["is ahead", "is lost"])
def test_a_restore_that_may_have_lost_claims_lets_nothing_be_spent_twice(
    saved: Path, tmp_path: Path, anchor: str
) -> None:
    with Ledger.open(tmp_path / "first.db") as ledger:
        ledger.claim(terms("forgotten", ledgers=(LEDGER,)))
    (tmp_path / "first.db").unlink()
    if anchor == "is lost":
        (tmp_path / "first.db.anchor").unlink()
    with Ledger.restore(saved, tmp_path / "first.db") as restored:
        assert restored.identity != LEDGER
        (status,) = restored.status().manifests
        assert (status.state, status.charged) == (ClaimState.CLOSED, 4)
        assert restored.status().budgets[0].left == 0.0
        with pytest.raises(WrongLedger):
            restored.claim(terms("forgotten", ledgers=(LEDGER,)))
        with pytest.raises(BudgetExceeded, match="is treated as spent"):
            restored.claim(terms("new", epsilon=0.1, ledgers=(restored.identity,)))
        with pytest.raises(BudgetExceeded, match="earlier claims may be missing"):
            restored.set_budget("another data set", UNIT, 1.0, 1e-5)
        restored.claim(terms("other data", dataset="another data set", ledgers=(restored.identity,)))
        restored.verify()
    with Ledger.open(tmp_path / "first.db") as again:
        assert again.verify()[0] == 6


def test_a_restore_takes_no_place_that_is_taken_and_no_damaged_backup(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(WrongLedger):
        Ledger.restore(saved, tmp_path / "first.db")
    lines = saved.read_text().splitlines()
    for damaged in ([], lines[1:], [lines[0], lines[2]], [lines[0], "{}"], [lines[0].replace("open", "shut")]):
        other = tmp_path / "damaged"
        other.write_text("\n".join(damaged))
        with pytest.raises(NotIntact):
            Ledger.restore(other, tmp_path / "second.db")
    assert not (tmp_path / "second.db").exists()


def test_a_ledger_of_the_first_format_says_what_to_do(tmp_path: Path) -> None:
    from privfair.ledger.book import Book
    from privfair.ledger.entries import Link

    body = f'{{"at":"2026-01-01T00:00:00Z","kind":"open","ledger":"{LEDGER}","prev":"{"0" * 64}","seq":1,"version":1}}'
    with pytest.raises(Unavailable, match="privfair ledger init"):
        Book().replay(Link(1, "0" * 64, hashlib.sha256(body.encode()).hexdigest(), body))


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
        open_ledger(location)

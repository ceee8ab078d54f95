"""Another tool's release is charged to a data set's limit before it is made, or refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy.exc import OperationalError

import privfair as pf
from calibrate.compose import BudgetFilter
from calibrate.errors import InvalidInput, LedgerRefused
from privfair.cli import cli
from privfair.ledger import ClaimState, LedgerAccess, Unavailable
from privfair.ledger.entries import BudgetExceeded, Claimed, WrongLedger
from privfair.ledger.store import Store

WARD = "clinic/ward7"
NOISY = pf.Gaussian(8.0).sampled(pf.Poisson(0.1)) * 10


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with pf.Ledger.create(tmp_path / "ledger.db") as ledger:
        ledger.set_budget(WARD, "add-remove", epsilon=1.0, delta=1e-5, filter_by=BudgetFilter.BASIC)
    return tmp_path / "ledger.db"


def test_a_release_is_priced_and_charged_on_disk_before_the_block_runs(place: Path) -> None:
    with pf.Ledger(place) as ledger, ledger.charge(WARD, release=NOISY, delta=1e-6, why="mean age") as paid:
        assert paid.epsilon == NOISY.epsilon(delta=1e-6).upper
        with pf.Ledger(place, access=LedgerAccess.READ) as other:  # what is on disk while the block runs
            (found,) = other.status().manifests
            assert (found.charged, found.state) == (1, ClaimState.EXHAUSTED)
            assert found.claim.declared == f"declared, not enforced: {NOISY!r}"
            assert (found.claim.purpose, found.claim.curve is None) == ("mean age", False)
            assert other.receipts() == (paid.receipt,)
    with pf.Ledger(place, access=LedgerAccess.READ) as other:
        assert other.verify()[0] == other.status().entries
        assert other.status().manifests[0].state is ClaimState.CLOSED
    (total,) = paid.totals
    assert total.left == pytest.approx(1 - paid.epsilon)
    assert total.odometer_epsilon is not None


def test_the_limit_is_kept_and_a_block_that_raises_stays_paid(place: Path) -> None:
    with pf.Ledger(place) as ledger:
        with pytest.raises(ZeroDivisionError), ledger.charge(WARD, epsilon=0.75):
            _ = 1 / 0
        (kept,) = ledger.status().manifests
        assert (kept.state, kept.abandoned) == (ClaimState.ABANDONED, "the release ended with ZeroDivisionError")
        with pytest.raises(BudgetExceeded, match=r"earlier claims took 0\.75 and this one asks for 0\.3"):
            ledger.charge(WARD, epsilon=0.3)
        assert ledger.charge(WARD, epsilon=0.25).totals[0].left == 0


def test_a_data_set_without_a_limit_and_a_ledger_of_signed_budgets_take_no_declared_charge(
    place: Path, tmp_path: Path
) -> None:
    with pf.Ledger(place) as ledger, pytest.raises(BudgetExceeded, match=r"'clinic/ward8' has no limit"):
        ledger.charge("clinic/ward8", epsilon=0.1)
    with pf.Ledger.create(tmp_path / "strict.db", bound_only=True) as strict:
        strict.set_budget(WARD, "add-remove", epsilon=1.0, delta=1e-5)
        with pytest.raises(WrongLedger, match="no one signed it"):
            strict.charge(WARD, epsilon=0.1)
        assert strict.status().manifests == ()


def test_a_coarser_or_finer_unit_follows_the_rules_of_signed_claims(place: Path) -> None:
    with pf.Ledger(place) as ledger:
        with pytest.raises(BudgetExceeded, match="protects attribute by replace-attribute"):
            ledger.charge(WARD, epsilon=0.1, relation="replace-attribute")
        assert ledger.charge(WARD, epsilon=0.1, relation="add-remove").totals[0].claimed_epsilon == 0.1


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"release": NOISY, "epsilon": 1.0},
        {"release": NOISY},
        {"release": pf.NonPrivate("a photo", depends_on_unit=True), "delta": 1e-6},
        {"epsilon": 0.0},
        {"epsilon": float("nan")},
        {"epsilon": 0.1, "delta": 1.0},
    ],
)
def test_what_has_no_price_is_refused_and_charges_nothing(place: Path, wrong: dict[str, object]) -> None:
    with pf.Ledger(place) as ledger:
        with pytest.raises(InvalidInput):
            ledger.charge(WARD, **wrong)  # type: ignore[arg-type]
        assert ledger.status().manifests == ()


def test_a_ledger_that_can_not_be_written_refuses(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise OperationalError("insert", None, Exception("the disk is gone"))

    with pf.Ledger(place) as ledger, monkeypatch.context() as broken:
        broken.setattr(Store, "append", fails)
        with pytest.raises((Unavailable, OperationalError)):
            ledger.charge(WARD, epsilon=0.1)
    with pf.Ledger(place, access=LedgerAccess.READ) as reader, pytest.raises(LedgerRefused):
        reader.charge(WARD, epsilon=0.1)


def test_a_pure_epsilon_spends_of_a_renyi_filter_what_a_coin_spends(tmp_path: Path) -> None:
    with pf.Ledger.create(tmp_path / "ledger.db") as ledger:
        ledger.set_budget(WARD, "add-remove", epsilon=1.0, delta=1e-5, filter_by=BudgetFilter.RENYI)
        ledger.charge(WARD, release=NOISY, delta=1e-6)
        ledger.charge(WARD, epsilon=0.1)
        curve = ledger.status().manifests[-1].claim.curve
        assert curve is not None
        order, divergence = curve.points[0]
        p = 1 / (1 + math.exp(-0.1))  # Renyi divergence of the coin, written out
        exact = math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)
        assert exact <= divergence <= exact * (1 + 1e-6)
        with pytest.raises(BudgetExceeded, match="states no Renyi divergences"):
            ledger.charge(WARD, epsilon=0.1, delta=1e-7)


def test_entries_without_a_declaration_keep_their_spelling() -> None:
    assert Claimed.model_fields["declared"].exclude_if is not None


def test_the_command_charges_and_says_that_nothing_enforces_it(place: Path) -> None:
    arguments = ["ledger", "charge", WARD, "--ledger", str(place), "--unit", "record"]
    release = ["--noise-multiplier", "8", "--sampling-rate", "0.1", "--rounds", "10", "--delta", "1e-6"]
    found = CliRunner().invoke(cli, [*arguments, *release, "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert (told["kind"], told["guarantee"]) == ("charged", "declared, not enforced")
    assert told["epsilon"] == NOISY.epsilon(delta=1e-6).upper
    assert told["budgets"][0]["left"] == pytest.approx(1 - told["epsilon"])
    shown = CliRunner().invoke(cli, ["ledger", "status", str(place)])
    assert "declared, not enforced" in " ".join(shown.output.split())
    assert CliRunner().invoke(cli, [*arguments, "--epsilon", "1", "--rounds", "2"]).exit_code == 2
    assert isinstance(CliRunner().invoke(cli, [*arguments, "--epsilon", "1"]).exception, LedgerRefused)

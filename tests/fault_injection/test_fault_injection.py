"""Runs that meet a fault at a durable operation keep every promise; the module tries all operations as a command."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fault_injection.__main__ import postgresql
from tests.fault_injection.campaign import SQLITE, Store, attempts
from tests.fault_injection.faults import Fault
from tests.fault_injection.schemes import SCHEMES, Scheme
from tests.postgres_server import NotInstalled

pytestmark = pytest.mark.filterwarnings("ignore")


def _require_all_well(
    name: str, store: Store, folder: Path, every: int, faults: tuple[Fault, ...] = tuple(Fault)
) -> None:
    done = list(attempts(Scheme.at(folder / "scheme", name), store, folder / "trial", every, faults))
    assert len({one.at for one in done}) == -(-done[0].operations // every)
    assert not [(one.what, one.wrong) for one in done if one.wrong]


@pytest.mark.parametrize("name", ["shuffled epochs"])
def test_a_run_killed_at_a_durable_operation_resumes_and_publishes_nothing_twice_or_unpaid(
    name: str, tmp_path: Path
) -> None:
    _require_all_well(name, SQLITE, tmp_path, every=60, faults=(Fault.KILL,))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_every_sampling_survives_kills_torn_writes_full_disks_and_errors(name: str, tmp_path: Path) -> None:
    _require_all_well(name, SQLITE, tmp_path, every=12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shuffled epochs", "randomised once"])
def test_a_run_with_a_ledger_in_postgresql_survives_them_too(name: str, tmp_path: Path) -> None:
    try:
        with postgresql() as store:
            _require_all_well(name, store, tmp_path, every=20)
    except NotInstalled as missing:
        pytest.skip(str(missing))


def test_a_folder_that_was_prepared_and_never_claimed_is_begun_by_resuming(tmp_path: Path) -> None:
    """A kill between making the folder and the claim: plan and manifest are there, nothing was spent."""
    from tests.fault_injection.campaign import Trial
    from tests.fault_injection.faults import KILLED, Shim

    scheme = Scheme.at(tmp_path / "scheme", "full batches")
    trial = Trial.fresh(scheme, SQLITE, tmp_path / "trial")
    assert trial.train(Shim(Fault.KILL, 5), resume=False) == KILLED
    assert [name for name in os.listdir(trial.run.path) if not name.startswith(".")]
    assert not trial.run.begun
    assert trial.train(Shim(), resume=False) != 0, "without --resume nothing is written over"
    assert "--resume" in trial.said()
    assert trial.train(Shim(), resume=True) == 0

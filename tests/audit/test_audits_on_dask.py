"""Canary runs and shadow models on a Dask cluster on loopback, with a worker that is killed."""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audit.coins.training_audit import audit_training
from audit.executors import executor_of
from calibrate.errors import InvalidInput
from privfair_experiments.sweep import results as sweep_results
from tests.audit import strangers_training as strangers


def dies_once(data: Any) -> Any:
    """The first worker that gets here is killed in the middle of its run, as a machine that loses power."""
    mark = Path(os.environ["PRIVFAIR_TEST_MARK"])
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return strangers.silent(data)
    os.kill(os.getpid(), signal.SIGKILL)
    return time


def squared(job: int) -> int:
    """A job of a sweep."""
    return job**2


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.true_noise
def test_a_killed_worker_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed", reason="needs distributed")
    monkeypatch.setenv("PRIVFAIR_TEST_MARK", str(tmp_path / "died"))
    alone = audit_training(strangers.silent, strangers.census(200), runs=6, canaries=10)
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, host="127.0.0.1"
        ) as cluster,
        executor_of(1, cluster.scheduler_address) as executor,
    ):
        found = audit_training(dies_once, strangers.census(200), runs=6, canaries=10, executor=executor)
        where = argparse.Namespace(workers=1, scheduler=cluster.scheduler_address)
        rows = list(sweep_results(where, squared, range(5)))
    assert (tmp_path / "died").exists()
    assert found == alone
    assert rows == [0, 1, 4, 9, 16]


@pytest.mark.slow
def test_a_scheduler_that_does_not_answer_is_refused() -> None:
    pytest.importorskip("distributed", reason="needs distributed")
    with pytest.raises(InvalidInput, match="start it"), executor_of(1, "not-an-address"):
        pass


def test_a_sweep_in_processes_finds_the_rows_of_one_process_in_the_same_order() -> None:
    for workers in (1, 2):
        where = argparse.Namespace(workers=workers, scheduler=None)
        assert list(sweep_results(where, squared, range(7))) == [0, 1, 4, 9, 16, 25, 36]


def test_threads_and_processes_are_at_hand() -> None:
    for threads in (True, False):
        with executor_of(2, None, threads) as pool:
            assert pool is not None
            assert pool.submit(np.sum, [1, 2]).result() == 3
    with executor_of(1, None) as nothing:
        assert nothing is None

"""Processes beside one in which torch has threads: a plain fork of it would hang at its first large computation."""

from __future__ import annotations

import os
import sys
import time

import torch

from audit.executors import executor_of


def test_a_fork_of_a_process_with_threads_ends() -> None:
    """Guards are forked by these tests (`sites.py`), whatever OMP_NUM_THREADS says."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _compute()
        child = os.fork()
        if child == 0:
            _compute()
            os._exit(0)
        assert _ended(child, within=120.0)
    finally:
        torch.set_num_threads(before)


def _compute() -> None:
    torch.ones(10**6).exp().sum()


def _ended(child: int, within: float) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return False


def test_workers_of_an_audit_are_fresh_processes() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + 123)  # a fork would have it too
    try:
        with executor_of(2, None) as executor:
            assert executor is not None
            assert executor.submit(sys.getrecursionlimit).result(timeout=120) != limit + 123
    finally:
        sys.setrecursionlimit(limit)


def test_threads_and_one_worker_start_no_process() -> None:
    with executor_of(1, None) as nobody:
        assert nobody is None
    with executor_of(2, None, threads=True) as executor:
        assert executor is not None
        assert executor.submit(os.getpid).result() == os.getpid()

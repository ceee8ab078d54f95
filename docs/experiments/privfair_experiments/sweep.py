"""Where the jobs of an experiment run: here, in processes of this machine, or on a Dask cluster. The rows are the same.

A job depends on its own description alone: it makes its own ledger in a folder that it throws away, so a job whose
worker was killed is simply done again. Workers of a cluster need the experiments on their path:

    PYTHONPATH=docs/experiments dask worker tcp://127.0.0.1:8786
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Job = TypeVar("Job")
Found = TypeVar("Found")


def add_flags(parser: argparse.ArgumentParser, workers: int = 1) -> None:
    """`--workers` and `--scheduler`; `workers` is the number of processes unless given."""
    parser.add_argument("--workers", "--processes", type=int, default=workers, help="processes on this machine")
    parser.add_argument("--scheduler", help="address of a Dask scheduler, for example tcp://127.0.0.1:8786")


def results(chosen: argparse.Namespace, work: Callable[[Job], Found], jobs: Sequence[Job]) -> Iterator[Found]:
    """What `work` finds for each job, in the order of the jobs, wherever `chosen` has them run."""
    from audit.executors import executor_of

    with executor_of(chosen.workers, chosen.scheduler) as executor:
        yield from map(work, jobs) if executor is None else executor.map(work, jobs)

"""Where long audits run: here, in processes or threads of this machine, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from privfair.cli.output import options

if TYPE_CHECKING:
    from concurrent.futures import Executor

scheduler_option = click.option(
    "--scheduler", help="Address of a Dask scheduler, for example tcp://127.0.0.1:8786; a killed worker loses nothing."
)
worker_options = options(
    click.option(
        "--workers",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="Number of processes that call the function side by side.",
    ),
    scheduler_option,
)


@contextmanager
def executor_of(workers: int, scheduler: str | None, threads: bool = False) -> Iterator[Executor | None]:
    """None for one worker, which runs here, so that an interrupt stops it at once."""
    if scheduler is not None:
        with _dask(scheduler) as executor:
            yield executor
        return
    if workers == 1:
        yield None
        return
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    from multiprocessing import get_context

    # Fresh processes: in the fork of one in which torch has threads, its next parallel computation never ends.
    pool = ThreadPoolExecutor(workers) if threads else ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    from calibrate.errors import InvalidInput

    try:
        from distributed import Client
    except ImportError as error:
        raise InvalidInput(
            "--scheduler", address, "needs Dask, which is not installed", "pip install 'privfair[dask]'"
        ) from error
    try:
        client = Client(address, timeout="10s")  # type: ignore[no-untyped-call,unused-ignore]
    except (OSError, ValueError) as error:
        raise InvalidInput(
            "--scheduler", address, f"does not answer ({error})", "start it, or check the address"
        ) from error
    with client:
        # Runs are pure, so that a task whose worker died may simply be run again.
        yield client.get_executor(pure=False, retries=3)  # type: ignore[no-untyped-call,unused-ignore]

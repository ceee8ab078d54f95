"""Where long audits run: here, in processes or threads of this machine, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TypeVar

from calibrate.errors import InvalidInput

Call = TypeVar("Call")
Result = TypeVar("Result")


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
    # Fresh processes: in the fork of one in which torch has threads, its next parallel computation never ends.
    pool = ThreadPoolExecutor(workers) if threads else ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
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


def finished(
    executor: Executor | None, function: Callable[[Call], Result], calls: Sequence[Call]
) -> Iterator[tuple[Call, Result]]:
    """Each call with its result: here one after another, or under the executor, the first to finish first.

    An interrupt cancels the calls that have not begun and is passed on.
    """
    if executor is None:
        yield from ((call, function(call)) for call in calls)
        return
    waiting: dict[Future[Result], Call] = {executor.submit(function, call): call for call in calls}
    try:
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    finally:
        for future in waiting:
            future.cancel()

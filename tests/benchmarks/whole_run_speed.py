"""A whole SteFFLe run on Credit Card: three silos, 40 epochs of batches of 256, ledger, transcript and metrics on.

Beside the times: what computing the silos stacked could gain at most. A round's three contributions are timed one after
the other, and against one contribution over as many records, which is what stacking would approach.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from privfair import training
from privfair.noise import ExactNoise
from privfair.run.prepare import PreparedRun
from privfair.run.public import Measuring
from privfair.training import prepare
from privfair.transcript import TranscriptWriter
from tests.privfair.small_runs import Desk
from tests.sections import write_section

_LIMIT = 60.0
_REPEATS = 300
_PLAN = """algorithm = "steffle"
[target]
epsilon = 1.0
delta = 1e-5
[privacy]
silo-size = 7500
batch-size = 256
rounds = 1200
minority-fraction = 0.35
lipschitz = 1.0
w-radius = 0.5
[data]
dataset = "credit-card"
[data.partition]
kind = "equal"
silos = 3
[training]
group-frequencies = [0.4, 0.6]
learning-rate = 0.5
"""


def main() -> int:
    with TemporaryDirectory() as place:
        desk = Desk.at(Path(place), _PLAN, lambda _: None)
        budget = desk.budget()
        prepared = prepare(desk.plan, budget, desk.trust)
        apart, together = _contributions(prepared)
        parts = {name: _Timed(owner, method) for name, (owner, method) in _parts(prepared).items()}
        wall, processor = time.perf_counter(), time.process_time()
        result = desk.train(budget)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    rounds = result.to_json()["rounds"]
    text = _page(wall, processor, rounds, {name: part.seconds for name, part in parts.items()}, apart - together)
    write_section("whole-run", text)
    print(text)
    return int(processor > _LIMIT or parts["contributions"].seconds < processor / 2)


class _Timed:
    """The processor seconds that a method takes in the run itself, under the load of that very moment."""

    def __init__(self, owner: Any, method: str) -> None:
        self.seconds = 0.0
        untimed = getattr(owner, method)

        def timed(*given: Any, **named: Any) -> Any:
            begin = time.process_time_ns()
            try:
                return untimed(*given, **named)
            finally:
                self.seconds += (time.process_time_ns() - begin) / 1e9

        setattr(owner, method, timed)


def _parts(run: PreparedRun) -> dict[str, tuple[Any, str]]:
    """What a run is made of; the rest is ledger, batches, loop, checkpoints, and reading the data."""
    return {
        "contributions": (type(run.algorithm), "contribution"),
        "noise": (ExactNoise, "gaussian"),
        "transcript": (TranscriptWriter, "append"),
        "metrics": (Measuring, "measure"),
        "reading and checking the data": (training, "prepare"),
    }


def _contributions(run: PreparedRun) -> tuple[float, float]:
    """Seconds of a round's contributions, silo by silo; and of one contribution over all their records."""
    state, batch = run.algorithm.start(), torch.arange(256)
    first = run.silos[0]
    pooled = replace(
        first,
        x=torch.cat([silo.x[batch] for silo in run.silos]),
        y=torch.cat([silo.y[batch] for silo in run.silos]),
        s=torch.cat([silo.s[batch] for silo in run.silos]),
    )
    everybody = torch.arange(len(pooled))

    def apart() -> None:
        for silo in run.silos:
            run.algorithm.contribution(state, 0, silo, batch)

    apart_times, together_times = [], []
    for _ in range(_REPEATS):
        apart_times.append(_timed(apart))
        together_times.append(_timed(lambda: run.algorithm.contribution(state, 0, pooled, everybody)))
    return statistics.median(apart_times), statistics.median(together_times)


def _timed(work: Callable[[], object]) -> float:
    begin = time.process_time_ns()
    work()
    return (time.process_time_ns() - begin) / 1e9


def _page(wall: float, processor: float, rounds: int, parts: dict[str, float], gain: float) -> str:
    parts = {**parts, "ledger, batches, updates, checkpoints, loop": processor - sum(parts.values())}
    rows = "".join(
        f"| {name} | {seconds:.2f} | {1e3 * seconds / rounds:.2f} | {seconds / processor:.0%} |\n"
        for name, seconds in parts.items()
    )
    return f"""# A whole run

Written by `python -m tests.benchmarks.whole_run_speed`, torch {torch.__version__}, one thread: SteFFLe on Credit Card,
three silos of 7,500, logistic regression, shuffled batches of 256, {rounds:,} rounds (40 epochs), exact noise, ledger,
transcript and batch record on, all metrics about a hundred times; reading and checking the data included.

**{processor:.1f} s of processor time** (promised: under {_LIMIT:.0f} s), {rounds / processor:.0f} rounds per second;
wall time {wall:.1f} s at a load of {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores. Each part is timed in the run
itself, so that a busy machine changes the seconds and barely the shares. Promised: everything around the contributions
costs at most as much as they do.

| | seconds | ms per round | share |
|---|---:|---:|---:|
{rows}
**Stacking silos of equal shape** could gain at most {1e3 * gain:.1f} ms per round: so much less does one contribution
over the records of all three batches take than three contributions. The rest is silo by silo by its nature.
"""


if __name__ == "__main__":
    sys.exit(main())

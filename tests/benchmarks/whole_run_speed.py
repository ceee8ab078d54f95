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

import torch

from calibrate.manifest.issue import issue
from calibrate.manifest.keys import generate
from privfair.ledger import Ledger
from privfair.plan.file import read_plan_file
from privfair.plan.issue import Issuing, promise
from privfair.run.prepare import PreparedRun
from privfair.training import prepare, train
from tests.privfair.small_runs import trusting

_PAGE = Path("docs/benchmarks/whole-run.md")
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
        folder = Path(place)
        plan, budget, trust = folder / "plan.toml", folder / "budget.json", folder / "trust.json"
        plan.write_text(_PLAN, encoding="utf-8")
        key = generate()
        trust.write_bytes(trusting(key).to_bytes())
        file = read_plan_file(plan)
        budget.write_bytes(issue(promise(file, file.target(), Issuing())[1], key))
        Ledger.create(folder / "ledger.db").close()
        wall, processor = time.perf_counter(), time.process_time()
        result = train(plan, manifest=budget, trust=trust, ledger=folder / "ledger.db", out=folder / "run")
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        apart, together = _contributions(prepare(plan, budget, trust))
    text = _page(wall, processor, result.to_json()["rounds"], apart, together)
    _PAGE.write_text(text, encoding="utf-8")
    print(text)
    return int(processor > _LIMIT)


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


def _page(wall: float, processor: float, rounds: int, apart: float, together: float) -> str:
    share = rounds * apart / processor
    gain = rounds * (apart - together)
    return f"""# A whole run

Written by `python -m tests.benchmarks.whole_run_speed`, torch {torch.__version__}, one thread: SteFFLe on Credit Card,
three silos of 7,500, logistic regression, shuffled batches of 256, {rounds:,} rounds (40 epochs), exact noise, ledger,
transcript and batch record on, all metrics after every round; loading and checking the data included.

| | |
|---|---:|
| processor time | {processor:.1f} s (promised: under {_LIMIT:.0f} s) |
| wall time | {wall:.1f} s, at a load of {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores |
| rounds a second of processor time | {rounds / processor:.0f} |
| contributions of a round, silo by silo | {1e3 * apart:.2f} ms, {100 * share:.0f}% of the run |
| one contribution over as many records | {1e3 * together:.2f} ms |

The last two lines bound what **stacking silos of equal shape** could gain in the round loop: at most {gain:.1f} s of
{processor:.1f} s ({100 * gain / processor:.0f}%). The rest is noise, ledger, transcript and metrics, which are silo by
silo by their nature.
"""


if __name__ == "__main__":
    sys.exit(main())

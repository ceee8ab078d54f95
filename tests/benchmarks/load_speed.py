"""Large inputs: a file of a million rows and 50 columns, a run of 1,000 silos, a run of 20,000 rounds.

Each part runs in a process of its own, so that its memory is its own, and is held against a limit of processor time.
Name some of the parts to run only those: `python -m tests.benchmarks.load_speed rows silos rounds`.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tests.sections import write_section

_ROWS, _COLUMNS, _SILOS, _ROUNDS = 1_000_000, 50, 1_000, 20_000
_LIMITS = {"rows": 36.0, "silos": 12.0, "rounds": 28.5}
"""Seconds of processor time: one and a half times what an earlier version needed."""
_WHAT = {
    "rows": f"read, check, encode and split a CSV file of {_ROWS:,} rows x {_COLUMNS} columns",
    "silos": f"train {_SILOS:,} silos of 40 records for 5 rounds, ledger and transcript on",
    "rounds": f"train {_ROUNDS:,} rounds of one silo, exact noise, ledger and transcript on",
}
_GAUSSIAN = """algorithm = "gaussian"
[target]
epsilon = 8.0
delta = 1e-5
[privacy]
sampling-rate = {rate}
rounds = {rounds}
clip = 1.0
[data]
files = ["data.csv"]
schema = "schema.toml"
at-least = {least}
{partition}
[training]
learning-rate = 0.1
measure-every = {rounds}
"""


def _write(folder: Path, rows: int, columns: int) -> None:
    """Numbers with three decimals, a class and a group; a large file repeats its first 100,000 rows."""
    generator = np.random.default_rng(0)
    names = [f"x{number}" for number in range(columns - 2)]
    schema = ['version = 1\n[target]\ncolumn = "label"\nclasses = ["no", "yes"]']
    schema += ['[sensitive]\ncolumn = "group"\ngroups = ["a", "b"]']
    schema += [f"[numeric.{name}]\nbounds = [-5, 5]" for name in names]
    (folder / "schema.toml").write_text("\n".join(schema) + "\n", encoding="utf-8")
    with (folder / "data.csv").open("w", encoding="utf-8") as file:
        file.write(",".join([*names, "label", "group"]) + "\n")
        for begin in range(0, min(rows, 100_000), 10_000):
            size = min(10_000, rows - begin)
            numbers = np.round(generator.normal(size=(size, columns - 2)), 3).clip(-5, 5).astype(str)
            ends = np.where(generator.random((size, 2)) < 0.5, ["no", "a"], ["yes", "b"])
            text = "\n".join(",".join(row) for row in np.hstack([numbers, ends]).tolist()) + "\n"
            file.write(text * max(1, rows // 100_000))


def read_rows(folder: Path) -> Callable[[], int]:
    """Through the production loader, under a promise for records that can be added or removed."""
    from privfair.data.stability import RECORD_ADDED
    from privfair.data.training_data import load_training_data
    from privfair.plan.training import read_training_plan

    _write(folder, _ROWS, _COLUMNS)
    (folder / "plan.toml").write_text(_GAUSSIAN.format(rate=0.01, rounds=1, least=1000, partition=""), encoding="utf-8")
    plan = read_training_plan(folder / "plan.toml").data
    return lambda: sum(load_training_data(plan, unit=RECORD_ADDED).parties.sizes)


def train_silos(folder: Path) -> Callable[[], int]:
    partition = f'[data.partition]\nkind = "equal"\nsilos = {_SILOS}'
    return _training(folder, 40 * _SILOS, 12, _GAUSSIAN.format(rate=0.5, rounds=5, least=5, partition=partition))


def train_rounds(folder: Path) -> Callable[[], int]:
    return _training(folder, 400, 12, _GAUSSIAN.format(rate=0.05, rounds=_ROUNDS, least=200, partition=""))


def _training(folder: Path, rows: int, columns: int, plan: str) -> Callable[[], int]:
    from tests.privfair.small_runs import Desk

    desk = Desk.at(folder, plan, lambda place: _write(place, rows, columns))
    budget = desk.budget()
    return lambda: int(desk.train(budget).to_json()["rounds"])


_PARTS = {"rows": read_rows, "silos": train_silos, "rounds": train_rounds}


def measure(part: str) -> dict[str, float]:
    """Processor time and largest memory of one part, without making its files."""
    with TemporaryDirectory() as place:
        work = _PARTS[part](Path(place))
        wall, processor = time.perf_counter(), time.process_time()
        work()
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return {"wall": wall, "processor": processor, "gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def main(parts: list[str]) -> int:
    if parts[:1] == ["--one"]:
        print(json.dumps(measure(parts[1])))
        return 0
    found: dict[str, dict[str, float]] = {}
    for part in parts or _PARTS:
        command = [sys.executable, "-m", "tests.benchmarks.load_speed", "--one", part]
        found[part] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(part, found[part], flush=True)
    if set(found) == set(_PARTS):
        write_section("load", _page(found))
    return int(any(one["processor"] > _LIMITS[part] for part, one in found.items()))


def _page(found: dict[str, dict[str, float]]) -> str:
    lines = [
        "# Large inputs",
        "",
        "Written by `python -m tests.benchmarks load`, one thread. Limits are one and a half times what an earlier",
        "version needed.",
        "",
        "| what | processor time | limit | wall time | largest memory |",
        "|---|---:|---:|---:|---:|",
    ]
    for part, one in found.items():
        lines.append(
            f"| {_WHAT[part]} | {one['processor']:.1f} s | {_LIMITS[part]:g} s | {one['wall']:.0f} s | "
            f"{one['gib']:.2f} GiB |"
        )
    above = [part for part, one in found.items() if one["processor"] > _LIMITS[part]]
    load, cores = os.getloadavg()[1], os.cpu_count()
    said = f"Measured at a load of {load:.0f} on {cores} cores; processor time grows where cores and caches are shared."
    kept = f"Above its limit in this measurement: {', '.join(above)}." if above else "All are within their limits."
    return "\n".join(lines) + f"\n\n{said} {kept}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

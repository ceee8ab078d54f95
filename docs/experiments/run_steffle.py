"""Error against fairness for SteFFLe and pay-once, with controls: `python docs/experiments/run_steffle.py`.

About ten minutes on two cores. Needs the extras train, data and plot. Writes steffle.md (from steffle-template.md),
steffle.json and one figure a data set beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steffle_split import Row

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--splits", type=int, help="fewer splits than the experiment's own, for a quick look")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--again", action="store_true", help="only write page and figures, from steffle.json")
    chosen = parser.parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # before numpy is loaded; the processes share the cores
    sys.path.insert(0, str(HERE))
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = chosen.out / "steffle.json"
    if not chosen.again:
        _save(_run(chosen.splits, chosen.processes), results)
    _write(results, chosen.out)


def _run(splits: int | None, processes: int) -> list[Row]:
    from steffle_settings import SETTINGS
    from steffle_split import Job, run_job

    jobs = [
        Job(setting.name, h, split)
        for setting in SETTINGS
        for h in setting.heterogeneity
        for split in range(min(setting.splits, splits or setting.splits))
    ]
    rows: list[Row] = []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for number, found in enumerate(pool.map(run_job, jobs), start=1):
            rows += found
            print(f"{number}/{len(jobs)} {jobs[number - 1]}", file=sys.stderr, flush=True)
    return rows


def _save(rows: list[Row], path: Path) -> None:
    """Every measured model, one line each."""
    lines = ",\n".join(json.dumps([_rounded(value) for value in asdict(row).values()]) for row in rows)
    names = json.dumps(list(asdict(rows[0])))
    path.write_text(f'{{"columns": {names},\n"rows": [\n{lines}\n]}}\n', "utf-8")


def _rounded(value: object) -> object:
    return round(value, 5) if isinstance(value, float) else value


def _write(results: Path, out: Path) -> None:
    from steffle_plots import draw
    from steffle_report import write_report
    from steffle_settings import SETTINGS
    from steffle_split import Row
    from steffle_summary import summarise

    rows = [Row(*values) for values in json.loads(results.read_text("utf-8"))["rows"]]
    points = summarise(rows)
    for setting in SETTINGS:
        draw(setting, points, out)
    print(write_report(points, HERE / "steffle-template.md", out / "steffle.md"))


if __name__ == "__main__":
    main()

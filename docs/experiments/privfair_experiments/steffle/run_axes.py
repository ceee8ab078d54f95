"""SteFFLe's own axes: error against parity and odds gaps, beside its competitors: `make experiments NAME=steffle-axes`.

About forty minutes of one core for all. Rows are added split by split: SteFFLe, pay-once and the controls to
data/steffle.json.gz, which steffle.md shares, the rest to data/steffle-axes.json.gz, the sweeps to
data/steffle-sweeps.json.gz; a method that has rows of a split is not run again. Writes steffle-axes.md and its figures.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from privfair_experiments import PAGES
from privfair_experiments.seed_intervals import load_rows, save_rows
from privfair_experiments.steffle.axes import BESIDE, RIVALS, main_jobs, run_axes, swept_jobs
from privfair_experiments.steffle.axes_report import write_page
from privfair_experiments.steffle.split import TRAINERS, Row, missing_methods, run_job, with_found

SPLITS, SWEPT_SPLITS = 12, 5
STEFFLE, AXES, SWEEPS = (f"data/{name}.json.gz" for name in ("steffle", "steffle-axes", "steffle-sweeps"))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--out", type=Path, default=PAGES)
    parser.add_argument("--minutes", type=float, help="begin no further split after so many minutes of processor time")
    parser.add_argument("--again", action="store_true", help="only write the page, from the rows that are there")
    chosen = parser.parse_args(arguments)
    if not chosen.again:
        _run(chosen)
    rows = [load_rows(Row, chosen.out / name) for name in (STEFFLE, AXES, SWEEPS)]
    write_page([*rows[0], *rows[1]], rows[2], chosen.out)


def _run(chosen: argparse.Namespace) -> None:

    order = [
        (STEFFLE, run_job, main_jobs(TRAINERS, chosen.splits, 0.0)),
        (AXES, run_axes, main_jobs(RIVALS, chosen.splits, 0.0)),
        (STEFFLE, run_job, main_jobs(TRAINERS, chosen.splits, 0.75)),
        (AXES, run_axes, main_jobs(RIVALS, chosen.splits, 0.75)),
        (AXES, run_axes, main_jobs(BESIDE, chosen.splits, 0.0)),
        (SWEEPS, run_axes, swept_jobs(min(chosen.splits, SWEPT_SPLITS))),
    ]
    for name, work, wanted in order:
        rows = load_rows(Row, chosen.out / name)
        for job in (missing_methods(one, rows) for one in wanted):
            late = chosen.minutes is not None and time.process_time() > 60 * chosen.minutes
            if job.methods and not late:
                rows = with_found(rows, work(job))
                save_rows(rows, chosen.out / name)
                print(f"{job}, {time.process_time():.0f} s", file=sys.stderr, flush=True)

"""MMD-fair FedAvg against what the paper compares it with: `make experiments NAME=mmd`.

About a quarter of an hour on one core. Needs the extras train, data and plot. Writes mmd.md (from mmd-template.md), its
figures, data/mmd.json.gz and data/mmd-private.json.gz into `--out`; delete the rows to train everything anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from privfair_experiments import PAGES
from privfair_experiments.mmd.cells import jobs, real_cell, run_job
from privfair_experiments.mmd.plots import draw_curve, draw_fronts, draw_synthetic
from privfair_experiments.mmd.private import CHOSEN, PrivateRow, run_seed, tune
from privfair_experiments.mmd.report import write_report
from privfair_experiments.mmd.settings import CURVE_WEIGHT, REAL, SAMPLES, SEEDS
from privfair_experiments.mmd.stacked import CurvePoint, loss_curve
from privfair_experiments.mmd.training import Row
from privfair_experiments.seed_intervals import load_rows, save_rows
from privfair_experiments.sweep import add_flags
from privfair_experiments.sweep import results as results_of


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, help="fewer seeds than the experiment's own, for a quick look")
    parser.add_argument("--out", type=Path, default=PAGES)
    add_flags(parser)
    parser.add_argument("--again", action="store_true", help="only write page and figures, from its rows")
    parser.add_argument("--tune", action="store_true", help="only print what private schedules reach on tuning seeds")
    chosen = parser.parse_args(arguments)
    if chosen.tune:
        tune()
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = chosen.out / "data" / "mmd.json.gz"
    if not chosen.again:
        _run(chosen, results)
    _write(results, chosen.out)


def _run(chosen: argparse.Namespace, results: Path) -> None:
    """Job by job; what stands in the file already is not trained again, so an interrupted run goes on."""
    rows, limit = load_rows(Row, results), SEEDS if chosen.seeds is None else chosen.seeds
    missing = [job for job in jobs() if (chosen.seeds is None or job.seed < limit) and not job.is_in(rows)]
    for found in results_of(chosen, run_job, missing):
        rows += found
        print(found[-1], file=sys.stderr, flush=True)
        save_rows(rows, results)
    private = load_rows(PrivateRow, _private_of(results))
    for seed in range(limit):
        for setting in CHOSEN:
            if (setting.task, seed) not in {(row.task, row.seed) for row in private}:
                private += run_seed(setting, seed)
                save_rows(private, _private_of(results))
    path, task = _curve_of(results), REAL[0].name
    curve = load_rows(CurvePoint, path)
    for seed in sorted(set(range(limit)) - {point.seed for point in curve}):
        curve += loss_curve(real_cell(task, seed), task, CURVE_WEIGHT, SAMPLES)
        save_rows(curve, path)


def _curve_of(results: Path) -> Path:
    return results.with_name("mmd-curve.json.gz")


def _private_of(results: Path) -> Path:
    return results.with_name("mmd-private.json.gz")


def _write(results: Path, out: Path) -> None:

    rows, curve = load_rows(Row, results), load_rows(CurvePoint, _curve_of(results))
    draw_synthetic(rows, out / "mmd-synthetic.svg")
    draw_fronts(rows, out / "mmd-fronts.svg")
    draw_curve(curve, out / "mmd-curve.svg")
    private = load_rows(PrivateRow, _private_of(results))
    print(write_report(rows, private, curve, PAGES / "mmd-template.md", out / "mmd.md"))

"""MMD-fair FedAvg against what the paper compares it with: `python docs/experiments/run_mmd.py`.

About a quarter of an hour on one core. Needs the extras train, data and plot. Writes mmd.md (from mmd-template.md), its
figures, data/mmd.json.gz and data/mmd-private.json.gz into `--out`; delete the rows to train everything anew.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    sys.path.insert(0, str(HERE))
    from sweep import add_flags

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, help="fewer seeds than the experiment's own, for a quick look")
    parser.add_argument("--out", type=Path, default=HERE)
    add_flags(parser)
    parser.add_argument("--again", action="store_true", help="only write page and figures, from its rows")
    chosen = parser.parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # before numpy is loaded
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = chosen.out / "data" / "mmd.json.gz"
    if not chosen.again:
        _run(chosen, results)
    _write(results, chosen.out)


def _run(chosen: argparse.Namespace, results: Path) -> None:
    """Job by job; what stands in the file already is not trained again, so an interrupted run goes on."""
    from mmd_cells import jobs, real_cell, run_job
    from mmd_private import CHOSEN, PrivateRow, run_seed
    from mmd_settings import CURVE_WEIGHT, REAL, SAMPLES, SEEDS
    from mmd_stacked import CurvePoint, loss_curve
    from mmd_training import Row
    from seed_intervals import load_rows, save_rows
    from sweep import results as results_of

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
    from mmd_plots import draw_curve, draw_fronts, draw_synthetic
    from mmd_private import PrivateRow
    from mmd_report import write_report
    from mmd_stacked import CurvePoint
    from mmd_training import Row
    from seed_intervals import load_rows

    rows, curve = load_rows(Row, results), load_rows(CurvePoint, _curve_of(results))
    draw_synthetic(rows, out / "mmd-synthetic.svg")
    draw_fronts(rows, out / "mmd-fronts.svg")
    draw_curve(curve, out / "mmd-curve.svg")
    private = load_rows(PrivateRow, _private_of(results))
    print(write_report(rows, private, curve, HERE / "mmd-template.md", out / "mmd.md"))


if __name__ == "__main__":
    main()

"""Every private method on the same data at the same true epsilon: `python docs/experiments/run_comparison.py`.

About ten minutes of one core. Needs the extras train, data and plot. Every run goes through calibration, signature,
ledger and gate. Writes comparison.md (from comparison-template.md), comparison.json and comparison.svg here; an
interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    sys.path.insert(0, str(HERE))
    from sweep import add_flags

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--seeds", type=int, help="fewer seeds than the experiment's own, for a quick look")
    parser.add_argument("--afresh", action="store_true", help="forget the rows in comparison.json")
    add_flags(parser)
    parser.add_argument("--again", action="store_true", help="only write the page, from comparison.json")
    chosen = parser.parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # before numpy is loaded
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = chosen.out / "comparison.json"
    if chosen.afresh:
        results.unlink(missing_ok=True)
    if not chosen.again:
        _run(results, chosen)
    _write(results, chosen.out)


def _run(results: Path, chosen: argparse.Namespace) -> None:
    """Seed by seed; rows are written as they come, so that an interrupted run loses none."""
    from comparison_plans import EPSILONS, SEEDS, SETTINGS
    from comparison_training import Job, jobs_of, run_job
    from sweep import results as results_of

    rows = _rows(results)
    done = {Job(row.data, row.method, row.epsilon, row.seed) for row in rows}
    jobs = [job for seed in SEEDS[: chosen.seeds] for s in SETTINGS for job in jobs_of(s, EPSILONS, (seed,))]
    missing = [job for job in jobs if job not in done]
    for number, row in enumerate(results_of(chosen, run_job, missing), start=1 + len(jobs) - len(missing)):
        rows.append(row)
        lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
        results.write_text(f"[\n{lines}\n]\n", "utf-8")
        print(f"{number}/{len(jobs)} {rows[-1]}", file=sys.stderr, flush=True)


def _rows(results: Path) -> list:
    from comparison_training import Row

    return [Row(**row) for row in json.loads(results.read_text("utf-8"))] if results.exists() else []


def _write(results: Path, out: Path) -> None:
    from comparison_report import write_report

    print(write_report(_rows(results), out))


if __name__ == "__main__":
    main()

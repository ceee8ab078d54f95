"""FedFDP and its baselines on Fashion-MNIST at one true epsilon: `python docs/experiments/run_fedfdp.py`.

About half an hour of one core. Needs the extras train and plot, and Debian's dataset-fashion-mnist. Writes fedfdp.md
(from fedfdp-template.md), fedfdp.json and fedfdp.svg beside this file; an interrupted run goes on where it stopped.
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--afresh", action="store_true", help="forget the rows in fedfdp.json")
    parser.add_argument("--again", action="store_true", help="only write page and figure, from fedfdp.json")
    chosen = parser.parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # before numpy is loaded
    sys.path.insert(0, str(HERE))
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = chosen.out / "fedfdp.json"
    if chosen.afresh:
        results.unlink(missing_ok=True)
    if not chosen.again:
        _run(results)
    _write(results, chosen.out)


def _run(results: Path) -> None:
    """Seed by seed, every method; each row is on disk before the next begins."""
    from fedfdp_settings import SEEDS, methods
    from fedfdp_training import federation, run

    rows = _rows(results)
    for seed in SEEDS:
        missing = [m for m in methods() if not any((r.method, r.seed) == (m.name, seed) for r in rows)]
        on = federation(seed) if missing else None
        for method in missing:
            assert on is not None
            rows.append(run(method, on, seed))
            lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
            results.write_text(f"[\n{lines}\n]\n", "utf-8")
            print(rows[-1], file=sys.stderr, flush=True)


def _rows(results: Path) -> list:
    from fedfdp_training import Row

    return [Row(**row) for row in json.loads(results.read_text("utf-8"))] if results.exists() else []


def _write(results: Path, out: Path) -> None:
    from fedfdp_report import write_report
    from fedfdp_rounds import afforded_rounds
    from fedfdp_settings import methods

    print(write_report(_rows(results), afforded_rounds(), methods(), out))


if __name__ == "__main__":
    main()

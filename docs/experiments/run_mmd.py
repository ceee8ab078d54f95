"""MMD-fair FedAvg against what the paper compares it with: `python docs/experiments/run_mmd.py`.

About ten minutes on one core. Needs the extras train, data and plot. Writes mmd.md (from mmd-template.md), mmd.json and
the figures beside this file.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmd_training import Row

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, help="fewer seeds than the experiment's own, for a quick look")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--again", action="store_true", help="only write page and figures, from mmd.json")
    chosen = parser.parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # before numpy is loaded
    sys.path.insert(0, str(HERE))
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = chosen.out / "mmd.json"
    if not chosen.again:
        _run(chosen.seeds, results)
    _write(results, chosen.out)


def _run(seeds: int | None, results: Path) -> None:
    """Seed by seed, so that an interrupted run leaves whole seeds behind."""
    from mmd_settings import REAL_SEEDS, SYNTHETIC_SEEDS
    from seed_intervals import save_rows

    rows: list[Row] = []
    for seed in range(min(seeds or SYNTHETIC_SEEDS, SYNTHETIC_SEEDS)):
        cells = [_synthetic(seed)]
        if seed < REAL_SEEDS:
            cells.append(_real(seed))
        for found in reversed(cells):
            for row in found:
                rows.append(row)
                print(row, file=sys.stderr, flush=True)
        save_rows(rows, results)


def _synthetic(seed: int) -> Iterator[Row]:
    from mmd_settings import (
        ABLATION_METHODS,
        ABLATION_OWN,
        ABLATION_WEIGHT,
        PRIVATE,
        PRIVATE_WEIGHTS,
        SYNTHETIC_CLIENTS,
        SYNTHETIC_METHODS,
        SYNTHETIC_WEIGHTS,
    )

    for own in ABLATION_OWN:
        whole = own == 1.0
        methods, weights = (
            (SYNTHETIC_METHODS, SYNTHETIC_WEIGHTS) if whole else (ABLATION_METHODS, (ABLATION_WEIGHT,))
        )
        yield from _cells("synthetic", seed, own, SYNTHETIC_CLIENTS, methods, weights)
    for method, setting in PRIVATE.items():
        yield from _cells("synthetic", seed, 1.0, setting.clients, (method,), PRIVATE_WEIGHTS)


def _cells(
    task: str, seed: int, own: float, clients: int, methods: tuple, weights: tuple[float, ...]
) -> Iterator[Row]:
    import torch
    from mmd_settings import SYNTHETIC, SYNTHETIC_RECORDS
    from mmd_training import Cell, Clients, Row, run_cell

    from privfair.datasets.synthetic_mmd import DIMENSIONS, synthetic_mmd_clients
    from privfair.models.logistic import LogisticRegression

    silos = synthetic_mmd_clients(seed, clients, SYNTHETIC_RECORDS, own)
    cell = Cell(Clients.of(silos, seed, torch.float64), LogisticRegression(DIMENSIONS), SYNTHETIC, seed)
    for method in methods:
        for weight in weights:
            yield Row(task, method.value, weight, own, seed, *run_cell(cell, method, weight))


def _real(seed: int) -> Iterator[Row]:
    import torch
    from mmd_settings import FEDFB_RATES, HIDDEN, REAL, REAL_WEIGHTS, Method
    from mmd_training import Cell, Clients, Row, run_cell

    from privfair.datasets.catalogue import load_benchmark
    from privfair.datasets.partition import ByColumn, cut_into_silos
    from privfair.models.perceptron import Perceptron

    for task in REAL:
        silos = cut_into_silos(load_benchmark(task.benchmark), ByColumn(task.column, task.least), seed)
        clients = Clients.of(silos, seed, torch.float32)
        model = Perceptron(clients.x.shape[1], (HIDDEN,))
        cell = Cell(clients, model, task.schedule, seed)
        knobs = {
            **dict.fromkeys((Method.OURS, Method.LOCAL, Method.FAIRFED), REAL_WEIGHTS),
            Method.FEDFB: FEDFB_RATES,
            Method.AGNOSTIC: (0.0,),
        }
        for method, values in knobs.items():
            for knob in values:
                yield Row(task.name, method.value, knob, 1.0, seed, *run_cell(cell, method, knob))


def _write(results: Path, out: Path) -> None:
    from mmd_plots import draw_fronts, draw_synthetic
    from mmd_report import write_report
    from mmd_training import Row
    from seed_intervals import load_rows

    rows = load_rows(Row, results)
    draw_synthetic(rows, out / "mmd-synthetic.svg")
    draw_fronts(rows, out / "mmd-fronts.svg")
    print(write_report(rows, HERE / "mmd-template.md", out / "mmd.md"))


if __name__ == "__main__":
    main()

"""FedFDP and its baselines on three image sets at true epsilons: `make experiments NAME=fedfdp`.

About half a minute of one core per cell; a cell that is in data/fedfdp.json.gz is not run again. The one run of the
paper's net is `python -m tests.benchmarks.large_model_speed --whole FOLDER` (about 40 minutes of one core);
`--net FOLDER` takes its measurements into data/fedfdp-net.json.gz.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from privfair.plan.data import Benchmark
from privfair_experiments import PAGES
from privfair_experiments.fedfdp.cells import Cell, FedfdpRow, cells, run
from privfair_experiments.fedfdp.report import NetRow, write_page
from privfair_experiments.images.clients import add_flags, add_missing, federation
from privfair_experiments.seed_intervals import load_rows, save_rows

SEEDS = 5


def net_rows(metrics: Path) -> list[NetRow]:
    """What a run's metrics.jsonl says of its clients."""
    found = []
    for line in metrics.read_text("utf-8").splitlines():
        told = json.loads(line)
        overall, clients = told["overall"], told["clients"]
        found.append(
            NetRow(
                step=told["step"],
                accuracy=overall["accuracy"],
                worst=clients["worst"]["accuracy"],
                spread=clients["accuracy_deviation"],
                psi=clients["psi"],
                loss=overall["loss"],
            )
        )
    return found


def measure(cell: Cell, folder: Path | None) -> FedfdpRow:
    """The cell on the clients that it speaks of."""
    return run(cell, federation(Benchmark(cell.dataset), folder, cell.seed, cell.clients, cell.beta))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--item", action="append", help="only this table or figure, 'Table IV'; may be repeated")
    parser.add_argument("--net", type=Path, help="the folder of the net's run, to take its measurements from")
    add_flags(parser, PAGES)
    chosen = parser.parse_args(arguments)
    place, net = chosen.out / "data" / "fedfdp.json.gz", chosen.out / "data" / "fedfdp-net.json.gz"
    if chosen.net is not None:
        save_rows(net_rows(chosen.net / "run" / "metrics.jsonl"), net)
    rows = load_rows(FedfdpRow, place)
    done = {row.cell for row in rows}
    wanted = () if chosen.again else (cell for cell in cells(chosen.seeds) if cell not in done)
    jobs = ((Benchmark(c.dataset), partial(measure, c)) for c in wanted if not chosen.item or c.item in chosen.item)
    add_missing(rows, place, jobs, chosen)
    write_page(rows, load_rows(NetRow, net), chosen.out)

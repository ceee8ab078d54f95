"""FPFL and its ladder on Adult, beside the paper's figures: `make experiments NAME=fpfl`.

About half an hour on one core. Needs the extras train, data and plot. Writes fpfl.md (from fpfl-template.md),
fpfl.svg and data/fpfl.json.gz into `--out`; delete the rows to train everything anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from privfair_experiments import PAGES
from privfair_experiments.fpfl.report import draw, write_report
from privfair_experiments.fpfl.settings import ALL_SPLITS, PLUG_IN, RUNGS, SEEDS, PlugIn, Rung, splits_of
from privfair_experiments.fpfl.training import Row, load_split, run_one
from privfair_experiments.seed_intervals import load_rows, save_rows


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, help="fewer splits than the experiment's own, for a quick look")
    parser.add_argument("--out", type=Path, default=PAGES)
    parser.add_argument("--again", action="store_true", help="only write page and figure, from its rows")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    results = chosen.out / "data" / "fpfl.json.gz"
    if not chosen.again:
        _run(chosen.seeds, results)
    _write(results, chosen.out)


def _run(seeds: int | None, results: Path) -> None:
    """What all splits are trained on first; what stands in the file is not trained again, so a broken run goes on."""
    rows = load_rows(Row, results)
    done = {(row.split, row.rung, row.cohort) for row in rows}
    everywhere: tuple[Rung | PlugIn, ...] = (*ALL_SPLITS, PLUG_IN)
    wanted = [(seed, how) for seed in range(SEEDS) for how in everywhere]
    wanted += [(seed, how) for seed in range(SEEDS) for how in RUNGS if how not in ALL_SPLITS and seed < splits_of(how)]
    for seed, how in wanted:
        if seed >= (seeds or SEEDS) or (seed, how.name, how.cohort) in done:
            continue
        rows += run_one(how, load_split(seed, how.steps), seed)
        save_rows(sorted(rows, key=lambda row: row.split), results)
        print(f"{seed} {how.name}: {rows[-1]}", file=sys.stderr, flush=True)


def _write(results: Path, out: Path) -> None:

    rows = load_rows(Row, results)
    draw(rows, out / "fpfl.svg")
    print(write_report(rows, PAGES / "fpfl-template.md", out / "fpfl.md"))

"""Error against fairness for SteFFLe and pay-once, with controls: `make experiments NAME=steffle`.

About twenty minutes of one core. Needs the extras train, data and plot. Writes steffle.md (from steffle-template.md),
one figure per data set beside this file, and its rows into data/; a method that has rows of a split is not run again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from privfair_experiments import PAGES
from privfair_experiments.seed_intervals import load_rows, save_rows
from privfair_experiments.steffle.ablation import SPLITS, AblationRow, ablation_table, run_ablation
from privfair_experiments.steffle.plots import draw
from privfair_experiments.steffle.report import write_report
from privfair_experiments.steffle.settings import HETEROGENEITY, SETTINGS
from privfair_experiments.steffle.split import TRAINERS, Job, Row, missing_methods, run_job, with_found
from privfair_experiments.steffle.summary import summarise
from privfair_experiments.sweep import add_flags, results

_RESULTS, _ABLATION = "data/steffle.json.gz", "data/steffle-ablation.json.gz"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_flags(parser, workers=min(2, os.cpu_count() or 1))
    parser.add_argument("--splits", type=int, help="fewer splits than the experiment's own, for a quick look")
    parser.add_argument("--out", type=Path, default=PAGES)
    parser.add_argument("--again", action="store_true", help="only write page and figures, from the rows in data/")
    parser.add_argument("--setting", action="append", help="only this data set; may be repeated")
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    if not chosen.again:
        _run(chosen)
    _write(chosen.out)


def _run(chosen: argparse.Namespace) -> None:
    """Job by job; what stands in the file already is not trained again, so an interrupted run goes on."""
    place = chosen.out / _RESULTS
    rows = load_rows(Row, place)
    wanted = [
        missing_methods(Job(setting.name, h, split, tuple(TRAINERS)), rows)
        for h in HETEROGENEITY
        for setting in SETTINGS
        for split in range(min(setting.splits, chosen.splits or setting.splits))
        if setting.name in (chosen.setting or [setting.name])
    ]
    jobs = [job for job in wanted if job.methods]
    for number, found in enumerate(results(chosen, run_job, jobs), start=1):
        rows = with_found(rows, found)
        save_rows(rows, place)
        print(f"{number}/{len(jobs)} {jobs[number - 1]}, {time.process_time():.0f} s", file=sys.stderr, flush=True)
    if not chosen.setting and not (chosen.out / _ABLATION).exists():
        mattered = [row for part in results(chosen, run_ablation, SPLITS[: chosen.splits]) for row in part]
        save_rows(mattered, chosen.out / _ABLATION)


def _write(out: Path) -> None:

    points = summarise(load_rows(Row, out / _RESULTS))
    for setting in SETTINGS:
        draw(setting, points, out)
    mattered = ablation_table(load_rows(AblationRow, out / _ABLATION))
    print(write_report(points, mattered, PAGES / "steffle-template.md", out / "steffle.md"))

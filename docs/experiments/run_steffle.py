"""Error against fairness for SteFFLe and pay-once, with controls: `python docs/experiments/run_steffle.py`.

About fifteen minutes on two cores. Needs the extras train, data and plot. Writes steffle.md (from steffle-template.md),
steffle.json, steffle-ablation.json and one figure a data set beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
_RESULTS, _ABLATION = "steffle.json", "steffle-ablation.json"


def main() -> None:
    sys.path.insert(0, str(HERE))
    from sweep import add_flags

    parser = argparse.ArgumentParser(description=__doc__)
    add_flags(parser, workers=min(2, os.cpu_count() or 1))
    parser.add_argument("--splits", type=int, help="fewer splits than the experiment's own, for a quick look")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--again", action="store_true", help="only write page and figures, from steffle*.json")
    parser.add_argument("--setting", action="append", help="only this data set, and keep the others' results")
    chosen = parser.parse_args()
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # before numpy is loaded; the processes share the cores
    chosen.out.mkdir(parents=True, exist_ok=True)
    if not chosen.again:
        _run(chosen)
    _write(chosen.out)


def _run(chosen: argparse.Namespace) -> None:
    from steffle_ablation import SPLITS, run_ablation
    from steffle_settings import SETTINGS
    from steffle_split import Job, Row, run_job

    wanted = [one for one in SETTINGS if chosen.setting is None or one.name in chosen.setting]
    jobs = [
        Job(setting.name, h, split)
        for setting in wanted
        for h in setting.heterogeneity
        for split in range(min(setting.splits, chosen.splits or setting.splits))
    ]
    place = chosen.out / _RESULTS
    names = {setting.name for setting in wanted}
    kept = [row for row in _load(place, Row) if row.setting not in names] if chosen.setting else []
    _save(kept + _collected(chosen, run_job, jobs), place)
    if chosen.setting is None:
        splits = SPLITS[: chosen.splits]
        _save(_collected(chosen, run_ablation, splits), chosen.out / _ABLATION)


def _collected(chosen: argparse.Namespace, work: Callable[[Any], list[Any]], jobs: Sequence[Any]) -> list[Any]:
    from sweep import results

    rows: list[Any] = []
    for number, found in enumerate(results(chosen, work, jobs), start=1):
        rows += found
        print(f"{number}/{len(jobs)} {jobs[number - 1]}", file=sys.stderr, flush=True)
    return rows


def _load(path: Path, kind: type[Any]) -> list[Any]:
    return [kind(*values) for values in json.loads(path.read_text("utf-8"))["rows"]]


def _save(rows: list[Any], path: Path) -> None:
    """Every measured model, one line each."""
    lines = ",\n".join(_line([_rounded(value) for value in asdict(row).values()]) for row in rows)
    names = json.dumps(list(asdict(rows[0])))
    path.write_text(f'{{"columns": {names},\n"rows": [\n{lines}\n]}}\n', "utf-8")


def _line(values: list[object]) -> str:
    return json.dumps(values, separators=(",", ":"))


def _rounded(value: object) -> object:
    return round(value, 5) if isinstance(value, float) else value


def _write(out: Path) -> None:
    from steffle_ablation import AblationRow, ablation_table
    from steffle_plots import draw
    from steffle_report import write_report
    from steffle_settings import SETTINGS
    from steffle_split import Row
    from steffle_summary import summarise

    points = summarise(_load(out / _RESULTS, Row))
    for setting in SETTINGS:
        draw(setting, points, out)
    mattered = ablation_table(_load(out / _ABLATION, AblationRow))
    print(write_report(points, mattered, HERE / "steffle-template.md", out / "steffle.md"))


if __name__ == "__main__":
    main()

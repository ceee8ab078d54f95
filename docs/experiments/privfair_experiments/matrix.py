"""The reproduction matrix: `make experiments NAME=matrix` writes matrix.md from data/matrix.csv in a second.

Every row of the four papers' tables and every curve of their figures stands in data/matrix.csv with what became of it.
What was not run says how many runs of which kind it would take; hours follow from seconds that were measured here.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from privfair_experiments import PAGES

OUTCOMES = ("reproduced", "refuted", "partly", "not run", "nothing to run")
STEFFLE, FEDFDP, FPFL, MMD = "SteFFLe", "FedFDP", "FPFL", "MMD-fair FedAvg"
ITEMS = {
    STEFFLE: (*(f"Figure {number}" for number in range(1, 6)), "Headlines"),
    FEDFDP: (
        *(f"Table {number}" for number in ("I", "II", "III", "IV", "V", "VI")),
        *(f"Figure {number}" for number in range(1, 6)),
        "Section VIII",
    ),
    FPFL: ("Table 1, short version", "Table 1", "Table 2", "Table 3", "Figure 1"),
    MMD: ("Table 1", *(f"Figure {number}" for number in range(1, 10))),
}
"""All that the papers print; SteFFLe's two versions print the same figures."""
_NET_ROUNDS, _NET_ROUND = 763, 2.3
"""Rounds of FedFDP's net, and seconds of each (docs/benchmarks.md)."""
_WRITERS_ROUNDS = 2_000
_SHORT_MMD = 5.0
"""Seconds per run of 25 rounds with 3 local epochs: twenty minutes for the 247 rows of the page."""
_STEFFLE_SPLIT = 15.0
"""Seconds per split of Adult, all methods, weights and epsilons stacked."""


@dataclass(frozen=True)
class Entry:
    """One row of a table or one curve of a figure; `runs` of `kind` would fill it where it was not run."""

    paper: str
    item: str
    row: str
    outcome: str
    words: str
    page: str = ""
    runs: int = 0
    kind: str = ""


def load_entries(place: Path = PAGES / "data" / "matrix.csv") -> list[Entry]:
    with place.open(encoding="utf-8", newline="") as file:
        told: list[dict[str, Any]] = list(csv.DictReader(file))
    return [Entry(**row | {"runs": int(row["runs"] or 0)}) for row in told]


def seconds_per_run() -> dict[str, float]:
    """Of each kind of run, from the seconds that stand in the experiments' rows."""
    linear = np.mean([row["seconds"] for row in _records("data/fedfdp.json.gz") if row["rounds"] == _NET_ROUNDS])
    rungs = [row for row in _records("data/fpfl.json.gz") if row["seconds"] is not None]
    central = np.mean([row["seconds"] for row in rungs if row["cohort"] is None])
    federated = np.mean([row["seconds"] for row in rungs if row["cohort"] is not None])
    return {
        "net": _NET_ROUND * _NET_ROUNDS,
        "linear": float(linear),
        "writers": _NET_ROUND * _WRITERS_ROUNDS,
        "central": float(central),
        "federated": float(federated),
        "mmd": _SHORT_MMD * 100 * 50 / (25 * 3),
        "steffle": _STEFFLE_SPLIT,
    }


def _records(name: str) -> list[dict[str, float]]:
    stored = (PAGES / name).read_bytes()
    told = json.loads(gzip.decompress(stored) if name.endswith(".gz") else stored)
    if isinstance(told, list):
        return told
    return [dict(zip(told["columns"], values, strict=True)) for values in told["rows"]]


def matrix(entries: list[Entry]) -> str:
    """The tables, paper by paper, and what is left in hours."""
    costs, lines = seconds_per_run(), list[str]()
    for paper, items in ITEMS.items():
        own = [entry for entry in entries if entry.paper == paper]
        counts = Counter(entry.outcome for entry in own)
        told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
        left = sum(entry.runs * costs[entry.kind] for entry in own if entry.runs) / 3600
        lines += [f"## {paper}", "", f"{told}; what is left would take about {_hours(left)} CPU hours.", ""]
        lines += ["| | row | | in words | page | CPU hours left |", "|---|---|---|---|---|---|"]
        for item in items:
            for entry in (one for one in own if one.item == item):
                page = f"[{entry.page}]({entry.page}.md)" if entry.page else ""
                hours = _hours(entry.runs * costs[entry.kind] / 3600) if entry.runs else ""
                lines.append(f"| {item} | {entry.row} | {entry.outcome} | {entry.words} | {page} | {hours} |")
        lines.append("")
    return "\n".join(lines)


def _hours(hours: float) -> str:
    return f"{hours:.1f}" if hours >= 0.1 else "< 0.1"


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PAGES)
    chosen = parser.parse_args(arguments)
    template = (PAGES / "matrix-template.md").read_text("utf-8")
    costs = ", ".join(f"{kind} {seconds:,.0f}" for kind, seconds in seconds_per_run().items())
    page = template.replace("{{matrix}}", matrix(load_entries())).replace("{{costs}}", costs)
    (chosen.out / "matrix.md").write_text(page, encoding="utf-8")

"""Figures elsewhere come from the experiments' rows: `make experiments NAME=headlines` writes them, in seconds.

The README's, and the table of the desk's planner: what each algorithm reached, with at least five splits.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from privfair_experiments import PAGES
from privfair_experiments.banded import INDEPENDENT, TUNING_SEEDS, Row, best_rate
from privfair_experiments.fair_plugin.report import AIM, EPSILONS, best_of, pick, short
from privfair_experiments.fair_plugin.run import read_rows
from privfair_experiments.images.report import LINEAR, PAPER, TITLES, ImageRow
from privfair_experiments.seed_intervals import load_rows

README = PAGES.parents[1] / "README.md"
EXPECTED = PAGES.parents[1] / "privfair" / "integrations" / "desk" / "expected.json"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
_ADULT, _AIM = "adult-steps", 0.067


def headlines() -> str:
    """A table of what each unit's best method reaches at a certified epsilon, next to what privacy takes away."""

    assert AIM[_ADULT] == _AIM
    rows = read_rows(PAGES / "data" / "fair-plugin.csv.gz")
    record = short(pick(rows, _ADULT, "record", "fair-plugin", 1.0, _AIM))
    free = short(pick(rows, _ADULT, "record", "no privacy", None, _AIM))
    plain = short(pick(rows, _ADULT, "record", "no privacy", None, 1.0))
    most = short(pick(rows, _ADULT, "nobody", "always the majority", None, 0.0))
    joined = " at ".join(f"{one} / {other}" for one, other in zip(free.split(" at "), plain.split(" at "), strict=True))
    attribute, of_attribute = best_of(rows, _ADULT, "attribute", 1.0).split(" 0.", 1)
    images = load_rows(ImageRow, PAGES / "data" / "images.json.gz")
    images = [row for row in images if (row.method, row.epsilon) == (LINEAR, 3.52)]
    reached = [100 * np.mean([row.accuracy for row in images if row.dataset == dataset]) for dataset in TITLES]
    table = (
        ("`fair-plugin`", "one record", record),
        (attribute, "one attribute", f"0.{of_attribute}"),
        ("the same rule without privacy / no fairness rule", "nothing", joined),
        ("always the majority class", "everything", most),
    )
    cells = "\n".join(f"| {what} | {who} | {' | '.join(figures.split(' at '))} |" for what, who, figures in table)
    titles, ours = " / ".join(TITLES.values()), " / ".join(f"{accuracy:.1f}" for accuracy in reached)
    printed = " / ".join(f"{PAPER[dataset]:.1f}" for dataset in TITLES)
    return (
        "Adult, three sites, certified epsilon 1 at delta 1e-5, error on held-out records (lower is better):\n\n"
        f"| method | protects | error | parity gap |\n|---|---|---|---|\n{cells}\n\n"
        f"{titles}, ten clients, one record at epsilon 3.52: {ours}% accuracy, by a linear model on "
        "fixed\npublic features. FedFDP's paper "
        f"reports {printed}%, for its convolutional net, with noise that covers its gradients alone. "
        "[All experiments](docs/experiments/README.md)"
    )


def with_headlines(text: str) -> str:
    """The README with its measured figures brought up to date."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{headlines()}\n{END}{rest.partition(END)[2]}"


_SETTINGS = {"adult": ("Adult", 0.067), "credit-card": ("Credit Card", 0.013)}
"""The name of a data set, and the gap that a fairness weight should keep."""
_SILOS = (
    ("SteFFLe", "attribute replaced", "steffle", "SteFFLe calibrated"),
    ("pay-once", "attribute replaced", "steffle", "pay-once"),
    ("FedFDP", "record added or removed", "steffle-axes", "FedFDP"),
)
_LEAST_SPLITS = 5


def expected() -> str:
    """The planner's table as JSON, one row per line."""
    rows = [*_of_silos(), *_of_records(), *_of_users(), *_of_clients(), *_without_fairness()]
    lines = ",\n".join(json.dumps(row) for row in sorted(rows, key=lambda row: (row["data"], row["method"])))
    return f"[\n{lines}\n]\n"


def _of_silos() -> Iterable[dict[str, Any]]:
    """SteFFLe, pay-once and FedFDP on equal silos, at the most accurate weight that keeps the gap, or the fairest."""
    for name, unit, file, method in _SILOS:
        whole = [row for row in _records(f"data/{file}.json.gz") if row["h"] == 0 and row.get("silos", 3) == 3]
        for setting, (title, limit) in _SETTINGS.items():
            most = _majority(setting)
            of_method = [row for row in whole if (row["setting"], row["method"]) == (setting, method)]
            for epsilon in sorted({row["epsilon"] for row in of_method}):
                at = [row for row in of_method if row["epsilon"] == epsilon]
                reached = {knob: _pair(at, knob) for knob in {row["knob"] for row in at}}
                least = max(limit, min(gap for _, gap in reached.values()))
                fair = {knob: pair for knob, pair in reached.items() if pair[1] <= least}
                knob = min(fair, key=lambda knob: fair[knob][0])
                splits = sum(row["knob"] == knob for row in at)
                if splits >= _LEAST_SPLITS:
                    yield _row(title, name, unit, epsilon, 1 - fair[knob][0], fair[knob][1], splits, most)


def _pair(rows: list[dict[str, Any]], knob: float) -> tuple[float, float]:
    return _mean(rows, "error", knob=knob), _mean(rows, "gap", knob=knob)


def _majority(setting: str) -> float:
    return 1 - _mean(_records("data/steffle.json.gz"), "error", setting=setting, method="always negative")


def _of_records() -> Iterable[dict[str, Any]]:
    """The fair plug-in with whole records protected."""
    rows = read_rows(PAGES / "data" / "fair-plugin.csv.gz")
    for setting, title in (("adult-steps", "Adult with steps"), ("credit-card", "Credit Card")):
        most = 1 - float(np.mean([row[6] for row in pick(rows, setting, "nobody", "always the majority", None, 0.0)]))
        for epsilon in EPSILONS:
            own = pick(rows, setting, "record", "fair-plugin", epsilon, AIM[setting])
            error, gap = (float(np.mean([row[place] for row in own])) for place in (6, 7))
            yield _row(title, "fair-plugin", "record added or removed", epsilon, 1 - error, gap, len(own), most)


def _of_users() -> Iterable[dict[str, Any]]:
    """FPFL, whose page has gaps against the overall rate only."""
    rows = _records("data/fpfl.json.gz")
    own = [row for row in rows if (row["rung"], row["cohort"]) == ("FPFL", 1000)]
    accuracy, most = _mean(own, "accuracy"), _mean(rows, "accuracy", rung="always no")
    yield _row("Adult", "FPFL", "user added or removed", 2.0, accuracy, None, len(own), most)


def _of_clients() -> Iterable[dict[str, Any]]:
    """MMD-fair FedAvg on made-up clients, whose two classes are equally frequent."""
    name = "function tracking, private, 200 clients"
    own = [row for row in _records("data/mmd.json.gz") if (row["method"], row["knob"]) == (name, 10.0)]
    reached, epsilon = (_mean(own, "accuracy"), _mean(own, "parity_gap")), own[0]["true_epsilon"]
    yield _row("200 synthetic clients", "MMD-FedAvg", "record replaced", epsilon, *reached, len(own), 0.5)


def _without_fairness() -> Iterable[dict[str, Any]]:
    """DP-SGD on all records of Adult; its page has no gaps."""
    rows = [row for row in load_rows(Row, PAGES / "banded.json") if (row.data, row.method) == ("Adult", INDEPENDENT)]
    most = _majority("adult")
    for epsilon in sorted({row.epsilon for row in rows}):
        rate = best_rate(rows, "Adult", epsilon)
        own = [row for row in rows if (row.epsilon, row.learning_rate) == (epsilon, rate)]
        measured = [row.accuracy for row in own if row.seed not in TUNING_SEEDS]
        accuracy = float(np.mean(measured))
        yield _row("Adult", "DP-SGD", "record added or removed", epsilon, accuracy, None, len(measured), most)


def _row(
    data: str, method: str, unit: str, epsilon: float, accuracy: float, gap: float | None, runs: int, majority: float
) -> dict[str, Any]:
    return {
        "data": data,
        "method": method,
        "unit": unit,
        "epsilon": epsilon,
        "accuracy": round(accuracy, 4),
        "parity_gap": None if gap is None else round(gap, 4),
        "runs": runs,
        "majority": round(majority, 3),
    }


def _mean(rows: list[dict[str, Any]], column: str, **wanted: Any) -> float:
    return float(np.mean([row[column] for row in rows if all(row[name] == value for name, value in wanted.items())]))


def _records(name: str) -> list[dict[str, Any]]:
    told = json.loads(gzip.decompress((PAGES / name).read_bytes()))
    return [dict(zip(told["columns"], values, strict=True)) for values in told["rows"]]


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--readme", type=Path, default=README)
    parser.add_argument("--expected", type=Path, default=EXPECTED)
    chosen = parser.parse_args(arguments)
    chosen.readme.write_text(with_headlines(chosen.readme.read_text("utf-8")), encoding="utf-8")
    chosen.expected.write_text(expected(), encoding="utf-8")

"""The page and the figure of the image experiment, from its rows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from privfair_experiments import PAGES
from privfair_experiments.fedfdp.cells import TABLE_4, FedfdpRow
from privfair_experiments.seed_intervals import Interval, load_rows

TITLES = {"fashion-mnist": "Fashion-MNIST", "mnist": "MNIST", "cifar-10": "CIFAR-10"}
PAPER = {"fashion-mnist": 85.99, "mnist": 95.13, "cifar-10": 54.21}
"""Table IV, FedFDP, at a nominal 3.52."""
PAPER_BY_EPSILON = {1.0: 63.36, 2.0: 83.15, 4.0: 86.97}
"""Table VI, FedFDP."""
LINEAR, FREE, MAJORITY = "DP-FedAvg, linear", "without privacy", "always the majority"


@dataclass(frozen=True)
class ImageRow:
    """One trained model; `spread` is the standard deviation of the clients' accuracies, `epsilon` the one asked for."""

    dataset: str
    method: str
    seed: int
    epsilon: float | None
    true_epsilon: float | None
    noise_multiplier: float | None
    accuracy: float
    worst: float
    spread: float
    psi: float
    loss: float
    seconds: float


def write_page(rows: list[ImageRow], out: Path) -> None:
    """images.md and images.svg into `out`."""
    marks = {"table": _table(rows), "epsilons": _epsilons(rows), "paired": _paired(rows)}
    text = (PAGES / "images-template.md").read_text("utf-8")
    for mark, value in marks.items():
        text = text.replace(f"{{{{{mark}}}}}", value)
    (out / "images.md").write_text(text, encoding="utf-8")
    _draw(rows, out / "images.svg")


def _percent(rows: list[ImageRow], column: str, digits: int = 2) -> str:
    return Interval.of(100 * getattr(row, column) for row in rows).text(digits)


def _table(rows: list[ImageRow]) -> str:
    scores = ("accuracy, %", "worst client, %", "spread, points", "Psi")
    heads = ("data", "method", "true epsilon", "seeds", *scores, "CPU s", "paper: FedFDP at a nominal 3.52")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for dataset, title in TITLES.items():
        at = [row for row in rows if row.dataset == dataset and row.epsilon in (None, 3.52)]
        for method in dict.fromkeys(row.method for row in at):
            own = [row for row in at if row.method == method]
            true = own[0].true_epsilon
            cells = (
                title,
                method,
                "none" if true is None else f"{true:.3f}",
                str(len(own)),
                _percent(own, "accuracy"),
                _percent(own, "worst", 1),
                _percent(own, "spread", 1),
                Interval.of(row.psi for row in own).text(4),
                f"{np.mean([row.seconds for row in own]):.0f}",
                f"{PAPER[dataset]:.2f}" if method == LINEAR else "",
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _epsilons(rows: list[ImageRow]) -> str:
    lines = ["| true epsilon | seeds | accuracy, % | worst client, % | paper: FedFDP at this nominal epsilon |"]
    lines.append("|---|---|---|---|---|")
    own = [row for row in rows if row.dataset == "fashion-mnist" and row.method == LINEAR]
    epsilons = sorted({row.epsilon for row in own if row.epsilon is not None})
    if len(epsilons) < 2:
        return "Not run yet."
    for epsilon in epsilons:
        at = [row for row in own if row.epsilon == epsilon]
        paper = PAPER_BY_EPSILON.get(epsilon)
        told = "" if paper is None else f"{paper:.2f}"
        cells = (f"{at[0].true_epsilon:.3f}", str(len(at)), _percent(at, "accuracy"), _percent(at, "worst", 1), told)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _paired(rows: list[ImageRow]) -> str:
    """Against the methods of the FedFDP page, which see the same features of the same partitions."""
    others = [row for row in load_rows(FedfdpRow, PAGES / "data" / "fedfdp.json.gz") if row.item == TABLE_4]
    mine = {(row.dataset, row.seed): row for row in rows if (row.method, row.epsilon) == (LINEAR, 3.52)}
    lines = ["| data | minus | seeds | accuracy, points | worst client, points | Psi |", "|---|---|---|---|---|---|"]
    for dataset, method in dict.fromkeys((row.dataset, row.method) for row in others):
        own = [row for row in others if (row.dataset, row.method) == (dataset, method)]
        pairs = [(mine[dataset, row.seed], row) for row in own if (dataset, row.seed) in mine]
        if len(pairs) > 1:
            accuracy = Interval.of(100 * (one.accuracy - other.accuracy) for one, other in pairs)
            worst = Interval.of(100 * (one.worst - other.worst) for one, other in pairs)
            apart = Interval.of(one.psi - other.psi for one, other in pairs)
            cells = (accuracy.text(2, signed=True), worst.text(1, signed=True), apart.text(4, signed=True))
            lines.append(f"| {TITLES[dataset]} | {method} | {len(pairs)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _draw(rows: list[ImageRow], place: Path) -> None:
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "images"
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for dataset, title in TITLES.items():
        own = [row for row in rows if row.dataset == dataset and row.method == LINEAR and row.epsilon is not None]
        epsilons = sorted({row.epsilon for row in own if row.epsilon is not None})
        means = [np.mean([100 * row.accuracy for row in own if row.epsilon == epsilon]) for epsilon in epsilons]
        if epsilons:
            axes.plot(epsilons, means, marker="o", label=f"{title}, linear, certified")
            axes.plot([3.52], [PAPER[dataset]], "x", color=axes.lines[-1].get_color(), label=f"{title}, paper's FedFDP")
    axes.plot(*zip(*PAPER_BY_EPSILON.items(), strict=True), "x:", color="0.5", label="Fashion-MNIST, paper, Table VI")
    axes.set(xlabel="epsilon (certified; the paper's: nominal)", ylabel="accuracy, %")
    axes.legend(fontsize=7)
    figure.savefig(place, metadata={"Date": None})

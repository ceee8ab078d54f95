"""The page and the figure of FedFDP's tables and sweeps, from the measured rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from calibrate.budget import price_plan
from calibrate.plans.clipped_sums import GRADIENT, LOSS, FedfdpPlan
from calibrate.questions import rounds
from privfair_experiments import PAGES
from privfair_experiments.fedfdp.cells import (
    DELTA,
    FASHION,
    FEDFDP,
    FIGURE_3,
    FIGURE_4,
    FIGURE_5,
    FREE_STEPS,
    LOSS_NOISE,
    PRINTED_ROUNDS,
    RATE,
    RATES,
    STEPS,
    TABLE_2,
    TABLE_3,
    TABLE_4,
    TABLE_5,
    TABLE_6,
    FedfdpRow,
    afforded_rounds,
)
from privfair_experiments.images.report import TITLES
from privfair_experiments.seed_intervals import Interval

_DATA = ("mnist", "fashion-mnist", "cifar-10")
_OTHERS = (("fashion-mnist", 10), ("mnist", 10), ("cifar-10", 20), ("cifar-10", 50))
_PLACES: dict[str, Callable[[FedfdpRow], int]] = {
    TABLE_2: lambda row: _DATA.index(row.dataset),
    TABLE_3: lambda row: _OTHERS.index((row.dataset, row.clients)),
    TABLE_4: lambda row: _DATA.index(row.dataset),
    TABLE_5: lambda row: _OTHERS.index((row.dataset, row.clients)),
    TABLE_6: lambda row: round(row.epsilon or 0.0) - 1,
}
"""Where a row's setting stands among the printed accuracies."""
PRINTED: dict[str, dict[str, tuple[str, ...]]] = {
    TABLE_2: {
        "FedAvg": ("98.67", "87.05", "62.03"),
        "SCAFFOLD": ("98.45", "86.77", "62.21"),
        "FedProx": ("98.70", "87.30", "62.13"),
        "FedDyn": ("98.40", "87.48", "62.33"),
        "q-FFL": ("98.72", "87.35", "63.33"),
        "FedFair": ("98.75", "87.70", "62.38"),
    },
    TABLE_3: {
        "FedAvg": ("89.41", "98.37", "60.89", "59.78"),
        "SCAFFOLD": ("86.39", "98.51", "59.48", "58.64"),
        "FedProx": ("88.33", "98.35", "60.33", "61.31"),
        "FedDyn": ("88.26", "98.36", "61.35", "62.52"),
        "q-FFL": ("89.03", "98.61", "60.63", "59.65"),
        "FedFair": ("89.60", "98.72", "61.58", "62.90"),
    },
    TABLE_4: {
        "FedFDP": ("95.13", "85.99", "54.21"),
        "DP-FedAvg": ("93.40", "84.15", "52.61"),
        "DP-q-FFL": ("93.74", "83.13", "48.46"),
        "DP-FedDyn": ("91.42", "84.04", "52.14"),
        "ALI-DPFL": ("90.89", "83.65", "52.05"),
    },
    TABLE_5: {
        "FedFDP": ("86.77", "94.56", "54.52", "56.49"),
        "DP-FedAvg": ("85.60", "94.17", "51.58", "55.90"),
        "DP-q-FFL": ("85.20", "93.86", "51.12", "49.83"),
        "DP-FedDyn": ("85.21", "93.08", "50.21", "51.86"),
        "ALI-DPFL": ("83.66", "93.98", "38.35", "33.46"),
    },
    TABLE_6: {
        "FedFDP": ("63.36", "83.15", "85.59", "86.97"),
        "DP-FedAvg": ("61.68", "82.69", "84.07", "86.83"),
        "DP-q-FFL": ("58.99", "80.24", "82.92", "85.01"),
        "DP-FedDyn": ("62.38", "82.43", "83.29", "84.51"),
        "ALI-DPFL": ("61.78", "83.01", "84.12", "85.58"),
    },
}
"""Accuracies of the paper's nets."""


@dataclass(frozen=True)
class NetRow:
    """The paper's net after so many rounds."""

    step: int
    accuracy: float
    worst: float
    spread: float
    psi: float
    loss: float


def write_page(rows: list[FedfdpRow], net: list[NetRow], out: Path) -> None:
    """fedfdp.md and fedfdp.svg into `out`."""
    tables = {"2": TABLE_2, "3": TABLE_3, "4": TABLE_4, "5": TABLE_5, "6": TABLE_6}
    marks = {f"table-{number}": _methods(rows, item) for number, item in tables.items()}
    marks |= {
        f"paired-{number}": _paired(rows, "FedFair" if item in (TABLE_2, TABLE_3) else FEDFDP, item)
        for number, item in tables.items()
    }
    marks |= {
        "net": _net(net),
        "rates": _rates(rows),
        "lambda": _sweep(rows, FIGURE_3, "lambda", lambda row: row.fairness),
        "clip": _sweep(rows, FIGURE_4, "C", lambda row: row.clip),
        "sigma": _sweep(rows, FIGURE_5, "sigma", lambda row: round(row.noise_multiplier or 0.0, 2)),
        "rounds": _afforded(),
    }
    text = (PAGES / "fedfdp-template.md").read_text("utf-8")
    for mark, value in marks.items():
        text = text.replace(f"{{{{{mark}}}}}", value)
    (out / "fedfdp.md").write_text(text, encoding="utf-8")
    _draw(rows, net, out / "fedfdp.svg")


def _lines(heads: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    found = [" | ".join(cells) for cells in body]
    if not found:
        return "Not run yet."
    return "\n".join([f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *(f"| {line} |" for line in found)])


_SCORES = ("seeds", "accuracy, %", "worst client, %", "spread, points", "Psi")


def _scores(rows: list[FedfdpRow]) -> tuple[str, ...]:
    return (
        str(len(rows)),
        Interval.of(100 * row.accuracy for row in rows).text(2),
        Interval.of(100 * row.worst for row in rows).text(1),
        Interval.of(100 * row.spread for row in rows).text(1),
        Interval.of(row.psi for row in rows).text(4),
    )


def _settings(rows: list[FedfdpRow], item: str) -> dict[str, list[FedfdpRow]]:
    """The rows of a table by the words for data set, clients and epsilon."""
    found: dict[str, list[FedfdpRow]] = {}
    for row in sorted(
        (row for row in rows if row.item == item), key=lambda row: (list(TITLES).index(row.dataset), row.clients)
    ):
        words = TITLES[row.dataset]
        if item in (TABLE_3, TABLE_5):
            words += f", {row.clients} clients by Dirichlet({row.beta:g})"
        if item == TABLE_6:
            words = f"epsilon {row.epsilon:g}, {row.rounds} rounds"
        found.setdefault(words, []).append(row)
    return {words: found[words] for words in (sorted(found) if item == TABLE_6 else found)}


def _methods(rows: list[FedfdpRow], item: str) -> str:
    """Every setting and method of a table, beside the paper's accuracies."""
    body, private = [], item in (TABLE_4, TABLE_5, TABLE_6)
    for words, at in _settings(rows, item).items():
        for method in (one for one in (*STEPS, *FREE_STEPS) if any(row.method == one for row in at)):
            own = [row for row in at if row.method == method]
            promised = (f"{own[0].noise_multiplier:.3f}", f"{own[0].true_epsilon:.3f}") if private else ()
            printed = PRINTED[item].get(method)
            told = "" if printed is None else printed[_PLACES[item](own[0])]
            body.append((words, method, *promised, *_scores(own), f"{np.mean([r.seconds for r in own]):.0f}", told))
    promised = ("sigma", "true epsilon") if private else ()
    return _lines(("setting", "method", *promised, *_SCORES, "CPU s", "paper's net, %"), body)


def _paired(rows: list[FedfdpRow], method: str, item: str) -> str:
    """One method minus each other one, seed by seed."""
    body = []
    for words, at in _settings(rows, item).items():
        ours = {row.seed: row for row in at if row.method == method}
        for other in dict.fromkeys(row.method for row in at if row.method != method):
            pairs = [(ours[row.seed], row) for row in at if row.method == other and row.seed in ours]
            if len(pairs) > 1:
                accuracy = Interval.of(100 * (mine.accuracy - row.accuracy) for mine, row in pairs)
                worst = Interval.of(100 * (mine.worst - row.worst) for mine, row in pairs)
                apart = Interval.of(mine.psi - row.psi for mine, row in pairs)
                told = (accuracy.text(2, signed=True), worst.text(1, signed=True), apart.text(4, signed=True))
                body.append((words, other, str(len(pairs)), *told))
    return _lines(("setting", f"{method} minus", "seeds", "accuracy, points", "worst client, points", "Psi"), body)


def _rates(rows: list[FedfdpRow]) -> str:
    """The rates that were tried, a method per line, and the one it is measured with."""
    tried: dict[str, list[FedfdpRow]] = {}
    for row in rows:
        if row.item == RATES:
            tried.setdefault(row.method, []).append(row)
    body = [
        (
            method,
            ", ".join(f"{row.step:g}: {100 * row.accuracy:.1f}%" for row in own),
            f"{(STEPS | FREE_STEPS)[method]:g}",
        )
        for method, own in tried.items()
    ]
    return _lines(("method", "rate: accuracy on seed 100", "measured with"), body)


def _swept(
    rows: list[FedfdpRow], item: str, value: Callable[[FedfdpRow], float]
) -> list[tuple[float, list[FedfdpRow]]]:
    """The rows of a sweep by the value that is swept; Tables IV and VI have the middles."""
    own = [row for row in rows if row.item == item]
    middle = (TABLE_6, FASHION, FEDFDP, 2.0) if item == FIGURE_5 else (TABLE_4, FASHION, FEDFDP, 3.52)
    seeds = {row.seed for row in own}
    own += [r for r in rows if (r.item, r.dataset, r.method, r.epsilon) == middle and r.seed in seeds]
    return [(one, [row for row in own if value(row) == one]) for one in sorted({value(row) for row in own})]


def _sweep(rows: list[FedfdpRow], item: str, head: str, value: Callable[[FedfdpRow], float]) -> str:
    body = [
        (
            f"{one:g}",
            str(own[0].rounds),
            f"{own[0].true_epsilon:.3f}",
            *_scores(own),
            f"{np.mean([row.loss for row in own]):.3f}",
        )
        for one, own in _swept(rows, item, value)
    ]
    return _lines((head, "rounds", "true epsilon", *_SCORES, "loss"), body)


def _net(net: list[NetRow]) -> str:
    """About ten lines of the net's run, the last one among them."""
    every = max(1, len(net) // 8)
    body = [
        (
            str(row.step),
            f"{100 * row.accuracy:.2f}",
            f"{100 * row.worst:.1f}",
            f"{100 * row.spread:.1f}",
            f"{row.psi:.4f}",
            f"{row.loss:.3f}",
        )
        for place, row in enumerate(net)
        if (len(net) - 1 - place) % every == 0
    ]
    return _lines(("rounds", *_SCORES[1:], "loss"), body)


def _afforded() -> str:
    """One line for each printed sigma; certified, so that one round more is not promised."""
    body = []
    for sigma, printed in PRINTED_ROUNDS.items():
        plan = FedfdpPlan(RATE, printed, 0.1, 2.5, LOSS_NOISE / sigma)
        truly = price_plan(plan, DELTA, noise_multipliers={GRADIENT: sigma, LOSS: LOSS_NOISE}).upper
        alone = rounds(epsilon=2.0, delta=DELTA, sampling_rate=RATE, noise_multiplier=sigma)
        charged = afforded_rounds(2.0, sigma)
        body.append((f"{sigma:g}", str(printed), str(alone), str(charged), f"{truly:.3f}"))
    heads = ("sigma", "printed rounds", "sigma alone affords", "with the loss charged")
    return _lines((*heads, "true epsilon of the printed rounds"), body)


def _draw(rows: list[FedfdpRow], net: list[NetRow], place: Path) -> None:
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "fedfdp"
    figure = Figure(figsize=(9, 5.6), layout="constrained")
    panels = figure.subplots(2, 2).flatten()
    sweeps = (
        (FIGURE_3, "lambda (Figure 3)", lambda row: row.fairness, "linear"),
        (FIGURE_4, "C (Figure 4)", lambda row: row.clip, "log"),
        (FIGURE_5, "sigma, epsilon 2 (Figure 5)", lambda row: round(row.noise_multiplier or 0.0, 2), "linear"),
    )
    for panel, (item, title, value, scale) in zip(panels, sweeps, strict=False):
        found = _swept(rows, item, value)
        _panel(panel, [(one, [(row.accuracy, row.psi) for row in own]) for one, own in found], title, scale)
    _panel(panels[3], [(row.step, [(row.accuracy, row.psi)]) for row in net], "rounds of the paper's net", "linear")
    figure.savefig(place, metadata={"Date": None})


def _panel(panel: Axes, points: list[tuple[float, list[tuple[float, float]]]], title: str, scale: str) -> None:
    at = [one for one, _ in points]
    accuracy = [100 * np.mean([pair[0] for pair in pairs]) for _, pairs in points]
    fair = [np.mean([pair[1] for pair in pairs]) for _, pairs in points]
    panel.plot(at, accuracy, "o-", markersize=4)
    panel.set(xlabel=title, ylabel="accuracy, %", xscale=scale)
    beside = panel.twinx()
    beside.plot(at, fair, "x:", color="C1")
    beside.set_ylabel("Psi", color="C1")

"""The experiment's page and figure, from the measured rows."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean, stdev

import matplotlib
from fedfdp_rounds import Afforded
from fedfdp_settings import (
    BETA,
    CLIENTS,
    COMMUNICATIONS,
    LEAST,
    LOCAL_STEPS,
    PRINTED,
    SAMPLING_RATE,
    STEPS,
    TARGET,
    Method,
)
from fedfdp_training import Row

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_PLACE = "{{measured}}"


def write_report(rows: list[Row], afforded: list[Afforded], methods: tuple[Method, ...], out: Path) -> Path:
    """fedfdp.md from its template, with the numbers of those seeds that every method has run."""
    ran = {seed: {row.method for row in rows if row.seed == seed} for seed in {row.seed for row in rows}}
    rows = [row for row in rows if ran[row.seed] >= {method.name for method in methods}]
    text = (Path(__file__).parent / "fedfdp-template.md").read_text("utf-8")
    page = out / "fedfdp.md"
    filled = text.replace("{{setting}}", _setting(rows)).replace(_PLACE, _table(rows, methods))
    filled = filled.replace("{{paired}}", _paired(rows, methods)).replace("{{rounds}}", _rounds(afforded))
    filled = filled.replace("{{longer}}", _longer(rows))
    page.write_text(filled, "utf-8")
    _draw(rows, methods, out / "fedfdp.svg")
    return page


def _setting(rows: list[Row]) -> str:
    seeds = sorted({row.seed for row in rows})
    return (
        f"{CLIENTS} clients, each class of the 70,000 images shared out by Dirichlet({BETA:g}), every client with at"
        f" least {LEAST:,} images, a quarter of them held out; seeds {', '.join(map(str, seeds))} (of partition,"
        f" first model, batches, noise). {STEPS} noisy steps on Poisson batches of rate {SAMPLING_RATE:g}; epsilon"
        f" {TARGET.epsilon:g} at delta {TARGET.delta:g} for one record, added or removed. Aggregated after every step:"
        f" FedFDP, DP-FedAvg, DP-q-FFL; after {LOCAL_STEPS} steps: DP-FedProx, DP-SCAFFOLD (with one step both are"
        f" DP-FedAvg); ALI-DPFL: at most {COMMUNICATIONS} aggregations."
    )


def _table(rows: list[Row], methods: tuple[Method, ...]) -> str:
    lines = [
        "| method | sigma | true epsilon | accuracy, % | worst client, % | loss | Psi | CPU s | paper: accuracy, Psi |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method in methods:
        own = [row for row in rows if row.method == method.name]
        if not own:
            continue
        accuracy, fair = PRINTED[method.name]
        cells = (
            method.name,
            f"{own[0].sigma:.3f}",
            f"{own[0].true_epsilon:.2f}",
            _spread([100 * row.accuracy for row in own], ".2f"),
            _spread([100 * row.worst for row in own], ".1f"),
            _spread([row.loss for row in own], ".3f"),
            _spread([row.psi for row in own], ".3f"),
            f"{mean(row.seconds for row in own):.0f}",
            f"{accuracy}, {fair}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _paired(rows: list[Row], methods: tuple[Method, ...]) -> str:
    """FedFDP minus each other method, seed by seed."""
    ours = {row.seed: row for row in rows if row.method == "FedFDP"}
    lines = ["| FedFDP minus | accuracy, points | Psi |", "|---|---|---|"]
    for method in methods:
        own = [row for row in rows if row.method == method.name and row.seed in ours]
        if method.name == "FedFDP" or not own:
            continue
        accuracy = _spread([100 * (ours[row.seed].accuracy - row.accuracy) for row in own], "+.2f")
        fair = _spread([ours[row.seed].psi - row.psi for row in own], "+.3f")
        lines.append(f"| {method.name} | {accuracy} | {fair} |")
    return "\n".join(lines)


def _longer(rows: list[Row]) -> str:
    """The share of gradients longer than the clip, at FedFDP's and DP-FedAvg's trained models."""
    shares = [row.longer for row in rows if row.method in ("FedFDP", "DP-FedAvg")]
    low, high = f"{100 * min(shares):.1f}%", f"{100 * max(shares):.1f}%"
    return low if low == high else f"{low} to {high}"


def _rounds(afforded: list[Afforded]) -> str:
    lines = [
        "| sigma | printed rounds | sigma alone affords | with the loss charged | true epsilon of the printed rounds |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {a.sigma:g} | {a.printed} | {a.alone} | {a.charged} | {a.epsilon:.3f} |" for a in afforded]
    return "\n".join(lines)


def _spread(values: list[float], form: str) -> str:
    """Mean and standard deviation over seeds."""
    if len(values) < 2:
        return format(mean(values), form)
    return f"{mean(values):{form}} ± {stdev(values):{form.replace('+', '')}}"


def _draw(rows: list[Row], methods: tuple[Method, ...], path: Path) -> None:
    plt.rcParams["svg.hashsalt"] = "fedfdp"
    figure, panel = plt.subplots(figsize=(7, 4.5))
    for number, method in enumerate(methods):
        own = [row for row in rows if row.method == method.name and math.isfinite(row.psi)]
        if not own:
            continue
        psi, accuracy = [row.psi for row in own], [100 * row.accuracy for row in own]
        colour = f"C{number}"
        panel.scatter(psi, accuracy, s=18, alpha=0.45, color=colour)
        panel.scatter([mean(psi)], [mean(accuracy)], s=70, marker="D", color=colour, label=method.name)
    panel.set_xlabel("Psi (Equation 2) on held-out images: smaller is fairer")
    panel.set_ylabel("accuracy, %")
    panel.set_title(f"Fashion-MNIST, true epsilon {TARGET.epsilon:g}: seeds (dots) and their mean", fontsize=10)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)

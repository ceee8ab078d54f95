"""The figures of the MMD experiment: the synthetic task over the fairness weight, and the fronts on real data."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from privfair_experiments.mmd.report import Point, points_of
from privfair_experiments.mmd.settings import ABLATION_WEIGHT, REAL, Method
from privfair_experiments.mmd.stacked import CurvePoint
from privfair_experiments.mmd.training import Row

_LOOKS = {
    Method.OURS.value: ("tab:green", "o"),
    Method.BLIND.value: ("0.7", "x"),
    Method.CENTRAL.value: ("0.3", "+"),
    Method.LOCAL.value: ("tab:red", "s"),
    Method.FAIRFED.value: ("tab:orange", "^"),
    Method.AGNOSTIC.value: ("tab:purple", "*"),
    Method.FEDFB.value: ("tab:brown", "D"),
    Method.PRIVATE_SMALL.value: ("tab:cyan", "v"),
    Method.PRIVATE_LARGE.value: ("tab:blue", "v"),
}


def draw_synthetic(rows: list[Row], path: Path) -> Path:
    """Accuracy and parity gap over the weight, and over the heterogeneity at the largest weight."""
    plt.rcParams["svg.hashsalt"] = "mmd"
    figure, axes = plt.subplots(2, 2, figsize=(11, 7), sharey="row")
    points = [point for point in points_of(rows) if point.task == "synthetic"]
    for line, column in enumerate(("accuracy", "parity_gap")):
        whole = [p for p in points if p.own == 1.0]
        _lines(axes[line][0], whole, column, "knob")
        axes[line][0].set_xscale("symlog", linthresh=0.1)
        _lines(axes[line][1], [p for p in points if p.knob == ABLATION_WEIGHT], column, "own")
        axes[line][0].set_ylabel("accuracy" if column == "accuracy" else "parity gap")
    axes[1][0].set_xlabel("fairness weight")
    axes[1][1].set_xlabel(f"heterogeneity (0.5: all clients alike), weight {ABLATION_WEIGHT:g}")
    axes[0][0].legend(fontsize=7)
    return _saved(figure, "Synthetic task: means over seeds, bars are 95% intervals", path)


def draw_curve(curve: list[CurvePoint], path: Path) -> Path:
    """Loss and squared MMD over the rounds, on training and on test records: the mean over seeds and a deviation."""
    plt.rcParams["svg.hashsalt"] = "mmd"
    figure, axes = plt.subplots(1, 2, figsize=(11, 4))
    rounds = sorted({point.round for point in curve})
    for panel, part in zip(axes, ("loss", "mmd"), strict=True):
        for kind, colour in (("train", "tab:blue"), ("test", "tab:orange")):
            values = np.array([[getattr(p, f"{kind}_{part}") for p in curve if p.round == number] for number in rounds])
            mean, spread = values.mean(axis=1), values.std(axis=1)
            panel.plot(rounds, mean, color=colour, label=kind)
            panel.fill_between(rounds, mean - spread, mean + spread, color=colour, alpha=0.2)
        panel.set_xlabel("round")
        panel.set_ylabel("cross-entropy" if part == "loss" else "squared MMD")
        panel.legend(fontsize=8)
        panel.grid(alpha=0.3)
    return _saved(figure, f"Communities & Crime, weight {curve[0].weight:g}: mean and deviation over seeds", path)


def draw_fronts(rows: list[Row], path: Path) -> Path:
    """Accuracy against the parity gap, one panel a data set, one line a method."""
    plt.rcParams["svg.hashsalt"] = "mmd"
    figure, axes = plt.subplots(1, len(REAL), figsize=(12, 5))
    for task, panel in zip(REAL, axes, strict=True):
        own = [point for point in points_of(rows) if point.task == task.name]
        for method, (colour, marker) in _LOOKS.items():
            line = sorted((p for p in own if p.method == method), key=lambda p: p.knob)
            if line:
                panel.errorbar(
                    [p.parity_gap.mean for p in line],
                    [p.accuracy.mean for p in line],
                    xerr=[p.parity_gap.half for p in line],
                    yerr=[p.accuracy.half for p in line],
                    color=colour,
                    marker=marker,
                    elinewidth=0.4,
                    label=method,
                )
        panel.set_title(task.title, fontsize=10)
        panel.set_xlabel("parity gap")
        panel.set_ylabel("accuracy")
        panel.set_xlim(left=0)
        panel.legend(fontsize=7)
        panel.grid(alpha=0.3)
    return _saved(figure, "Means over splits, bars are 95% intervals", path)


def _lines(panel: Axes, points: list[Point], column: str, over: str) -> None:
    for method, (colour, marker) in _LOOKS.items():
        line = sorted((p for p in points if p.method == method), key=lambda p: getattr(p, over))
        if line:
            panel.errorbar(
                [getattr(p, over) for p in line],
                [getattr(p, column).mean for p in line],
                yerr=[getattr(p, column).half for p in line],
                color=colour,
                marker=marker,
                elinewidth=0.6,
                label=method,
            )
    panel.grid(alpha=0.3)


def _saved(figure: Figure, title: str, path: Path) -> Path:
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path

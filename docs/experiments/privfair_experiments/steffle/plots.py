"""Error against demographic-parity gap, one figure a data set, one panel for each h and epsilon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from privfair_experiments.steffle.settings import EPSILONS, Setting
from privfair_experiments.steffle.split import CALIBRATED, ERM, NEGATIVE, NON_PRIVATE, PAY_ONCE, PRINTED, RAISED
from privfair_experiments.steffle.summary import Point

_LOOKS: dict[str, dict[str, Any]] = {
    RAISED: {"color": "0.55", "linestyle": "--"},
    NON_PRIVATE: {"color": "0.2", "marker": ".", "linewidth": 0.8},
    PRINTED: {"color": "tab:red", "marker": "x"},
    CALIBRATED: {"color": "tab:blue", "marker": "o", "markersize": 4},
    PAY_ONCE: {"color": "tab:green", "marker": "s", "markersize": 4},
}


def draw(setting: Setting, points: list[Point], folder: Path) -> Path:
    """The figure of one data set, as SVG."""
    plt.rcParams["svg.hashsalt"] = "steffle"
    plt.rcParams["svg.fonttype"] = "none"  # text stays text, and the file small
    own = [point for point in points if point.setting == setting.name]
    rows = setting.heterogeneity
    figure, axes = plt.subplots(
        len(rows), len(EPSILONS), figsize=(12, 4 * len(rows)), sharex=True, sharey=True, squeeze=False
    )
    for h, line in zip(rows, axes, strict=True):
        for epsilon, panel in zip(EPSILONS, line, strict=True):
            _panel(panel, [point for point in own if point.h == h], epsilon, h)
    axes[0][0].legend(fontsize=7)
    figure.suptitle(f"{setting.title}: means over {setting.splits} splits, bars are 95% intervals")
    figure.tight_layout()
    path = folder / f"steffle-{setting.name}.svg"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def _panel(panel: Axes, points: list[Point], epsilon: float, h: float) -> None:
    for method, look in _LOOKS.items():
        line = [point for point in points if point.method == method and point.epsilon in (None, epsilon)]
        line.sort(key=lambda point: point.knob)
        gaps, errors = [p.gap.mean for p in line], [p.error.mean for p in line]
        if method == RAISED:
            panel.plot(gaps, errors, label=method, **look)
        else:
            panel.errorbar(
                gaps,
                errors,
                xerr=[p.gap.half for p in line],
                yerr=[p.error.half for p in line],
                elinewidth=0.5,
                label=method,
                **look,
            )
    for method, marker in ((ERM, "*"), (NEGATIVE, "v")):
        for point in points:
            if point.method == method:
                panel.plot(point.gap.mean, point.error.mean, marker, color="black", markersize=9, label=method)
    true = next((p.true_epsilon for p in points if (p.method, p.epsilon) == (PRINTED, epsilon)), None)
    beside = "" if true is None else f" (as printed: truly {true:.1f})"
    panel.set_title(f"epsilon = {epsilon:g}, h = {h:g}{beside}", fontsize=10)
    panel.set_xlabel("demographic-parity gap")
    panel.set_ylabel("error")
    panel.grid(alpha=0.3)

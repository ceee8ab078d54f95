"""The comparison's page and figure, from the measured rows."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev

import matplotlib
from comparison_plans import EPSILONS, SETTINGS, Unit, methods
from comparison_training import Row, jobs_of

matplotlib.use("Agg")
import matplotlib.pyplot as plt

_COLOURS = {
    Unit.ATTRIBUTE: "tab:green",
    Unit.RECORD: "tab:blue",
    Unit.REPLACED: "tab:orange",
    Unit.USER: "tab:purple",
    Unit.NOBODY: "black",
}
_NUMBERS = (("error", 4), ("demographic_parity", 3), ("equalised_odds", 3), ("false_negative_gap", 3), ("psi", 4))


def write_report(rows: list[Row], out: Path) -> Path:
    """comparison.md from its template, with the tables of those seeds that every method has run."""
    wanted = {(s.title, job.method, job.epsilon) for s in SETTINGS for job in jobs_of(s, EPSILONS, (0,))}
    ran = {
        seed: {(row.data, row.method, row.epsilon) for row in rows if row.seed == seed}
        for seed in {row.seed for row in rows}
    }
    rows = [row for row in rows if ran[row.seed] >= wanted]
    text = (Path(__file__).parent / "comparison-template.md").read_text("utf-8")
    sections = [_section(setting.title, epsilon, rows) for setting in SETTINGS for epsilon in EPSILONS]
    seeds = sorted({row.seed for row in rows})
    text = text.replace("{{tables}}", "\n\n".join(sections)).replace("{{seeds}}", ", ".join(map(str, seeds)))
    page = out / "comparison.md"
    page.write_text(text, "utf-8")
    _draw(rows, out / "comparison.svg")
    return page


def _of(rows: list[Row], data: str, name: str, unit: Unit, epsilon: float) -> list[Row]:
    wanted = EPSILONS[0] if unit is Unit.NOBODY else epsilon
    return [row for row in rows if (row.data, row.method, row.epsilon) == (data, name, wanted)]


def _section(data: str, epsilon: float, rows: list[Row]) -> str:
    setting = next(one for one in SETTINGS if one.title == data)
    lines = [
        f"## {data}, epsilon = {epsilon:g}",
        "",
        "| method | epsilon speaks of | true epsilon | error | parity gap | odds gap | FNR gap | Psi | CPU s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method in methods(setting):
        own = _of(rows, data, method.name, method.unit, epsilon)
        if not own:
            continue
        true = "none" if own[0].true_epsilon is None else f"{own[0].true_epsilon:.3f}"
        numbers = [_spread([getattr(row, name) for row in own], digits) for name, digits in _NUMBERS]
        cells = [method.name, method.unit.value, true, *numbers, f"{mean(row.seconds for row in own):.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(values: list[float], digits: int) -> str:
    """Mean and standard deviation over seeds."""
    if len(values) < 2:
        return f"{values[0]:.{digits}f}"
    return f"{mean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def _draw(rows: list[Row], path: Path) -> None:
    plt.rcParams["svg.hashsalt"] = "comparison"
    figure, axes = plt.subplots(
        len(SETTINGS), len(EPSILONS), figsize=(12, 5 * len(SETTINGS)), squeeze=False, sharey="row"
    )
    for setting, line in zip(SETTINGS, axes, strict=True):
        for epsilon, panel in zip(EPSILONS, line, strict=True):
            for method in methods(setting):
                own = _of(rows, setting.title, method.name, method.unit, epsilon)
                if not own:
                    continue
                gap, error = mean(r.demographic_parity for r in own), mean(r.error for r in own)
                panel.scatter([gap], [error], s=30, color=_COLOURS[method.unit])
                panel.annotate(method.name, (gap, error), fontsize=6, xytext=(3, 3), textcoords="offset points")
            panel.set_title(f"{setting.title}, epsilon = {epsilon:g}", fontsize=10)
            panel.set_xlabel("demographic-parity gap")
            panel.set_ylabel("error")
            panel.grid(alpha=0.3)
    for unit, colour in _COLOURS.items():
        axes[0][0].scatter([], [], color=colour, label=unit.value)
    axes[0][0].legend(fontsize=7, title="protected", title_fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)

"""Figures for a calibrated budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.accountants.registry import best_epsilon
from calibrate.budget import CertifiedBudget, calibrate_plan
from calibrate.errors import InvalidInput
from calibrate.plans.from_mapping import plan_from_mapping
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval
from calibrate.releases import scale_noise
from privfair.cli.output import track

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

    from privfair.run.metrics import Frontier

_SUFFIXES = (".png", ".svg", ".pdf")
_POINTS = 9


def plot_budget(budget: CertifiedBudget, path: Path) -> None:
    """Two panels: epsilon against rounds at the calibrated noise, and the noise against epsilon."""
    if budget.factor is None:
        raise InvalidInput("--plot", str(path), "there is no noise to plot: rounds are free", "drop --plot")
    plt = _pyplot(path)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    _epsilon_against_rounds(budget, left)
    _noise_against_epsilon(budget, right)
    figure.suptitle(
        f"{budget.plan.algorithm.value}: epsilon {budget.target.epsilon:g} at delta {budget.target.delta:g}, "
        f"one {budget.plan.unit.protected.value} ({budget.plan.unit.relation.value})"
    )
    figure.savefig(path)
    plt.close(figure)


def _epsilon_against_rounds(budget: CertifiedBudget, axes: Axes) -> None:
    rounds = budget.plan.rounds
    grid = sorted({max(1, round(rounds * 2 ** (step / 2))) for step in range(-2 * 3, 5)})
    costs = [_cost(budget, count) for count in track("epsilon by rounds", grid)]
    axes.fill_between(grid, [c.lower for c in costs], [c.upper for c in costs], alpha=0.3, label="certified interval")
    axes.plot(grid, [c.upper for c in costs], marker="o", markersize=3, label="may be promised")
    axes.axvline(rounds, linestyle=":", color="grey")
    axes.axhline(budget.target.epsilon, linestyle=":", color="grey")
    axes.set(xlabel="rounds at the calibrated noise", ylabel="epsilon", xscale="log")
    _label_ticks(axes.xaxis, grid[:: max(1, len(grid) // 5)])
    axes.legend()


def _label_ticks(axis: Axis, values: Sequence[float]) -> None:
    """A few plain numbers beside a logarithmic axis, none of them overlapping, instead of powers of ten."""
    axis.set_ticks(list(values), labels=[f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in values])
    axis.set_ticks([], minor=True)


def _cost(budget: CertifiedBudget, rounds: int) -> EpsilonInterval:
    plan = plan_from_mapping(budget.plan.algorithm, budget.plan.parameters() | {"rounds": rounds})
    assert budget.factor is not None
    return best_epsilon(scale_noise(plan.template(), budget.factor), plan.unit, budget.target.delta).interval


def _noise_against_epsilon(budget: CertifiedBudget, axes: Axes) -> None:
    grid = [budget.target.epsilon * 2 ** (step / 2) for step in range(-_POINTS // 2 + 1, _POINTS // 2 + 1)]
    delta, shown = budget.target.delta, track("noise by epsilon", grid)
    others = [calibrate_plan(budget.plan, EpsilonDelta(epsilon, delta)) for epsilon in shown]
    for value in budget.values:
        sigmas = [other.value(value.name).sigma for other in others]
        axes.plot(grid, sigmas, marker="o", markersize=3, label=value.name)
    axes.axvline(budget.target.epsilon, linestyle=":", color="grey")
    axes.set(xlabel="epsilon", ylabel="sigma", xscale="log", yscale="log")
    _label_ticks(axes.xaxis, grid[::2])
    every = [other.value(value.name).sigma for value in budget.values for other in (others[0], others[-1])]
    low, high = math.log(min(every)), math.log(max(every))
    _label_ticks(
        axes.yaxis, [float(f"{math.exp(low + share * (high - low)):.2g}") for share in (0, 0.25, 0.5, 0.75, 1)]
    )
    axes.legend()


def plot_frontier(runs: dict[str, Frontier], path: Path) -> None:
    """Accuracy and balanced accuracy against the gap, one curve per run, one point per threshold; not private."""
    plt = _pyplot(path)
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained", sharex=True)
    for run, frontier in runs.items():
        points = [point for point in frontier["points"] if point["demographic_parity"] is not None]
        weight = "" if frontier["fairness"] is None else f" (fairness {frontier['fairness']:g})"
        for panel, name in zip(axes, ("accuracy", "balanced_accuracy"), strict=True):
            gaps = [point["demographic_parity"] for point in points]
            panel.plot(
                gaps, [point[name] for point in points], marker="o", markersize=3, linewidth=1, label=run + weight
            )
            panel.set(xlabel="parity gap between groups", ylabel=name.replace("_", " "))
            panel.grid(alpha=0.3)
    for frontier in runs.values():
        for point in frontier["points"][:1]:
            axes[0].axhline(point["majority"]["accuracy"], linestyle=":", color="grey")
            axes[1].axhline(0.5, linestyle=":", color="grey")
    axes[0].legend(fontsize="small")
    figure.suptitle("Each point is a threshold; dotted: always the majority. Held-out records, exact: NOT private.")
    figure.savefig(path)
    plt.close(figure)


def _pyplot(path: Path) -> Any:
    """matplotlib, without a screen; refused where it is not installed or the suffix is not a figure's."""
    if path.suffix not in _SUFFIXES:
        raise InvalidInput("--plot", str(path), "is not a figure I can write", f"end it in {', '.join(_SUFFIXES)}")
    try:
        import matplotlib.pyplot as plt
    except ImportError as missing:
        raise InvalidInput(
            "--plot", str(path), "needs matplotlib", "install it: pip install 'privfair[plot]'"
        ) from missing
    plt.switch_backend("Agg")
    return plt

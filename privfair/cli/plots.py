"""Figures: what noise and rounds cost, and what each threshold does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.accountants.registry import best_epsilon
from calibrate.budget import CertifiedBudget, calibrate_plan
from calibrate.errors import InvalidInput
from calibrate.plans import plan_from_mapping
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit
from calibrate.questions import NoisyRounds, price
from calibrate.releases import scale_noise
from calibrate.solve import Certificate, solve_noise
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
    factor, plan, target = budget.factor, budget.plan, budget.target

    def cost(rounds: int) -> EpsilonInterval:
        changed = plan_from_mapping(plan.algorithm, plan.parameters() | {"rounds": rounds})
        return best_epsilon(scale_noise(changed.template(), factor), changed.unit, target.delta).interval

    def noise(epsilon: float) -> Noises:
        other = calibrate_plan(plan, EpsilonDelta(epsilon, target.delta))
        return {value.name: other.value(value.name).sigma for value in budget.values}

    _two_panels(f"{plan.algorithm.value}, {_promise_text(target, plan.unit)}", plan.rounds, cost, target, noise, path)


def plot_rounds(described: NoisyRounds, target: EpsilonDelta, path: Path) -> None:
    """The same two panels for rounds of noise without a plan."""
    unit, first = described.unit, described.noise_multipliers[0]

    def cost(rounds: int) -> EpsilonInterval:
        return price(replace(described, rounds=rounds), target.delta)[0]

    def noise(epsilon: float) -> Noises:
        needed = EpsilonDelta(epsilon, target.delta)
        return {"noise multiplier": solve_noise(described.published, unit, needed, Certificate.UPPER).factor * first}

    _two_panels(_promise_text(target, unit), described.rounds, cost, target, noise, path)


Noises = dict[str, float]


def _promise_text(target: EpsilonDelta, unit: PrivacyUnit) -> str:
    return f"epsilon {target.epsilon:g} at delta {target.delta:g}, one {unit.protected.value} ({unit.relation.value})"


def _two_panels(
    title: str,
    rounds: int,
    cost: Callable[[int], EpsilonInterval],
    target: EpsilonDelta,
    noise: Callable[[float], Noises],
    path: Path,
) -> None:

    plt = _pyplot(path)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    _epsilon_against_rounds(rounds, cost, target.epsilon, left)
    _noise_against_epsilon(noise, target.epsilon, right)
    figure.suptitle(title)
    figure.savefig(path)
    plt.close(figure)


def _epsilon_against_rounds(rounds: int, cost: Callable[[int], EpsilonInterval], epsilon: float, axes: Axes) -> None:
    grid = sorted({max(1, round(rounds * 2 ** (step / 2))) for step in range(-2 * 3, 5)})
    costs = [cost(count) for count in track("epsilon by rounds", grid)]
    axes.fill_between(grid, [c.lower for c in costs], [c.upper for c in costs], alpha=0.3, label="certified interval")
    axes.plot(grid, [c.upper for c in costs], marker="o", markersize=3, label="may be promised")
    axes.axvline(rounds, linestyle=":", color="grey")
    axes.axhline(epsilon, linestyle=":", color="grey")
    axes.set(xlabel="rounds at this noise", ylabel="epsilon", xscale="log")
    _label_ticks(axes.xaxis, grid[:: max(1, len(grid) // 5)])
    axes.legend()


def _label_ticks(axis: Axis, values: Sequence[float]) -> None:
    """A few plain numbers along a logarithmic axis, none of them overlapping, instead of powers of ten."""
    axis.set_ticks(list(values), labels=[f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in values])
    axis.set_ticks([], minor=True)


def _noise_against_epsilon(noise: Callable[[float], Noises], epsilon: float, axes: Axes) -> None:
    grid = [epsilon * 2 ** (step / 2) for step in range(-_POINTS // 2 + 1, _POINTS // 2 + 1)]
    found = [noise(each) for each in track("noise by epsilon", grid)]
    for name in found[0]:
        axes.plot(grid, [each[name] for each in found], marker="o", markersize=3, label=name)
    axes.axvline(epsilon, linestyle=":", color="grey")
    axes.set(xlabel="epsilon", ylabel="sigma", xscale="log", yscale="log")
    _label_ticks(axes.xaxis, grid[::2])
    ends = [math.log(value) for each in (found[0], found[-1]) for value in each.values()]
    low, high = min(ends), max(ends)
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

"""The page of SteFFLe's axes: every method's gap at equal error, and the paper's headline ratios with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import t as student
from seed_intervals import Interval
from steffle_axes import FEDFDP, FERMI, PROTECTED, PUBLIC_CODE, TRAN, AxesRow
from steffle_settings import EPSILONS
from steffle_split import CALIBRATED, ERM, NON_PRIVATE, PAY_ONCE, PRINTED, RAISED

HERE = Path(__file__).parent
TITLES = {"adult": "Adult, 102 features", "credit-card": "Credit Card, 85 features"}
ROOM = {"adult": (0.005, 0.01, 0.02), "credit-card": (0.002, 0.005, 0.01)}
"""Error above that of central ERM at which gaps are compared."""
METHODS = (PRINTED, PUBLIC_CODE, CALIBRATED, PAY_ONCE, FERMI, TRAN, FEDFDP)
SILO = {PRINTED: "attribute, per silo", CALIBRATED: "attribute, per silo", PAY_ONCE: "attribute, per silo"} | PROTECTED
HEADLINES = ((TRAN, "gap", 75.47), (FEDFDP, "gap", 52.93), (FEDFDP, "odds", 95.42))
"""Against whom, in which gap, and by how many percent SteFFLe is said to lower it."""


@dataclass(frozen=True)
class Cell:
    """One setting: its data set, heterogeneity and epsilon; and how much error is allowed above central ERM."""

    setting: str
    h: float
    epsilon: float
    room: float


@dataclass(frozen=True)
class Point:
    """What a method reaches on one split, between two of its knobs."""

    split: int
    knobs: str
    true_epsilon: float | None
    error: float
    gap: float
    odds: float

    @classmethod
    def between(cls, split: int, one: AxesRow, other: AxesRow, share: float) -> Point:
        values = [(1 - share) * getattr(one, name) + share * getattr(other, name) for name in ("error", "gap", "odds")]
        knobs = f"{one.knob:g}" if one is other or share == 0 else f"{one.knob:g} to {other.knob:g}"
        return cls(split, knobs, one.true_epsilon, *values)


class Curves:
    """The rows by setting, method, epsilon and split."""

    def __init__(self, rows: Iterable[AxesRow]) -> None:
        self._rows: dict[tuple[str, float, str, float | None], dict[int, list[AxesRow]]] = {}
        for row in rows:
            key = (row.setting, row.h, row.method, row.epsilon)
            self._rows.setdefault(key, {}).setdefault(row.split, []).append(row)

    def of(self, cell: Cell, method: str, epsilon: float | None) -> dict[int, list[AxesRow]]:
        return self._rows.get((cell.setting, cell.h, method, epsilon), {})

    def splits(self, cell: Cell) -> list[int]:
        """Those that every method was measured on."""
        known = [set(self.of(cell, method, cell.epsilon)) for method in METHODS]
        return sorted(set.intersection(*known, set(self.of(cell, ERM, None))))

    def chosen(self, cell: Cell, method: str, epsilon: float | None, splits: list[int]) -> list[Point]:
        """What the method reaches with the error that is allowed, split by split.

        Between the two knobs of its frontier (of means) on either side of that error: a coin decides which model
        answers. Where every knob errs more, the one of least error.
        """
        found = self.of(cell, method, epsilon)
        limit = float(np.mean([self.of(cell, ERM, None)[k][0].error for k in splits])) + cell.room
        means = []
        for knob in {row.knob for row in found[splits[0]]}:
            own = [row for k in splits for row in found[k] if row.knob == knob]
            means.append((float(np.mean([row.error for row in own])), float(np.mean([row.gap for row in own])), knob))
        front = [one for one in sorted(means) if all(one[1] < other[1] for other in means if other < one)]
        below = max((place for place, one in enumerate(front) if one[0] <= limit), default=0)
        above = min(below + 1, len(front) - 1) if front[below][0] <= limit else below
        apart = front[above][0] - front[below][0]
        share = (limit - front[below][0]) / apart if apart > 0 else 0.0
        rows = [{row.knob: row for row in found[k]} for k in splits]
        return [
            Point.between(split, own[front[below][2]], own[front[above][2]], share)
            for split, own in zip(splits, rows, strict=True)
        ]


def write_page(axes: list[AxesRow], out: Path) -> None:
    """steffle-axes.md and its figure into `out`."""
    curves = Curves(axes)
    marks = {"tables": "\n\n".join(_tables(curves)), "headlines": _headlines(curves), "silos": _splits_of(axes)}
    text = (HERE / "steffle-axes-template.md").read_text("utf-8")
    for mark, value in marks.items():
        text = text.replace(f"{{{{{mark}}}}}", value)
    (out / "steffle-axes.md").write_text(text, encoding="utf-8")
    _draw(curves, out / "steffle-axes.svg")


def _splits_of(axes: list[AxesRow]) -> str:
    settings = sorted({(row.setting, row.h) for row in axes})
    epsilons = sorted({row.epsilon for row in axes if row.epsilon is not None})
    return f"Epsilon {', '.join(f'{one:g}' for one in epsilons)}; splits: " + ", ".join(
        f"{len({row.split for row in axes if (row.setting, row.h) == one})} of {TITLES[one[0]]} at h = {one[1]:g}"
        for one in settings
    )


def _cells(curves: Curves) -> Iterable[Cell]:
    for setting in TITLES:
        for h in (0.0, 0.75):
            for epsilon in EPSILONS:
                cell = Cell(setting, h, epsilon, ROOM[setting][1])
                if len(curves.splits(cell)) > 1:
                    yield cell


def _tables(curves: Curves) -> Iterable[str]:
    for cell in _cells(curves):
        splits = curves.splits(cell)
        lines = [
            f"### {TITLES[cell.setting]}, h = {cell.h:g}, epsilon {cell.epsilon:g} ({len(splits)} splits)",
            "",
            "| method | protected | true epsilon | knob | error | parity gap | odds gap |",
            "|---|---|---|---|---|---|---|",
        ]
        for method in METHODS:
            lines.append(_line(method, SILO[method], curves.chosen(cell, method, cell.epsilon, splits)))
        lines.append(_line(NON_PRIVATE, "nobody", curves.chosen(cell, NON_PRIVATE, None, splits)))
        lines.append(_line(RAISED, "nobody", curves.chosen(cell, RAISED, None, splits)))
        lines.append(_line(ERM, "nobody", curves.chosen(cell, ERM, None, splits)))
        yield "\n".join(lines)


def _line(method: str, protected: str, own: Sequence[Point]) -> str:
    true = own[0].true_epsilon
    numbers = (
        Interval.of(row.error for row in own).text(4),
        Interval.of(row.gap for row in own).text(4),
        Interval.of(row.odds for row in own).text(4),
    )
    cost = "none" if true is None else f"{true:.2f}" if true < 1000 else f"{true:,.0f}"
    return f"| {method} | {protected} | {cost} | {own[0].knobs} | {' | '.join(numbers)} |"


def lowered(mine: Sequence[float], theirs: Sequence[float]) -> Interval:
    """By how many percent `mine` is below `theirs` in the mean: a ratio of paired means, with a 95% interval."""
    own, other = np.array(mine), np.array(theirs)
    ratio = own.mean() / other.mean()
    apart = own - ratio * other
    half = student.ppf(0.975, len(own) - 1) * apart.std(ddof=1) / math.sqrt(len(own)) / other.mean()
    return Interval(float(100 * (1 - ratio)), float(100 * half))


def _headlines(curves: Curves) -> str:
    lines = ["| said | SteFFLe here | pairs | lowered by, % | |", "|---|---|---|---|---|"]
    for rival, column, said in HEADLINES:
        for method in (PRINTED, PUBLIC_CODE, CALIBRATED, PAY_ONCE):
            mine, theirs = _paired(curves, method, rival, column)
            if len(mine) > 1:
                found = lowered(mine, theirs)
                verdict = "confirmed" if found.low <= said <= found.high or found.low > said else "refuted"
                name = {"gap": "parity", "odds": "odds"}[column]
                told = f"{name}: {said:g}% below {rival}"
                lines.append(f"| {told} | {method} | {len(mine)} | {found.text(1, signed=True)} | {verdict} |")
    return "\n".join(lines)


def _paired(curves: Curves, method: str, rival: str, column: str) -> tuple[list[float], list[float]]:
    """By split, the sums over all cells in which both were measured on it."""
    mine: dict[tuple[str, int], float] = {}
    theirs: dict[tuple[str, int], float] = {}
    for cell in _cells(curves):
        splits = curves.splits(cell)
        for own, other in zip(
            curves.chosen(cell, method, cell.epsilon, splits),
            curves.chosen(cell, rival, cell.epsilon, splits),
            strict=True,
        ):
            key = (cell.setting, own.split)
            mine[key] = mine.get(key, 0.0) + float(getattr(own, column))
            theirs[key] = theirs.get(key, 0.0) + float(getattr(other, column))
    return list(mine.values()), [theirs[key] for key in mine]


def _draw(curves: Curves, place: Path) -> None:
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "steffle-axes"
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplots(2, 2)
    for row, column in zip(panels, ("gap", "odds"), strict=True):
        for axes, setting in zip(row, TITLES, strict=True):
            cell = Cell(setting, 0.0, 1.0, 0.0)
            splits = curves.splits(cell)
            kinds = [(method, 1.0) for method in METHODS] + [(NON_PRIVATE, None), (RAISED, None)]
            for method, epsilon in kinds if len(splits) > 1 else ():
                found = curves.of(cell, method, epsilon)
                points = []
                for knob in sorted({one.knob for one in found[splits[0]]}):
                    own = [one for k in splits for one in found[k] if one.knob == knob]
                    points.append((np.mean([getattr(o, column) for o in own]), np.mean([o.error for o in own])))
                dashed = "--" if method == RAISED else "-"
                axes.plot(*zip(*points, strict=True), dashed, marker="." if method == RAISED else "o", label=method)
            name = "parity" if column == "gap" else "odds"
            axes.set(title=TITLES[setting], xlabel=f"{name} gap", ylabel="error")
    panels[0][0].legend(fontsize=7)
    figure.suptitle("h = 0, epsilon 1 (true epsilons in the tables)")
    figure.savefig(place, metadata={"Date": None})

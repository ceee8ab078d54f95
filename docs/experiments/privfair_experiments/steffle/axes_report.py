"""The page of SteFFLe's axes: every method's gaps at equal error, the paper's headline ratios."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from privfair_experiments import PAGES
from privfair_experiments.seed_intervals import Interval
from privfair_experiments.steffle.axes import (
    FEDFDP,
    FERMI,
    FERMI_FREE,
    FOR_ODDS,
    FREE_FOR_ODDS,
    LOOKS,
    PRINTED_PAID,
    TITLES,
    TRAN,
    TRAN_FOR_ODDS,
)
from privfair_experiments.steffle.public_code import FIRST_GROUPS, PUBLIC_CODE, PUBLIC_PAID
from privfair_experiments.steffle.settings import EPSILONS, HETEROGENEITY
from privfair_experiments.steffle.split import CALIBRATED, ERM, NEGATIVE, NON_PRIVATE, PAY_ONCE, PRINTED, RAISED, Row
from privfair_experiments.steffle.sweeps_report import draw_sweeps, sweeps

ROOMS = {"credit-card": (0.002, 0.005, 0.01), "adult": (0.005, 0.01, 0.02)}
"""Error above that of central ERM at which gaps are compared; the tables have the middle one."""
CORE = (PRINTED, PUBLIC_CODE, CALIBRATED, PAY_ONCE, FERMI, TRAN, FEDFDP, FOR_ODDS)
BESIDE = (PRINTED_PAID, PUBLIC_PAID, TRAN_FOR_ODDS)
FREE = (NON_PRIVATE, FERMI_FREE, FREE_FOR_ODDS, RAISED, ERM, NEGATIVE)
HEADLINES = ((TRAN, "gap", 75.47), (FEDFDP, "gap", 52.93), (FEDFDP, "odds", 95.42))
"""Against whom, in which gap, and by how many percent SteFFLe is said to lower it."""
_NAMES = {"gap": "parity", "odds": "odds"}
_REFERENCES = {"gap": CALIBRATED, "odds": FEDFDP}
"""Whose gap is subtracted in the tables."""


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
    true_epsilon: float | None
    error: float
    value: float


class Curves:
    """The rows of three silos by setting, h, method, epsilon and split."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[tuple[str, float, str, float | None], dict[int, list[Row]]] = {}
        for row in rows:
            if row.odds is not None:
                key = (row.setting, row.h, row.method, row.epsilon)
                self._rows.setdefault(key, {}).setdefault(row.split, []).append(row)

    def of(self, cell: Cell, method: str) -> dict[int, list[Row]]:
        """By split; methods without privacy have no epsilon."""
        at = (cell.setting, cell.h, method)
        return self._rows.get((*at, cell.epsilon)) or self._rows.get((*at, None), {})

    def splits(self, cell: Cell) -> list[int]:
        """Those that every method of the core was measured on."""
        return sorted(set.intersection(*(set(self.of(cell, method)) for method in (*CORE, ERM))))

    def chosen(self, cell: Cell, method: str, column: str, splits: list[int]) -> list[Point]:
        """What the method reaches with the error that is allowed, split by split.

        Between the two knobs of its frontier (of means of error and of this gap) on either side of that error: a coin
        decides which model answers. Where every knob errs more, the one of least error.
        """
        found = self.of(cell, method)
        limit = float(np.mean([self.of(cell, ERM)[k][0].error for k in splits])) + cell.room
        means = []
        for knob in {row.knob for row in found[splits[0]]}:
            own = [row for k in splits for row in found[k] if row.knob == knob]
            gap = float(np.mean([getattr(row, column) for row in own]))
            means.append((float(np.mean([row.error for row in own])), gap, knob))
        front = [one for one in sorted(means) if all(one[1] < other[1] for other in means if other < one)]
        below = max((place for place, one in enumerate(front) if one[0] <= limit), default=0)
        above = min(below + 1, len(front) - 1) if front[below][0] <= limit else below
        apart = front[above][0] - front[below][0]
        share = (limit - front[below][0]) / apart if apart > 0 else 0.0
        points = []
        for split in splits:
            by_knob = {row.knob: row for row in found[split]}
            one, other = by_knob[front[below][2]], by_knob[front[above][2]]
            error = (1 - share) * one.error + share * other.error
            value = (1 - share) * getattr(one, column) + share * getattr(other, column)
            points.append(Point(split, one.true_epsilon, error, value))
        return points


def write_page(rows: list[Row], swept: list[Row], out: Path) -> None:
    """steffle-axes.md and its figures into `out`."""
    rows = [row for row in rows if row.setting in TITLES]
    curves = Curves(rows)
    marks = {
        "splits": _measured_splits(curves),
        "headlines": _headlines(curves),
        "first": _first_groups(curves),
        "sweeps": "\n\n".join(sweeps([*rows, *swept])),
        "tables": "\n\n".join(_tables(curves)),
    }
    text = (PAGES / "steffle-axes-template.md").read_text("utf-8")
    for mark, value in marks.items():
        text = text.replace(f"{{{{{mark}}}}}", value)
    (out / "steffle-axes.md").write_text(text, encoding="utf-8")
    _draw(curves, out / "steffle-axes.svg")
    draw_sweeps([*rows, *swept], out / "steffle-sweeps.svg")


def _cells(curves: Curves, room: int = 1) -> Iterable[Cell]:
    for setting in TITLES:
        for h in HETEROGENEITY:
            for epsilon in EPSILONS:
                cell = Cell(setting, h, epsilon, ROOMS[setting][room])
                if len(curves.splits(cell)) > 1:
                    yield cell


def _measured_splits(curves: Curves) -> str:
    known = {(cell.setting, cell.h): len(curves.splits(cell)) for cell in _cells(curves) if cell.epsilon == EPSILONS[0]}
    return ", ".join(f"{number} of {TITLES[setting]} at h = {h:g}" for (setting, h), number in known.items())


# Every method at equal error, cell by cell.


def _tables(curves: Curves) -> Iterable[str]:
    for cell in _cells(curves):
        splits = curves.splits(cell)
        lines = [
            f"### {TITLES[cell.setting]}, h = {cell.h:g}, epsilon {cell.epsilon:g} ({len(splits)} splits)",
            "",
            "| method | true epsilon | error | parity gap | less calibrated's | error | odds gap | less FedFDP's |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for method in (*CORE, *BESIDE, *FREE):
            own = [split for split in splits if split in curves.of(cell, method)]
            if len(own) > 1:
                lines.append(_line(curves, cell, method, own, "" if own == splits else f" ({len(own)} splits)"))
        yield "\n".join(lines)


def _line(curves: Curves, cell: Cell, method: str, splits: list[int], beside: str) -> str:
    texts = []
    for column, reference in _REFERENCES.items():
        own, theirs = (curves.chosen(cell, one, column, splits) for one in (method, reference))
        apart = Interval.of(a.value - b.value for a, b in zip(own, theirs, strict=True))
        difference = "" if method == reference else apart.text(4, signed=True)
        error, value = Interval.of(p.error for p in own), Interval.of(p.value for p in own)
        texts += [error.text(4), value.text(4), difference]
        true = own[0].true_epsilon
    cost = "none" if true is None else f"{true:.2f}" if true < 1000 else f"{true:,.0f}"
    return f"| {method}{beside} | {cost} | {' | '.join(texts)} |"


# By how many percent one gap is below another.


def lowered(pairs: Sequence[tuple[float, float]]) -> Interval:
    """By how many percent the first is below the second in the mean: a ratio of paired means, with a 95% interval."""
    own, other = np.array(pairs).T
    ratio = own.mean() / other.mean()
    apart = own - ratio * other
    half = student.ppf(0.975, len(own) - 1) * apart.std(ddof=1) / math.sqrt(len(own)) / other.mean()
    return Interval(float(100 * (1 - ratio)), float(100 * half))


def _headlines(curves: Curves) -> str:
    lines = [
        "| said | SteFFLe here | lowered by, % | | "
        + " | ".join(TITLES.values())
        + " | with less error | with more error |",
        "|---|---|---|---|" + "---|" * (len(TITLES) + 2),
    ]
    for rival, column, said in HEADLINES:
        for method in (PRINTED, PUBLIC_CODE, CALIBRATED, PAY_ONCE, *((FOR_ODDS,) if column == "odds" else ())):
            pairs = {room: _paired(curves, method, rival, column, room) for room in (1, 0, 2)}
            kinds = [
                pairs[1],
                *({k: v for k, v in pairs[1].items() if k[0] == one} for one in TITLES),
                pairs[0],
                pairs[2],
            ]
            found, *others = (lowered(list(kind.values())) for kind in kinds)
            verdict = "confirmed" if found.high >= said else "refuted"
            beside = " | ".join(one.text(1, signed=True) for one in others)
            told = f"{_NAMES[column]}: {said:g}% below {rival}"
            lines.append(f"| {told} | {method} | {found.text(1, signed=True)} | {verdict} | {beside} |")
    return "\n".join(lines)


def _paired(
    curves: Curves, method: str, rival: str, column: str, room: int
) -> dict[tuple[str, int], tuple[float, float]]:
    """By data set and split, the two sums over all cells that were measured on it."""
    sums: dict[tuple[str, int], tuple[float, float]] = {}
    for cell in _cells(curves, room):
        splits = curves.splits(cell)
        both = (curves.chosen(cell, one, column, splits) for one in (method, rival))
        for own, other in zip(*both, strict=True):
            mine, theirs = sums.get((cell.setting, own.split), (0.0, 0.0))
            sums[cell.setting, own.split] = (mine + own.value, theirs + other.value)
    return sums


def _first_groups(curves: Curves) -> str:
    """The public code without noise, by whose positive answers it punishes."""
    lines = ["| data | method | lambda | error | parity gap | odds gap | splits |", "|---|---|---|---|---|---|---|"]
    for setting, title in TITLES.items():
        for method in FIRST_GROUPS:
            found = curves.of(Cell(setting, 0.0, EPSILONS[0], 0.0), method)
            rows = [row for own in found.values() for row in own if row.knob in (0.0, 0.5, 1.0, 2.0)]
            for knob in sorted({row.knob for row in rows}):
                own = [row for row in rows if row.knob == knob]
                texts = [Interval.of(getattr(row, name) for row in own).text(3) for name in ("error", "gap", "odds")]
                lines.append(f"| {title} | {method} | {knob:g} | {' | '.join(texts)} | {len(own)} |")
    return "\n".join(lines)


def _draw(curves: Curves, place: Path) -> None:
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "steffle-axes"
    rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(12, 9), layout="constrained")
    panels = figure.subplots(2, 2)
    for line, column in zip(panels, _NAMES, strict=True):
        for panel, setting in zip(line, TITLES, strict=True):
            cell = Cell(setting, 0.0, 1.0, 0.0)
            splits = curves.splits(cell)
            erm = curves.of(cell, ERM)
            least = float(np.mean([erm[k][0].error for k in splits])) if splits else 0.0
            for method in (*CORE, NON_PRIVATE, RAISED):
                points = _mean_points(curves.of(cell, method), splits, column)
                color, marker, dashes = LOOKS[method]
                if points:
                    panel.plot(*zip(*points, strict=True), dashes, color=color, marker=marker, ms=5, lw=1, label=method)
            panel.set(title=TITLES[setting], xlabel=f"{_NAMES[column]} gap", ylabel="error")
            panel.set_ylim(least - 0.004, least + 0.05)
            panel.grid(alpha=0.3)
    panels[0][0].legend(fontsize=8)
    figure.suptitle("h = 0, epsilon 1 (true epsilons in the tables); means over splits; larger errors are cut off")
    figure.savefig(place, metadata={"Date": None})


def _mean_points(found: dict[int, list[Row]], splits: list[int], column: str) -> list[tuple[float, float]]:
    rows = [row for split in splits for row in found.get(split, [])]
    points = []
    for knob in sorted({row.knob for row in rows}):
        own = [row for row in rows if row.knob == knob]
        points.append((float(np.mean([getattr(o, column) for o in own])), float(np.mean([o.error for o in own]))))
    return points

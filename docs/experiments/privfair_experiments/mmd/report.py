"""The page of the MMD experiment, from its rows; every sentence with a number is counted, not written by hand."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import t as student

from privfair_experiments.mmd.cells import SYNTHETIC_TASK, UNEQUAL_TASK
from privfair_experiments.mmd.private import EPSILONS, PLUG_IN, TRACKING, WEIGHTS, PrivateRow
from privfair_experiments.mmd.settings import ABLATION_WEIGHT, FEWER_SAMPLES, PRIVATE, REAL, Method, RealTask
from privfair_experiments.mmd.stacked import CurvePoint
from privfair_experiments.mmd.training import Row
from privfair_experiments.seed_intervals import Interval
from privfair_experiments.stacked import Wide

_COMPARED = (Method.OURS, Method.LOCAL, Method.FAIRFED, Method.FEDFB, Method.AGNOSTIC, Method.BLIND, Method.CENTRAL)
_PRIVATE_LIMITS = (0.3, 0.2, 0.1, 0.05)
_PRIVATE_PAIRS = (
    "function tracking, weight 0, less always the majority",
    "fair-plugin, no rule, less always the majority",
    "function tracking, weight 20 less weight 0",
)
_SHOWN_ROUNDS = (0, 1, 5, 10, 25)
_WORDS = ("ahead", "behind", "undecided", "not reached")


@dataclass(frozen=True)
class Point:
    """One method at one knob over all seeds."""

    task: str
    method: str
    knob: float
    own: float
    rows: tuple[Row | PrivateRow, ...]

    @property
    def accuracy(self) -> Interval:
        return Interval.of(row.accuracy for row in self.rows)

    @property
    def parity_gap(self) -> Interval:
        return Interval.of(row.parity_gap for row in self.rows)


def points_of(rows: Sequence[Row | PrivateRow]) -> list[Point]:
    groups: dict[tuple[str, str, float, float], list[Row | PrivateRow]] = defaultdict(list)
    for row in rows:
        groups[row.task, row.method, row.knob, row.own].append(row)
    return [Point(*key, tuple(sorted(own, key=lambda row: row.seed))) for key, own in groups.items()]


@dataclass(frozen=True, eq=False)
class Front:
    """One method on one task: accuracies and gaps, a row per seed and a column per weight."""

    seeds: tuple[int, ...]
    accuracy: Wide
    gap: Wide

    @classmethod
    def of(cls, rows: Sequence[Row | PrivateRow], task: str, method: str) -> Front | None:
        points = points_of([row for row in rows if (row.task, row.method) == (task, method)])
        if not points:
            return None
        seeds = tuple(row.seed for row in points[0].rows)
        assert all(tuple(row.seed for row in point.rows) == seeds for point in points)
        columns = [[[getattr(row, name) for row in p.rows] for p in points] for name in ("accuracy", "parity_gap")]
        return cls(seeds, *(np.array(column).T for column in columns))

    def on(self, seeds: tuple[int, ...]) -> Front:
        rows = [self.seeds.index(seed) for seed in seeds]
        return Front(seeds, self.accuracy[rows], self.gap[rows])

    def at(self, limit: float) -> float | None:
        """The best mean accuracy at a mean gap of at most `limit`, mixing two weights; None if no gap is that small.

        Answers of two models, mixed by a coin, have the mixed accuracy and at most the mixed gap: so between the means
        of two weights everything on the line can be had.
        """
        gap, accuracy = self.gap.mean(axis=0), self.accuracy.mean(axis=0)
        kept = list(accuracy[gap <= limit])
        for low in np.flatnonzero(gap <= limit):
            for high in np.flatnonzero(gap > limit):
                share = (limit - gap[low]) / (gap[high] - gap[low])
                kept.append((1 - share) * accuracy[low] + share * accuracy[high])
        return float(max(kept)) if kept else None


def difference_at(one: Front, other: Front, limit: float) -> Interval | None:
    """How far apart two fronts are at the same mean gap: by the jackknife over the seeds that both have."""
    seeds = tuple(seed for seed in one.seeds if seed in other.seeds)
    left_out = [tuple(seed for seed in seeds if seed != out) for out in seeds]
    found = [[front.on(part).at(limit) for front in (one, other)] for part in (seeds, *left_out)]
    if any(value is None for pair in found for value in pair):
        return None
    whole, *parts = (mine - theirs for mine, theirs in found)  # type: ignore[operator]
    number = len(seeds)
    deviation = math.sqrt((number - 1) / number * sum((part - sum(parts) / number) ** 2 for part in parts))
    return Interval(whole, float(student.ppf(0.975, number - 1)) * deviation)


def write_report(
    rows: list[Row], private_rows: list[PrivateRow], curve: list[CurvePoint], template: Path, page: Path
) -> Path:
    points = points_of(rows)
    synthetic = [p for p in points if p.task == SYNTHETIC_TASK]
    private = {method.value for method in PRIVATE}
    marks = {
        "synthetic-seeds": str(max(len(p.rows) for p in synthetic)),
        "real-seeds": str(max(len(p.rows) for p in points if p.task not in (SYNTHETIC_TASK, UNEQUAL_TASK))),
        "synthetic": _table([p for p in synthetic if p.own == 1.0 and p.method not in private], "knob"),
        "ablation": _table([p for p in synthetic if p.knob == ABLATION_WEIGHT and p.method not in private], "own"),
        "unequal": _table([p for p in points if p.task == UNEQUAL_TASK], "own"),
        "private": _private([p for p in synthetic if p.method in private]),
        "synthetic-verdict": _kept(synthetic),
        "reading": "\n".join(_reading(rows)),
        "fewer-scores": _fewer(points),
        "curve": _curve(curve),
        "private-real": _private_real(private_rows),
        "private-limits": _private_limits(private_rows),
        "private-reading": _private_reading(rows, private_rows),
    }
    for task in REAL:
        own = [p for p in points if p.task == task.name]
        marks[task.name] = _table(own, "knob")
        marks[f"{task.name}-verdict"] = _limits(rows, task)
        marks[f"{task.name}-majority"] = _majority(own)
    text = template.read_text("utf-8")
    for mark, value in marks.items():
        text = text.replace(f"{{{{{mark}}}}}", value)
    page.write_text(text, encoding="utf-8")
    return page


def _table(points: list[Point], over: str) -> str:
    head = "weight" if over == "knob" else "heterogeneity"
    lines = [f"| method | {head} | accuracy | parity gap | seeds |", "|" + "---|" * 5]
    order = [method.value for method in Method]
    for p in sorted(points, key=lambda p: (order.index(p.method), getattr(p, over))):
        cells = (p.method, f"{getattr(p, over):g}", p.accuracy.text(), p.parity_gap.text(), str(len(p.rows)))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _private(points: list[Point]) -> str:
    lines = ["| | weight | true epsilon | accuracy | parity gap | seeds |", "|" + "---|" * 6]
    for p in sorted(points, key=lambda p: (p.rows[0].method, p.knob)):
        cost = p.rows[0].true_epsilon
        cells = (p.method, f"{p.knob:g}", f"{cost:.3f}", p.accuracy.text(), p.parity_gap.text())
        lines.append("| " + " | ".join((*cells, str(len(p.rows)))) + " |")
    return "\n".join(lines)


def _private_real(rows: list[PrivateRow]) -> str:
    """Private models on real data, every weight and target."""
    lines = ["| data | method | epsilon | weight, or target gap | accuracy | parity gap | seeds |", "|" + "---|" * 7]
    for task in REAL:
        for method, epsilon in [
            (PLUG_IN, None),
            *((method, one) for one in EPSILONS for method in (TRACKING, PLUG_IN)),
        ]:
            own = [row for row in rows if (row.task, row.method, row.epsilon) == (task.name, method, epsilon)]
            for p in points_of(own):
                knob = "no rule" if method == PLUG_IN and p.knob == 1 else f"{p.knob:g}"
                cost = "none" if epsilon is None else f"{max(row.true_epsilon or 0.0 for row in p.rows):.3f}"
                cells = (task.name, method, cost, knob, p.accuracy.text(), p.parity_gap.text(), str(len(p.rows)))
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _private_limits(rows: list[PrivateRow]) -> str:
    """Both methods at equal gap and epsilon; how far the plug-in is ahead, by the jackknife over seeds."""
    lines = [f"| data | epsilon | parity gap at most | {TRACKING} | {PLUG_IN} | plug-in ahead by |", "|" + "---|" * 6]
    for task in REAL:
        for epsilon in EPSILONS:
            own = [row for row in rows if row.epsilon == epsilon]
            theirs, ours = (Front.of(own, task.name, method) for method in (TRACKING, PLUG_IN))
            if theirs is None or ours is None:
                continue
            for limit in _PRIVATE_LIMITS:
                reached = [front.at(limit) for front in (theirs, ours)]
                apart = difference_at(ours, theirs, limit)
                told = ["not reached" if one is None else f"{one:.3f}" for one in reached]
                verdict = "" if apart is None else _verdict(apart)
                cells = (task.name, f"{epsilon:g}", f"{limit:g}", *told, verdict)
                lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _private_reading(plain: list[Row], rows: list[PrivateRow]) -> str:
    """Seed by seed: whether the models beat the constant answer, and what the largest weight changes."""
    lines = ["| data | epsilon | " + " | ".join(_PRIVATE_PAIRS) + " |", "|---|---|" + "---|" * len(_PRIVATE_PAIRS)]
    for task in REAL:
        constant = [p for p in points_of(plain) if (p.task, p.method) == (task.name, Method.BLIND.value)]
        most = max((p for p in constant if p.knob in (0.0, 1.01)), key=lambda p: p.accuracy.mean)
        for epsilon in EPSILONS:
            own = points_of([row for row in rows if (row.task, row.epsilon) == (task.name, epsilon)])
            of = {(p.method, p.knob): p for p in own}
            if not of:
                continue
            without, strongest = of[TRACKING, WEIGHTS[0]], of[TRACKING, WEIGHTS[-1]]
            found = (_against(without, most), _against(of[PLUG_IN, 1.0], most), _against(strongest, without))
            lines.append(f"| {task.name} | {epsilon:g} | " + " | ".join(found) + " |")
    return "\n".join(lines)


def _kept(points: list[Point]) -> str:
    """The claim of Figure 2: who keeps accuracy while the weight grows."""
    said = []
    for method in (Method.OURS, Method.CENTRAL, Method.LOCAL, Method.FAIRFED):
        line = [p for p in points if p.method == method.value and p.own == 1.0 and p.knob >= 1]
        worst = min(line, key=lambda p: p.accuracy.mean)
        widest = max(line, key=lambda p: p.parity_gap.mean)
        said.append(
            f"{method.value}: accuracy at least {worst.accuracy.text()} (weight {worst.knob:g}), "
            f"gap at most {widest.parity_gap.text()} (weight {widest.knob:g})"
        )
    return "For weights of 1 and more: " + "; ".join(said) + "."


def _majority(points: list[Point]) -> str:
    """The better of the two constant answers."""
    constant = [p for p in points if p.method == Method.BLIND.value and p.knob in (0.0, 1.01)]
    return max(constant, key=lambda p: p.accuracy.mean).accuracy.text()


def _limits(rows: list[Row], task: RealTask) -> str:
    """Each method's accuracy at a mean gap, and how far function tracking is ahead of it there."""
    fronts = {method: Front.of(rows, task.name, method.value) for method in _COMPARED}
    ours = fronts[Method.OURS]
    lines = [
        "| parity gap at most | " + " | ".join(method.value for method in _COMPARED) + " |",
        "|---|" + "---|" * len(_COMPARED),
    ]
    for limit in task.limits:
        cells = []
        for method, front in fronts.items():
            reached = None if front is None else front.at(limit)
            if front is None or ours is None or reached is None:
                cells.append("not reached")
                continue
            apart = None if method is Method.OURS else difference_at(ours, front, limit)
            unsure = "" if method is Method.OURS else "; too few seeds reach it (undecided)"
            cells.append(f"{reached:.3f}" + (unsure if apart is None else f"; {_verdict(apart)}"))
        lines.append(f"| {limit:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _verdict(apart: Interval) -> str:
    word = "ahead" if apart.low > 0 else "behind" if apart.high < 0 else "undecided"
    return f"{apart.text(3, signed=True)} ({word})"


def _reading(rows: list[Row]) -> list[str]:
    """How often function tracking is ahead of each method, over all limits and both data sets."""
    lines, everything = list[str](), Counter[str]()
    for place, method in enumerate(_COMPARED[1:], start=2):
        cells = [line.split("|")[place + 1] for task in REAL for line in _limits(rows, task).splitlines()[2:]]
        counts = Counter(word for cell in cells for word in _WORDS if word in cell)
        everything.update(counts)
        told = ", ".join(f"{counts[word]} {word}" for word in _WORDS if counts[word])
        lines.append(f"* against {method.value}: {told}.")
    summary = ", ".join(f"{everything[word]} {word}" for word in _WORDS if everything[word])
    return [f"Function tracking, {sum(everything.values())} comparisons at equal gap: {summary}.", "", *lines]


def _against(ours: Point, other: Point) -> str:
    """Differences of accuracy and gap, seed by seed."""
    theirs = {row.seed: row for row in other.rows}
    pairs = [(row, theirs[row.seed]) for row in ours.rows if row.seed in theirs]
    accuracy = Interval.of(one.accuracy - another.accuracy for one, another in pairs)
    gap = Interval.of(one.parity_gap - another.parity_gap for one, another in pairs)
    return f"{accuracy.text(3, signed=True)}, gap {gap.text(3, signed=True)}"


def _fewer(points: list[Point]) -> str:
    """Figure 5: function tracking with fewer published scores, beside the usual number, seed by seed."""
    of = {(p.method, p.knob): p for p in points if p.task == REAL[0].name}
    lines = ["| scores per group | weight | accuracy | parity gap | against 100 scores |", "|" + "---|" * 5]
    for name, samples in {Method.OURS.value: 100, **FEWER_SAMPLES}.items():
        for weight in REAL[0].weights:
            mine, usual = of[name, weight], of[Method.OURS.value, weight]
            beside = "" if mine is usual else _against(mine, usual)
            cells = (str(samples), f"{weight:g}", mine.accuracy.text(), mine.parity_gap.text(), beside)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _curve(curve: list[CurvePoint]) -> str:
    """Figures 6 and 7: both parts of the objective, on training and on test records."""
    columns = ("train_loss", "test_loss", "train_mmd", "test_mmd")
    lines = ["| round | loss, training | loss, test | MMD, training | MMD, test |", "|" + "---|" * 5]
    for number in _SHOWN_ROUNDS:
        own = [point for point in curve if point.round == number]
        cells = [Interval.of(getattr(point, column) for point in own).text(4) for column in columns]
        lines.append(f"| {number} | " + " | ".join(cells) + " |")
    return "\n".join(lines)

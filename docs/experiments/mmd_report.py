"""The page of the MMD experiment, from its rows; every sentence with a number is counted, not written by hand."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from mmd_settings import PRIVATE, REAL, Method
from mmd_training import Row
from seed_intervals import Interval

_LIMITS = (0.30, 0.20, 0.15, 0.10, 0.05)
"""Parity gaps at which methods are compared."""
_COMPARED = (Method.OURS, Method.LOCAL, Method.FAIRFED, Method.FEDFB, Method.AGNOSTIC)


@dataclass(frozen=True)
class Point:
    """One method at one knob over all seeds."""

    task: str
    method: str
    knob: float
    own: float
    rows: tuple[Row, ...]

    @property
    def accuracy(self) -> Interval:
        return Interval.of(row.accuracy for row in self.rows)

    @property
    def parity_gap(self) -> Interval:
        return Interval.of(row.parity_gap for row in self.rows)


def points_of(rows: list[Row]) -> list[Point]:
    groups: dict[tuple[str, str, float, float], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.task, row.method, row.knob, row.own].append(row)
    return [Point(*key, tuple(sorted(own, key=lambda row: row.seed))) for key, own in groups.items()]


def write_report(rows: list[Row], template: Path, page: Path) -> Path:
    points = points_of(rows)
    synthetic = [p for p in points if p.task == "synthetic"]
    private = {method.value for method in PRIVATE}
    marks = {
        "synthetic-seeds": str(max(len(p.rows) for p in synthetic)),
        "real-seeds": str(max(len(p.rows) for p in points if p.task != "synthetic")),
        "synthetic": _table([p for p in synthetic if p.own == 1.0 and p.method not in private], "knob"),
        "ablation": _table([p for p in synthetic if p.knob == 50.0 and p.method not in private], "own"),
        "private": _private([p for p in synthetic if p.method in private]),
        "synthetic-verdict": _kept(synthetic),
        "reading": "\n".join(_reading(points)),
    }
    for task in REAL:
        own = [p for p in points if p.task == task.name]
        marks[task.name] = _table(own, "knob")
        marks[f"{task.name}-verdict"] = _limits(own)
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


def _limits(points: list[Point]) -> str:
    """The best mean accuracy of each method among its knobs whose mean gap keeps a limit."""
    lines = [
        "| parity gap at most | " + " | ".join(method.value for method in _COMPARED) + " |",
        "|---|" + "---|" * len(_COMPARED),
    ]
    for limit in _LIMITS:
        best = [_best(points, method, limit) for method in _COMPARED]
        cells = ["not reached" if p is None else f"{p.accuracy.text()} (weight {p.knob:g})" for p in best]
        lines.append(f"| {limit:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _best(points: list[Point], method: Method, limit: float) -> Point | None:
    fair = [p for p in points if p.method == method.value and p.parity_gap.mean <= limit]
    return max(fair, key=lambda p: p.accuracy.mean, default=None)


def _reading(points: list[Point]) -> list[str]:
    """Function tracking against each other method at every limit, accuracy compared seed by seed."""
    lines: list[str] = []
    for task in REAL:
        own = [p for p in points if p.task == task.name]
        for limit in _LIMITS:
            ours = _best(own, Method.OURS, limit)
            if ours is None:
                lines.append(f"* {task.title}, gap at most {limit:g}: function tracking does not reach it.")
                continue
            said = []
            for method in _COMPARED[1:]:
                other = _best(own, method, limit)
                said.append(f"{method.value} {_against(ours, other)}")
            lines.append(f"* {task.title}, gap at most {limit:g}, function tracking against " + "; ".join(said) + ".")
    text = " ".join(lines)
    counts = {word: text.count(f"({word})") for word in ("ahead", "behind", "undecided", "not reached")}
    summary = (
        f"Of {sum(counts.values())} comparisons at equal limits, function tracking is ahead in {counts['ahead']} and"
        f" behind in {counts['behind']}; {counts['undecided']} are undecided with so few splits; in"
        f" {counts['not reached']} the other method never keeps the limit. Difference of accuracy, split by split:"
    )
    return [summary, "", *lines]


def _against(ours: Point, other: Point | None) -> str:
    if other is None:
        return "(not reached)"
    theirs = {row.seed: row.accuracy for row in other.rows}
    difference = Interval.of(row.accuracy - theirs[row.seed] for row in ours.rows if row.seed in theirs)
    verdict = "ahead" if difference.low > 0 else "behind" if difference.high < 0 else "undecided"
    return f"{difference.text(3, signed=True)} ({verdict})"

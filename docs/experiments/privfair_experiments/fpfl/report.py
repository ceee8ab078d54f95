"""The page and the figure of the FPFL experiment, from its rows; sentences with numbers are counted, not written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from privfair_experiments.fpfl.settings import (
    AS_PRINTED,
    DEEP_LADDER,
    EVERYBODY,
    FPFL,
    LADDER,
    MMDM,
    NO_NOISE,
    PFL,
    PLUG_IN,
    RUNGS,
    SELECTED,
    SGD,
    STEPS,
    TOLERANCE,
    WEIGHTED,
    WEIGHTED_STEPS,
    Rung,
)
from privfair_experiments.fpfl.training import Row
from privfair_experiments.seed_intervals import Interval

_LARGEST_GAP, _LARGEST_LOSS = 0.025, 0.005
_GAPS = {
    "fnr_gap": "FNR gap",
    "fnr_gap_training": "FNR gap, training",
    "equalised_odds_gap": "EO gap",
    "demographic_parity_gap": "parity gap",
    "predictive_parity_gap": "predictive parity gap",
}
_HEAD = ("", "epsilon, added", "epsilon, replaced", "splits", "accuracy", *_GAPS.values())


@dataclass(frozen=True)
class Point:
    """One rung over all splits."""

    rung: Rung
    rows: tuple[Row, ...]

    def over(self, column: str) -> Interval:
        return over(self.rows, column)


def over(rows: Sequence[Row], column: str) -> Interval:
    """The mean of a column over splits; a gap that is undefined on a split is left out."""
    return Interval.of(value for row in rows if (value := getattr(row, column)) is not None)


def points_of(rows: list[Row]) -> list[Point]:
    found = []
    for rung in RUNGS:
        own = tuple(row for row in rows if (row.rung, row.cohort) == (rung.name, rung.cohort))
        found += [Point(rung, own)] if own else []
    return found


def write_report(rows: list[Row], template: Path, page: Path) -> Path:
    points = points_of(rows)
    of = {(p.rung.name, p.rung.cohort): p.rows for p in points}
    deep = [p for p in points if p.rung in DEEP_LADDER]
    marks = {
        "central": _table([p for p in points if p.rung.cohort is None and p.rung in LADDER]),
        "verdict": _verdict(points),
        "private": _private(points),
        "ladder": "\n\n".join(
            f"m = {cohort}:\n\n" + _table([p for p in points if p.rung.cohort == cohort and p.rung in LADDER])
            for cohort in (200, 1000)
        ),
        "deep": _table(deep),
        "deep-reading": _deep_reading(of),
        "printed": _table([p for p in points if p.rung in AS_PRINTED]),
        "tolerance": _tolerance(points),
        "selected": _apart(of[SELECTED.name, 1000], of[FPFL.name, 1000]),
        "everybody": _everybody(rows),
        "splits": str(len({row.split for row in rows})),
        "users": f"{rows[0].users:,}",
        "settings": _settings(points),
    }
    text = template.read_text("utf-8")
    for mark, value in marks.items():
        text = text.replace(f"{{{{{mark}}}}}", value)
    page.write_text(text, encoding="utf-8")
    return page


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(name: str, rows: Sequence[Row]) -> tuple[str, ...]:
    """A row of every table: what it costs under both relations, and what it reaches."""
    costs = (rows[0].true_epsilon, rows[0].replaced_epsilon)
    gaps = [over(rows, gap) if any(getattr(r, gap) is not None for r in rows) else None for gap in _GAPS]
    return (
        name,
        *("none" if cost is None else f"{cost:.3f}" for cost in costs),
        str(len(rows)),
        over(rows, "accuracy").text(),
        *("" if gap is None else gap.text() for gap in gaps),
    )


def _table(points: list[Point]) -> str:
    head = (*_HEAD, "paper", "its gap")
    lines = [_line(head), "|" + "---|" * len(head)]
    for point in points:
        paper = ("", "") if point.rung.paper is None else tuple(f"{value:.3f}" for value in point.rung.paper)
        name = point.rung.name if point.rung in LADDER else point.rung.title
        lines.append(_line((*_cells(name, point.rows), *paper)))
    return "\n".join(lines)


def _verdict(points: list[Point]) -> str:
    (sgd,), (mmdm,) = ([p for p in points if p.rung is rung] for rung in (SGD, MMDM))
    before, after = sgd.over("fnr_gap"), mmdm.over("fnr_gap")
    lost = Interval.of(one.accuracy - other.accuracy for one, other in zip(sgd.rows, mmdm.rows, strict=True))
    reached = after.mean <= _LARGEST_GAP and lost.mean <= _LARGEST_LOSS
    return (
        f"Multipliers bring the mean gap from {before.text()} to {after.text()} and cost {lost.text(4)} of accuracy,"
        f" split by split. Wanted: a gap of at most {_LARGEST_GAP:g} at a loss of at most {_LARGEST_LOSS:g}:"
        f" **{'reached' if reached else 'not reached'}** in the mean."
    )


def _private(points: list[Point]) -> str:
    """FPFL against PFL at the same true epsilon, split by split."""
    lines = []
    for cohort in (200, 1000):
        pfl, fpfl = (
            next(p for p in points if (p.rung.name, p.rung.cohort) == (name, cohort)) for name in (PFL.name, FPFL.name)
        )
        lines.append(f"* m = {cohort}, FPFL minus PFL, split by split: {_apart(fpfl.rows, pfl.rows)}.")
    return "\n".join(lines)


def _deep_reading(of: dict[tuple[str, int | None], tuple[Row, ...]]) -> str:
    """Deep against shallow, rung by rung, on the splits that both were trained on."""
    lines = []
    for name, cohort in (("MMDM", None), ("FFL", 200), ("PFL", 200), ("FPFL", 200), ("PFL", 1000), ("FPFL", 1000)):
        title = name if cohort is None else f"{name}, m = {cohort}"
        lines.append(f"* {title}, deep minus shallow: {_apart(of[f'{name}, deep', cohort], of[name, cohort])}.")
    return "\n".join(lines)


def _apart(mine: Sequence[Row], theirs: Sequence[Row]) -> str:
    """Paired by split: accuracy and FNR gap."""
    others = {row.split: row for row in theirs}
    pairs = [(row, others[row.split]) for row in mine if row.split in others]
    accuracy = Interval.of(one.accuracy - other.accuracy for one, other in pairs)
    gap = Interval.of(one.fnr_gap - other.fnr_gap for one, other in pairs)
    return f"accuracy {accuracy.text(4, signed=True)}, FNR gap {gap.text(3, signed=True)} ({len(pairs)} splits)"


def _tolerance(points: list[Point]) -> str:
    """Whether FPFL with m = 1000 keeps the tolerance, in the mean and split by split."""
    (point,) = (p for p in points if p.rung == FPFL)
    gap, kept = point.over("fnr_gap"), sum(row.fnr_gap <= TOLERANCE for row in point.rows)
    words = "keeps the tolerance" if gap.high <= TOLERANCE else "is not shown to keep the tolerance"
    if gap.low > TOLERANCE:
        words = "misses the tolerance"
    return (
        f"At m = 1000 FPFL's mean gap over {len(point.rows)} splits is {gap.text()}: it {words} of {TOLERANCE:g} in the"
        f" mean, and does so on {kept} of {len(point.rows)} splits."
    )


def _everybody(rows: list[Row]) -> str:
    """All users in every round, beside FPFL with and without the steps, and the controls."""
    names = [rung.at(threshold) for rung in EVERYBODY for threshold in rung.thresholds]
    names[2:2] = [PLUG_IN.name, PLUG_IN.without_rule]
    kinds = [(FPFL.name, FPFL.cohort), (STEPS.name, STEPS.cohort), *((name, None) for name in names)]
    found = {name: [row for row in rows if row.rung == name and cohort in (None, row.cohort)] for name, cohort in kinds}
    lines = [_line(_HEAD), "|" + "---|" * len(_HEAD)]
    for name, cohort in kinds:
        if found[name]:
            lines.append(_line(_cells(name if cohort is None else f"{name}, m = {cohort}", found[name])))
    lines.append("")
    plain, weighted, without = WEIGHTED.name, WEIGHTED_STEPS.name, NO_NOISE.name
    for mine, theirs in (
        (STEPS.name, FPFL.name),
        (plain, FPFL.name),
        (weighted, FPFL.name),
        (weighted, STEPS.name),
        (PLUG_IN.name, FPFL.name),
        (PLUG_IN.name, STEPS.name),
        (PLUG_IN.name, weighted),
        (PLUG_IN.name, PLUG_IN.without_rule),
        (weighted, without),
    ):
        if found[mine] and found[theirs]:
            lines.append(f"* {mine} minus {theirs}, split by split: {_apart(found[mine], found[theirs])}.")
    return "\n".join(lines)


def _settings(points: list[Point]) -> str:
    lines = ["| | rounds | clip | step | smoothing | noise multiplier | CPU seconds per run |", "|" + "---|" * 7]
    for point in points:
        rung, noise = point.rung, point.rows[0].noise_multiplier
        cells = (
            rung.title,
            str(rung.rounds),
            "none" if rung.clip is None else f"{rung.clip:g}",
            f"{rung.learning_rate:g}",
            f"{rung.smoothing:g}",
            "none" if noise is None else f"{noise:.3f}",
            "" if point.rows[0].seconds is None else f"{point.over('seconds').mean:.0f}",
        )
        lines.append(_line(cells))
    return "\n".join(lines)


def draw(rows: list[Row], path: Path) -> Path:
    """Accuracy against the FNR gap: ours with intervals, the paper's figures as hollow marks of the same colour."""
    plt.rcParams["svg.hashsalt"] = "fpfl"
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.5), sharex=True, sharey=True)
    points = points_of(rows)
    for panel, cohort in zip(axes, (None, 200, 1000), strict=True):
        for place, point in enumerate(p for p in points if p.rung.cohort == cohort and p.rung in LADDER):
            gap, accuracy, colour = point.over("fnr_gap"), point.over("accuracy"), f"C{place}"
            panel.errorbar(
                gap.mean,
                accuracy.mean,
                xerr=gap.half,
                yerr=accuracy.half,
                fmt="o",
                color=colour,
                label=point.rung.name,
                elinewidth=0.7,
            )
            if point.rung.paper is not None:
                panel.plot(point.rung.paper[1], point.rung.paper[0], "o", mfc="none", color=colour)
        for how in (WEIGHTED, WEIGHTED_STEPS, PLUG_IN) if cohort == 1000 else ():
            found = [row for row in rows if row.rung == how.name]
            gap, accuracy = over(found, "fnr_gap"), over(found, "accuracy")
            errors = {"xerr": gap.half, "yerr": accuracy.half, "elinewidth": 0.7}
            panel.errorbar(gap.mean, accuracy.mean, fmt="s", label=how.name, **errors)
        panel.axvline(0.02, color="0.6", linestyle="--", linewidth=0.8)
        panel.set_title("records in one place" if cohort is None else f"m = {cohort}")
        panel.set_xlabel("gap of the false negative rate")
        panel.legend(fontsize=7)
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("accuracy")
    figure.suptitle("Adult, filled: ours with 95% intervals; hollow: the paper's; dashed: the tolerance")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path

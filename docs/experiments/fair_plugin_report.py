"""The page, the figure and the newcomer's table of the fair plug-in, from its rows and from those of steffle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
from fpfl_training import Row as FpflRow
from images_report import LINEAR, ImageRow
from seed_intervals import Interval, load_rows
from steffle_split import Row as SteffleRow

Row = tuple[str, int, str, str, float | None, float, float, float]
"""setting, split, protect, method, epsilon, target (or threshold), error, gap"""
NAMES = {"adult-steps": "Adult with steps", "credit-card": "Credit Card"}
AIM = {"adult-steps": 0.067, "credit-card": 0.01}
"""The target gap of each data set in the newcomer's table."""
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
TREES = "fair-plugin, boosted trees"
"""With trees as the algorithm's own model of the outcome, for attributes alone."""
DISTILLED = "fair-plugin, boosted trees, distilled"
"""Trees that learnt the rule's answers, and guess no attribute."""
_NEAR = 0.01
"""A mean gap that misses its target by less is called about the target."""
_LEVEL = 0.001
"""Accuracies that differ by less are called level, and all of them are shown."""
_PLANS_FOR_USERS = {
    "everybody, weighted, steps": ("fpfl, everybody weighted", "fpfl-weighted"),
    "fair-plugin, steps": ("fair-plugin", "fair-plugin-users"),
}
_BEGIN, _END = "<!-- newcomer: begin -->", "<!-- newcomer: end -->"
HERE = Path(__file__).parent


def write_page(rows: list[Row], out: Path) -> None:
    """fair-plugin.md and fair-plugin.svg into `out`; the table into README.md where it has the place for it."""
    template = (HERE / "fair-plugin-template.md").read_text("utf-8")
    page = template.replace("{{tables}}", "\n".join(_tables(rows))).replace("{{paired}}", _paired(rows))
    page = page.replace("{{trees}}", _trees(rows)).replace("{{distilled}}", _distilled(rows))
    page = page.replace("{{free}}", _record_means(rows, False)).replace("{{cost}}", _record_means(rows, True))
    page = page.replace("{{splits}}", ", ".join(f"{len(_splits(rows, one))} of {NAMES[one]}" for one in NAMES))
    (out / "fair-plugin.md").write_text(page, encoding="utf-8")
    _draw(rows, out / "fair-plugin.svg")
    readme = out / "README.md"
    if readme.exists() and _BEGIN in (text := readme.read_text("utf-8")):
        before, _, rest = text.partition(_BEGIN)
        readme.write_text(f"{before}{_BEGIN}\n{newcomer(rows)}\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")


def _splits(rows: Iterable[Row], setting: str) -> list[int]:
    """The splits of all rows but those with trees, which have splits of their own."""
    return sorted({row[1] for row in rows if row[0] == setting and row[3] not in (TREES, DISTILLED)})


def _pick(
    rows: Iterable[Row], setting: str, protect: str, method: str, epsilon: float | None, knob: float
) -> list[Row]:
    wanted = (setting, protect, method, epsilon, knob)
    return [row for row in rows if (row[0], row[2], row[3], row[4], row[5]) == wanted]


def _cell(found: list[Row]) -> str:
    if not found:
        return ""
    error, gap = Interval.of(row[6] for row in found), Interval.of(row[7] for row in found)
    return f"{error.text(4)} at {gap.text()}"


def _tables(rows: list[Row]) -> Iterable[str]:
    for setting, name in NAMES.items():
        targets = sorted({row[5] for row in rows if row[0] == setting and row[2] != "nobody"}, reverse=True)
        heads = ["no rule" if target == 1.0 else f"target {target:g}" for target in targets]
        yield f"### {name}\n\n| protected | epsilon | {' | '.join(heads)} |\n|---|---|{'---|' * len(heads)}"
        kinds: list[tuple[str, str, float | None]] = [("record", "fair-plugin", one) for one in EPSILONS]
        kinds += [("record", "no privacy", None), *(("attribute", "fair-plugin", one) for one in EPSILONS)]
        for protect, method, epsilon in kinds:
            cells = [_cell(_pick(rows, setting, protect, method, epsilon, target)) for target in targets]
            who = "nobody" if epsilon is None else protect
            yield f"| {who} | {'none' if epsilon is None else f'{epsilon:g}'} | {' | '.join(cells)} |"
        blind = [_cell(_pick(rows, setting, "nobody", "s-blind threshold", None, cut)) for cut in (0.5, 1.0, 1.5)]
        yield f"\nControls: s-blind thresholds of 0.5, 1 and 1.5 on the log-odds without privacy: {'; '.join(blind)}."
        yield f"Always the majority: {_cell(_pick(rows, setting, 'nobody', 'always the majority', None, 0.0))}.\n"


def _pay_once(setting: str, epsilon: float) -> dict[int, list[tuple[float, float]]]:
    """By split, (gap, error) of pay-once along its fairness weights, as steffle's rows have them (h = 0)."""
    found: dict[int, list[tuple[float, float]]] = {}
    for row in _steffle_rows():
        if (row.setting, row.h, row.method, row.epsilon) == (setting, 0.0, "pay-once", epsilon):
            found.setdefault(row.split, []).append((row.gap, row.error))
    return found


@lru_cache(maxsize=1)
def _steffle_rows() -> list[SteffleRow]:
    return load_rows(SteffleRow, HERE / "data" / "steffle.json.gz")


def _error_at(curve: list[tuple[float, float]], gap: float) -> float | None:
    """The smallest error of a curve at a gap of at most this, between its points too; None outside."""
    points = sorted(curve)
    if gap < points[0][0]:
        return None
    best = [error for own, error in points if own <= gap]
    for (low, left), (high, right) in pairwise(points):
        if low <= gap <= high and high > low:
            best.append(left + (right - left) * (gap - low) / (high - low))
    return min(best)


def _paired(rows: list[Row]) -> str:
    lines = ["| data | protected | target | splits | fair-plugin minus pay-once |", "|---|---|---|---|---|"]
    for setting, name in NAMES.items():
        curves = _pay_once(setting, 1.0)
        for protect in ("record", "attribute"):
            for target in sorted({row[5] for row in rows if row[0] == setting and row[2] == protect}, reverse=True):
                own = [r for r in _pick(rows, setting, protect, "fair-plugin", 1.0, target) if r[1] in curves]
                found = [(row[6], _error_at(curves[row[1]], row[7])) for row in own]
                apart = [mine - theirs for mine, theirs in found if theirs is not None]
                if target < 1.0 and len(apart) > 1:
                    told = Interval.of(apart).text(4, signed=True)
                    lines.append(f"| {name} | {protect} | {target:g} | {len(apart)} | {told} |")
    return "\n".join(lines)


def _record_means(rows: list[Row], cost: bool) -> str:
    """Errors on Adult for targets .067 and .018 without privacy, or what is paid for epsilon 1 on top of them."""
    shown = []
    for target in (0.067, 0.018):
        paid, free = (
            [row[6] for row in _pick(rows, "adult-steps", "record", name, epsilon, target)]
            for name, epsilon in (("fair-plugin", 1.0), ("no privacy", None))
        )
        found = Interval.of(a - b for a, b in zip(paid, free, strict=True)) if cost else Interval.of(free)
        shown.append(found.text(4, signed=cost))
    return " and ".join(shown)


def _distilled(rows: list[Row]) -> str:
    """Distilled trees beside the rule, paired by split at epsilon 1."""
    lines = ["| data | target | splits | error | gap |", "|---|---|---|---|---|"]
    for setting, name in NAMES.items():
        for target in sorted({row[5] for row in rows if row[0] == setting and row[3] == DISTILLED}, reverse=True):
            left, right = (
                {r[1]: r for r in _pick(rows, setting, "attribute", kind, 1.0, target)} for kind in (DISTILLED, TREES)
            )
            both = sorted(set(left) & set(right))
            if len(both) > 1:
                error, gap = (Interval.of(left[k][at] - right[k][at] for k in both) for at in (6, 7))
                shown = f"{error.text(4, signed=True)} | {gap.text(signed=True)}"
                lines.append(f"| {name} | {target:g} | {len(both)} | {shown} |")
    return "\n".join(lines)


def _trees(rows: list[Row]) -> str:
    """Error and gap with trees as the score, and paired with pay-once at the same gap and epsilon."""
    lines = ["| data | epsilon | target | splits | error at gap | minus pay-once | |", "|---|---|---|---|---|---|---|"]
    for setting, name in NAMES.items():
        at = [row for row in rows if row[0] == setting and row[3] == TREES]
        for epsilon in sorted({row[4] for row in at if row[4] is not None}):
            curves = _pay_once(setting, epsilon)
            for target in sorted({row[5] for row in at}, reverse=True):
                own = _pick(rows, setting, "attribute", TREES, epsilon, target)
                found = [(row[6], _error_at(curves[row[1]], row[7])) for row in own if row[1] in curves]
                apart = [mine - theirs for mine, theirs in found if theirs is not None]
                told = Interval.of(apart).text(4, signed=True) if len(apart) > 1 else ""
                over = f"{len(apart)} splits" if told else ""
                goal = "no rule" if target == 1.0 else f"{target:g}"
                lines.append(f"| {name} | {epsilon:g} | {goal} | {len(own)} | {_cell(own)} | {told} | {over} |")
    return "\n".join(lines)


def newcomer(rows: list[Row]) -> str:
    """Per data set and unit the best method known at each epsilon: error at gap."""
    lines = [
        f"| data, target gap | protected | {' | '.join(f'{one:g}' for one in EPSILONS)} |",
        "|---|---|" + "---|" * 6,
    ]
    for setting, name in NAMES.items():
        for protect in ("record", "attribute"):
            cells = [_best(rows, setting, protect, epsilon) for epsilon in EPSILONS]
            lines.append(f"| {name}, {AIM[setting]:g} | one {protect} | {' | '.join(cells)} |")
    lines.append(f"| Adult | one user | | | | {_best_for_users()} | | |")
    for setting, name in NAMES.items():
        free = _short(_pick(rows, setting, "record", "no privacy", None, AIM[setting]))
        plain = _short(_pick(rows, setting, "record", "no privacy", None, 1.0))
        most = _short(_pick(rows, setting, "nobody", "always the majority", None, 0.0))
        lines.append(f"\n{name} without privacy: the same rule {free}, no rule {plain}; always the majority {most}.")
    lines.append(f"\n{_of_images()}")
    return "\n".join(lines)


def _best_for_users() -> str:
    """FPFL's setting at epsilon 2: the most accurate private rows whose mean FNR gap is below .04."""
    rows = load_rows(FpflRow, HERE / "data" / "fpfl.json.gz")
    rows = [row for row in rows if row.true_epsilon is not None and row.true_epsilon <= 2]
    groups = {
        name: [row for row in rows if (row.rung, row.cohort) == name] for name in {(r.rung, r.cohort) for r in rows}
    }
    means = {
        name: (float(np.mean([r.accuracy for r in own])), float(np.mean([r.fnr_gap for r in own])))
        for name, own in groups.items()
    }
    fair = {name: mean for name, mean in means.items() if mean[1] < 0.04}
    best = max(accuracy for accuracy, _ in fair.values())
    level = sorted(
        ((rung, *mean) for (rung, _), mean in fair.items() if mean[0] > best - _LEVEL), key=lambda one: one[2]
    )
    cells = [f"{_named_for_users(rung)} {1 - accuracy:.3f} at an FNR gap of {gap:.3f}" for rung, accuracy, gap in level]
    return "; ".join(cells) + " ([page](fpfl.md))"


def _named_for_users(rung: str) -> str:
    """The row's algorithm, with the plan that runs it where there is one."""
    return "[{}](../examples/{}.toml)".format(*_PLANS_FOR_USERS[rung]) if rung in _PLANS_FOR_USERS else rung


def _of_images() -> str:
    rows = load_rows(ImageRow, HERE / "data" / "images.json.gz")
    own = [row for row in rows if (row.dataset, row.method, row.epsilon) == ("fashion-mnist", LINEAR, 3.52)]
    accuracy = 100 * float(np.mean([row.accuracy for row in own]))
    told = "Fashion-MNIST, ten clients, one record at 3.52: a linear model on public features"
    return f"{told}, {accuracy:.1f}% ([page](images.md))."


def _short(found: list[Row], name: str = "") -> str:
    if not found:
        return ""
    return f"{name} {np.mean([r[6] for r in found]):.3f} at {np.mean([r[7] for r in found]):.3f}".strip()


def _best(rows: list[Row], setting: str, protect: str, epsilon: float) -> str:
    """The better of the plug-in and pay-once; with trees, where their error is smaller and the gap about the target."""
    plain = _best_of_models(rows, setting, protect, epsilon)
    bought = max((one for one in (0.25, 0.5, 1.0) if one <= epsilon), default=0.0)
    trees = _pick(rows, setting, protect, TREES, bought, AIM[setting])
    if len(trees) < 2:
        return plain
    error, gap = (float(np.mean([row[place] for row in trees])) for place in (6, 7))
    if gap > AIM[setting] + _NEAR or error >= float(re.findall(r"0\.\d{3}", plain)[0]):
        return plain
    return f"{TREES}{'' if bought == epsilon else f' (epsilon {bought:g})'} {error:.3f} at {gap:.3f}"


def _best_of_models(rows: list[Row], setting: str, protect: str, epsilon: float) -> str:
    own = _pick(rows, setting, protect, "fair-plugin", epsilon, AIM[setting])
    # What was measured at a smaller epsilon can be had at this one, too.
    spent = max((one for one in (1.0, 3.0) if one <= epsilon), default=0.0)
    curves = _pay_once(setting, spent) if protect == "attribute" else {}
    if own and curves:
        gap = float(np.mean([row[7] for row in own]))
        errors = [one for one in (_error_at(curve, gap) for curve in curves.values()) if one is not None]
        if errors and np.mean(errors) < np.mean([row[6] for row in own]):
            return f"pay-once{'' if spent == epsilon else f' (epsilon {spent:g})'} {np.mean(errors):.3f} at {gap:.3f}"
    return _short(own, "fair-plugin")


def _draw(rows: list[Row], place: Path) -> None:
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "fair-plugin"
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, (setting, name) in zip(figure.subplots(1, 2), NAMES.items(), strict=True):
        draw: Callable[..., object] = axes.plot
        for epsilon in (0.5, 1.0, 2.0, 8.0, None):
            method = "no privacy" if epsilon is None else "fair-plugin"
            knobs = sorted({row[5] for row in rows if row[0] == setting and row[2] == "record"})
            found = [_pick(rows, setting, "record", method, epsilon, knob) for knob in knobs]
            points = [(np.mean([r[7] for r in one]), np.mean([r[6] for r in one])) for one in found if one]
            label = "no privacy" if epsilon is None else f"one record, epsilon {epsilon:g}"
            draw(*zip(*points, strict=True), marker="o", label=label) if points else None
        cuts = sorted({row[5] for row in rows if row[0] == setting and row[3] == "s-blind threshold"})
        blind = [_pick(rows, setting, "nobody", "s-blind threshold", None, cut) for cut in cuts]
        draw(
            [np.mean([r[7] for r in b]) for b in blind],
            [np.mean([r[6] for r in b]) for b in blind],
            "--",
            label="s-blind threshold",
        )
        axes.set(title=name, xlabel="gap between the groups' rates", ylabel="error")
    figure.axes[0].legend(fontsize=8)
    figure.savefig(place, metadata={"Date": None})

"""The page, the figure and the newcomer's table of the fair plug-in, from its rows and from those of steffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from privfair_experiments import PAGES
from privfair_experiments.fpfl.training import Row as FpflRow
from privfair_experiments.images.report import LINEAR, ImageRow
from privfair_experiments.seed_intervals import Interval, load_rows
from privfair_experiments.steffle.split import PAY_ONCE
from privfair_experiments.steffle.split import Row as SteffleRow

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
NOTIONS = {
    "adult-steps, equal opportunity": "true positive rates by sex",
    "adult-steps, sex by race": "positive rates of four groups, sex by race",
}
NETWORKS = "adult-steps, models of the outcome"
"""The setting of rows that compare models without a rule."""
_NEAR = 0.01
"""A mean gap that misses its target by less is called about the target."""
_LEVEL = 0.001
"""Accuracies that differ by less are called level, and all of them are shown."""
_PLANS_FOR_USERS = {
    "everybody, weighted, steps": ("fpfl, everybody weighted", "fpfl-weighted"),
    "fair-plugin, steps": ("fair-plugin", "fair-plugin-users"),
}
_BEGIN, _END = "<!-- newcomer: begin -->", "<!-- newcomer: end -->"


def write_page(rows: list[Row], out: Path) -> None:
    """fair-plugin.md and fair-plugin.svg into `out`; the table into README.md where it has the place for it."""
    template = (PAGES / "fair-plugin-template.md").read_text("utf-8")
    page = template.replace("{{tables}}", "\n".join(_tables(rows))).replace("{{paired}}", _paired(rows))
    page = page.replace("{{trees}}", _trees(rows)).replace("{{distilled}}", _distilled(rows))
    page = page.replace("{{notions}}", _notions(rows)).replace("{{networks}}", _networks(rows))
    page = page.replace("{{free}}", _record_means(rows, False)).replace("{{cost}}", _record_means(rows, True))
    page = page.replace("{{splits}}", ", ".join(f"{len(_splits(rows, one))} of {NAMES[one]}" for one in NAMES))
    (out / "fair-plugin.md").write_text(page, encoding="utf-8")
    _draw(rows, out / "fair-plugin.svg")
    readme = out / "README.md"
    if readme.exists() and _BEGIN in (text := readme.read_text("utf-8")):
        before, _, rest = text.partition(_BEGIN)
        readme.write_text(f"{before}{_BEGIN}\n{newcomer(rows)}\n{_END}{rest.partition(_END)[2]}", encoding="utf-8")


def _splits(rows: Iterable[Row], setting: str) -> list[int]:
    """The splits with linear models; trees have splits of their own."""
    return sorted({row[1] for row in rows if row[0] == setting and row[3] == "fair-plugin"})


def pick(rows: Iterable[Row], setting: str, protect: str, method: str, epsilon: float | None, knob: float) -> list[Row]:
    wanted = (setting, protect, method, epsilon, knob)
    return [row for row in rows if (row[0], row[2], row[3], row[4], row[5]) == wanted]


def _cell(found: list[Row]) -> str:
    if not found:
        return ""
    error, gap = Interval.of(row[6] for row in found), Interval.of(row[7] for row in found)
    return f"{error.text(4)} at {gap.text()}"


def _tables(rows: list[Row]) -> Iterable[str]:
    for setting, name in NAMES.items():
        targets = _targets(rows, setting, "fair-plugin")
        heads = ["no rule" if target == 1.0 else f"target {target:g}" for target in targets]
        yield f"### {name}\n\n| protected | epsilon | {' | '.join(heads)} |\n|---|---|{'---|' * len(heads)}"
        kinds: list[tuple[str, str, float | None]] = [("record", "fair-plugin", one) for one in EPSILONS]
        kinds += [("record", "no privacy", None), *(("attribute", "fair-plugin", one) for one in EPSILONS)]
        for protect, method, epsilon in kinds:
            cells = [_cell(pick(rows, setting, protect, method, epsilon, target)) for target in targets]
            who = "nobody" if epsilon is None else protect
            yield f"| {who} | {'none' if epsilon is None else f'{epsilon:g}'} | {' | '.join(cells)} |"
        blind = [_cell(pick(rows, setting, "nobody", "s-blind threshold", None, cut)) for cut in (0.5, 1.0, 1.5)]
        yield f"\nControls: s-blind thresholds of 0.5, 1 and 1.5 on the log-odds without privacy: {'; '.join(blind)}."
        yield f"Always the majority: {_cell(pick(rows, setting, 'nobody', 'always the majority', None, 0.0))}.\n"


def _targets(rows: Iterable[Row], setting: str, method: str) -> list[float]:
    """The target gaps of a method's rows, the largest first."""
    return sorted({row[5] for row in rows if row[0] == setting and row[3] == method}, reverse=True)


def _pay_once(rows: Iterable[Row], setting: str, epsilon: float) -> dict[int, list[tuple[float, float]]]:
    """By split, (gap, error) of pay-once along its fairness weights: steffle's rows (h = 0), and what they lack."""
    found: dict[int, list[tuple[float, float]]] = {}
    for row in _steffle_rows():
        if (row.setting, row.h, row.method, row.epsilon) == (setting, 0.0, PAY_ONCE, epsilon):
            found.setdefault(row.split, []).append((row.gap, row.error))
    for own in rows:
        if (own[0], own[3], own[4]) == (setting, PAY_ONCE, epsilon):
            found.setdefault(own[1], []).append((own[7], own[6]))
    return found


def _minus_pay_once(rows: Iterable[Row], setting: str, epsilon: float, own: list[Row]) -> list[float]:
    """Errors minus those of pay-once on the same split at the same gap, where it reaches that gap."""
    curves = _pay_once(rows, setting, epsilon)
    found = [(row[6], _error_at(curves[row[1]], row[7])) for row in own if row[1] in curves]
    return [mine - theirs for mine, theirs in found if theirs is not None]


@lru_cache(maxsize=1)
def _steffle_rows() -> list[SteffleRow]:
    return load_rows(SteffleRow, PAGES / "data" / "steffle.json.gz")


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
    lines = [
        "| data | protected | epsilon | target | splits | fair-plugin minus pay-once |",
        "|---|---|---|---|---|---|",
    ]
    for setting, name in NAMES.items():
        for protect, epsilon in (("record", 1.0), ("attribute", 0.25), ("attribute", 0.5), ("attribute", 1.0)):
            for target in _targets(rows, setting, "fair-plugin"):
                own = pick(rows, setting, protect, "fair-plugin", epsilon, target)
                apart = _minus_pay_once(rows, setting, epsilon, own)
                if target < 1.0 and len(apart) > 1:
                    told = Interval.of(apart).text(4, signed=True)
                    lines.append(f"| {name} | {protect} | {epsilon:g} | {target:g} | {len(apart)} | {told} |")
    return "\n".join(lines)


def _record_means(rows: list[Row], cost: bool) -> str:
    """Errors on Adult for targets .067 and .018 without privacy, or what is paid for epsilon 1 on top of them."""
    shown = []
    for target in (0.067, 0.018):
        paid, free = (
            [row[6] for row in pick(rows, "adult-steps", "record", name, epsilon, target)]
            for name, epsilon in (("fair-plugin", 1.0), ("no privacy", None))
        )
        found = Interval.of(a - b for a, b in zip(paid, free, strict=True)) if cost else Interval.of(free)
        shown.append(found.text(4, signed=cost))
    return " and ".join(shown)


def _distilled(rows: list[Row]) -> str:
    """Distilled trees at epsilon 1: as they are, and paired by split beside the rule and beside pay-once."""
    lines = [
        "| data | target | splits | error at gap | error minus the rule's | gap minus the rule's | minus pay-once | |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for setting, name in NAMES.items():
        for target in _targets(rows, setting, DISTILLED):
            left, right = (
                {r[1]: r for r in pick(rows, setting, "attribute", kind, 1.0, target)} for kind in (DISTILLED, TREES)
            )
            both = sorted(set(left) & set(right))
            errors, gaps = [(left[k][6], right[k][6]) for k in both], [(left[k][7], right[k][7]) for k in both]
            error, gap = (Interval.of(one - other for one, other in pairs) for pairs in (errors, gaps))
            own = list(left.values())
            shown = f"{_cell(own)} | {error.text(4, signed=True)} | {gap.text(signed=True)}"
            lines.append(
                f"| {name} | {target:g} | {len(both)} | {shown} | {_beside_pay_once(rows, setting, 1.0, own)} |"
            )
    return "\n".join(lines)


def _trees(rows: list[Row]) -> str:
    """Error and gap with trees as the score, and paired with pay-once at the same gap and epsilon."""
    lines = ["| data | epsilon | target | splits | error at gap | minus pay-once | |", "|---|---|---|---|---|---|---|"]
    for setting, name in NAMES.items():
        for epsilon in (0.25, 0.5, 1.0):
            for target in _targets(rows, setting, TREES):
                own = pick(rows, setting, "attribute", TREES, epsilon, target)
                goal, beside = (
                    "no rule" if target == 1.0 else f"{target:g}",
                    _beside_pay_once(rows, setting, epsilon, own),
                )
                lines.append(f"| {name} | {epsilon:g} | {goal} | {len(own)} | {_cell(own)} | {beside} |")
    return "\n".join(lines)


def _beside_pay_once(rows: list[Row], setting: str, epsilon: float, own: list[Row]) -> str:
    """Two cells: the paired difference, and over how many splits."""
    apart = _minus_pay_once(rows, setting, epsilon, own)
    return f"{Interval.of(apart).text(4, signed=True)} | {len(apart)} splits" if len(apart) > 1 else " | "


def _notions(rows: list[Row]) -> str:
    """Error at gap beyond parity of two groups."""
    lines = ["| what is alike | protected | epsilon | no rule | target 0.1 | target 0.067 | target 0.04 |"]
    lines.append("|---|---|---|---|---|---|---|")
    for setting, name in NOTIONS.items():
        kinds = (("record", "fair-plugin", 1.0), ("attribute", "fair-plugin", 1.0), ("record", "no privacy", None))
        for protect, method, epsilon in kinds:
            cells = [_cell(pick(rows, setting, protect, method, epsilon, aim)) for aim in (1.0, 0.1, 0.067, 0.04)]
            who, paid = ("nobody", "none") if epsilon is None else (protect, f"{epsilon:g}")
            lines.append(f"| {name} | {who} | {paid} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _networks(rows: list[Row]) -> str:
    """Errors of models of the outcome without a rule, and paired with the logistic one's."""
    lines = ["| protected, epsilon 1 | model of the outcome | splits | error at gap | error minus logistic |"]
    lines.append("|---|---|---|---|---|")
    for protect, methods in (("attribute", ("logistic", "network", "trees")), ("record", ("logistic", "network"))):
        plain = pick(rows, NETWORKS, protect, "logistic", 1.0, 1.0)
        for method in methods:
            own = pick(rows, NETWORKS, protect, method, 1.0, 1.0)
            apart = Interval.of(one[6] - other[6] for one, other in zip(own, plain, strict=True))
            told = "" if method == "logistic" else apart.text(4, signed=True)
            lines.append(f"| {protect} | {method} | {len(own)} | {_cell(own)} | {told} |")
    return "\n".join(lines)


def newcomer(rows: list[Row]) -> str:
    """Per data set and unit the best method known at each epsilon: error at gap."""
    lines = [
        f"| data, target gap | protected | {' | '.join(f'{one:g}' for one in EPSILONS)} |",
        "|---|---|" + "---|" * 6,
    ]
    for setting, name in NAMES.items():
        for protect in ("record", "attribute"):
            cells = [best_of(rows, setting, protect, epsilon) for epsilon in EPSILONS]
            lines.append(f"| {name}, {AIM[setting]:g} | one {protect} | {' | '.join(cells)} |")
    lines.append(f"| Adult | one user | | | | {_best_for_users()} | | |")
    for setting, name in NAMES.items():
        free = short(pick(rows, setting, "record", "no privacy", None, AIM[setting]))
        plain = short(pick(rows, setting, "record", "no privacy", None, 1.0))
        most = short(pick(rows, setting, "nobody", "always the majority", None, 0.0))
        lines.append(f"\n{name} without privacy: the same rule {free}, no rule {plain}; always the majority {most}.")
    lines.append(f"\n{_of_images()}")
    return "\n".join(lines)


def _best_for_users() -> str:
    """FPFL's setting at epsilon 2: the most accurate private rows whose mean FNR gap is below .04."""
    rows = load_rows(FpflRow, PAGES / "data" / "fpfl.json.gz")
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
    rows = load_rows(ImageRow, PAGES / "data" / "images.json.gz")
    own = [row for row in rows if (row.dataset, row.method, row.epsilon) == ("fashion-mnist", LINEAR, 3.52)]
    accuracy = 100 * float(np.mean([row.accuracy for row in own]))
    told = "Fashion-MNIST, ten clients, one record at 3.52: a linear model on public features"
    return f"{told}, {accuracy:.1f}% ([page](images.md))."


def short(found: list[Row], name: str = "") -> str:
    if not found:
        return ""
    return f"{name} {np.mean([r[6] for r in found]):.3f} at {np.mean([r[7] for r in found]):.3f}".strip()


def best_of(rows: list[Row], setting: str, protect: str, epsilon: float) -> str:
    """The plug-in, with trees where they err less at about the target gap; or pay-once, if it errs less at that gap."""
    name, error, gap = _best_plugin(rows, setting, protect, epsilon)
    # What was measured at a smaller epsilon can be had at this one, too.
    spent = max((one for one in (0.25, 0.5, 1.0, 3.0) if one <= epsilon), default=0.0)
    curves = _pay_once(rows, setting, spent) if protect == "attribute" else {}
    if curves:
        # The curve of means, weight by weight: no split is left out because it does not reach the gap.
        means = [tuple(np.mean(points, axis=0)) for points in zip(*curves.values(), strict=True)]
        theirs = _error_at(means, gap)
        if theirs is not None and theirs < error:
            name, error = f"{PAY_ONCE}{'' if spent == epsilon else f' (epsilon {spent:g})'}", theirs
    return f"{name} {error:.3f} at {gap:.3f}"


def _best_plugin(rows: list[Row], setting: str, protect: str, epsilon: float) -> tuple[str, float, float]:
    """The name of the better plug-in, its error and its gap."""
    bought = max((one for one in (0.25, 0.5, 1.0) if one <= epsilon), default=0.0)
    trees = f"{TREES}{'' if bought == epsilon else f' (epsilon {bought:g})'}"
    kinds = (("fair-plugin", "fair-plugin", epsilon), (trees, TREES, bought))
    found = []
    for name, method, paid in kinds:
        own = pick(rows, setting, protect, method, paid, AIM[setting])
        if own:
            error, gap = (float(np.mean([row[place] for row in own])) for place in (6, 7))
            found.append((name, error, gap))
    near = [one for one in found[1:] if one[2] <= AIM[setting] + _NEAR]
    return min(found[:1] + near, key=lambda one: one[1])


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
            found = [pick(rows, setting, "record", method, epsilon, knob) for knob in knobs]
            points = [(np.mean([r[7] for r in one]), np.mean([r[6] for r in one])) for one in found if one]
            label = "no privacy" if epsilon is None else f"one record, epsilon {epsilon:g}"
            draw(*zip(*points, strict=True), marker="o", label=label) if points else None
        cuts = sorted({row[5] for row in rows if row[0] == setting and row[3] == "s-blind threshold"})
        blind = [pick(rows, setting, "nobody", "s-blind threshold", None, cut) for cut in cuts]
        draw(
            [np.mean([r[7] for r in b]) for b in blind],
            [np.mean([r[6] for r in b]) for b in blind],
            "--",
            label="s-blind threshold",
        )
        axes.set(title=name, xlabel="gap between the groups' rates", ylabel="error")
    figure.axes[0].legend(fontsize=8)
    figure.savefig(place, metadata={"Date": None})

"""The experiment's page: tables computed from the rows, and sentences that are counted, not written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from privfair_experiments.seed_intervals import Interval
from privfair_experiments.steffle.settings import EPSILONS, SETTINGS, Setting
from privfair_experiments.steffle.split import CALIBRATED, ERM, NEGATIVE, NON_PRIVATE, PAY_ONCE, PRINTED, RAISED
from privfair_experiments.steffle.summary import Point

_FAIR = (PRINTED, CALIBRATED, PAY_ONCE, NON_PRIVATE)
_TARGETS = ((0.158, 0.075), (0.172, 0.02))


def write_report(points: list[Point], mattered: str, template: Path, page: Path) -> Path:
    """The template with its marks replaced by what was measured."""
    sections = []
    for setting in SETTINGS:
        own = [point for point in points if point.setting == setting.name]
        sections += _section(setting, own) if own else []
    text = template.read_text("utf-8").replace("{{measured}}", "\n\n".join(sections))
    text = text.replace("{{mattered}}", mattered)
    page.write_text(text.replace("{{promised}}", "\n\n".join(_promised(points))), encoding="utf-8")
    return page


def _section(setting: Setting, own: list[Point]) -> list[str]:
    parts = [f"## {setting.title}", f"![error against gap](steffle-{setting.name}.svg)", _counts(own)]
    for h in setting.heterogeneity:
        at = [point for point in own if point.h == h]
        parts += [f"h = {h:g}, epsilon = 1:", _table(at), _controls(at)]
    return parts


def _counts(own: list[Point]) -> str:
    """How many of the fairness weights beat the control that never sees the attribute."""
    explained = (
        "Fairness weights (above 0) whose gap is smaller (beats) or larger (loses) than that of the raised threshold"
        " of about the same error, paired over splits, 95% interval; the rest are undecided:"
    )
    lines = [
        explained,
        "",
        "| method | h | " + " | ".join(f"epsilon = {e:g}" for e in EPSILONS) + " |",
        "|---|---|" + "---|" * len(EPSILONS),
    ]
    for method in _FAIR:
        for h in sorted({point.h for point in own}):
            cells = []
            for epsilon in EPSILONS:
                line = [
                    p for p in own if (p.method, p.h) == (method, h) and p.knob > 0 and p.epsilon in (None, epsilon)
                ]
                wins = sum(p.verdict == "beats" for p in line)
                losses = sum(p.verdict == "loses" for p in line)
                cells.append(f"{wins} beat, {losses} lose, of {len(line)}")
            if method == NON_PRIVATE:
                cells = [cells[0], "", ""]
            lines.append(f"| {method} | {h:g} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _table(points: list[Point]) -> str:
    lines = [
        "| method | splits | true epsilon | lambda | error | gap | its control | gap - control | error - control | |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for method in (ERM, *_FAIR):
        line = [p for p in points if p.method == method and p.epsilon in (None, EPSILONS[0])]
        for p in sorted(line, key=lambda p: p.knob):
            cost = "" if p.true_epsilon is None else f"{p.true_epsilon:.2f}"
            lines.append(
                f"| {method} | {p.splits} | {cost} | {p.knob:g} | {_text(p.error)} | {_text(p.gap)} | {p.threshold:g} "
                f"| {_text(p.gap_difference, signed=True)} | {_text(p.error_difference, signed=True)} | {p.verdict} |"
            )
    return "\n".join(lines)


def _controls(points: list[Point]) -> str:
    raised = [p for p in points if p.method == RAISED and round(p.knob * 2, 6).is_integer()]
    shown = ", ".join(f"({p.error.mean:.3f}, {p.gap.mean:.3f})" for p in sorted(raised, key=lambda p: p.knob))
    (negative,) = (p for p in points if p.method == NEGATIVE)
    return (
        f"Controls (error, gap): thresholds 0, 0.5, .. 3 on the logit give {shown}; always negative gives "
        f"({negative.error.mean:.3f}, 0)."
    )


def _promised(points: list[Point]) -> Iterable[str]:
    yield (
        "Pay-once at a true epsilon of 1 on Adult: the best mean error among the fairness weights whose mean gap keeps"
        " the limit; *in the mean*: the interval of error or gap reaches beyond its limit."
    )
    lines = [
        "| features | h | splits | gap at most | wanted error at most | lambda | error | gap | |",
        "|" + "---|" * 9,
    ]
    for setting in SETTINGS:
        for h in setting.heterogeneity:
            own = [
                p for p in points if (p.setting, p.h, p.method, p.epsilon) == (setting.name, h, PAY_ONCE, EPSILONS[0])
            ]
            if setting.name.startswith("adult") and own:
                lines += [_kept(setting, h, own, error, gap) for error, gap in _TARGETS]
    yield "\n".join(lines)


def _kept(setting: Setting, h: float, own: list[Point], error: float, gap: float) -> str:
    fair = [p for p in own if p.gap.mean <= gap]
    if not fair:
        return f"| {setting.title} | {h:g} | | {gap:g} | {error:g} | | | | not reached |"
    best = min(fair, key=lambda p: p.error.mean)
    sure = best.error.high <= error and best.gap.high <= gap
    verdict = "reached" if sure else "in the mean" if best.error.mean <= error else "not reached"
    return (
        f"| {setting.title} | {h:g} | {best.splits} | {gap:g} | {error:g} | {best.knob:g} | {_text(best.error)} | "
        f"{_text(best.gap)} | {verdict} |"
    )


def _text(interval: Interval | None, signed: bool = False) -> str:
    if interval is None:
        return ""
    mean = f"{interval.mean:+.4f}" if signed else f"{interval.mean:.4f}"
    return f"{mean} +- {interval.half:.4f}"

"""The page's figures: each a caption, a chart, and a sentence that says how to read it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from audit.bounds import EpsilonDeltaCurve
from audit.report.charts import Axis, Bars, Series, Whisker, bar_chart, interval_chart, line_chart
from audit.report.results import AttributeInference, AuditReport, MembershipResult
from calibrate.manifest.mechanism import AsPrintedGuarantee, Guarantee, PrivateGuarantee
from privfair.fairness.measurement import Measured

_GAPS = (
    ("demographic_parity", "demographic parity"),
    ("equalised_odds", "equalised odds"),
    ("equal_opportunity", "equal opportunity"),
    ("accuracy_gap", "accuracy"),
)
_LOWEST_RATE = 1e-4
_CROWDED = 3.0
"""Above this epsilon a trade-off curve hugs the corner of linear axes."""
_ROOM = -0.05
"""Left of zero, so that a line at zero is seen."""
_NOT_PRIVATE = "Measured on the test records with their true attribute; these numbers are not private."


Metrics = tuple[Measured, ...]
"""The lines of a run's metrics file."""


@dataclass(frozen=True)
class Figure:
    """A chart with its caption, and a sentence that says how to read it."""

    caption: str
    chart: Markup
    reading: str


def draw_figures(
    audit: AuditReport | None, guarantee: Guarantee | None, metrics: Metrics, budget: tuple[tuple[int, float], ...]
) -> tuple[Figure, ...]:
    """All figures for which there is something to show."""
    return tuple(_figures(audit, guarantee, metrics, budget))


def _figures(
    audit: AuditReport | None, guarantee: Guarantee | None, metrics: Metrics, budget: tuple[tuple[int, float], ...]
) -> Iterator[Figure]:
    if audit is not None and (audit.promised is not None or audit.epsilon_lower):
        yield _trade_off(audit, guarantee)
    if audit is not None and any(check.noise_power is not None for check in audit.checks):
        yield _power(audit)
    if budget:
        yield _budget(guarantee, budget)
    if audit is not None and audit.membership is not None and audit.membership.attacks:
        yield _roc(audit.membership)
    if audit is not None and audit.attribute_inference is not None and audit.attribute_inference.attacks:
        yield _attribute(audit.attribute_inference)
    if metrics:
        yield _group_rates(metrics)
        yield _gaps(metrics)
        yield from _over_steps(metrics)


def _figure(caption: str, chart: str, reading: str) -> Figure:
    """The charts escape their own texts."""
    return Figure(caption, Markup(chart), reading)


def _trade_off(audit: AuditReport, guarantee: Guarantee | None) -> Figure:
    """What no test of one record may beat, as promised, as priced, and as far as the audit got."""
    curves: list[tuple[str, float, float, bool]] = []
    delta = 1e-5 if audit.promised is None else audit.promised.delta
    if audit.promised is not None:
        curves.append((audit.promised.word, audit.promised.epsilon, delta, False))
    if audit.epsilon_lower:
        curves.append(("measured, at least", audit.epsilon_lower, delta, True))
    if isinstance(guarantee, AsPrintedGuarantee) and guarantee.epsilon is not None:
        curves.append(("certified cost", guarantee.epsilon, guarantee.delta, True))
    crowded = min(epsilon for _, epsilon, _, _ in curves) > _CROWDED
    grid = np.geomspace(_LOWEST_RATE, 1, 121) if crowded else np.linspace(0, 1, 101)
    errors = tuple(float(alpha) for alpha in grid)
    series = tuple(
        Series(
            f"{name}: ε = {epsilon:.3g}",
            errors,
            tuple(float(EpsilonDeltaCurve(epsilon, at).type_two_error(alpha)) for alpha in errors),
            dashed,
        )
        for name, epsilon, at, dashed in curves
    )
    low = _LOWEST_RATE if crowded else 0.0
    x = Axis("false alarms", low, 1, crowded, percent=True)
    y = Axis("missed", low, 1, crowded, percent=True)
    reading = (
        "An observer who tries to learn one protected fact makes false alarms and misses. Under the promise the two "
        "cannot both fall below the line; a measured line below the promised one breaks it."
        + (" Both axes are logarithmic." if crowded else "")
    )
    return _figure("Trade-off curve: promised and measured", line_chart("Trade-off curve", x, y, series), reading)


def _power(audit: AuditReport) -> Figure:
    """How likely the tests of noise were to notice that only a share of it is there."""
    whole = None if audit.power is None else audit.power.noise
    series = []
    if whole is not None:
        shares, powers = tuple(point.share for point in whole.curve), tuple(point.power for point in whole.curve)
        series.append(Series("all layers together", shares, powers))
    series += [
        Series(
            f"{check.name} ({check.layer.value})",
            tuple(point.share for point in check.noise_power.curve),
            tuple(point.power for point in check.noise_power.curve),
            dashed=True,
        )
        for check in audit.checks
        if check.noise_power is not None
    ]
    axes = (Axis("share of the signed noise", 0, 1, percent=True), Axis("chance of an alarm", 0, 1, percent=True))
    reading = "Had the noise been smaller, in all values alike, so likely was an alarm; computed, at the stated levels."
    if audit.power is not None and audit.power.bound is not None:
        units = audit.power.bound
        reading += f" A unit beyond its bound by half: noticed with probability {units.power:.2f}."
    return _figure("What the audit would have noticed", line_chart("Power of the audit", *axes, series), reading)


def _budget(guarantee: Guarantee | None, budget: tuple[tuple[int, float], ...]) -> Figure:
    rounds, spent = zip(*budget, strict=True)
    series = [Series("certified ε spent", tuple(map(float, rounds)), spent)]
    ends = (float(rounds[0]), float(rounds[-1]))
    if isinstance(guarantee, PrivateGuarantee):
        series.append(Series(f"promised: ε = {guarantee.epsilon:g}", ends, (guarantee.epsilon,) * 2, True))
    if isinstance(guarantee, AsPrintedGuarantee):
        claimed = guarantee.claimed_epsilon
        series.append(Series(f"claimed by the paper: ε = {claimed:g}", ends, (claimed,) * 2, True))
    every = [value for one in series for value in one.y]
    chart = line_chart("Budget over rounds", Axis.around("rounds", rounds), Axis.around("epsilon", every), series)
    reading = "What has been spent after so many rounds; it is never refunded."
    if rounds[:2] == (0, 0):
        reading = "All of it is spent before the first round; further rounds cost nothing, and nothing is refunded."
    return _figure("Budget over rounds", chart, reading)


def _roc(membership: MembershipResult) -> Figure:
    series = []
    best = max(membership.attacks, key=lambda one: one.auc.value)
    for attack in membership.attacks:
        points = [point for point in attack.roc if point.fpr > 0]
        x, y = tuple(point.fpr for point in points), tuple(point.tpr for point in points)
        banded = points if attack is best else []
        lower, upper = tuple(point.lower for point in banded), tuple(point.upper for point in banded)
        name = f"{attack.name.value}: AUC {attack.auc.value:.3f}"
        series.append(Series(name, x, y, lower=lower, upper=upper))
    first = min((one.x[0] for one in series if one.x), default=_LOWEST_RATE)
    least = max(_LOWEST_RATE, 10.0 ** math.floor(math.log10(first) + 1e-9))
    blind = tuple(float(rate) for rate in np.geomspace(least, 1, 20))
    series.append(Series("blind guessing", blind, blind, True))
    axis = (
        Axis("non-members accused", least, 1, logarithmic=True, percent=True),
        Axis("members found", least, 1, logarithmic=True, percent=True),
    )
    reading = (
        "How many training records an attacker finds, against how many others are wrongly accused; both axes are "
        f"logarithmic, because few but certain hits are the harm. The band is the "
        f"{100 * membership.confidence:g}% interval of {best.name.value}."
    )
    return _figure("Membership inference", line_chart("ROC on log-log axes", *axis, series), reading)


def _attribute(section: AttributeInference) -> Figure:
    rows = [
        Whisker(one.name, one.leakage.value, one.leakage.lower, one.leakage.upper, one.leaks) for one in section.attacks
    ]
    ends = [_ROOM, *(end for row in rows for end in (row.lower, row.upper))]
    axis = Axis.around("advantage over imputation, members minus non-members", ends, percent=True)
    reading = (
        f"How much better {section.attribute} is guessed with the model than without it, for members minus the "
        f"same for non-members. An interval right of zero is leakage. All intervals together hold with "
        f"{100 * section.confidence:g}% confidence."
    )
    return _figure("Attribute inference", interval_chart("Attribute advantage", axis, rows), reading)


def _group_rates(metrics: Metrics) -> Figure:
    groups = metrics[-1]["overall"]["groups"]
    two_classes = all(len(group["selection_rates"]) == 2 for group in groups.values())
    names = ("accuracy", "predicted positive", "positives missed") if two_classes else ("accuracy",)
    rows = []
    for name, group in groups.items():
        values = (group["accuracy"], group["selection_rates"][-1], group.get("false_negative_rate"))
        rows.append(Bars(f"{name} ({group['records']} records)", values[: len(names)]))
    chart = bar_chart("Group rates", Axis("", 0, 1), names, rows)
    return _figure("Rates by group", chart, _NOT_PRIVATE)


def _gaps(metrics: Metrics) -> Figure:
    last = metrics[-1]["overall"]
    rows = [Bars(label, (last.get(name),)) for name, label in _GAPS if name in last]
    widest = max((value for row in rows for value in row.values if value is not None), default=1.0)
    chart = bar_chart("Gaps between groups", Axis.around("", [widest]), ("gap",), rows)
    return _figure("Gaps between groups", chart, "The largest difference between two groups; 0 is equal treatment.")


def _over_steps(metrics: Metrics) -> Iterator[Figure]:
    series = []
    for name, label in (("accuracy", "accuracy"), ("demographic_parity", "demographic parity gap")):
        points = [
            (float(line["step"]), float(line["overall"][name]))
            for line in metrics
            if line["overall"].get(name) is not None
        ]
        if len(points) > 1:
            steps, values = zip(*points, strict=True)
            series.append(Series(label, steps, values))
    if not series:
        return
    every = [value for one in series for value in one.x]
    axes = (Axis.around("step", every), Axis("share of test records", 0, 1, percent=True))
    chart = line_chart("Accuracy and gap over the training", *axes, series)
    yield _figure("Accuracy and gap over the training", chart, _NOT_PRIVATE)

"""An audit for people: the verdict first, what it rests on, and what the model is worth."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.markup import escape
from rich.table import Table

from privfair.cli.output import checks_text, number_text, print_rich, print_wrapped, table_lines, wrap

if TYPE_CHECKING:
    from audit.report.results import AuditReport, Interval, ModelQuality

_COLOURS = {
    "consistent": "green",
    "violated": "red",
    "inconclusive": "yellow",
    "leaks": "red",
    "no-leak-found": "green",
}


def show_report(report: AuditReport, verbose: bool) -> None:
    """What is protected, the verdict, what it rests on, and what the model is worth; everything else with -v."""
    if report.protected is not None:
        print_wrapped(f"Protected: {report.protected}.", f"NOT protected: {(report.not_protected or ('',))[0]}.")
    word = report.verdict.value
    lines = "\n".join(wrap(f"{word.upper()}  {report.why}"))
    click.echo(click.style(word.upper(), fg=_COLOURS[word], bold=True) + lines[len(word) :])
    if report.promised is not None:
        proved = "" if report.epsilon_lower is None else f"; proved: at least {report.epsilon_lower:.3f}"
        print_wrapped(
            f"on trial: epsilon {report.promised.epsilon:g} at delta {report.promised.delta:g}{proved} "
            f"({100 * report.confidence:g}% confidence)"
        )
    outcomes = [check.outcome.value for check in report.checks]
    others = [check for check in report.checks if check.outcome.value != "passed"]
    print_wrapped(f"{checks_text(outcomes)}{'' if verbose else ' (-v shows all)'}")
    for check in others if not verbose else ():
        if check.outcome.value == "failed":
            print_wrapped(f"  FAILED {check.layer.value} {check.name}: {check.finding}", indent="    ")
    if verbose:
        _show_evidence(report)
    show_membership(report)
    show_exposure(report)
    show_attribute(report, verbose)
    if report.model is not None:
        where = "held-out records" if report.membership is None else "non-members"
        print_wrapped(*_quality(report.model, where, verbose))


def _show_evidence(report: AuditReport) -> None:

    table = Table("layer", "check", "outcome", "finding")
    for check in report.checks:
        table.add_row(check.layer.value, escape(check.name), check.outcome.value, escape(check.finding))
    print_rich(table)
    for attack in report.attacks:
        print_wrapped(
            f"{attack.name}: epsilon is at least {attack.bound.epsilon:.3f} with {100 * report.confidence:g}% "
            f"confidence; {attack.evidence}; power {attack.power:.2f}"
        )


def _quality(model: ModelQuality, where: str, verbose: bool) -> list[str]:
    """The model beside a constant answer, with the warning if it is no better."""
    rows = [
        (f"on the {where}", "accuracy", "balanced", "AUC", "parity gap"),
        (
            "this model",
            number_text(model.accuracy),
            number_text(model.balanced_accuracy),
            number_text(model.auc),
            number_text(model.demographic_parity),
        ),
        (f"always {model.majority_class!r}", number_text(model.majority_accuracy), "", "0.500", "0.000"),
    ]
    lines = table_lines(rows)
    if verbose:
        rates = [("group", "records", "accuracy", "positive", "true positive", "false positive")]
        rates += [
            (
                name,
                str(group.records),
                number_text(group.accuracy),
                number_text(group.positive_rate),
                number_text(group.true_positive_rate),
                number_text(group.false_positive_rate),
            )
            for name, group in model.groups.items()
        ]
        lines += table_lines(rates)
    return lines + ([] if model.warning is None else [f"WARNING  {model.warning}"])


def show_membership(report: AuditReport) -> None:
    """The attacks' strength as a table, where a model was audited."""
    result = report.membership
    if result is None:
        return
    table = Table("attack", "AUC", "TPR at 0.1% FPR", "TPR at 1% FPR", "AUC on shadow models")
    for attack in result.attacks:
        cells = [attack.auc, *attack.tpr_at_fpr]
        control = "" if attack.control_auc is None else f"{attack.control_auc:.3f}"
        texts = (f"{one.value:.3f} [{one.lower:.3f}, {one.upper:.3f}]" for one in cells)
        table.add_row(attack.plugin or attack.name.value, *(text.replace("[", "\\[") for text in texts), control)
    shadow = "no shadow models"
    if result.shadow is not None:
        shadow = f"{result.shadow.models} shadow models ({result.shadow.kind}, {result.shadow.design.value})"
    print_rich(
        f"{result.members} members, {result.nonmembers} non-members; {shadow}; "
        f"intervals at {100 * result.confidence:g}%",
        table,
    )


def show_exposure(report: AuditReport) -> None:
    """Is privacy fair? The groups side by side, and the most exposed records by their place in the file."""
    found = None if report.membership is None else report.membership.exposure
    if found is None:
        return
    together = f"intervals hold together at {100 * found.confidence:g}%"
    for grouping in found.groupings:
        table = Table("group", "members", "non-members", "AUC", "epsilon at least")
        for one in grouping.groups:
            epsilon = "" if one.epsilon_lower is None else f"{one.epsilon_lower:.3f}"
            table.add_row(escape(one.name), str(one.members), str(one.nonmembers), _interval(one.auc), epsilon)
        said = "UNEVEN: some groups leak more than others" if grouping.uneven else "no difference is proved"
        few = f"; too few records: {', '.join(grouping.left_out)}" if grouping.left_out else ""
        print_rich(escape(f"by {grouping.by}: {said} ({found.attack}; {together}{few})"), table)
    if found.records is not None:
        table = Table("file", "record", "advantage", "epsilon at least")
        for record in found.records.records:
            advantage = _interval(record.advantage)
            table.add_row(record.file, str(record.record), advantage, f"{record.epsilon_lower:.3f}")
        exposed = sum(record.exposed for record in found.records.records)
        print_rich(
            f"the {len(found.records.records)} most exposed of {found.records.looked_at} records: training like "
            f"that of the shadow models, without noise, is proved to betray {exposed} of them ({together}; "
            f"{found.records.counted} models can reach a lower end of {found.records.reachable:.2f})",
            table,
        )


def _interval(one: Interval) -> str:
    return f"{one.value:.3f} \\[{one.lower:.3f}, {one.upper:.3f}]"


def show_attribute(report: AuditReport, verbose: bool) -> None:
    """What was found, in one sentence; with `verbose` a table of attacks beside imputation."""
    found = report.attribute_inference
    if found is None:
        if report.attribute_inference_not_possible is not None:
            print_wrapped(f"attribute inference: not possible ({report.attribute_inference_not_possible})")
        return
    if not verbose:
        print_wrapped(f"attribute inference: {found.finding.value}; {found.why}")
        return
    table = Table("attack", "right on members", "on non-members", "members minus non-members, over imputation")
    table.add_row(
        "imputation", _percent(found.imputation.members.value), _percent(found.imputation.nonmembers.value), ""
    )
    for one in found.attacks:
        gap = one.leakage
        text = f"{_percent(gap.value)} \\[{_percent(gap.lower)}, {_percent(gap.upper)}]{'  leaks' if one.leaks else ''}"
        right = (_percent(side.accuracy.value) for side in (one.members, one.nonmembers))
        table.add_row(one.name, *right, text)
    print_rich(f"attribute inference: {found.finding.value}; {escape(found.why)}", table)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"

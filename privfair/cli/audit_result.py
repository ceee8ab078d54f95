"""What an audit leaves behind: a verdict for people, JSON, JUnit XML, and a statement signed by the auditor."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from calibrate.errors import InvalidInput
from calibrate.manifest.document import PAYLOAD_TYPE
from calibrate.manifest.keys import load_private, sign
from calibrate.manifest.mechanism import instant_from_text
from calibrate.manifest.strict_json import canonical
from calibrate.manifest.verify import read_unverified
from privfair.cli.config import ask_password
from privfair.cli.options import FILE, asked, options
from privfair.cli.output import checks_text, number_text, print_json, print_rich, print_wrapped, table_lines, wrap
from privfair.durable import LARGEST_FILE, read_named, write_named

if TYPE_CHECKING:
    from audit.report.results import AuditReport, Interval, ModelQuality


@dataclass(frozen=True)
class Limit:
    """What must not be proved: an epsilon above `value`, or an area under the curve of a membership attack."""

    value: float
    of_area: bool

    def exceeded(self, report: AuditReport) -> str | None:
        """The sentence that says so, if the report proves it: by the bound, or by the lower end of an interval."""
        if not self.of_area:
            lower = report.epsilon_lower
            return None if lower is None or lower <= self.value else f"epsilon >= {lower:.3f}, above {self.value:g}"
        areas = () if report.membership is None else report.membership.attacks
        found = max((one.auc.lower for one in areas), default=0.0)
        return None if found <= self.value else f"area >= {found:.3f} for a membership attack, above {self.value:g}"


def _parse_limits(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[Limit, ...]:
    """An epsilon ("2", "epsilon=2") or an area ("auc=0.6"), each."""
    found = []
    for value in values:
        kind, _, number = value.lower().rpartition("=")
        try:
            limit = Limit(float(number), kind == "auc")
        except ValueError:
            limit = Limit(math.nan, False)
        if kind not in ("", "auc", "epsilon") or not 0 <= limit.value < math.inf:
            raise click.BadParameter(f"{value!r} is not a limit; give an epsilon (2) or an area (auc=0.6)", ctx, param)
        found.append(limit)
    return tuple(found)


def _default_out(ctx: click.Context, _: click.Parameter, values: tuple[Path, ...]) -> tuple[Path, ...]:
    """audit.json, but under the former spellings, which wrote no file that was not named."""
    return values or (() if ctx.meta.get(FORMER) else (Path("audit.json"),))


FORMER = f"{__name__}.former"
"""Key of the note that a command was called by its former spelling."""

_RESULT_OPTIONS = options(
    click.option(
        "--out",
        "outs",
        type=FILE,
        multiple=True,
        callback=_default_out,
        help="Report [default: audit.json]; also .xml for JUnit.",
    ),
    click.option("--sign", "sign_path", type=FILE, help="Auditor's private key: sign the verdict to OUT.signed.json."),
    click.option(
        *("--fail-above", "limits"),
        multiple=True,
        callback=_parse_limits,
        metavar="EPSILON|auc=AREA",
        help="Exit code 1 if epsilon, or the area of a membership attack, is proved to be above this.",
    ),
    click.option("--junit", type=FILE, hidden=True, help="File for the report as JUnit XML."),
    click.option("--statement", type=FILE, hidden=True, help="File for the signed statement; needs --sign."),
    click.option(
        *("--test-result",),
        type=FILE,
        hidden=True,
        help="File for the verdict as a signed in-toto Test Result, for tools that know no other; needs --sign.",
    ),
)


@dataclass(frozen=True)
class ResultFlags:
    """Where the result goes, and what makes the command fail."""

    outs: tuple[Path, ...]
    sign_path: Path | None
    limits: tuple[Limit, ...]
    junit: Path | None
    statement: Path | None
    test_result: Path | None

    def __post_init__(self) -> None:
        """Refuse what would spoil the end of a long audit before it begins."""
        if self.sign_path is None and (self.statement or self.test_result):
            raise click.UsageError("a signed file needs --sign KEY")
        if self.sign_path is not None:
            read_named(self.sign_path, "--sign")
        named = {"--junit": self.junit, "--statement": self.statement, "--test-result": self.test_result}
        for argument, path in (*(("--out", out) for out in self.outs), *named.items()):
            if path is not None and not path.parent.is_dir():
                rule = "must be in an existing folder"
                raise InvalidInput(argument, str(path), rule, "create the folder first")

    @property
    def signed_to(self) -> Path | None:
        """Where the statement goes, if there is to be one."""
        if self.sign_path is None or (self.statement is None and self.test_result is not None):
            return self.statement
        first = next((out for out in self.outs if out.suffix != ".xml"), Path("audit.json"))
        return self.statement or first.with_suffix(".signed.json")


def result_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of its result, which it takes as one argument `result`."""

    @wraps(function)
    def command(**given: object) -> None:
        flags = {field.name: given.pop(field.name) for field in fields(ResultFlags)}
        function(result=ResultFlags(**flags), **given)  # type: ignore[arg-type]

    decorated: Callable[..., None] = _RESULT_OPTIONS(command)
    return decorated


def finish(flags: ResultFlags, report: AuditReport, **more: Any) -> None:
    """Date the report, write and show it, and leave with exit code 1 where it refutes or exceeds something."""
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    report = report.model_copy(update={**more, "audited_at": at})
    _write(flags, report)
    if asked().as_json:
        print_json(report.to_json())
    else:
        show_report(report, asked().verbose)
    exceeded = [text for text in (limit.exceeded(report) for limit in flags.limits) if text is not None]
    for text in exceeded:
        say(text)
    if exceeded or report.verdict.value == "violated":
        sys.exit(1)


def say(text: str) -> None:
    """One line about progress, on standard error."""
    click.echo(f"  {text}", err=True)


def _write(flags: ResultFlags, report: AuditReport) -> None:
    """Write what was asked for; what is signed last, so that it is never signed for a report that was not written."""
    for out in (*flags.outs, *(() if flags.junit is None else (flags.junit,))):
        if out.suffix == ".xml" or out == flags.junit:
            from audit.report.exports import junit_xml

            write_named(out, junit_xml(report))
        else:
            write_named(out, json.dumps(report.to_json(), indent=2).encode() + b"\n")
    signed: tuple[tuple[str, Path | None, Callable[[Path, AuditReport], bytes]], ...] = (
        ("statement", flags.signed_to, _sign),
        ("test result", flags.test_result, _sign_test_result),
    )
    for what, place, signer in signed:
        if flags.sign_path is not None and place is not None:
            write_named(place, signer(flags.sign_path, report))
            say(f"signed {what} written to {place}")


def run_subjects(run: Path) -> dict[str, str]:
    """SHA-256 of what an audit of a run is about: its model, manifest and transcript."""
    from privfair.run.folder import RunFolder

    folder = RunFolder.existing(run)
    found = {"manifest": read_unverified(folder.manifest.read_bytes()).digest}
    for name, path in (("model", folder.model), ("transcript", folder.transcript)):
        if path.exists():
            found[name] = _digest(path)
    return found


def subjects_of(place: Path | None) -> dict[str, str]:
    """The same for a model file as well; nothing for scores alone."""
    if place is None:
        return {}
    return run_subjects(place) if place.is_dir() else {"model": _digest(place)}


def _sign(key_path: Path, report: AuditReport) -> bytes:
    from audit.report.statement import AuditPredicate, sign_audit

    at = instant_from_text(report.audited_at)
    assert isinstance(at, datetime)
    return sign_audit(AuditPredicate.of(report, at), report.subjects, load_private(key_path, ask_password))


def _sign_test_result(key_path: Path, report: AuditReport) -> bytes:
    from audit.report.exports import result_statement

    statement = result_statement(report, dict(report.subjects))
    return sign(PAYLOAD_TYPE, canonical(statement), load_private(key_path, ask_password))


def _digest(path: Path) -> str:

    return hashlib.sha256(read_named(path, "model", most=LARGEST_FILE)).hexdigest()


_OF_A_RUN = ("run.json", "claim.token", "budget.json", "transcript.bin")


def require_run(folder: Path) -> None:
    """Refuse a folder without any of a run's files, before anything heavy is loaded."""
    if not any((folder / name).exists() for name in _OF_A_RUN):
        raise InvalidInput("run folder", str(folder), "holds no run", "name the --out of a training run")


def require_same_report(signed: str, path: Path) -> None:
    """Refuse a report that is not the one a statement was signed for."""
    from audit.report.statement import AuditRefused, report_digest

    content = read_named(path, "--report")
    try:
        report = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidInput("--report", str(path), "is not JSON", "give what `privfair audit run --out` wrote") from None
    if report_digest(report) != signed:
        raise AuditRefused(f"{path} is not the report that was signed; give the report as it was written")


# For people: the verdict first, what it rests on, and what the model is worth.

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
            f"tested: epsilon {report.promised.epsilon:g} at delta {report.promised.delta:g}{proved} "
            f"({100 * report.confidence:g}% confidence)"
        )
    outcomes = [check.outcome.value for check in report.checks]
    others = [check for check in report.checks if check.outcome.value != "passed"]
    if outcomes and (verbose or word != "leaks" or "failed" in outcomes):
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
    """The model next to a constant answer, with the warning if it is no better."""
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
            f"that of the shadow models, without noise, is proved to reveal {exposed} of them ({together}; "
            f"{found.records.counted} models can reach a lower end of {found.records.reachable:.2f})",
            table,
        )


def _interval(one: Interval) -> str:
    return f"{one.value:.3f} \\[{one.lower:.3f}, {one.upper:.3f}]"


def show_attribute(report: AuditReport, verbose: bool) -> None:
    """The finding on a line; with `verbose` a table of attacks next to imputation."""
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

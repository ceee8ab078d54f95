"""The attribute-inference part of `privfair audit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privfair.cli.output import options, print_rich

if TYPE_CHECKING:
    from audit.attacks.attribute.result import AttributeInference
    from privfair.cli.audit_model import ModelFlags

attribute_options = options(
    click.option(
        "--sensitive",
        help="With --model: the column whose values are to be guessed, for attribute inference.",
    ),
    click.option(
        "--attribute-inference/--no-attribute-inference",
        "infer",
        default=True,
        show_default=True,
        help="Of a run: guess the attribute of its records from its model, beside imputation.",
    ),
)


@dataclass(frozen=True)
class AttributeFlags:
    sensitive: str | None
    infer: bool


@dataclass(frozen=True)
class AttributeAnswer:
    """What was found, or why nothing could be."""

    found: AttributeInference | None
    why_not: str | None = None

    def to_json(self) -> dict[str, Any]:
        if self.found is None:
            return {"attribute_inference": None, "attribute_inference_not_possible": self.why_not}
        return {"attribute_inference": self.found.to_json()}

    def show(self) -> None:
        """A table of attacks beside imputation."""
        from rich.markup import escape
        from rich.table import Table

        if self.found is None:
            if self.why_not is not None:
                print_rich(f"attribute inference: not possible ({escape(self.why_not)})")
            return
        found = self.found
        table = Table(
            "attack", "right on members", "on non-members", "members minus non-members, over imputation"
        )
        table.add_row("imputation", _share(found.imputation_members), _share(found.imputation_nonmembers), "")
        for one in found.attacks:
            gap = f"{_share(one.leakage)} \\[{_share(one.leakage.lower)}, {_share(one.leakage.upper)}]"
            table.add_row(
                one.name,
                _share(one.members.accuracy),
                _share(one.nonmembers.accuracy),
                f"{gap}{'  leaks' if one.leaks else ''}",
            )
        print_rich(f"attribute inference: {found.finding.value}; {escape(found.why)}", table)


def attribute_of_run(
    flags: AttributeFlags, run: Path, plan_path: Path | None, seed: int, confidence: float
) -> AttributeAnswer:
    """Of a run; a run that does not allow it (no model yet, images, too few records) says so."""
    from audit.attacks.attribute.attribute_audit import AttributeOptions
    from audit.attacks.attribute.of_run import attribute_inference_of_run
    from calibrate.errors import InvalidInput

    if not flags.infer:
        return AttributeAnswer(None, "it was not asked for")
    try:
        options = AttributeOptions(confidence, seed)
        return AttributeAnswer(attribute_inference_of_run(run, options, plan_path))
    except InvalidInput as refused:
        return AttributeAnswer(None, f"{refused.argument} {refused.rule}")


def attribute_of_model(
    flags: AttributeFlags, model: ModelFlags, seed: int, confidence: float
) -> AttributeAnswer:
    """Of a model with two files; only where a column was named."""
    from audit.attacks.attribute.attribute_audit import AttributeOptions
    from audit.attacks.attribute.of_model import attribute_inference_of_model
    from audit.attacks.membership.records import RecordTables
    from audit.attacks.membership.targets.run_target import RunTarget
    from privfair.cli.audit_model import open_model, records_for

    if flags.sensitive is None:
        return AttributeAnswer(None, "no --sensitive COLUMN was named")
    if model.model_path is None:
        raise click.UsageError("--sensitive needs --model: scores of members say nothing about an attribute")
    assert model.members is not None
    assert model.nonmembers is not None
    target = open_model(model)
    delimiter = target.delimiter if isinstance(target, RunTarget) else ","
    tables = RecordTables.read(model.members, model.nonmembers, delimiter=delimiter)
    found = attribute_inference_of_model(
        target, tables, records_for(model, target), flags.sensitive, AttributeOptions(confidence, seed)
    )
    return AttributeAnswer(found)


def _share(value: Any) -> str:
    return f"{100 * (value if isinstance(value, float) else value.value):.1f}%"

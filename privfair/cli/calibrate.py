"""`privfair calibrate`: how much noise an algorithm needs, and the manifest that is signed for it."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

import click
from rich.markup import escape
from rich.table import Table

from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.issue import BudgetDraft, issue
from calibrate.manifest.keys import load_private
from calibrate.manifest.mechanism import AsPrintedGuarantee
from calibrate.meaning import Protection
from calibrate.plans import PLAN_PLUGINS, PLANS, algorithm_named, parameter_fields, plan_class, plan_from_mapping
from calibrate.plans.plan import Flag, RandomizedValue
from calibrate.plans.plan import Plan as PricedPlan
from calibrate.privacy_unit import EpsilonDelta
from privfair.cli.help import Subcommands, with_our_help
from privfair.cli.keys import ask_password
from privfair.cli.options import FILE, asked, ledger_option, options
from privfair.cli.output import epsilon_text, print_json, print_rich, print_wrapped, progress_bar, table_lines
from privfair.durable import write_named
from privfair.plan.plan import Plan, plan_from_flags, search_plan
from privfair.plan.sections import nearest

if TYPE_CHECKING:
    from calibrate.budget import CertifiedBudget
    from privfair.api.draft import Promise


def algorithm_names() -> tuple[str, ...]:
    """The algorithms that have a plan, those of other packages last: the names of the subcommands."""
    return (*(algorithm.value for algorithm in PLANS), *PLAN_PLUGINS.names())


def plan_of(name: str) -> type[PricedPlan]:
    """The plan class behind a subcommand."""
    return plan_class(algorithm_named(name))


def parameter_flags(plan: type[PricedPlan]) -> tuple[Callable[[Callable[..., Any]], Callable[..., Any]], ...]:
    """One click option for each field of a plan. What a value must satisfy is the plan's to say; nothing given is None,
    so that the plan's own default holds."""
    hints = get_type_hints(plan, include_extras=True)
    return tuple(_option(field.name, hints[field.name], field.default) for field in parameter_fields(plan))


def _option(name: str, hint: Any, default: object) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    kind, flag = get_args(hint)
    assert isinstance(flag, Flag)
    if get_origin(kind) in (Union, types.UnionType):
        parts = [part for part in get_args(kind) if part is not type(None)]
        kind, words = parts[0], [part for part in parts[1:] if issubclass(part, Enum)]
    else:
        words = []
    multiple = get_origin(kind) is tuple
    if multiple:
        kind = get_args(kind)[0]
    choices = [member.value for member in kind] if issubclass(kind, Enum) else None
    given: Any = kind if choices is None else click.Choice(flag.choices or choices)
    return click.option(
        f"--{name.replace('_', '-')}",
        name,
        type=_number_or(tuple(member.value for word in words for member in word)) if words else given,
        metavar=flag.metavar or None,
        help=flag.help + _default(default),
        multiple=multiple,
    )


def _number_or(words: tuple[str, ...]) -> Callable[[str], float | str]:
    """Reads a number, or one of a few words."""

    def number(value: str) -> float | str:
        if value in words:
            return value
        try:
            return float(value)
        except ValueError:
            raise ValueError(f"{value!r} is neither a number nor {' or '.join(words)}") from None

    return number


def _default(value: object) -> str:
    if value is MISSING or value is None:
        return ""
    shown = value.value if isinstance(value, Enum) else value[0] if isinstance(value, tuple) else value
    return f" Default: {shown:g}." if isinstance(shown, float) else f" Default: {shown}."


def baseline_command(path: Path, algorithm: str) -> click.Command:
    """The command for a plan whose algorithm has no private variant."""

    @click.command(algorithm, help=f"{algorithm} protects nobody: sign that, with the reason, and train with it.")
    @click.option("--no-privacy", "reason", metavar="WHY", help="Why nobody is protected; stands in every output.")
    @click.option("--out", type=FILE, help="Write the manifest here, signed with --key.")
    @click.option("--key", "key_path", type=FILE, help="Signing key for --out.")
    @click.option("--valid-days", type=click.IntRange(1, 36_500), default=90, show_default=True)
    @ledger_option
    @click.option("--why", default="", metavar="TEXT", help="The justification to put on record.")
    def run(reason: str | None, **manifest: Any) -> None:

        if reason is None:
            raise click.UsageError(
                f"{algorithm} has no private variant; say so: "
                f'privfair calibrate {path} --no-privacy "why" --out budget.json --key officer.pem'
            )
        no_privacy_manifest(Plan.read(path), reason, manifest)

    return run


def _draft(
    file: Plan, manifest: dict[str, Any], promise: Promise = "calibrated", target: EpsilonDelta | None = None
) -> BudgetDraft:
    """The budget of a plan, as the flags of the manifest describe it; loads the engine."""
    from privfair.api.draft import draft
    from privfair.cli.budget import issuer_from_flags

    return draft(file, issuer_from_flags(**manifest), promise, target)


def _sign(drafted: BudgetDraft, manifest: dict[str, Any]) -> str:
    """The place of the manifest, which is signed and written."""
    write_named(manifest["out"], issue(drafted, load_private(manifest["key_path"], ask_password)))
    return str(manifest["out"])


def no_privacy_manifest(file: Plan, reason: str, manifest: dict[str, Any]) -> None:
    """Sign a manifest that promises nothing."""
    from privfair.api.draft import Unprotected

    _require_output(manifest, "--no-privacy")
    drafted = _draft(file, manifest, Unprotected(reason))
    _sign(drafted, manifest)
    _unpromised_show(drafted.document, manifest, f"NO PRIVACY PROMISED: {reason}", {})


def as_printed_manifest(file: Plan, target: EpsilonDelta, manifest: dict[str, Any]) -> None:
    """Sign a paper's own noise with its claimed and its true epsilon."""
    _require_output(manifest, "--as-printed")
    drafted = _draft(file, manifest, "as-printed", target)
    _sign(drafted, manifest)
    document, guarantee = drafted.document, drafted.document.guarantee
    assert isinstance(guarantee, AsPrintedGuarantee)
    true = "no finite epsilon" if guarantee.epsilon is None else f"epsilon {guarantee.epsilon:.6g}"
    text = f"AS PRINTED: {guarantee.claim} claims epsilon {target.epsilon:g}; the true cost is {true}"
    more = {
        "claimed_epsilon": target.epsilon,
        "epsilon": guarantee.epsilon,
        "delta": target.delta,
        "certified": document.accounting.model_dump(mode="json")["interval"],
    }
    _unpromised_show(document, manifest, text, more)


def _require_output(manifest: dict[str, Any], flag: str) -> None:
    if manifest["out"] is None or manifest["key_path"] is None:
        raise click.UsageError(f"{flag} writes a manifest: give --out and --key")


def _unpromised_show(document: BudgetDocument, manifest: dict[str, Any], text: str, more: dict[str, Any]) -> None:
    if asked().as_json:
        print_json(
            {
                "algorithm": document.algorithm,
                "kind": document.guarantee.kind,
                "rounds": document.rounds,
                "releases": [
                    {"name": release.name, "mechanism": release.mechanism, "sigma": getattr(release, "sigma", None)}
                    for release in document.releases
                ],
                "promise": text,
                "manifest": str(manifest["out"]),
            }
            | more
        )
        return

    names = ", ".join(release.name for release in document.releases)
    print_rich(
        f"[bold]{document.algorithm}[/bold]: {escape(text)}",
        f"{document.rounds} rounds; published: {names}",
        f"manifest written to {manifest['out']}",
    )


_target = options(
    click.option("--epsilon", type=float, metavar="E", help="The promise: at most this epsilon."),
    click.option("--delta", type=float, metavar="D", help="The promise: at this delta, between 0 and 1."),
)
_OUTPUT_OPTIONS = (
    click.option("--plan", "plan_path", type=FILE, help="Take parameters from a TOML file; a flag wins over it."),
    click.option("--explain", is_flag=True, help="Show which assumption costs what."),
    click.option("--plot", type=FILE, help="Write a figure: epsilon against rounds, noise against epsilon."),
    click.option("--out", type=FILE, help="Write the budget manifest, signed with --key."),
    click.option("--key", "key_path", type=FILE, help="The key that signs the manifest."),
    click.option(
        "--silo",
        "silos",
        multiple=True,
        metavar="NAME=SIZE",
        help="A silo that the budget is for; for --out, once per silo.",
    ),
    ledger_option,
    click.option(
        "--valid-days",
        type=click.IntRange(1, 36_500),
        default=90,
        show_default=True,
        help="Days until the manifest expires.",
    ),
    click.option("--why", default="", metavar="TEXT", help="The justification to put on record in the manifest."),
    click.option("--as-printed", is_flag=True, help="Sign the paper's own noise with its true epsilon."),
    click.option(
        "--no-privacy", metavar="WHY", help="Sign a plan file without noise and without a promise, for this reason."
    ),
    click.option(
        "--unsafe-seeded-research-noise",
        "research_noise",
        is_flag=True,
        help="Sign reproducible noise that protects nobody; for experiments on public data.",
    ),
)
_output = options(*_OUTPUT_OPTIONS)


class _Algorithms(Subcommands):
    """One subcommand per algorithm; a TOML file in its place names the algorithm itself."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """A plug-in that cannot be loaded is left out here, and says why when it is named."""
        offered = []
        for name in algorithm_names():
            with suppress(InvalidInput):
                plan_of(name)
                offered.append(name)
        return offered

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name.endswith(".toml"):
            named = Plan.read(Path(name)).algorithm
            if named in algorithm_names():
                return with_our_help(_subcommand(named, Path(name)))
            from privfair.algorithms.registry import recipe_named

            return with_our_help(baseline_command(Path(name), recipe_named(named).name))
        if name in algorithm_names():
            return with_our_help(_subcommand(name, None))

        hint = nearest(name, algorithm_names())
        raise click.UsageError(f"There is no algorithm {name!a}, and a plan's name ends in .toml; {hint}", ctx)


@click.group("calibrate", cls=_Algorithms, short_help="the smallest noise that keeps a promise (epsilon, delta)")
def calibrate_command() -> None:
    """Find the smallest noise whose certified cost keeps a promise (epsilon, delta).

    \b
    One subcommand per algorithm, or a plan file in its place:
      privfair calibrate steffle --help
      privfair calibrate plan.toml --out budget.json --key officer.pem
    """


def _subcommand(algorithm: str, plan_path: Path | None) -> click.Command:
    plan = plan_of(algorithm)

    @click.command(
        algorithm,
        help=plan.summary,
        short_help=plan.summary.split(".")[0],
        epilog=f"\b\nExample:\n  privfair calibrate {algorithm} {plan.example}",
    )
    @_target
    @options(*parameter_flags(plan))
    @_output
    def run(**given: Any) -> None:
        parameters = {field.name: given.pop(field.name) for field in parameter_fields(plan)}
        if plan_path is not None and given["plan_path"] is not None:
            raise click.UsageError("a plan file was given twice: once in the algorithm's place, once with --plan")
        given["plan_path"] = plan_path or given["plan_path"]
        _run(algorithm, parameters, **given)

    return run


def _run(
    algorithm: str,
    flags: dict[str, Any],
    epsilon: float | None,
    delta: float | None,
    plan_path: Path | None,
    explain: bool,
    plot: Path | None,
    as_printed: bool,
    no_privacy: str | None,
    **manifest: Any,
) -> None:
    from calibrate.budget import calibrate_plan

    _refuse_contradictions(manifest)
    if (as_printed or no_privacy is not None) and (explain or plot is not None):
        raise click.UsageError("--explain and --plot belong to a calibration; drop them")
    if as_printed and no_privacy is not None:
        raise click.UsageError("--as-printed and --no-privacy exclude each other")
    file = plan_from_flags(algorithm, plan_path, flags)
    if no_privacy is not None:
        no_privacy_manifest(file, no_privacy, manifest)
        return
    target = file.target(epsilon, delta)
    if as_printed:
        as_printed_manifest(file, target, manifest)
        return
    if manifest["out"] is None:
        search = search_plan(file)
        plan = plan_from_mapping(file.algorithm, file.privacy)
        budget = calibrate_plan(plan, target, tries=None if search is None else search.tries)
    else:
        drafted = _draft(file, manifest, target=target)
        assert drafted.certified is not None
        budget = drafted.certified
    document = budget.to_json() | {
        "protected": Protection(budget.plan.unit, budget.target).protected,
        "not_protected": list(budget.plan.unprotected()),
    }
    if explain:
        from calibrate.plans.alternatives import explain as alternatives

        with progress_bar("alternatives") as counted:
            document["explanation"] = [one.to_json() for one in alternatives(budget.plan, target, counted)]
    if plot is not None:
        from privfair.cli.plots import plot_budget

        plot_budget(budget, plot)
        document["plot"] = str(plot)
    if manifest["out"] is not None:
        document["manifest"] = _sign(drafted, manifest)
    if asked().as_json:
        print_json(document)
    else:
        _calibrate_show(budget, document)


def _refuse_contradictions(manifest: dict[str, Any]) -> None:
    if (manifest["out"] is None) != (manifest["key_path"] is None):
        raise click.UsageError("--out and --key go together: a manifest is never written unsigned")
    if manifest["out"] is None and (manifest["silos"] or manifest["why"] or manifest["ledgers"]):
        raise click.UsageError("--silo, --ledger and --why describe a manifest; give --out and --key as well")


def _calibrate_show(budget: CertifiedBudget, document: dict[str, Any]) -> None:
    """What is protected first, then each value's noise and what it costs; assumptions only with -v."""
    target, certified, plan = budget.target, budget.certified, budget.plan
    protection = Protection(plan.unit, target)
    print_wrapped(*protection.lines())
    print_wrapped(
        "",
        f"{plan.algorithm.value}: epsilon {target.epsilon:g} at delta {target.delta:g}, {plan.rounds} rounds, one "
        f"{plan.unit.protected.value} ({plan.unit.relation.value})",
    )
    rows: list[tuple[str, ...]] = [("value", "published", "sensitivity", "multiplier", "sigma")]
    for value in budget.values:
        if isinstance(value, RandomizedValue):
            rows.append((value.name, "once", "1", "", f"keep {value.keep_probability:.7g}"))
            continue
        every = "every round" if value.every_round else "once"
        numbers = (f"{number:.7g}" for number in (value.sensitivity, value.noise_multiplier, value.sigma))
        rows.append((value.name, every, *numbers))
    print_wrapped(*(f"  {line}" for line in table_lines(rows)))
    closing = f"certified epsilon {epsilon_text(certified.lower, certified.upper)} (by {budget.first.accountant_name})"
    if budget.optimality_gap is not None:
        closing += f"; no noise smaller by more than {100 * budget.optimality_gap:.2g}% can keep the promise"
    print_wrapped(closing)
    if asked().verbose:
        if budget.joint_noise_multiplier is not None:
            print_wrapped(f"joint noise multiplier of a round: {budget.joint_noise_multiplier:.7g}")
        print_wrapped("", "It assumes:", *(f"  - {text}" for text in plan.assumptions()), indent="    ")
        print_wrapped("Not protected:", *(f"  - {text}" for text in plan.unprotected()), indent="    ")
    else:
        print_wrapped(f"{len(plan.assumptions())} assumptions: -v shows them")
    if "explanation" in document:
        print_rich("", _explanation_table(document["explanation"]))
    for key in ("plot", "manifest"):
        if key in document:
            print_wrapped(f"{key} written to {document[key]}")


def _explanation_table(rows: list[dict[str, Any]]) -> object:

    table = Table("alternative", "value", "sigma", "times yours", "can be had?")
    for row in rows:
        offered = "yes" if row["offered"] else f"no: {row['not_offered']}"
        table.add_row(str(row["description"]), str(row["value"]), f"{row['sigma']:.5g}", f"{row['ratio']:.4g}", offered)
    return table

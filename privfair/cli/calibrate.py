"""`privfair calibrate`: how much noise an algorithm's theorem needs, by options made from its plan type."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Union, Unpack, get_args, get_origin, get_type_hints

import click
from rich.table import Table

from calibrate.errors import InvalidInput, nearest
from calibrate.manifest.document import VALID_DAYS, BudgetDocument, Issuer, LedgerBinding
from calibrate.manifest.issue import issue
from calibrate.manifest.keys import load_private
from calibrate.manifest.mechanism import AsPrintedGuarantee
from calibrate.meaning import Protection
from calibrate.plans import PLAN_PLUGINS, PLANS, algorithm_named, parameter_fields, plan_class, plan_from_mapping
from calibrate.plans.plan import Flag, RandomizedValue
from calibrate.plans.plan import Plan as PricedPlan
from calibrate.privacy_unit import bounds_apart
from privfair.cli.config import ask_password
from privfair.cli.options import FILE, Subcommands, asked, options, with_our_help
from privfair.cli.output import answer, epsilon_text, print_json, print_rich, print_wrapped, progress_bar, table_lines
from privfair.durable import write_named
from privfair.plan.plan import Plan, Promise, Unprotected, plan_from_flags, search_plan

if TYPE_CHECKING:
    from calibrate.budget import CertifiedBudget
    from calibrate.manifest.document import Issuer
    from calibrate.plans.alternatives import Alternative


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


# What the issuer of a budget decides: its ledgers, its purpose, how long it may be used.


class IssuerFlags(TypedDict, total=False):
    """The options of a command that writes a budget or a request, as they were typed."""

    silos: tuple[str, ...]
    ledgers: tuple[str, ...]
    valid_days: int
    why: str
    research_noise: bool


def issuer_from_flags(**flags: Unpack[IssuerFlags]) -> Issuer:
    """What the flags say about the budget."""
    return Issuer(
        silos=tuple(_named_size(text) for text in flags.get("silos", ())),
        ledgers=tuple(_ledger(text) for text in flags.get("ledgers", ())),
        lifetime=timedelta(days=flags.get("valid_days", VALID_DAYS)),
        why=flags.get("why", ""),
        research_noise=flags.get("research_noise", False),
    )


def _ledger(text: str) -> LedgerBinding:
    """`ID`, `PATH` or a PostgreSQL URL, or one of them after `SILO=`; an id has 64 hexadecimal digits."""
    named = re.fullmatch(r"(?:([^=/:]+)=)?(.+)", text)
    if named is None:
        raise click.UsageError("--ledger: name a ledger by its path or by its id, for example --ledger ledger.db")
    from privfair.ledger import Ledger  # 0.2 s, which `--help` does not need

    silo, place = named.groups()
    return LedgerBinding(ledger=Ledger.identity_of(place), silo=silo)


def _named_size(text: str) -> tuple[str, int]:
    name, equals, size = text.rpartition("=")
    if not equals or not name.strip() or not size.strip().isdigit() or int(size) < 1:
        raise click.UsageError(f"--silo {text}: write NAME=SIZE, for example --silo north=7500")
    return name.strip(), int(size)


class Signing(IssuerFlags):
    """Former options that sign, as they were typed; `privfair budget sign PLAN` does it now."""

    out: Path | None
    key_path: Path | None
    as_printed: bool
    no_privacy: str | None


days_option = click.option(
    *("--valid-days",), type=click.IntRange(1, 36_500), default=VALID_DAYS, hidden=True, help="Days until it expires."
)
_OPTIONS = (
    click.option("--epsilon", type=float, metavar="E", help="Epsilon to keep."),
    click.option("--delta", type=float, metavar="D", help="Delta that goes with it, between 0 and 1."),
    click.option("--explain", is_flag=True, help="Show which assumption costs what."),
    click.option("--plot", type=FILE, help="Write a figure: epsilon against rounds, noise against epsilon."),
)
_SIGNING = (
    click.option("--out", type=FILE, hidden=True, help="Write the budget, signed with --key."),
    click.option("--key", "key_path", type=FILE, hidden=True, help="Key that signs the budget."),
    click.option("--silo", "silos", multiple=True, hidden=True, help="NAME=SIZE of a silo, where no plan names data."),
    click.option("--ledger", "ledgers", multiple=True, hidden=True, help="Ledger in which the budget is used."),
    days_option,
    click.option("--why", default="", hidden=True, help="Purpose to put on record."),
    click.option("--as-printed", is_flag=True, hidden=True, help="As guarantee = as-printed in the plan."),
    click.option("--no-privacy", hidden=True, help="As guarantee = {none = WHY} in the plan."),
    click.option(
        *("--unsafe-seeded-research-noise", "research_noise"),
        is_flag=True,
        hidden=True,
        help="As noise-source = seeded-research in the plan.",
    ),
)


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
            return with_our_help(_subcommand(Plan.read(Path(name)).algorithm, Path(name)))
        if name in algorithm_names():
            return with_our_help(_subcommand(name, None))

        hint = nearest(name, algorithm_names())
        raise click.UsageError(f"There is no algorithm {name!a}, and a plan's name ends in .toml; {hint}", ctx)


@click.group("calibrate", cls=_Algorithms)
def calibrate_command() -> None:
    """Find the smallest noise whose certified cost keeps (epsilon, delta); nothing is signed.

    \b
    One subcommand per algorithm, or a plan file in its place:
      privfair calibrate steffle --help
      privfair calibrate plan.toml
    """


def _subcommand(algorithm: str, path: Path | None) -> click.Command:
    """The command of an algorithm; one without a private variant has no parameters that noise depends on."""
    if algorithm in algorithm_names():
        plan = plan_of(algorithm)
        flags, help, example = parameter_flags(plan), plan.summary, f"privfair calibrate {algorithm} {plan.example}"
    else:
        from privfair.algorithms.registry import recipe_named

        name = recipe_named(algorithm).name
        flags, help, example = (), f"{name} protects no one: there is no noise to compute.", "privfair check plan.toml"

    @click.command(algorithm, help=help, short_help=help.split(".")[0], epilog=f"\b\nExample:\n  {example}")
    @options(*_OPTIONS, *flags, *_SIGNING)
    def run(epsilon: float | None, delta: float | None, explain: bool, plot: Path | None, **given: Any) -> None:
        signing = Signing(**{name: given.pop(name) for name in Signing.__annotations__})  # type: ignore[typeddict-item]
        file = plan_from_flags(algorithm, path, given)
        promise = _promise(file, signing)
        if promise == "calibrated" and not flags:
            raise click.UsageError(
                f'{algorithm} has no private variant; say so: guarantee = {{none = "why"}} at the top of the plan'
            )
        if promise != "calibrated" and (explain or plot is not None):
            raise click.UsageError("--explain and --plot belong to a calibration; drop them")
        target = None if isinstance(promise, Unprotected) else file.target(epsilon, delta)
        if promise == "calibrated" and signing["out"] is None:
            from calibrate.budget import calibrate_plan

            assert target is not None
            search = search_plan(file)
            plan = plan_from_mapping(file.algorithm, file.privacy)
            _show_budget(calibrate_plan(plan, target, tries=None if search is None else search.tries), explain, plot)
            return
        from privfair.api.draft import draft

        drafted = draft(file, issuer_from_flags(**signing), promise, target)
        if signing["out"] is not None and signing["key_path"] is not None:
            write_named(signing["out"], issue(drafted, load_private(signing["key_path"], ask_password)))
        if drafted.certified is None:
            _show_unpromised(drafted.document, signing["out"])
        else:
            _show_budget(drafted.certified, explain, plot, signing["out"])

    return run


def _promise(file: Plan, signing: Signing) -> Promise:
    """What the plan asks for, or a former option; refused where options contradict each other."""
    if (signing["out"] is None) != (signing["key_path"] is None):
        raise click.UsageError("--out and --key go together: a budget is never written unsigned")
    if signing["out"] is None and (signing["silos"] or signing["why"] or signing["ledgers"]):
        raise click.UsageError("--silo, --ledger and --why describe a budget; give --out and --key as well")
    if signing["as_printed"] and signing["no_privacy"] is not None:
        raise click.UsageError("--as-printed and --no-privacy exclude each other")
    if signing["no_privacy"] is not None:
        return Unprotected(signing["no_privacy"])
    return "as-printed" if signing["as_printed"] else file.guarantee


def _show_unpromised(document: BudgetDocument, out: Path | None) -> None:
    """A budget without a certified guarantee: a paper's own noise with its true cost, or no noise at all."""
    from privfair.run.public import promise_of

    guarantee = document.guarantee
    text, more = promise_of(document).text, {}
    if isinstance(guarantee, AsPrintedGuarantee):
        more = {
            "claimed_epsilon": guarantee.claimed_epsilon,
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "certified": document.accounting.model_dump(mode="json")["interval"],
        }
    found = {
        "algorithm": document.algorithm,
        "kind": guarantee.kind,
        "rounds": document.rounds,
        "releases": [
            {"name": release.name, "mechanism": release.mechanism, "sigma": getattr(release, "sigma", None)}
            for release in document.releases
        ],
        "promise": text,
        "manifest": None if out is None else str(out),
    }
    names = ", ".join(release.name for release in document.releases)
    written = () if out is None else (f"budget written to {out}",)
    answer(
        {**found, **more}, f"{document.algorithm}: {text}", f"{document.rounds} rounds; published: {names}", *written
    )


def _show_budget(budget: CertifiedBudget, explain: bool, plot: Path | None, out: Path | None = None) -> None:
    """The calibrated noise and what was asked for."""
    document = budget.to_json() | {
        "protected": Protection(budget.plan.unit, budget.target).protected,
        "not_protected": list(budget.plan.unprotected()),
    }
    alternatives: tuple[Alternative, ...] = ()
    if explain:
        from calibrate.plans.alternatives import explain as alternatives_of

        with progress_bar("alternatives") as counted:
            alternatives = tuple(alternatives_of(budget.plan, budget.target, counted))
        document["explanation"] = [one.to_json() for one in alternatives]
    if plot is not None:
        from privfair.cli.plots import plot_budget

        plot_budget(budget, plot)
    written = {name: str(path) for name, path in (("plot", plot), ("manifest", out)) if path is not None}
    if asked().as_json:
        print_json(document | written)
        return
    show_noise(budget)
    if alternatives:
        print_rich("", _explanation_table(alternatives))
    print_wrapped(*(f"{name} written to {path}" for name, path in written.items()))


def show_noise(budget: CertifiedBudget) -> None:
    """What is protected first, then each value's noise and what it costs; assumptions only with -v."""
    target, certified, plan = budget.target, budget.certified, budget.plan
    protection = Protection(plan.unit, target)
    print_wrapped(*protection.lines())
    print_wrapped(
        "",
        f"{plan.algorithm.value}: epsilon {target.epsilon:g} at delta {target.delta:g}, {plan.rounds} rounds, one "
        f"{plan.unit.protected.value} ({plan.unit.relation.value})",
    )
    rows: list[tuple[str, ...]] = [("value", "published", "clip", "sensitivity", "multiplier", "sigma")]
    for value in budget.values:
        if isinstance(value, RandomizedValue):
            rows.append((value.name, "once", "", "1", "", f"keep {value.keep_probability:.7g}"))
            continue
        reach = value.sensitivity * bounds_apart(plan.unit.relation)
        numbers = (f"{number:.7g}" for number in (value.sensitivity, reach, value.noise_multiplier, value.sigma))
        rows.append((value.name, value.often, *numbers))
    print_wrapped(*(f"  {line}" for line in table_lines(rows)))
    closing = f"certified epsilon {epsilon_text(certified.lower, certified.upper)} (by {budget.first.accountant_name})"
    if budget.optimality_gap is not None:
        smaller = 100 * budget.optimality_gap / (1 + budget.optimality_gap)
        closing += f"; noise smaller by more than {smaller:.2g}% provably breaks the guarantee"
    print_wrapped(closing)
    if asked().verbose:
        if budget.joint_noise_multiplier is not None:
            print_wrapped(f"joint noise multiplier of a round: {budget.joint_noise_multiplier:.7g}")
        print_wrapped("", "It assumes:", *(f"  - {text}" for text in plan.assumptions()), indent="    ")
        print_wrapped("Not protected:", *(f"  - {text}" for text in plan.unprotected()), indent="    ")
    else:
        print_wrapped(f"{len(plan.assumptions())} assumptions: -v shows them")


def _explanation_table(alternatives: tuple[Alternative, ...]) -> object:

    table = Table("alternative", "value", "sigma", "times yours", "can be had?")
    for one in alternatives:
        offered = "yes" if one.not_offered is None else f"no: {one.not_offered}"
        table.add_row(one.description, one.value, f"{one.sigma:.5g}", f"{one.ratio:.4g}", offered)
    return table

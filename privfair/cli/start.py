"""Start: which algorithm protects what, and a first plan.toml and schema.toml for one's files."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from calibrate.choose import QUESTIONS, Choice, Fair, Need, Observer, Question, choose
from calibrate.privacy_unit import EpsilonDelta, Protected
from privfair.cli.options import FILE, FOLDER, asked
from privfair.cli.output import print_json, print_wrapped
from privfair.data.infer import ColumnRole, FileLayout, SeenFiles, look_at, schema_text, toml_value


def _ask_need(sites: int) -> Need:
    """What must be protected, from whom, and to whom the model should be fair, as the user answers."""
    if asked().as_json or not sys.stdin.isatty():
        raise click.UsageError("nobody is there to be asked: give --protect attribute, record or user")
    protect, observer, fair = (_ask(question) for question in QUESTIONS)
    return Need(Protected(protect), Observer(observer), sites, Fair(fair))


def _ask(question: Question) -> str:
    lines = (f"  {name:<12} {meaning}" for name, meaning in question.answers.items())
    print_wrapped(question.text, *lines, indent=" " * 15)
    found: str = click.prompt("  your answer", type=click.Choice(list(question.answers)), show_choices=False)
    return found


@click.command("init", short_help="write plan.toml and schema.toml for your own files")
@click.argument("files", type=FILE, nargs=-1, required=True, metavar="FILES..")
@click.option("--target", required=True, metavar="COLUMN", help="The column to predict.")
@click.option("--sensitive", metavar="COLUMN", help="The column whose groups are to be treated alike.")
@click.option("--user", metavar="COLUMN", help="The column that says whose record it is, with --protect user.")
@click.option(
    "--protect",
    type=click.Choice(["attribute", "record", "user", "ask"]),
    help="What is protected; `ask` asks for it, from whom, and what should be fair, and says why.",
    show_default="attribute with --sensitive, else record",
)
@click.option("--epsilon", type=float, default=1.0, show_default=True, metavar="E", help="The promise: this epsilon.")
@click.option("--delta", type=float, default=1e-5, show_default=True, metavar="D", help="The promise: this delta.")
@click.option(
    "--at-least",
    type=click.IntRange(min=1),
    metavar="N",
    help="A public number of training records that each file has for sure, where records are protected.",
)
@click.option(
    "--lists-are-public",
    is_flag=True,
    hidden=True,
    help="Take classes, groups and categories as the files spell them, because a codebook lists them.",
)
@click.option("--skip", multiple=True, metavar="COLUMN", help="A column that is not to be used; once per column.")
@click.option(
    "--out", type=FOLDER, default=Path(), help="Folder for plan.toml and schema.toml; the current one unless given."
)
def init_command(
    files: tuple[Path, ...],
    target: str,
    sensitive: str | None,
    user: str | None,
    protect: str | None,
    epsilon: float,
    delta: float,
    at_least: int | None,
    lists_are_public: bool,
    skip: tuple[str, ...],
    out: Path,
) -> None:
    """Look at FILES, one per site, and write a plan and a schema to start from.

    Nothing seen in the files becomes a public number: bounds stay empty until you fill them in.

    \b
    Example, from three files to an audited model:
      privfair init north.csv south.csv west.csv --target default --sensitive sex
      (fill in what says FILL IN in schema.toml)
      privfair check plan.toml
      privfair run plan.toml
    """
    EpsilonDelta(epsilon, delta)
    answered = _ask_need(len(files)) if protect == "ask" else None
    unit = answered.protect if answered else Protected(protect or ("record" if sensitive is None else "attribute"))
    if (unit is Protected.USER) != (user is not None):
        raise click.UsageError("--user COLUMN goes with --protect user: it says whose record it is")
    if unit is Protected.ATTRIBUTE and sensitive is None:
        raise click.UsageError("--protect attribute needs --sensitive COLUMN, the attribute to protect")
    out.mkdir(parents=True, exist_ok=True)
    places = {"plan": out / "plan.toml", "schema": out / "schema.toml"}
    for place in places.values():
        if place.exists():
            raise click.UsageError(f"{place} exists; remove it, or name another folder with --out")
    observer = Observer.MODEL if unit is Protected.USER or len(files) == 1 else Observer.COORDINATOR
    seen = look_at(files, target, sensitive, (*skip, *(() if user is None else (user,))))
    classes = max((len(column.names) for column in seen.of(ColumnRole.TARGET)), default=2)
    # A rule that is fair to groups answers yes or no.
    fair = Fair.NOTHING if sensitive is None or (unit is Protected.RECORD and classes > 2) else Fair.GROUPS
    choice = choose(answered or Need(unit, observer, len(files), fair))
    schema = schema_text(seen, lists_are_public)
    if user is not None:
        schema = _keep(schema, user)
    plan = _plan_text(choice, seen, out, epsilon, delta, at_least, user)
    places["schema"].write_text(schema, encoding="utf-8")
    places["plan"].write_text(plan, encoding="utf-8")
    open_places = [
        (place.name, text.count("FILL IN") - (1 if place == places["schema"] else 0))
        for place, text in ((places["schema"], schema), (places["plan"], plan))
    ]
    if asked().as_json:
        columns = [{"column": c.name, "role": c.role.value, "gaps": c.gaps, "why": c.why} for c in seen.columns]
        layouts = asdict(seen.layouts)
        written = {name: str(place) for name, place in places.items()}
        print_json(
            {
                **written,
                "algorithm": choice.algorithm,
                "unit": unit.value,
                "columns": columns,
                **layouts["usual"],
                "exceptions": layouts["exceptions"],
                "to_fill_in": dict(open_places),
            }
        )
        return
    if answered:
        print_wrapped(
            "At epsilon 1 and delta 1e-5:", *(f"  {line}" for line in choice.protection().lines()), indent="    "
        )
        print_wrapped("Why:", *(f"  - {text}" for text in choice.why), indent="    ")
        print_wrapped("Instead, perhaps:", *(f"  - {text}" for text in choice.instead), indent="    ")
    _tell(seen, choice, places, dict(open_places))


def _plan_text(
    choice: Choice, seen: SeenFiles, out: Path, epsilon: float, delta: float, at_least: int | None, user: str | None
) -> str:

    files = ", ".join(toml_value(os.path.relpath(file, out)) for file in seen.files)
    groups = max((len(column.names) for column in seen.of(ColumnRole.SENSITIVE)), default=0)
    privacy = choice.privacy
    if choice.algorithm in ("pay-once", "fair-plugin") and groups > 2:
        privacy = f"groups = {groups}                      # as many as schema.toml lists\n{privacy}"
    lines = [
        f"# {choice.why[0]}",
        f'algorithm = "{choice.algorithm}"',
        "",
        "[target]                        # the promise: privfair budget show --explain says what it means",
        f"epsilon = {epsilon:g}",
        f"delta = {delta:g}",
        "",
        "[privacy]",
        privacy.rstrip(),
        "",
        "[data]",
        f"files = [{files}]",
        'schema = "schema.toml"',
    ]
    if choice.unit is not Protected.ATTRIBUTE:
        number = "0                    # FILL IN: a public number of units that each site has for sure"
        lines.append(f"at-least = {number if at_least is None else at_least}")
    if user is not None:
        lines += ["", "[data.users]", 'kind = "column"', f"column = {toml_value(user)}"]
    lines += ["", "[training]", choice.training.rstrip(), "measure-every = 10"]
    return "\n".join(lines) + "\n"


def _keep(schema: str, user: str) -> str:
    """The schema with the users' column kept beside the features."""
    table = f"\n[file]\nkeep = [{toml_value(user)}]\n"
    return schema.replace("\n[file]\n", table, 1) if "\n[file]\n" in schema else schema + table


def _tell(seen: SeenFiles, choice: Choice, places: dict[str, Path], to_fill_in: dict[str, int]) -> None:

    notes = "; ".join(seen.layouts.usual.notes(FileLayout()))
    print_wrapped(f"Looked at {len(seen.files)} file(s), every record{': ' + notes if notes else ''}.")
    for name, layout in seen.layouts.exceptions.items():
        print_wrapped(f"In {name}: {'; '.join(layout.notes(seen.layouts.usual))}; noted in schema.toml.")
    for role in ColumnRole:
        names = [c.name + (" (has empty cells)" if c.gaps else "") for c in seen.of(role)]
        if names:
            print_wrapped(f"  {role.value:<12} {', '.join(names)}", indent=" " * 15)
    print_wrapped(f"Chosen: {choice.algorithm}, which protects one {choice.unit.value}. {choice.why[0]}")
    print_wrapped(f"Wrote {places['plan']} and {places['schema']}.")
    todo = [f"{number} in {name}" for name, number in to_fill_in.items() if number]
    if todo:
        print_wrapped(
            f"To fill in: {', '.join(todo)} (they say FILL IN). Take them from a codebook, a form or a law, not from "
            "the files: a number read off private records is published without being paid for."
        )
    print_wrapped(f"Then: privfair check {places['plan']}", f"      privfair run {places['plan']}")

"""Start: which algorithm protects what, and a first plan.toml and schema.toml for one's files."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from calibrate.choose import QUESTIONS, Choice, Fair, Need, Observer, Question, choice_of, choose
from calibrate.privacy_unit import EpsilonDelta, Protected
from privfair.cli.options import FILE, FOLDER, asked
from privfair.cli.output import print_json, print_wrapped
from privfair.data.infer import ColumnRole, FileLayout, SeenFiles, look_at, schema_text, toml_value
from privfair.plan.plan import PROTECT, SCHEMA_NAME, Plan


def _ask_need(sites: int) -> Need:
    """What must be protected, from whom, and to whom the model should be fair, as the user answers."""
    if asked().as_json or not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask on: give --protect record, person or attribute")
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
@click.option(
    *("--sensitive", "sensitive"),
    multiple=True,
    metavar="COLUMN",
    help="Sensitive column; several: the groups are their combinations.",
)
@click.option("--user", metavar="COLUMN", help="Column that says whose record it is, with --protect person.")
@click.option(
    "--protect",
    type=click.Choice(["record", "person", "attribute", "user", "ask"]),
    help="What is protected; `ask` asks for it, from whom, and what should be fair, and says why [default: record].",
)
@click.option("--epsilon", type=float, default=1.0, show_default=True, metavar="E", help="The promise: this epsilon.")
@click.option("--delta", type=float, default=1e-5, show_default=True, metavar="D", help="The promise: this delta.")
@click.option(
    "--at-least",
    type=click.IntRange(min=1),
    metavar="N",
    help="Public lower bound on the training records of each file (persons, with --protect person).",
)
@click.option(
    "--lists-are-public",
    is_flag=True,
    hidden=True,
    help="Write lists-from-codebook = true: a codebook has the lists as the files spell them.",
)
@click.option("--skip", multiple=True, metavar="COLUMN", help="A column that is not to be used; once per column.")
@click.option(
    "--out", type=FOLDER, default=Path(), help="Folder for plan.toml and schema.toml [default: the current one]."
)
def init_command(
    files: tuple[Path, ...],
    target: str,
    sensitive: tuple[str, ...],
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
    unit = answered.protect if answered else PROTECT[protect or ("record" if user is None else "person")]
    if (unit is Protected.USER) != (user is not None):
        raise click.UsageError("--user COLUMN goes with --protect person: it says whose record it is")
    if unit is Protected.ATTRIBUTE and not sensitive:
        raise click.UsageError("--protect attribute needs --sensitive COLUMN, the attribute to protect")
    out.mkdir(parents=True, exist_ok=True)
    places = {"plan": out / "plan.toml", "schema": out / SCHEMA_NAME}
    for place in places.values():
        if place.exists():
            raise click.UsageError(f"{place} exists; remove it, or name another folder with --out")
    seen = look_at(files, target, sensitive, (*skip, *(() if user is None else (user,))))
    wanted = choose(answered).algorithm if answered else None
    texts = {"schema": schema_text(seen, lists_are_public, user)}
    written = (unit, seen, out, epsilon, delta, at_least)
    texts["plan"] = _plan_text(*written, None)
    for name in ("schema", "plan"):
        places[name].write_text(texts[name], encoding="utf-8")
    plan = Plan.read(places["plan"])
    if wanted not in (None, plan.algorithm):
        places["plan"].write_text(_plan_text(*written, wanted), encoding="utf-8")
        plan = Plan.read(places["plan"])
    choice = choice_of(plan.algorithm)
    assert choice is not None
    open_places = [(place.name, texts[name].count("FILL IN")) for name, place in places.items()]
    if asked().as_json:
        columns = [
            {"column": c.name, "role": c.role.value, "gaps": c.gaps, "why": c.why, "merged": dict(c.merge)}
            for c in seen.columns
        ]
        layouts = asdict(seen.layouts)
        print_json(
            {
                **{name: str(place) for name, place in places.items()},
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
        print_wrapped("Alternatives:", *(f"  - {text}" for text in choice.instead), indent="    ")
    _tell(seen, choice, places, dict(open_places))


def _plan_text(
    unit: Protected,
    seen: SeenFiles,
    out: Path,
    epsilon: float,
    delta: float,
    at_least: int | None,
    algorithm: str | None,
) -> str:
    word = next(name for name, protected in PROTECT.items() if protected is unit)
    files = ", ".join(toml_value(os.path.relpath(file, out)) for file in seen.files)
    units = "persons" if unit is Protected.USER else "training records"
    wait = f"0  # FILL IN: public lower bound on {units} per site" if at_least is None else at_least
    lines = [
        f'protect  = "{word}"  # record | person | attribute',
        f"epsilon  = {epsilon:g}  # per {word}, for everything this run publishes",
        f"delta    = {delta:g}  # well below 1 / number of records",
        f"files    = [{files}]",
        *([] if unit is Protected.ATTRIBUTE else [f"at-least = {wait}"]),
        *([] if algorithm is None else [f'algorithm = "{algorithm}"']),
    ]
    return "\n".join(lines) + "\n"


def _tell(seen: SeenFiles, choice: Choice, places: dict[str, Path], to_fill_in: dict[str, int]) -> None:

    notes = "; ".join(seen.layouts.usual.notes(FileLayout()))
    print_wrapped(f"Looked at {len(seen.files)} file(s), every record{': ' + notes if notes else ''}.")
    for name, layout in seen.layouts.exceptions.items():
        print_wrapped(f"In {name}: {'; '.join(layout.notes(seen.layouts.usual))}; noted in schema.toml.")
    for column in seen.columns:
        if column.merge:
            spelled = ", ".join(f"{old!r} as {new!r}" for old, new in column.merge)
            print_wrapped(f"In column {column.name!r} one value has several spellings; schema.toml reads {spelled}.")
    for role in ColumnRole:
        names = [c.name + (" (has empty cells)" if c.gaps else "") for c in seen.of(role)]
        if names:
            print_wrapped(f"  {role.value:<12} {', '.join(names)}", indent=" " * 15)
    print_wrapped(f"Chosen: {choice.algorithm}, which protects one {choice.unit.value}. {choice.why[0]}")
    print_wrapped(f"Wrote {places['plan']} and {places['schema']}.")
    todo = [f"{number} in {name}" for name, number in to_fill_in.items() if number]
    if todo:
        print_wrapped(
            f"To fill in: {', '.join(todo)} (marked FILL IN). Take them from a codebook, a form or a law, not from "
            "the files: a number inferred from private records would be published without noise."
        )
    print_wrapped(f"Then: privfair check {places['plan']}", f"      privfair run {places['plan']}")

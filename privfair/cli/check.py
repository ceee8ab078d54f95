"""`privfair check`: all mistakes in a plan, its schema and its files, at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from privfair.cli.output import json_option, print_json, print_wrapped, progress_bar

if TYPE_CHECKING:
    from calibrate.meaning import Protection
    from privfair.data.read import RawTable
    from privfair.data.schema import CodedColumn, NumericColumn
    from privfair.plan.file import PlanFile

T = TypeVar("T")
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("check", short_help="all mistakes in a plan, its schema and its files, at once")
@click.argument("plan", type=_FILE)
@json_option
def command(plan: Path, as_json: bool) -> None:
    """Read PLAN, its schema and its files, and list everything that is wrong; nothing is signed or spent.

    Exit code 1 if something is wrong. If nothing is, what would be protected and how much noise it takes.
    """
    found = Mistakes()
    budget = None
    with progress_bar("checking plan, schema and files"):
        file = found.run(lambda: _read(plan))
        if file is not None:
            _check_parts(file, found)
            if not found.sentences:
                budget = found.run(lambda: _calibrate(file))
    if as_json:
        print_json({"plan": str(plan), "ok": not found.sentences, "mistakes": found.sentences})
    elif found.sentences:
        print_wrapped(*(f"- {sentence}" for sentence in found.sentences))
        number = len(found.sentences)
        print_wrapped(f"{number} mistake{'' if number == 1 else 's'} in {plan} and what it names; nothing was signed.")
    else:
        if budget is not None:
            print_wrapped(*budget.lines())
        print_wrapped(f"{plan}: no mistakes. Next: privfair run {plan}")
    if found.sentences:
        sys.exit(1)


class Mistakes:
    """Sentences about what is wrong, each once, in the order of finding."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def run(self, step: Callable[[], T]) -> T | None:
        """What the step gives; None and one sentence more if it raises a deliberate error."""
        from calibrate.errors import PrivfairError

        try:
            return step()
        except PrivfairError as mistake:
            if str(mistake) not in self.sentences:
                self.sentences.append(str(mistake))
            return None


def _read(path: Path) -> PlanFile:
    from privfair.plan.file import read_plan_file

    return read_plan_file(path)


def _check_parts(file: PlanFile, found: Mistakes) -> None:
    """Target, privacy, data, training, schema and files, each on its own."""
    from calibrate.plans.from_mapping import plan_from_mapping
    from privfair.algorithms.registry import recipe_named
    from privfair.plan.data import FileSource, read_data_plan
    from privfair.plan.training import training_plan

    recipe = found.run(lambda: recipe_named(file.algorithm))
    if recipe is None:
        return
    if not recipe.baseline:
        found.run(file.target)
        found.run(lambda: plan_from_mapping(file.algorithm, file.privacy))
    data = found.run(lambda: read_data_plan(file.data, file.folder))
    if data is None:
        return
    found.run(lambda: training_plan(file))
    if isinstance(data.source, FileSource):
        _check_files(data.source.schema, (*data.source.files, *data.source.test_files), found)


def _check_files(schema: Path, files: tuple[Path, ...], found: Mistakes) -> None:
    """Each table of the schema, and each column of each file that the schema speaks of."""
    from privfair.data.infer import recognise
    from privfair.data.read import read_table
    from privfair.data.schema_toml import check_schema

    parts = check_schema(schema)
    found.sentences += [sentence for sentence in parts.mistakes if sentence not in found.sentences]
    alike = len({recognise(path) for path in files if path.is_file()}) == 1
    for path in files:
        layout = parts.layouts.of(path)
        looks = recognise(path, layout)
        if looks != layout and path.is_file():
            said = f"delimiter = {looks.delimiter!r} and decimal = {looks.decimal!r}"
            place = "[file]" if alike else f'[file.exceptions."{path.name}"]'
            found.sentences.append(f"{path}: {'; '.join(looks.notes(layout))}; write {said} under {place} of {schema}")
        table = found.run(partial(read_table, path, looks.delimiter, looks.decimal))
        if table is not None:
            for name in parts.named:
                found.run(partial(table.column, name))
            for column in parts.columns:
                if column.name in table.columns:
                    found.run(partial(_check_column, table, column))


def _check_column(table: RawTable, column: NumericColumn | CodedColumn) -> None:
    from privfair.data.encode import codes
    from privfair.data.schema import NumericColumn

    if isinstance(column, NumericColumn):
        table.numbers(column.name, column.fill)
    elif column.values is not None:
        codes(table, column)


def _calibrate(file: PlanFile) -> Protection | None:
    """The whole, as it would be signed: data loaded, promise priced. What it would protect; None for a baseline."""
    from calibrate.meaning import Protection
    from privfair.algorithms.registry import recipe_named
    from privfair.api.draft import Unprotected, draft

    if recipe_named(file.algorithm).baseline:
        draft(file, promise=Unprotected("check"))
        return None
    budget = draft(file).certified
    assert budget is not None
    return Protection(budget.plan.unit, budget.target)

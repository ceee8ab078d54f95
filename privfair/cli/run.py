"""Check a plan, and run it from noise to report: each step is a command of the real command line."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from audit.settings import DEFAULTS
from calibrate.errors import CheckFailed, InvalidInput, PrivfairError, Refused
from calibrate.meaning import Protection
from calibrate.plans import plan_from_mapping
from privfair.algorithms.registry import recipe_named
from privfair.api.draft import draft
from privfair.cli import INTERRUPTED, cli
from privfair.cli.audit_sensitivity import show_local_sensitivity
from privfair.cli.model import quality_lines
from privfair.cli.options import FILE, FOLDER, asked, threshold_options
from privfair.cli.output import checks_text, print_json, print_wrapped, progress_bar
from privfair.data.encode import codes
from privfair.data.infer import recognise
from privfair.data.read import RawTable, read_table
from privfair.data.schema import CodedColumn, NumericColumn
from privfair.data.schema_toml import check_schema
from privfair.plan.data import FileSource, read_data_plan
from privfair.plan.plan import Plan, Unprotected
from privfair.plan.training import training_plan

T = TypeVar("T")


@click.command("check", short_help="all mistakes in a plan, its schema and its files, at once")
@click.argument("plan", type=FILE)
@click.option("--sensitivity", is_flag=True, help="Show what the units of this data move, beside the worst case.")
@click.option("--budget", type=FILE, help="With --sensitivity: signed budget of the plan; calibrated now without it.")
@click.option("--rounds", type=click.IntRange(min=1), default=32, hidden=True, help="Number of rounds to rehearse.")
@click.option("--units", type=click.IntRange(min=1), default=20, hidden=True, help="Number of units to try in a batch.")
def check_command(plan: Path, sensitivity: bool, budget: Path | None, rounds: int, units: int) -> None:
    """Read PLAN, its schema and its files, and list everything that is wrong; nothing is signed or spent.

    Exit code 1 if something is wrong. If nothing is, what would be protected and how much noise it takes.
    """
    if sensitivity:
        show_local_sensitivity(plan, budget, rounds, units)
        return
    if budget is not None:
        raise click.UsageError("--budget goes with --sensitivity")
    found = Mistakes()
    covered = None
    with progress_bar("checking plan, schema and files"):
        file = found.run(lambda: Plan.read(plan))
        if file is not None:
            _check_parts(file, found)
            if not found.sentences:
                covered = found.run(lambda: _calibrate(file))
    if asked().as_json:
        print_json({"plan": str(plan), "ok": not found.sentences, "mistakes": found.sentences})
    elif found.sentences:
        print_wrapped(*(f"- {sentence}" for sentence in found.sentences))
        number = len(found.sentences)
        print_wrapped(f"{number} mistake{'' if number == 1 else 's'} in {plan} and what it names; nothing was signed.")
    else:
        if covered is not None:
            print_wrapped(*covered.lines())
        print_wrapped(f"{plan}: no mistakes. Next: privfair run {plan}")
    if found.sentences:
        sys.exit(1)


class Mistakes:
    """Sentences about what is wrong, each once, in the order of finding."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def run(self, step: Callable[[], T]) -> T | None:
        """What the step gives; None and one sentence more if it raises a deliberate error."""
        try:
            return step()
        except PrivfairError as mistake:
            if str(mistake) not in self.sentences:
                self.sentences.append(str(mistake))
            return None


def _check_parts(file: Plan, found: Mistakes) -> None:
    """Target, privacy, data, training, schema and files, each on its own."""
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

    if isinstance(column, NumericColumn):
        table.numbers(column.name, column.fill)
    elif column.values is not None:
        codes(table, column)


def _calibrate(file: Plan) -> Protection | None:
    """The whole, as it would be signed: data loaded, promise priced. What it would protect; None for a baseline."""
    promise = Unprotected("check") if recipe_named(file.algorithm).baseline else file.guarantee
    budget = draft(file, promise=promise).certified
    return None if budget is None else Protection(budget.plan.unit, budget.target)


def leave_if_refuted(verdict: dict[str, Any]) -> None:
    """Exit code 1 once all is shown, as `privfair audit` has it: a script must see that the promise was refuted."""
    if verdict["verdict"] == "violated":
        sys.exit(1)


class Pipeline:
    """Runs commands in one folder and keeps their words; --json shows nothing of them, --verbose everything.

    `sites` are the parties of a run over guards, each with a file and a ledger of its own; none for one process.
    """

    def __init__(self, folder: Path, sites: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.sites = sites
        if folder.exists():
            raise click.UsageError(f"{folder} exists; name a new folder with --out, or leave --out out")
        folder.mkdir(parents=True)
        self._quiet, self._verbose = asked().as_json, asked().verbose and not asked().as_json
        self._log, self._commands = folder / "log.txt", folder / "commands.sh"
        self._commands.write_text("#!/bin/sh\n# What was run, one command after the other.\n", encoding="utf-8")

    def path(self, name: str) -> Path:
        """A file of this pipeline's folder."""
        return self.folder / name

    def say(self, text: str) -> None:
        """One step, for the screen and the log."""
        self._write(f"\n== {text}\n")
        if self._verbose:
            click.secho(f"\n== {text}", bold=True)

    def tell(self, *lines: str, indent: str = "  ") -> None:
        """Lines for people, wrapped at 80 columns; nothing where JSON was asked for."""
        if not self._quiet:
            print_wrapped(*lines, indent=indent)

    def show(self, *words: object, progress: bool = False) -> str:
        """Run a command; its output goes into the log, and to the screen with -v."""
        printed = self._run(words, progress)
        if self._verbose:
            click.echo(printed, nl=False)
        return printed

    def answer(self, *words: object, progress: bool = False) -> dict[str, Any]:
        """Run a command and take its JSON; with `progress` its bar is seen on standard error."""
        found: dict[str, Any] = json.loads(self._run((*words, "--json"), progress))
        return found

    def must_refuse(self, what: str, *words: object) -> str:
        """Run a command that has to be refused, and give the refusal."""
        try:
            self._run(words)
        except Refused as refusal:
            self._write(f"refused, as it must be: {refusal}\n")
            if self._verbose:
                click.echo(f"  refused, as it must be: {refusal}")
            return str(refusal)
        raise CheckFailed(f"{what} was accepted; report this as a bug")

    def sign(self, plan: Path, *more: object) -> dict[str, Any]:
        """A key of an officer made up for the occasion, a ledger, and the plan's budget signed with it."""
        officer, trust, budget = (self.path(name) for name in ("officer.pem", "trust.json", "budget.json"))
        if not officer.exists():
            role = ("--role", "privacy-officer")
            self.show("keys", "generate", *role, "--out", officer)
            self.show("keys", "trust", "--key", officer, *role, "--out", trust)
            for ledger in self.ledgers.values():
                ledger.parent.mkdir(parents=True, exist_ok=True)
                self.show("ledger", "init", ledger)
        signing = ("--out", budget, "--key", officer, *self.ledger_words)
        calibrated = self.answer("calibrate", plan, *more, *signing)
        self.show("budget", "show", budget, "--trust", trust)
        return calibrated

    @property
    def ledgers(self) -> dict[str, Path]:
        """By party the ledger of each; one without a party's name for a run in one process."""
        return {name: self.path("sites") / name / "ledger.db" for name in self.sites} or {"": self.path("ledger.db")}

    @property
    def ledger_words(self) -> tuple[object, ...]:
        """The ledgers as the options of a command."""
        named = (f"{name}={path}" if name else path for name, path in self.ledgers.items())
        return tuple(word for ledger in named for word in ("--ledger", ledger))

    @property
    def file_words(self) -> tuple[object, ...]:
        """The sites' files as the options of a command."""
        return tuple(word for name in self.sites for word in ("--data", f"{name}={self.path(f'{name}.csv')}"))

    def train_words(self, plan: Path, run: str) -> tuple[object, ...]:
        """The command that trains under the signed budget into the folder `run`."""
        path = self.path
        return (
            *("train", plan, "--budget", path("budget.json"), "--trust", path("trust.json")),
            *("--ledger", path("ledger.db"), "--out", path(run)),
        )

    def audit(self, *more: object) -> tuple[dict[str, Any], Path]:
        """The audit of the folder `run`, and its report; "violated" is an answer that the report must still tell.

        Up to a minute of processor time is for trying the units one by one: once half of them are tried, a single unit
        beyond its bound is noticed as likely as not, and the verdict can be more than inconclusive.
        """
        out, report, trust = self.path("audit.json"), self.path("report.html"), ("--trust", self.path("trust.json"))
        try:
            given = (*trust, *self.ledger_words, *self.file_words, *more)
            self.show("audit", "run", self.path("run"), *given, "--out", out, progress=True)
        except SystemExit as stop:
            if stop.code != 1:
                raise
        self.show("report", self.path("run"), "--audit", out, *trust, "--out", report)
        verdict: dict[str, Any] = json.loads(out.read_text("utf-8"))
        return verdict, report

    def _run(self, words: tuple[object, ...], progress: bool = False) -> str:
        """What a command prints; what it says on standard error goes into the log, unless `progress` shows it."""
        spoken = [str(word) for word in words]
        line = f"privfair {shlex.join(spoken)}"
        with self._commands.open("a", encoding="utf-8") as commands:
            commands.write(f"{line}\n")
        if self._verbose:
            click.secho(f"$ {line}", fg="cyan")
        self._write(f"$ {line}\n")
        out, err = StringIO(), StringIO()
        try:
            if (progress and not self._quiet) or self._verbose:
                with redirect_stdout(out):
                    cli.main(spoken, standalone_mode=False)
            else:
                with redirect_stdout(out), redirect_stderr(err):
                    cli.main(spoken, standalone_mode=False)
        except (click.Abort, KeyboardInterrupt) as error:
            if isinstance(error.__cause__, EOFError):  # click takes the end of any file for Ctrl-D
                raise
            self._interrupted("")
        except SystemExit as stop:
            if stop.code != INTERRUPTED:
                raise
            self._interrupted(" and --resume")  # training: what is charged so far is kept
        finally:
            self._write(out.getvalue() + err.getvalue())
        return out.getvalue()

    def _interrupted(self, more: str) -> NoReturn:
        """Leave with a sentence on how to go on; whatever a command began is whole."""
        click.echo(
            f"privfair: interrupted; what is done so far is in {self.folder}. Go on with the last line of "
            f"{self._commands}{more}, or start over in a new folder (another --out, if one was given)",
            err=True,
        )
        sys.exit(INTERRUPTED)

    def _write(self, text: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(text)


_SELF_SIGNED = (
    "with a key made on the spot: nobody but you has agreed to this budget. For real data let an officer sign "
    "(privfair budget request, privfair budget sign)."
)


@click.command("run", short_help="calibrate, sign, train, audit and report a plan, to try it out")
@click.argument("plan", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--out", type=FOLDER, help="New folder for everything; PLAN's folder with -run at the end unless given.")
@click.option(
    "--reruns", type=click.IntRange(min=0), default=DEFAULTS.reruns, show_default=True, help="Number of reruns."
)
@threshold_options
def run_command(
    plan: Path,
    out: Path | None,
    reruns: int,
    threshold: float | None,
    target_gap: float | None,
    target_rate: float | None,
) -> None:
    """Take PLAN from noise to report in one go, under a budget that you sign yourself.

    For trying out: what was printed is in log.txt and what was run in commands.sh of the new folder. Exit code 1 if the
    audit refutes the promise.

    \b
    Example:
      privfair run plan.toml --target-gap 0.05
    """
    _refuse_search(plan)
    folder = out or _free(plan)
    pipeline = Pipeline(folder)
    pipeline.say("A budget for this plan, signed with a key of one's own")
    budget = pipeline.sign(plan, "--why", "trial run, self-signed")
    pipeline.tell(f"calibrated  {budget['algorithm']}: epsilon {budget['epsilon']:g} at delta {budget['delta']:g}")
    pipeline.tell(f"signed      {_SELF_SIGNED}", indent="            ")
    pipeline.say("Training")
    chosen = (("--threshold", threshold), ("--target-gap", target_gap), ("--target-rate", target_rate))
    flags = tuple(word for name, value in chosen if value is not None for word in (name, value))
    trained = pipeline.answer(*pipeline.train_words(plan, "run"), *flags, progress=True)
    pipeline.tell(f"trained     {trained['rounds']} rounds")
    pipeline.say("The audit")
    verdict, report = pipeline.audit("--reruns", reruns, "--plan", plan)
    result = {
        "budget": {key: budget[key] for key in ("algorithm", "epsilon", "delta")},
        "self_signed": True,
        "train": trained,
        "audit": {key: verdict[key] for key in ("verdict", "why", "epsilon_lower", "confidence")},
        "report": str(report),
        "folder": str(folder),
    }
    if asked().as_json:
        print_json(result)
    else:
        _conclude(pipeline, trained, verdict, report)
    leave_if_refuted(verdict)


def _conclude(pipeline: Pipeline, trained: dict[str, Any], verdict: dict[str, Any], report: Path) -> None:
    pipeline.tell(f"audited     {checks_text([check['outcome'] for check in verdict['checks']])}", "")
    pipeline.tell(f"{verdict['verdict'].upper()}: {verdict['why']}", "")
    decision, measured = trained["decision"], trained
    if decision["rule"] != "default" and decision["held_out"] is not None:
        measured = {**trained, **decision["held_out"]}
        pipeline.tell(f"threshold {decision['threshold']:g} ({decision['rule']})")
    pipeline.tell("On the held-out records (these numbers are not private):")
    pipeline.tell(*quality_lines(measured, trained["warning"]))
    pipeline.tell("", f"Protected: {trained['protected']}.", f"NOT protected: {trained['not_protected_in_short']}.", "")
    run = pipeline.path("run")
    pipeline.tell(f"Open  {report}", f"Type  privfair predict {run} --input NEW.csv --out predictions.csv")
    pipeline.tell(f"      privfair report {run} --format frontier --out frontier.svg")


def _refuse_search(plan: Path) -> None:
    """Before anything is written: a search has no transcript, and `run` audits what it trains."""
    if Plan.read(plan).search is not None:
        rule = "shows its best try alone, and no run that could be audited"
        raise InvalidInput("[search]", "(a table)", rule, "use `privfair calibrate` and `privfair train`")


def _free(plan: Path) -> Path:
    """plan-run, plan-run-2, ..: the first that is not there."""
    base = plan.with_name(f"{plan.stem}-run")
    places = (base if number == 1 else base.with_name(f"{base.name}-{number}") for number in range(1, 10_000))
    return next(place for place in places if not place.exists())

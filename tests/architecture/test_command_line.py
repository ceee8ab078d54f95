"""How many commands and options a reader of `--help` meets: they may become fewer, never more; lower a number then."""

from __future__ import annotations

from collections.abc import Iterator

import click

from privfair.cli import cli
from privfair.cli.options import GLOBAL_OPTIONS

MOST_COMMANDS = 32
MOST_OPTIONS = 220


def _leaves(command: click.Command, name: str = "privfair") -> Iterator[tuple[str, set[str]]]:
    """Every visible command that has none below it, with its visible options; `calibrate` is one with the union."""
    if command.hidden:
        return
    below: list[tuple[str, set[str]]] = []
    if isinstance(command, click.Group):
        context = click.Context(command)
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            below += _leaves(found, f"{name} {word}")
    hidden_once = {option.name for option in GLOBAL_OPTIONS}
    own = {
        str(param.name)
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden and param.name not in hidden_once
    }
    if name == "privfair calibrate":
        yield name, own.union(*(options for _, options in below))
    elif below:
        yield from below
    else:
        yield name, own


def test_no_more_commands_and_options_than_before() -> None:
    found = dict(_leaves(cli))
    options = sum(len(names) for names in found.values())
    listed = "\n".join(f"{name}: {len(names)}" for name, names in sorted(found.items()))
    assert len(found) <= MOST_COMMANDS, f"{len(found)} commands, {MOST_COMMANDS} are allowed:\n{listed}"
    assert options <= MOST_OPTIONS, f"{options} options, {MOST_OPTIONS} are allowed:\n{listed}"


def test_the_counter_counts() -> None:
    @click.group()
    def group() -> None: ...

    @group.command()
    @click.option("--one", "-o")
    @click.option("--two", hidden=True)
    @click.option("--json", "as_json", is_flag=True)
    def shown(one: str, two: str, as_json: bool) -> None: ...

    @group.command(hidden=True)
    @click.option("--three")
    def former(three: str) -> None: ...

    assert dict(_leaves(group)) == {"privfair shown": {"one"}}

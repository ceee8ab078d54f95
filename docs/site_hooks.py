"""What the site says that is not written by hand: the reference of the command line, from the commands themselves."""

from __future__ import annotations

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files


def command_reference() -> str:
    """One section per command, as `--help` prints it at 88 columns."""
    from privfair.cli import cli

    parts = [
        "# Command line",
        "Made of the commands' own `--help`. Exit codes are [a page of their own](exit-codes.md).\n",
    ]
    root = click.Context(cli, info_name="privfair", max_content_width=88, terminal_width=88)
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        assert command is not None
        if command.hidden:
            continue
        parts += _sections(command, click.Context(command, parent=root, info_name=name, terminal_width=88), 2)
    return "\n".join(parts)


def _sections(command: click.Command, context: click.Context, level: int) -> list[str]:
    parts = [f"{'#' * level} {context.command_path}", "```text", command.get_help(context), "```", ""]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            under = command.get_command(context, name)
            assert under is not None
            if under.hidden:
                continue
            parts += _sections(
                under, click.Context(under, parent=context, info_name=name, terminal_width=88), level + 1
            )
    return parts


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "reference/cli.md", content=command_reference()))
    return files

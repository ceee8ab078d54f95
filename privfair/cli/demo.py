"""`privfair demo`: the whole pipeline on real data, by the commands a user would type."""

from __future__ import annotations

from pathlib import Path

import click

from privfair.cli.demo_plans import PLANS
from privfair.cli.output import json_option, print_json


@click.command("demo", short_help="the whole pipeline on real data, in about a minute")
@click.option(
    "--algorithm",
    type=click.Choice(sorted(PLANS)),
    default="steffle",
    show_default=True,
    help="What to train.",
)
@click.option(
    "--as-printed", is_flag=True, help="SteFFLe with the paper's own sigma, claimed to be epsilon = 1."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo"),
    show_default=True,
    help="Folder for everything the demo writes; a new subfolder each time.",
)
@json_option
def command(algorithm: str, as_printed: bool, out: Path, as_json: bool) -> None:
    """Calibrate, sign, train, and look at what came of it, on real data.

    Each step is a privfair command, printed before it runs, so that it can be repeated by hand. Afterwards a used
    and a tampered budget are shown to be refused.
    """
    from privfair.cli.demo_steps import Demo

    if as_printed and algorithm != "steffle":
        raise click.UsageError(
            "--as-printed goes with --algorithm steffle: only its paper prints a sigma to use"
        )
    result = Demo(out, quiet=as_json).run(algorithm, as_printed)
    if as_json:
        print_json(result)

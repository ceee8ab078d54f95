"""`privfair explain`: a budget, or an epsilon, in plain words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

import click

from privfair.cli.keys import read_trust_file
from privfair.cli.output import json_option, print_json, read_bytes

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("explain", short_help="a budget or an epsilon in plain words")
@click.argument("budget", type=_FILE, required=False)
@click.option("--trust", "trust_path", type=_FILE, help="Check the budget's signatures against this trust file.")
@click.option("--root", type=_FILE, help="Public root key that the trust file must be signed with.")
@click.option("--epsilon", type=float, metavar="E", help="Explain this epsilon instead of a budget file.")
@click.option("--delta", type=float, metavar="D", help="Delta that goes with --epsilon.")
@json_option
def command(
    budget: Path | None,
    trust_path: Path | None,
    root: Path | None,
    epsilon: float | None,
    delta: float | None,
    as_json: bool,
) -> None:
    """Say what a promise means: who is protected, how often an observer can be right, what is not protected.

    \b
    Examples:
      privfair explain budget.json --trust trust.json
      privfair explain --epsilon 1 --delta 1e-5
    """
    from calibrate.meaning import Meaning
    from calibrate.privacy_unit import EpsilonDelta

    if (budget is None) == (epsilon is None or delta is None):
        raise click.UsageError("give either a budget file, or both --epsilon and --delta")
    if budget is not None:
        _explain_budget(budget, trust_path, root, as_json)
        return
    assert epsilon is not None
    assert delta is not None
    meaning = Meaning(EpsilonDelta(epsilon, delta))
    if as_json:
        print_json(meaning.to_json())
    else:
        print_lines(meaning.sentences("one unit"))


def _explain_budget(path: Path, trust_path: Path | None, root: Path | None, as_json: bool) -> None:
    from calibrate.manifest.show import protected_text
    from calibrate.manifest.verify import authenticate, read_unverified
    from calibrate.meaning import Meaning
    from calibrate.privacy_unit import EpsilonDelta

    content = read_bytes(path, "BUDGET")
    if trust_path is None:
        document, checked = read_unverified(content).document, False
    else:
        document, checked = authenticate(content, read_trust_file(trust_path, root), for_reading=True).document, True
    guarantee = document.guarantee
    epsilon, delta = getattr(guarantee, "epsilon", None), getattr(guarantee, "delta", None)
    meaning = None if epsilon is None or delta is None else Meaning(EpsilonDelta(epsilon, delta))
    if as_json:
        print_json(
            {
                "verified": checked,
                "algorithm": document.algorithm,
                "protected": protected_text(guarantee),
                "not_protected": list(guarantee.not_protected),
                "rounds": document.rounds,
                "meaning": None if meaning is None else meaning.to_json(),
            }
        )
        return
    if not checked:
        print_lines(("SIGNATURES NOT CHECKED: give --trust to know whether anybody signed this.",))
    print_lines((f"Protected: {protected_text(guarantee)}.",))
    print_lines(f"Not protected: {line}" for line in guarantee.not_protected)
    if meaning is None:
        print_lines(("There is no finite promise: nobody is protected from an observer of this run.",))
    else:
        print_lines(meaning.sentences(protected_text(guarantee).split(",")[0]))
    print_lines((f"It covers {document.rounds} rounds of {document.algorithm} and can be spent once.",))


def print_lines(lines: Iterable[str]) -> None:
    """Sentences at 80 columns, for reading."""
    for line in lines:
        click.echo(textwrap.fill(line, 80, subsequent_indent="  ", break_long_words=False))

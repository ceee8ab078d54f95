"""`privfair explain`: a budget, or an epsilon, in plain words."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privfair.cli.keys import read_trust_file
from privfair.cli.output import json_option, print_json, print_wrapped
from privfair.durable import read_named

if TYPE_CHECKING:
    from calibrate.meaning import Meaning

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command("explain", short_help="a budget or an epsilon in plain words")
@click.argument("budget", type=_FILE, required=False)
@click.option("--trust", "trust_path", type=_FILE, help="Check the budget's signatures against this trust file.")
@click.option("--root", type=_FILE, help="Public root key that the trust file must be signed with.")
@click.option("--epsilon", type=float, metavar="E", help="Explain this epsilon instead of a budget file.")
@click.option("--delta", type=float, metavar="D", help="Delta that goes with --epsilon.")
@click.option(
    "--group",
    type=click.IntRange(min=1),
    metavar="K",
    help="Explain the promise to K units together, such as the members of a family.",
)
@json_option
def command(
    budget: Path | None,
    trust_path: Path | None,
    root: Path | None,
    epsilon: float | None,
    delta: float | None,
    group: int | None,
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
        _explain_budget(budget, trust_path, root, group, as_json)
        return
    assert epsilon is not None
    assert delta is not None
    meaning = Meaning(EpsilonDelta(epsilon, delta))
    if as_json:
        print_json(meaning.to_json() | _group_json(meaning, group))
    else:
        print_lines(meaning.sentences("one unit"))
        print_lines(_group_lines(meaning, group, "unit"))


def _group_json(meaning: Meaning, size: int | None) -> dict[str, object]:
    """The promise to a group, where one was asked for; null where nothing is left of it."""
    if size is None:
        return {}
    together = meaning.for_group(size)
    return {"group": {"size": size, "meaning": None if together is None else together.to_json()}}


def _group_lines(meaning: Meaning, size: int | None, unit: str) -> tuple[str, ...]:
    if size is None:
        return ()
    together = meaning.for_group(size)
    if together is None:
        return (f"To {size} {unit}s together nothing is promised.",)
    promise = together.promise
    return (
        f"To {size} {unit}s together epsilon {promise.epsilon:.4g} at delta {promise.delta:.3g} is promised.",
        together.sentences(f"these {size} {unit}s")[0],
    )


def _explain_budget(path: Path, trust_path: Path | None, root: Path | None, group: int | None, as_json: bool) -> None:
    from audit.report.page import protection_lines
    from calibrate.manifest.show import meaning_of, protected_text
    from calibrate.manifest.verify import authenticate, read_unverified

    content = read_named(path, "BUDGET")
    if trust_path is None:
        document, checked, remark = read_unverified(content).document, False, None
    else:
        found = authenticate(content, read_trust_file(trust_path, root), for_reading=True)
        document, checked, remark = found.document, True, found.remark
    guarantee = document.guarantee
    meaning = meaning_of(guarantee)
    if as_json:
        print_json(
            {
                "verified": checked,
                "algorithm": document.algorithm,
                "protected": protected_text(guarantee),
                "not_protected": list(guarantee.not_protected),
                "rounds": document.rounds,
                "retention": document.retention,
                "meaning": None if meaning is None else meaning.to_json(),
                **({} if meaning is None else _group_json(meaning, group)),
            }
        )
        return
    if not checked:
        print_lines(("SIGNATURES NOT CHECKED: give --trust to know whether anybody signed this.",))
    if remark is not None:
        print_lines((remark,))
    print_lines(protection_lines(document))
    if meaning is None:
        print_lines(("There is no finite promise: nobody is protected from an observer of this run.",))
    else:
        print_lines(meaning.sentences(protected_text(guarantee).split(",")[0]))
        print_lines(_group_lines(meaning, group, guarantee.privacy_unit().protected.value))
    print_lines((f"It covers {document.rounds} rounds of {document.algorithm} and can be spent once.",))
    print_lines(("Not protected, one by one:",))
    print_wrapped(*(f"- {line}" for line in guarantee.not_protected))
    if document.retention_text is not None:
        print_lines((document.retention_text,))


def print_lines(lines: Iterable[str]) -> None:
    """Sentences at 80 columns, for reading."""
    for line in lines:
        click.echo(textwrap.fill(line, 80, subsequent_indent="  ", break_long_words=False))

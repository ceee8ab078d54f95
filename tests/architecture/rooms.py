"""The ratchet: how many files and lines of code each room may have, by tests/architecture/rooms.toml.

    python -m tests.architecture.rooms           # the table
    python -m tests.architecture.rooms --lower   # append lower numbers where a room became smaller, write the page

A room's numbers are a history, oldest first; the last ones hold. Only its turning points are kept: they have the
same rises. A rise is written by hand, with an entry in [[rises]].
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.architecture import words
from tests.architecture.tree import ROOT, Module

TABLE = Path(__file__).with_name("rooms.toml")
PAGE = ROOT / "docs" / "architecture.md"


@dataclass(frozen=True)
class Room:
    """A part of the tree, the numbers it had over time, and what it has now."""

    name: str
    paths: tuple[str, ...]
    files: tuple[int, ...]
    lines: tuple[int, ...]

    @property
    def modules(self) -> list[Module]:
        found = (
            sorted((ROOT / path).rglob("*.py")) if (ROOT / path).is_dir() else [ROOT / path] for path in self.paths
        )
        return [Module(path) for group in found for path in group]

    @property
    def size(self) -> tuple[int, int]:
        """Files and lines of code as they are."""
        return len(self.modules), sum(module.code_lines for module in self.modules)


@dataclass(frozen=True)
class Rise:
    """Why a room has become larger: `deleted` lines elsewhere for it, or an `allowance` of the table."""

    room: str
    lines: int
    changelog: str
    """Words of the CHANGELOG line that names what was deleted, or what the allowance was used for."""
    deleted: int = 0
    allowance: str = ""


def table() -> tuple[list[Room], list[Rise], dict[str, int]]:
    """The rooms, the rises and the allowances of rooms.toml."""
    read = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    rooms = [
        Room(name, tuple(room["paths"]), tuple(room["files"]), tuple(room["lines"]))
        for name, room in read["rooms"].items()
    ]
    return rooms, [Rise(**rise) for rise in read.get("rises", [])], read["allowances"]


def flow_limits() -> dict[str, int]:
    """The most files that each command may run through."""
    limits: dict[str, int] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["flows"]
    return limits


def word_limits() -> dict[str, int]:
    """The most hits of the word list in code and in pages (tests/architecture/words.py)."""
    limits: dict[str, int] = tomllib.loads(TABLE.read_text(encoding="utf-8"))["words"]
    return limits


def rises_of(numbers: tuple[int, ...]) -> int:
    """The sum of all steps upwards of a history."""
    return sum(max(0, after - before) for before, after in pairwise(numbers))


def turning_points(numbers: Iterable[int]) -> list[int]:
    """The first and the last number of a history and those at which it turns; `rises_of` is the same for both."""
    kept: list[int] = []
    for number in numbers:
        if len(kept) >= 2 and (kept[-1] - kept[-2]) * (number - kept[-1]) >= 0:
            kept.pop()  # on the way from the number before to this one
        if not kept or number != kept[-1]:
            kept.append(number)
    return kept


def as_markdown() -> str:
    """The tables of docs/architecture.md: rooms, and files that a command runs through."""
    rooms, _, _ = table()
    rows = [f"| {room.name} | {room.files[-1]} | {room.lines[-1]:,} | {', '.join(room.paths)} |" for room in rooms]
    own = [room for room in rooms if room.name != "experiments"]
    files, lines = sum(room.files[-1] for room in own), sum(room.lines[-1] for room in own)
    flows = [f"| `{command}` | {files} |" for command, files in flow_limits().items()]
    return "\n".join(
        [
            "| room | files | lines of code | where |",
            "|---|---|---|---|",
            *rows,
            f"| three packages | {files} | {lines:,} | |",
            "",
            "| command | files in which a function is called |",
            "|---|---|",
            *flows,
        ]
    )


def lower() -> None:
    """Append the numbers of every room that has become smaller, and lower those of words that became rarer."""
    text = TABLE.read_text(encoding="utf-8")
    for room in table()[0]:
        files, lines = room.size
        start = text.index(f"[rooms.{room.name}]")
        section = text[start:].split("\n\n", 1)[0]
        changed = section
        for key, now, before in (("files", files, room.files), ("lines", lines, room.lines)):
            if now < before[-1]:
                history = turning_points((*before, now))
                changed = re.sub(rf"^{key} = \[.*\]$", f"{key} = {history}", changed, flags=re.MULTILINE)
        text = text.replace(section, changed)
    for kind, found in words.hits().items():
        if len(found) < word_limits()[kind]:
            text = re.sub(rf"^{kind} = \d+$", f"{kind} = {len(found)}", text, flags=re.MULTILINE)
    TABLE.write_text(text, encoding="utf-8")


def write_page() -> None:
    """Put the tables of docs/architecture.md in place of those that are there."""
    page = PAGE.read_text(encoding="utf-8")
    start = page.index("| room | files | lines of code | where |")
    PAGE.write_text(page[:start] + as_markdown() + page[page.index("\n\n## ", start) :], encoding="utf-8")


if __name__ == "__main__":
    if "--lower" in sys.argv:
        lower()
        write_page()
    for each in table()[0]:
        print(f"{each.name:12} {each.size} of {(each.files[-1], each.lines[-1])}")

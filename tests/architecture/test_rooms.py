"""The tree does not grow unnoticed: every room keeps its numbers, and a higher one names what was deleted for it."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from tests.architecture.rooms import Rise, Room, as_markdown, flow_limits, rises_of, table, turning_points
from tests.architecture.tree import ROOT, modules

ROOMS, RISES, ALLOWANCES = table()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
SLACK = 60
"""Lines of code that a room may be below its number before the number must be lowered, too."""


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_room_keeps_its_numbers(room: Room) -> None:
    files, lines = room.size
    assert files <= room.files[-1], f"{room.name} has {files} files; rooms.toml allows {room.files[-1]}"
    assert lines <= room.lines[-1], f"{room.name} has {lines} lines of code; rooms.toml allows {room.lines[-1]}"
    lowered = "python -m tests.architecture.rooms --lower"
    assert room.lines[-1] - lines <= SLACK, (
        f"{room.name} became smaller by {room.lines[-1] - lines} lines; run {lowered}"
    )
    assert room.files[-1] == files, f"{room.name} became smaller by {room.files[-1] - files} files; run {lowered}"


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_higher_number_has_its_reason(room: Room) -> None:
    explained = sum(rise.lines for rise in RISES if rise.room == room.name)
    assert rises_of(room.lines) <= explained, f"{room.name}: add a [[rises]] entry for the new lines"
    assert rises_of(room.files) == 0 or explained, f"{room.name}: add a [[rises]] entry for the new files"


@pytest.mark.parametrize("rise", RISES, ids=lambda rise: f"{rise.room}-{rise.lines}")
def test_a_rise_names_what_was_deleted_for_it(rise: Rise) -> None:
    assert rise.room in {room.name for room in ROOMS}
    assert rise.allowance in ALLOWANCES or 2 * rise.deleted >= rise.lines
    assert rise.changelog in CHANGELOG, "CHANGELOG.md has no such line"


def test_a_history_keeps_its_turning_points() -> None:
    assert turning_points([9, 8, 8, 5, 6, 7, 7, 4]) == [9, 5, 7, 4]
    for seed in range(200):
        numbers = random.Random(seed).choices((1, 2, 3, 4), k=seed % 12 + 1)
        kept = turning_points(numbers)
        steps = [after - before for before, after in pairwise(kept)]
        assert (kept[0], kept[-1], rises_of(tuple(kept))) == (numbers[0], numbers[-1], rises_of(tuple(numbers)))
        assert all(first * second < 0 for first, second in pairwise(steps))


def test_allowances_are_kept() -> None:
    used: Counter[str] = Counter()
    for rise in RISES:
        if rise.allowance:
            used[rise.allowance] += rise.lines
    assert not {name: lines for name, lines in used.items() if lines > ALLOWANCES[name]}


def test_every_module_is_in_one_room() -> None:
    inside: Counter[Path] = Counter(module.path for room in ROOMS for module in room.modules)
    assert not [module.name for module in modules() if inside[module.path] != 1]


def test_the_page_has_the_table() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert as_markdown() in page, "write it by python -m tests.architecture.rooms --lower"


@pytest.mark.slow
def test_commands_run_through_few_files() -> None:
    """In a new process, because functions that are called during an import count as well."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.architecture.flows"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [f"{command}: {files} files" for command, files in flow_limits().items()]

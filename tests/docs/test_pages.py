"""Pages that one can walk: each in the navigation, short, narrow, with a beginning and a way on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_LEFT_OUT = ("examples/plugin/", "experiments/privfair_experiments/")
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if not path.name.endswith("-template.md") and not path.relative_to(DOCS).as_posix().startswith(_LEFT_OUT)
)
MADE = ("benchmarks.md", "evidence.md", "experiments/", "theorems/")
"""Proofs, and pages whose tables a program writes: they may be longer and wider."""
WRITTEN = [path for path in PAGES if not path.relative_to(DOCS).as_posix().startswith(MADE)]
GENERATED_TABLES = ("architecture.md",)
_LONGEST, _WIDEST = 200, 100


def _name(path: Path) -> str:
    return path.relative_to(DOCS).as_posix()


def _outside_tables(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("|")]


def test_every_page_is_in_the_navigation_once() -> None:
    named = re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2])
    made_for_the_site = {"reference/cli.md", "reference/plan-keys.md", "reference/errors.md"}
    assert sorted(set(named) - made_for_the_site) == sorted(map(_name, PAGES))
    assert len(named) == len(set(named))
    assert len(named) <= 68


@pytest.mark.parametrize("page", WRITTEN, ids=_name)
def test_a_page_is_short_and_narrow(page: Path) -> None:
    lines = _outside_tables(page) if _name(page) in GENERATED_TABLES else page.read_text("utf-8").splitlines()
    assert len(lines) <= _LONGEST, f"{_name(page)} has {len(lines)} lines; split it or say less"
    wide = [line for line in _outside_tables(page) if len(line) > _WIDEST and not line.startswith("<!--")]
    assert not wide, f"{_name(page)}: {wide[0]!r} has more than {_WIDEST} columns"


@pytest.mark.parametrize("page", WRITTEN, ids=_name)
def test_a_page_begins_with_whom_it_is_for_and_ends_with_what_comes_next(page: Path) -> None:
    title, *paragraphs = [one for one in page.read_text(encoding="utf-8").split("\n\n") if one.strip()]
    assert title.startswith("# ")
    assert re.search(r"\bFor\b", paragraphs[0]), f"{_name(page)}: the first paragraph does not say for whom"
    assert paragraphs[-1].startswith("Next: ["), f"{_name(page)} does not end with `Next: [..](..)`"


def test_every_page_that_a_file_names_exists() -> None:
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    gone = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix not in (".py", ".toml", ".md", ".j2", ".yml", ".cff") or not path.is_file():
            continue
        for page in re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
            if not (ROOT / page).is_file():
                gone.append(f"{name}: {page}")
    assert not gone

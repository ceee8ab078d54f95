"""The reproduction matrix: every table and figure of the papers is there, and every row says enough."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

from privfair_experiments import PAGES, matrix
from privfair_experiments.__main__ import RUNNERS

PRINTED = {
    "SteFFLe": {"Figure": range(1, 6)},
    "FedFDP": {"Table": ("I", "II", "III", "IV", "V", "VI"), "Figure": range(1, 6)},
    "FPFL": {"Table": range(1, 4), "Figure": range(1, 2)},
    "MMD-fair FedAvg": {"Table": range(1, 2), "Figure": range(1, 10)},
}
"""Counted in the papers themselves."""
ROWS = {("FedFDP", "Table II"): 6, ("FedFDP", "Table III"): 6, ("FedFDP", "Table IV"): 7, ("FedFDP", "Table V"): 7} | {
    ("FedFDP", "Table VI"): 7,
    ("FPFL", "Table 1, short version"): 6,
    ("FPFL", "Table 1"): 4,
    ("FPFL", "Table 2"): 16,
    ("FPFL", "Table 3"): 10,
}


def test_every_table_and_figure_of_the_papers_is_named() -> None:
    named = {(entry.paper, entry.item) for entry in matrix.load_entries()}
    for paper, kinds in PRINTED.items():
        wanted = {(paper, f"{kind} {number}") for kind, numbers in kinds.items() for number in numbers}
        assert wanted <= named
    assert named == {(paper, item) for paper, items in matrix.ITEMS.items() for item in items}


def test_every_row_of_the_tables_is_there_once() -> None:
    entries = matrix.load_entries()
    for (paper, item), rows in ROWS.items():
        found = [entry.row for entry in entries if (entry.paper, entry.item) == (paper, item)]
        assert len(found) == len(set(found)) == rows, item


def test_every_outcome_is_backed() -> None:
    """What was measured names its page; what was not run says why, and what it would take."""
    costs = matrix.seconds_per_run()
    for entry in matrix.load_entries():
        assert entry.outcome in matrix.OUTCOMES
        assert entry.words
        if entry.outcome in ("reproduced", "refuted", "partly"):
            assert (PAGES / f"{entry.page}.md").is_file(), entry
        if entry.outcome == "not run":
            assert entry.runs > 0
        assert not entry.runs or costs[entry.kind] > 0


def test_the_page_is_what_the_script_writes(tmp_path: Path) -> None:
    matrix.main(["--out", str(tmp_path)])
    assert (tmp_path / "matrix.md").read_text() == (PAGES / "matrix.md").read_text()


def test_every_page_has_a_command_and_every_command_a_page() -> None:
    told = (PAGES / "README.md").read_text("utf-8")
    listed = dict(re.findall(r"^\| \[[\w-]+\]\(([\w-]+)\.md\) \| `([\w-]+)` \|", told, re.MULTILINE))
    pages = {path.stem for path in PAGES.glob("*.md")} - {"README"}
    assert set(listed) == {page for page in pages if not page.endswith("-template")}
    assert {*listed.values(), "headlines"} == set(RUNNERS)
    for module in RUNNERS.values():
        assert callable(import_module(f"privfair_experiments.{module}").main), module

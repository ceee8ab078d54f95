"""Every code block of the docs runs as copied, or says why it does not (README: tests/end_to_end/test_readme.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from calibrate.manifest.keys import Role, generate, save
from tests.docs.blocks import ROOT, blocks, commands, pages, run_page
from tests.privfair.small_runs import GAUSSIAN, Desk

RUN_AS_COPIED = (
    "audit-probes.md",
    "audit.md",
    "data.md",
    "explanation/accounting.md",
    "explanation/printed-epsilon.md",
    "how-to/python.md",
    "manifest.md",
    "models.md",
    "reference/exit-codes.md",
    "sensitivity.md",
    "training.md",
    "tutorials/audit-opacus.md",
    "tutorials/check-a-theorem.md",
    "tutorials/own-csv.md",
    "tutorials/sign-and-spend.md",
    "tutorials/three-guards.md",
)
"""Every page that has blocks to run; add yours, so that it stays true."""


def _files(folder: Path) -> None:
    """Three hospitals' files, their schema and a plan."""
    desk = Desk.at(folder, GAUSSIAN.format(rate=0.2, rounds=5, more=""))
    for path in (desk.key, desk.key.with_name("officer.pem.pub"), desk.trust, desk.ledger):
        path.unlink()
    (folder / "ledger.db.anchor").unlink()


def _keys(folder: Path) -> None:
    """The same, with an officer's key, the trust file and a ledger."""
    Desk.at(folder, GAUSSIAN.format(rate=0.2, rounds=5, more=""))


def _signed(folder: Path) -> None:
    """The same, with a signed budget, and an earlier one."""
    desk = Desk.at(folder, GAUSSIAN.format(rate=0.2, rounds=5, more=""))
    desk.budget()
    desk.budget("last.json")


def _trained(folder: Path) -> None:
    """The same after training, with an auditor's key."""
    desk = Desk.at(folder, GAUSSIAN.format(rate=0.2, rounds=5, more=""))
    desk.train(desk.budget())
    save(generate(), Role.AUDITOR, folder / "another.pem")


WORLDS = {"files": _files, "keys": _keys, "signed": _signed, "trained": _trained}


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_runnable_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        if block.left_out:
            assert len(block.said) > len("not run: ") + 5, f"{block.where}: give the reason"
        elif block.kind == "python":
            if ">>> " not in block.body:
                compile(block.body, block.where, "exec")
        elif str(page.relative_to(ROOT / "docs" if "docs" in page.parts else ROOT)) in RUN_AS_COPIED:
            known = ("privfair", "mkdir", "cat")
            wrong = [line for line in commands(block.body) if line.split()[0] not in known]
            assert not wrong, f"{block.where}: say `<!-- not run: why -->` before {wrong[0]!r}"
        assert (block.directive("given") or "files") in WORLDS, block.where


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN_AS_COPIED)
def test_the_blocks_run_as_copied(page: str, tmp_path: Path) -> None:
    run_page(ROOT / "docs" / page, tmp_path, WORLDS)


def test_the_reference_of_the_command_line_has_every_command() -> None:
    """The page is made when the site is built; here it is made without a site."""
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install 'privfair[docs]')")
    from importlib.util import module_from_spec, spec_from_file_location

    from privfair.cli import _COMMANDS

    spec = spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = hooks.command_reference()
    assert all(f"## privfair {name}\n" in page for name in _COMMANDS)
    assert "### privfair ledger init" in page

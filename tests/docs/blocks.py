"""The code blocks of the documentation, and how to run them as a reader would: in a folder, one after the other.

A block is run unless the line before it says why not:

    <!-- not run: needs a second machine -->      the block is left out
    <!-- exit: 3 -->                              its last command ends with this code
    <!-- given: signed -->                        the folder is prepared first, by that name in `WORLDS`
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.command_line import privfair

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"^(?:<!-- (?P<said>[^\n]*?) -->\n)?```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_COMMAND = re.compile(r"^(?:\$ )?(?:privfair|make|pip|python|npm|docker|git|export) ", re.MULTILINE)
SHELL = ("sh", "bash", "console")


@dataclass(frozen=True)
class Block:
    """One block of a page: `kind` is what it is written in, `said` the directive before it."""

    page: Path
    line: int
    kind: str
    body: str
    said: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def left_out(self) -> bool:
        return self.said.startswith("not run: ")

    def directive(self, name: str) -> str | None:
        return self.said.removeprefix(f"{name}: ") if self.said.startswith(f"{name}: ") else None


def pages() -> list[Path]:
    """Every page that a reader may copy from; README has a test of its own, which also compares what is printed."""
    found = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if not page.name.endswith("-template.md")]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are code: shell and Python, and whatever looks like commands."""
    text, found = page.read_text("utf-8"), []
    for match in _FENCE.finditer(text):
        kind, body = match["kind"].strip(), match["body"]
        if not kind and _COMMAND.search(body):
            kind = "sh"
        if kind in (*SHELL, "python"):
            line = text.count("\n", 0, match.start("kind")) + 1
            found.append(Block(page, line, kind, body, match["said"] or ""))
    return found


def commands(body: str) -> list[str]:
    """The commands of a shell block: continued lines joined, comments and shown output left out."""
    lines = re.sub(r"\\\n\s*", " ", body).splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in (one.strip() for one in lines) if line and not line.startswith("#")]


def run_page(page: Path, folder: Path, worlds: dict[str, Callable[[Path], None]]) -> None:
    """Run the blocks of a page in a folder, in order, with one Python namespace; raises on the first that fails."""
    names: dict[str, object] = {"__name__": "__main__"}
    with contextlib.chdir(folder):
        for block in blocks(page):
            world = block.directive("given")
            if world is not None:
                _empty(folder)
                worlds[world](folder)
            if block.left_out:
                continue
            if block.kind == "python":
                _run_python(block, names)
            else:
                _run_shell(block)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _run_python(block: Block, names: dict[str, object]) -> None:
    if ">>> " in block.body:
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        said = io.StringIO()
        example = doctest.DocTestParser().get_doctest(block.body, names, block.where, str(block.page), block.line)
        runner.run(example, out=said.write, clear_globs=False)
        names.update(example.globs)
        assert not runner.failures, f"{block.where}: {said.getvalue()}"
        return
    code = compile("\n" * block.line + block.body, str(block.page), "exec")
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, names)  # our own pages, as a reader copies them


def _run_shell(block: Block) -> None:
    wanted, lines = int(block.directive("exit") or 0), commands(block.body)
    for number, line in enumerate(lines):
        words = shlex.split(line, comments=True)
        if words[0] == "mkdir":
            os.makedirs(words[-1], exist_ok=True)
            continue
        if words[0] == "cat":
            Path(words[1]).read_text("utf-8")
            continue
        assert words[0] == "privfair", (
            f"{block.where}: `{words[0]}` is not run here; say `<!-- not run: why -->` before it"
        )
        done = privfair(*words[1:])
        expected = wanted if number == len(lines) - 1 else 0
        assert done.code == expected, f"{block.where}: `{line}` ended with {done.code}: {done.err}"

"""The code blocks of the documentation, and how to run them as a reader would: in a folder, one after the other.

A block is run unless a line before it says why not; lines before it say what else is special about it:

    <!-- not run: needs a second machine -->      the block is left out
    <!-- exit: 3 -->                              its last command ends with this code
    <!-- given: signed -->                        the folder is prepared first, by that name in `WORLDS`, which may
                                                  also bring names that the page leaves to the reader
    <!-- file: my_code.py -->                     the block is also saved under this name
    <!-- serves: ready -->                        its commands print this and go on; they are stopped after the page
    <!-- in tests: runs=40 is runs=2 -->          the first text is replaced by the second, to take less time
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.end_to_end.command_line import privfair
from tests.planted_bugs.fixed_randomness import fixed_randomness

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(
    r"^(?P<said>(?:<!-- [^\n]*? -->\n)*)```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_COMMAND = re.compile(r"^(?:\$ )?(?:privfair|make|pip|python|npm|docker|git|export) ", re.MULTILINE)
SHELL = ("sh", "bash", "console")


@dataclass(frozen=True)
class Block:
    """One block of a page: `kind` is what it is written in, `said` are the directives before it."""

    page: Path
    line: int
    kind: str
    body: str
    said: tuple[tuple[str, str], ...]

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def left_out(self) -> bool:
        return self.directive("not run") is not None

    def directive(self, name: str) -> str | None:
        return dict(self.said).get(name)

    @property
    def quick(self) -> Block:
        """The block as it is tested."""
        body = self.body
        for name, value in self.said:
            if name == "in tests":
                first, second = value.split(" is ")
                assert first in body, f"{self.where}: {first!r} is not in the block"
                body = body.replace(first, second)
        return replace(self, body=body)


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
            said = [re.fullmatch(r"<!-- ([a-z ]+): (.*) -->", one) for one in match["said"].splitlines()]
            found.append(Block(page, line, kind, body, tuple((one[1], one[2]) for one in said if one is not None)))
    return found


def commands(body: str) -> list[str]:
    """The commands of a shell block: continued lines joined, comments and shown output left out."""
    lines = re.sub(r"\\\n\s*", " ", body).splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in (one.strip() for one in lines) if line and not line.startswith("#")]


World = Callable[[Path], Mapping[str, object] | None]


def run_page(page: Path, folder: Path, worlds: dict[str, World]) -> None:
    """Run the blocks of a page in a folder, in order, with one Python namespace; raises on the first that fails."""
    names: dict[str, object] = {"__name__": "__main__"}
    with contextlib.chdir(folder), contextlib.ExitStack() as served:
        served.callback(_forget, folder, list(sys.path))
        for block in (one.quick for one in blocks(page)):
            world, file, awaited = (block.directive(name) for name in ("given", "file", "serves"))
            if world is not None:
                _empty(folder)
                names |= worlds[world](folder) or {}
            if block.left_out:
                continue
            if file is not None:
                (folder / file).write_text(block.body, encoding="utf-8")
            if block.kind == "python":
                _run_python(block, names)
            elif awaited is not None:
                for line in commands(block.body):
                    served.enter_context(_serving(block, shlex.split(line, comments=True), awaited))
            else:
                _run_shell(block, names)


@contextlib.contextmanager
def _serving(block: Block, words: list[str], awaited: str) -> Iterator[None]:
    """A command that serves until it is stopped; it is ready when a line of its output has the awaited text."""
    assert words[0] == "privfair", block.where
    code = "import sys; from privfair.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    serving = subprocess.Popen(
        [sys.executable, "-c", code, *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )
    try:
        assert serving.stdout is not None
        said = ""
        for line in serving.stdout:
            said += line.decode()
            if awaited in said:
                break
        assert awaited in said, f"{block.where}: `{shlex.join(words)}` ended: {said}"
        yield
        assert serving.poll() is None, f"{block.where}: it did not go on serving"
    finally:
        serving.terminate()
        serving.wait()


def _forget(folder: Path, path: list[str]) -> None:
    """Modules that the page saved here are not those of the next page."""
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]


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


def _run_shell(block: Block, names: Mapping[str, object]) -> None:
    """Words that are a name which the world brought, such as ID, stand for its value."""
    wanted, lines = int(block.directive("exit") or 0), commands(block.body)
    for number, line in enumerate(lines):
        words = [str(names.get(word, word)) if word.isupper() else word for word in shlex.split(line, comments=True)]
        if words[0] == "mkdir":
            os.makedirs(words[-1], exist_ok=True)
            continue
        if words[0] == "cat":
            Path(words[1]).read_text("utf-8")
            continue
        assert words[0] == "privfair", (
            f"{block.where}: `{words[0]}` is not run here; say `<!-- not run: why -->` before it"
        )
        with fixed_randomness(number):  # an audit calls one honest run in a thousand violated, and then ends with 1
            done = privfair(*words[1:])
        expected = wanted if number == len(lines) - 1 else 0
        assert done.code == expected, f"{block.where}: `{line}` ended with {done.code}: {done.err}"

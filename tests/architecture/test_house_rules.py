"""The rules of the house that no tool knows; `make lint` runs those that tools know (ruff, mypy, import contracts)."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import privfair
from tests.architecture.tree import ROOT, Module, modules

MOST_LINES_PER_FILE = 600
MOST_MODULES_AT_THE_ROOT = 8

RANDOMNESS = {"privfair.noise.lattice_sampler": "the noise", "privfair.batches.randomness": "the batches"}
"""The only modules that ask the operating system for random bytes that decide a result (tests/conftest.py)."""


def test_help_imports_nothing_heavy() -> None:
    """`privfair --help` must answer at once, so nothing heavy may be loaded before a command needs it."""
    heavy = ("numpy", "scipy", "torch", "dp_accounting", "prv_accountant", "matplotlib", "pandas", "rich", "pydantic")
    code = (
        "import sys; from privfair.cli import cli; cli.main(['--help'], standalone_mode=False); "
        f"print('LOADED', [m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Usage" in done.stdout
    assert "LOADED []" in done.stdout


def test_no_file_is_longer_than_600_lines() -> None:
    tests = [Module(path) for path in sorted((ROOT / "tests").rglob("*.py"))]
    long = [m.name for m in (*modules(), *tests) if len(m.text.splitlines()) > MOST_LINES_PER_FILE]
    assert not long, "split these files: " + ", ".join(long)


def test_the_root_of_privfair_has_at_most_eight_modules() -> None:
    at_the_root = [m.name for m in modules() if m.path.parent == ROOT / "privfair" and m.path.name != "__init__.py"]
    assert len(at_the_root) <= MOST_MODULES_AT_THE_ROOT, "find a folder for one of: " + ", ".join(at_the_root)


TWO_MEANINGS = {
    "Plan": "what is priced in calibrate, and what is trained in Python: each is its package's word",
    "Rounds": "a release in calibrate, and a section of a run's record",
}
"""Names that two classes share nevertheless, with the reason."""


def test_one_name_for_one_type() -> None:
    places: dict[str, list[str]] = {}
    for module in modules():
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in TWO_MEANINGS:
                places.setdefault(node.name, []).append(module.name)
    twice = [f"{name} ({', '.join(found)})" for name, found in places.items() if len(found) > 1]
    assert not twice, "rename one of: " + "; ".join(twice)


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def test_nothing_hides_the_builtin_round() -> None:
    hidden = [
        f"{module.name}:{getattr(node, 'lineno', node.target.lineno if isinstance(node, ast.comprehension) else 0)}"
        for module in modules()
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.arg) and node.arg == "round")
        or (isinstance(node, (ast.For, ast.comprehension)) and "round" in _names(node.target))
        or (isinstance(node, ast.Assign) and "round" in {name for target in node.targets for name in _names(target)})
    ]
    assert not hidden, "say round_number or step: " + ", ".join(hidden)


def test_public_functions_say_what_they_do() -> None:
    silent = [
        f"{module.name}:{node.name}"
        for module in modules()
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and ast.get_docstring(node) is None
    ]
    assert not silent, "write a docstring: " + ", ".join(silent)


def test_what_python_offers_documents_its_arguments() -> None:
    undocumented = []
    for name in privfair.__all__:
        offered = getattr(privfair, name)
        inside = vars(offered) if inspect.isclass(offered) else {}
        methods = {f"{name}.{key}": value for key, value in inside.items() if not key.startswith("_")}
        for where, found in (methods if inspect.isclass(offered) else {name: offered}).items():
            function = getattr(found, "__func__", found)
            if inspect.isfunction(function):
                text = inspect.getdoc(function) or ""
                given = [one for one in inspect.signature(function).parameters if one not in ("self", "cls")]
                undocumented += [f"{where}({one})" for one in given if not re.search(rf"\b{one}\b", text)]
    assert not undocumented, "say what it is: " + ", ".join(undocumented)


_PER = r"record|round|silo|user|client|row|file|step|epoch|algorithm|rule|command|party|person|batch|class|group|set"
DIALECT = {
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bfor ever\b": "forever",
    r"\bis no (file|folder|number|model|plan)\b": "is not a",
    rf"\b(once|twice|times|one \w+|two \w+) an? ({_PER})\b(?!')": "per",
    r"\b[Mm]ake that there\b": "make sure",
}


@pytest.mark.parametrize(("dialect", "plain"), DIALECT.items(), ids=DIALECT.values())
def test_plain_english(dialect: str, plain: str) -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(module.path for module in modules())]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted(pages)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(dialect, line)
    ]
    assert not found, f"say {plain!r}: " + ", ".join(found)


def test_make_help_lists_every_target() -> None:
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", rules, re.MULTILINE)
    told = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    listed = [name for line in told.splitlines() for name in line.split(":")[0].split(", ")]
    assert phony
    assert sorted(listed) == sorted(phony[1].split())


def test_hooks_before_a_commit_are_local_and_exist() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    rules = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert repository["repo"] == "local"
    assert [hook["id"] for hook in repository["hooks"]] == ["ruff", "ruff-format", "house-rules"]
    for hook in repository["hooks"]:
        program, first, *_ = hook["entry"].split()
        assert f"\n{first}:" in rules if program == "make" else f"$(BIN)/{Path(program).name} {first}" in rules


def test_benchmarks_are_a_program_and_no_tests() -> None:
    folder = ROOT / "tests" / "benchmarks"
    others = [path for path in (ROOT / "tests").rglob("*.py") if folder not in path.parents]
    using = [path.name for path in others if re.search(r"(import|from) tests\.benchmarks", path.read_text())]
    assert not using
    assert not list(folder.rglob("test_*.py"))


def test_randomness_has_two_doors() -> None:
    """The suite draws the same noise in every run because it stands in for these two; a third would fail by chance."""
    asking = [
        module.name
        for module in modules()
        if module.name not in RANDOMNESS
        and re.search(r"urandom|SystemRandom|getrandom|default_rng\(\)|randbits", module.text)
    ]
    assert not asking, "draw from the two sources that tests can fix: " + ", ".join(asking)


def _asks_a_ledger(node: ast.AST) -> str | None:
    """`claim` or `resume` where the call is a ledger's: `Class.resume(..)` opens a file, `.resume()` a run's folder."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
        return None
    of_a_class = isinstance(node.func.value, ast.Name) and node.func.value.id[:1].isupper()
    return node.func.attr if node.func.attr in ("claim", "resume") and not of_a_class else None


def test_one_place_claims() -> None:
    """Signed budgets are spent through `OpenRun` alone, which claims in one line and resumes in another.

    What another tool declares, without a signature, is claimed in privfair/api/charge.py.
    """
    experiments = [Module(path) for path in sorted((ROOT / "docs" / "experiments").rglob("*.py"))]
    found = [
        f"{module.path.relative_to(ROOT)}: {asked}"
        for module in (*modules(), *experiments)
        for asked in map(_asks_a_ledger, ast.walk(module.tree))
        if asked is not None
    ]
    assert sorted(found) == [
        "privfair/api/charge.py: claim",
        "privfair/run/open_run.py: claim",
        "privfair/run/open_run.py: resume",
    ]

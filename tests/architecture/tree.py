"""The source tree as the rules of the house look at it: modules and their lines of code.

    python -m tests.architecture.tree

prints files and lines of code per folder (without blank lines, comments and docstrings).
"""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("calibrate", "privfair", "audit")


@dataclass(frozen=True)
class Module:
    path: Path

    @property
    def name(self) -> str:
        """As it is imported, `privfair.ledger.book`; a package by its folder."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def code_lines(self) -> int:
        """Lines that hold code: no blank lines, comments or docstrings."""
        strings: set[int] = set()
        for node in ast.walk(self.tree):
            value = node.value if isinstance(node, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                strings.update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
        numbered = enumerate(map(str.strip, self.text.splitlines()), start=1)
        return len({number for number, line in numbered if line and not line.startswith("#")} - strings)


@cache
def modules() -> tuple[Module, ...]:
    """Every module of the three packages."""
    return tuple(Module(path) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))


def main() -> None:
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for module in modules():
        folder = "/".join(module.path.relative_to(ROOT).parts[:-1][:2])
        files[folder] += 1
        lines[folder] += module.code_lines
    for folder in sorted(files):
        print(f"{folder}: {files[folder]} files, {lines[folder]} lines of code")
    print(f"together: {files.total()} files, {lines.total()} lines of code")


if __name__ == "__main__":
    main()

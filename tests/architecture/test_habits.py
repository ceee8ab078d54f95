"""Three habits that make code harder to read may become rarer, never more frequent; lower a number when it fell."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from tests.architecture.tree import modules

MOST_POSITIONAL_ARGUMENTS = 7


def _imports_in_functions(tree: ast.Module) -> Iterator[ast.AST]:
    """Each once, however deeply its function is nested; right where what is imported is heavy or optional."""
    functions = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    inside = {node for function in functions for node in ast.walk(function)}
    return (node for node in inside if isinstance(node, (ast.Import, ast.ImportFrom)))


def _untyped_dictionaries(tree: ast.Module) -> Iterator[ast.AST]:
    subscripts = (node for node in ast.walk(tree) if isinstance(node, ast.Subscript))
    return (node for node in subscripts if ast.unparse(node) == "dict[str, Any]")


def _long_calls(tree: ast.Module) -> Iterator[ast.AST]:
    """Calls whose arguments can only be told apart by counting; a starred one counts once."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return (node for node in calls if len(node.args) > MOST_POSITIONAL_ARGUMENTS)


HABITS: dict[str, tuple[Callable[[ast.Module], Iterator[ast.AST]], int]] = {
    "imports inside functions": (_imports_in_functions, 78),
    "dict[str, Any]": (_untyped_dictionaries, 24),
    "calls with more than 7 positional arguments": (_long_calls, 0),
}
"""What is counted in the three packages, and the most that there may be."""


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_becomes_no_more_frequent(habit: str) -> None:
    find, most = HABITS[habit]
    found = [f"{module.name}:{getattr(node, 'lineno', 0)}" for module in modules() for node in find(module.tree)]
    assert len(found) <= most, f"{len(found)} {habit}, {most} are allowed: " + ", ".join(found)


def test_the_counters_count() -> None:
    code = """
import a
def outer(x: dict[str, Any]) -> dict[str, int]:
    import b
    def inner():
        from c import d
    f(1, 2, 3, 4, 5, 6, 7, 8)
    f(1, 2, 3, 4, 5, 6, *x, y=8, z=9)
"""
    assert [len(list(find(ast.parse(code)))) for find, _ in HABITS.values()] == [2, 1, 1]

"""For pytest: the fixture `privfair_sensitivity` is `assert_sensitivity`, and the summary lists what it found.

Every pytest run loads this file, also in projects that have a package `audit` of their own: nothing but pytest is
imported until the fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from audit.sensitivity.falsify import SearchResult

_FOUND = pytest.StashKey[list[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start with nothing found."""
    config.stash[_FOUND] = []


@pytest.fixture
def privfair_sensitivity(request: pytest.FixtureRequest) -> Callable[..., SearchResult]:
    """`privfair_sensitivity(function, claim, domain, ...)`: as `assert_sensitivity`, and noted for the summary."""
    try:
        from audit.sensitivity.falsify import SensitivityRefuted, assert_sensitivity
    except ImportError as error:
        pytest.fail(
            f"privfair_sensitivity needs privfair's package audit with its extra train ({error}); install"
            " privfair[train], and keep packages of your own named audit off the path",
            pytrace=False,
        )

    def check(*arguments: Any, **named: Any) -> SearchResult:
        try:
            result = assert_sensitivity(*arguments, **named)
        except SensitivityRefuted as refuted:
            _note(request, refuted.result)
            raise
        _note(request, result)
        return result

    return check


def _note(request: pytest.FixtureRequest, result: SearchResult) -> None:
    line = f"{result.verdict}, best ratio found {result.ratio:.4g} ({result.effort.evaluations} pairs)"
    request.config.stash[_FOUND].append((request.node.nodeid, line))
    request.node.user_properties.append(("privfair_sensitivity_ratio", result.ratio))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line per claim that was put to the test."""
    found = config.stash.get(_FOUND, [])
    if found:
        terminalreporter.section("sensitivity claims")
        for test, line in found:
            terminalreporter.write_line(f"{test}: {line}")

"""For pytest: the fixtures `privfair_sensitivity` and `privfair_dp`, and a summary of what they found.

Every pytest run loads this file, also in projects that have another package `audit`: nothing but pytest is
imported until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from audit.claims.assert_dp import MechanismResult
    from audit.claims.falsify import SearchResult

_FOUND = pytest.StashKey[list[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    """Start with nothing found."""
    config.stash[_FOUND] = []


@pytest.fixture
def privfair_sensitivity(request: pytest.FixtureRequest) -> Callable[..., SearchResult]:
    """`privfair_sensitivity(function, claim, domain, ...)`: as `assert_sensitivity`, and noted for the summary."""
    try:
        from audit.claims.falsify import SensitivityRefuted, assert_sensitivity
    except ImportError as error:
        _refuse("privfair_sensitivity", error)

    def note(result: SearchResult) -> None:
        line = f"{result.verdict}, best ratio found {result.ratio:.4g} ({result.effort.evaluations} pairs)"
        _note(request, line, "privfair_sensitivity_ratio", result.ratio)

    def check(*arguments: Any, **named: Any) -> SearchResult:
        try:
            result = assert_sensitivity(*arguments, **named)
        except SensitivityRefuted as refuted:
            note(refuted.result)
            raise
        note(result)
        return result

    return check


@pytest.fixture
def privfair_dp(request: pytest.FixtureRequest) -> Callable[..., MechanismResult]:
    """`privfair_dp(mechanism, epsilon, delta, domain, ...)`: as `assert_dp`, and noted for the summary."""
    try:
        from audit.claims.assert_dp import PrivacyRefuted, assert_dp
    except ImportError as error:
        _refuse("privfair_dp", error)

    def note(result: MechanismResult) -> None:
        found, claimed = result.bound.epsilon, result.epsilon
        line = f"{result.verdict}, epsilon at least {found:.4g}, claimed {claimed:g} ({result.effort.calls} runs)"
        _note(request, line, "privfair_epsilon_lower", found)

    def check(*arguments: Any, **named: Any) -> MechanismResult:
        try:
            result = assert_dp(*arguments, **named)
        except PrivacyRefuted as refuted:
            note(refuted.result)
            raise
        note(result)
        return result

    return check


def _refuse(fixture: str, error: ImportError) -> NoReturn:
    pytest.fail(
        f"{fixture} needs privfair's package audit with its extra train ({error}); install privfair[train], and keep"
        " your packages named audit off the path",
        pytrace=False,
    )


def _note(request: pytest.FixtureRequest, line: str, name: str, value: float) -> None:
    request.config.stash[_FOUND].append((request.node.nodeid, line))
    request.node.user_properties.append((name, value))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line per claim that was put to the test."""
    found = config.stash.get(_FOUND, [])
    if found:
        terminalreporter.section("privacy claims")
        for test, line in found:
            terminalreporter.write_line(f"{test}: {line}")

"""For pytest: the fixture `privfair_sensitivity` is `assert_sensitivity`, and the summary lists what it found.

Loaded by every pytest run, so it imports nothing heavy until the fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

_FINDINGS = pytest.StashKey[list[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FINDINGS] = []


@pytest.fixture
def privfair_sensitivity(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`privfair_sensitivity(function, claim, domain, ...)`: as `assert_sensitivity`, and noted for the summary."""
    from audit.sensitivity.assert_sensitivity import SensitivityRefuted, assert_sensitivity

    def check(*arguments: Any, **named: Any) -> Any:
        try:
            finding = assert_sensitivity(*arguments, **named)
        except SensitivityRefuted as refuted:
            _note(request, refuted.finding)
            raise
        _note(request, finding)
        return finding

    return check


def _note(request: pytest.FixtureRequest, finding: Any) -> None:
    line = f"{finding.word.value}, best ratio found {finding.ratio:.4g} ({finding.effort.evaluations} pairs)"
    request.config.stash[_FINDINGS].append((request.node.nodeid, line))
    request.node.user_properties.append(("privfair_sensitivity_ratio", finding.ratio))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    findings = config.stash.get(_FINDINGS, [])
    if findings:
        terminalreporter.section("sensitivity claims")
        for test, line in findings:
            terminalreporter.write_line(f"{test}: {line}")

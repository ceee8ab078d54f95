"""Who asks for no effort gets the same audit everywhere: command line, `run`, `demo`, Python and the estimator."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import audit.runs.run_audit
import privfair as pf
from audit.settings import CONFIDENCE, DEFAULTS, DEMO_SECONDS, AuditOptions
from calibrate.errors import CheckFailed
from privfair.cli import demo
from privfair.integrations.sklearn import PrivateFairClassifier
from tests.end_to_end.command_line import privfair
from tests.privfair.small_runs import steffle_plan, write_silos


class _Asked:
    """In place of the audit of a run: keeps what was asked for, and leaves."""

    options: AuditOptions

    def __call__(self, _: Path, options: AuditOptions, *rest: object, **more: object) -> None:
        self.options = options
        raise CheckFailed("asked")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> _Asked:
    found = _Asked()
    monkeypatch.setattr(audit.runs.run_audit, "audit_run", found)
    return found


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A small plan that names its files by absolute paths, so that it may be copied anywhere."""
    write_silos(tmp_path)
    text = re.sub(r'"(\w+\.(?:csv|toml))"', lambda name: f'"{tmp_path / name[1]}"', steffle_plan(3))
    (tmp_path / "plan.toml").write_text(text, encoding="utf-8")
    return tmp_path / "plan.toml"


def test_the_command_line_run_and_demo_ask_for_the_same(
    asked: _Asked, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "asked" in privfair("run", plan, "--out", tmp_path / "trial").err
    assert asked.options == DEFAULTS
    del asked.options
    assert "asked" in privfair("audit", tmp_path / "trial" / "run").err
    assert asked.options == DEFAULTS
    monkeypatch.setitem(demo.PLANS, "steffle", plan.read_text("utf-8"))
    assert "asked" in privfair("demo", "--out", tmp_path / "demo").err
    assert asked.options == AuditOptions(budget_seconds=DEMO_SECONDS)


def test_python_and_the_estimator_ask_for_the_same(asked: _Asked) -> None:
    random = np.random.default_rng(0)
    x, group = random.uniform(-1, 1, size=(80, 2)), random.choice(["f", "m"], 80)
    public = {"classes": ["no", "yes"], "groups": ["f", "m"], "bounds": (-1, 1)}
    estimator = PrivateFairClassifier(protect="attribute", rounds=2, **public)
    with pytest.warns(pf.SelfSigned):
        estimator.fit(x, np.where(x[:, 0] > 0, "yes", "no"), sensitive_features=group)
    assert estimator.model_ is not None
    for audited in (estimator.audit, estimator.model_.audit, lambda: pf.audit_run(estimator.model_.folder)):
        with pytest.raises(CheckFailed, match="asked"):
            audited()
        assert asked.options == DEFAULTS
        del asked.options


def test_what_costs_its_whole_promise_is_asked_for_more_confidence() -> None:
    assert DEFAULTS.confidence_for("steffle") == CONFIDENCE
    assert DEFAULTS.confidence_for("pay-once") == 0.999
    assert AuditOptions(confidence=0.9).confidence_for("pay-once") == 0.9
    assert AuditOptions.of() == DEFAULTS
    assert AuditOptions.of(0, 1, 0.9, 0.0) == AuditOptions(0, 1, 0.9, 0.0)

"""What an officer reads on the report: whom it protects, purpose, signer and data, and evidence in its place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from audit.report.page import ReportContent, _odds, render, report_content
from audit.report.results import AuditReport
from calibrate.budget import calibrate_plan
from calibrate.manifest.document import DataBinding, DataIdentity, Issuer
from calibrate.manifest.draft import BudgetSubject, draft_document
from calibrate.manifest.issue import issue
from calibrate.manifest.keys import generate
from calibrate.manifest.verify import AuthenticManifest, authenticate, read_unverified
from calibrate.plans.fair_plugin import PayOncePlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.plan import Plan
from calibrate.privacy_unit import EpsilonDelta
from privfair.cli.plots import plot_budget
from tests.privfair.small_runs import trusting


def _manifest(plan: Plan, folder: Path | None = None) -> AuthenticManifest:
    from datetime import timedelta

    subject = BudgetSubject(
        data=DataBinding.of("ab" * 32, (("north", 500), ("south", 600))),
        dataset=DataIdentity(name="stays", custodian="General Hospital", version="2026"),
    )
    issuer = Issuer(lifetime=timedelta(days=9), why="readmission model of ward 7")
    key = generate()
    envelope = issue(draft_document(calibrate_plan(plan, EpsilonDelta(2.0, 1e-5)), subject, issuer), key)
    if folder is not None:
        (folder / "budget.json").write_bytes(envelope)
        (folder / "run.json").write_text("{}")
    return authenticate(envelope, trusting(key))


def _audit(power: float, noticed: float | None) -> AuditReport:
    bound: dict[str, Any] = {"epsilon": 0.1, "delta": 1e-5, "confidence": 0.95, "method": "one-run", "comparisons": 1}
    bound |= {"family": "epsilon-delta", "mu": None, "selection": "fixed beforehand"}
    bound |= {"evidence": {"coins": 9, "guesses": 9, "correct": 5}}
    passed = {"layer": "conformance", "name": "plan", "outcome": "passed", "finding": "as signed"}
    return AuditReport.model_validate_json(
        json.dumps(
            {
                "verdict": "consistent",
                "why": "all noise is there",
                "epsilon_lower": 0.1,
                "confidence": 0.95,
                "promised": {"epsilon": 2.0, "delta": 1e-5, "source": "promised by the manifest"},
                "attacks": [{"name": "coins", "power": power, "evidence": "2 runs", "bound": bound, "curve": None}],
                "checks": [passed] * 57,
                "noise_noticed": noticed,
            }
        )
    )


@pytest.fixture(scope="module")
def manifest() -> AuthenticManifest:
    return _manifest(GaussianPlan(0.2, 3))


def test_the_page_says_who_is_protected_why_by_whom_and_on_which_data(manifest: AuthenticManifest) -> None:
    page = render(ReportContent(manifest, None, (), ()))
    assert page.index("Protected:") < page.index("Not audited")
    assert "one record, being in the data or not" in page
    for said in ("readmission model of ward 7", "kept by General Hospital", "north (500 records)", "privacy-officer"):
        assert said in page
    assert "signatures were not checked" not in page


def test_passed_checks_are_folded(manifest: AuthenticManifest) -> None:
    page = render(ReportContent(manifest, _audit(0.9, None), (), ()))
    assert "<details><summary>57 checks passed" in page
    assert "<details open" not in page


def test_no_power_of_nothing_stands_beside_noise_that_was_measured(manifest: AuthenticManifest) -> None:
    measured = render(ReportContent(manifest, _audit(0.0, 0.97), (), ()))
    assert "had the noise been missing: 0.00" not in measured
    assert "the noise itself was measured, and with less than 97%" in measured
    assert "had the noise been missing: 0.90" in render(ReportContent(manifest, _audit(0.9, 0.97), (), ()))
    assert "had the noise been missing: 0.00" in render(ReportContent(manifest, _audit(0.0, None), (), ()))


def test_every_word_that_is_linked_is_explained_on_the_page(manifest: AuthenticManifest) -> None:
    page = render(ReportContent(manifest, _audit(0.9, None), (), ()))
    linked = set(re.findall(r'href="#([\w-]+)"', page))
    assert {"epsilon", "delta", "unit", "relation", "power"} <= linked
    assert linked <= set(re.findall(r'id="([\w-]+)"', page))


def test_what_is_paid_once_is_drawn_as_paid_at_once(tmp_path: Path) -> None:
    _manifest(PayOncePlan(2, 40), tmp_path)
    content = report_content(tmp_path, None, None)
    assert content.budget == ((0, 0.0), (0, 2.0), (40, 2.0))
    assert "All of it is spent before the first round" in render(content)
    (tmp_path / "other").mkdir()
    _manifest(GaussianPlan(0.2, 3), tmp_path / "other")
    spent = report_content(tmp_path / "other", None, None).budget
    assert [rounds for rounds, _ in spent] == [0, 1, 2, 3]
    assert [epsilon for _, epsilon in spent] == sorted(epsilon for _, epsilon in spent)
    assert read_unverified((tmp_path / "budget.json").read_bytes()).document.rounds == 40


def test_the_figure_of_a_budget_has_plain_ticks_that_do_not_overlap(tmp_path: Path) -> None:
    budget = calibrate_plan(GaussianPlan(1.0, 1172), EpsilonDelta(1.0, 1e-5))
    plot_budget(budget, tmp_path / "budget.svg")
    drawn = re.findall(r"<!-- ([\d.,]+) -->", (tmp_path / "budget.svg").read_text())
    assert {"1,172", "0.25", "0.5", "1", "2", "4"} <= set(drawn)
    assert len(drawn) < 30


def test_the_share_of_right_guesses_is_never_rounded_down() -> None:
    """Epsilon 1 allows 73.11%: "at most 73%" would promise more than is kept."""
    assert "at most 73.2% of the time" in _odds(1.0, 1e-5)
    assert "nearly 100%" in _odds(12.0, 1e-5)

"""`privfair audit` and `privfair report` on small runs: a clean one, a paper's noise, and tampered evidence."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from audit.coins.attribute_coins import fitted_deviation, log_odds
from audit.report.results import CheckOutcome
from audit.runs.evidence import RunEvidence
from audit.runs.noise import check_noise, judge_residuals, residuals
from tests.end_to_end.command_line import Outcome as CommandOutcome
from tests.end_to_end.command_line import privfair
from tests.privfair.small_runs import steffle_plan, write_silos

STEFFLE = steffle_plan(120, "measure-every = 40")


class Audited:
    """A folder with one finished SteFFLe run."""

    def __init__(self, folder: Path, *how: str) -> None:
        self.folder = folder
        write_silos(folder)
        plan, key, trust = folder / "plan.toml", folder / "officer.pem", folder / "trust.json"
        plan.write_text(STEFFLE, encoding="utf-8")
        role = ("--role", "privacy-officer")
        self.must("keys", "generate", *role, "--out", key)
        self.must("keys", "trust", "--key", key, *role, "--out", trust)
        self.must("ledger", "init", folder / "ledger.db")
        self.must("calibrate", plan, *how, "--out", folder / "budget.json", "--key", key)
        self.ledger = ("--ledger", folder / "ledger.db")
        chain = ("--manifest", folder / "budget.json", "--trust", trust, *self.ledger)
        self.must("train", plan, *chain, "--out", folder / "run", "--quiet")

    def must(self, *words: object) -> None:
        outcome = privfair(*words)
        assert outcome.code == 0, outcome.err

    def audit(self, *words: object) -> CommandOutcome:
        place = ("--plan", self.folder / "plan.toml", "--trust", self.folder / "trust.json")
        return privfair("audit", self.folder / "run", *place, *self.ledger, "--json", *words)

    def evidence(self) -> RunEvidence:
        return RunEvidence.read(self.folder / "run", plan_path=self.folder / "plan.toml")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    return Audited(tmp_path_factory.mktemp("clean"))


def test_a_run_that_other_code_trained_is_at_best_inconclusive(clean: Audited) -> None:
    summary = clean.folder / "run" / "run.json"
    before = summary.read_text("utf-8")
    summary.write_text(before.replace(json.loads(before)["code"], "0" * 64), encoding="utf-8")
    try:
        report = clean.audit("--reruns", 0)
    finally:
        summary.write_text(before, encoding="utf-8")
    found = json.loads(report.out)
    assert found["verdict"] == "inconclusive"
    assert "run.json names 0000" in found["why"]
    assert json.loads(clean.audit("--reruns", 0).out)["verdict"] == "consistent"


def test_a_clean_run_is_consistent(clean: Audited) -> None:
    outcome = clean.audit("--reruns", 1)
    assert outcome.code == 0, outcome.err
    verdict = outcome.json()
    assert verdict["verdict"] == "consistent"
    assert verdict["epsilon_lower"] <= 2.0
    assert {check["outcome"] for check in verdict["checks"]} == {"passed"}
    layers = {check["layer"] for check in verdict["checks"]}
    assert layers == {"conformance", "L0", "L1"}


def test_the_report_is_one_page_that_loads_nothing(clean: Audited) -> None:
    verdict, page = clean.folder / "audit.json", clean.folder / "report.html"
    assert clean.audit("--reruns", 0, "--out", verdict).code == 0
    clean.must("report", clean.folder / "run", "--audit", verdict, "--out", page)
    text = page.read_text("utf-8")
    assert "consistent" in text
    assert text.count("<svg") >= 3
    assert not re.search(r"""src\s*=|href\s*=\s*"(?!#)|url\(|@import|<script""", text)
    assert json.loads(verdict.read_text())["epsilon_lower"] is None


@pytest.mark.slow
def test_a_changed_model_is_noticed(clean: Audited) -> None:
    import torch

    model = clean.folder / "run" / "model.pt"
    before = model.read_bytes()
    saved = torch.load(model, weights_only=True)
    torch.save({name: value + 1e-3 for name, value in saved.items()}, model)
    try:
        outcome = clean.audit("--reruns", 0)
    finally:
        model.write_bytes(before)
    assert outcome.code == 1
    assert outcome.json()["verdict"] == "violated"
    assert "model" in outcome.json()["why"]


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["another weight", pytest.param("no JSON", marks=pytest.mark.slow)])
def test_a_changed_readable_copy_of_the_model_is_noticed(clean: Audited, damage: str) -> None:
    copy = clean.folder / "run" / "model.json"
    before = copy.read_text("utf-8")
    told = json.loads(before)
    for name in told["intercepts"]:
        told["intercepts"][name] += 0.5
    copy.write_text(json.dumps(told) if damage == "another weight" else "weights", encoding="utf-8")
    try:
        outcome = clean.audit("--reruns", 0)
    finally:
        copy.write_text(before, encoding="utf-8")
    assert outcome.code == 1
    assert "model" in outcome.json()["why"]


def test_another_plan_is_refused(clean: Audited, tmp_path: Path) -> None:
    other = tmp_path / "plan.toml"
    other.write_text(STEFFLE.replace("rounds = 120", "rounds = 121"), encoding="utf-8")
    outcome = privfair("audit", clean.folder / "run", "--plan", other)
    assert outcome.code == 2
    assert "--plan" in outcome.err


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("variance", lambda rows: 0.9 * rows),
        ("mean", lambda rows: rows + 0.2),
        ("repetition", lambda rows: np.repeat(rows[:1], len(rows), axis=0)),
        ("shape", lambda rows: np.sign(rows)),
    ],
)
def test_each_way_of_spoiling_noise_is_seen(clean: Audited, name: str, spoil) -> None:  # type: ignore[no-untyped-def]
    """Exact standard normal rows pass; each fault is flagged by the test made for it."""
    rows = np.random.default_rng(7).normal(size=(200, 60))
    template = residuals(clean.evidence())[0]
    good = judge_residuals((replace(template, rows=rows, steps=None),), 1e-6)
    assert all(check.outcome is CheckOutcome.PASSED for check in good)
    bad = judge_residuals((replace(template, rows=spoil(rows), steps=None),), 1e-6)
    assert any(check.name.startswith(name) and check.outcome is CheckOutcome.FAILED for check in bad)


def test_noise_of_the_clean_run_passes(clean: Audited) -> None:
    assert {check.outcome for check in check_noise(clean.evidence())} == {CheckOutcome.PASSED}


def test_the_decoder_reads_coins_where_noise_is_small() -> None:
    random = np.random.default_rng(3)
    coins = random.integers(0, 2, 300)
    matrix = sparse.csr_matrix(np.where(random.random((900, 300)) < 0.1, 1.0, 0.0))
    quiet = matrix @ (coins - 0.5) + random.normal(0, 0.1, 900)
    loud = matrix @ (coins - 0.5) + random.normal(0, 100.0, 900)
    assert ((log_odds(matrix, quiet, 0.1) > 0) == (coins == 1)).all()
    assert ((log_odds(matrix, loud, 100.0) > 0) == (coins == 1)).mean() < 0.65
    assert fitted_deviation(matrix, quiet, 10.0) < 2.0


@pytest.mark.slow
def test_the_papers_own_noise_is_refuted_by_its_transcript(tmp_path: Path) -> None:
    """SteFFLe with the sigma of its Theorem 3.3 on Credit Card: claimed 1, at least 1.1 is shown."""
    outcome = privfair("demo", "--as-printed", "--out", tmp_path, "--json")
    assert outcome.code == 0, outcome.err
    result = outcome.json()
    assert result["budget"]["claimed_epsilon"] == 1.0
    assert result["budget"]["epsilon"] == pytest.approx(7.59, abs=0.01)
    assert result["audit"]["verdict"] == "violated"
    assert result["audit"]["epsilon_lower"] > 1.1
    assert Path(result["report"]).exists()

"""The probes pass on clean runs of every private algorithm, and say what they cannot ask."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from audit.probes.check_probes import check_probes
from audit.probes.isolation import check_isolation
from audit.probes.setting import ProbeSetting
from audit.report.results import Check, CheckOutcome, Layer
from audit.runs.evidence import RunEvidence
from privfair.ledger import Ledger, LedgerAccess
from privfair.models.linear import LogisticRegression
from tests.planted_bugs.fixed_randomness import fixed_randomness
from tests.planted_bugs.workshop import DATA, FAIR_PLUGIN, MMD, PAY_ONCE, TARGET
from tests.privfair.small_runs import FEDSGD, FPFL, GAUSSIAN, Desk

PAID_HISTOGRAM = f"""algorithm = "steffle"
{TARGET}[privacy]
silo-size = 120
batch-size = 24
rounds = 12
sampling = "poisson"
minority-fraction = 0.2
lipschitz = 1.0
w-radius = 0.5
histogram-noise-ratio = 1.0
{DATA}[training]
notion = "equalised-odds"
"""
SCAFFOLD = GAUSSIAN.format(rate=0.2, rounds=12, more='method = "scaffold"\nlocal-steps = 2')
REPLACED = GAUSSIAN.format(rate=0.2, rounds=12, more="").replace("clip = 1.0", 'clip = 1.0\nrelation = "replace-one"')
LAPLACE = MMD.replace("rounds = 10", 'rounds = 10\nmechanism = "laplace"').replace("8.0", "200.0")
CONDITIONAL = MMD.replace("group-size = 100", "group-size = 20").replace("8.0", "20.0")
CONDITIONAL += 'criterion = "conditional-parity"\ncondition-feature = 0\ncondition-cut = 0.5\n'
PLANS = {
    "fpfl": FPFL,
    "mmd": MMD,
    "mmd-laplace": LAPLACE,
    "mmd-conditional": CONDITIONAL,
    "pay-once": PAY_ONCE,
    "fair-plugin": FAIR_PLUGIN,
    "steffle-histogram": PAID_HISTOGRAM,
    "scaffold": SCAFFOLD,
    "replace-one": REPLACED,
}


def probed(folder: Path, plan: str) -> tuple[Check, ...]:
    desk = Desk.at(folder / "desk", plan)
    manifest = desk.budget()
    with fixed_randomness(11):
        run = desk.train(manifest).run
        with Ledger.open(desk.ledger, None, LedgerAccess.READ) as ledger:
            return check_probes(RunEvidence.read(run, plan_path=desk.plan), ledger)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_clean_run_passes_every_probe(name: str, tmp_path: Path) -> None:
    checks = probed(tmp_path, PLANS[name])
    assert [f"{one.name}: {one.finding}" for one in checks if one.outcome is CheckOutcome.FAILED] == []
    assert all(one.layer is Layer.PROBE for one in checks)
    assert len(checks) >= 8


def test_a_run_that_promises_nothing_has_nothing_to_probe(tmp_path: Path) -> None:
    (only,) = probed(tmp_path, FEDSGD.format(rounds=3, more=""))
    assert only.outcome is CheckOutcome.NOT_POSSIBLE
    assert "no privacy is promised" in only.finding


@pytest.mark.parametrize("leak", [0.0, 1e-7])
def test_a_faint_influence_of_other_records_is_seen(
    leak: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts scaled by a ten-millionth of the batch's mean loss: no rounding explains it, so the probe fails."""
    desk = Desk.at(tmp_path / "desk", GAUSSIAN.format(rate=0.2, rounds=3, more=""))
    with fixed_randomness(11):
        run = desk.train(desk.budget()).run
    setting = ProbeSetting.of(RunEvidence.read(run, plan_path=desk.plan))
    clean = LogisticRegression.weighted_gradient

    def leaking(self: LogisticRegression, theta: Tensor, x: Any, y: Tensor, weigh: Any) -> Any:
        found = clean(self, theta, x, y, weigh)
        return replace(found, total=found.total * (1.0 - leak * found.losses.mean()))

    monkeypatch.setattr(LogisticRegression, "weighted_gradient", leaking)
    found = {one.name: one.outcome for one in check_isolation(setting)}
    wanted = CheckOutcome.FAILED if leak else CheckOutcome.PASSED
    assert found["messages of single units"] is wanted
    assert found["messages in any order"] is CheckOutcome.PASSED

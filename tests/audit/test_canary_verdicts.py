"""Whole audits of runs that protect records: a claim far below the truth, and a calibrated promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.report.results import FLOOR, AuditReport, CheckOutcome, Conclusion
from audit.runs.noise import ALL_MEASURED
from audit.runs.run_audit import audit_run
from audit.settings import AuditOptions
from calibrate.epsilon_so_far import EpsilonSoFar
from calibrate.manifest import keys as signature
from calibrate.manifest.document import PAYLOAD_TYPE, BudgetDocument, statement_bytes
from calibrate.manifest.keys import generate
from calibrate.manifest.mechanism import AsPrintedGuarantee
from calibrate.manifest.verify import read_unverified
from calibrate.sampling import RandomAllocation
from privfair.batches.participation import declared_sampling
from tests.contracts.canary_cases import CANARY_CASES
from tests.privfair.small_runs import GAUSSIAN, Desk, trusting

CLAIMED = 0.4


def _desk(folder: Path, epsilon: float, rounds: int = 8) -> Desk:
    plan = CANARY_CASES[0].plan().replace("epsilon = 1.0", f"epsilon = {epsilon}")
    return Desk.at(folder, plan.replace("rounds = 8", f"rounds = {rounds}"))


def _with_claim(desk: Desk, budget: Path, claimed: float) -> Path:
    """The same noise, signed as a paper's that claims less than it costs."""
    document = read_unverified(budget.read_bytes()).document
    said = document.guarantee.model_dump(exclude={"kind"})
    guarantee = AsPrintedGuarantee(**said, claimed_epsilon=claimed, claim="a theorem with too little noise")
    changed = BudgetDocument.model_validate(document.model_dump() | {"guarantee": guarantee})
    key = generate()
    desk.trust.write_bytes(trusting(key).to_bytes())
    out = desk.folder / "claimed.json"
    out.write_bytes(signature.sign(PAYLOAD_TYPE, statement_bytes(changed), key))
    return out


def _audited(desk: Desk) -> AuditReport:
    return audit_run(desk.folder / "run", AuditOptions(reruns=1), plan_path=desk.plan)


@pytest.mark.slow
def test_a_claim_with_too_little_noise_is_violated(tmp_path: Path) -> None:
    desk = _desk(tmp_path, epsilon=30.0)
    desk.train(_with_claim(desk, desk.budget(research_noise=True), CLAIMED))
    verdict = _audited(desk)
    assert verdict.verdict is Conclusion.VIOLATED
    assert verdict.epsilon_lower is not None
    assert verdict.epsilon_lower > CLAIMED
    assert "claimed by a theorem" in verdict.why
    assert all(attack.curve is None for attack in verdict.attacks)


@pytest.mark.slow
def test_random_allocation_goes_from_the_plan_to_a_consistent_audit(tmp_path: Path) -> None:
    """Two whole epochs and a begun one: signed as two prices, drawn as one sampling, rehearsed and attacked."""
    allocated = 'rounds = 12\nsampling = "random-allocation"'
    plan = GAUSSIAN.format(rate=0.2, rounds=12, more="").replace("rounds = 12", allocated)
    desk = Desk.at(tmp_path, plan)
    budget = desk.budget()
    document = read_unverified(budget.read_bytes()).document
    assert {declared.scheme for declared in document.sampling} == {RandomAllocation(5), RandomAllocation(5, 2)}
    assert declared_sampling(document) == RandomAllocation(5)
    so_far = EpsilonSoFar(document)
    costs = [so_far.after(charged) or 0.0 for charged in (1, 5, 7, 10, 12)]
    assert costs == sorted(costs)
    assert costs[0] < costs[-2] < costs[-1]
    desk.train(budget)
    verdict = _audited(desk)
    assert verdict.verdict is Conclusion.CONSISTENT, verdict.why
    assert any(check.name == "batches of known words" for check in verdict.checks)
    assert not [check for check in verdict.checks if check.outcome is CheckOutcome.FAILED]


@pytest.mark.slow
def test_the_same_plan_calibrated_is_consistent(tmp_path: Path) -> None:
    desk = _desk(tmp_path, epsilon=1.0, rounds=12)  # eight rounds would notice noise x 0.77, not x 0.8
    desk.train(desk.budget(research_noise=True))
    verdict = _audited(desk)
    assert verdict.verdict is Conclusion.CONSISTENT, verdict.why
    assert {attack.name for attack in verdict.attacks} == {
        "gradient-space canaries against the transcript",
        "one gradient-space canary, repeated runs",
        "gradient-space canaries against the final model",
    }
    assert "Noise of this run itself:" in verdict.why
    assert {check.name for check in verdict.checks if check.layer.value == "L1"} == {
        ALL_MEASURED,
        FLOOR,
        *(f"noise floor of value_1 of {party}" for party in ("north", "south", "west")),
    }

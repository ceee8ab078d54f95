"""Private runs of the engine, trained by the real code at epsilon 1, are never found in breach by membership attacks.

The runs are of a net that overfits when nothing holds it back: the control shows that the attacks would have seen it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from audit.models.epsilon_bound import ClaimOnTrial
from audit.models.membership_audit import MembershipOptions, audit_model
from audit.models.records import RecordTables
from audit.models.shadow_models import ShadowRecords
from audit.models.stacked import StackedPerceptron
from audit.models.torch_targets import RunTarget
from audit.report.results import AuditReport, Conclusion
from calibrate.manifest.verify import read_unverified
from tests.audit.membership_worlds import noisy_records
from tests.end_to_end.command_line import privfair
from tests.privfair.small_runs import Desk

PLAN = """algorithm = "gaussian"
[target]
epsilon = 1.0
delta = 1e-5
[privacy]
sampling-rate = 0.2
rounds = 25
clip = 1.0
relation = "replace-one"
[data]
files = ["members.csv"]
test-files = ["nonmembers.csv"]
schema = "schema.toml"
at-least = 300
[training]
learning-rate = 1.0
[training.model]
kind = "perceptron"
hidden = [32]
"""
FEATURES, MEMBERS = 20, 400
SCHEMA = "\n".join(
    ["version = 1", "[target]", 'column = "label"', 'classes = ["0", "1"]']
    + [f"[numeric.f{i}]\nmean = 0.0\nscale = 1.0" for i in range(FEATURES)]
)
OVERFIT = StackedPerceptron((32,), epochs=40, batch=32)


def write_records(path: Path, records: ShadowRecords) -> None:
    rows = [",".join([*(f"f{i}" for i in range(FEATURES)), "label"])]
    rows += [
        ",".join([*(f"{value:.6f}" for value in features), str(label % 2)])
        for features, label in zip(records.features, records.labels, strict=True)
    ]
    path.write_text("\n".join(rows) + "\n")


def private_run(folder: Path, seed: int) -> Path:
    """Train; members.csv and nonmembers.csv are drawn from one source."""
    desk = Desk.at(folder, PLAN)
    (folder / "schema.toml").write_text(SCHEMA)
    write_records(folder / "members.csv", noisy_records(MEMBERS, 2 * seed))
    write_records(folder / "nonmembers.csv", noisy_records(MEMBERS, 2 * seed + 1))
    desk.train(desk.budget())
    return folder / "run"


def audit(folder: Path, seed: int, shadow_models: int) -> AuditReport:
    run = private_run(folder, seed)
    target = RunTarget.open(run)
    records = target.encode(RecordTables.read(folder / "members.csv", folder / "nonmembers.csv"))
    claim = ClaimOnTrial.of_manifest(read_unverified(target.folder.manifest.read_bytes()).document)
    return audit_model(target, records, MembershipOptions(shadow_models, OVERFIT, seed=seed), claim)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_private_run_is_consistent(seed: int, tmp_path: Path) -> None:
    found = audit(tmp_path, seed, shadow_models=8)
    assert found.promised is not None
    assert found.promised.epsilon == 1.0
    assert found.verdict is Conclusion.CONSISTENT
    assert max(attack.power for attack in found.attacks) > 0.5


@pytest.mark.slow
def test_twenty_private_runs_are_never_violated(tmp_path: Path) -> None:
    """Each at 95%: the attacks are far from the promise, so not even the allowed one in twenty is seen."""
    areas = []
    for seed in range(20):
        found = audit(tmp_path / str(seed), seed, shadow_models=16)
        assert found.verdict is Conclusion.CONSISTENT, found.why
        assert found.epsilon_lower is not None
        assert found.epsilon_lower < 1.0
        areas.append([attack.auc.value for attack in found.membership.attacks])
    print("areas", np.mean(areas, axis=0), np.min(areas, axis=0), np.max(areas, axis=0))
    assert np.abs(np.mean(areas, axis=0) - 0.5).max() < 0.06  # a true epsilon of 1 allows up to 0.23


def test_the_command_line_takes_a_run_folder(tmp_path: Path) -> None:
    """Encoding, classes and promise come from the run."""
    private_run(tmp_path, 5)
    files = ("--members", tmp_path / "members.csv", "--nonmembers", tmp_path / "nonmembers.csv")
    outcome = privfair("audit", "--model", tmp_path / "run", *files, "--json", "--shadow-models", 4)
    assert outcome.code == 0, outcome.err
    found = outcome.json()
    assert found["promised"]["epsilon"] == 1.0
    assert found["membership"]["target"]["kind"] == "privfair run"
    assert found["membership"]["shadow"]["kind"] == "perceptron"
    assert "--members" in privfair("audit", "--model", tmp_path / "run").err

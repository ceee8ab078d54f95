"""Is privacy fair? Groups and records under a membership audit: who is exposed, and do the intervals hold together?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.special import ndtr
from sklearn.linear_model import LogisticRegression

import privfair as pf
from audit.models.epsilon_bound import BoundTerms
from audit.models.exposure import exposed_records, exposure_of_groups, grouping_column, learn_rule
from audit.models.records import Coins
from audit.models.shadow_models import Signals
from audit.report.page import ReportContent, render
from audit.report.results import Assignment, AuditReport
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import Relation
from privfair.cli import cli

pd = pytest.importorskip("pandas")
LARGE, SMALL, COLUMNS = 600, 80, 80


def two_groups(seed: int) -> tuple[Any, Any]:
    """Labels by chance; each group has its own columns, so that a model remembers the small group and not the large."""
    random = np.random.default_rng(seed)
    frames = []
    for _ in range(2):
        town = np.repeat([0, 1], (LARGE, SMALL))
        x = random.normal(size=(len(town), COLUMNS))
        table = np.hstack((x * (town == 0)[:, None], x * (town == 1)[:, None]))
        frame = pd.DataFrame(table, columns=[f"c{i}" for i in range(2 * COLUMNS)])
        frame["town"], frame["label"] = np.where(town == 0, "large", "small"), random.integers(0, 2, len(town))
        frames.append(frame)
    return frames[0], frames[1]


FEATURES = [f"c{i}" for i in range(2 * COLUMNS)]
MEMBERS, OTHERS = two_groups(0)
MODEL = LogisticRegression(C=10, max_iter=100).fit(MEMBERS[FEATURES], MEMBERS["label"])


def audited(**asked: Any) -> AuditReport:
    return pf.audit_model(MODEL, MEMBERS, OTHERS, label="label", shadow_models=0, **asked)


def test_a_small_group_is_more_exposed_than_a_large_one() -> None:
    report = audited(by=("town", "class", "correctness"))
    assert report.membership is not None
    assert report.membership.exposure is not None
    town, classes, right = report.membership.exposure.groupings
    large, small = town.groups
    assert (large.name, large.members, small.name, small.nonmembers) == ("large", LARGE, "small", SMALL)
    assert town.uneven
    assert small.auc.lower > large.auc.upper
    assert small.epsilon_lower is not None
    assert {one.name for one in classes.groups} == {"0", "1"}
    assert not classes.uneven
    assert {one.name for one in right.groups} == {"right", "wrong"}
    assert all(one.epsilon_lower is None for one in right.groups)


def test_intervals_of_groups_hold_together() -> None:
    """True areas are known; with 95% confidence all three intervals hold in at least 95% - 3 errors of all cases."""
    random, sizes, shifts = np.random.default_rng(1), (15, 40, 200), (1.5, 0.0, 0.4)
    marks = {"by": np.repeat(["a", "b", "c"], [2 * size for size in sizes])}
    is_member = np.concatenate([np.arange(2 * size) < size for size in sizes])
    means = np.repeat(shifts, [2 * size for size in sizes]) * is_member
    missed, cases = 0, 400
    for _ in range(cases):
        scores = means + random.normal(size=len(means))
        (found,) = exposure_of_groups(marks, scores, is_member, None, 0.95)
        held = (g.auc.lower <= ndtr(s / 2**0.5) <= g.auc.upper for g, s in zip(found.groups, shifts, strict=True))
        missed += not all(held)
    assert missed <= cases * 0.05 + 3 * (cases * 0.05 * 0.95) ** 0.5


def test_bounds_of_groups_hold_together() -> None:
    """Each coin is betrayed by randomised response: no group's bound may exceed the true epsilon."""
    random, epsilon, cases = np.random.default_rng(2), 1.0, 120
    marks = {"by": np.repeat(["a", "b", "c"], [60, 200, 200])}
    trial = BoundTerms(Assignment.COINS, Relation.ADD_REMOVE, 0.0)
    missed = 0
    for _ in range(cases):
        is_member = random.integers(0, 2, 460) == 1
        told = np.where(random.random(460) < 1 / (1 + np.exp(-epsilon)), is_member, ~is_member)
        (found,) = exposure_of_groups(marks, told.astype(np.float64), is_member, trial, 0.95)
        missed += any((one.epsilon_lower or 0.0) > epsilon for one in found.groups)
    assert missed <= cases * 0.05 + 3 * (cases * 0.05 * 0.95) ** 0.5


def test_small_groups_are_named_and_left_out() -> None:
    random = np.random.default_rng(0)
    marks = {"by": np.array(["a"] * 60 + ["b"] * 12)}
    is_member = np.tile([True, False], 36)
    (found,) = exposure_of_groups(marks, random.normal(size=72), is_member, None, 0.95)
    assert ([one.name for one in found.groups], found.left_out) == (["a"], ("b",))
    with pytest.raises(InvalidInput, match="more than 20"):
        grouping_column("age", np.arange(30))


def shadow_world(random: np.random.Generator, shifts: np.ndarray, taught: int, counted: int) -> Signals:
    """Signals of models with and without each record: normal, and `shifts` higher with it."""
    records = len(shifts)
    halves = random.random((taught, records)).argsort(axis=0) < taught // 2
    included = np.vstack((halves, random.integers(0, 2, (counted, records)) == 1))
    return Signals(np.zeros(records), included * shifts + random.normal(size=included.shape), included)


def test_intervals_of_listed_records_hold_together() -> None:
    """Chosen because they looked exposed, and yet their true advantages lie in all intervals in 95% of all cases."""
    random, shifts, cases = np.random.default_rng(4), np.concatenate((np.zeros(120), np.full(6, 3.0))), 200
    coins = Coins.of(np.arange(len(shifts)), np.arange(len(shifts)) < 63)
    missed, found_exposed = 0, 0
    for _ in range(cases):
        signals = shadow_world(random, shifts, 24, 40)
        found = exposed_records(signals, coins, 63, 10, 24, 1e-5, 0.95)
        middle, lead = learn_rule(signals.shadow[:24], signals.included[:24])
        side = np.sign(lead)
        true = side * (ndtr(middle) - ndtr(middle - shifts))
        places = [one.record - 1 if one.file == "members" else one.record + 62 for one in found.records]
        held = (
            one.advantage.lower <= true[at] <= one.advantage.upper
            for one, at in zip(found.records, places, strict=True)
        )
        missed += not all(held)
        found_exposed += sum(one.exposed for one, at in zip(found.records, places, strict=True) if shifts[at] > 0)
        assert found.reachable >= max(one.advantage.lower for one in found.records) - 0.2
    assert missed <= cases * 0.05 + 3 * (cases * 0.05 * 0.95) ** 0.5
    assert found_exposed > 3 * cases


def test_the_command_lists_groups_and_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joblib = pytest.importorskip("joblib")
    monkeypatch.chdir(tmp_path)
    members, others = MEMBERS.iloc[540:], OTHERS.iloc[540:]
    members.to_csv("in.csv", index=False)
    others.to_csv("out.csv", index=False)
    model = LogisticRegression(C=1e3, max_iter=50).fit(members[FEATURES], members["label"])
    joblib.dump(model, "m.joblib")
    asked = ["audit", "--model", "m.joblib", "--trust-pickle", "--members", "in.csv", "--nonmembers", "out.csv"]
    asked += ["--label", "label", "--drop", "town", "--by", "town", "--by", "correctness", "--exposed", "3"]
    asked += ["--shadow", "logistic", "--epochs", "5", "--shadow-models", "16"]
    done = CliRunner().invoke(cli, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["membership"]["exposure"]
    assert [one["by"] for one in found["groupings"]] == ["town", "correctness"]
    assert len(found["records"]["records"]) == 3
    shown = CliRunner().invoke(cli, asked)
    assert "by town" in shown.stdout
    assert "most exposed of" in shown.stdout
    report = AuditReport.model_validate_json(done.stdout)
    page = render(ReportContent(None, report, (), ()))
    assert "Is privacy fair?" in page
    assert "The most exposed of" in page


@pytest.mark.parametrize(
    ("asked", "match"),
    [({"by": ("shoe size",)}, "is no column"), ({"exposed": 3}, "at least 16"), ({"by": ("c0",)}, "more than 20")],
)
def test_what_cannot_be_compared_is_refused(asked: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        audited(**asked)


def test_records_cannot_be_listed_with_a_population_or_from_scores_alone() -> None:
    from audit.models.membership_audit import MembershipOptions, audit_scores
    from audit.settings import ExposureOptions

    with pytest.raises(InvalidInput, match="population"):
        pf.audit_model(MODEL, MEMBERS, OTHERS, population=two_groups(9)[0], label="label", shadow_models=16, exposed=2)
    options = MembershipOptions(exposure=ExposureOptions(records=2))
    with pytest.raises(InvalidInput, match="shadow models"):
        audit_scores(np.zeros(8), np.arange(8) < 4, "s", options)
    with pytest.raises(InvalidInput, match="audited units"):
        exposed_records(
            shadow_world(np.random.default_rng(0), np.zeros(4), 8, 8),
            Coins.of(np.arange(4), np.arange(4) < 2),
            2,
            9,
            8,
            0,
            0.95,
        )
    amounts = (np.zeros((30, 2)), np.linspace(0, 1, 30))
    with pytest.raises(InvalidInput, match="tells classes apart"):
        pf.audit_model(lambda x: np.zeros(len(x)), amounts, (np.ones((30, 2)), np.linspace(0, 1, 30)), by=("class",))

"""Scales that are paid for: what is counted, what follows from noisy counts, and settings from public numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import privfair as pf
from calibrate.errors import InvalidInput
from calibrate.plans import plan_from_mapping
from calibrate.plans.fair_plugin import FairPluginPlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.plan import scale_histogram
from calibrate.privacy_unit import EpsilonDelta, Relation
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.fair_plugin import crossing
from privfair.algorithms.parts.paid_scales import CELLS, PaidScales, centre_and_width, intercepts
from privfair.models.linear import LogisticRegression
from privfair.models.scaled import ScaledModel, Scales
from privfair.plan.plan import Plan, count_features
from privfair.plan.sections import GradientOptions
from privfair.plan.settings import PublicNumbers, noise_multiplier, recipe
from tests.contracts.algorithm_cases import silo
from tests.privfair.test_short_plan import PLAN, SCHEMA, write

TARGET = EpsilonDelta(1.0, 1e-5)


def _paid(columns: int = 2) -> PaidScales:
    model = LogisticRegression(3)
    public = Scales(torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    inner = DpFedSgd(model, GradientOptions(), 1.0, 80.0)
    return PaidScales(inner, ScaledModel(model, 3), public, columns, 80, (2,), 3**0.5)


@pytest.mark.parametrize("value", [-math.inf, -1.0, 0.0, 1 / 128, 0.5, 1.0, 1e300, math.inf, math.nan])
def test_a_record_is_in_exactly_one_cell_of_each_histogram_whatever_it_holds(value: float) -> None:
    records, everybody = silo("north", LogisticRegression(3)), torch.arange(5)
    records.x[3] = value
    one = _paid().contribution(_paid().start(), 0, records, everybody).noisy[0].values
    rest = _paid().contribution(_paid().start(), 0, records, everybody[everybody != 3]).noisy[0].values
    cells = np.split(one - rest, [CELLS, 2 * CELLS])
    assert [sorted(each.tolist())[-2:] for each in cells] == [[0.0, 1.0]] * 3
    assert [each.sum() for each in cells] == [1.0] * 3


def test_edges_belong_to_the_cell_above() -> None:
    records = silo("north", LogisticRegression(3))
    records.x[0] = 64 / 128
    counts = _paid().contribution(_paid().start(), 0, records, torch.tensor([0])).noisy[0].values
    assert np.flatnonzero(counts[:CELLS]).tolist() == [64]


@pytest.mark.parametrize(
    ("relation", "apart"), [(Relation.ADD_REMOVE, 3.0), (Relation.REPLACE_ONE, 3.0 / math.sqrt(2))]
)
def test_the_bound_is_the_root_of_the_histograms(relation: Relation, apart: float) -> None:
    """Replaced records move the histogram by sqrt 2 times as much, which is charged as twice the bound."""
    assert scale_histogram(8, 1, relation, 1.0).sensitivity == pytest.approx(apart)


@pytest.mark.parametrize(
    "given",
    [
        {"scale_columns": 2, "scale_share": 1.0},
        {"scale_columns": 2, "scale_share": 0.0},
        {"scale_share": 0.1},
        {"scale_columns": 2, "scale_share": 0.1, "sampling_rate": 0.5},
        {"scale_columns": -1},
    ],
)
def test_shares_above_one_and_batches_without_a_proof_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        plan_from_mapping("gaussian", {"sampling_rate": 1.0, "rounds": 60, **given})


def test_shares_of_the_fair_plan_add_up_to_at_most_one() -> None:
    with pytest.raises(InvalidInput, match="leave nothing"):
        FairPluginPlan(100, scale_columns=2, scale_share=0.5, group_share=0.3, gap_share=0.25)


@pytest.mark.parametrize(
    "plan",
    [
        GaussianPlan(1.0, 60, scale_columns=5, scale_share=0.1),
        FairPluginPlan(100, scale_columns=5, scale_share=0.1, group_share=0.2, gap_share=0.15),
    ],
)
def test_each_value_takes_its_share_of_the_squared_budget(plan: GaussianPlan | FairPluginPlan) -> None:
    values = (*plan.values(), *plan.once())
    taken = {v.name: v.publications(plan.rounds) / v.noise_multiplier**2 for v in values}
    shares = {name: each / sum(taken.values()) for name, each in taken.items()}
    assert shares["scale_histogram"] == pytest.approx(0.1)
    assert next(iter(shares.values())) == pytest.approx(0.9 if isinstance(plan, GaussianPlan) else 0.55)


def test_centre_and_width_follow_the_column_through_noise() -> None:
    random = np.random.default_rng(4)
    column = np.clip(random.normal(0.2, 0.02, 9000), 0, 1)
    cells = np.histogram(column, CELLS, (0, 1))[0] + random.normal(0, 40, CELLS)
    centre, width = centre_and_width(cells, 40.0, 8, 9000.0)
    assert abs(centre - 0.2) < 0.004
    assert 0.03 < width < 0.05
    assert centre_and_width(random.normal(0, 1, CELLS), 40.0, 8, 9000.0) == (0.5, 0.5)


def test_intercepts_are_the_log_odds_of_noisy_counts() -> None:
    assert intercepts(np.array([750.0, 250.0]), 1000.0).tolist() == [pytest.approx(math.log(1 / 3))]
    assert intercepts(np.array([-5.0, 1005.0]), 1000.0).tolist() == [pytest.approx(math.log(49))]
    assert len(intercepts(np.array([1.0, 1.0, 1.0]), 3.0)) == 3


def test_the_strength_is_the_nearest_one_within_the_target() -> None:
    asked = np.array([0.0, 1.0, 2.0])
    assert crossing(asked, np.array([0.3, 0.1, 0.0]), 0.05, 16.0) == (pytest.approx(1.5), 0.05)
    assert crossing(asked[:1], np.array([0.03]), 0.05, 16.0)[0] == 0.0
    assert crossing(asked[:1], np.array([0.3]), 0.05, 1.6)[0] == 0.5
    assert crossing(-asked, np.array([-0.3, -0.1, 0.0]), 0.05, 16.0)[0] == pytest.approx(-1.5)


def test_a_scaled_feature_is_a_function_of_its_record() -> None:
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(1001, 3)) * 50)
    scales = Scales(torch.tensor([0.1, 0.7, 3.0], dtype=torch.float64), torch.tensor([0.3, 1e-3, 7.0]).double())
    together = scales.apply(x)
    assert isinstance(together, torch.Tensor)
    for row in (0, 1, 500, 1000):
        assert torch.equal(together[row], scales.apply(x[row : row + 1])[0])  # type: ignore[index]
    assert together.abs().max() <= 3


# Settings.


def test_settings_follow_from_public_numbers_alone() -> None:
    privacy, training = recipe(PublicNumbers(12_000, 3, 8, 4, 3), TARGET)
    assert (privacy["scale-share"], privacy["scale-columns"]) == (0.1, 8)
    assert 61 <= int(str(privacy["rounds"])) <= 201
    assert training["iterate"] == "half-average"
    fair, _ = recipe(PublicNumbers(12_000, 3, 8, 4, 3, groups=2), TARGET)
    assert (fair["scale-share"], fair["group-share"], fair["gap-share"]) == (0.1, 0.2, 0.15)
    assert plan_from_mapping("gaussian", privacy)
    assert plan_from_mapping("fair-plugin", fair)


def test_scales_are_not_bought_where_noise_would_hide_them() -> None:
    privacy, _ = recipe(PublicNumbers(750, 3, 7, 12), TARGET)
    assert "scale-share" not in privacy
    assert privacy["scale-columns"] == 7


def test_the_multiplier_of_settings_is_the_accountants(tmp_path: Path) -> None:
    from calibrate.accountants.gaussian import gaussian_mu

    for target in (TARGET, EpsilonDelta(0.1, 1e-8), EpsilonDelta(8.0, 1e-6)):
        assert noise_multiplier(target) == pytest.approx(1 / gaussian_mu(target.epsilon, target.delta), rel=1e-5)


def test_a_short_plan_has_the_recipe_and_its_own_keys_win(tmp_path: Path) -> None:
    plan = write(tmp_path, PLAN.replace("at-least = 60", "at-least = 5000"))
    numbers = PublicNumbers(10_000, 2, 2, 1, 1, groups=3)
    privacy, training = recipe(numbers, TARGET)
    assert dict(plan.privacy) == privacy
    assert dict(plan.training) == training | {"target-gap": 0.05}
    own = write(tmp_path, PLAN + "[privacy]\nclip = 0.3\n[training]\nlearning-rate = 0.7\n")
    assert (own.privacy["clip"], own.training["learning-rate"]) == (0.3, 0.7)
    assert "scale-columns" in own.privacy
    batches = write(tmp_path, PLAN + 'algorithm = "gaussian"\n[privacy]\nsampling-rate = 0.1\n')
    assert "scale-columns" not in batches.privacy


def test_plans_of_frames_have_the_same_settings(tmp_path: Path) -> None:
    rows = 400
    frame = {"age": [20 + k % 60 for k in range(rows)], "ill": ["no", "yes"] * (rows // 2), "job": ["a", "b"] * 200}
    told = {"classes": ["no", "yes"], "bounds": {"age": (18, 90)}, "categories": {"job": ["a", "b"]}}
    plan = pf.Plan.from_frames(
        {"n": frame, "s": frame}, target="ill", epsilon=1.0, delta=1e-5, protect="record", at_least=300, **told
    )
    privacy, training = recipe(PublicNumbers(600, 2, 1, 1), TARGET)
    assert dict(plan.privacy) == privacy
    assert dict(plan.training) == training | {"seed": 0}
    by_rate = pf.Plan.from_frames(
        frame,
        target="ill",
        epsilon=1.0,
        delta=1e-5,
        protect="record",
        at_least=300,
        privacy={"sampling-rate": 0.1},
        **told,
    )
    assert "scale-columns" not in by_rate.privacy


def test_columns_are_counted_in_both_layouts() -> None:
    import tomllib

    short = tomllib.loads(SCHEMA)
    assert count_features(short) == (2, 1, 1)
    long = {
        "target": {"column": "late"},
        "numeric": {"age": {"bounds": [0, 1], "steps": [0.2, 0.4]}},
        "categorical": {"job": {"values": ["a", "b", "c"]}},
    }
    assert count_features(long) == (1, 1, 2)
    assert count_features({"numeric": {"age": {"mean": 1.0, "scale": 2.0}}}) is None


@pytest.mark.filterwarnings("ignore")
def test_wide_bounds_cost_a_scaled_model_nothing_to_speak_of(tmp_path: Path) -> None:
    """Bounds fifty times too wide: seeded; the same plan without scales stays at chance."""
    random = np.random.default_rng(1)

    def frame() -> dict[str, object]:
        a, b = random.gamma(2, 20, 3000), random.normal(60, 10, 3000)
        yes = random.random(3000) < 1 / (1 + np.exp(-(a - 40) / 10 - (b - 60) / 5))
        return {"a": a, "b": b, "y": np.where(yes, "yes", "no")}

    frames = {"n": frame(), "s": frame()}
    found = {}
    for name, more in (("default", {}), ("before", {"sampling-rate": 0.05, "rounds": 300, "clip": 1.0})):
        plan = pf.Plan.from_frames(
            frames,
            target="y",
            epsilon=1.0,
            delta=1e-5,
            protect="record",
            classes=["no", "yes"],
            bounds={"a": (0, 3000), "b": (-1000, 2000)},
            at_least=2000,
            test_fraction=0.25,
            privacy=more,
        )
        budget = plan.sign(pf.generate_key(), unsafe_seeded_research_noise=True)
        found[name] = plan.train(budget).result.record.overall["auc"]
    assert found["default"] > 0.85
    assert found["default"] > found["before"] + 0.02


def test_another_number_of_numeric_columns_is_refused(tmp_path: Path) -> None:
    from privfair.api.draft import draft

    with pytest.raises(InvalidInput, match="is not the number of numeric columns, 2"):
        draft(Plan.read(_plan_with_columns(tmp_path, 3)))


def _plan_with_columns(folder: Path, columns: int) -> Path:
    write(folder, PLAN + f'algorithm = "gaussian"\n[privacy]\nscale-columns = {columns}\n')
    return folder / "plan.toml"

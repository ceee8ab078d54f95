"""Every bad value is refused by the flag's name; plain values make the same plan again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, get_args, get_type_hints

import pytest

from calibrate.errors import InvalidInput
from calibrate.plans import PLANS, parameter_names, plan_from_mapping
from calibrate.plans.clipped_sums import FpflPlan
from calibrate.plans.gaussian import GaussianPlan, OwnLoopPlan
from calibrate.plans.plan import AlgorithmName, Flag, Plan
from calibrate.plans.steffle import StefflePlan

GOOD: dict[str, dict[str, object]] = {
    "steffle": {
        "silo_size": 7500,
        "batch_size": 256,
        "rounds": 1172,
        "minority_fraction": 0.4,
        "lipschitz": 1.0,
        "w_radius": 2.0,
    },
    "fedfdp": {"sampling_rate": 0.05, "rounds": 268, "clip": 0.1, "loss_clip": 2.5, "loss_noise_ratio": 2.5},
    "fpfl": {"users": 16280, "cohort": 200, "rounds": 1000, "clip": 2.0},
    "mmd-fedavg": {"group_size": 2000, "samples_per_group": 50, "rounds": 100},
    "gaussian": {"sampling_rate": 0.01, "rounds": 1000},
    "pay-once": {"groups": 3},
}

BAD: list[tuple[str, str, object]] = [
    ("steffle", "silo-size", 0),
    ("steffle", "batch-size", 7501),
    ("steffle", "batch-size", 2.5),
    ("steffle", "rounds", 0),
    ("steffle", "minority-fraction", 0.51),
    ("steffle", "minority-fraction", 0.0),
    ("steffle", "lipschitz", -1.0),
    ("steffle", "w-radius", float("nan")),
    ("steffle", "sampling", "sorted"),
    ("steffle", "groups", 1),
    ("steffle", "theta-share", 1.0),
    ("steffle", "histogram-noise-ratio", 0.0),
    ("fedfdp", "sampling-rate", 1.5),
    ("fedfdp", "rounds", -3),
    ("fedfdp", "clip", 0.0),
    ("fedfdp", "loss-clip", float("inf")),
    ("fedfdp", "loss-noise-ratio", 0.0),
    ("fpfl", "users", True),
    ("fpfl", "cohort", 20000),
    ("fpfl", "clip", "much"),
    ("fpfl", "sampling", "shuffled"),
    ("mmd-fedavg", "samples-per-group", 2001),
    ("mmd-fedavg", "mechanism", "uniform"),
    ("mmd-fedavg", "group-size", 0),
    ("gaussian", "sampling-rate", 0.0),
    ("gaussian", "relation", "neighbour"),
    ("gaussian", "noise", []),
    ("gaussian", "noise", [1.0, -1.0]),
    ("pay-once", "groups", 1),
]


@pytest.mark.parametrize(("algorithm", "flag", "value"), BAD)
def test_a_bad_value_is_refused_by_the_flags_name(algorithm: str, flag: str, value: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        plan_from_mapping(algorithm, GOOD[algorithm] | {flag.replace("-", "_"): value})
    assert refused.value.argument == flag


@pytest.mark.parametrize("algorithm", GOOD)
def test_parameters_make_the_same_plan_again(algorithm: str) -> None:
    plan = plan_from_mapping(algorithm, GOOD[algorithm])
    assert plan_from_mapping(algorithm, plan.parameters()) == plan
    unset = {name for name in plan.newer if getattr(plan, name) is None}
    assert set(plan.parameters()) | unset == set(parameter_names(AlgorithmName(algorithm)))


@pytest.mark.parametrize("algorithm", GOOD)
def test_dashes_and_underscores_are_the_same(algorithm: str) -> None:
    dashed = {key.replace("_", "-"): value for key, value in GOOD[algorithm].items()}
    assert plan_from_mapping(algorithm, dashed) == plan_from_mapping(algorithm, GOOD[algorithm])


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidInput, match="did you mean batch-size"):
        plan_from_mapping("steffle", GOOD["steffle"] | {"batchsize": 3})


def test_a_name_given_twice_is_refused() -> None:
    with pytest.raises(InvalidInput, match="twice"):
        plan_from_mapping("steffle", GOOD["steffle"] | {"batch-size": 256})


@pytest.mark.parametrize("algorithm", ["steffle", "fedfdp", "fpfl", "mmd-fedavg", "gaussian"])
def test_a_missing_name_is_asked_for(algorithm: str) -> None:
    for missing in GOOD[algorithm]:
        rest = {key: value for key, value in GOOD[algorithm].items() if key != missing}
        with pytest.raises(InvalidInput) as refused:
            plan_from_mapping(algorithm, rest)
        assert refused.value.argument == missing.replace("_", "-")


def test_an_unknown_algorithm_is_refused_with_the_list() -> None:
    with pytest.raises(InvalidInput, match="mmd-fedavg"):
        plan_from_mapping("fedavg", {})


def test_full_batches_need_no_batch_size_and_contradict_a_smaller_one() -> None:
    rest = {key: value for key, value in GOOD["steffle"].items() if key != "batch_size"}
    assert plan_from_mapping("steffle", rest | {"sampling": "full"}).parameters()["batch_size"] == 7500
    with pytest.raises(InvalidInput, match="contradicts full batches"):
        plan_from_mapping("steffle", GOOD["steffle"] | {"sampling": "full"})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"sampling_rate": 0.03, "sampling": "random-allocation"}, "one over the batches"),
        ({"sampling_rate": 0.1, "batches": 11, "sampling": "random-allocation"}, "one over the batches"),
        ({"batches": 10}, "is for random allocation"),
        ({"batches": 0, "sampling_rate": 0.1, "sampling": "random-allocation"}, "whole number"),
        ({"batches": 10, "sampling": "random-allocation", "relation": "replace-one"}, "no proved price"),
    ],
)
def test_batches_that_are_not_random_allocation_are_refused(given: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        plan_from_mapping("gaussian", {"rounds": 20} | given)


@pytest.mark.parametrize("missing", ["users", "cohort", "update_clip"])
def test_the_flags_of_updates_come_together(missing: str) -> None:
    flags: dict[str, object] = {"users": 100, "cohort": 10, "update_clip": 1.0}
    del flags[missing]
    with pytest.raises(InvalidInput) as refused:
        plan_from_mapping("mmd-fedavg", GOOD["mmd-fedavg"] | flags)
    assert refused.value.argument == missing.replace("_", "-")


@pytest.mark.parametrize("plan", PLANS.values())
def test_every_parameter_has_its_flag_with_a_sentence_that_stands_alone(plan: type[Plan]) -> None:
    hints = get_type_hints(plan, include_extras=True)
    for field in fields(plan):
        _, flag = get_args(hints[field.name])
        assert isinstance(flag, Flag)
        assert flag.help[0].isupper() or flag.help.startswith("sigma")
        assert flag.help.endswith(".")


@pytest.mark.parametrize(
    "make",
    [
        lambda name: FpflPlan(100, 10, 5, 1.0, sampling=name),
        lambda name: StefflePlan(1000, 100, 5, 0.4, 1.0, 1.0, sampling=name),
        lambda name: GaussianPlan(0.1, 5, sampling=name),
        lambda name: OwnLoopPlan(100, 5, sampling=name, sampling_rate=0.1),
    ],
)
@pytest.mark.parametrize("name", ["fixed", "full", "poisson", "shuffled"])
def test_a_bare_name_of_a_sampling_is_refused(make: Callable[[Any], Plan], name: str) -> None:
    with pytest.raises(InvalidInput, match="sampling"):
        make(name)

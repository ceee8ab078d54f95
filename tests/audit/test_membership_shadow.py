"""Shadow models: a stack is as good as one model after another, under any executor, and stops when it is told to."""

from __future__ import annotations

import pickle
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.reduction import ForkingPickler
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from torch import nn

from audit.models.shadow_models import ShadowRecipe, ShadowRecords, random_halves, train_shadow_models
from audit.models.stacked import StackedLogistic, StackedModule, StackedPerceptron
from audit.models.targets import ClonedEstimator, twin_forest
from audit.models.torch_targets import TorchTarget
from calibrate.errors import InvalidInput, UnsupportedCombination
from tests.audit.membership_worlds import audited, noisy_records
from tests.audit.private_shadow_models import StackedPrivateLogistic

NET = StackedPerceptron((16, 12), epochs=12, batch=16, penalty=1e-3)
LOGISTIC = StackedLogistic(epochs=5)
PRIVATE = StackedPrivateLogistic(steps=10, clip=1.0, noise_multiplier=2.0)


def two_classes(number: int = 120) -> ShadowRecords:
    many = noisy_records(number, 3)
    return ShadowRecords(many.features, many.labels % 2, 2)


def cases() -> dict[str, tuple[ShadowRecipe, ShadowRecords]]:
    two, many = two_classes(), noisy_records(120, 3)
    return {
        "logistic": (LOGISTIC, two),
        "logistic, many classes": (LOGISTIC, many),
        "private logistic": (PRIVATE, two),
        "perceptron": (NET, many),
        "module": (
            StackedModule(nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4)), epochs=12, batch=16),
            many,
        ),
        "module, one output": (StackedModule(nn.Linear(20, 1), epochs=12, batch=16), two),
        "clones": (ClonedEstimator(LogisticRegression(), many.features), many),
        "forests": (ClonedEstimator(RandomForestClassifier(8), two.features), two),
    }


every_recipe = pytest.mark.parametrize(("recipe", "records"), cases().values(), ids=cases())


@every_recipe
def test_a_model_does_not_depend_on_its_company(recipe: ShadowRecipe, records: ShadowRecords) -> None:
    included = random_halves(6, len(records), 0)
    together = train_shadow_models(recipe, records, included, seed=1, group=6)
    in_pairs = train_shadow_models(recipe, records, included, seed=1, group=2)
    np.testing.assert_allclose(together, in_pairs, atol=2e-3)
    again = train_shadow_models(recipe, records, included, seed=1, group=6)
    np.testing.assert_array_equal(together, again)


@every_recipe
def test_a_record_that_is_not_included_has_no_influence(recipe: ShadowRecipe, records: ShadowRecords) -> None:
    included = random_halves(2, len(records), 0)
    outside = ~included[0]
    labels = records.labels.copy()
    labels[outside] = (labels[outside] + 1) % records.classes
    changed = replace(records, labels=labels)
    before = train_shadow_models(recipe, records, included, 1)[0]
    after = train_shadow_models(recipe, changed, included, 1)[0]
    np.testing.assert_allclose(before[included[0]], after[included[0]], atol=1e-5)


@every_recipe
def test_signals_say_how_firmly_the_own_label_is_believed(recipe: ShadowRecipe, records: ShadowRecords) -> None:
    included = random_halves(4, len(records), 0)
    signals = train_shadow_models(recipe, records, included, 1)
    assert signals.shape == (4, len(records))
    if recipe is not PRIVATE:
        assert (signals[included] > 0).mean() > 0.7


def test_the_logistic_stack_reaches_the_optimum() -> None:
    records = two_classes(400)
    included = np.ones((1, 400), dtype=bool)
    ours = train_shadow_models(StackedLogistic(epochs=400, batch=400, penalty=1e-2), records, included, 0)[0]
    exact = LogisticRegression(C=1 / (1e-2 * 400), tol=1e-10, max_iter=10_000)
    # The stack shrinks the intercept too, so it is a feature here.
    x = np.hstack((records.features, np.ones((400, 1))))
    exact.set_params(fit_intercept=False).fit(x, records.labels)
    theirs = exact.decision_function(x) * (2 * records.labels - 1)
    np.testing.assert_allclose(ours, theirs, atol=2e-3)


def test_a_stacked_net_is_the_net_that_torch_trains() -> None:
    """Same start, same order, descent with momentum, one model: autograd and a loop."""
    records, included = noisy_records(50, 3), np.ones((2, 50), dtype=bool)
    included[0, ::3] = False
    recipe = StackedPerceptron((7,), epochs=3, batch=16, learning_rate=0.05, penalty=1e-3)
    start, trained = (
        StackedPerceptron.layers(replace(recipe, learning_rate=rate), records, included, (5, 6))
        for rate in (1e-30, 0.05)
    )
    model = nn.Sequential(nn.Linear(20, 7), nn.ReLU(), nn.Linear(7, 4))
    for parameter, values in zip(model.parameters(), start, strict=True):
        parameter.data = values[0].T.contiguous() if parameter.ndim == 2 else values[0, 0].clone()
    speeds = [torch.zeros_like(parameter) for parameter in model.parameters()]
    random, own = np.random.default_rng((5, 1)), np.flatnonzero(included[0])
    x, y = torch.from_numpy(records.features).float(), torch.from_numpy(records.labels)
    for _ in range(3):
        order = random.permutation(own)
        for begin in range(0, len(own), 16):
            rows = order[begin : begin + 16]
            model.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            with torch.no_grad():
                for parameter, speed in zip(model.parameters(), speeds, strict=True):
                    speed.mul_(0.9).add_(parameter.grad + 1e-3 * parameter)
                    parameter -= 0.05 * speed
    for parameter, values in zip(model.parameters(), trained, strict=True):
        ours = values[0].T if parameter.ndim == 2 else values[0, 0]
        torch.testing.assert_close(ours, parameter.data, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(20, 4), nn.BatchNorm1d(4)), "statistics"),
        (nn.Sequential(nn.Linear(20, 4), nn.Dropout(0.5)), "at random"),
        (nn.ReLU(), "no parameters"),
    ],
)
def test_modules_that_cannot_be_stacked_are_refused_and_replaced(module: nn.Module, reason: str) -> None:
    with pytest.raises(UnsupportedCombination, match=reason):
        StackedModule(module)
    records = audited(noisy_records(40, 3), 20, 20)
    assert isinstance(TorchTarget(module).shadow_recipe(records), StackedPerceptron)


def test_a_stacked_module_leaves_the_target_and_the_global_generator_alone() -> None:
    module, records = nn.Linear(20, 4), noisy_records(40, 3)
    before = module.weight.detach().clone()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    train_shadow_models(StackedModule(module, epochs=2), records, random_halves(2, 40, 0), 1)
    assert torch.rand(1) == expected
    assert torch.equal(module.weight, before)


def test_private_shadow_models_clip_and_add_noise() -> None:
    """One step from zero: the mean over runs is the clipped gradient, the spread is the noise."""
    records, runs = two_classes(60), 4000
    included = np.ones((runs, 60), dtype=bool)
    recipe = StackedPrivateLogistic(steps=1, clip=0.5, noise_multiplier=2.0, learning_rate=1.0)
    signals = train_shadow_models(recipe, records, included, 0, group=runs)
    x = np.hstack((records.features, np.ones((60, 1))))
    gradients = (0.5 - records.labels)[:, None] * x
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    clipped = (gradients * np.minimum(1, 0.5 / norms)).sum(axis=0)
    sign = 2 * records.labels - 1
    expected = (-x @ clipped / 60) * sign
    deviation = np.linalg.norm(x, axis=1) * 0.5 * 2.0 / 60
    assert np.abs((signals.mean(axis=0) - expected) / deviation).max() < 4.5 / np.sqrt(runs)
    np.testing.assert_allclose(signals.std(axis=0), deviation, rtol=0.06)
    with pytest.raises(UnsupportedCombination, match="4 classes"):
        train_shadow_models(recipe, noisy_records(60, 1), included[:2], 0)


# --- masks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("models", [2, 5, 64])
def test_each_record_is_in_half_of_the_models(models: int) -> None:
    included = random_halves(models, 500, seed=9)
    numbers = included.sum(axis=0)
    assert set(numbers) <= {models // 2, (models + 1) // 2}
    assert np.abs(included.mean(axis=1) - 0.5).max() < 0.2
    np.testing.assert_array_equal(included, random_halves(models, 500, seed=9))
    assert (included != random_halves(models, 500, seed=10)).any()


def test_one_shadow_model_has_no_half() -> None:
    with pytest.raises(InvalidInput, match="shadow models"):
        random_halves(1, 10, 0)


# --- executors, progress, interrupts ------------------------------------------------------------------------------


def test_threads_give_the_same_signals() -> None:
    records, included = noisy_records(80, 3), random_halves(6, 80, 0)
    here = train_shadow_models(NET, records, included, 1, group=2)
    with ThreadPoolExecutor(2) as threads:
        found = train_shadow_models(NET, records, included, 1, threads, group=2)
    np.testing.assert_allclose(found, here, atol=1e-5)


@every_recipe
def test_a_recipe_can_be_sent_to_another_process(recipe: ShadowRecipe, records: ShadowRecords) -> None:
    included = random_halves(2, len(records), 0)
    sent = pickle.loads(bytes(ForkingPickler.dumps(recipe)))
    np.testing.assert_array_equal(
        train_shadow_models(sent, records, included, 1), train_shadow_models(recipe, records, included, 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["perceptron", "module"])
def test_processes_give_the_same_signals(name: str) -> None:
    recipe, records = cases()[name]
    included = random_halves(4, len(records), 0)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as processes:
        found = train_shadow_models(recipe, records, included, 1, processes, group=2)
    np.testing.assert_allclose(found, train_shadow_models(recipe, records, included, 1, group=2), atol=1e-3)


def test_progress_counts_models() -> None:
    seen: list[tuple[int, int]] = []
    records = noisy_records(40, 3)
    train_shadow_models(
        LOGISTIC, records, random_halves(5, 40, 0), 1, progress=lambda done, total: seen.append((done, total)), group=2
    )
    assert seen == [(2, 5), (4, 5), (5, 5)]


class Waiting(Executor):
    """Runs nothing until it is asked; the first future is interrupted."""

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if not self.futures:
            future.set_exception(KeyboardInterrupt())
        self.futures.append(future)
        return future


def test_an_interrupt_cancels_what_has_not_begun() -> None:
    executor, records = Waiting(), noisy_records(40, 3)
    with pytest.raises(KeyboardInterrupt):
        train_shadow_models(LOGISTIC, records, random_halves(8, 40, 0), 1, executor, group=2)
    assert [future.cancelled() for future in executor.futures] == [False, True, True, True]


def test_an_interrupt_in_the_progress_stops_at_once() -> None:
    def interrupted(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_shadow_models(LOGISTIC, noisy_records(40, 3), random_halves(8, 40, 0), 1, progress=interrupted, group=2)


# --- refusals -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Diverging:
    kind: ClassVar[str] = "diverging"
    training: ClassVar[str] = "badly"

    def signals(self, records: ShadowRecords, included: np.ndarray, seeds: tuple[int, ...]) -> np.ndarray:
        return np.full(included.shape, np.nan)


def test_training_that_diverges_is_an_error_that_says_so() -> None:
    with pytest.raises(InvalidInput, match="learning rate"):
        train_shadow_models(Diverging(), noisy_records(40, 3), random_halves(2, 40, 0), 1)


@pytest.mark.parametrize(
    ("features", "labels", "match"),
    [
        (np.zeros((3, 2)), np.zeros(2, dtype=int), "records"),
        (np.full((3, 2), np.nan), np.zeros(3, dtype=int), "finite"),
        (np.zeros((3, 2)), np.full(3, 7), "labels"),
    ],
)
def test_bad_records_are_refused(features: np.ndarray, labels: np.ndarray, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        ShadowRecords(features, labels, 2)


@pytest.mark.parametrize(
    "build",
    [
        lambda: StackedPerceptron(()),
        lambda: StackedPerceptron((0,)),
        lambda: StackedPerceptron(epochs=0),
        lambda: StackedLogistic(learning_rate=0.0),
        lambda: StackedLogistic(momentum=1.0),
        lambda: StackedPrivateLogistic(0, 1.0, 1.0),
        lambda: StackedPrivateLogistic(1, -1.0, 1.0),
    ],
)
def test_bad_recipes_are_refused(build: Any) -> None:
    with pytest.raises(InvalidInput):
        build()


@pytest.mark.parametrize("kind", [RandomForestClassifier, ExtraTreesClassifier])
def test_a_forest_of_two_classes_is_grown_as_the_regression_that_splits_alike(kind: type[Any]) -> None:
    """Most trees are the same; all together the two answers differ less than two forests of different seeds do."""
    records = two_classes(400)
    forest = kind(60, min_samples_leaf=2, random_state=7)
    twin, other = twin_forest(forest), clone(forest).set_params(random_state=8)
    for model in (forest, twin, other):
        model.fit(records.features, records.labels)
    assert np.mean([_splits(one) == _splits(two) for one, two in zip(forest, twin, strict=True)]) > 0.5
    share = forest.predict_proba(records.features)[:, 1]
    apart = np.abs(twin.predict(records.features) - share).mean()
    assert apart < np.abs(other.predict_proba(records.features)[:, 1] - share).mean() / 2


def _splits(tree: Any) -> list[int]:
    return list(tree.tree_.feature)


@pytest.mark.parametrize(
    "estimator",
    [
        RandomForestClassifier(criterion="entropy"),
        RandomForestClassifier(class_weight="balanced"),
        RandomForestClassifier(min_impurity_decrease=0.01),
        RandomForestClassifier(ccp_alpha=0.01),
        LogisticRegression(),
        make_pipeline(RandomForestClassifier()),
    ],
    ids=str,
)
def test_whatever_a_regression_would_grow_otherwise_is_cloned(estimator: Any) -> None:
    assert twin_forest(estimator) is None

"""A training loop is measured: what is wrong with noise, clipping, batches or seeds is refuted; right loops pass."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

import privfair as pf
from audit.coins.loop import BATCHES, FRESH, NOISE, measure_loop
from audit.coins.training_canaries import training_data
from audit.report.results import Check, CheckOutcome, Conclusion
from calibrate.releases import Gaussian, Release, Repeated, Sampled
from calibrate.sampling import Batch, FixedSize, Poisson
from tests.audit import strangers_training as strangers

torch = pytest.importorskip("torch")
RATE, STEPS, SIGMA = 0.05, 20, 1.38
CENSUS = strangers.census()
DECLARED = Repeated(Sampled(Poisson(RATE, Batch.SECRET), Gaussian(SIGMA)), STEPS)


def by_hand(
    data: Any, watch: Any, *, wrong: str = "", noise: float = SIGMA, hidden: int = 0, steps: int = STEPS
) -> Any:
    """DP-SGD in plain torch; `wrong` names what it gets wrong."""
    x, y = torch.as_tensor(data[0]), torch.as_tensor(data[1])
    layers = [torch.nn.Linear(x.shape[1], hidden), torch.nn.Tanh()] if hidden else []
    model = torch.nn.Sequential(*layers, torch.nn.Linear(hidden or x.shape[1], 2))
    loss, size = torch.nn.CrossEntropyLoss(), int(RATE * len(x))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9 if wrong == "momentum" else 0.0)

    def loss_of(values: Any, a: Any, b: Any) -> Any:
        return loss(torch.func.functional_call(model, values, (a[None],)), b[None])

    for step in range(steps):
        batch = torch.rand(len(x)) < RATE * (2 if wrong == "twice the rate" else 1)
        if wrong == "batches of one size":
            batch = torch.randperm(len(x))[:size]
        if wrong == "the seed of the noise":
            torch.manual_seed(7)
        values = {name: one.detach() for name, one in model.named_parameters()}
        each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(values, x[batch], y[batch])
        if wrong == "the mean is clipped":
            each = {name: one.mean(0, keepdim=True) * size for name, one in each.items()}
        norms = {name: one.flatten(1).norm(dim=1) for name, one in each.items()}
        total = torch.stack(list(norms.values())).norm(dim=0)
        for name, one in model.named_parameters():
            bar = size if wrong == "the mean is clipped" else 1.0
            longest = {"clipped by layer": norms[name], "not clipped": 0 * total}.get(wrong, total)
            clipped = (each[name].flatten(1) / (longest / bar).clamp(min=1.0)[:, None]).sum(0).reshape(one.shape)
            drawn = noise * torch.randn_like(one) * (0.5 if wrong == "half of it later" and step else 1.0)
            if wrong == "divided twice" or (wrong == "none in the bias" and name.endswith("bias")):
                drawn = drawn / size if wrong == "divided twice" else 0 * drawn
            one.grad = (clipped + drawn) / size
        optimizer.step()
        if watch is not None:
            watch.step(model, loss)
    return model


def opacus(data: Any, watch: Any, *, noise: float = SIGMA, hidden: int = 0) -> Any:
    pytest.importorskip("opacus")
    return strangers.opacus_loop(data, watch, noise=noise, hidden=hidden, rate=RATE, steps=STEPS)


def without_watch(loop: Callable[..., Any]) -> Callable[[Any], Any]:
    class Blind:
        def step(self, *_: object) -> None:
            pass

    return lambda data: loop(data, Blind())


def measured(loop: Callable[..., Any], mechanism: Release = DECLARED, seed: int = 0) -> dict[str, Check]:
    return {check.name: check for check in measure_loop(loop, training_data(CENSUS), mechanism, seed)}


RIGHT = {
    "by hand": by_hand,
    "hidden units": functools.partial(by_hand, hidden=8),
    "momentum": functools.partial(by_hand, wrong="momentum"),
    "opacus": opacus,
    "nothing is shown": without_watch(opacus),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["by hand", "opacus", "nothing is shown"])
def test_a_right_loop_passes(name: str) -> None:
    found = measured(RIGHT[name])
    assert {check.outcome for check in found.values()} == {CheckOutcome.PASSED}, found
    power = found[NOISE].noise_power
    assert power is not None
    assert power.noticed > 0.85


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_right_loops_are_never_refuted(seed: int) -> None:
    found = measured(list(RIGHT.values())[seed % len(RIGHT)], seed=seed)
    assert CheckOutcome.FAILED not in {check.outcome for check in found.values()}, found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("check", "loop"),
    [
        (NOISE, functools.partial(by_hand, noise=SIGMA / 2)),
        (NOISE, functools.partial(opacus, noise=SIGMA / 2)),
        (NOISE, without_watch(functools.partial(opacus, noise=SIGMA / 2))),
        (NOISE, functools.partial(by_hand, wrong="clipped by layer")),
        (NOISE, functools.partial(by_hand, wrong="not clipped")),
        (NOISE, functools.partial(by_hand, wrong="divided twice")),
        (NOISE, functools.partial(by_hand, wrong="none in the bias")),
        (NOISE, functools.partial(by_hand, wrong="the mean is clipped")),
        (BATCHES, functools.partial(by_hand, wrong="twice the rate")),
        (BATCHES, functools.partial(by_hand, wrong="batches of one size")),
        (BATCHES, functools.partial(by_hand, steps=STEPS + 1)),
        (FRESH, functools.partial(by_hand, wrong="the seed of the noise")),
    ],
)
def test_a_wrong_loop_is_refuted(check: str, loop: Callable[..., Any]) -> None:
    found = measured(loop)
    assert found[check].outcome is CheckOutcome.FAILED, found


def test_a_loop_that_seeds_itself_has_the_same_noise_in_each_run() -> None:
    def seeded(data: Any, watch: Any) -> Any:
        torch.manual_seed(3)
        return by_hand(data, watch)

    found = measured(seeded)[FRESH]
    assert found.outcome is CheckOutcome.FAILED
    assert "two runs" in found.finding


def test_less_noise_after_the_first_step_is_not_called_measured() -> None:
    found = measured(functools.partial(by_hand, wrong="half of it later"))[NOISE]
    assert found.outcome is CheckOutcome.NOT_POSSIBLE
    assert "in 19 of 20 steps" in found.finding


class NumpyLoop(strangers.LogisticLoop):
    """Draws its noise from a generator that no seed reaches."""

    def __call__(self, data: Any, watch: Any) -> Any:
        np.random.seed(np.random.default_rng().integers(2**31))
        return super().__call__(data, watch)


@pytest.mark.parametrize(
    ("loop", "mechanism", "why"),
    [
        (NumpyLoop(), strangers.DECLARED, "cannot be seeded"),
        (strangers.scikit_learn, strangers.DECLARED, "no gradient is seen"),
        (strangers.honest, Sampled(FixedSize(1500, 75), Gaussian(1.0)), "on Poisson batches"),
        (without_watch(functools.partial(by_hand, noise=0.0)), DECLARED, "have no noise"),
    ],
)
def test_what_cannot_be_measured_is_not_possible(loop: Any, mechanism: Release, why: str) -> None:
    found = measured(loop, mechanism)[NOISE]
    assert found.outcome is CheckOutcome.NOT_POSSIBLE
    assert why in found.finding


def test_numpy_loops_are_measured_through_one_call_of_watch() -> None:
    right, half = (measured(strangers.LogisticLoop(scale), strangers.DECLARED) for scale in (1.49, 0.745))
    assert right[NOISE].outcome is CheckOutcome.PASSED
    assert half[NOISE].outcome is CheckOutcome.FAILED
    assert "block 1" not in right[NOISE].finding


def test_the_verdict_follows_from_the_measured_loop() -> None:
    asked: dict[str, Any] = {"mechanism": DECLARED, "access": "gradients", "runs": 2}
    assert pf.audit_training(by_hand, CENSUS, **asked).verdict is Conclusion.CONSISTENT
    half = pf.audit_training(functools.partial(by_hand, noise=SIGMA / 2), CENSUS, **asked)
    assert half.verdict is Conclusion.VIOLATED
    assert "effective noise multiplier 0.6" in half.why


def test_the_upper_end_is_below_the_truth_as_seldom_as_it_says() -> None:
    """Two layers, a tenth to nine tenths of the record in the small one: the level of each end, times two, holds."""
    random, level, repetitions = np.random.default_rng(0), 0.02, 20_000
    for share in (0.1, 0.5, 0.9):
        for free in (40, 160, 1000):
            parts, values = np.array([share, 1 - share]), np.array([free, 30_000])
            squares = random.chisquare(values, (repetitions, 2))
            found, least = parts * chi2.ppf(0.5, values) / squares, parts * chi2.ppf(level / 2, values) / squares
            reached = found.sum(axis=1) - np.sqrt(((found - least) ** 2).sum(axis=1))
            assert (reached > 1).mean() < level

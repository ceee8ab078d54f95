"""FedProx, SCAFFOLD, FedDyn, q-FFL and agnostic learning, each against its defining equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.algorithms.baselines.client_losses import AgnosticFl, AgnosticOptions, QFfl, QFflOptions, on_simplex
from privfair.algorithms.baselines.drift import (
    FedDyn,
    FedDynOptions,
    FedProx,
    FedProxOptions,
    Scaffold,
    ScaffoldOptions,
)
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.parts.clients import GRADIENT, LOSS, NOISY, PLAIN, ClippedPairs, ClippedSums, LocalSteps
from privfair.contribution import Published
from privfair.models.linear import LogisticRegression
from privfair.plan.sections import GradientOptions
from tests.privfair.plain_models import ROUNDED, Plain

FEATURES, RECORDS = 3, 30
WEIGHTS = {"north": 0.7, "south": 0.3}
MODEL = LogisticRegression(FEATURES)


def _silo(name: str) -> SiloTensors:
    generator = torch.Generator().manual_seed(len(name) + (7 if name == "south" else 0))
    x = torch.randn(RECORDS, FEATURES, generator=generator, dtype=torch.float64)
    lean = 1.5 if name == "south" else -0.5
    y = (x @ torch.tensor([1.0, lean, 0.3], dtype=torch.float64) + 0.5 * lean > 0).long()
    return SiloTensors(name, x, y, y)


SILOS = {name: _silo(name) for name in WEIGHTS}


def _loss(theta: Tensor, name: str) -> Tensor:
    return Plain(MODEL).losses(theta, SILOS[name].x, SILOS[name].y).mean()


def _gradient(theta: Tensor, name: str) -> Tensor:
    point = theta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(_loss(point, name), point)
    return gradient


def _run(algorithm: Algorithm[Any], rounds: int) -> list[Any]:
    states = [algorithm.start()]
    for round in range(rounds):
        received = {}
        for name, silo in SILOS.items():
            message = algorithm.contribution(states[-1], round, silo, torch.arange(RECORDS))
            values = {c.name: c.values for c in message.noisy} | dict(message.clear or {})
            received[name] = {n: Published(round, name, n, np.array(v)) for n, v in values.items()}
        states.append(algorithm.update(states[-1], received))
    return states


def _average(rows: dict[str, Tensor]) -> Tensor:
    return sum(WEIGHTS[name] * row for name, row in rows.items())  # type: ignore[return-value]


def test_fedprox_descends_on_the_loss_with_the_proximal_term() -> None:
    algorithm = FedProx(MODEL, FedProxOptions(learning_rate=0.3, local_steps=4, proximal=0.8), WEIGHTS)
    states = _run(algorithm, 8)
    theta = algorithm.theta(states[0])
    for _ in range(2):
        rows = {}
        for name in WEIGHTS:
            local = theta.clone()
            for _ in range(4):
                point = local.clone().requires_grad_()
                objective = _loss(point, name) + 0.4 * (point - theta).square().sum()
                (gradient,) = torch.autograd.grad(objective, point)
                local = local - 0.3 * gradient
            rows[name] = local
        theta = _average(rows)
    np.testing.assert_allclose(algorithm.theta(states[-1]), theta, **ROUNDED)


def test_scaffold_follows_algorithm_1_with_option_two() -> None:
    options = ScaffoldOptions(learning_rate=0.2, local_steps=3, server_rate=0.9)
    algorithm = Scaffold(MODEL, options, WEIGHTS)
    states = _run(algorithm, 9)
    x = algorithm.theta(states[0])
    controls = {name: torch.zeros_like(x) for name in WEIGHTS}
    for _ in range(3):
        common, rows = _average(controls), {}
        for name in WEIGHTS:
            y = x.clone()
            for _ in range(3):
                y = y - 0.2 * (_gradient(y, name) - controls[name] + common)
            rows[name] = y
        controls = {name: controls[name] - common + (x - rows[name]) / (3 * 0.2) for name in WEIGHTS}
        x = x + 0.9 * (_average(rows) - x)
    np.testing.assert_allclose(algorithm.theta(states[-1]), x, **ROUNDED)
    np.testing.assert_allclose(states[-1].controls[1], controls["south"], **ROUNDED)


def test_feddyn_follows_its_equations() -> None:
    alpha, rate = 0.4, 0.3
    options = FedDynOptions(learning_rate=rate, local_steps=5, regularisation=alpha)
    algorithm = FedDyn(MODEL, options, WEIGHTS)
    states = _run(algorithm, 15)
    theta = algorithm.theta(states[0])
    own, drift = {name: torch.zeros_like(theta) for name in WEIGHTS}, torch.zeros_like(theta)
    for _ in range(3):
        rows = {}
        for name in WEIGHTS:
            local = theta.clone()
            for _ in range(5):
                point = local.clone().requires_grad_()
                objective = _loss(point, name) - own[name] @ point + alpha / 2 * (point - theta).square().sum()
                (gradient,) = torch.autograd.grad(objective, point)
                local = local - rate * gradient
            rows[name] = local
        own = {name: own[name] - alpha * (rows[name] - theta) for name in WEIGHTS}
        drift = drift - alpha * (_average(rows) - theta)
        theta = _average(rows) - drift / alpha
    np.testing.assert_allclose(algorithm.theta(states[-1]), theta, **ROUNDED)


def test_feddyn_stands_still_where_its_gradients_are_known() -> None:
    """Where each d_k is the client's own gradient, local steps stand still, whatever the clients' optima."""
    algorithm = FedDyn(MODEL, FedDynOptions(learning_rate=0.2, local_steps=1, regularisation=0.5), WEIGHTS)
    state = algorithm.start()
    best = torch.tensor([0.4, -0.2, 0.1, 0.3], dtype=torch.float64)
    gradients = torch.stack([_gradient(best, name) for name in WEIGHTS])
    state = type(state)(type(state.models)(best), gradients, torch.zeros_like(best))
    received = {}
    for name, silo in SILOS.items():
        message = algorithm.contribution(state, 0, silo, torch.arange(RECORDS))
        assert message.clear is not None
        received[name] = {n: Published(0, name, n, np.array(v)) for n, v in message.clear.items()}
    np.testing.assert_allclose(algorithm.theta(algorithm.update(state, received)), best, **ROUNDED)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("q", [0.0, 1.0, 2.5])
def test_q_ffl_takes_the_papers_step(q: float, steps: int) -> None:
    rate = 0.4
    algorithm = QFfl(MODEL, QFflOptions(learning_rate=rate, local_steps=steps, exponent=q), WEIGHTS)
    states = _run(algorithm, 2 * steps)
    theta = algorithm.theta(states[0])
    for _ in range(2):
        top, bottom = torch.zeros_like(theta), 0.0
        for name, share in WEIGHTS.items():
            local = theta.clone()
            for _ in range(steps):
                local = local - rate * _gradient(local, name)
            delta, loss = (theta - local) / rate, float(_loss(theta, name))
            top = top + share * loss**q * delta
            bottom += share * (q * loss ** (q - 1) * float(delta @ delta) + loss**q / rate)
        theta = theta - top / bottom
    np.testing.assert_allclose(algorithm.theta(states[-1]), theta, **ROUNDED)


def test_q_zero_is_fedavg() -> None:
    ours = QFfl(MODEL, QFflOptions(learning_rate=0.4, local_steps=2, exponent=0.0), WEIGHTS)
    plain = FedProx(MODEL, FedProxOptions(learning_rate=0.4, local_steps=2, proximal=0.0), WEIGHTS)
    np.testing.assert_allclose(ours.theta(_run(ours, 6)[-1]), plain.theta(_run(plain, 6)[-1]), rtol=1e-10)


def test_agnostic_learning_descends_and_ascends() -> None:
    algorithm = AgnosticFl(MODEL, AgnosticOptions(learning_rate=0.3, weight_rate=0.5), WEIGHTS)
    states = _run(algorithm, 4)
    theta, mixture = algorithm.theta(states[0]), np.array([0.7, 0.3])
    for state in states[1:]:
        losses = np.array([float(_loss(theta, name)) for name in WEIGHTS])
        step = sum(m * _gradient(theta, name) for m, name in zip(mixture, WEIGHTS, strict=True))
        theta = theta - 0.3 * step
        moved = mixture + 0.5 * losses
        mixture = minimize(
            lambda p, to=moved: np.square(p - to).sum(),
            mixture,
            bounds=[(0, 1)] * 2,
            constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
            options={"ftol": 1e-15},
        ).x
        np.testing.assert_allclose(state.mixture, mixture, atol=1e-6)
        np.testing.assert_allclose(state.theta, theta, rtol=1e-5)
        mixture = state.mixture
        theta = state.theta


def test_the_projection_is_the_nearest_point_of_the_simplex() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        values = generator.normal(0, 2, 5)
        found = on_simplex(values)
        assert found.sum() == pytest.approx(1.0)
        assert (found >= 0).all()
        others = generator.dirichlet(np.ones(5), 200)
        assert np.square(others - values).sum(axis=1).min() >= np.square(found - values).sum() - 1e-12
    np.testing.assert_allclose(on_simplex(np.array([0.2, 0.8])), [0.2, 0.8])


@pytest.mark.parametrize("kind", ["fedprox", "scaffold", "feddyn", "q-ffl", "agnostic"])
def test_with_a_wide_clip_the_private_form_takes_the_same_steps(kind: str) -> None:
    """Clipped sums over the expected size are plain means if nothing is clipped and the batch is as expected."""
    sizes = dict.fromkeys(WEIGHTS, float(RECORDS))
    sums, pairs = ClippedSums(1e3, sizes), ClippedPairs(1e3, 1e3, sizes)
    plain, private = {
        "fedprox": lambda: (FedProx(MODEL, FedProxOptions(), WEIGHTS), FedProx(MODEL, FedProxOptions(), WEIGHTS, sums)),
        "scaffold": lambda: (
            Scaffold(MODEL, ScaffoldOptions(), WEIGHTS),
            Scaffold(MODEL, ScaffoldOptions(), WEIGHTS, sums),
        ),
        "feddyn": lambda: (FedDyn(MODEL, FedDynOptions(), WEIGHTS), FedDyn(MODEL, FedDynOptions(), WEIGHTS, sums)),
        "q-ffl": lambda: (QFfl(MODEL, QFflOptions(), WEIGHTS), QFfl(MODEL, QFflOptions(), WEIGHTS, pairs)),
        "agnostic": lambda: (
            AgnosticFl(MODEL, AgnosticOptions(), WEIGHTS),
            AgnosticFl(MODEL, AgnosticOptions(), WEIGHTS, pairs),
        ),
    }[kind]()
    np.testing.assert_allclose(
        private.theta(_run(private, 10)[-1]), plain.theta(_run(plain, 10)[-1]), rtol=1e-7, atol=1e-9
    )
    assert private.clear_values() == ()
    assert set(private.shapes()) == ({NOISY} if kind in ("fedprox", "scaffold", "feddyn") else {GRADIENT, LOSS})


def _published(values: dict[str, np.ndarray], name: str) -> dict[str, dict[str, Published]]:
    return {party: {name: Published(0, party, name, own)} for party, own in values.items()}


def test_with_one_step_per_message_proximal_terms_and_control_variates_vanish() -> None:
    """Whatever clients publish, noise included: FedProx and SCAFFOLD are DP-FedSGD, FedDyn is descent with momentum.

    FedDyn's weighted mean of the d_k is h, so with a = eta alpha: h' = h + a (g - h) and w' = w - eta / a (2 h' - h).
    """
    generator, rate, alpha = np.random.default_rng(5), 0.4, 0.25
    expected = {name: 100 * share for name, share in WEIGHTS.items()}
    sums = ClippedSums(1.0, expected)
    plain = DpFedSgd(MODEL, GradientOptions(rate), 1.0, 100.0)
    prox = FedProx(MODEL, FedProxOptions(rate, 1, proximal=7.0), WEIGHTS, sums)
    variates = Scaffold(MODEL, ScaffoldOptions(rate, 1), WEIGHTS, sums)
    dynamic = FedDyn(MODEL, FedDynOptions(rate, 1, alpha), WEIGHTS, sums)
    states: dict[Any, Any] = {algorithm: algorithm.start() for algorithm in (plain, prox, variates, dynamic)}
    momentum, walked = np.zeros(MODEL.size), dynamic.theta(dynamic.start()).numpy()
    for _ in range(30):
        values = {name: generator.normal(0, 20, MODEL.size) for name in WEIGHTS}
        states = {one: one.update(state, _published(values, NOISY)) for one, state in states.items()}
        before, gradient = momentum, sum(values.values()) / 100
        momentum = momentum + rate * alpha * (gradient - momentum)
        walked = walked - (2 * momentum - before) / alpha
    reached = plain.theta(states[plain])
    assert float(reached.norm()) > 0.1
    for same in (prox, variates):
        np.testing.assert_allclose(same.theta(states[same]), reached, rtol=1e-9)
    np.testing.assert_allclose(dynamic.theta(states[dynamic]), walked, rtol=1e-9)


def test_corrected_steps_reach_the_optimum_that_averaged_local_steps_miss() -> None:
    """Clients with the losses |A_k (w - b_k)|^2 / 2: the best model is not where FedAvg stands still."""
    curvatures = {"north": np.array([1.0, 0.2, 0.5, 0.1]), "south": np.array([0.1, 1.0, 0.3, 0.9])}
    centres = {"north": np.array([1.0, -2.0, 0.5, 1.0]), "south": np.array([-1.0, 3.0, 0.0, -2.0])}
    weighted = {name: WEIGHTS[name] * curvatures[name] for name in WEIGHTS}
    best = sum(weighted[name] * centres[name] for name in WEIGHTS) / sum(weighted.values())

    def distance(algorithm: LocalSteps[Any]) -> float:
        state = algorithm.start()
        for _ in range(6000):
            models = algorithm.local_models(state)
            slopes = {
                name: curvatures[name] * (models.of(place).numpy() - centres[name])
                for place, name in enumerate(WEIGHTS)
            }
            state = algorithm.update(state, _published(slopes, PLAIN))
        return float(np.linalg.norm(algorithm.theta(state).numpy() - best))

    assert distance(FedProx(MODEL, FedProxOptions(0.2, 10, proximal=0.0), WEIGHTS)) > 0.1
    assert distance(Scaffold(MODEL, ScaffoldOptions(0.2, 10), WEIGHTS)) < 1e-9
    assert distance(FedDyn(MODEL, FedDynOptions(0.2, 10, 0.3), WEIGHTS)) < 1e-9

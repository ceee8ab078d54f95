"""Without noise and with one silo, what SteFFLe sends is the gradient of the FERMI objective."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from privfair.algorithms.steffle import H_THETA, H_W, LOSS_GRADIENT, WCenter
from privfair.fairness import fermi
from privfair.models.exact import Bits
from privfair.models.perceptron import Perceptron
from privfair.rounding import ROUNDING_SLACK
from tests.privfair.fermi_values import chi_square, optimal_w, psi
from tests.privfair.plain_models import Plain
from tests.privfair.steffle_cases import (
    NOTIONS,
    everybody,
    logistic,
    mean_loss,
    noisy_values,
    numeric_gradient,
    silo_of,
    some_state,
    steffle_for,
)

FAIRNESS = 1.7
SIZES = ((2, 2), (3, 2), (2, 4), (5, 5))


def _mean_psi(algorithm, theta, w, silo):
    frequencies = algorithm.start().frequencies
    block = fermi.block_of(algorithm.options.notion, silo.y, algorithm.options.positive_class)
    probabilities = Plain(algorithm.model).probabilities(theta, silo.x)
    return psi(w, probabilities, silo.s, block, frequencies).mean()


@pytest.mark.parametrize("center", list(WCenter))
@pytest.mark.parametrize("notion", NOTIONS)
@pytest.mark.parametrize(("groups", "classes"), SIZES)
def test_gradients_are_those_of_the_min_max_objective(groups, classes, notion, center) -> None:
    model, silo = logistic(3, classes), silo_of(60, 3, groups, classes)
    algorithm = steffle_for(model, groups, batch_size=len(silo), notion=notion, fairness=FAIRNESS, w_center=center)
    state = some_state(algorithm)
    message = algorithm.contribution(state, 3, silo, everybody(silo))
    sent = noisy_values(message)
    theta, w = state.descent.theta, algorithm.w(state)

    def objective(at):
        return mean_loss(model, at, silo) + FAIRNESS * _mean_psi(algorithm, at, w, silo)

    total = message.clear[LOSS_GRADIENT] + FAIRNESS * sent[H_THETA]
    np.testing.assert_allclose(total, numeric_gradient(objective, theta), atol=2e-8)
    of_w = numeric_gradient(lambda at: _mean_psi(algorithm, theta, at, silo), w)
    np.testing.assert_allclose(sent[H_W] * (1 + ROUNDING_SLACK), of_w, atol=3e-8)


@pytest.mark.parametrize("notion", NOTIONS)
@pytest.mark.parametrize(("groups", "classes"), SIZES)
def test_at_its_best_w_the_gradient_is_that_of_loss_plus_chi_square(groups, classes, notion) -> None:
    """Danskin: the FERMI objective min over theta of loss + lambda D_R, equations (5) and (6)."""
    model, silo = logistic(3, classes), silo_of(100, 3, groups, classes, seed=4)
    blocks = notion.blocks(classes)
    block = fermi.block_of(notion, silo.y, 1)
    counts = torch.stack([one_hot(silo.s[block == b], groups).sum(dim=0) for b in range(blocks)]).double()
    shares = counts / counts.sum(dim=1, keepdim=True)
    algorithm = steffle_for(
        model,
        groups,
        batch_size=len(silo),
        notion=notion,
        fairness=FAIRNESS,
        frequencies=tuple(shares.flatten().tolist()),
    )
    state = some_state(algorithm)
    members = one_hot(silo.s, groups).double()

    def joint(theta):
        return fermi.joint_distribution(Plain(model).probabilities(theta, silo.x), members, block, blocks) / len(silo)

    def objective(theta):
        return mean_loss(model, theta, silo) + FAIRNESS * chi_square(joint(theta))

    theta = state.descent.theta
    best = optimal_w(joint(theta), shares) - fermi.independence_point(shares, classes)
    message = algorithm.contribution(replace(state, deviation=best), 3, silo, everybody(silo))
    total = message.clear[LOSS_GRADIENT] + FAIRNESS * noisy_values(message)[H_THETA]
    np.testing.assert_allclose(total, numeric_gradient(objective, theta), atol=2e-8)
    np.testing.assert_allclose(noisy_values(message)[H_W], 0.0, atol=1e-7)


def test_a_network_sends_its_gradient_as_well() -> None:
    model, silo = Perceptron(3, (4,), 3, bits=Bits.LARGEST), silo_of(40, 3, 3, 3)
    algorithm = steffle_for(model, 3, batch_size=len(silo), fairness=FAIRNESS)
    state = some_state(algorithm, seed=2)
    message = algorithm.contribution(state, 3, silo, everybody(silo))
    w = algorithm.w(state)

    def objective(at):
        return mean_loss(model, at, silo) + FAIRNESS * _mean_psi(algorithm, at, w, silo)

    total = message.clear[LOSS_GRADIENT] + FAIRNESS * noisy_values(message)[H_THETA]
    np.testing.assert_allclose(total, numeric_gradient(objective, state.descent.theta), atol=2e-7)


@pytest.mark.slow
def test_descent_and_ascent_reach_the_fermi_optimum() -> None:
    """The whole loop without noise: at the end the gradient of loss + lambda chi^2 vanishes."""
    from privfair.algorithms.steffle import Steffle
    from tests.privfair.steffle_cases import without_noise

    draw = torch.Generator().manual_seed(5)
    silo = silo_of(400, 2, 2, 2, seed=5)
    s = (silo.x[:, 0] + 0.5 * torch.randn(400, generator=draw) > 0).long()
    y = (silo.x.sum(dim=1) + torch.randn(400, generator=draw) > 0).long()
    silo = replace(silo, s=s, y=y)
    shares = torch.bincount(s).double() / 400
    algorithm: Steffle = steffle_for(
        logistic(2, 2),
        2,
        batch_size=400,
        w_radius=5.0,
        fairness=2.0,
        frequencies=tuple(shares.tolist()),
        learning_rate=1.0,
        w_step=0.5,
    )
    state = algorithm.start()
    for round in range(600):
        message = algorithm.contribution(state, round, silo, everybody(silo))
        state = algorithm.update(state, without_noise([("north", message)]))
    members = one_hot(s, 2).double()

    def objective(theta):
        probabilities = Plain(algorithm.model).probabilities(theta, silo.x)
        joint = fermi.joint_distribution(probabilities, members, torch.zeros(400).long(), 1) / 400
        return mean_loss(algorithm.model, theta, silo) + 2.0 * chi_square(joint)

    np.testing.assert_allclose(numeric_gradient(objective, algorithm.theta(state)), 0.0, atol=1e-6)

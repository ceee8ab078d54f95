"""Noisy Fed-SGDA for a min-max loss of one's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrate.errors import InvalidInput
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta, Relation
from calibrate.sampling import Batch, Poisson
from privfair.algorithms.fed_sgda import OF_THETA, OF_W, FedSgda
from privfair.algorithms.parts.descent import DescentRule
from privfair.fairness import fermi
from privfair.federation.coordinator import Position, run_steps
from privfair.federation.local_party import LocalParties, PartySetup
from tests.privfair.small_runs import document_of, gate_for
from tests.privfair.steffle_cases import everybody, logistic, noisy_values, numeric_gradient, silo_of, without_noise

MODEL = logistic(3, 2)


def _own_loss(theta, w, x, y, s):
    """Cross-entropy plus psi, written record by record as a user would."""
    score = torch.dot(x, theta[:3]) + theta[3]
    loss = torch.nn.functional.softplus(score) - y * score
    frequencies = torch.tensor([[0.4, 0.6]], dtype=torch.float64)
    probabilities = torch.stack((torch.sigmoid(-score), torch.sigmoid(score)))
    slopes = fermi.attribute_slopes(w.reshape(1, 2, 2), frequencies)[0]
    chosen = torch.where(s == 0, slopes[0], slopes[1])
    return loss + ((chosen + fermi.common_slopes(w.reshape(1, 2, 2))[0]) * probabilities).sum()


def _algorithm(expected: float = 40.0, **changes) -> FedSgda:
    start = torch.linspace(-0.5, 0.5, 4, dtype=torch.float64)
    algorithm = FedSgda(
        _own_loss,
        start,
        torch.full((4,), 0.3, dtype=torch.float64),
        theta_clip=1e3,
        w_clip=1e3,
        expected=expected,
        w_step=0.2,
        w_radius=2.0,
        rule=DescentRule(0.5, rounds=10),
    )
    return replace(algorithm, **changes)


def test_sums_are_the_gradients_of_the_users_loss() -> None:
    silo = silo_of(40, 3, 2, 2)
    algorithm = _algorithm(chunk=7)
    state = algorithm.start()
    sent = noisy_values(algorithm.contribution(state, 0, silo, everybody(silo)))

    def objective(theta, w):
        return sum(float(_own_loss(theta, w, silo.x[i], silo.y[i].double(), silo.s[i])) for i in range(len(silo)))

    theta, w = state.descent.theta, state.w
    of_theta = numeric_gradient(lambda at: objective(at, w), theta)
    of_w = numeric_gradient(lambda at: objective(theta, at), w)
    np.testing.assert_allclose(sent[OF_THETA] * 1e3, of_theta, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(sent[OF_W] * 1e3, of_w, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("limit", [1e-3, 0.2, 5.0])
def test_no_record_exceeds_the_signed_clip(limit) -> None:
    silo = silo_of(30, 3, 2, 2, scale=40.0)
    algorithm = _algorithm(theta_clip=limit, w_clip=2 * limit, clip=1.5)
    state = algorithm.start()
    for record in range(30):
        message = algorithm.contribution(state, 0, silo, torch.tensor([record]))
        for contribution in message.noisy:
            length = float(np.linalg.norm(contribution.values))
            assert length <= contribution.bound == 1.5
            assert contribution.measured == pytest.approx(length)
    everyone = algorithm.contribution(state, 0, silo, everybody(silo))
    assert max(contribution.measured for contribution in everyone.noisy) <= 1.5


def test_clipping_is_undone_by_the_server() -> None:
    """Doubling the clip in which values are sent changes nothing about the step."""
    silo = silo_of(40, 3, 2, 2)
    states = []
    for clip in (1.0, 2.0):
        algorithm = _algorithm(clip=clip, theta_clip=0.5, w_clip=0.7)
        message = algorithm.contribution(algorithm.start(), 0, silo, everybody(silo))
        states.append(algorithm.update(algorithm.start(), without_noise([("north", message)])))
    torch.testing.assert_close(states[0].descent.theta, states[1].descent.theta)
    torch.testing.assert_close(states[0].w, states[1].w)


def _saddle(theta, w, x, y, s):
    """Strongly convex in theta, strongly concave in w; its saddle is at theta = mean of x[0], w = 0."""
    return 0.5 * (theta[0] - x[0]) ** 2 + w[0] * (theta[0] - x[0]) - 0.5 * w[0] ** 2


def test_it_finds_a_saddle_point() -> None:
    silo = silo_of(50, 3, 2, 2)
    algorithm = FedSgda(
        _saddle,
        torch.zeros(1, dtype=torch.float64),
        torch.ones(1, dtype=torch.float64),
        theta_clip=1e3,
        w_clip=1e3,
        expected=50,
        w_step=0.3,
        w_radius=5.0,
        rule=DescentRule(0.3, momentum=0.0, rounds=200),
    )
    state = algorithm.start()
    for round in range(200):
        message = algorithm.contribution(state, round, silo, everybody(silo))
        state = algorithm.update(state, without_noise([("north", message)]))
    assert float(algorithm.theta(state)[0]) == pytest.approx(float(silo.x[:, 0].mean()), abs=1e-5)
    assert float(state.w[0]) == pytest.approx(0.0, abs=1e-5)


def test_w_stays_in_its_ball_and_comes_back_from_a_checkpoint() -> None:
    silo = silo_of(40, 3, 2, 2)
    algorithm = _algorithm(w_step=50.0, w_radius=0.3)
    state = algorithm.start()
    for round in range(5):
        message = algorithm.contribution(state, round, silo, everybody(silo))
        state = algorithm.update(state, without_noise([("north", message)]))
        assert float((state.w - algorithm.w_start).norm()) <= 0.3 + 1e-12
    again = algorithm.restore(algorithm.checkpoint(state))
    assert torch.equal(again.w, state.w)
    assert torch.equal(again.descent.theta, state.descent.theta)


def test_an_empty_batch_sends_zeros() -> None:
    silo = silo_of(40, 3, 2, 2)
    message = _algorithm().contribution(_algorithm().start(), 0, silo, torch.empty(0, dtype=torch.int64))
    assert all(not contribution.values.any() for contribution in message.noisy)
    assert all(contribution.measured == 0.0 for contribution in message.noisy)


def test_parameters_must_be_flat() -> None:
    with pytest.raises(InvalidInput, match="flat"):
        _algorithm(w_start=torch.zeros(2, 2))


def test_it_trains_through_the_gate_under_a_gaussian_plan(tmp_path) -> None:
    """A user's min-max loss, a signed budget for two values, Poisson batches, ledger and transcript."""
    rounds, rate = 6, 0.5
    silos = (silo_of(100, 3, 2, 2, name="north"), silo_of(120, 3, 2, 2, name="south", seed=1))
    algorithm = _algorithm(expected=rate * 220, theta_clip=0.5, w_clip=0.5)
    plan = GaussianPlan(rate, rounds, Relation.REPLACE_ONE, noise=(1.0, 1.0))
    document = document_of(plan, EpsilonDelta(8.0, 1e-5), shapes=dict(algorithm.shapes()))
    opened = gate_for(document, tmp_path / "run", dict(algorithm.shapes()))
    setup = PartySetup(opened.manifest.document, algorithm, silos, Poisson(rate, Batch.SECRET))
    local = LocalParties.behind(opened.gate, setup, opened.claim)
    positions = list(run_steps(algorithm, local, Position(algorithm.start()), rounds))
    assert positions[-1].step == rounds
    assert local.gate.exhausted
    assert torch.isfinite(algorithm.theta(positions[-1].state)).all()
    opened.gate.finish()
    opened.ledger.close()

"""Pay once: after round 0 no message reads the attribute, and training on the responses makes predictions fair."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import one_hot

from calibrate.errors import InvalidInput
from calibrate.plans.fair_plugin import ATTRIBUTE as PLANNED_ATTRIBUTE
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.parts.descent import Iterate
from privfair.algorithms.pay_once import ATTRIBUTE, GRADIENT, JOINT, PayOnce, PayOnceOptions
from privfair.contribution import Published
from privfair.fairness import fermi
from privfair.fairness.constraints import FairnessPenalty, ResponseChannel
from privfair.fairness.fermi import Independence
from tests.privfair.fermi_values import penalty_value
from tests.privfair.plain_models import Plain
from tests.privfair.steffle_cases import everybody, logistic, mean_loss, numeric_gradient, silo_of, without_noise


def _algorithm(epsilon: float | None = None, groups: int = 2, classes: int = 2, **options) -> PayOnce:
    return PayOnce(
        logistic(3, classes),
        PayOnceOptions(**options),
        ResponseChannel.of_epsilon(groups, epsilon),
        largest_silo=60,
        weights={"north": 0.6, "south": 0.4},
        rounds=20,
    )


def _responses(algorithm: PayOnce, silos: tuple[SiloTensors, ...], seed: int = 0):
    """Round 0 with randomised response drawn by numpy."""
    draw, channel = np.random.default_rng(seed), algorithm.channel
    received = {}
    for silo in silos:
        message = algorithm.contribution(algorithm.start(), 0, silo, everybody(silo))
        assert message.noisy == ()
        assert message.clear is None
        truth = message.randomized[ATTRIBUTE]
        other = (truth + draw.integers(1, channel.groups, len(truth))) % channel.groups
        answers = np.where(draw.random(len(truth)) < channel.keep, truth, other)
        received[silo.name] = {ATTRIBUTE: Published(0, silo.name, ATTRIBUTE, answers.astype(float))}
    return algorithm.update(algorithm.start(), received)


def _trained(algorithm: PayOnce, silos: tuple[SiloTensors, ...], rounds: int, seed: int = 0):
    state = _responses(algorithm, silos, seed)
    for round in range(1, rounds + 1):
        messages = [(s.name, algorithm.contribution(state, round, s, everybody(s))) for s in silos]
        state = algorithm.update(state, without_noise(messages))
    return state


def test_the_name_is_the_plans() -> None:
    assert ATTRIBUTE == PLANNED_ATTRIBUTE


def test_round_0_sends_the_attribute_alone_and_fills_up_short_silos() -> None:
    silo = silo_of(40, 3, 2, 2)
    message = _algorithm().contribution(_algorithm().start(), 0, silo, torch.arange(2))
    sent = message.randomized[ATTRIBUTE]
    assert sent.shape == (60,)
    assert sent[:40].tolist() == silo.s.tolist()
    assert not sent[40:].any()
    with pytest.raises(InvalidInput, match="exceed"):
        _algorithm().contribution(_algorithm().start(), 0, silo_of(61, 3, 2, 2), torch.arange(2))


@pytest.mark.parametrize("notion", list(Independence))
@pytest.mark.parametrize("mini_batch", [None, 7])
def test_later_messages_do_not_depend_on_the_true_attribute(notion, mini_batch) -> None:
    silo = silo_of(50, 3, 3, 2)
    algorithm = _algorithm(1.0, groups=3, notion=notion, mini_batch=mini_batch, fairness=5.0)
    state = _responses(algorithm, (silo,))
    poisoned = replace(silo, s=torch.full((50,), 10**6))
    for round in range(1, 12):
        mine = algorithm.contribution(state, round, silo, everybody(silo))
        theirs = algorithm.contribution(state, round, poisoned, everybody(silo))
        assert mine.noisy == theirs.noisy == ()
        assert mine.randomized is None
        assert set(mine.clear) == {GRADIENT, JOINT}
        assert all(np.array_equal(mine.clear[name], theirs.clear[name]) for name in mine.clear)
        state = algorithm.update(state, without_noise([("north", mine)]))


def test_a_silo_that_missed_round_0_is_refused() -> None:
    algorithm = _algorithm()
    state = _responses(algorithm, (silo_of(50, 3, 2, 2),))
    with pytest.raises(InvalidInput, match="round 0"):
        algorithm.contribution(state, 1, silo_of(50, 3, 2, 2, name="south"), torch.arange(50))


@pytest.mark.parametrize("penalty", list(FairnessPenalty))
@pytest.mark.parametrize("notion", list(Independence))
@pytest.mark.parametrize(("groups", "classes"), [(2, 2), (3, 4), (5, 5)])
def test_the_gradient_is_that_of_loss_plus_penalty(groups, classes, notion, penalty) -> None:
    """With the joint distribution of the same theta, as after a step of length zero."""
    silo = silo_of(60, 3, groups, classes)
    algorithm = _algorithm(2.0, groups, classes, notion=notion, penalty=penalty, fairness=1.3)
    state = _responses(algorithm, (silo,))
    draw = torch.Generator().manual_seed(0)
    theta = 0.4 * torch.randn(algorithm.model.size, generator=draw, dtype=torch.float64)
    state = replace(state, descent=replace(state.descent, theta=theta))
    first = algorithm.contribution(state, 1, silo, everybody(silo))
    state = replace(state, joint=torch.from_numpy(first.clear[JOINT]))
    message = algorithm.contribution(state, 2, silo, everybody(silo))
    members = algorithm.channel.memberships(state.responses["north"][:60])
    block = fermi.block_of(notion, silo.y, 1)

    def objective(at):
        probabilities = Plain(algorithm.model).probabilities(at, silo.x)
        joint = fermi.joint_distribution(probabilities, members, block, algorithm.blocks) / 60
        return mean_loss(algorithm.model, at, silo) + 1.3 * penalty_value(penalty, joint, 0.01)

    expected = numeric_gradient(objective, theta)
    np.testing.assert_allclose(message.clear[GRADIENT], expected, atol=1e-6 * max(1, np.abs(expected).max()))


def test_the_joint_distribution_is_estimated_without_bias() -> None:
    silo = silo_of(60, 3, 3, 2)
    algorithm = _algorithm(1.0, groups=3)
    truth = one_hot(silo.s, 3).double().T @ algorithm.model.probabilities(algorithm.start().descent.theta, silo.x)
    estimates = []
    for seed in range(400):
        state = _responses(algorithm, (silo,), seed)
        estimates.append(algorithm.contribution(state, 1, silo, everybody(silo)).clear[JOINT][0])
    error = np.std(estimates, axis=0) / np.sqrt(len(estimates))
    # Five standard errors: a false alarm in fewer than one of a hundred thousand runs.
    assert (np.abs(np.mean(estimates, axis=0) - truth.numpy() / 60) < 5 * error).all()


def test_mini_batches_go_through_every_record_once_an_epoch() -> None:
    algorithm = _algorithm(mini_batch=7)
    for epoch in range(2):
        rows = [algorithm._rows(1 + epoch * 8 + k, "north", torch.arange(50), 50) for k in range(8)]
        assert sorted(torch.cat(rows).tolist()) == list(range(50))
    first = [algorithm._rows(1, name, torch.arange(50), 50).tolist() for name in ("north", "south")]
    assert first[0] != first[1]


def test_memory_averages_the_joint_distribution() -> None:
    silo = silo_of(50, 3, 2, 2)
    algorithm = _algorithm(mini_batch=10, memory=0.9, fairness=0.0)
    state = _responses(algorithm, (silo,))
    expected = None
    for round in range(1, 5):
        message = algorithm.contribution(state, round, silo, everybody(silo))
        new = 0.6 * message.clear[JOINT]
        expected = new if expected is None else 0.9 * expected + 0.1 * new
        state = algorithm.update(state, without_noise([("north", message)]))
    np.testing.assert_allclose(state.joint.numpy(), expected)


def _unfair_silos(size: int = 3000) -> tuple[SiloTensors, ...]:
    """The first feature is nearly the group, and the label follows it."""
    silos = []
    for seed, name in enumerate(("north", "south")):
        draw = torch.Generator().manual_seed(seed)
        s = torch.randint(0, 2, (size,), generator=draw)
        x = torch.randn(size, 3, generator=draw, dtype=torch.float64)
        x[:, 0] += 1.5 * s
        y = (x.sum(dim=1) + torch.randn(size, generator=draw) > 0.75).long()
        silos.append(SiloTensors(name, x, y, s))
    return tuple(silos)


def _gap(algorithm: PayOnce, state, silos) -> float:
    theta = algorithm.theta(state)
    predicted = torch.cat([algorithm.model.logits(theta, silo.x).argmax(dim=1) for silo in silos]).double()
    s = torch.cat([silo.s for silo in silos])
    return float((predicted[s == 0].mean() - predicted[s == 1].mean()).abs())


@pytest.mark.slow
@pytest.mark.parametrize("penalty", list(FairnessPenalty))
@pytest.mark.parametrize("mini_batch", [None, 256])
def test_training_on_randomised_responses_closes_the_gap(penalty, mini_batch) -> None:
    silos = _unfair_silos()
    common = {"penalty": penalty, "learning_rate": 1.0, "iterate": Iterate.TAIL_AVERAGE}
    common |= {"mini_batch": mini_batch, "memory": 0.0 if mini_batch is None else 0.9}
    gaps = {}
    for fairness in (0.0, 10.0):
        algorithm = replace(
            _algorithm(1.0, fairness=fairness, **common),
            largest_silo=3000,
            weights={"north": 0.5, "south": 0.5},
            rounds=151,
        )
        gaps[fairness] = _gap(algorithm, _trained(algorithm, silos, 150), silos)
    assert gaps[0.0] > 0.3
    assert gaps[10.0] < 0.06


def test_a_checkpoint_brings_the_state_back() -> None:
    silo = silo_of(50, 3, 2, 2)
    algorithm = _algorithm(1.0, fairness=2.0)
    fresh = algorithm.restore(algorithm.checkpoint(algorithm.start()))
    assert fresh.responses == {}
    assert fresh.joint is None
    state = _trained(algorithm, (silo,), 4)
    again = algorithm.restore(algorithm.checkpoint(state))
    assert torch.equal(again.responses["north"], state.responses["north"])
    mine = algorithm.contribution(state, 5, silo, everybody(silo))
    theirs = algorithm.contribution(again, 5, silo, everybody(silo))
    assert np.array_equal(mine.clear[GRADIENT], theirs.clear[GRADIENT])


def test_shapes_and_clear_values_are_declared() -> None:
    algorithm = _algorithm(groups=3, notion=Independence.EQUALISED_ODDS)
    assert algorithm.shapes() == {ATTRIBUTE: (60,), GRADIENT: (4,), JOINT: (2, 3, 2)}
    assert [value.depends_on_unit for value in algorithm.clear_values()] == [False, False]

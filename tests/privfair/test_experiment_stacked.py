"""The experiment's stacked rounds are those of the algorithms, run by run."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch

from calibrate.plans.steffle import StefflePlan
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.baselines.steffle_public_code import StefflePublicCode
from privfair.algorithms.fair_plugin import Clips, FairPlugin, FairPluginOptions
from privfair.algorithms.parts.descent import DescentRule
from privfair.algorithms.pay_once import ATTRIBUTE, PayOnce, PayOnceOptions
from privfair.algorithms.steffle import Steffle, SteffleBounds, SteffleOptions, WCenter
from privfair.fairness.constraints import ResponseChannel
from privfair.fairness.fermi import Independence
from privfair.models.linear import LogisticRegression
from privfair_experiments import stacked
from tests.privfair.steffle_cases import without_noise

FAIRNESS = np.array([0.0, 1.0, 8.0])


def _silos(size: int = 80, silos: int = 2) -> list[SiloTensors]:
    made = []
    for seed in range(silos):
        draw = torch.Generator().manual_seed(seed)
        x = 2 * torch.randn(size, 3, generator=draw, dtype=torch.float64)
        s = (x[:, 0] + torch.randn(size, generator=draw) > 0).long()
        y = (x.sum(dim=1) + torch.randn(size, generator=draw) > 0).long()
        made.append(SiloTensors(f"silo-{seed}", x, y, s))
    return made


def _stack(silos: list[SiloTensors]):
    return tuple(stacked.StackedSilo.of(silo.x.numpy(), silo.y.numpy(), silo.s.numpy()) for silo in silos)


def _warm(silos: list[SiloTensors]) -> np.ndarray:
    """The mean of the silos' own minimisers, as the first round's messages lead to it."""
    algorithm = Steffle(
        LogisticRegression(3),
        SteffleOptions(group_frequencies=(0.5, 0.5), warm_start=20),
        SteffleBounds.of(StefflePlan(80, 80, 7, 0.4, 0.3, 0.2)),
        {silo.name: 0.5 for silo in silos},
    )
    messages = [(s.name, algorithm.contribution(algorithm.start(), 0, s, torch.arange(80))) for s in silos]
    return algorithm.update(algorithm.start(), without_noise(messages)).descent.theta.numpy()


@pytest.mark.parametrize("warm", [0, 20])
@pytest.mark.parametrize("center", list(WCenter))
@pytest.mark.parametrize("batch_size", [80, 32])
@pytest.mark.parametrize("notion", list(Independence))
def test_steffle(notion, center, batch_size, warm) -> None:
    silos, rounds, shares = _silos(), 7, ((0.45, 0.55), (0.6, 0.4))[: notion.blocks(2)]
    options = SteffleOptions(
        notion=notion,
        group_frequencies=tuple(chain.from_iterable(shares)),
        learning_rate=1.0,
        momentum=0.8,
        decay=0.5,
        decay_every=3,
        w_step=0.4,
        w_center=center,
        warm_start=warm,
    )
    bounds = SteffleBounds.of(StefflePlan(80, batch_size, 7, 0.4, 0.3, 0.2))
    columns = stacked.SteffleColumns(
        FAIRNESS,
        np.zeros(3),
        np.zeros(3),
        np.full(3, 0.4),
        shares,
        0.4,
        batch_size,
        0.3,
        0.2,
        around_independence=center is WCenter.INDEPENDENCE,
        notion=notion,
    )
    rule = stacked.Descent(rounds, 1.0, 0.8, 0.5, 3)
    batches = None if batch_size == 80 else stacked.shuffled_batches((80, 80), batch_size, 5)
    found = stacked.steffle(_stack(silos), columns, rule, 0, batches, _warm(silos) if warm else None)
    for column, fairness in enumerate(FAIRNESS):
        algorithm = Steffle(
            LogisticRegression(3),
            replace(options, fairness=float(fairness)),
            bounds,
            {silo.name: 0.5 for silo in silos},
            rounds=rounds,
        )
        state = algorithm.start()
        if warm:
            opening = [(s.name, algorithm.contribution(state, 0, s, torch.arange(2))) for s in silos]
            state = algorithm.update(state, without_noise(opening))
        drawn = None if batch_size == 80 else stacked.shuffled_batches((80, 80), batch_size, 5)
        for round in range(rounds):
            rows = [np.arange(80)] * 2 if drawn is None else next(drawn)
            messages = [
                (silo.name, algorithm.contribution(state, round, silo, torch.from_numpy(own)))
                for silo, own in zip(silos, rows, strict=True)
            ]
            state = algorithm.update(state, without_noise(messages))
        np.testing.assert_allclose(found[:, column], algorithm.theta(state).numpy(), rtol=1e-3, atol=1e-4)


def test_noise_has_the_asked_deviation() -> None:
    """One silo, one round, nothing but noise: theta is minus the rate times fairness times the noise."""
    silo = stacked.StackedSilo.of(np.zeros((4, 400)), np.array([0, 1, 0, 1]), np.array([0, 1, 0, 1]))
    columns = stacked.SteffleColumns(
        np.array([2.0]), np.array([0.3]), np.array([0.5]), np.array([1.0]), ((0.5, 0.5),), 0.5, 4, 1.0, 10.0
    )
    theta = stacked.steffle((silo,), columns, stacked.Descent(1, 1.0, 0.0), 3)
    assert theta[:-1].std() == pytest.approx(0.6, rel=0.15)


def test_the_public_code() -> None:
    """Without noise, in batches of which the last is shorter, with a step that moves W to its bound."""
    silos, rounds = _silos(), 8
    nothing = np.zeros(3)
    columns = stacked.PublicCodeColumns(FAIRNESS, nothing, nothing, 0.4, 1.0, 0.6, w_step=0.3)
    batches = stacked.shuffled_batches((80, 80), 30, 5)
    found = stacked.public_code(_stack(silos), columns, stacked.Descent(rounds, 0.25, 0.0, 0.8, 3), batches, 0)
    for column, fairness in enumerate(FAIRNESS):
        rule = DescentRule(0.25, 0.0, 0.8, 3, rounds=rounds)
        names = tuple(silo.name for silo in silos)
        algorithm = StefflePublicCode(
            LogisticRegression(3), Independence.DEMOGRAPHIC_PARITY, float(fairness), rule, 0.3, 1.0, 0.6, (0.4,), names
        )
        state, batches = algorithm.start(), stacked.shuffled_batches((80, 80), 30, 5)
        for step in range(rounds):
            messages = [
                (silo.name, algorithm.contribution(state, step, silo, torch.from_numpy(own)))
                for silo, own in zip(silos, next(batches), strict=True)
            ]
            state = algorithm.update(state, without_noise(messages))
        np.testing.assert_allclose(found[:, column], algorithm.theta(state).numpy(), rtol=1e-3, atol=1e-4)


def test_the_public_code_with_a_group_that_is_named() -> None:
    """That of the first record gives what the code gives; the other one does not."""
    (silo,) = _silos(silos=1)
    nothing, own = np.zeros(3), int(silo.s[0])

    def theta(first: int | None) -> np.ndarray:
        columns = stacked.PublicCodeColumns(FAIRNESS, nothing, nothing, 0.4, 1.0, 0.6, w_step=0.3, first=first)
        batches = stacked.shuffled_batches((80,), 30, 5)
        return stacked.public_code(_stack([silo]), columns, stacked.Descent(8, 0.25, 0.0), batches, 0)

    np.testing.assert_array_equal(theta(own), theta(None))
    assert np.abs(theta(1 - own) - theta(None))[:, 1:].max() > 0.01


@pytest.mark.parametrize("warm", [0, 20])
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_pay_once(epsilon, warm) -> None:
    silos, rounds = _silos(), 6
    channel = ResponseChannel.of_epsilon(2, epsilon)
    rule = stacked.Descent(rounds, 1.0, 0.8, 0.5, 3)
    columns = stacked.PayOnceColumns(FAIRNESS, np.full(3, channel.keep))
    found = stacked.pay_once(_stack(silos), columns, rule, 7, _warm(silos) if warm else None)
    # The same responses, drawn as the stacked rounds draw them.
    draw, answers = np.random.default_rng(7), {}
    for silo in silos:
        truth = silo.s.numpy()
        answers[silo.name] = np.where(draw.random(80) < channel.keep, truth, 1 - truth)
    for column, fairness in enumerate(FAIRNESS):
        own = PayOnceOptions(
            fairness=float(fairness), learning_rate=1.0, momentum=0.8, decay=0.5, decay_every=3, warm_start=warm
        )
        algorithm = PayOnce(LogisticRegression(3), own, channel, 80, {silo.name: 0.5 for silo in silos}, rounds + 1)
        state = algorithm.start()
        for round in range(rounds + 1):
            messages = [(silo.name, algorithm.contribution(state, round, silo, torch.arange(80))) for silo in silos]
            if round == 0:
                messages = [
                    (name, replace(message, randomized={ATTRIBUTE: answers[name]})) for name, message in messages
                ]
            state = algorithm.update(state, without_noise(messages))
        np.testing.assert_allclose(found[:, column], algorithm.theta(state).numpy(), rtol=1e-3, atol=1e-4)


def test_the_bound_is_the_signed_one() -> None:
    columns = stacked.SteffleColumns(np.ones(1), np.ones(1), np.ones(1), np.ones(1), ((0.5, 0.5),), 0.4, 80, 0.3, 0.2)
    assert columns.reach / 80 == pytest.approx(
        SteffleBounds.of(StefflePlan(80, 80, 7, 0.4, 0.3, 0.2)).h_theta, rel=1e-4
    )
    assert math.isfinite(columns.reach)


def test_the_stacked_descents_of_the_fair_plug_in_are_its_own() -> None:
    """Both models, clipped and without noise, as the algorithm's own rounds lead to them; in single precision."""
    silos = _silos()
    algorithm = FairPlugin(
        LogisticRegression(3), LogisticRegression(3), FairPluginOptions(), 160, 9, Clips(0.5, 0.4, 1.0)
    )
    state = algorithm.start()
    for step in range(8):
        messages = [(s.name, algorithm.contribution(state, step, s, torch.arange(80))) for s in silos]
        state = algorithm.update(state, without_noise(messages))
    kept = algorithm.theta(state).numpy()
    x = np.concatenate([silo.x.numpy() for silo in silos])
    for place, (column, clip) in enumerate((("y", 0.5), ("s", 0.4))):
        targets = np.concatenate([getattr(silo, column).numpy() for silo in silos])[:, None].astype(np.float32)
        _, mean = stacked.logistic_descents(x, targets, clip, np.zeros(1), algorithm.steps, np.random.default_rng(0))
        np.testing.assert_allclose(mean[:, 0], kept[4 * place : 4 * place + 4], rtol=1e-4, atol=1e-5)

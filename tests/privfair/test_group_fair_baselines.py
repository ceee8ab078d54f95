"""Local MMD, FairFed, FedFB and Tran et al.'s multipliers, each against its defining equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrate.errors import UnsupportedCombination
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.algorithms.baselines.tran import TranMultipliers, TranOptions, TranState
from privfair.contribution import Published
from privfair.fairness.constraints import FairnessNotion, KernelKind, MmdCriterion, RateValue
from privfair.fairness.mmd import GaussianKernel, mmd_squared_v
from privfair.models.linear import LogisticRegression
from privfair_experiments.baselines.fairfed import CHANGE, COUNTS, FairFed, FairFedOptions, distances
from privfair_experiments.baselines.fedfb import CELLS, FedFb, FedFbOptions, ReweightedNotion, reweigh
from privfair_experiments.baselines.local_mmd import LocalMmd, LocalMmdOptions
from tests.privfair.plain_models import ROUNDED, Plain

FEATURES, RECORDS = 3, 40
WEIGHTS = {"north": 0.6, "south": 0.4}
MODEL = LogisticRegression(FEATURES)
THETA = torch.tensor([0.5, -0.3, 0.2, 0.1], dtype=torch.float64)


def _silo(name: str, owner: Tensor | None = None) -> SiloTensors:
    generator = torch.Generator().manual_seed(len(name) + ord(name[0]))
    x = torch.randn(RECORDS, FEATURES, generator=generator, dtype=torch.float64)
    s = torch.arange(RECORDS) % 2
    y = (x[:, 0] + 0.8 * s + 0.5 * torch.randn(RECORDS, generator=generator) > 0.3).long()
    return SiloTensors(name, x + 0.3 * s[:, None], y, s, owner)


SILOS = {name: _silo(name) for name in WEIGHTS}
ALL = torch.arange(RECORDS)


def _send(algorithm: Algorithm[Any], state: Any) -> dict[str, dict[str, Published]]:
    out = {}
    for name, silo in SILOS.items():
        message = algorithm.contribution(state, 0, silo, ALL)
        assert message.clear is not None
        out[name] = {n: Published(0, name, n, np.array(v)) for n, v in message.clear.items()}
    return out


def _loss(theta: Tensor, silo: SiloTensors) -> Tensor:
    return Plain(MODEL).losses(theta, silo.x, silo.y)


@pytest.mark.parametrize("criterion", [MmdCriterion.STATISTICAL_PARITY, MmdCriterion.EQUALISED_ODDS])
def test_local_mmd_descends_on_each_clients_own_penalty(criterion: MmdCriterion) -> None:
    options = LocalMmdOptions(
        learning_rate=0.01, fairness=3.0, criterion=criterion, kernel=KernelKind.GAUSSIAN, kernel_width=0.3
    )
    algorithm = LocalMmd(MODEL, options, WEIGHTS)
    state = type(algorithm.start())(THETA)
    sent = _send(algorithm, state)

    def objective(theta: Tensor, silo: SiloTensors) -> float:
        scores = Plain(MODEL).probabilities(theta, silo.x)[:, 1].numpy()
        labels = (None,) if criterion is MmdCriterion.STATISTICAL_PARITY else (0, 1)
        penalty = 0.0
        for label in labels:
            inside = np.ones(RECORDS, dtype=bool) if label is None else silo.y.numpy() == label
            one, other = (scores[inside & (silo.s.numpy() == a)] for a in (0, 1))
            penalty += mmd_squared_v(one, other, GaussianKernel(0.3))
        return float(_loss(theta, silo).mean()) + 3.0 * penalty

    for name, silo in SILOS.items():
        slopes = []
        for place in range(len(THETA)):
            shift = torch.zeros_like(THETA)
            shift[place] = 1e-6
            slopes.append((objective(THETA + shift, silo) - objective(THETA - shift, silo)) / 2e-6)
        np.testing.assert_allclose(sent[name][CHANGE].values / -0.01, slopes, rtol=1e-5, atol=1e-7)
    moved = algorithm.update(state, sent).theta - THETA
    np.testing.assert_allclose(moved, sum(WEIGHTS[n] * sent[n][CHANGE].values for n in WEIGHTS), rtol=1e-9)


def test_with_three_groups_every_pair_is_punished() -> None:
    silo = SILOS["north"]
    three = SiloTensors("north", silo.x, silo.y, torch.arange(RECORDS) % 3)
    options = LocalMmdOptions(learning_rate=0.01, fairness=3.0, kernel=KernelKind.GAUSSIAN, kernel_width=0.3)
    algorithm = LocalMmd(MODEL, options, WEIGHTS, groups=3)
    sent = algorithm.contribution(type(algorithm.start())(THETA), 0, three, ALL).clear
    assert sent is not None

    def objective(theta: Tensor) -> float:
        scores = Plain(MODEL).probabilities(theta, three.x)[:, 1].numpy()
        laws = [scores[three.s.numpy() == a] for a in range(3)]
        pairs = [(laws[0], laws[1]), (laws[0], laws[2]), (laws[1], laws[2])]
        return float(_loss(theta, three).mean()) + 3.0 * sum(
            mmd_squared_v(*pair, GaussianKernel(0.3)) for pair in pairs
        )

    steps = 1e-6 * torch.eye(len(THETA), dtype=torch.float64)
    slopes = [(objective(THETA + step) - objective(THETA - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(sent[CHANGE] / -0.01, slopes, rtol=1e-5, atol=1e-7)


def test_local_steps_shrink_from_round_to_round() -> None:
    for algorithm in (
        LocalMmd(MODEL, LocalMmdOptions(learning_rate_factor=0.99), WEIGHTS),
        FairFed(MODEL, FairFedOptions(learning_rate_factor=0.99), WEIGHTS),
    ):
        sent = [algorithm.contribution(algorithm.start(), step, SILOS["north"], ALL).clear for step in (0, 7)]  # type: ignore[arg-type]
        assert sent[0] is not None
        assert sent[1] is not None
        np.testing.assert_allclose(sent[1][CHANGE], 0.99**7 * sent[0][CHANGE], rtol=1e-12)


def test_a_client_without_one_group_has_no_penalty() -> None:
    silo = SILOS["north"]
    lonely = SiloTensors("north", silo.x, silo.y, torch.zeros_like(silo.s))
    algorithms = [LocalMmd(MODEL, LocalMmdOptions(fairness=f), WEIGHTS) for f in (0.0, 5.0)]
    one, other = (a.contribution(a.start(), 0, lonely, ALL).clear for a in algorithms)
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(one[CHANGE], other[CHANGE], rtol=1e-12)


@pytest.mark.parametrize("criterion", [MmdCriterion.STATISTICAL_PARITY, MmdCriterion.EQUAL_OPPORTUNITY])
def test_fairfed_moves_weight_away_from_clients_far_from_the_global_metric(criterion: MmdCriterion) -> None:
    theta = torch.tensor([0.5, -0.9, 0.2, -0.6], dtype=torch.float64)
    algorithm = FairFed(MODEL, FairFedOptions(budget=0.7, criterion=criterion), WEIGHTS)
    state = type(algorithm.start())(theta, np.array([0.6, 0.4]))
    sent = _send(algorithm, state)

    def metric(silos: list[SiloTensors]) -> float:
        rates = []
        for a in (0, 1):
            positive, number = 0, 0
            for silo in silos:
                inside = silo.s == a
                if criterion is MmdCriterion.EQUAL_OPPORTUNITY:
                    inside &= silo.y == 1
                positive += int((MODEL.logits(theta, silo.x).argmax(1)[inside] == 1).sum())
                number += int(inside.sum())
            rates.append(positive / number)
        return rates[0] - rates[1]

    overall = metric(list(SILOS.values()))
    delta = np.array([abs(metric([silo]) - overall) for silo in SILOS.values()])
    assert delta[0] != delta[1]
    expected = np.array([0.6, 0.4]) - 0.7 * (delta - delta.mean())
    following = algorithm.update(state, sent)
    np.testing.assert_allclose(following.weights, expected, rtol=1e-9)
    shares = expected / expected.sum()
    mean = shares[0] * sent["north"][CHANGE].values + shares[1] * sent["south"][CHANGE].values
    np.testing.assert_allclose(following.theta - theta, mean, rtol=1e-9)


def test_fairfed_uses_accuracy_where_a_group_is_missing() -> None:
    counts = np.array([[10.0, 9, 5, 3, 5, 1], [10.0, 4, 10, 5, 0, 0]])
    found = distances(counts)
    overall = 8 / 15 - 1 / 5
    assert found[0] == pytest.approx(abs((3 / 5 - 1 / 5) - overall))
    assert found[1] == pytest.approx(abs(0.4 - 13 / 20))
    with pytest.raises(UnsupportedCombination, match="FairFed"):
        FairFed(MODEL, FairFedOptions(criterion=MmdCriterion.EQUALISED_ODDS), WEIGHTS)


def test_fairfed_weights_stay_usable() -> None:
    algorithm = FairFed(MODEL, FairFedOptions(budget=100.0), WEIGHTS)
    state = type(algorithm.start())(THETA, np.array([0.6, 0.4]))
    sent = _send(algorithm, state)
    sent["north"][COUNTS] = Published(0, "north", COUNTS, np.array([10.0, 5, 5, 5, 5, 0]))
    sent["south"][COUNTS] = Published(0, "south", COUNTS, np.array([90.0, 45, 45, 0, 45, 45]))
    weights = algorithm.update(state, sent).weights
    assert (weights >= 0).all()
    assert weights.any()


def test_fedfb_trains_on_reweighed_losses_and_reports_the_cells() -> None:
    algorithm = FedFb(MODEL, FedFbOptions(learning_rate=0.05), WEIGHTS)
    factors = np.array([[0.5, 1.5], [1.2, 0.8]])
    state = type(algorithm.start())(THETA, factors)
    sent = _send(algorithm, state)
    for name, silo in SILOS.items():
        point = THETA.clone().requires_grad_()
        losses = _loss(point, silo)
        weighted = (torch.from_numpy(factors)[silo.y, silo.s] * losses).mean()
        (gradient,) = torch.autograd.grad(weighted, point)
        np.testing.assert_allclose(sent[name][CHANGE].values, -0.05 * gradient, **ROUNDED)
        for y in (0, 1):
            for a in (0, 1):
                inside = (silo.y == y) & (silo.s == a)
                cell = sent[name][CELLS].values[:, y, a]
                np.testing.assert_allclose(cell, [float(losses[inside].sum().detach()), int(inside.sum())], **ROUNDED)


def test_fedfb_moves_weights_against_the_gap() -> None:
    """Cells of 100: group 0 is predicted positive more often, so its positives count less and group 1's more."""
    numbers = np.full((2, 2), 100.0)
    sums = np.array([[60.0, 10.0], [10.0, 60.0]])
    options = FedFbOptions(weight_rate=0.04)
    rates = (100 - sums[1] + sums[0]) / 200
    assert rates[0] > rates[1]
    factors = reweigh(np.ones((2, 2)), np.stack((sums, numbers)), options)
    weights = factors * 0.25
    np.testing.assert_allclose(weights[1], [0.25 - 0.04 / np.sqrt(2), 0.25 + 0.04 / np.sqrt(2)])
    np.testing.assert_allclose(weights.sum(axis=0), [0.5, 0.5])
    chance = FedFbOptions(weight_rate=0.04, notion=ReweightedNotion.EQUAL_OPPORTUNITY)
    weights = reweigh(np.ones((2, 2)), np.stack((sums, numbers)), chance) * 0.25
    np.testing.assert_allclose(weights[1], [0.21, 0.29], rtol=1e-9)
    np.testing.assert_allclose(weights[0], [0.25, 0.25])
    for _ in range(50):
        factors = reweigh(factors, np.stack((sums, numbers)), options)
    assert (factors >= 0).all()
    missing = np.stack((sums, np.array([[5.0, 0.0], [5.0, 5.0]])))
    np.testing.assert_array_equal(reweigh(np.ones((2, 2)), missing, options), np.ones((2, 2)))


def test_tran_ignores_the_sign_and_caps_its_multipliers() -> None:
    users = 10
    silo = _silo("users", torch.arange(RECORDS) % users)
    options = TranOptions(
        learning_rate=0.1,
        notion=FairnessNotion.DEMOGRAPHIC_PARITY,
        multiplier_rate=0.5,
        largest_multiplier=0.541,
        rate_value=RateValue.PROBABILITIES,
        records_per_user=RECORDS / users,
    )
    algorithm = TranMultipliers(MODEL, options, 2, float(users))
    state = TranState(THETA, np.array([[0.54, 0.1]]))
    message = algorithm.contribution(state, 0, silo, torch.arange(users))
    assert message.clear is not None
    received = {"users": {n: Published(0, "users", n, np.array(v)) for n, v in message.clear.items()}}
    following = algorithm.update(state, received)

    def mean_probability(theta: Tensor, inside: Tensor) -> Tensor:
        return Plain(MODEL).probabilities(theta, silo.x[inside])[:, 1].mean()

    point = THETA.clone().requires_grad_()
    direction = torch.autograd.grad(_loss(point, silo).mean(), point)[0]
    everybody = torch.ones(RECORDS, dtype=torch.bool)
    expected = []
    for a, before in enumerate((0.54, 0.1)):
        difference = mean_probability(point, everybody) - mean_probability(point, silo.s == a)
        (gradient,) = torch.autograd.grad(difference, point)
        expected.append(min(before + 0.5 * abs(float(difference.detach())), 0.541))
        direction = direction + expected[-1] * gradient.abs()
    assert expected[0] == 0.541
    np.testing.assert_allclose(following.multipliers[0], expected, **ROUNDED)
    np.testing.assert_allclose(following.theta, THETA - 0.1 * direction, **ROUNDED)

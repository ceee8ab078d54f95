"""The fair plug-in: the histogram tells the rates of every rule, the target is kept, plans train and answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import privfair
from calibrate.budget import calibrate_plan
from calibrate.errors import InvalidInput
from calibrate.plans.fair_plugin import FLIPS, FairPluginPlan
from calibrate.privacy_unit import EpsilonDelta, Protected
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.fair_plugin import Clips, FairPlugin, FairPluginOptions, FairPluginState
from privfair.contribution import Published
from privfair.fairness.constraints import ResponseChannel
from privfair.fairness.fermi import Independence
from privfair.models.fair_rule import FairRule
from privfair.models.linear import LogisticRegression
from privfair.models.model import mean_over
from tests.privfair.small_runs import Desk

PARITY, OPPORTUNITY = Independence.DEMOGRAPHIC_PARITY, Independence.EQUAL_OPPORTUNITY
DATA = '[data]\nfiles = ["north.csv", "south.csv", "west.csv"]\nschema = "schema.toml"\n'
PLAN = f"""algorithm = "fair-plugin"
[target]
epsilon = 8.0
delta = 1e-3
[privacy]
rounds = 12
{{privacy}}
{DATA}{{data}}
[training]
target-gap = 0.05
{{training}}
"""


def people(size: int = 4000, groups: int = 2, seed: int = 0) -> SiloTensors:
    """Records whose outcome and group show in the same feature, so that rates differ by group."""
    random = np.random.default_rng(seed)
    s = random.integers(groups, size=size)
    x = random.normal(size=(size, 3))
    x[:, 0] += 1.2 * s
    y = (x[:, 0] + 0.5 * x[:, 1] + random.logistic(size=size) * 0.5 > 0.6 * groups).astype(np.int64)
    return SiloTensors("north", torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(s))


def plugin(options: FairPluginOptions, groups: int = 2, channel: ResponseChannel | None = None) -> FairPlugin:
    clips = Clips(3.0, 3.0, 1.0) if channel is None else None
    group_model = LogisticRegression(3, groups)
    return FairPlugin(LogisticRegression(3), group_model, options, 4000, 24, clips, channel, 4000)


def trained(algorithm: FairPlugin, silo: SiloTensors) -> tuple[FairPluginState, FairPluginState]:
    """The states before and after the last round, without noise; responses are the truth turned by the channel."""
    random, state = np.random.default_rng(1), algorithm.start()
    for step in range(algorithm.rounds):
        before, message = state, algorithm.contribution(state, step, silo, torch.arange(len(silo)))
        values = {name: np.array(one, dtype=np.float64) for name, one in message.values.items()}
        if message.randomized and algorithm.channel is not None:
            (name,) = values
            wrong = random.random(len(silo)) >= algorithm.channel.keep
            values[name] = np.where(wrong, 1 - values[name], values[name])
        received = {"north": {name: Published(step, "north", name, one) for name, one in values.items()}}
        state = algorithm.update(state, received)
    return before, state


def rates(rule: FairRule, theta: torch.Tensor, silo: SiloTensors, among: torch.Tensor) -> list[float]:
    positive = rule.probabilities(theta, silo.x)[:, 1] > 0.5
    return [float(positive[among & (silo.s == g)].double().mean()) for g in range(rule.group.classes)]


@pytest.mark.parametrize("notion", [PARITY, OPPORTUNITY])
@pytest.mark.parametrize("groups", [2, 3])
def test_the_histogram_tells_the_rates_of_every_rule_exactly(notion: Independence, groups: int) -> None:
    """Each record is counted in one cell, from which its answer at every tried strength follows."""
    silo = people(groups=groups)
    algorithm = plugin(FairPluginOptions(notion=notion), groups)
    before, _ = trained(algorithm, silo)
    among = silo.y == 1 if notion is OPPORTUNITY else torch.ones(len(silo), dtype=torch.bool)
    counts = next(
        torch.from_numpy(one.values)
        for one in algorithm.contribution(before, algorithm.rounds - 1, silo, torch.arange(len(silo))).noisy
        if one.name == FLIPS
    )
    assert counts.sum() == among.sum()
    direction, bins = algorithm.strength.direction(before.rates), algorithm.options.bins
    for place in (0, 1, 7, bins):
        strong = replace(before, pulls=direction * (algorithm.strength.reach * place / bins))
        told = (
            counts[:, 0]
            + counts[:, 2 + place : 2 + bins].sum(dim=1)
            + counts[:, 2 + bins : 2 + bins + place].sum(dim=1)
        )
        expected = rates(algorithm.rule, algorithm.theta(strong), silo, among)
        assert (told / counts.sum(dim=1)).tolist() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("notion", "target"), [(PARITY, 0.03), (OPPORTUNITY, 0.08)])
def test_the_weakest_rule_that_keeps_the_target_is_taken(notion: Independence, target: float) -> None:
    silo, loose = people(), plugin(FairPluginOptions(notion=notion, target_gap=1.0, bins=160))
    tight = replace(loose, options=replace(loose.options, target_gap=target))
    among = silo.y == 1 if notion is OPPORTUNITY else torch.ones(len(silo), dtype=torch.bool)
    gaps, errors = [], []
    for algorithm in (loose, tight):
        _, state = trained(algorithm, silo)
        found = rates(algorithm.rule, algorithm.theta(state), silo, among)
        gaps.append(max(found) - min(found))
        answered = (algorithm.rule.probabilities(algorithm.theta(state), silo.x)[:, 1] > 0.5).long()
        errors.append(float((answered != silo.y).double().mean()))
    assert gaps[0] > 0.15
    assert gaps[1] <= target
    assert errors[0] < errors[1] < 0.5


def test_three_groups_come_closer_together() -> None:
    silo, everybody = people(groups=3), torch.ones(4000, dtype=torch.bool)
    spread = []
    for target in (1.0, 0.05):
        algorithm = plugin(FairPluginOptions(target_gap=target), 3)
        _, state = trained(algorithm, silo)
        found = rates(algorithm.rule, algorithm.theta(state), silo, everybody)
        spread.append(max(found) - min(found))
    assert spread[1] < spread[0] / 3


def test_responses_alone_close_most_of_the_gap() -> None:
    """Attributes: the rule is made of turned answers, and still keeps the true gap near the target."""
    silo, everybody = people(), torch.ones(4000, dtype=torch.bool)
    channel = ResponseChannel.of_epsilon(2, 2.0)
    algorithm = plugin(FairPluginOptions(target_gap=0.03, bins=160), channel=channel)
    _, state = trained(algorithm, silo)
    low, high = rates(algorithm.rule, algorithm.theta(state), silo, everybody)
    assert abs(high - low) < 0.1
    with pytest.raises(InvalidInput, match="published no responses"):
        algorithm.contribution(state, 5, replace(silo, name="west"), torch.arange(4))
    with pytest.raises(InvalidInput, match="exceed the signed 4000"):
        algorithm.contribution(algorithm.start(), 0, people(4001), torch.arange(4))


def test_the_rule_without_pulls_is_its_score_and_has_gradients_of_its_own() -> None:
    rule, silo = FairRule(LogisticRegression(3), LogisticRegression(3)), people(40)
    theta = torch.linspace(-1, 1, rule.size, dtype=torch.float64)
    score, group, pulls = rule.split(theta)
    plain = torch.cat((score, group, torch.zeros_like(pulls)))
    torch.testing.assert_close(rule.probabilities(plain, silo.x), rule.score.probabilities(score, silo.x))
    found = rule.weighted_gradient(theta, silo.x, silo.y, mean_over(40))
    moving = theta.clone().requires_grad_(True)
    loss = torch.nn.functional.cross_entropy(rule.logits(moving, silo.x), silo.y)
    (expected,) = torch.autograd.grad(loss, moving)
    torch.testing.assert_close(found.total, expected)
    assert float(found.losses.mean()) == pytest.approx(loss.item())
    directions = torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    norms = rule.probability_norms(theta, silo.x[:1], directions)
    one = rule.probability_gradient(theta, silo.x[:1], directions)
    assert float(norms[0, 0]) == pytest.approx(float(one.norm()))
    assert set(rule.named_parameters(theta)) == {"score.weight", "score.bias", "group.weight", "group.bias", "pull"}
    other = FairRule(LogisticRegression(3), LogisticRegression(3), positive=0)
    torch.testing.assert_close(other.probabilities(plain, silo.x), rule.probabilities(plain, silo.x))


def test_what_has_no_meaning_is_refused() -> None:
    with pytest.raises(InvalidInput, match="use equal-opportunity"):
        plugin(FairPluginOptions(notion=Independence.EQUALISED_ODDS))
    with pytest.raises(InvalidInput, match="two classes"):
        FairRule(LogisticRegression(3, 3), LogisticRegression(3))
    with pytest.raises(InvalidInput, match="give one of the two"):
        FairPlugin(LogisticRegression(3), LogisticRegression(3), FairPluginOptions(), 1, 4, None)
    with pytest.raises(InvalidInput, match="leave nothing"):
        FairPluginPlan(10, group_share=0.9, flip_share=0.09)
    with pytest.raises(InvalidInput, match="each counts once"):
        FairPluginPlan(10, count_clip=2.0)
    with pytest.raises(InvalidInput, match="rounds"):
        FairPluginPlan(2)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_linear_rule_may_be_trained_for_fewer_rounds_than_signed(rounds: int) -> None:
    assert replace(plugin(FairPluginOptions()), rounds=rounds).rule_rounds == rounds


def test_a_target_out_of_reach_is_said(tmp_path: Path) -> None:
    """Counts that leave every tried rule above the target: the rule with the smallest gap is taken, and it is said."""
    short = plugin(FairPluginOptions(target_gap=0.0, reach=0.05, bins=2))
    _, state = trained(short, people())
    (said,) = short.remarks(state)
    assert said.startswith(
        "no rule that was tried keeps the target gap of 0 by the noisy counts: the one taken leaves 0."
    )
    assert short.remarks(short.start()) == ()
    text = PLAN.format(privacy="", data="at-least = 100", training="reach = 0.001\nbins = 1")
    desk = Desk.at(tmp_path, text.replace("target-gap = 0.05", "target-gap = 0.0"))
    result = desk.train(desk.budget())
    assert result.summary["remarks"] == [result.to_json()["warning"]]


@pytest.mark.parametrize("epsilon", [None, 1e-3, 50.0], ids=["record", "tiny", "huge"])
@pytest.mark.parametrize("target", [0.0, 1.0])
def test_odd_data_give_a_finite_rule(epsilon: float | None, target: float) -> None:
    """One group alone, one class alone, constant features, a feature that is the group: nothing divides by zero."""
    channel = None if epsilon is None else ResponseChannel.of_epsilon(2, epsilon)
    algorithm = replace(plugin(FairPluginOptions(target_gap=target), channel=channel), rounds=6, largest_silo=300)
    silo = people(300)
    everybody = torch.zeros_like(silo.s)
    shown = silo.x.clone()
    shown[:, 2] = silo.s.double()
    for odd in (
        replace(silo, s=everybody),
        replace(silo, y=everybody),
        replace(silo, x=torch.ones_like(silo.x)),
        replace(silo, x=shown),
    ):
        _, state = trained(algorithm, odd)
        theta = algorithm.theta(state)
        assert bool(torch.isfinite(theta).all())
        assert bool(torch.isfinite(algorithm.rule.logits(theta, odd.x)).all())
        assert not (algorithm.remarks(state) and float(state.told_gap) <= target)
        if target == 1.0 and epsilon != 1e-3:
            assert not bool(state.pulls.any())  # nothing had to be done


def test_the_shares_are_shares_of_the_squared_budget() -> None:
    budget = calibrate_plan(
        FairPluginPlan(100, group_share=0.3, rate_share=0.05, flip_share=0.05), EpsilonDelta(1, 1e-5)
    )
    cost = {v.name: (100 if v.every_round else 1) / v.noise_multiplier**2 for v in budget.values}  # type: ignore[union-attr]
    shares = [one / sum(cost.values()) for one in cost.values()]
    assert shares == pytest.approx([0.6, 0.3, 0.05, 0.05])


@pytest.mark.parametrize(
    ("privacy", "data"),
    [
        ("", "at-least = 100"),
        ('protect = "user"\ncount-clip = 2.0', '[data.users]\nkind = "poisson"\nusers = 200'),
        ('protect = "attribute"', ""),
    ],
    ids=["record", "user", "attribute"],
)
def test_a_plan_is_signed_trained_and_answers(privacy: str, data: str, tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, PLAN.format(privacy=privacy, data=data, training=""))
    result = desk.train(desk.budget())
    assert result.summary["promise"]["unit"] == (Protected.RECORD.value if not privacy else privacy.split('"')[1])
    assert result.summary["rounds"]["steps"] == 12
    answers = privfair.predict(tmp_path / "run", tmp_path / "north.csv")
    assert set(answers.predicted) <= {"yes", "no"}
    assert len(answers.predicted) == 160

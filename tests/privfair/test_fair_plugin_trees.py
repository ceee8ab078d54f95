"""Boosted trees in the fair plug-in: scikit-learn's trees, grown in turn, blind to attributes, stored as numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import logit
from sklearn.ensemble import HistGradientBoostingClassifier

import privfair
from calibrate.errors import InvalidInput, Refused
from calibrate.plans.fair_plugin import ATTRIBUTE, FLIPS, GROUPS, RATES, TREE
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.fair_plugin import Clips, FairPlugin, FairPluginOptions, FairPluginState
from privfair.algorithms.parts.tree_growing import LEAST_RECORDS, RIDGE, Cuts, Grower, Turns, grow_tree
from privfair.contribution import Published
from privfair.fairness.constraints import ResponseChannel
from privfair.models.linear import LogisticRegression
from privfair.models.model import mean_over
from privfair.models.trees import FEATURE, LEFT, VALUE, BoostedTrees
from privfair.run.folder import RunFolder
from tests.privfair.small_runs import Desk
from tests.privfair.test_fair_plugin import PLAN, people

TABLE = '[training.model]\nkind = "trees"\ntrees = {trees}\nleaves = 4\n'


def silos() -> tuple[SiloTensors, ...]:
    return tuple(replace(people(900, seed=number), name=name) for number, name in enumerate(("north", "south")))


def plugin(trees: int = 20, target: float = 0.03, **changes: object) -> FairPlugin:
    found = FairPlugin(
        BoostedTrees(3, trees, 6),
        LogisticRegression(3),
        FairPluginOptions(target_gap=target, tree_rate=0.3),
        1800,
        trees + 2,
        None,
        ResponseChannel.of_epsilon(2, 2.0),
        900,
        parties=("north", "south"),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def run(algorithm: FairPlugin, seed: int = 1) -> list[FairPluginState]:
    """All states of a run, the responses turned by the channel."""
    random, states = np.random.default_rng(seed), [algorithm.start()]
    assert algorithm.channel is not None
    for step in range(algorithm.rounds):
        received = {}
        for silo in silos():
            values = dict(algorithm.contribution(states[-1], step, silo, torch.arange(len(silo))).values)
            if ATTRIBUTE in values:
                wrong = random.random(len(silo)) >= algorithm.channel.keep
                values = {ATTRIBUTE: np.where(wrong, 1 - values[ATTRIBUTE], values[ATTRIBUTE])}
            received[silo.name] = {n: Published(step, silo.name, n, np.array(v, float)) for n, v in values.items()}
        states.append(algorithm.update(states[-1], received))
    return states


def test_a_tree_is_scikit_learns() -> None:
    random = np.random.default_rng(0)
    x = random.integers(0, 20, (3000, 6)).astype(float)
    y = (x[:, 0] + x[:, 1] * x[:, 2] / 10 + random.normal(0, 4, 3000) > 18).astype(int)
    theirs = HistGradientBoostingClassifier(
        learning_rate=1.0,
        max_iter=1,
        max_leaf_nodes=15,
        min_samples_leaf=LEAST_RECORDS,
        l2_regularization=RIDGE,
        early_stopping=False,
    ).fit(x, y)
    chance = np.full(len(y), y.mean())
    tree = grow_tree(Cuts.of(x), chance - y, chance * (1 - chance), 15)
    mine = BoostedTrees(6, 1, 15).scores(torch.from_numpy(tree), torch.from_numpy(x)).numpy() + logit(y.mean())
    assert np.abs(mine - theirs.decision_function(x)).max() < 1e-12


def test_scores_add_up_in_the_same_way_whoever_remembers_them() -> None:
    forest, silo = run(plugin())[-1].trees, silos()[0]
    model, grower = BoostedTrees(3, 20, 6), Grower(BoostedTrees(3, 20, 6))
    for trees in (3, 5, 20):
        remembered = grower.next_tree("north", forest[:trees], silo.x, silo.y)
        fresh = Grower(model).next_tree("north", forest[:trees], silo.x, silo.y)
        assert np.array_equal(remembered, fresh)
    assert torch.equal(model.scores(forest[5:], silo.x, model.scores(forest[:5], silo.x)), model.scores(forest, silo.x))
    other = grower.next_tree("north", forest[:3] * torch.tensor([1, 1, 1, 2.0]), silo.x, silo.y)
    assert not np.array_equal(other, grower.next_tree("north", forest[:3], silo.x, silo.y))


def test_silos_grow_in_turn_and_the_rule_keeps_its_target() -> None:
    algorithm, everybody = plugin(), [replace(silo) for silo in silos()]
    states = run(algorithm)
    for step in (1, 2):
        sent = [algorithm.contribution(states[step], step, silo, torch.arange(900)).values[TREE] for silo in everybody]
        assert [bool(tree.any()) for tree in sent] == [step == 1, step == 2]
    assert bool((states[-1].trees[:, 0, LEFT] > 0).any())
    x, y, s = (torch.cat([getattr(silo, name) for silo in everybody]) for name in "xys")
    free = torch.cat((states[-1].trees.flatten(), states[-1].descent.kept, torch.zeros(2, dtype=torch.float64)))
    answers = [algorithm.rule.probabilities(theta, x)[:, 1] > 0.5 for theta in (free, algorithm.theta(states[-1]))]
    gaps = [abs(float(a[s == 0].double().mean() - a[s == 1].double().mean())) for a in answers]
    assert gaps[0] > 0.3
    assert gaps[1] < 0.12
    assert float((answers[0] != (y == 1)).double().mean()) < 0.2


def test_one_attribute_changes_the_responses_and_nothing_else() -> None:
    """Whatever round: with the same published state a neighbour's clear values are the same to the last bit."""
    algorithm, silo = plugin(), silos()[0]
    neighbour = replace(silo, s=torch.cat((1 - silo.s[:1], silo.s[1:])))
    states = run(algorithm)
    for step in (0, 1, 3, 20, 21):
        one, other = (algorithm.contribution(states[step], step, it, torch.arange(900)) for it in (silo, neighbour))
        assert set(one.values) == set(other.values)
        for name in one.values:
            different = int((one.values[name] != other.values[name]).sum())
            assert different == (1 if name == ATTRIBUTE else 0)
    assert {TREE, GROUPS} <= set(algorithm.contribution(states[1], 1, silo, torch.arange(900)).values)
    assert {RATES} <= set(algorithm.contribution(states[20], 20, silo, torch.arange(900)).values)
    assert {FLIPS} <= set(algorithm.contribution(states[21], 21, silo, torch.arange(900)).values)


def test_states_are_stored_and_restored_with_their_trees() -> None:
    algorithm = plugin()
    state = run(algorithm)[7]
    again = algorithm.restore(algorithm.checkpoint(state))
    assert torch.equal(again.trees, state.trees)
    assert torch.equal(algorithm.theta(again), algorithm.theta(state))


@pytest.mark.parametrize(
    ("place", "value"),
    [((0, 0, FEATURE), 3.0), ((0, 0, FEATURE), 0.5), ((0, 0, LEFT), -1.0), ((0, 2, LEFT), 2.0), ((0, 0, LEFT), 10.0),
     ((0, 0, VALUE), float("nan"))],
)  # fmt: skip
def test_numbers_that_are_no_trees_are_refused(place: tuple[int, int, int], value: float) -> None:
    model = BoostedTrees(3, 2, 6)
    theta = model.initial(0)
    model.named_parameters(theta)["trees"][place] = value
    with pytest.raises(InvalidInput, match="children after their parent"):
        model.logits(theta, torch.zeros(1, 3, dtype=torch.float64))


def test_leaves_have_gradients() -> None:
    algorithm, silo = plugin(), silos()[0]
    theta = algorithm.theta(run(algorithm)[-1])
    found = algorithm.rule.weighted_gradient(theta, silo.x[:20], silo.y[:20], mean_over(20))
    assert float(found.norms.min()) > 0


def test_each_silo_counts_by_trees_that_never_saw_its_records() -> None:
    turns = Turns(("a", "b", "c", "d"))
    assert [turns.grower(place) for place in range(8)] == ["a", "b", "c", "d", "b", "c", "a", "b"]
    forest = torch.ones(8, 3, 4, dtype=torch.float64)
    for party in turns.parties:
        unseen = turns.unseen(forest, party)
        mine = [place for place in range(8) if turns.grower(place) == party]
        assert not bool(unseen[mine].any())
        assert float(unseen[:6, 0, VALUE].sum()) == pytest.approx(6.0)
    assert torch.equal(Turns(("a",)).unseen(forest, "a"), forest)
    assert float(turns.before(forest, 7)[:, 0, VALUE].sum()) == 6.0
    assert len(turns.before(forest, 1)) == 0


def test_odd_silos_grow_trees_all_the_same() -> None:
    """One class, constant features, fewer records than a leaf needs, none at all: one leaf, and finite."""
    model = BoostedTrees(3, 4, 6)
    x = people(400).x
    none = torch.zeros(0, dtype=torch.int64)
    cases = [
        (x, torch.ones(400, dtype=torch.int64)),
        (torch.ones_like(x), people(400).y),
        (x[:40], people(400).y[:40]),
        (x[:0], none),
    ]
    for number, (features, labels) in enumerate(cases):
        tree = Grower(model).next_tree("", model.initial(0).reshape(4, -1, 4)[:0], features, labels)
        assert np.isfinite(tree).all()
        assert tree[0, LEFT] == 0, number
        assert (tree[0, VALUE] != 0) == (len(labels) > 0)
    copy = torch.cat((x, people(400).s[:, None].double()), dim=1)
    tree = Grower(BoostedTrees(4, 4, 6)).next_tree("", torch.zeros(0, 11, 4, dtype=torch.float64), copy, people(400).y)
    assert tree[0, LEFT] > 0


def test_trees_are_refused_where_they_would_show_what_is_promised(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match='or protect = "attribute"'):
        plugin(clips=Clips(1.0, 1.0, 1.0), channel=None)
    with pytest.raises(InvalidInput, match="write rounds = 22"):
        plugin(rounds=21)
    with pytest.raises(InvalidInput, match="name the silos"):
        plugin(parties=())
    for privacy, rest in (("", "at-least = 100"), ('protect = "attribute"', "")):
        trees = 3 if not privacy else 30
        text = PLAN.format(privacy=privacy, data=rest, training=TABLE.format(trees=trees))
        with pytest.raises(InvalidInput, match=r'protect = "attribute"|write rounds = 32'):
            Desk.at(tmp_path / str(trees), text).budget()
    text = PLAN.format(privacy="", data="", training=TABLE.format(trees=2)).replace("target-gap = 0.05", "")
    text = text.replace("fair-plugin", "pay-once")
    with pytest.raises(InvalidInput, match="grown by fair-plugin alone"):
        Desk.at(tmp_path / "other", text).budget()


def test_a_plan_with_trees_is_signed_trained_and_answers(tmp_path: Path) -> None:
    text = PLAN.format(privacy='protect = "attribute"', data="", training=TABLE.format(trees=10))
    desk = Desk.at(tmp_path, text)
    result = desk.train(desk.budget())
    assert any("splits and leaves of trees" in line for line in result.summary["promise"]["not_protected"])
    answers = privfair.predict(tmp_path / "run", tmp_path / "north.csv")
    assert set(answers.predicted) <= {"yes", "no"}
    assert len(answers.predicted) == 160
    folder = RunFolder.existing(tmp_path / "run")
    saved = torch.load(folder.model, weights_only=True)
    assert saved["score.trees"].shape == (10, 7, 4)
    assert bool((saved["score.trees"][:, 0, LEFT] > 0).any())
    saved["score.trees"] = saved["score.trees"][:9]
    torch.save(saved, folder.model)
    with pytest.raises(Refused, match="is not the model of this run"):
        privfair.predict(tmp_path / "run", tmp_path / "north.csv")

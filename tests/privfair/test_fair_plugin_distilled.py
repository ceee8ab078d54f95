"""The fair rule distilled: trees of the features alone that answer as the rule does, for attributes and nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import privfair
from calibrate.errors import InvalidInput
from calibrate.plans.fair_plugin import PUPIL, TREE
from privfair.algorithms.fair_plugin import Clips, FairPlugin
from privfair.fairness.constraints import ResponseChannel
from privfair.models.linear import LogisticRegression
from privfair.models.trees import LEFT, BoostedTrees
from privfair.run.folder import RunFolder
from tests.privfair.small_runs import Desk
from tests.privfair.test_fair_plugin import PLAN
from tests.privfair.test_fair_plugin_trees import plugin, run, silos

PUPILS = 24


def distilled(**changes: object) -> FairPlugin:
    return replace(plugin(), **({"rounds": 22 + PUPILS, "pupil": BoostedTrees(3, PUPILS, 6)} | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("logistic", [False, True], ids=["trees", "logistic"])
def test_the_pupil_answers_as_the_rule_does_and_guesses_no_group(logistic: bool) -> None:
    algorithm = distilled(model=LogisticRegression(3)) if logistic else distilled()
    last = run(algorithm)[-1]
    model = algorithm.released
    theta = algorithm.theta(last)
    assert list(model.named_parameters(theta)) == ["pupil.trees"]
    assert len(theta) == model.size == PUPILS * 11 * 4
    x, s = (torch.cat([getattr(silo, name) for silo in silos()]) for name in "xs")
    taught, learnt = algorithm.rule.logits(algorithm.rule_theta(last), x), model.logits(theta, x)
    rule, pupil = (scores.argmax(dim=1) for scores in (taught, learnt))
    assert float((rule == pupil).double().mean()) > 0.94
    free = replace(last, pulls=torch.zeros(2, dtype=torch.float64))
    alone = algorithm.rule.logits(algorithm.rule_theta(free), x).argmax(dim=1)
    gaps = [abs(float(a[s == 0].double().mean() - a[s == 1].double().mean())) for a in (alone, rule, pupil)]
    assert gaps[0] > 0.3
    assert gaps[2] < gaps[1] + 0.03 < gaps[0] / 2


def test_the_rule_is_as_without_a_pupil_and_stays_while_it_is_distilled() -> None:
    alone, states = run(plugin())[-1], run(distilled())
    for state in states[22:]:
        assert torch.equal(distilled().rule_theta(state), plugin().theta(alone))
    assert [state.taught for state in states[22:]] == list(range(PUPILS + 1))


def test_one_attribute_does_not_reach_the_pupil() -> None:
    algorithm, states, silo = distilled(), run(distilled()), silos()[0]
    neighbour = replace(silo, s=torch.cat((1 - silo.s[:1], silo.s[1:])))
    for step in (22, 23, 22 + PUPILS - 1):
        one, other = (algorithm.contribution(states[step], step, it, torch.arange(900)) for it in (silo, neighbour))
        assert set(one.values) == set(other.values) == {PUPIL}
        assert one.values[PUPIL].tobytes() == other.values[PUPIL].tobytes()
        assert bool(one.values[PUPIL].any()) == (step % 2 == 0)


def test_states_are_stored_and_restored_while_the_rule_is_distilled() -> None:
    algorithm, states = distilled(), run(distilled())
    again = algorithm.restore(algorithm.checkpoint(states[30]))
    for silo in silos():
        sent = [algorithm.contribution(one, 30, silo, torch.arange(900)).values[PUPIL] for one in (states[30], again)]
        assert sent[0].tobytes() == sent[1].tobytes()


def test_answers_that_are_remembered_are_those_of_the_rule() -> None:
    """Another rule, or other records of the same silo, and the pupil learns from these."""
    algorithm, states, silo = distilled(), run(distilled()), silos()[0]
    stronger = replace(states[22], pulls=3 * states[22].pulls)
    other = replace(silo, x=silo.x.flip(0))
    for state, records in ((states[22], silo), (stronger, silo), (states[22], other), (states[22], silo)):
        sent, fresh = (
            one.contribution(state, 22, records, torch.arange(900)).values[PUPIL] for one in (algorithm, distilled())
        )
        assert sent.tobytes() == fresh.tobytes()


def test_distilling_is_refused_where_it_would_show_what_is_promised(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r'release the rule itself .*, or protect = "attribute"'):
        distilled(model=LogisticRegression(3), clips=Clips(1.0, 1.0, 1.0), channel=None)
    with pytest.raises(InvalidInput, match="write rounds = 46"):
        distilled(rounds=45)
    with pytest.raises(InvalidInput, match="leave fewer than three of 26 rounds"):
        distilled(model=LogisticRegression(3), rounds=26)
    with pytest.raises(InvalidInput, match="name the silos"):
        run(distilled(model=LogisticRegression(3), parties=()))
    users = '[data.users]\nkind = "poisson"\nusers = 20\n'
    for privacy, data in (("", "at-least = 100"), ('protect = "user"\ncount-clip = 2.0', users)):
        text = PLAN.format(privacy=privacy, data=data, training="distil-trees = 4")
        with pytest.raises(InvalidInput, match="features are promised to be protected"):
            Desk.at(tmp_path / str(len(privacy)), text).budget()
    other = PLAN.format(privacy="", data="", training="distil-trees = 4").replace("target-gap = 0.05", "")
    with pytest.raises(InvalidInput, match="distil-trees"):
        Desk.at(tmp_path / "other", other.replace("fair-plugin", "pay-once")).budget()


def test_a_distilled_plan_is_signed_trained_and_answers(tmp_path: Path) -> None:
    table = '[training.model]\nkind = "trees"\ntrees = 4\nleaves = 4\n'
    text = PLAN.format(privacy='protect = "attribute"', data="", training=f"distil-trees = 6\n{table}")
    desk = Desk.at(tmp_path, text)
    result = desk.train(desk.budget())
    assert any("unless it is distilled" in line for line in result.summary["promise"]["not_protected"])
    saved = torch.load(RunFolder.existing(tmp_path / "run").model, weights_only=True)
    assert list(saved) == ["pupil.trees"]
    assert saved["pupil.trees"].shape == (6, 7, 4)
    assert bool((saved["pupil.trees"][:, 0, LEFT] > 0).any())
    assert len(privfair.predict(tmp_path / "run", tmp_path / "north.csv").predicted) == 160


def test_an_unfinished_pupil_is_remarked() -> None:
    algorithm, states = distilled(), run(distilled())
    assert any("into 8 of 24 trees" in remark for remark in algorithm.remarks(states[30]))
    assert not any("of 24 trees" in remark for remark in algorithm.remarks(states[-1]))
    assert PUPIL in {value.name for value in algorithm.clear_values()}
    assert {PUPIL, TREE} <= set(algorithm.shapes())
    assert algorithm.channel == ResponseChannel.of_epsilon(2, 2.0)

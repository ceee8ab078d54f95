"""The replica of SteFFLe's public code: one round against autograd, groups by first record, no promise beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.manifest.document import Issuer
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.baselines.steffle_public_code import H_THETA, H_W, G, PublicCodeState, StefflePublicCode
from privfair.algorithms.parts.descent import DescentRule
from privfair.api.draft import Promise, draft
from privfair.fairness.fermi import Independence
from privfair.models.linear import LogisticRegression
from privfair.plan.plan import Plan
from tests.privfair.plain_models import ROUNDED
from tests.privfair.small_runs import Desk, steffle_plan
from tests.privfair.steffle_cases import silo_of, without_noise

CLIP, SHARES = 0.05, {Independence.DEMOGRAPHIC_PARITY: (0.3,), Independence.EQUALISED_ODDS: (0.3, 0.6)}


def _replica(notion: Independence, **more: object) -> StefflePublicCode:
    rule = DescentRule(0.25, momentum=0.0)
    arguments = {"fairness": 1.5, "rule": rule, "w_step": 0.3, "clip": CLIP, "w_radius": 0.4} | more
    return StefflePublicCode(
        LogisticRegression(4), notion, first_shares=SHARES[notion], silos=("north", "south"), **arguments
    )


def _silos() -> dict[str, SiloTensors]:
    """Group 0 comes first in the north, group 1 in the south."""
    north, south = silo_of(30, 4, 2, 2, seed=1), silo_of(20, 4, 2, 2, seed=2, name="south")
    return {"north": north, "south": SiloTensors("south", south.x, south.y, 1 - south.s)}


def _by_hand(algorithm: StefflePublicCode, state: PublicCodeState, silo: SiloTensors) -> dict[str, np.ndarray]:
    """Loss: mean. psi in theta: each record's, lambda inside, clipped, summed. psi in w: lambda times the mean."""
    w = state.w.clone().requires_grad_()
    summed, in_w = torch.zeros(5, dtype=torch.float64), torch.zeros_like(state.w)
    loss_gradient = torch.zeros(5, dtype=torch.float64)
    for x, y, s in zip(silo.x, silo.y, silo.s, strict=True):
        theta = state.descent.theta.clone().requires_grad_()
        score = theta[:4] @ x + theta[4]
        block = int(y) if algorithm.blocks == 2 else 0
        first = float(s == silo.s[0])
        p, share = torch.sigmoid(score), algorithm.first_shares[block]
        psi = -(w[block] ** 2) * p + 2 * w[block] * p * first / share**0.5 - 1
        of_theta, of_w = torch.autograd.grad(algorithm.fairness * psi, (theta, w), retain_graph=True)
        summed += of_theta * min(1.0, CLIP / max(float(of_theta.norm()), 1e-30))
        in_w += of_w / len(silo)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(score, y.double())
        loss_gradient += torch.autograd.grad(loss, theta)[0] / len(silo)
    return {G: loss_gradient.numpy(), H_THETA: summed.numpy(), H_W: in_w.numpy()}


@pytest.mark.parametrize("notion", list(SHARES))
def test_a_round_is_that_of_the_public_code(notion: Independence) -> None:
    algorithm, silos = _replica(notion), _silos()
    start = algorithm.start()
    w = torch.linspace(0.2, 0.35, algorithm.blocks, dtype=torch.float64)
    state = PublicCodeState(algorithm.rule.start(torch.linspace(-0.4, 0.5, 5, dtype=torch.float64)), w)
    assert float(start.w.abs().sum()) == 0
    messages = {name: algorithm.contribution(state, 0, silo, torch.arange(len(silo))) for name, silo in silos.items()}
    expected = {name: _by_hand(algorithm, state, silo) for name, silo in silos.items()}
    for name, message in messages.items():
        for value, found in (message.clear or {}).items():
            np.testing.assert_allclose(found, expected[name][value], **ROUNDED)
    after = algorithm.update(state, without_noise(messages.items()))
    mean = {value: (expected["north"][value] + expected["south"][value]) / 2 for value in (G, H_THETA, H_W)}
    moved = state.descent.theta.numpy() - 0.25 * (mean[G] + mean[H_THETA])
    np.testing.assert_allclose(algorithm.theta(after).numpy(), moved, **ROUNDED)
    np.testing.assert_allclose(after.w.numpy(), np.clip(w.numpy() + 0.3 * mean[H_W], -0.4, 0.4), **ROUNDED)


def test_the_sum_grows_with_the_batch_and_the_first_record_names_the_group() -> None:
    """What the paper's noise does not cover: twice the records, twice the message; another first record."""
    algorithm, silo = _replica(Independence.DEMOGRAPHIC_PARITY, clip=10.0), _silos()["north"]
    state = PublicCodeState(algorithm.start().descent, torch.tensor([0.3], dtype=torch.float64))

    def sent(of: SiloTensors) -> np.ndarray:
        clear = algorithm.contribution(state, 0, of, torch.arange(len(of))).clear
        assert clear is not None
        return clear[H_THETA]

    twice = SiloTensors("north", silo.x.repeat(2, 1), silo.y.repeat(2), silo.s.repeat(2))
    np.testing.assert_allclose(sent(twice), 2 * sent(silo))
    swapped = SiloTensors("north", silo.x, silo.y, 1 - silo.s)
    np.testing.assert_allclose(sent(swapped), sent(silo))
    other = silo.s.clone()
    other[0] = 1 - other[0]
    assert not np.allclose(sent(SiloTensors("north", silo.x, silo.y, other)), sent(silo), rtol=0.5)


PLAN = steffle_plan(6, 'variant = "public-code"', epsilon=4.0, batch=40, minority=0.3, lipschitz=0.5, radius=0.3)


def test_it_is_refused_under_any_promise_and_trains_without_one(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, PLAN)
    file = Plan.read(desk.plan)
    promises: tuple[Promise, ...] = ("calibrated", "as-printed")
    for promise in promises:
        with pytest.raises(UnsupportedCombination, match="a promise next to 'h_theta' in the clear"):
            draft(file, Issuer(), promise)
    unpromised = Desk.at(tmp_path / "without", PLAN.replace("[target]\nepsilon = 4.0\ndelta = 1e-5\n", ""))
    result = unpromised.train(unpromised.budget())
    assert result.to_json()["epsilon"] is None
    assert result.summary["rounds"]["steps"] == 6


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("warm-start = 5\n", "warm-start"),
        ("class-weight = [1.0, 2.0]\n", "class-weight"),
        ('notion = "equal-opportunity"\n', "demographic parity and equalised odds"),
    ],
)
def test_what_the_public_code_does_not_know_is_refused(more: str, says: str, tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, PLAN.replace("[target]\nepsilon = 4.0\ndelta = 1e-5\n", "") + more)
    with pytest.raises((InvalidInput, UnsupportedCombination), match=says):
        desk.budget()

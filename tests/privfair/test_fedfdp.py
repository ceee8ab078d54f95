"""FedFDP and FedFair against their equations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calibrate.errors import InvalidInput
from privfair.algorithms.algorithm import Message, SiloTensors
from privfair.algorithms.baselines.fedfair import FedFair, FedFairOptions
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.fedfdp import GRADIENT, LOSS, FedFdp, FedFdpClips, FedFdpOptions, FedFdpState, LossClipRule
from privfair.algorithms.parts.clients import NOISY
from privfair.algorithms.parts.descent import DescentRule, Iterate
from privfair.algorithms.recipe import Blueprint, Unpriced
from privfair.algorithms.registry import recipe_named
from privfair.contribution import Published
from privfair.fairness.clipping import clipped_losses, fair_clipping, mean_of_losses, next_loss_clip
from privfair.models.linear import LogisticRegression
from privfair.plan.sections import GradientOptions
from privfair.rounding import ROUNDING_SLACK
from tests.privfair.plain_models import ROUNDED, Plain

FEATURES = 4
SIZES = {"north": 30, "south": 10}
SHARES = {"north": 0.75, "south": 0.25}
EXPECTED = {"north": 6.0, "south": 2.0}
CLIPS = FedFdpClips(0.3, 2.5)


def _silo(name: str, seed: int = 0, scale: float = 1.0) -> SiloTensors:
    generator = torch.Generator().manual_seed(seed + len(name))
    size = SIZES[name]
    x = torch.randn(size, FEATURES, generator=generator, dtype=torch.float64) * scale
    y = (x[:, 0] + torch.randn(size, generator=generator) > 0).long()
    return SiloTensors(name, x, y, torch.randint(0, 2, (size,), generator=generator))


def _algorithm(clips: FedFdpClips = CLIPS, **options: object) -> FedFdp:
    return FedFdp(LogisticRegression(FEATURES), FedFdpOptions(**options), SHARES, EXPECTED, clips)  # type: ignore[arg-type]


def _sent(message: Message) -> dict[str, np.ndarray]:
    return {c.name: c.values for c in message.noisy} | dict(message.clear or {})


def _received(messages: dict[str, Message]) -> dict[str, dict[str, Published]]:
    return {
        party: {name: Published(0, party, name, values.copy()) for name, values in _sent(message).items()}
        for party, message in messages.items()
    }


def _round(algorithm: FedFdp, state: FedFdpState, batches: dict[str, Tensor]) -> FedFdpState:
    sent = {party: algorithm.contribution(state, 0, _silo(party), batches[party]) for party in SIZES}
    return algorithm.update(state, _received(sent))


def _gradients(theta: Tensor, silo: SiloTensors, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Each record's gradient and loss, by autograd."""
    gradients, losses = [], []
    for row in rows:
        point = theta.clone().requires_grad_()
        loss = Plain(LogisticRegression(FEATURES)).losses(point, silo.x[row][None], silo.y[row][None])[0]
        loss.backward()
        gradients.append(point.grad)
        losses.append(loss.detach())
    return torch.stack(gradients), torch.stack(losses)


def test_without_fairness_it_is_dp_fedsgd() -> None:
    """lambda = 0: the same sums, and the same step, as DP-FedSGD with the same clip."""
    ours = _algorithm(fairness=0.0, learning_rate=0.5)
    theirs = DpFedSgd(
        LogisticRegression(FEATURES), GradientOptions(learning_rate=0.5), CLIPS.gradient, sum(EXPECTED.values())
    )
    state, other = ours.start(), theirs.start()
    generator = torch.Generator().manual_seed(7)
    for _ in range(5):
        batches = {party: torch.randperm(size, generator=generator)[:5] for party, size in SIZES.items()}
        received = {}
        for party in SIZES:
            message = theirs.contribution(other, 0, _silo(party), batches[party])
            mine = _sent(ours.contribution(state, 0, _silo(party), batches[party]))
            np.testing.assert_allclose(mine[GRADIENT], message.noisy[0].values, rtol=1e-12)
            received[party] = {NOISY: Published(0, party, NOISY, message.noisy[0].values)}
        state, other = _round(ours, state, batches), theirs.update(other, received)
        np.testing.assert_allclose(ours.theta(state), theirs.theta(other), rtol=1e-10)


def test_dp_fedsgd_with_a_descent_rule_takes_its_steps_and_keeps_its_mean() -> None:
    rule = DescentRule(2.0, 0.9, iterate=Iterate.TAIL_AVERAGE, rounds=4, cosine=True)
    algorithm = DpFedSgd(LogisticRegression(FEATURES), GradientOptions(), 1.0, 10.0, rule=rule)
    state, by_hand = algorithm.start(), rule.start(torch.zeros(FEATURES + 1, dtype=torch.float64))
    random = np.random.default_rng(3)
    for step in range(4):
        total = random.standard_normal(FEATURES + 1)
        state = algorithm.update(state, {"north": {NOISY: Published(step, "north", NOISY, total)}})
        by_hand = rule.advance(by_hand, torch.from_numpy(total / 10.0))
        np.testing.assert_array_equal(state.theta, by_hand.theta)
    np.testing.assert_array_equal(algorithm.theta(state), rule.model(by_hand))


def test_the_contribution_is_the_sum_of_clipped_factors_times_gradients() -> None:
    algorithm = _algorithm(fairness=2.0)
    silo, rows = _silo("north"), torch.arange(12)
    theta = torch.linspace(-1, 1, FEATURES + 1, dtype=torch.float64)
    state = FedFdpState(theta, None, 0, 0.9, (0.8, 2.5))
    gradients, losses = _gradients(theta, silo, rows)
    factors = 1 + 2.0 * (losses - 0.9)
    assert (factors < 0).any()
    assert (factors > 1).any()
    norms = gradients.norm(dim=1)
    reach = CLIPS.gradient / (1 + ROUNDING_SLACK)
    coefficients = torch.sign(factors) * torch.minimum(factors.abs(), reach / norms)
    sent = _sent(algorithm.contribution(state, 0, silo, rows))
    np.testing.assert_allclose(sent[GRADIENT], (coefficients[:, None] * gradients).sum(0), **ROUNDED)
    cut = losses.clamp(0, 0.8).sum() * (CLIPS.loss / 0.8) / (1 + ROUNDING_SLACK)
    np.testing.assert_allclose(sent[LOSS], [float(cut)], **ROUNDED)


def test_a_negative_factor_is_clipped_and_the_printed_equation_is_not() -> None:
    norms, losses = torch.tensor([3.0], dtype=torch.float64), torch.tensor([0.0], dtype=torch.float64)
    coefficient = float(fair_clipping(1.0, 2.5, 0.1)(norms, losses)[0])
    assert coefficient < 0
    assert abs(coefficient) * 3.0 <= 0.1
    printed = min(1 + 1.0 * (0.0 - 2.5), 0.1 / 3.0)
    assert abs(printed) * 3.0 == pytest.approx(4.5)


@settings(max_examples=200, deadline=None)
@given(
    fairness=st.floats(0, 1e6),
    mean=st.floats(-1e6, 1e6),
    clip=st.floats(1e-6, 1e6),
    norm=st.floats(0, 1e12),
    loss=st.floats(0, 1e9),
)
def test_no_part_is_longer_than_the_clip(fairness: float, mean: float, clip: float, norm: float, loss: float) -> None:
    norms, losses = torch.tensor([norm], dtype=torch.float64), torch.tensor([loss], dtype=torch.float64)
    coefficient = float(fair_clipping(fairness, mean, clip)(norms, losses)[0])
    assert abs(coefficient) * norm <= clip
    factor = 1 + fairness * (loss - mean)
    assert math.copysign(1.0, coefficient) == math.copysign(1.0, factor) or coefficient == 0


def test_empty_batches_send_values_of_the_right_shape() -> None:
    algorithm = _algorithm()
    sent = _sent(algorithm.contribution(algorithm.start(), 0, _silo("north"), torch.arange(0)))
    assert {name: values.shape for name, values in sent.items()} == algorithm.shapes()
    assert not sent[GRADIENT].any()


def test_nothing_accumulates() -> None:
    """The same state and batch give the same message, however many rounds went before."""
    algorithm = _algorithm()
    state, batch = algorithm.start(), torch.arange(8)
    first = _sent(algorithm.contribution(state, 0, _silo("north"), batch))
    for step in range(1, 4):
        algorithm.contribution(state, step, _silo("north"), torch.arange(step, 10))
    again = _sent(algorithm.contribution(state, 4, _silo("north"), batch))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])


def test_several_local_steps_are_averaged_only_at_the_end() -> None:
    """Two local steps: each client moves on its own model, and the global one changes at the aggregation."""
    algorithm = _algorithm(local_steps=2, fairness=0.0, learning_rate=0.2)
    state = algorithm.start()
    first = {party: torch.arange(5) for party in SIZES}
    half = _round(algorithm, state, first)
    np.testing.assert_array_equal(algorithm.theta(half), algorithm.theta(state))
    assert half.local is not None
    expected = torch.zeros(FEATURES + 1, dtype=torch.float64)
    for place, party in enumerate(SIZES):
        local = state.theta
        for rows in (torch.arange(5), torch.arange(3, 9)):
            gradients, _ = _gradients(local, _silo(party), rows)
            reach = CLIPS.gradient / (1 + ROUNDING_SLACK)
            scale = (reach / gradients.norm(dim=1)).clamp_max(1.0)
            local = local - 0.2 * (scale[:, None] * gradients).sum(0) / EXPECTED[party]
            if rows[0] == 0:
                np.testing.assert_allclose(half.local[place], local, **ROUNDED)
        expected += SHARES[party] * local
    done = _round(algorithm, half, {party: torch.arange(3, 9) for party in SIZES})
    assert done.local is None
    np.testing.assert_allclose(algorithm.theta(done), expected, **ROUNDED)


def test_sums_are_divided_by_the_expected_size_not_the_realised_one() -> None:
    algorithm = _algorithm(fairness=0.0, learning_rate=1.0)
    state = algorithm.start()
    steps = []
    for rows in (torch.arange(4), torch.arange(9)):
        silo = _silo("north")
        sent = {"north": algorithm.contribution(state, 0, silo, rows)}
        sent["south"] = algorithm.contribution(state, 0, _silo("south"), torch.arange(0))
        moved = state.theta - algorithm.theta(algorithm.update(state, _received(sent)))
        steps.append((moved.numpy(), _sent(sent["north"])[GRADIENT]))
    for moved, total in steps:
        np.testing.assert_allclose(moved, SHARES["north"] * total / EXPECTED["north"], rtol=1e-9, atol=1e-15)


def test_fedfair_is_its_papers_algorithm_1() -> None:
    """Lines 11 to 17: steps of its own per mini-batch, scaled by the batch's excess loss; F_i on D_i after them."""
    options = FedFairOptions(learning_rate=0.1, local_epochs=2, local_batch=4, fairness=3.0, initial_loss=0.5)
    algorithm = FedFair(LogisticRegression(FEATURES), options, SHARES)
    state = algorithm.start()
    sent = {}
    expected, loss = torch.zeros(FEATURES + 1, dtype=torch.float64), 0.0
    for party, size in SIZES.items():
        silo, local = _silo(party), state.theta.clone()
        rows = torch.randperm(size, generator=torch.Generator().manual_seed(4))
        for batch in 2 * torch.split(rows, 4):
            gradients, losses = _gradients(local, silo, batch)
            local = local - 0.1 * (1 + 3.0 * (float(losses.mean()) - 0.5)) * gradients.mean(0)
        expected += SHARES[party] * local
        loss += SHARES[party] * float(_gradients(local, silo, torch.arange(size))[1].mean())
        sent[party] = algorithm.contribution(state, 0, silo, rows)
    following = algorithm.update(state, _received(sent))
    np.testing.assert_allclose(following.theta, expected, **ROUNDED)
    assert following.mean_loss == pytest.approx(loss, rel=ROUNDED["rtol"])


def test_fedfdp_without_a_clip_is_refused_by_the_name_of_its_baseline() -> None:
    recipe = recipe_named("fedfdp")
    unpriced, parties = Unpriced({}, "clip"), tuple(SIZES.items())
    with pytest.raises(InvalidInput, match='algorithm = "fedfair"'):
        recipe.build(Blueprint(LogisticRegression(FEATURES), FedFdpOptions(), unpriced, parties, (FEATURES,), 2, 1, 0))


def test_the_loss_clip_adapts_within_its_bounds_and_grows_back() -> None:
    signed, floor = 2.5, 0.01
    clip = floor
    for _ in range(20):
        # Every loss is above the clip, so the exact clipped mean is the clip itself.
        losses = torch.full((50,), 1.7, dtype=torch.float64)
        total = float(clipped_losses(losses, clip, signed).sum())
        clip = next_loss_clip(mean_of_losses(total, clip, signed, 50.0), 2.0, floor, signed)
    assert clip == pytest.approx(signed)
    assert next_loss_clip(-3.0, 2.0, floor, signed) == floor
    assert next_loss_clip(0.0, 1.0, floor, signed) == floor
    assert next_loss_clip(100.0, 1.0, floor, signed) == signed


def test_the_loss_clip_of_a_run_is_its_own_clients_last_mean() -> None:
    algorithm = _algorithm(loss_headroom=1.0, loss_floor=0.02)
    state = algorithm.start()
    values = {
        "north": {"gradient": np.zeros(5), "loss": np.array([6.0 * 1.1 / (1 + ROUNDING_SLACK)])},
        "south": {"gradient": np.zeros(5), "loss": np.array([-40.0])},
    }
    received = {p: {n: Published(0, p, n, v) for n, v in of.items()} for p, of in values.items()}
    following = algorithm.update(state, received)
    assert following.loss_clips == pytest.approx((1.1, 0.02))
    assert following.mean_loss == pytest.approx(0.75 * 1.1)
    fixed = _algorithm(loss_clip_rule=LossClipRule.SIGNED)
    assert fixed.update(fixed.start(), received).loss_clips == (2.5, 2.5)


def test_the_noise_on_the_loss_shrinks_with_the_clip() -> None:
    """One unit of noise on the published sum moves the mean by the current clip over the signed one."""
    narrow = mean_of_losses(21.0, 0.25, 2.5, 100.0) - mean_of_losses(20.0, 0.25, 2.5, 100.0)
    wide = mean_of_losses(21.0, 2.5, 2.5, 100.0) - mean_of_losses(20.0, 2.5, 2.5, 100.0)
    assert wide == pytest.approx(10 * narrow)


@pytest.mark.parametrize("local_steps", [1, 3])
def test_checkpoints_restore_the_state(local_steps: int) -> None:
    algorithm = _algorithm(local_steps=local_steps)
    state = _round(algorithm, algorithm.start(), {party: torch.arange(6) for party in SIZES})
    again = algorithm.restore(algorithm.checkpoint(state))
    batches = {party: torch.arange(2, 8) for party in SIZES}
    one, other = _round(algorithm, state, batches), _round(algorithm, again, batches)
    for name, values in algorithm.checkpoint(one).items():
        np.testing.assert_array_equal(values, algorithm.checkpoint(other)[name])


def test_wrong_settings_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="expected"):
        FedFdp(LogisticRegression(2), FedFdpOptions(), {"a": 1.0}, {"b": 1.0}, CLIPS)
    with pytest.raises(InvalidInput, match="weights"):
        FedFdp(LogisticRegression(2), FedFdpOptions(), {"a": 0.4}, {"a": 1.0}, CLIPS)
    with pytest.raises(InvalidInput, match="loss-floor"):
        _algorithm(FedFdpClips(1.0, 0.001))
    with pytest.raises(InvalidInput, match="loss-headroom"):
        FedFdpOptions(loss_headroom=0.5)
    algorithm, silo = _algorithm(), _silo("north")
    stranger = SiloTensors("west", silo.x, silo.y, silo.s)
    with pytest.raises(InvalidInput, match="client"):
        algorithm.contribution(algorithm.start(), 0, stranger, torch.arange(2))


def test_clipped_losses_stay_within_the_signed_bound_whatever_is_given() -> None:
    given = torch.tensor([math.nan, math.inf, -math.inf, -1.0, 0.5], dtype=torch.float64)
    signed = 2.0 / (1 + ROUNDING_SLACK)
    np.testing.assert_allclose(clipped_losses(given, 1.0, 2.0), [0.0, signed, 0.0, 0.0, signed / 2], rtol=1e-12)

"""No record's attribute moves a message by more than the signed bound, and some record's nearly does."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.errors import InvalidInput
from calibrate.plans.plan import HISTOGRAM as PLANNED_HISTOGRAM
from calibrate.plans.steffle import H_THETA as PLANNED_H_THETA
from calibrate.plans.steffle import H_W as PLANNED_H_W
from calibrate.plans.steffle import StefflePlan
from privfair.algorithms.steffle import H_THETA, H_W, HISTOGRAM, LOSS_GRADIENT, SteffleBounds, WCenter
from privfair.models.exact import Bits
from privfair.models.perceptron import Perceptron
from privfair.rounding import ROUNDING_SLACK
from tests.privfair.plain_models import ROUNDED
from tests.privfair.steffle_cases import NOTIONS, everybody, logistic, noisy_values, silo_of, some_state, steffle_for


def test_names_and_bounds_are_those_of_the_plan() -> None:
    assert (H_THETA, H_W, HISTOGRAM) == (PLANNED_H_THETA, PLANNED_H_W, PLANNED_HISTOGRAM)
    bounds = SteffleBounds.of(StefflePlan(7500, 256, 1172, 0.39, 0.7, 0.2))
    closed = 2 * math.sqrt(2) / (256 * math.sqrt(0.39))
    assert [bounds.h_theta, bounds.h_w] == [pytest.approx(closed * 0.7 * 0.2), pytest.approx(closed)]


def _distances(algorithm, state, silo, batch, record: int) -> dict[str, float]:
    """Over all groups the record might be of: the largest distance between two of its messages."""
    sent: dict[str, list[np.ndarray]] = {H_THETA: [], H_W: []}
    for group in range(algorithm.groups):
        s = silo.s.clone()
        s[record] = group
        values = noisy_values(algorithm.contribution(state, 3, replace(silo, s=s), batch))
        for name in sent:
            sent[name].append(values[name])
    return {
        name: max(float(np.linalg.norm((a - b).ravel())) for a in values for b in values)
        for name, values in sent.items()
    }


def _measured(algorithm, state, silo, batch) -> dict[str, float]:
    message = algorithm.contribution(state, 3, silo, batch)
    return {contribution.name: contribution.measured for contribution in message.noisy}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    groups=st.integers(2, 5),
    classes=st.integers(2, 5),
    notion=st.sampled_from(NOTIONS),
    center=st.sampled_from(list(WCenter)),
    scale=st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
    lipschitz=st.sampled_from([1e-3, 0.3, 1.0]),
    radius=st.sampled_from([0.01, 0.3, 5.0]),
    single=st.booleans(),
    network=st.booleans(),
)
def test_no_attribute_moves_a_message_beyond_its_bound(
    seed, groups, classes, notion, center, scale, lipschitz, radius, single, network
) -> None:
    model = Perceptron(3, (4,), classes) if network else logistic(3, classes)
    silo = silo_of(8, 3, groups, classes, seed=seed, scale=scale)
    if single:
        silo = replace(silo, x=silo.x.float())
    algorithm = steffle_for(
        model,
        groups,
        batch_size=5,
        lipschitz=lipschitz,
        w_radius=radius,
        minority_fraction=0.5 / groups,
        notion=notion,
        w_center=center,
    )
    state = some_state(algorithm, seed, size=1.0)
    batch = torch.arange(6)
    bounds = {H_THETA: algorithm.bounds.h_theta, H_W: algorithm.bounds.h_w}
    measured = _measured(algorithm, state, silo, batch)
    found = [_distances(algorithm, state, silo, batch, record) for record in range(6)]
    for name, bound in bounds.items():
        largest = max(distances[name] for distances in found)
        # 1e-9 is the room the gate leaves for floating point; its noise covers it.
        assert measured[name] <= bound * (1 + 1e-9)
        assert largest <= bound * (1 + 1e-9)
        assert largest == pytest.approx(measured[name], rel=1e-6, abs=1e-6 * bound)


@pytest.mark.parametrize("bits", list(Bits))
@pytest.mark.parametrize("groups", [2, 4])
def test_rounded_gradients_of_a_net_keep_the_bound(groups: int, bits: Bits) -> None:
    """Rounded to a few bits, two groups' gradients may be further apart than the gradient of their difference is long.

    A net of 13 bits once passed the bound of h_theta by 5e-5 of it, where a norm of the difference was clipped.
    """
    model = Perceptron(3, (4,), bits=bits)
    for seed in range(8):
        silo = silo_of(8, 3, groups, 2, seed=seed, scale=1e-3)
        algorithm = steffle_for(
            model, groups, batch_size=5, lipschitz=1e-3, w_radius=0.3, minority_fraction=0.5 / groups
        )
        state, batch = some_state(algorithm, seed, size=1.0), torch.arange(6)
        measured = _measured(algorithm, state, silo, batch)[H_THETA]
        largest = max(_distances(algorithm, state, silo, batch, record)[H_THETA] for record in range(6))
        assert largest <= algorithm.bounds.h_theta
        assert largest == pytest.approx(measured, rel=1e-9)


@pytest.mark.parametrize("notion", NOTIONS)
def test_the_bounds_are_nearly_reached(notion) -> None:
    """One confident record of a rare group, W against it, and a long feature vector."""
    model = logistic(2, 2)
    silo = silo_of(20, 2, 2, 2)
    frequencies = (0.05, 0.95) if notion is not NOTIONS[1] else (0.05, 0.95, 0.05, 0.95)
    algorithm = steffle_for(
        model, 2, batch_size=20, lipschitz=0.5, w_radius=0.2, frequencies=frequencies, notion=notion
    )
    state = some_state(algorithm)
    v = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    deviation = (v / v.norm() * 0.2).expand_as(state.deviation)
    # Record 1 (class 1) has a long x on which the score is 0: the steepest probability there is.
    x = silo.x.clone()
    x[1] = torch.tensor([100.0, 0.0])
    theta = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)
    state = replace(state, deviation=deviation, descent=replace(state.descent, theta=theta))
    distances = _distances(algorithm, state, replace(silo, x=x), everybody(silo), 1)
    assert distances[H_THETA] == pytest.approx(algorithm.bounds.h_theta, rel=1e-4)
    # h_W: both frequencies at the floor and a certain prediction.
    sure = replace(state, descent=replace(state.descent, theta=torch.tensor([1.0, 0.0, 0.0]).double()))
    rare = steffle_for(model, 2, batch_size=20, frequencies=(0.05,) * len(frequencies), notion=notion, w_radius=0.2)
    sure = replace(sure, frequencies=rare.start().frequencies)
    distances = _distances(rare, sure, replace(silo, x=x), everybody(silo), 1)
    assert distances[H_W] == pytest.approx(rare.bounds.h_w / (1 + ROUNDING_SLACK), rel=1e-8)


def test_the_clear_value_does_not_depend_on_the_attribute() -> None:
    silo = silo_of(50, 3, 3, 2)
    algorithm = steffle_for(logistic(3, 2), 3, batch_size=50)
    state = some_state(algorithm)
    other = replace(silo, s=(silo.s + 1) % 3)
    mine = algorithm.contribution(state, 3, silo, everybody(silo))
    theirs = algorithm.contribution(state, 3, other, everybody(silo))
    assert np.array_equal(mine.clear[LOSS_GRADIENT], theirs.clear[LOSS_GRADIENT])
    assert not np.array_equal(noisy_values(mine)[H_THETA], noisy_values(theirs)[H_THETA])


def test_clipping_does_not_depend_on_the_attribute() -> None:
    """With a group that makes the message longer the factor must not change, or it would tell the group."""
    silo = silo_of(1, 2, 2, 2, scale=50.0)
    algorithm = steffle_for(logistic(2, 2), 2, batch_size=1, lipschitz=0.01, frequencies=(0.1, 0.9))
    state = replace(some_state(algorithm), descent=algorithm.start().descent)
    lengths = []
    for group in (0, 1):
        sent = algorithm.contribution(state, 3, replace(silo, s=torch.tensor([group])), everybody(silo))
        lengths.append(float(np.linalg.norm(noisy_values(sent)[H_THETA])))
    slopes, _ = algorithm._slopes(state)
    expected = torch.linalg.vector_norm(slopes[0] - slopes[0].mean(dim=1, keepdim=True), dim=1)
    assert lengths[0] / lengths[1] == pytest.approx(float(expected[0] / expected[1]), rel=ROUNDED["rtol"])


def test_sums_are_divided_by_the_signed_size_and_an_empty_batch_sends_zeros() -> None:
    silo = silo_of(30, 3, 2, 2)
    algorithm = steffle_for(logistic(3, 2), 2, batch_size=10)
    state = some_state(algorithm)
    halves = [algorithm.contribution(state, 3, silo, rows) for rows in torch.arange(30).split(15)]
    whole = algorithm.contribution(state, 3, silo, torch.arange(30))
    for name in (H_THETA, H_W):
        parts = sum(noisy_values(half)[name] for half in halves)
        np.testing.assert_allclose(parts, noisy_values(whole)[name], atol=1e-12)
    empty = algorithm.contribution(state, 3, silo, torch.empty(0, dtype=torch.int64))
    assert all(not contribution.values.any() for contribution in empty.noisy)
    assert all(contribution.measured == 0.0 for contribution in empty.noisy)
    assert not empty.clear[LOSS_GRADIENT].any()


def test_frequencies_below_the_signed_floor_are_refused() -> None:
    with pytest.raises(InvalidInput, match="minority"):
        steffle_for(logistic(2, 2), 2, batch_size=5, minority_fraction=0.2, frequencies=(0.1, 0.9))

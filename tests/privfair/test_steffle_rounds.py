"""The server's side of SteFFLe: projection, paid frequencies, several silos, who holds what, checkpoints."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from calibrate.errors import InvalidInput
from privfair.algorithms.parts.descent import DescentRule, Iterate
from privfair.algorithms.parts.local_training import towards_own_minimum
from privfair.algorithms.steffle import H_THETA, H_W, HISTOGRAM, LOSS_GRADIENT, BatchLaw, silo_weights
from privfair.contribution import Published
from privfair.fairness import fermi
from privfair.fairness.fermi import Independence
from privfair.models.model import mean_over
from privfair.rounding import ROUNDING_SLACK
from tests.privfair.steffle_cases import (
    everybody,
    logistic,
    noisy_values,
    silo_of,
    some_state,
    steffle_for,
    without_noise,
)


def test_w_never_leaves_its_ball_whatever_noise_arrives() -> None:
    algorithm = steffle_for(
        logistic(3, 2), 3, batch_size=9, w_radius=0.1, notion=Independence.EQUALISED_ODDS, w_step=1.0
    )
    state = algorithm.start()
    noise = np.random.default_rng(0)
    for round in range(20):
        values = {
            name: Published(round, "north", name, noise.normal(0, 3, shape))
            for name, shape in algorithm.shapes().items()
        }
        state = algorithm.update(state, {"north": values})
        norms = torch.linalg.vector_norm(state.deviation, dim=(1, 2))
        assert float(norms.max()) <= 0.1
    centre = fermi.independence_point(state.frequencies, 2)
    torch.testing.assert_close(algorithm.w(state), centre + state.deviation)


def test_groups_are_numbered_globally_also_where_a_silo_lacks_some() -> None:
    """Silo north has only group 2, south only group 0: their rows of h_W must not be swapped or compressed."""
    silo = silo_of(40, 3, 3, 2)
    algorithm = steffle_for(logistic(3, 2), 3, batch_size=40)
    state = algorithm.start()
    for group in (0, 2):
        only = replace(silo, s=torch.full((40,), group))
        sent = noisy_values(algorithm.contribution(state, 3, only, everybody(silo)))[H_W]
        free = -2 * algorithm.w(state) * algorithm.model.probabilities(state.descent.theta, silo.x).mean(dim=0)
        attribute = sent * (1 + ROUNDING_SLACK) - free.numpy()
        assert [bool(np.abs(row).max() > 1e-9) for row in attribute[0]] == [g == group for g in range(3)]


def test_two_silos_weigh_by_their_shares_and_make_the_pooled_gradient() -> None:
    whole = silo_of(60, 3, 2, 2)
    north, south = (
        replace(whole, name=name, x=whole.x[rows], y=whole.y[rows], s=whole.s[rows])
        for name, rows in (("north", slice(0, 20)), ("south", slice(20, 60)))
    )
    pooled = steffle_for(logistic(3, 2), 2, batch_size=60, fairness=2.0)
    # The divisor of both silos is the smaller one's size, 20: full batches then weigh 20/60 each.
    split = steffle_for(logistic(3, 2), 2, batch_size=20, fairness=2.0, weights={"north": 1 / 3, "south": 1 / 3})
    state = some_state(pooled)
    alone = pooled.update(state, without_noise([("north", pooled.contribution(state, 1, whole, torch.arange(60)))]))
    messages = [(silo.name, split.contribution(state, 1, silo, everybody(silo))) for silo in (north, south)]
    both = split.update(state, without_noise(messages))
    torch.testing.assert_close(both.descent.theta, alone.descent.theta)
    torch.testing.assert_close(both.deviation, alone.deviation)


def test_frequencies_are_bought_first_and_held_above_the_floor() -> None:
    silo = silo_of(40, 3, 2, 2)
    silo = replace(silo, s=(torch.arange(40) < 2).long())
    paid = steffle_for(logistic(3, 2), 2, batch_size=40, minority_fraction=0.1)
    paid = replace(paid, options=replace(paid.options, group_frequencies=None))
    assert paid.shapes()[HISTOGRAM] == (1, 2)
    message = paid.contribution(paid.start(), 0, silo, torch.arange(3))
    assert [contribution.name for contribution in message.noisy] == [HISTOGRAM]
    (histogram,) = message.noisy
    # All records count, not the batch of three; one attribute moves two counts by one.
    assert histogram.values.tolist() == [[38.0, 2.0]]
    assert histogram.bound == histogram.measured == pytest.approx(math.sqrt(2))
    state = paid.update(paid.start(), without_noise([("north", message)]))
    assert state.frequencies.tolist() == [[0.95, 0.1]]
    after = paid.contribution(state, 1, silo, torch.arange(3))
    assert [contribution.name for contribution in after.noisy] == [H_THETA, H_W]


def test_noise_may_make_counts_negative() -> None:
    paid = steffle_for(logistic(3, 2), 2, batch_size=40, minority_fraction=0.1)
    paid = replace(paid, options=replace(paid.options, group_frequencies=None))
    values = {
        HISTOGRAM: Published(0, "north", HISTOGRAM, np.array([[-5.0, -1.0]])),
        LOSS_GRADIENT: Published(0, "north", LOSS_GRADIENT, np.zeros(4)),
    }
    state = paid.update(paid.start(), {"north": values})
    assert state.frequencies.tolist() == [[0.1, 0.1]]


def test_a_warm_start_is_the_mean_of_the_silos_own_minima() -> None:
    silos = [replace(silo_of(200, 3, 2, 2, seed=seed), name=name) for seed, name in enumerate(("north", "south"))]
    # Weights of full batches need not add up to one; the mean of the minimisers must not shrink for that.
    algorithm = steffle_for(logistic(3, 2), 2, batch_size=100, weights={"north": 0.25, "south": 0.25}, warm_start=100)
    state = algorithm.start()
    messages = [(silo.name, algorithm.contribution(state, 0, silo, torch.arange(5))) for silo in silos]
    assert all(not message.noisy for _, message in messages)
    changed = algorithm.contribution(state, 0, replace(silos[0], s=1 - silos[0].s), torch.arange(5))
    assert np.array_equal(changed.clear[LOSS_GRADIENT], messages[0][1].clear[LOSS_GRADIENT])
    state = algorithm.update(state, without_noise(messages))
    minima = []
    for silo in silos:
        alone = -towards_own_minimum(algorithm.model, algorithm.model.initial(0), silo.x, silo.y, 100)
        gradient = algorithm.model.weighted_gradient(torch.from_numpy(alone), silo.x, silo.y, mean_over(200)).total
        assert float(gradient.abs().max()) < 1e-4
        minima.append(alone)
    np.testing.assert_allclose(state.descent.theta.numpy(), np.mean(minima, axis=0))
    following = algorithm.contribution(state, 1, silos[0], everybody(silos[0]))
    assert [contribution.name for contribution in following.noisy] == [H_THETA, H_W]
    assert algorithm.restore(algorithm.checkpoint(algorithm.start())).warm is False
    assert algorithm.restore(algorithm.checkpoint(state)).warm is True


def test_a_checkpoint_brings_the_state_back() -> None:
    silo = silo_of(30, 3, 2, 2)
    algorithm = steffle_for(logistic(3, 2), 2, batch_size=30, iterate=Iterate.TAIL_AVERAGE)
    state = algorithm.start()
    for round in range(9):
        message = algorithm.contribution(state, round, silo, everybody(silo))
        state = algorithm.update(state, without_noise([("north", message)]))
    again = algorithm.restore(algorithm.checkpoint(state))
    for one, other in ((state, again),):
        assert torch.equal(one.descent.velocity, other.descent.velocity)
        assert torch.equal(one.deviation, other.deviation)
        assert one.descent.step == other.descent.step
        assert torch.equal(algorithm.theta(one), algorithm.theta(other))


def test_every_silo_holds_both_by_default() -> None:
    algorithm = steffle_for(logistic(3, 2), 2, batch_size=10)
    assert algorithm.sends_loss("anything")
    assert algorithm.sends_fairness("anything")


def test_one_sensitive_silo_and_many_others_do_what_one_silo_does() -> None:
    """Census and banks: the banks send the loss gradient, the census the fairness gradients, nobody both."""
    whole = silo_of(60, 3, 2, 2)
    banks = [
        replace(whole, name=f"bank-{k}", x=whole.x[k::2], y=whole.y[k::2], s=torch.zeros(30, dtype=torch.int64))
        for k in range(2)
    ]
    census = replace(whole, name="census")
    alone = steffle_for(logistic(3, 2), 2, batch_size=60, fairness=2.0)
    state = some_state(alone)
    expected = alone.update(state, without_noise([("north", alone.contribution(state, 1, whole, everybody(whole)))]))
    # The banks divide by 60 as well, so their sums add up with weight 1.
    apart = replace(alone, sensitive=("census",), weights={"bank-0": 1.0, "bank-1": 1.0, "census": 1.0})
    messages = [(silo.name, apart.contribution(state, 1, silo, everybody(silo))) for silo in (*banks, census)]
    assert all(not message.noisy and message.clear for _, message in messages[:2])
    assert messages[2][1].noisy
    assert not messages[2][1].clear
    result = apart.update(state, without_noise(messages))
    torch.testing.assert_close(result.descent.theta, expected.descent.theta)
    torch.testing.assert_close(result.deviation, expected.deviation)


def test_separate_silos_add_up_to_the_batch_and_never_fall_silent() -> None:
    whole = silo_of(60, 3, 2, 2)
    held = {"a": torch.arange(0, 50), "b": torch.arange(50, 60)}
    algorithm = replace(
        steffle_for(logistic(3, 2), 2, batch_size=10, fairness=2.0), sensitive=("a", "b"), weights={"a": 0.5, "b": 0.5}
    )
    state = some_state(algorithm)
    # Two holders of features drew these records; none of them has its attribute in silo b.
    batches = (torch.tensor([3, 8, 13]), torch.tensor([21, 34]))
    asked = {"a": torch.cat(batches), "b": torch.empty(0, dtype=torch.int64)}
    sent = {}
    for name, numbers in held.items():
        silo = replace(whole, name=name, x=whole.x[numbers], y=whole.y[numbers], s=whole.s[numbers])
        rows = asked[name]
        sent[name] = algorithm.contribution(state, 1, silo, rows)
    assert asked["b"].tolist() == []
    # Silo b sends values of the same names, shapes and bounds: the gate adds the same noise to both.
    forms = [[(c.name, c.values.shape, c.bound) for c in message.noisy] for message in sent.values()]
    assert forms[0] == forms[1]
    assert all(message.clear is None for message in sent.values())
    silo = replace(whole, name="a")
    together = algorithm.contribution(state, 1, silo, torch.cat(batches))
    for name in (H_THETA, H_W):
        total = sum(noisy_values(message)[name] for message in sent.values())
        np.testing.assert_allclose(total, noisy_values(together)[name], atol=1e-12)


def test_sensitive_silos_are_named_once() -> None:
    algorithm = steffle_for(logistic(3, 2), 2, batch_size=10)
    with pytest.raises(InvalidInput, match="distinct"):
        replace(algorithm, sensitive=("a", "a"))


def _path(rule: DescentRule, steps: int) -> list[torch.Tensor]:
    at, models = rule.start(torch.zeros(1, dtype=torch.float64)), []
    for step in range(steps):
        at = rule.advance(at, torch.tensor([-(step + 1.0)], dtype=torch.float64))
        models.append((float(at.theta), float(rule.model(at))))
    return models


def test_steps_decay_and_momentum_averages() -> None:
    plain = _path(DescentRule(1.0, momentum=0.0, decay=0.5, decay_every=2, rounds=4), 4)
    assert [theta for theta, _ in plain] == [1.0, 3.0, 4.5, 6.5]
    heavy = _path(DescentRule(1.0, momentum=0.5, rounds=3), 3)
    assert [theta for theta, _ in heavy] == [0.5, 1.75, 3.875]


def test_iterates() -> None:
    thetas = [theta for theta, _ in _path(DescentRule(1.0, momentum=0.0, rounds=8), 8)]
    tail = _path(DescentRule(1.0, momentum=0.0, iterate=Iterate.TAIL_AVERAGE, rounds=8), 8)
    assert tail[-1][1] == pytest.approx(sum(thetas[-2:]) / 2)
    drawn = set()
    for seed in range(200):
        rule = DescentRule(1.0, momentum=0.0, iterate=Iterate.UNIFORM, rounds=8, seed=seed)
        drawn.add(_path(rule, 8)[-1][1])
    assert drawn == set(thetas)


@pytest.mark.parametrize("law", list(BatchLaw))
def test_weights_make_the_expected_sum_the_mean_over_all_records(law) -> None:
    """Of a constant 1 for each record, summed over expected batches, divided by m and weighed: 1."""
    sizes, smallest, m = {"north": 100, "south": 250, "west": 400}, 100, 20
    weights = silo_weights(sizes, smallest, law)
    drawn = {name: m if law is BatchLaw.SAME_SIZE else size * m / smallest for name, size in sizes.items()}
    assert sum(weights[name] * drawn[name] / m for name in sizes) == pytest.approx(1.0)
    shares = {name: weights[name] * drawn[name] / m for name in sizes}
    assert shares == pytest.approx({name: size / 750 for name, size in sizes.items()})

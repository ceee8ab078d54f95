"""One contract for all algorithms, on every model; bounds also with every sampling, which nothing else depends on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from calibrate.errors import CheckFailed
from calibrate.privacy_unit import Relation
from calibrate.sampling import Sampling
from privfair.algorithms import registry
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from tests.contracts.algorithm_cases import CASES, MODELS, NETS, ROUNDS, USERS, Case, Sent, batch_for, send, silo

every = pytest.mark.parametrize(
    ("case", "kind"), [pytest.param(case, kind, id=f"{case.name}-{kind}") for case in CASES for kind in case.kinds]
)
every_priced = pytest.mark.parametrize(
    ("case", "kind", "sampling"),
    [
        pytest.param(
            case,
            kind,
            sampling,
            id=f"{case.name}-{kind}-{type(sampling).__name__}",
            # Nets take longer; with one sampling of each algorithm they are in the fast suite too.
            marks=[pytest.mark.slow] if kind in NETS and sampling != case.samplings[0] else [],
        )
        for case in CASES
        if case.plan is not None
        for kind in case.kinds
        for sampling in case.samplings
    ],
)


@cache
def run(
    case: Case, kind: str, sampling: Sampling | None, rounds: int = ROUNDS, scale: float = 1.0
) -> tuple[Algorithm[Any], list[Any], list[dict[str, Sent]]]:
    """The algorithm, its states and all it sent, without noise; shared by tests that change nothing in it."""
    algorithm = case.build(MODELS[kind]())
    parties = {name: silo(name, MODELS[kind](), scale=scale) for name in case.parties}
    states, sent = [algorithm.start()], []
    for round in range(rounds):
        batches = {name: batch_for(case, algorithm, party, sampling, round) for name, party in parties.items()}
        sent.append(send(algorithm, states[-1], round, parties, batches))
        received = {name: each.published(round, name) for name, each in sent[-1].items()}
        states.append(algorithm.update(states[-1], received))
    return algorithm, states, sent


@every
def test_what_is_declared_is_exactly_what_is_sent(case: Case, kind: str) -> None:
    algorithm, _, rounds = run(case, kind, case.samplings[0])
    shapes, clear = dict(algorithm.shapes()), {value.name for value in algorithm.clear_values()}
    for party in case.parties:
        seen: dict[str, tuple[int, ...]] = {}
        for sent in rounds:
            names = [c.name for c in sent[party].noisy] + [*sent[party].randomized, *sent[party].clear]
            assert len(set(names)) == len(names), "a name is sent once per round"
            assert set(sent[party].clear) <= clear
            assert not {c.name for c in sent[party].noisy} & clear
            seen |= {name: values.shape for name, values in sent[party].values.items()}
            for name, values in sent[party].values.items():
                assert values.shape == shapes[name]
                assert values.dtype == np.float64
        assert seen == shapes


@every_priced
def test_bounds_are_those_of_the_plan(case: Case, kind: str, sampling: Sampling | None) -> None:
    """What a manifest of the plan signs is what the algorithm sends: names, bounds, and how often."""
    assert case.plan is not None
    _, _, rounds = run(case, kind, sampling)
    values = (*case.plan.values(), *case.plan.once())
    signed = {value.name: (value.sensitivity, value.publications(ROUNDS)) for value in values}
    for party in case.parties:
        bounds = {c.name: c.bound for sent in rounds for c in sent[party].noisy}
        assert bounds == pytest.approx({name: bound for name, (bound, _) in signed.items()})
        for name, (_, times) in signed.items():
            assert sum(name in sent[party].values for sent in rounds) == times


@every_priced
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e5])
def test_units_keep_their_bounds(case: Case, kind: str, sampling: Sampling | None, scale: float) -> None:
    """As the gate checks it, on no features, ordinary ones and absurd ones."""
    for sent in run(case, kind, sampling, scale=scale)[2]:
        for party in case.parties:
            for contribution in sent[party].noisy:
                assert contribution.measured <= contribution.bound
                assert np.isfinite(contribution.values).all()


@every_priced
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_one_unit_moves_a_sum_by_at_most_its_bound(
    case: Case, kind: str, sampling: Sampling | None, scale: float
) -> None:
    """The claim itself, on neighbours: one unit's records replaced, in a batch with it."""
    assert case.plan is not None
    algorithm, states, _ = run(case, kind, sampling, rounds=2)
    # A bound is the norm of one unit's part, or for an attribute the distance of its two parts.
    reach = 2.0 if case.plan.unit.relation is Relation.REPLACE_ONE else 1.0
    parties = {name: silo(name, MODELS[kind]()) for name in case.parties}
    batches = {name: batch_for(case, algorithm, party, sampling, 2) for name, party in parties.items()}
    generator = np.random.default_rng(0)
    before = send(algorithm, states[-1], 2, parties, batches)
    moved = False
    for _ in range(6):
        for name, party in parties.items():
            if len(batches[name]) == 0:
                continue
            after = _neighbour(case, algorithm, states[-1], party, batches[name], generator, scale, before[name])
            for one, other in zip(before[name].noisy, after.noisy, strict=True):
                distance = float(np.linalg.norm(one.values - other.values))
                # Two cells of one value may change at once; each is charged as a set of its own.
                assert distance <= reach * one.bound * (1 + 1e-9)
                moved |= distance > 0
    assert moved


def test_every_registered_algorithm_with_a_guarantee_has_a_case() -> None:
    """So that the laws here speak of all of them."""
    named = {str(getattr(case.plan.algorithm, "value", case.plan.algorithm)) for case in CASES if case.plan is not None}
    named |= {case.name.split(",")[0] for case in CASES}  # pay-once has no noisy sums, so no plan of sums
    assert {recipe.name for recipe in registry._RECIPES.values() if not recipe.baseline} <= named


HOSTILE_RECORDS = (float("inf"), float("nan"), 1e308, -1e308, 5e-324)
HOSTILE_STATES = (1e9, -1e9, float("nan"), float("inf"))


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        pytest.param(case, kind, id=f"{case.name}-{kind}")
        for case in CASES
        if case.plan is not None
        for kind in case.kinds
    ],
)
def test_contributions_are_finite_and_bounded_for_every_state_and_record(case: Case, kind: str) -> None:
    """Nothing is refused that a record decides, and no number overflows: parameters up to 1e9, records up to inf."""
    assert case.plan is not None
    algorithm, states, _ = run(case, kind, case.samplings[0], rounds=2)
    parties = {name: silo(name, MODELS[kind]()) for name in case.parties}
    hurt = {name: replace(party, x=_with_hostile_records(party.x)) for name, party in parties.items()}
    whole = None if not algorithm.draws else case.samplings[0]
    batches = {name: batch_for(case, algorithm, party, whole, 2) for name, party in parties.items()}
    for place, worst in enumerate(HOSTILE_STATES):
        arrays = algorithm.checkpoint(states[-1])
        for name, values in arrays.items():
            if name in ("theta", "local", "velocity"):
                arrays[name] = np.where(np.arange(values.size).reshape(values.shape) % 3 == place % 3, worst, values)
        state = algorithm.restore(arrays)
        for sent in send(algorithm, state, 2, hurt, batches).values():
            for contribution in sent.noisy:
                assert np.isfinite(contribution.values).all(), (contribution.name, worst)
                assert contribution.measured <= contribution.bound


def _with_hostile_records(x: torch.Tensor) -> torch.Tensor:
    """Every sixth record has one of the values in all entries, the one after it in its first."""
    hurt = x.clone()
    for place, value in enumerate(HOSTILE_RECORDS):
        hurt[6 * place] = value
        hurt[6 * place + 1].view(-1)[0] = value
    return hurt


def _neighbour(
    case: Case,
    algorithm: Algorithm[Any],
    state: Any,
    party: SiloTensors,
    batch: torch.Tensor,
    generator: np.random.Generator,
    scale: float,
    before: Sent,
) -> Sent:
    """The messages without one unit of the batch (add-remove), or with its records or its attribute replaced.

    A reply answers what was published before it, so both worlds reply to the same values.
    """
    units = batch[batch < (USERS if party.unit_of_row is not None else len(party))]
    unit = units[int(generator.integers(len(units)))]
    assert case.plan is not None
    if case.plan.unit.relation is Relation.ADD_REMOVE:
        smaller = {party.name: batch[batch != unit]}
        return send(algorithm, state, 2, {party.name: party}, smaller)[party.name]
    rows = torch.tensor([int(unit)]) if party.unit_of_row is None else (party.unit_of_row == unit).nonzero()[:, 0]
    if case.plan.unit.relation is Relation.REPLACE_ATTRIBUTE:
        s = party.s.clone()
        s[rows] = 1 - s[rows]
        return send(algorithm, state, 2, {party.name: replace(party, s=s)}, {party.name: batch})[party.name]
    x, y = party.x.clone(), party.y.clone()
    x[rows] = torch.from_numpy(generator.standard_normal((len(rows), *x.shape[1:]))) * scale
    if party.client_of_row is None:
        y[rows] = (y[rows] + 1) % 2
    neighbour = {party.name: replace(party, x=x, y=y)}
    seen = {party.name: before.published(2, party.name)}
    return send(algorithm, state, 2, neighbour, {party.name: batch}, seen)[party.name]


@every
def test_contributions_are_pure(case: Case, kind: str) -> None:
    """Asked twice, the same answer; and neither state nor data have changed."""
    algorithm, states, _ = run(case, kind, case.samplings[0], rounds=1)
    parties = {name: silo(name, MODELS[kind]()) for name in case.parties}
    copies = {name: (p.x.clone(), p.y.clone(), p.s.clone()) for name, p in parties.items()}
    batches = {name: batch_for(case, algorithm, party, case.samplings[0], 1) for name, party in parties.items()}
    kept = {name: batch.clone() for name, batch in batches.items()}
    before = {name: values.copy() for name, values in algorithm.checkpoint(states[-1]).items()}
    first = send(algorithm, states[-1], 1, parties, batches)
    again = send(algorithm, states[-1], 1, parties, batches)
    for name, party in parties.items():
        for value, values in first[name].values.items():
            np.testing.assert_array_equal(values, again[name].values[value])
        for old, new in zip(copies[name], (party.x, party.y, party.s), strict=True):
            assert torch.equal(old, new)
        assert torch.equal(kept[name], batches[name])
    for name, values in algorithm.checkpoint(states[-1]).items():
        np.testing.assert_array_equal(values, before[name])


@every
def test_updates_are_functions_of_state_and_published_values(case: Case, kind: str) -> None:
    """The same published values lead to the same state, from a restored checkpoint too; the old state stays."""
    algorithm, states, rounds = run(case, kind, case.samplings[0])
    elsewhere = case.build(MODELS[kind]())
    state = elsewhere.start()
    for round, sent in enumerate(rounds):
        received = {name: each.published(round, name) for name, each in sent.items()}
        state = elsewhere.update(elsewhere.restore(elsewhere.checkpoint(state)), received)
        expected = algorithm.checkpoint(states[round + 1])
        found = elsewhere.checkpoint(state)
        assert set(found) == set(expected)
        for name, values in expected.items():
            np.testing.assert_array_equal(values, found[name])
        assert torch.equal(elsewhere.theta(state), algorithm.theta(states[round + 1]))


@every
def test_a_state_without_its_parts_is_refused_and_not_made_up(case: Case, kind: str) -> None:
    """As a checkpoint of another version would be, or what a server that lies sends to a guard."""
    algorithm, states, _ = run(case, kind, case.samplings[0])
    with pytest.raises(CheckFailed, match="is of another algorithm or version"):
        algorithm.restore({})
    first = next(name for name, values in algorithm.checkpoint(states[0]).items() if values.size)
    arrays = {name: values for name, values in algorithm.checkpoint(states[-1]).items() if name != first}
    with pytest.raises(CheckFailed, match=first):
        algorithm.restore(arrays)


@every
def test_an_empty_batch_still_sends_everything(case: Case, kind: str) -> None:
    algorithm, states, rounds = run(case, kind, case.samplings[0], rounds=2)
    parties = {name: silo(name, MODELS[kind]()) for name in case.parties}
    nobody = {name: torch.arange(0) for name in case.parties}
    sent = send(algorithm, states[1], 1, parties, nobody)
    for name in case.parties:
        shapes = {value: values.shape for value, values in sent[name].values.items()}
        assert shapes == {value: values.shape for value, values in rounds[1][name].values.items()}
        assert all(np.isfinite(values).all() for values in sent[name].values.values())
    received = {name: each.published(1, name) for name, each in sent.items()}
    assert torch.isfinite(algorithm.theta(algorithm.update(states[1], received))).all()


@every
def test_theta_fits_the_model(case: Case, kind: str) -> None:
    algorithm, states, _ = run(case, kind, case.samplings[0], rounds=2)
    for state in states:
        assert algorithm.theta(state).shape == (case.released(algorithm, MODELS[kind]()).size,)

"""For your tests: is this function's sensitivity what I think, does this mechanism keep its epsilon, and
does my plan, algorithm, theorem or attack keep what privfair relies on?

>>> from privfair.testing import Box, Domain, assert_sensitivity
>>> assert_sensitivity(lambda x: x.sum(), 1.0, Domain({"x": Box(0, 1)})).verdict
'not refuted'

A contract is a function that raises `ContractBroken`, an AssertionError, that says what was broken.
Randomness is seeded: a contract that holds holds in every run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import FrozenInstanceError, is_dataclass, replace
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from audit.claims.assert_dp import MechanismResult, MechanismSearch, PrivacyRefuted, assert_dp
from audit.claims.claim import Arrays, DistanceClaim, Domain
from audit.claims.falsify import Search, SearchResult, SensitivityRefuted, assert_sensitivity
from audit.claims.spaces import Ball, Box, Category, ProbabilitySlopes, Simplex
from audit.models.roc import area
from audit.models.shadow_models import Signals
from calibrate.budget import calibrate_plan
from calibrate.errors import InvalidInput
from calibrate.plans import plan_from_mapping
from calibrate.plans.plan import Plan
from calibrate.privacy_unit import EpsilonDelta, Norm, Protected, Relation
from calibrate.sampling import Sampling
from calibrate.theorems.theorem import Theorem
from privfair.batches.participation import Participation
from privfair.batches.randomness import SeededWords
from privfair.contribution import BoundedContribution, Published

if TYPE_CHECKING:
    from audit.models.membership_attacks import Scoring
    from privfair.algorithms.algorithm import Algorithm, Message, SiloTensors

__all__ = [
    "Arrays",
    "Ball",
    "Box",
    "Category",
    "ContractBroken",
    "DistanceClaim",
    "Domain",
    "MechanismResult",
    "MechanismSearch",
    "Norm",
    "PrivacyRefuted",
    "ProbabilitySlopes",
    "Protected",
    "Relation",
    "Search",
    "SearchResult",
    "SensitivityRefuted",
    "Simplex",
    "assert_dp",
    "assert_sensitivity",
    "check_algorithm",
    "check_attack",
    "check_plan",
    "check_theorem",
]

_TARGET = EpsilonDelta(2.0, 1e-5)
_ROUNDING = 1 + 1e-9
_NEIGHBOURS = 12


class ContractBroken(AssertionError):
    """A plug-in does not keep what privfair relies on."""


def _require(kept: bool, sentence: str) -> None:
    if not kept:
        raise ContractBroken(sentence)


def check_plan(plan: Plan, target: EpsilonDelta = _TARGET) -> None:
    """A plan is a frozen value that JSON can carry, says what it assumes, and can be calibrated for `target`.

    The plan's package must be installed: it is made again from its named parameters, as the engine does it.
    """
    _require(is_dataclass(plan), f"{type(plan).__name__} must be a frozen dataclass")
    try:
        plan.rounds = plan.rounds
    except FrozenInstanceError:
        pass
    else:
        raise ContractBroken(f"{type(plan).__name__} must be frozen: dataclass(frozen=True)")
    told = json.loads(json.dumps(plan.parameters(), allow_nan=False))
    _require(plan_from_mapping(plan.algorithm.value, told) == plan, "the plan made from its own parameters is another")
    for what, sentences in (("assumptions", plan.assumptions()), ("unprotected", plan.unprotected())):
        _require(bool(sentences), f"{what}() must say something")
        for one in sentences:
            _require(one[:1].isupper() and one.endswith("."), f"{what}() must be whole sentences: {one!r}")
    names = [value.name for value in (*plan.values(), *plan.once())]
    _require(len(set(names)) == len(names), "two published values have the same name")
    budget = calibrate_plan(plan, target)
    _require(budget.certified.upper <= target.epsilon, "the calibrated budget costs more than the target")


def check_algorithm(
    build: Callable[[], Algorithm[Any]],
    plan: Plan,
    silos: Sequence[SiloTensors],
    sampling: Sampling | None,
    rounds: int = 3,
) -> None:
    """An algorithm sends what its plan prices, moves by no more than its bounds on neighbours, and is pure.

    `build` makes the algorithm afresh; `silos` are small made-up silos; `sampling` is how the plan draws batches, None
    for all records. No noise is added, and no ledger is needed.

    Guarantee: none; neighbours are tried, not all of them. The manifest's promise stands on the plan's bounds.
    """
    algorithm, again = build(), build()
    shapes = {name: tuple(shape) for name, shape in algorithm.shapes().items()}
    clear = {value.name for value in algorithm.clear_values()}
    bounds = {value.name: float(value.sensitivity) for value in (*plan.values(), *plan.once())}
    often = {value.name: value.times or rounds for value in plan.values()} | {value.name: 1 for value in plan.once()}
    state, counted = algorithm.start(), dict.fromkeys(often, 0)
    for step in range(rounds):
        received: dict[str, dict[str, Published]] = {}
        for silo in silos:
            batch = _batch(algorithm, silo, sampling, step)
            sent = algorithm.contribution(state, step, silo, batch)
            _check_message(sent, shapes, clear, bounds)
            _check_pure(algorithm, state, step, silo, batch, sent)
            _check_neighbours(algorithm, state, step, silo, batch, sent, plan)
            nobody = algorithm.contribution(state, step, silo, batch[:0])
            _require(set(nobody.values) == set(sent.values), "an empty batch must send the same names")
            received[silo.name] = _published(sent, step, silo.name)
        for name in counted:
            counted[name] += name in received[silos[0].name]
        restored = again.update(again.restore(again.checkpoint(state)), received)
        state = algorithm.update(state, received)
        for name, values in algorithm.checkpoint(state).items():
            same = np.array_equal(values, again.checkpoint(restored)[name])
            _require(same, f"update() or restore() is not a function of state and published values alone: {name}")
        _require(bool(algorithm.theta(state).isfinite().all()), "theta() must be finite")
    if not algorithm.replies:
        _require(counted == often, f"values must be sent as often as the plan says: {often}, not {counted}")


def _batch(algorithm: Algorithm[Any], silo: SiloTensors, sampling: Sampling | None, step: int) -> Tensor:
    source = SeededWords(step, f"contract {silo.name}")
    if algorithm.draws:
        return torch.from_numpy(algorithm.draw(silo, source))
    return torch.from_numpy(Participation(silo.name, silo.units, sampling, source).batch(step))


def _published(sent: Message, step: int, party: str) -> dict[str, Published]:
    return {
        name: Published(step, party, name, np.array(values, dtype=np.float64)) for name, values in sent.values.items()
    }


def _check_message(
    sent: Message, shapes: dict[str, tuple[int, ...]], clear: set[str], bounds: dict[str, float]
) -> None:
    for name, values in sent.values.items():
        _require(name in shapes, f"{name} is sent and not declared in shapes()")
        _require(np.shape(values) == shapes[name], f"{name} has another shape than shapes() says")
        _require(bool(np.isfinite(values).all()), f"{name} must be finite")
    _require(set(sent.clear or {}) <= clear, "what is sent in the clear must be declared in clear_values()")
    for one in sent.noisy:
        _require(one.name in bounds, f"{one.name} is noisy, and the plan does not price it")
        agreed = np.isclose(one.bound, bounds.get(one.name, np.inf), rtol=1e-9)
        _require(bool(agreed), f"{one.name} is bounded by {one.bound:g}, in the plan by {bounds.get(one.name)}")
        _require(one.measured <= one.bound, f"a unit of {one.name} exceeds its bound")


def _check_pure(
    algorithm: Algorithm[Any], state: Any, step: int, silo: SiloTensors, batch: Tensor, sent: Message
) -> None:
    kept = (silo.x.clone(), silo.y.clone(), silo.s.clone(), batch.clone())
    before = {name: values.copy() for name, values in algorithm.checkpoint(state).items()}
    second = algorithm.contribution(state, step, silo, batch)
    for name, values in sent.values.items():
        _require(
            np.array_equal(values, second.values[name]), f"contribution() is not pure: {name} differs when asked again"
        )
    for old, new in zip(kept, (silo.x, silo.y, silo.s, batch), strict=True):
        _require(bool((old == new).all()), "contribution() changed the records or the batch")
    for name, values in algorithm.checkpoint(state).items():
        _require(np.array_equal(values, before[name]), f"contribution() changed the state: {name}")


def _check_neighbours(
    algorithm: Algorithm[Any], state: Any, step: int, silo: SiloTensors, batch: Tensor, sent: Message, plan: Plan
) -> None:
    """One unit of the batch removed, replaced, or with another attribute: each value moves by its bound at most."""
    reach = 2.0 if plan.unit.relation is Relation.REPLACE_ONE else 1.0
    generator = np.random.default_rng(step)
    units = np.unique(batch.numpy())
    for unit in generator.permutation(units)[:_NEIGHBOURS]:
        other, rest = _neighbour(silo, batch, int(unit), plan.unit.relation, generator)
        moved = {one.name: one for one in algorithm.contribution(state, step, other, rest).noisy}
        for one in sent.noisy:
            distance = _distance(one, moved[one.name])
            allowed = reach * one.bound
            sentence = f"one unit moves {one.name} by {distance:.6g}, and {allowed:.6g} is what its bound allows"
            _require(distance <= allowed * _ROUNDING, sentence)


def _distance(one: BoundedContribution, other: BoundedContribution) -> float:
    return float(np.linalg.norm(np.ravel(one.values - other.values)))


def _neighbour(
    silo: SiloTensors, batch: Tensor, unit: int, relation: Relation, generator: np.random.Generator
) -> tuple[SiloTensors, Tensor]:
    if relation is Relation.ADD_REMOVE:
        return silo, batch[batch != unit]
    owner = torch.arange(len(silo)) if silo.unit_of_row is None else silo.unit_of_row
    rows = owner == unit
    if relation is Relation.REPLACE_ATTRIBUTE:
        attribute = silo.s.clone()
        attribute[rows] = 1 - attribute[rows]
        return replace(silo, s=attribute), batch
    x, y = silo.x.clone(), silo.y.clone()
    x[rows] = torch.from_numpy(generator.standard_normal(tuple(x[rows].shape)) * 1e3).to(x.dtype)
    y[rows] = 1 - y[rows]
    return replace(silo, x=x, y=y), batch


def check_theorem(theorem: Theorem) -> None:
    """A theorem has an id, a citation, a place and a formula, and is judged at its own setting and over its domain."""
    paper, dot, name = theorem.id.partition(".")
    _require(bool(paper and dot and name), f"the id must be paper.claim, not {theorem.id!r}")
    for what in ("citation", "place", "formula"):
        _require(bool(getattr(theorem, what).strip()), f"{theorem.id} needs a {what}")
    for parameter in theorem.parameters:
        _require(bool(parameter.meaning.strip()), f"{parameter.name} of {theorem.id} needs a meaning")
    for point in islice(product(*theorem.domain.values()), 64):
        given = dict(zip(theorem.domain, point, strict=True))
        try:
            theorem.setting(given)
        except InvalidInput as refused:
            raise ContractBroken(f"the domain of {theorem.id} has a value that it refuses: {refused}") from refused
    json.dumps(theorem.judge().to_json(), allow_nan=False)


def check_attack(attack: Scoring, records: int = 400) -> None:
    """A membership attack finds a plain leak, finds nothing where nothing leaks, and does not depend on the order.

    On made-up signals: a model that was trained on a record is firmer about it by a known number of deviations.
    """
    leaking, member = _world(1, 6.0, records)
    scores = attack.scores(leaking)
    _require(np.shape(scores) == (records,), "scores() must return one score per record")
    _require(bool(np.isfinite(scores).all()), "scores() must be finite")
    _require(area(scores[member], scores[~member]).lower > 0.6, "a plain leak is not found: members score no higher")
    silent, member = _world(2, 0.0, records)
    scores = attack.scores(silent)
    _require(area(scores[member], scores[~member], 0.9999).lower <= 0.5, "a leak is found where there is none")
    order = np.random.default_rng(0).permutation(records)
    turned = attack.scores(leaking.of(order))
    _require(np.allclose(turned, attack.scores(leaking)[order], rtol=1e-9), "scores depend on the order of the records")


def _world(seed: int, leak: float, records: int) -> tuple[Any, Any]:
    random, models = np.random.default_rng(seed), 12
    difficulty = random.normal(0, 2, records)
    included = random.random((models, records)).argsort(axis=0) < models // 2
    member = random.random(records) < 0.5
    shadow = difficulty + leak * included + random.normal(size=(models, records))
    return Signals(difficulty + leak * member + random.normal(size=records), shadow, included), member

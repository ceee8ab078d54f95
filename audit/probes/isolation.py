"""What one unit adds must not depend on the others, nor on the order, the silo's name, or what was asked before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from audit.probes.setting import (
    MessageValues,
    ProbeSetting,
    ReachedState,
    Record,
    in_the_same_set,
    message_values,
    owned_units,
    record_at,
    rows_of,
    with_attribute,
    with_record,
)
from audit.report.results import Check, Layer, not_possible, passed_if
from audit.runs.evidence import rows_only
from calibrate.privacy_unit import Relation
from privfair.algorithms.algorithm import SiloTensors
from privfair.batches.randomness import SeededWords
from privfair.models.model import Model

_TOLERANCE = 1e-9
"""Of the signed bound: a record's part is computed the same in every batch, and only sums over records round."""
_BATCH = 12


def check_isolation(setting: ProbeSetting, seed: int = 0) -> tuple[Check, ...]:
    """Records apart from one another in the model and in every message; messages pure and the same in all silos."""
    random = np.random.default_rng(seed)
    checks = (_batch_norm(setting), _model(setting), _pure(setting, random))
    if not setting.bounded:
        return checks
    return (*checks, _apart(setting, random), _in_any_order(setting, random), _alike_in_all_silos(setting, random))


def _batch_norm(setting: ProbeSetting) -> Check:
    """Search every torch module that is found in the model."""
    layers = [layer for module in _modules(setting.model) for layer in module.modules()]
    named = sorted({type(layer).__name__ for layer in layers if isinstance(layer, _BatchNorm)})
    text = f"the model has {', '.join(named)}" if named else "no layer normalises over the batch"
    return passed_if(Layer.PROBE, "batch normalisation", not named, text)


def _modules(holder: object, depth: int = 3) -> Iterator[nn.Module]:
    if isinstance(holder, nn.Module):
        yield holder
    elif depth and isinstance(holder, (dict, list, tuple)):
        for each in holder.values() if isinstance(holder, dict) else holder:
            yield from _modules(each, depth - 1)
    elif depth and hasattr(holder, "__dict__"):
        yield from _modules(vars(holder), depth - 1)


def _model(setting: ProbeSetting) -> Check:
    """The first record's gradient in two batches that share no other record."""
    silo, theta = setting.silos[0], setting.algorithm.theta(setting.reached_states[-1].state)
    half = min(_BATCH, len(silo) // 2)
    if half < 2:
        return not_possible(Layer.PROBE, "gradients of single records", "the silo has too few records")
    here, there = slice(0, half), slice(half, 2 * half)
    moved = influence_of_others(
        setting.model, theta, (silo.x[here], silo.y[here]), (3.0 * silo.x[there] + 1.0, silo.y[there])
    )
    text = f"other records move a record's gradient by {moved:.2g} of its norm"
    return passed_if(Layer.PROBE, "gradients of single records", moved <= _TOLERANCE, text)


def influence_of_others(
    model: Model, theta: Tensor, batch: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]
) -> float:
    """How far the first record's gradient moves when all other records of the batch are exchanged; 0 is isolation.

    For any model, on any data: `batch` and `others` are (x, y) of equal shape, the first record is that of `batch`
    both times. Relative to the gradient's norm.
    """
    x, y = (torch.cat((ours[:1], theirs[1:])) for ours, theirs in zip(batch, others, strict=True))

    def only_the_first(norms: Tensor, losses: Tensor) -> Tensor:
        return torch.zeros_like(norms).index_fill(0, torch.tensor([0]), 1.0)

    here = model.weighted_gradient(theta, *batch, only_the_first)
    there = model.weighted_gradient(theta, x, y, only_the_first)
    moved = torch.linalg.vector_norm(here.total - there.total)
    return float(moved / here.norms[0].clamp_min(torch.finfo(torch.float64).tiny))


@dataclass(frozen=True, eq=False)
class _Place:
    reached: ReachedState
    silo: SiloTensors
    batch: Tensor
    unit: int


def _places(setting: ProbeSetting, random: np.random.Generator) -> Iterator[_Place]:
    silo = setting.silos[0]
    for reached in setting.reached_states:
        if setting.algorithm.draws:
            words = SeededWords(int(random.integers(2**31)), "probe")
            batch = torch.from_numpy(setting.algorithm.draw(silo, words))
            unit = int(batch[batch < silo.units][0])
        else:
            owned = owned_units(silo)
            few = min(_BATCH, setting.most_at_once or _BATCH)
            batch = owned[torch.from_numpy(np.sort(random.permutation(len(owned))[:few]))]
            unit = int(batch[-1])
        yield _Place(reached, silo, batch, unit)


def _apart(setting: ProbeSetting, random: np.random.Generator) -> Check:
    """The difference a unit makes, among its real neighbours and among altered ones: one and the same."""
    worst, where = 0.0, ""
    for place in _places(setting, random):
        crowds = (place.silo, _others_altered(setting, place))
        base = message_values(setting, place.reached, crowds[0], place.batch)
        differences = [_difference(setting, place, crowd, base) for crowd in crowds]
        for name in differences[0].keys() & differences[1].keys():
            apart = setting.distance(name, differences[0][name], differences[1][name]) / setting.allowed(name)
            if apart > worst:
                worst, where = apart, f" ({name}, step {place.reached.step})"
    text = f"what one unit adds depends on the others by {worst:.2g} of the signed bound{where}"
    return passed_if(Layer.PROBE, "messages of single units", worst <= _TOLERANCE, text)


def _difference(setting: ProbeSetting, place: _Place, crowd: SiloTensors, base: MessageValues) -> dict[str, np.ndarray]:
    row = int(rows_of(crowd, place.unit)[0])
    own = record_at(place.silo, row)
    if setting.unit.relation is Relation.REPLACE_ATTRIBUTE:
        other = with_attribute(crowd, row, 1 - own.s if own.s < 2 else 0)
    else:
        x = in_the_same_set(setting, 2.0 * own.x.flip(-1) + 1.0, own.x)
        other = with_record(crowd, place.unit, Record(x, own.y, own.s))
    one = message_values(setting, place.reached, crowd, place.batch, base.seen)
    two = message_values(setting, place.reached, other, place.batch, base.seen)
    both = setting.bounded.keys() & one.noisy.keys() & two.noisy.keys()
    return {name: two.noisy[name] - one.noisy[name] for name in sorted(both)}


def _others_altered(setting: ProbeSetting, place: _Place) -> SiloTensors:
    """All other units' features, far away from where they were; a client's own records are treated as the unit's."""
    silo, rows = place.silo, rows_of(place.silo, place.unit)
    kept = torch.zeros(len(silo), dtype=torch.bool)
    kept[rows] = True
    if silo.client_of_row is not None:
        kept |= silo.client_of_row == silo.client_of_row[rows[0]]
    x = torch.where(kept.reshape(-1, *(1,) * (silo.x.ndim - 1)), silo.x, 3.0 * silo.x.flip(-1) + 1.0)
    s = torch.where(kept, silo.s, silo.s.flip(0)) if not setting.algorithm.draws else silo.s
    return replace(silo, x=in_the_same_set(setting, x, silo.x), s=s)


def _pure(setting: ProbeSetting, random: np.random.Generator) -> Check:
    """Asked twice, and after other questions, the same answer."""
    changed = set[str]()
    for place in _places(setting, random):
        first = message_values(setting, place.reached, place.silo, place.batch)
        message_values(setting, place.reached, _others_altered(setting, place), place.batch, first.seen)
        again = message_values(setting, place.reached, place.silo, place.batch, first.seen)
        changed |= first.values.keys() ^ again.values.keys()
        both = first.values.keys() & again.values.keys()
        changed |= {name for name in both if not np.array_equal(first.values[name], again.values[name])}
    text = f"{', '.join(sorted(changed))} changed" if changed else "the same messages when asked again"
    return passed_if(Layer.PROBE, "messages carry nothing over", not changed, text)


def _in_any_order(setting: ProbeSetting, random: np.random.Generator) -> Check:
    """Records listed in another order give the same sums; a numbering by first appearance does not."""
    name = "messages in any order"
    if setting.algorithm.draws:
        return not_possible(Layer.PROBE, name, "the algorithm lists drawn records in their order")
    worst = 0.0
    for place in _places(setting, random):
        silo = place.silo
        order = _another_group_first(silo, torch.from_numpy(random.permutation(len(silo))))
        turned = replace(rows_only(silo, order), users=silo.users)
        batch = place.batch
        if silo.unit_of_row is None:
            batch = torch.argsort(order)[batch]
        worst = max(worst, _apart_by(setting, place.reached, (silo, place.batch), (turned, batch)))
    text = f"another order of the records moves a message by {worst:.2g} of the signed bound"
    return passed_if(Layer.PROBE, name, worst <= _TOLERANCE, text)


def _another_group_first(silo: SiloTensors, order: Tensor) -> Tensor:
    """The order with a record at its head whose group is not that of the silo's first record, if there is one."""
    others = (silo.s[order] != silo.s[0]).nonzero()[:, 0]
    if len(others) == 0:
        return order
    head, place = order.clone(), int(others[0])
    head[0], head[place] = order[place], order[0]
    return head


def _alike_in_all_silos(setting: ProbeSetting, random: np.random.Generator) -> Check:
    """The same records under every silo's name, at the start: the same message, and so the same group numbers."""
    reached = ReachedState(0, setting.algorithm.start())
    place = next(_places(setting, random))
    worst = 0.0
    for other in setting.silos[1:]:
        named = replace(place.silo, name=other.name)
        worst = max(worst, _apart_by(setting, reached, (place.silo, place.batch), (named, place.batch)))
    text = f"the same records in another silo give a message {worst:.2g} of the signed bound away"
    return passed_if(Layer.PROBE, "messages alike in all silos", worst <= _TOLERANCE, text)


def _apart_by(
    setting: ProbeSetting, reached: ReachedState, one: tuple[SiloTensors, Tensor], other: tuple[SiloTensors, Tensor]
) -> float:
    first, second = message_values(setting, reached, *one), message_values(setting, reached, *other)
    return max(
        (
            setting.distance(name, values, second.noisy[name]) / setting.allowed(name)
            for name, values in first.noisy.items()
            if name in setting.bounded and name in second.noisy
        ),
        default=0.0,
    )

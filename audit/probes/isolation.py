"""What one unit adds must not depend on the others, nor on the order, the silo's name, or what was asked before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from audit.probes.setting import (
    Moment,
    Record,
    Scene,
    Sent,
    record_at,
    rows_of,
    sent,
    units_of,
    with_attribute,
    with_record,
)
from audit.report.results import Check, Layer, not_possible, passed_if
from calibrate.privacy_unit import Relation
from privfair.algorithms.algorithm import SiloTensors
from privfair.batches.randomness import SeededWords
from privfair.models.record_isolation import influence_of_others

_TOLERANCE = 1e-4
"""Of the signed bound: features of networks are single precision."""
_BATCH = 12


def check_isolation(scene: Scene, seed: int = 0) -> tuple[Check, ...]:
    """Records apart from one another in the model and in every message; messages pure and alike in all silos."""
    random = np.random.default_rng(seed)
    checks = (_batch_norm(scene), _model(scene), _pure(scene, random))
    if not scene.bounded:
        return checks
    return (*checks, _apart(scene, random), _in_any_order(scene, random), _alike_in_all_silos(scene, random))


def _batch_norm(scene: Scene) -> Check:
    """By name, wherever a torch module is found in the model."""
    layers = [layer for module in _modules(scene.model) for layer in module.modules()]
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


def _model(scene: Scene) -> Check:
    """The first record's gradient in two batches that share no other record."""
    silo, theta = scene.silos[0], scene.algorithm.theta(scene.moments[-1].state)
    half = min(_BATCH, len(silo) // 2)
    if half < 2:
        return not_possible(Layer.PROBE, "gradients of single records", "the silo has too few records")
    here, there = slice(0, half), slice(half, 2 * half)
    moved = influence_of_others(
        scene.model, theta, (silo.x[here], silo.y[here]), (3.0 * silo.x[there] + 1.0, silo.y[there])
    )
    text = f"other records move a record's gradient by {moved:.2g} of its norm"
    return passed_if(Layer.PROBE, "gradients of single records", moved <= _TOLERANCE, text)


@dataclass(frozen=True, eq=False)
class _Place:
    moment: Moment
    silo: SiloTensors
    batch: Tensor
    unit: int


def _places(scene: Scene, random: np.random.Generator) -> Iterator[_Place]:
    silo = scene.silos[0]
    for moment in scene.moments:
        if scene.algorithm.draws:
            words = SeededWords(int(random.integers(2**31)), "probe")
            batch = torch.from_numpy(scene.algorithm.draw(silo, words))
            unit = int(batch[batch < units_of(silo)][0])
        else:
            owned = torch.arange(len(silo)) if silo.unit_of_row is None else torch.unique(silo.unit_of_row)
            batch = owned[torch.from_numpy(np.sort(random.permutation(len(owned))[:_BATCH]))]
            unit = int(batch[-1])
        yield _Place(moment, silo, batch, unit)


def _apart(scene: Scene, random: np.random.Generator) -> Check:
    """The difference a unit makes, among its real neighbours and among altered ones: one and the same."""
    worst, where = 0.0, ""
    for place in _places(scene, random):
        crowds = (place.silo, _others_altered(scene, place))
        base = sent(scene, place.moment, crowds[0], place.batch)
        differences = [_difference(scene, place, crowd, base) for crowd in crowds]
        for name in differences[0]:
            apart = scene.distance(name, differences[0][name], differences[1][name]) / scene.allowed(name)
            if apart > worst:
                worst, where = apart, f" ({name}, step {place.moment.step})"
    text = f"what one unit adds depends on the others by {worst:.2g} of the signed bound{where}"
    return passed_if(Layer.PROBE, "messages of single units", worst <= _TOLERANCE, text)


def _difference(scene: Scene, place: _Place, crowd: SiloTensors, base: Sent) -> dict[str, np.ndarray]:
    row = int(rows_of(crowd, place.unit)[0])
    own = record_at(place.silo, row)
    if scene.unit.relation is Relation.REPLACE_ATTRIBUTE:
        other = with_attribute(crowd, row, 1 - own.s if own.s < 2 else 0)
    else:
        other = with_record(crowd, place.unit, Record(2.0 * own.x.flip(-1) + 1.0, own.y, own.s))
    one = sent(scene, place.moment, crowd, place.batch, base.seen)
    two = sent(scene, place.moment, other, place.batch, base.seen)
    return {name: two.noisy[name] - one.noisy[name] for name in one.noisy if name in scene.bounded}


def _others_altered(scene: Scene, place: _Place) -> SiloTensors:
    """All other units' features, far away from where they were; a client's own records count as the unit's."""
    silo, rows = place.silo, rows_of(place.silo, place.unit)
    kept = torch.zeros(len(silo), dtype=torch.bool)
    kept[rows] = True
    if silo.client_of_row is not None:
        kept |= silo.client_of_row == silo.client_of_row[rows[0]]
    x = torch.where(kept.reshape(-1, *(1,) * (silo.x.ndim - 1)), silo.x, 3.0 * silo.x.flip(-1) + 1.0)
    s = torch.where(kept, silo.s, silo.s.flip(0)) if not scene.algorithm.draws else silo.s
    return replace(silo, x=x, s=s)


def _pure(scene: Scene, random: np.random.Generator) -> Check:
    """Asked twice, and after other questions, the same answer."""
    changed = set[str]()
    for place in _places(scene, random):
        first = sent(scene, place.moment, place.silo, place.batch)
        sent(scene, place.moment, _others_altered(scene, place), place.batch, first.seen)
        again = sent(scene, place.moment, place.silo, place.batch, first.seen)
        changed |= {name for name, values in first.values.items() if not np.array_equal(values, again.values[name])}
    text = f"{', '.join(sorted(changed))} changed" if changed else "the same messages when asked again"
    return passed_if(Layer.PROBE, "messages carry nothing over", not changed, text)


def _in_any_order(scene: Scene, random: np.random.Generator) -> Check:
    """Records listed in another order give the same sums; a numbering by first appearance does not."""
    name = "messages in any order"
    if scene.algorithm.draws:
        return not_possible(Layer.PROBE, name, "the algorithm lists drawn records in their order")
    worst = 0.0
    for place in _places(scene, random):
        silo = place.silo
        order = _another_group_first(silo, torch.from_numpy(random.permutation(len(silo))))
        owners = None if silo.unit_of_row is None else silo.unit_of_row[order]
        turned = replace(silo, x=silo.x[order], y=silo.y[order], s=silo.s[order], unit_of_row=owners)
        batch = place.batch
        if silo.unit_of_row is None:
            batch = torch.argsort(order)[batch]
        worst = max(worst, _apart_by(scene, place.moment, (silo, place.batch), (turned, batch)))
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


def _alike_in_all_silos(scene: Scene, random: np.random.Generator) -> Check:
    """The same records under every silo's name, at the start: the same message, and so the same group numbers."""
    moment = Moment(0, scene.algorithm.start())
    place = next(_places(scene, random))
    worst = 0.0
    for other in scene.silos[1:]:
        named = replace(place.silo, name=other.name)
        worst = max(worst, _apart_by(scene, moment, (place.silo, place.batch), (named, place.batch)))
    text = f"the same records in another silo give a message {worst:.2g} of the signed bound away"
    return passed_if(Layer.PROBE, "messages alike in all silos", worst <= _TOLERANCE, text)


def _apart_by(
    scene: Scene, moment: Moment, one: tuple[SiloTensors, Tensor], other: tuple[SiloTensors, Tensor]
) -> float:
    first, second = sent(scene, moment, *one), sent(scene, moment, *other)
    return max(
        (
            scene.distance(name, values, second.noisy[name]) / scene.allowed(name)
            for name, values in first.noisy.items()
            if name in scene.bounded and name in second.noisy
        ),
        default=0.0,
    )

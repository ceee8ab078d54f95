"""How far real data is from the worst case: what its own units move, round by round, as a share of the signed bound.

It says whether a clip is far too generous for the data at hand. It is never a reason for less noise: differential
privacy is a promise for every data set, and these numbers are functions of the private records themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from audit.probes.rehearsal import Rehearsal
from audit.probes.setting import (
    ProbeSetting,
    ReachedState,
    in_the_same_set,
    message_values,
    record_at,
    rows_of,
    units_of,
    with_attribute,
    with_record,
    without,
)
from audit.report.results import LocalSensitivity, StepShares
from calibrate.errors import InvalidInput, count
from calibrate.privacy_unit import Relation
from privfair.algorithms.algorithm import SiloTensors

NOTE = (
    "These are facts about this data set, not bounds: the noise stays what was signed for the worst case, and is never "
    "lowered by them. They are computed from private records without noise, so do not publish them."
)
_MOST_STEPS = 8


def _summary(name: str, worst_case: float, shares: Mapping[int, list[float]]) -> LocalSensitivity:
    """One value's shares of the worst case by step, as a result."""
    steps = tuple(
        StepShares(step=step, largest_share=max(found), median_share=float(np.median(found)))
        for step, found in sorted(shares.items())
    )
    largest = max(one.largest_share for one in steps)
    return LocalSensitivity(
        name=name,
        worst_case=worst_case,
        largest=largest * worst_case,
        largest_share=largest,
        median_share=float(np.median([one.median_share for one in steps])),
        by_step=steps,
    )


def local_sensitivity(rehearsal: Rehearsal, units: int = 20, seed: int = 0) -> tuple[LocalSensitivity, ...]:
    """Some units of each watched batch, left out or given what another record of the silo has; one entry per value."""
    count("units", units)
    chosen = np.unique(np.linspace(0, rehearsal.steps - 1, min(_MOST_STEPS, rehearsal.steps)).astype(int))
    reached_states = tuple(ReachedState(int(step), rehearsal.states[step]) for step in chosen)
    setting = ProbeSetting(rehearsal.algorithm, rehearsal.model, rehearsal.silos, rehearsal.document, reached_states)
    if not setting.bounded:
        raise InvalidInput(
            "plan", rehearsal.document.algorithm, "publishes no value with a bound", "report a plan with noise"
        )
    random = np.random.default_rng(seed)
    found: dict[str, dict[int, list[float]]] = {}
    for reached in reached_states:
        for silo in setting.silos:
            (batch,) = (one.batch for one in rehearsal.of(silo.name) if one.step == reached.step)
            for name, share in _of_batch(setting, reached, silo, batch, units, random):
                found.setdefault(name, {}).setdefault(reached.step, []).append(share)
    summaries = (_summary(name, setting.allowed(name), shares) for name, shares in found.items())
    # Records of a draw are exchanged within their cell, so that a count of the cells says nothing here.
    return tuple(one for one in summaries if one.largest > 0 or not setting.algorithm.draws)


def _of_batch(
    setting: ProbeSetting,
    reached: ReachedState,
    silo: SiloTensors,
    batch: Tensor,
    units: int,
    random: np.random.Generator,
) -> Iterator[tuple[str, float]]:
    present = [unit for unit in batch.tolist() if unit < units_of(silo)]
    if not present:
        return
    base = message_values(setting, reached, silo, batch)
    for unit in random.permutation(present)[:units].tolist():
        other, rest = _neighbour(setting, silo, batch, unit, random)
        moved = message_values(setting, reached, other, rest, base.seen)
        for name, values in base.noisy.items():
            if name in setting.bounded and name in moved.noisy:
                yield name, setting.distance(name, values, moved.noisy[name]) / setting.allowed(name)


def _neighbour(
    setting: ProbeSetting, silo: SiloTensors, batch: Tensor, unit: int, random: np.random.Generator
) -> tuple[SiloTensors, Tensor]:
    relation, rows = setting.unit.relation, rows_of(silo, unit)
    if relation is Relation.ADD_REMOVE:
        return without(silo, unit, batch)
    if len(rows) == 0:
        return silo, batch
    if relation is Relation.REPLACE_ATTRIBUTE:
        groups = [group for group in torch.unique(silo.s).tolist() if group != int(silo.s[rows[0]])]
        return (with_attribute(silo, unit, groups[0]) if groups else silo), batch
    candidates = np.arange(len(silo))
    if setting.algorithm.draws:
        # A record's cell decides its place in a draw; neighbours of one draw differ in what stands there.
        alike = (silo.y == silo.y[rows[0]]) & (silo.s == silo.s[rows[0]])
        candidates = alike.nonzero()[:, 0].numpy()
    given = record_at(silo, int(random.choice(candidates)))
    given = replace(given, x=in_the_same_set(setting, given.x, silo.x[rows[0]]))
    return with_record(silo, unit, given), batch

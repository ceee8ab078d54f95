"""How far does one unit move a message? The real `contribution()` on neighbours of the real data, against its bound.

No noise and no search: a few hundred pairs made of the run's records and of extreme ones, at states the run was
in. `audit.claims` looks harder, for each algorithm once; this looks at one run, its model and its data.

`local_sensitivity` says how far real data is from the worst case, and so whether a clip is far too generous. It is
never a reason for less noise: differential privacy is a promise for every data set, and these numbers are functions of
the private records themselves.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import assert_never

import numpy as np
import torch
from torch import Tensor

from audit.probes.setting import (
    ROUNDING,
    MessageValues,
    ProbeSetting,
    ReachedState,
    Record,
    crowd_of,
    in_the_same_set,
    message_values,
    owned_units,
    record_at,
    rows_of,
    with_attribute,
    with_record,
    without,
)
from audit.report.results import BoundPower, Check, Layer, LocalSensitivity, StepShares, not_possible, passed_if
from audit.runs.evidence import rows_only
from audit.runs.rerun import Rehearsal
from calibrate.errors import InvalidInput, PrivfairError, count
from calibrate.privacy_unit import Relation
from privfair.algorithms.algorithm import SiloTensors
from privfair.batches.randomness import SeededWords
from privfair.models.model import mean_over

# Records at which clipping, averaging and weighing go wrong, if they do: far out, opposite, or quiet but steep.

FAR = 1000.0
_MOST_CLASSES = 3
_LOOKED_AT = 256
_SURE = (0.0, 1.0, 4.0)
"""Multiples of a well-classified record: from in doubt to ever surer, and so to an ever smaller loss."""


def extremes(setting: ProbeSetting, reached: ReachedState, silo: SiloTensors, facing: Record) -> tuple[Record, ...]:
    """Far along and against `facing`, with every label; and far where the model does not look."""
    records = [
        Record(sign * FAR * facing.x, label, facing.s)
        for sign in (1.0, -1.0)
        for label in range(min(_MOST_CLASSES, setting.model.classes))
    ]
    theta = setting.algorithm.theta(reached.state)
    return (*records, *_quiet_but_steep(setting, theta, silo))


def _quiet_but_steep(setting: ProbeSetting, theta: Tensor, silo: SiloTensors) -> tuple[Record, ...]:
    """Records of small loss whose gradient is huge: a step to where no score changes leaves the loss and grows x.

    A weight that falls with the loss, and may become negative, escapes its clip at just such records.
    """
    x, y = silo.x[:_LOOKED_AT], silo.y[:_LOOKED_AT]
    if len(y) == 0:
        return ()
    losses = setting.model.weighted_gradient(theta, x, y, mean_over(len(y))).losses
    best = record_at(silo, int(losses.argmin()))
    found = []
    for times in _SURE:
        at = times * best.x
        found.append(Record(at + FAR * _unseen_direction(setting, theta, at), best.y, best.s))
    return tuple(found)


def _unseen_direction(setting: ProbeSetting, theta: Tensor, at: Tensor) -> Tensor:
    """A unit vector along which, to first order, no score of the record changes; zero if there is none."""
    flat = at.detach().reshape(-1).to(torch.float64)

    leaf = flat.clone().requires_grad_()
    scores = setting.model.logits(theta, leaf.reshape(at.shape)[None])[0]
    slopes = torch.stack([torch.autograd.grad(score, leaf, retain_graph=True)[0] for score in scores])
    start = torch.ones_like(flat)
    start[::2] = -1.0
    # The part of `start` in the null space of the slopes: start - S^+ S start.
    rest = start - torch.linalg.pinv(slopes) @ (slopes @ start)
    length = torch.linalg.vector_norm(rest)
    direction = rest / length if float(length) > 1e-9 else torch.zeros_like(rest)
    return direction.reshape(at.shape).to(at.dtype)


_SIZES = (1, 2, 8, 48)
"""Of the batches tried: alone, against one other, in a micro-batch, in a crowd."""
_MOST_NUMBERS = 4_000_000
"""Of the gradients of a whole batch, one per record."""


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The messages of two neighbouring data sets."""

    one: MessageValues
    other: MessageValues
    where: str


@dataclass
class _Reach:
    """The furthest any value was moved, as a share of what was signed."""

    ratio: float = 0.0
    pairs: int = 0
    where: str = ""

    def add(self, ratio: float, where: str) -> None:
        self.pairs += 1
        if ratio > self.ratio:
            self.ratio, self.where = ratio, where


def check_sensitivity(setting: ProbeSetting, seed: int = 0, silos: Sequence[SiloTensors] = ()) -> tuple[Check, ...]:
    """One check per bounded value, one for values in the clear, one for randomised ones, one for what is sent at all.

    `silos` are the run's own, of which whole batches are tried too.
    """
    reach = {name: _Reach() for name in setting.bounded}
    moved, changed, pairs = set[str](), 0, 0
    left_out, where = set[str](), ""
    for pair in chain(neighbours(setting, seed), _in_whole_batches(setting, silos, seed)):
        pairs += 1
        if (unlike := pair.one.values.keys() ^ pair.other.values.keys()) - left_out:
            left_out, where = left_out | unlike, pair.where
        for name in pair.one.noisy:
            if name in reach and name in pair.other.noisy:
                distance = setting.distance(name, pair.one.noisy[name], pair.other.noisy[name])
                reach[name].add(distance / setting.allowed(name), pair.where)
        both = pair.one.values.keys() & pair.other.values.keys()
        moved |= {name for name in setting.independent & set(pair.one.clear) & both if _differs(pair, name)}
        for name in setting.randomised & set(pair.one.randomised) & both:
            entries = int((pair.one.randomised[name] != pair.other.randomised[name]).sum())
            changed = max(changed, entries)
    checks = [_check_bound(name, one) for name, one in reach.items()]
    if setting.independent:
        text = f"{', '.join(sorted(moved))} moved with the protected unit" if moved else "none moved"
        text += f", in {pairs} pairs of neighbouring data sets"
        checks.append(passed_if(Layer.PROBE, "values in the clear", not moved, text))
    if setting.randomised:
        text = f"one unit changes at most {changed} of the randomised entries"
        checks.append(passed_if(Layer.PROBE, "randomised values", changed <= 1, text))
    text = f"no value was sent by one of two neighbours alone, in {pairs} pairs"
    if left_out:
        text = f"{', '.join(sorted(left_out))} sent by one of two neighbours and not by the other ({where})"
    checks.append(passed_if(Layer.PROBE, "what is sent at all", not left_out, text))
    return tuple(checks)


def neighbours(setting: ProbeSetting, seed: int) -> Iterator[Neighbours]:
    """Pairs of messages: every state in the first silo, the last state in the others."""
    random = np.random.default_rng(seed)
    places = [(reached, setting.silos[0]) for reached in setting.reached_states]
    places += [(setting.reached_states[-1], silo) for silo in setting.silos[1:]]
    for reached, silo in places:
        for batch in _batches(setting, silo, random):
            facing = record_at(silo, int(random.integers(len(silo))))
            where = f"step {reached.step}, {silo.name}, batch of {len(batch)}"
            for unit in _units(setting, silo, batch, random):
                try:
                    yield from list(_of_batch(setting, reached, silo, batch, unit, facing, where))
                except PrivfairError:
                    # The algorithm refuses such records outright: nothing would have been sent.
                    continue


def _in_whole_batches(setting: ProbeSetting, silos: Sequence[SiloTensors], seed: int) -> Iterator[Neighbours]:
    """As many units at once as there are, or as a few million numbers allow: work in chunks goes wrong only there."""
    if setting.algorithm.draws or not silos:
        return
    random, reached = np.random.default_rng((seed, 1)), setting.reached_states[-1]
    silo = max(silos, key=len)
    if len(silo) == 0:
        return
    owned = owned_units(silo).numpy()
    affordable = max(_SIZES[-1], _MOST_NUMBERS // setting.model.size)
    chosen = random.permutation(owned)[: min(affordable, setting.most_at_once or affordable)]
    batch = torch.from_numpy(np.sort(chosen))
    facing = record_at(silo, int(random.integers(len(silo))))
    labels = range(min(_MOST_CLASSES, setting.model.classes))
    # The first of the batch and the last: chunks begin at one end.
    for unit, sign in ((int(batch[0]), 1.0), (int(batch[-1]), -1.0)):
        far = tuple(Record(sign * FAR * facing.x, label, facing.s) for label in labels)
        try:
            where = f"step {reached.step}, {silo.name}, batch of {len(batch)}"
            yield from list(_pairs(setting, reached, silo, batch, unit, far, where))
        except PrivfairError:
            continue


def _batches(setting: ProbeSetting, silo: SiloTensors, random: np.random.Generator) -> Iterator[Tensor]:
    """Small batches and larger ones; where the algorithm draws its own parts, a draw of its own."""
    if setting.algorithm.draws:
        drawn = setting.algorithm.draw(silo, SeededWords(int(random.integers(2**31)), "probe"))
        yield torch.from_numpy(drawn)
        return
    owned = owned_units(silo)
    most = min(len(owned), setting.most_at_once or len(owned))
    for size in dict.fromkeys(min(size, most) for size in _SIZES):
        chosen = random.permutation(len(owned))[:size]
        yield owned[torch.from_numpy(np.sort(chosen))]


def _units(setting: ProbeSetting, silo: SiloTensors, batch: Tensor, random: np.random.Generator) -> tuple[int, ...]:
    """Whom to exchange: someone of the batch; of a draw by cells, the first and the last record."""
    drawn = batch[batch < silo.units]
    if setting.algorithm.draws:
        return int(drawn[0]), int(drawn[-1])
    return (int(drawn[int(random.integers(len(drawn)))]),)


def _of_batch(
    setting: ProbeSetting,
    reached: ReachedState,
    silo: SiloTensors,
    batch: Tensor,
    unit: int,
    facing: Record,
    where: str,
) -> Iterator[Neighbours]:
    """The unit among the batch's own records, and among copies of one record that it faces or opposes."""
    drawing = setting.algorithm.draws
    rows = rows_of(silo, unit)
    if len(rows) == 0:
        return
    own = record_at(silo, int(rows[0]))
    others = [(silo, "its own records")]
    if not drawing and len(batch) > 1:
        others.append((crowd_of(silo, unit, batch, facing), "copies of one record"))
    for context, among in others:
        given = extremes(setting, reached, context, facing)
        if drawing:
            # A record's cell decides its place in a draw; neighbours of one draw differ in what stands there.
            given = tuple(Record(in_the_same_set(setting, record.x, own.x), own.y, own.s) for record in given)
        yield from _pairs(setting, reached, context, batch, unit, (own, *given), f"{where} of {among}")


def _pairs(
    setting: ProbeSetting,
    reached: ReachedState,
    silo: SiloTensors,
    batch: Tensor,
    unit: int,
    records: tuple[Record, ...],
    where: str,
) -> Iterator[Neighbours]:
    relation = setting.unit.relation
    if relation is Relation.REPLACE_ATTRIBUTE:
        groups = sorted({int(group) for group in torch.unique(silo.s)} | {0, 1})
        for record in records:
            here = with_record(silo, unit, record)
            base = message_values(setting, reached, here, batch)
            for group in groups:
                if group != record.s:
                    there = with_attribute(here, unit, group)
                    yield Neighbours(base, message_values(setting, reached, there, batch, base.seen), where)
        return
    if relation is Relation.ADD_REMOVE:
        smaller, rest = without(silo, unit, batch)
        base = message_values(setting, reached, smaller, rest)
    else:
        base = message_values(setting, reached, silo, batch)
    messages = [message_values(setting, reached, with_record(silo, unit, each), batch, base.seen) for each in records]
    for message in messages:
        yield Neighbours(message, base, where)
    if relation is Relation.REPLACE_ONE:
        for place, message in enumerate(messages):
            for another in messages[place + 1 :]:
                yield Neighbours(message, another, where)


def _differs(pair: Neighbours, name: str) -> bool:
    return not np.array_equal(pair.one.clear[name], pair.other.clear[name])


def _check_bound(name: str, reach: _Reach) -> Check:
    if not reach.pairs:
        return not_possible(Layer.PROBE, f"sensitivity of {name}", "it was sent in no state that was reached")
    text = f"{reach.ratio:.4f} of the signed bound at most, over {reach.pairs} pairs of neighbouring data sets"
    if reach.ratio > 1 + ROUNDING:
        text += f"; reached at {reach.where}"
    return passed_if(Layer.PROBE, f"sensitivity of {name}", reach.ratio <= 1 + ROUNDING, text)


# Every unit of the data by itself: a bound that holds for most of them is not a bound.

_LEAST_SECONDS, _MOST_SECONDS = 5.0, 60.0
_SHARE = 0.5
"""Of the units, tried even if it takes longer than the least time: a verdict needs an even chance to notice one."""


def check_every_unit(
    setting: ProbeSetting, silos: Sequence[SiloTensors], seed: int, seconds: float = 0.0
) -> tuple[Check, ...]:
    """What each unit of the data adds by itself, in a random step of the run each, against what was signed.

    In random order, as many units as `seconds` of processor time allow, and half of them whatever the time, up to a
    minute; the chance that one unit's breach would have been noticed is the share that was tried. Algorithms that draw
    their own parts are not asked.
    """
    if setting.algorithm.draws or not setting.bounded:
        return ()
    random = np.random.default_rng(seed)
    everybody = [(silo, unit) for silo in silos if len(silo) for unit in range(silo.units)]
    reach, tried, start = _Reach(), 0, time.process_time()
    empty, last = torch.zeros(0, dtype=torch.int64), setting.reached_states[-1].step
    for place in random.permutation(len(everybody)).tolist():
        enough = max(seconds, _LEAST_SECONDS if tried >= _SHARE * len(everybody) else _MOST_SECONDS)
        if time.process_time() - start > enough:
            break
        silo, unit = everybody[place]
        reached = setting.at(int(random.integers(last + 1)))
        alone = _alone(silo, unit)
        if len(alone) == 0:
            tried += 1
            continue  # a user without records
        try:
            base = message_values(setting, reached, alone, torch.tensor([0]))
            other, batch = _other_side(setting, alone, empty)
            moved = message_values(setting, reached, other, batch, base.seen)
        except PrivfairError:
            tried += 1
            continue  # refused outright: nothing would have been sent
        tried += bool(base.noisy)  # an algorithm that sends nothing of a unit alone shows nothing of its bound
        for name in setting.bounded.keys() & base.noisy.keys() & moved.noisy.keys():
            ratio = setting.distance(name, base.noisy[name], moved.noisy[name]) / setting.allowed(name)
            reach.add(ratio, f"a unit of {silo.name} at step {reached.step}")
    text = f"{reach.ratio:.4f} of the signed bound at most, {tried} of {len(everybody)} units tried one by one"
    if reach.ratio > 1 + ROUNDING:
        text += f"; reached by {reach.where}"
    power = BoundPower(tried=tried, units=max(1, len(everybody)), excess=ROUNDING)
    check = passed_if(Layer.PROBE, "bound of every unit", reach.ratio <= 1 + ROUNDING, text)
    return (check.model_copy(update={"bound_power": power}),)


def _alone(silo: SiloTensors, unit: int) -> SiloTensors:
    """The silo with no one but this unit, which is number 0 there."""
    own = rows_only(silo, rows_of(silo, unit))
    return own if own.unit_of_row is None else replace(own, unit_of_row=torch.zeros(len(own), dtype=torch.int64))


def _other_side(setting: ProbeSetting, alone: SiloTensors, empty: Tensor) -> tuple[SiloTensors, Tensor]:
    """The neighbour: the unit does not take part, has the other attribute, or is far on the other side."""
    own = record_at(alone, 0)
    match setting.unit.relation:
        case Relation.ADD_REMOVE:
            return alone, empty
        case Relation.REPLACE_ATTRIBUTE:
            return with_attribute(alone, 0, 1 - own.s if own.s < 2 else 0), torch.tensor([0])
        case Relation.REPLACE_ONE:
            return with_record(alone, 0, Record(-FAR * own.x, own.y, own.s)), torch.tensor([0])
        case _:
            assert_never(setting.unit.relation)


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
    run, steps = rehearsal.run, len(rehearsal.states)
    chosen = np.unique(np.linspace(0, steps - 1, min(_MOST_STEPS, steps)).astype(int))
    reached_states = tuple(ReachedState(int(step), rehearsal.states[step]) for step in chosen)
    setting = ProbeSetting(run.algorithm, run.model, run.silos, run.document, reached_states)
    if not setting.bounded:
        raise InvalidInput(
            "plan", rehearsal.document.algorithm, "publishes no value with a bound", "report a plan with noise"
        )
    random = np.random.default_rng(seed)
    found: dict[str, dict[int, list[float]]] = {}
    for reached in reached_states:
        for silo in setting.silos:
            (batch,) = (one.batch for one in rehearsal.of(silo.name) if one.step == reached.step)
            for name, share in _shares_of_batch(setting, reached, silo, batch, units, random):
                found.setdefault(name, {}).setdefault(reached.step, []).append(share)
    summaries = (_summary(name, setting.allowed(name), shares) for name, shares in found.items())
    # Records of a draw are exchanged within their cell, so that a count of the cells says nothing here.
    return tuple(one for one in summaries if one.largest > 0 or not setting.algorithm.draws)


def _shares_of_batch(
    setting: ProbeSetting,
    reached: ReachedState,
    silo: SiloTensors,
    batch: Tensor,
    units: int,
    random: np.random.Generator,
) -> Iterator[tuple[str, float]]:
    """Of some units of the batch: the name of each bounded value, and how much of its bound the unit moves."""
    present = [unit for unit in batch.tolist() if unit < silo.units]
    if not present:
        return
    base = message_values(setting, reached, silo, batch)
    for unit in random.permutation(present)[:units].tolist():
        other, rest = _real_neighbour(setting, silo, batch, unit, random)
        moved = message_values(setting, reached, other, rest, base.seen)
        for name, values in base.noisy.items():
            if name in setting.bounded and name in moved.noisy:
                yield name, setting.distance(name, values, moved.noisy[name]) / setting.allowed(name)


def _real_neighbour(
    setting: ProbeSetting, silo: SiloTensors, batch: Tensor, unit: int, random: np.random.Generator
) -> tuple[SiloTensors, Tensor]:
    """The unit left out, or given what another record of the silo has."""
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

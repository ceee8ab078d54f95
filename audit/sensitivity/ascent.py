"""Uphill from a good pair: projected gradient steps on the distance, categories and sizes held fixed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import Tensor

from audit.sensitivity.domain import NeighbouringPair
from audit.sensitivity.spaces import Category, Space
from audit.sensitivity.subject import Arrays, Subject
from calibrate.claims import Norm
from calibrate.privacy_unit import PrivacyUnit, Protected

_PARTS = ("common", "left", "right", "public")
_FIRST_STEP, _GROWTH, _LAST_STEP = 0.5, 1.5, 1e-7
_PROBES, _PROBE = 24, 1e-5

Leaf = tuple[str, str]
"""(part of the pair, column)."""


@final
@dataclass(frozen=True, eq=False)
class Climb:
    """The best pair on the way, its distance, and what it cost."""

    pair: NeighbouringPair
    distance: float
    evaluations: int


def climb(
    subject: Subject,
    unit: PrivacyUnit,
    norm: Norm,
    start: NeighbouringPair,
    steps: int,
    generator: np.random.Generator,
    most_evaluations: int,
) -> Climb:
    """Steps along the gradient, each part scaled on its own; longer after success, half as long after failure."""
    free = _free_leaves(subject, unit, start)
    best, pair, evaluations, step = subject.distance(start, norm), start, 1, _FIRST_STEP
    gradient: dict[Leaf, Tensor] | None = None
    for _ in range(steps):
        if not free or not math.isfinite(best) or step < _LAST_STEP or evaluations >= most_evaluations:
            break
        if gradient is None:
            gradient, cost = _gradient(subject, unit, norm, pair, free, generator)
            evaluations += cost
        if not any(bool(slope.any()) for slope in gradient.values()):
            break
        candidate = _moved(subject, unit, pair, free, gradient, step)
        distance = subject.distance(candidate, norm)
        evaluations += 1
        if distance > best and subject.domain.allows(candidate):
            pair, best, step, gradient = candidate, distance, min(4.0, step * _GROWTH), None
        else:
            step /= 2
            if subject.arrays is Arrays.NUMPY:
                gradient = None
    return Climb(pair, best, evaluations)


def _free_leaves(subject: Subject, unit: PrivacyUnit, pair: NeighbouringPair) -> dict[Leaf, Space]:
    """Every real-valued part that may move; a record whose attribute is replaced has one copy of all the rest."""
    free: dict[Leaf, Space] = {}
    for part in _PARTS[:3]:
        for name, space in subject.domain.columns.items():
            if isinstance(space, Category) or len(getattr(pair, part)[name]) == 0:
                continue
            copied = part == "right" and unit.protected is Protected.ATTRIBUTE
            if not copied or name == subject.domain.attribute:
                free[part, name] = space
    return free | {("public", name): space for name, space in subject.domain.public.items()}


def _values(pair: NeighbouringPair, leaf: Leaf) -> Tensor:
    return torch.from_numpy(np.array(getattr(pair, leaf[0])[leaf[1]], dtype=np.float64))


def _gradient(
    subject: Subject,
    unit: PrivacyUnit,
    norm: Norm,
    pair: NeighbouringPair,
    free: Mapping[Leaf, Space],
    generator: np.random.Generator,
) -> tuple[dict[Leaf, Tensor], int]:
    if subject.arrays is Arrays.NUMPY:
        return _probed(subject, unit, norm, pair, free, generator)
    leaves = {leaf: _values(pair, leaf).requires_grad_() for leaf in free}
    parts = {part: dict(getattr(pair, part)) for part in _PARTS}
    for (part, name), values in leaves.items():
        parts[part][name] = values
    if unit.protected is Protected.ATTRIBUTE:
        kept = {subject.domain.attribute: parts["right"][subject.domain.attribute or ""]}
        parts["right"] = {**parts["left"], **kept}
    before, after = (_joined(parts["common"], parts[side]) for side in ("left", "right"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        distance = subject.distance_of(before, after, parts["public"], norm)
    if not distance.requires_grad:
        return {leaf: torch.zeros_like(values) for leaf, values in leaves.items()}, 1
    slopes = torch.autograd.grad(distance, list(leaves.values()), allow_unused=True)
    found = {}
    for (leaf, values), slope in zip(leaves.items(), slopes, strict=True):
        found[leaf] = torch.zeros_like(values) if slope is None else torch.nan_to_num(slope.detach())
    return found, 1


def _joined(first: Mapping[str, object], second: Mapping[str, object]) -> dict[str, Tensor]:
    both = {name: (torch.as_tensor(first[name]), torch.as_tensor(second[name])) for name in first}
    return {name: torch.cat(pieces) for name, pieces in both.items()}


def _probed(
    subject: Subject,
    unit: PrivacyUnit,
    norm: Norm,
    pair: NeighbouringPair,
    free: Mapping[Leaf, Space],
    generator: np.random.Generator,
) -> tuple[dict[Leaf, Tensor], int]:
    """Central differences in at most a fixed number of entries, drawn anew each time."""
    found = {leaf: torch.zeros_like(_values(pair, leaf)) for leaf in free}
    entries = [(leaf, place) for leaf, slope in found.items() for place in range(slope.numel())]
    chosen = generator.permutation(len(entries))[:_PROBES]
    for number in chosen:
        leaf, place = entries[int(number)]
        probe = torch.zeros_like(found[leaf])
        probe.view(-1)[place] = _PROBE * free[leaf].scale
        ends = [subject.distance(_shifted(subject, unit, pair, {leaf: sign * probe}), norm) for sign in (1.0, -1.0)]
        slope = (ends[0] - ends[1]) / (2 * _PROBE * free[leaf].scale)
        found[leaf].view(-1)[place] = slope if math.isfinite(slope) else 0.0
    return found, 2 * len(chosen)


def _moved(
    subject: Subject,
    unit: PrivacyUnit,
    pair: NeighbouringPair,
    free: Mapping[Leaf, Space],
    gradient: Mapping[Leaf, Tensor],
    step: float,
) -> NeighbouringPair:
    shifts = {}
    for leaf, slope in gradient.items():
        length = float(torch.linalg.vector_norm(slope))
        if length > 0:
            shifts[leaf] = slope * (step * free[leaf].scale / length)
    return _shifted(subject, unit, pair, shifts)


def _shifted(
    subject: Subject, unit: PrivacyUnit, pair: NeighbouringPair, shifts: Mapping[Leaf, Tensor]
) -> NeighbouringPair:
    """The pair with parts shifted and brought back into their spaces."""
    parts = {part: dict(getattr(pair, part)) for part in _PARTS}
    spaces = {**subject.domain.columns, **subject.domain.public}
    for (part, name), shift in shifts.items():
        space = spaces[name]
        assert not isinstance(space, Category)
        moved = _values(pair, (part, name)) + shift
        projected = space.project(moved[None])[0] if part == "public" else space.project(moved)
        parts[part][name] = projected.numpy()
    if unit.protected is Protected.ATTRIBUTE:
        attribute = subject.domain.attribute or ""
        parts["right"] = {**parts["left"], attribute: parts["right"][attribute]}
    return replace(pair, **parts)

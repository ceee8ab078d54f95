"""Uphill from a good pair: projected gradient steps on the distance, categories, sizes and order held fixed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from audit.claims.claim import Arrays, Subject
from audit.claims.domain import NeighbouringPair
from audit.claims.spaces import Category, Space
from calibrate.privacy_unit import Norm, PrivacyUnit, Protected

_PARTS = ("common", "left", "right", "public")
_FIRST_STEP, _GROWTH, _LAST_STEP = 0.5, 1.5, 1e-7
_PROBES, _PROBE = 24, 1e-5

Leaf = tuple[str, str]
"""(part of the pair, column)."""
Slopes = dict[Leaf, Tensor]


@final
@dataclass(frozen=True, eq=False)
class Climb:
    """The best pair on the way, its distance, and what it cost."""

    pair: NeighbouringPair
    distance: float
    evaluations: int


@final
@dataclass(frozen=True, eq=False)
class Ascent:
    """Gradient steps on the distance between a function's values on neighbouring data sets."""

    subject: Subject
    unit: PrivacyUnit
    norm: Norm
    generator: np.random.Generator

    def climb(self, start: NeighbouringPair, steps: int, most_evaluations: int) -> Climb:
        """Steps along the gradient, each part scaled on its own; longer after success, half as long after failure."""
        free = self._free_leaves(start)
        best, pair, evaluations, step = self.subject.distance(start, self.norm), start, 1, _FIRST_STEP
        gradient: Slopes | None = None
        for _ in range(steps):
            if not free or not math.isfinite(best) or step < _LAST_STEP or evaluations >= most_evaluations:
                break
            if gradient is None:
                gradient, cost = self._gradient(pair, free)
                evaluations += cost
            if not any(bool(slope.any()) for slope in gradient.values()):
                break
            candidate = self._step(pair, free, gradient, step)
            distance = self.subject.distance(candidate, self.norm)
            evaluations += 1
            if distance > best and self.subject.domain.allows(candidate):
                pair, best, step, gradient = candidate, distance, min(4.0, step * _GROWTH), None
            else:
                step /= 2
                if self.subject.arrays is Arrays.NUMPY:
                    gradient = None
        return Climb(pair, best, evaluations)

    def _free_leaves(self, pair: NeighbouringPair) -> dict[Leaf, Space]:
        """Every real-valued part that may move; a record whose attribute is replaced has one copy of all the rest."""
        free: dict[Leaf, Space] = {}
        domain = self.subject.domain
        for part in _PARTS[:3]:
            for name, space in domain.columns.items():
                if isinstance(space, Category) or len(getattr(pair, part)[name]) == 0:
                    continue
                copied = part == "right" and self.unit.protected is Protected.ATTRIBUTE
                if not copied or name == domain.attribute:
                    free[part, name] = space
        return free | {("public", name): space for name, space in domain.public.items()}

    def _gradient(self, pair: NeighbouringPair, free: Mapping[Leaf, Space]) -> tuple[Slopes, int]:
        """The distance's slopes, and how many pairs were evaluated for them."""
        if self.subject.arrays is Arrays.NUMPY:
            return self._probe_slopes(pair, free)
        leaves = {leaf: _values(pair, leaf).requires_grad_() for leaf in free}
        parts = {part: dict(getattr(pair, part)) for part in _PARTS}
        for (part, name), values in leaves.items():
            parts[part][name] = values
        parts["right"] = self._with_copies(parts["left"], parts["right"])
        before, after = (_join(parts["common"], parts[side], pair.place) for side in ("left", "right"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            distance = self.subject.distance_of(before, after, parts["public"], self.norm)
        if not distance.requires_grad:
            return {leaf: torch.zeros_like(values) for leaf, values in leaves.items()}, 1
        slopes = torch.autograd.grad(distance, list(leaves.values()), allow_unused=True)
        found = {}
        for (leaf, values), slope in zip(leaves.items(), slopes, strict=True):
            found[leaf] = torch.zeros_like(values) if slope is None else torch.nan_to_num(slope.detach())
        return found, 1

    def _probe_slopes(self, pair: NeighbouringPair, free: Mapping[Leaf, Space]) -> tuple[Slopes, int]:
        """Central differences in at most a fixed number of entries, drawn anew each time."""
        found = {leaf: torch.zeros_like(_values(pair, leaf)) for leaf in free}
        entries = [(leaf, place) for leaf, slope in found.items() for place in range(slope.numel())]
        chosen = self.generator.permutation(len(entries))[:_PROBES]
        for number in chosen:
            leaf, place = entries[int(number)]
            probe = torch.zeros_like(found[leaf])
            probe.view(-1)[place] = _PROBE * free[leaf].scale
            ends = [self.subject.distance(self._shift(pair, {leaf: sign * probe}), self.norm) for sign in (1.0, -1.0)]
            slope = (ends[0] - ends[1]) / (2 * _PROBE * free[leaf].scale)
            found[leaf].view(-1)[place] = slope if math.isfinite(slope) else 0.0
        return found, 2 * len(chosen)

    def _step(
        self, pair: NeighbouringPair, free: Mapping[Leaf, Space], slopes: Slopes, step: float
    ) -> NeighbouringPair:
        lengths = {leaf: float(torch.linalg.vector_norm(slope)) for leaf, slope in slopes.items()}
        shifts = {
            leaf: slopes[leaf] * (step * free[leaf].scale / length) for leaf, length in lengths.items() if length > 0
        }
        return self._shift(pair, shifts)

    def _shift(self, pair: NeighbouringPair, shifts: Slopes) -> NeighbouringPair:
        """The pair with parts shifted and brought back into their spaces."""
        parts = {part: dict(getattr(pair, part)) for part in _PARTS}
        spaces = {**self.subject.domain.columns, **self.subject.domain.public}
        for (part, name), shift in shifts.items():
            space = spaces[name]
            assert not isinstance(space, Category)
            moved = _values(pair, (part, name)) + shift
            projected = space.project(moved[None])[0] if part == "public" else space.project(moved)
            parts[part][name] = projected.numpy()
        parts["right"] = self._with_copies(parts["left"], parts["right"])
        return pair.with_parts(parts)

    def _with_copies(self, left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
        """The unit's other side; where an attribute is replaced, everything else is the first side's."""
        if self.unit.protected is not Protected.ATTRIBUTE:
            return right
        attribute = self.subject.domain.attribute or ""
        return {**left, attribute: right[attribute]}


def _values(pair: NeighbouringPair, leaf: Leaf) -> Tensor:
    return torch.from_numpy(np.array(getattr(pair, leaf[0])[leaf[1]], dtype=np.float64))


def _join(common: Mapping[str, Any], unit: Mapping[str, Any], place: int | None) -> dict[str, Tensor]:
    joined = {}
    for name, values in common.items():
        shared, rows = torch.as_tensor(values), torch.as_tensor(unit[name])
        split = len(shared) if place is None else place
        joined[name] = torch.cat((shared[:split], rows, shared[split:]))
    return joined

"""Try to refute a sensitivity claim: random pairs with corner cases, then gradient ascent, then shrinking.

A refutation is a proof: it shows two neighbouring data sets. Its absence proves nothing, so the effort is stated. The
ascent takes projected gradient steps on the distance, with categories, sizes and order held fixed.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from audit.claims.claim import Arrays, DistanceClaim, Domain, NeighbouringPair, Refutation, Subject, random_pairs
from audit.claims.shrink import Shrinking, floor_of, from_json, table, to_json
from audit.claims.spaces import Category, Space
from calibrate.errors import count
from calibrate.privacy_unit import Norm, PrivacyUnit, Protected

ROUNDING = 1e-6
"""A distance this much (relatively) above the bound is treated as rounding, not as a refutation."""
_REACHED = 1e-4
_ENOUGH = 2
"""Once the bound is reached up to `_REACHED` and not passed, this many ascents from the best pairs are made, not more:
a bound that clipping enforces is a plateau, on which further ascents stand still."""


@final
@dataclass(frozen=True)
class Search:
    """How hard to look; the same search gives the same result."""

    pairs: int = 800
    climbs: int = 6
    steps: int = 80
    seed: int = 0
    ascent_pairs: int = 1500
    """Pairs that all ascents together may evaluate; numerical slopes take dozens per step, exact ones a single pair."""

    def __post_init__(self) -> None:
        count("ascent_pairs", self.ascent_pairs, least=0)
        count("pairs", self.pairs)
        count("climbs", self.climbs, least=0)
        count("steps", self.steps, least=0)
        count("seed", self.seed, least=0)


@final
@dataclass(frozen=True)
class SearchEffort:
    """What was really tried."""

    seed: int
    pairs: int
    climbs: int
    evaluations: int
    """Pairs on which the function was evaluated, all phases together."""
    shrinking: int

    def __str__(self) -> str:
        return (
            f"{self.pairs} random pairs with corner cases, {self.climbs} gradient ascents, {self.evaluations} pairs"
            f" evaluated in all, {self.shrinking} of them in shrinking (seed {self.seed})"
        )


@final
@dataclass(frozen=True, eq=False)
class SearchResult:
    """What the search found; `pair` is the counterexample, or where nothing is refuted the closest pair."""

    claim: DistanceClaim
    found: float
    refuted: bool
    pair: NeighbouringPair
    effort: SearchEffort

    @property
    def verdict(self) -> str:
        return "refuted" if self.refuted else "not refuted"

    @property
    def ratio(self) -> float:
        """Found over claimed: above 1 refutes; near 1 says that the bound is tight."""
        return self.found / self.claim.bound

    def to_json(self) -> dict[str, object]:
        """Plain values; `replay` computes the counterexample's distance again."""
        return {
            "claimed": self.claim.bound,
            "found": self.found,
            "ratio": self.ratio,
            "verdict": self.verdict,
            "relation": self.claim.relation.value,
            "protected": self.claim.unit.protected.value,
            "norm": self.claim.norm.value,
            "counterexample": to_json(self.pair) if self.refuted else None,
            "effort": asdict(self.effort),
        }

    def __str__(self) -> str:
        head = (
            f"{self.verdict}: found {self.found:.6g}, claimed {self.claim.bound:.6g} (ratio {self.ratio:.4g},"
            f" {self.claim.norm.value}, {self.claim.relation.value}, unit: {self.claim.unit.protected.value})"
        )
        shown = f"\n{table(self.pair)}" if self.refuted else ""
        return f"{head}{shown}\nsearched: {self.effort}"


def falsify(subject: Subject, claim: DistanceClaim, search: Search | None = None) -> SearchResult:
    """The neighbouring data sets furthest apart that the search finds, judged against the claim."""
    search = search or Search()
    generator = np.random.default_rng(search.seed)
    pairs = random_pairs(subject.domain, claim.unit, generator, search.pairs)
    # The furthest apart first; ties keep their order.
    seeds = sorted(((subject.distance(pair, claim.norm), pair) for pair in pairs), key=lambda each: -each[0])
    evaluations = len(seeds)
    best = seeds[0]
    starts = seeds[: search.climbs] if math.isfinite(best[0]) else []
    ascent, climbs = Ascent(subject, claim.unit, claim.norm, generator), 0
    for _, start in starts:
        if climbs >= _ENOUGH and 1 - _REACHED <= best[0] / claim.bound <= 1 + ROUNDING:
            break
        room = min(search.ascent_pairs - (evaluations - len(seeds)), search.ascent_pairs // _ENOUGH)
        if room <= 0:
            break
        climbs += 1
        risen = ascent.climb(start, search.steps, room)
        evaluations += risen.evaluations
        if risen.distance > best[0]:
            best = (risen.distance, risen.pair)
    found, pair = best
    refuted = found > claim.bound * (1 + ROUNDING)
    shrinking = 0
    if refuted:
        floor = min(found, floor_of(found, claim.bound * (1 + 2 * ROUNDING)))
        shrinker = Shrinking(subject.domain, claim.unit, lambda each: subject.distance(each, claim.norm) >= floor)
        pair = shrinker.shrink(pair)
        found, shrinking = subject.distance(pair, claim.norm), shrinker.trials
    effort = SearchEffort(search.seed, search.pairs, climbs, evaluations + shrinking, shrinking)
    return SearchResult(claim, found, refuted, pair, effort)


def replay(document: Mapping[str, Any], subject: Subject, claim: DistanceClaim) -> float:
    """The distance that a counterexample's JSON gives now."""
    return subject.distance(from_json(document, subject.domain), claim.norm)


@final
@dataclass(frozen=True, eq=False)
class CataloguedClaim:
    """A claim by its id, about which function and data sets; `says` is the claim in words with its source."""

    id: str
    says: str
    claim: DistanceClaim
    subject: Subject

    def check(self, search: Search | None = None) -> SearchResult:
        """Try to refute it."""
        return falsify(self.subject, self.claim, search)


# Three lines for a function of one's own: what it takes, what is claimed, and a search that tries to refute it.


class SensitivityRefuted(Refutation[SearchResult]):
    """Two neighbouring data sets were found that the claimed bound does not cover."""


def assert_sensitivity(
    function: Callable[..., Any],
    claim: DistanceClaim | float,
    domain: Domain,
    *,
    arrays: Arrays = Arrays.NUMPY,
    search: Search | None = None,
) -> SearchResult:
    """Raise `SensitivityRefuted` with a readable counterexample, or return what was searched.

    function: its parameters are named after the domain's columns and public values.
    claim: a plain number claims an L2 distance under adding or removing one record.
    domain: the data sets that the claim speaks of.
    arrays: what the function takes; through torch, the search has exact gradients.
    search: how hard to look.

    Not refuted is not proved: the result states its effort and how near the bound it came.
    """
    stated = claim if isinstance(claim, DistanceClaim) else DistanceClaim(claim)
    result = falsify(Subject(function, domain, arrays), stated, search)
    if result.refuted:
        raise SensitivityRefuted(result)
    return result


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
        """Central differences in at most a fixed number of entries, drawn again each time."""
        found = {leaf: torch.zeros_like(_values(pair, leaf)) for leaf in free}
        entries = [(leaf, place) for leaf, slope in found.items() for place in range(slope.numel())]
        chosen = self.generator.permutation(len(entries))[:_PROBES]
        for number in chosen:
            leaf, place = entries[int(number)]
            probe = torch.zeros_like(found[leaf])
            probe.view(-1)[place] = _PROBE * free[leaf].scale
            ends = [self.subject.distance(self._shift(pair, {leaf: sign * probe}), self.norm) for sign in (1.0, -1.0)]
            # Central difference: (f(x + h) - f(x - h)) / 2h, h in units of the space.
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

    def _with_copies(self, left: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, Tensor]:
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

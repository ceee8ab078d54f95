"""Try to refute a sensitivity claim: random pairs with corner cases, then gradient ascent, then shrinking.

A refutation is a proof: it shows two neighbouring data sets. Its absence proves nothing, so the effort is stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np

from audit.claims.ascent import Ascent
from audit.claims.claim import Arrays, DistanceClaim, Subject
from audit.claims.domain import Domain, NeighbouringPair, build_pair
from audit.claims.shrink import Shrinking, floor_of, from_json, table, to_json
from audit.claims.spaces import RandomChoices
from calibrate.errors import InvalidInput, count

ROUNDING = 1e-6
"""A distance this much (relatively) above the bound counts as rounding, not as a refutation."""
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

    def to_json(self) -> dict[str, Any]:
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
    seeds = _random_pairs(subject, claim, search, generator)
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


def replay(document: dict[str, Any], subject: Subject, claim: DistanceClaim) -> float:
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


def _random_pairs(
    subject: Subject, claim: DistanceClaim, search: Search, generator: np.random.Generator
) -> list[tuple[float, NeighbouringPair]]:
    """Random pairs, the furthest apart first; ties keep their order."""
    choose = RandomChoices(generator)
    found: list[tuple[float, NeighbouringPair]] = []
    for _ in range(search.pairs):
        pair = build_pair(choose, subject.domain, claim.unit)
        if pair is not None:
            found.append((subject.distance(pair, claim.norm), pair))
    if not found:
        raise InvalidInput(
            "domain",
            (subject.domain.fewest, subject.domain.most),
            f"holds no neighbouring data sets under {claim.relation.value}",
            "allow more records or smaller shares",
        )
    return sorted(found, key=lambda each: -each[0])


# Three lines for a function of one's own: what it takes, what is claimed, and a search that tries to refute it.


class SensitivityRefuted(AssertionError):
    """Two neighbouring data sets were found that the claimed bound does not cover."""

    def __init__(self, result: SearchResult) -> None:
        self.result = result
        super().__init__(str(result))


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

"""Test anybody's mechanism from outside: neighbouring data sets whose outputs differ more than (epsilon, delta) allows.

Pairs of neighbours come from the search for sensitivities; the mechanism is run on both many times. Promising pairs are
kept, an event is chosen on some outputs and counted on fresh ones: a refutation is a proof up to the stated probability
of a false alarm. Its absence proves nothing, so the effort is stated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import final

import numpy as np

from audit.bounds import ClopperPearson, EpsilonDeltaCurve, ErrorCounts, LowerBound, Selection
from audit.claims.claim import Domain, NeighbouringPair, Records, Refutation, parameters_of, random_pairs
from audit.claims.outputs import Event, Outputs, Vocabulary, choose_event
from audit.claims.shrink import Shrinking, table, to_json
from calibrate.errors import InvalidInput, count, open_unit
from calibrate.privacy_unit import PrivacyUnit, Protected, Relation

_FINALISTS = 2
_TESTS = _FINALISTS + 1
"""Events that are judged: of each finalist, and of the shrunken pair; they share the false-alarm probability."""
_SEMIFINALISTS = 6
_SCREENING, _SEMIFINAL, _SHRINKING = 50, 5, 10
"""Shares of the runs (one in this many) that these stages get."""
_MOST_SHRINKING = 60
_KEPT = 0.5
"""Of the excess over the claimed epsilon, a simpler pair keeps at least this much."""


@final
@dataclass(frozen=True)
class MechanismSearch:
    """How hard to look.

    pairs: neighbouring data sets that are tried.
    runs: how often the mechanism is run on each of the last two, once to choose an event and once to count it.
    seed: of the pairs, and of the generator that a mechanism with a parameter `rng` gets.
    false_alarm: probability at most with which a mechanism that keeps its promise is refuted.
    low_bits: whether the last bits of floats count. Textbook noise in floats reveals its data set there; without them
        outputs are taken for real numbers.
    """

    pairs: int = 60
    runs: int = 20_000
    seed: int = 0
    false_alarm: float = 1e-9
    low_bits: bool = True

    def __post_init__(self) -> None:
        count("pairs", self.pairs)
        count("runs", self.runs, least=100)
        count("seed", self.seed, least=0)
        open_unit("false_alarm", self.false_alarm)


@final
@dataclass(frozen=True)
class MechanismEffort:
    """What was really tried."""

    seed: int
    pairs: int
    calls: int
    """Runs of the mechanism, all stages together."""
    shrinking: int
    """Simpler pairs that were tried after a refutation."""

    def __str__(self) -> str:
        return (
            f"{self.pairs} pairs, {self.calls} runs of the mechanism, {self.shrinking} simpler pairs (seed {self.seed})"
        )


@final
@dataclass(frozen=True, eq=False)
class MechanismResult:
    """What was found; `pair` is the counterexample, or where nothing is refuted the most suspicious pair.

    Guarantee: docs/theorems/audit-bounds.md, "The box" and "Choosing a threshold": with probability at least
    `bound.confidence` over the mechanism's runs, the mechanism is not (e, delta) private for any e below
    `bound.epsilon`. Runs must be independent of one another.
    """

    epsilon: float
    delta: float
    unit: PrivacyUnit
    refuted: bool
    bound: LowerBound
    event: str
    counts: tuple[int, int]
    """How often the event happened on the first and on the second data set."""
    pair: NeighbouringPair
    effort: MechanismEffort

    @property
    def verdict(self) -> str:
        return "refuted" if self.refuted else "not refuted"

    def to_json(self) -> dict[str, object]:
        """Plain values for a report."""
        return {
            "claimed": {"epsilon": self.epsilon, "delta": self.delta},
            "found": self.bound.epsilon,
            "verdict": self.verdict,
            "relation": self.unit.relation.value,
            "protected": self.unit.protected.value,
            "event": self.event,
            "bound": self.bound.as_json(),
            "counterexample": to_json(self.pair) if self.refuted else None,
            "effort": asdict(self.effort),
        }

    def __str__(self) -> str:
        assert isinstance(self.bound.evidence, ErrorCounts)
        runs = self.bound.evidence.runs_with
        head = (
            f"{self.verdict}: epsilon is at least {self.bound.epsilon:.4g} at delta = {self.delta:g}, claimed"
            f" {self.epsilon:g} ({self.unit.relation.value}, unit: {self.unit.protected.value}; probability of a false"
            f" alarm at most {1 - self.bound.confidence:.2g})"
        )
        seen = (
            f"event: {self.event}\n    in {self.counts[0]} of {runs} runs on the first data set, in {self.counts[1]} of"
            f" {runs} on the second"
        )
        shown = f"\n{table(self.pair)}" if self.refuted else ""
        return f"{head}\n{seen}{shown}\nsearched: {self.effort}"


class PrivacyRefuted(Refutation[MechanismResult]):
    """Two neighbouring data sets were found whose outputs differ more than the promise allows."""


def assert_dp(
    mechanism: Callable[..., object],
    epsilon: float,
    delta: float,
    domain: Domain,
    *,
    relation: Relation = Relation.ADD_REMOVE,
    protected: Protected = Protected.RECORD,
    search: MechanismSearch | None = None,
) -> MechanismResult:
    """Raise `PrivacyRefuted` with a readable counterexample, or return what was searched.

    mechanism: its parameters are named after the domain's columns and public values. With a parameter `rng` it gets a
        seeded numpy generator; with a parameter `runs` it is called once for this many independent runs and returns an
        array with one row per run, which is much faster. It may return numbers, truth values, text, None, and arrays,
        tuples and lists of them, of any length.
    epsilon, delta: the promise tested.
    domain: the data sets that the promise speaks of.
    relation, protected: which data sets are neighbours.
    search: how hard to look, and the probability of a false alarm.

    Not refuted is not proved: the result states the effort, and the largest epsilon that is refuted.

    >>> from audit.claims.spaces import Box
    >>> def release(x, rng, runs):
    ...     return np.round(x.sum() + rng.laplace(0, 1 / 2, runs), 3)
    >>> assert_dp(release, 2.0, 0.0, Domain({"x": Box(0, 1)})).verdict
    'not refuted'
    >>> assert_dp(release, 1.0, 0.0, Domain({"x": Box(0, 1)}))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    audit.claims.assert_dp.PrivacyRefuted: refuted: epsilon is at least 1.7...
    """
    unit = PrivacyUnit(Protected.ATTRIBUTE if relation is Relation.REPLACE_ATTRIBUTE else protected, relation)
    domain.require(unit)
    test = _Test(mechanism, EpsilonDeltaCurve(epsilon, delta), domain, unit, search or MechanismSearch())
    result = test.result()
    if result.refuted:
        raise PrivacyRefuted(result)
    return result


@final
@dataclass(frozen=True, eq=False)
class _Judged:
    """An event counted on fresh runs of a pair."""

    pair: NeighbouringPair
    event: Event
    counts: ErrorCounts
    bound: LowerBound
    refuted: bool

    @property
    def hits(self) -> tuple[int, int]:
        likely, rare = self.counts.runs_with - self.counts.false_negatives, self.counts.false_positives
        return (likely, rare) if self.event.on_first else (rare, likely)


@final
@dataclass(eq=False)
class _Test:
    """One mechanism tested."""

    mechanism: Callable[..., object]
    promise: EpsilonDeltaCurve
    domain: Domain
    unit: PrivacyUnit
    search: MechanismSearch
    calls: int = 0
    vocabulary: Vocabulary = field(default_factory=Vocabulary)

    def __post_init__(self) -> None:
        self.generator = np.random.default_rng((self.search.seed, 0xD9))
        _ = self.parameters

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names that the mechanism takes."""
        return parameters_of(self.mechanism, (*self.domain.names, "rng", "runs"), "mechanism")

    def result(self) -> MechanismResult:
        """Screen many pairs, choose and count events on the best, shrink what is refuted."""
        pairs = random_pairs(self.domain, self.unit, np.random.default_rng(self.search.seed), self.search.pairs)
        pairs = self._most_promising(pairs, _SEMIFINALISTS, max(100, self.search.runs // _SCREENING))
        pairs = self._most_promising(pairs, _FINALISTS, max(100, self.search.runs // _SEMIFINAL))
        judged: list[_Judged] = []
        for pair in pairs:
            judged.append(self._judge(pair))
            if judged[-1].refuted:
                break
        best = max(judged, key=lambda one: (one.refuted, one.bound.epsilon))
        shrinking = 0
        if best.refuted:
            best, shrinking = self._shrink(best)
        effort = MechanismEffort(self.search.seed, self.search.pairs, self.calls, shrinking)
        return MechanismResult(
            epsilon=self.promise.epsilon,
            delta=self.promise.delta,
            unit=self.unit,
            refuted=best.refuted,
            bound=best.bound.selected_by(Selection.SPLIT, _TESTS, 1 - self.search.false_alarm),
            event=best.event.text,
            counts=best.hits,
            pair=best.pair,
            effort=effort,
        )

    def _most_promising(self, pairs: list[NeighbouringPair], number: int, runs: int) -> list[NeighbouringPair]:
        """The pairs whose outputs differ most on a few runs; nothing is concluded from these."""
        promises = [self._choose(pair, runs).promise for pair in pairs]
        order = sorted(range(len(pairs)), key=lambda place: -promises[place])
        return [pairs[place] for place in order[:number]]

    def _choose(self, pair: NeighbouringPair, runs: int) -> Event:
        """An event chosen on `runs` runs of each data set, for a count on as many."""
        failure = self.search.false_alarm if runs == self.search.runs else 0.01
        first, second = self._sample(pair.before, pair, runs), self._sample(pair.after, pair, runs)
        low_bits = self.search.low_bits
        return choose_event(first, second, self.vocabulary, self.promise.delta, runs, failure, low_bits)

    def _judge(self, pair: NeighbouringPair) -> _Judged:
        """Choose on some runs, count on others: the test at its share of the false-alarm probability."""
        event, runs = self._choose(pair, self.search.runs), self.search.runs
        hits = [int(event.hits(self._sample(side, pair, runs)).sum()) for side in (pair.before, pair.after)]
        likely, rare = hits if event.on_first else reversed(hits)
        counts = ErrorCounts(rare, runs, runs - likely, runs)
        method, confidence = ClopperPearson(), 1 - self.search.false_alarm / _TESTS
        bound = method.lower_bound(counts, self.promise.delta, confidence)
        return _Judged(pair, event, counts, bound, method.refutes(counts, self.promise, confidence))

    def _shrink(self, found: _Judged) -> tuple[_Judged, int]:
        """A simpler pair that keeps much of the excess, judged once on fresh runs; the found one where that fails."""
        claimed, runs = self.promise.epsilon, max(100, self.search.runs // _SHRINKING)
        floor = claimed + _KEPT * (found.bound.epsilon - claimed)
        shrinker = Shrinking(
            self.domain, self.unit, lambda pair: self._choose(pair, runs).promise >= floor, _MOST_SHRINKING
        )
        simpler = self._judge(shrinker.shrink(found.pair))
        return (simpler if simpler.refuted else found), shrinker.trials

    def _sample(self, records: Records, pair: NeighbouringPair, runs: int) -> Outputs:
        """Outputs of independent runs on one data set."""
        self.calls += runs
        given: dict[str, object] = {"rng": self.generator, "runs": runs}
        given |= {name: np.array(values) for name, values in (*records.items(), *pair.public.items())}
        taken = {name: given[name] for name in self.parameters}
        if "runs" not in taken:
            return Outputs.of([self.mechanism(**taken) for _ in range(runs)], self.vocabulary)
        returned = self.mechanism(**taken)
        if isinstance(returned, np.ndarray) and returned.dtype != object and len(returned) == runs:
            return Outputs.of_numbers(returned, self.vocabulary)
        if isinstance(returned, (list, tuple, np.ndarray)) and len(returned) == runs:
            return Outputs.of(list(returned), self.vocabulary)
        raise InvalidInput("mechanism", type(returned).__name__, f"must return {runs} outputs", "return one per run")

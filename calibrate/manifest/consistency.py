"""Whether the parts of a budget document tell the same story.

A document states its noise twice (per named release, and in the priced event), its sampling twice, and its
price three times. A signature under a document that contradicts itself would let each reader believe the
part that suits them, so every contradiction is named and the document refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, assert_never

from calibrate.compose import Cost, Spent, fixed_total
from calibrate.discrete_noise import combined
from calibrate.errors import InvalidInput
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    DeclaredRelease,
    GaussianNoise,
    InTheClear,
    LaplaceNoise,
    NoiseSampler,
    NoiseSource,
    NoPrivacyPromised,
    PrivateGuarantee,
)
from calibrate.privacy_unit import EpsilonDelta, Relation
from calibrate.releases import (
    Gaussian,
    Laplace,
    Leaf,
    NonPrivate,
    RandomizedResponse,
    Sampled,
    Together,
    multiplicities,
)
from calibrate.sampling import (
    Cyclic,
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
    rounds_of,
    whole,
)
from calibrate.tries import DRAW_ERROR

if TYPE_CHECKING:
    from calibrate.manifest.document import BudgetDocument


_ROUNDING = 1e-9
_TOUCHED = 2
"""Of disjoint sets, those that a replaced unit can touch: the one it leaves and the one it enters."""
_WITH_FAMILIES = "mmd-fedavg"
"""The only algorithm whose sets are proved to be disjoint; by name, because a reader of manifests loads no plan."""

Primitive = Gaussian | Laplace | RandomizedResponse | NonPrivate


def contradictions(document: BudgetDocument) -> tuple[str, ...]:
    """Every contradiction found, each in one clause; empty if the document is consistent."""
    return (
        *_names(document),
        *_families(document),
        *_noise_against_event(document),
        *_sampling_against_event(document),
        *_strategies_against_event(document),
        *_sizes_against_event(document),
        *_price(document),
        *_noise_source(document),
        *_bindings(document),
        *_retention(document),
        *_search(document),
    )


def _retention(document: BudgetDocument) -> Iterator[str]:
    mixed = [one.name for one in document.releases if isinstance(one, GaussianNoise) and one.strategy is not None]
    if document.retention is not None and mixed:
        yield f"retention keeps single steps, but {mixed[0]!r} mixes several, so that its noise could not be measured"


def _search(document: BudgetDocument) -> Iterator[str]:
    if document.accounting.search is not None and not isinstance(document.guarantee, PrivateGuarantee):
        yield "a search is priced, but nothing is promised for it"


def _names(document: BudgetDocument) -> Iterator[str]:
    names = [declared.name for declared in document.releases]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"two releases are called {name}"
    for declared in document.releases:
        if declared.publications > document.rounds:
            yield f"{declared.name} is published {declared.publications} times in {document.rounds} rounds"


def _noise_against_event(document: BudgetDocument) -> Iterator[str]:
    """No release with other noise than priced, and none published more often than priced.

    Each priced value is a slot that holds as many publications as the event repeats it; releases are put
    into slots of exactly their noise, the most frequent first. Of a family only as many need a slot as one unit
    touches; its members have the same noise and frequency (`_families`), so it does not matter which.
    """
    slots, left = _room(document)
    paid: Counter[str] = Counter()
    for declared in sorted(document.releases, key=lambda release: -release.publications):
        family = _family(declared)
        if family is not None:
            paid[family] += 1
            if paid[family] > _TOUCHED:
                continue
        wanted = declared.primitive()
        fitting = [i for i, priced in enumerate(slots) if priced == wanted]
        if isinstance(declared, InTheClear):
            if not fitting:
                yield f"{declared.name} is published in the clear, but the priced event does not say so"
            continue
        roomy = [i for i in fitting if left[i] >= declared.publications]
        if roomy:
            left[roomy[0]] -= declared.publications
        else:
            yield (
                f"{declared.name} with {wanted} published {declared.publications} times"
                " is not covered by the priced event"
            )


def _family(declared: DeclaredRelease) -> str | None:
    return declared.family if isinstance(declared, GaussianNoise | LaplaceNoise) else None


def _families(document: BudgetDocument) -> Iterator[str]:
    """A family is of disjoint sets, so that a *replaced* unit touches two at most; all its members are alike."""
    members: dict[str, list[DeclaredRelease]] = {}
    for declared in document.releases:
        family = _family(declared)
        if family is not None:
            members.setdefault(family, []).append(declared)
    known = document.algorithm == _WITH_FAMILIES
    if members and not (known and document.guarantee.adjacency is Relation.REPLACE_ONE):
        yield "families of disjoint sets are proved for mmd-fedavg and a record that is replaced, and for nothing else"
    for family, own in members.items():
        if len({(one.primitive(), one.publications) for one in own}) > 1:
            yield f"the values of the family {family} differ in their noise or in how often they are published"


def _sampling_against_event(document: BudgetDocument) -> Iterator[str]:
    declared = [declaration.scheme for declaration in document.sampling]
    priced = {leaf.sampling for leaf, _ in _leaves(document) if isinstance(leaf, Sampled)}
    if len(set(declared)) != len(declared):
        yield "one sampling is declared twice"
    for sampling in sorted(priced.symmetric_difference(declared), key=repr):
        yield f"{sampling} is {'priced but not declared' if sampling in priced else 'declared but not priced'}"


def _strategies_against_event(document: BudgetDocument) -> Iterator[str]:
    """Mixed sums are priced only where a unit's rounds lie at least as many rounds apart as are mixed."""
    noisy = [leaf for leaf, _ in _leaves(document) if not isinstance(leaf, NonPrivate)]
    cycles = [leaf.sampling for leaf in noisy if isinstance(leaf, Sampled) and isinstance(leaf.sampling, Cyclic)]
    for declared in document.releases:
        if not isinstance(declared, GaussianNoise) or declared.bands == 1:
            continue
        if len(cycles) < len(noisy) or any(declared.bands > cycle.bands for cycle in cycles):
            yield f"{declared.name} mixes {declared.bands} rounds, which the priced event does not say"


def _sizes_against_event(document: BudgetDocument) -> Iterator[str]:
    """Fewer units than priced mean a larger sampling rate, or more epochs in the same rounds: more privacy loss."""
    smallest, largest = (pick(silo.size for silo in document.data.silos) for pick in (min, max))
    for declaration in document.sampling:
        scheme = declaration.scheme
        if isinstance(scheme, TruncatedPoisson) and scheme.population < largest:
            yield f"a silo of {largest} units is larger than the {scheme.population} the truncation was priced for"
        population = _population(declaration.scheme)
        if population is not None and population > smallest:
            yield f"a silo of {smallest} units is smaller than the {population} the sampling was priced for"


def _price(document: BudgetDocument) -> Iterator[str]:
    first, second = document.accounting.interval, document.accounting.second_opinion
    guarantee = document.guarantee
    match guarantee:
        case NoPrivacyPromised():
            return
        case PrivateGuarantee(epsilon=epsilon):
            if first.upper > epsilon:
                yield f"the certified epsilon {first.upper} exceeds the promised {epsilon}"
            else:
                yield from _discreteness(document, EpsilonDelta(epsilon, guarantee.delta))
        case AsPrintedGuarantee(epsilon=true_epsilon):
            if first.upper > (float("inf") if true_epsilon is None else true_epsilon):
                yield f"the certified epsilon {first.upper} exceeds the stated true one {true_epsilon}"
            elif true_epsilon is not None:
                yield from _discreteness(document, EpsilonDelta(true_epsilon, guarantee.delta))
        case _:
            assert_never(guarantee)
    yield from _renyi(document)
    if second is None:
        yield "a price needs a second opinion"
    elif second.accountant == document.accounting.accountant:
        yield f"both opinions are by {second.accountant}"
    elif not first.agrees_with(second.interval):
        yield "the two accountants contradict each other"


def _renyi(document: BudgetDocument) -> Iterator[str]:
    """A curve that would promise less than the certified lower end was made up."""
    try:
        curve = document.renyi_curve()
    except InvalidInput as wrong:
        yield str(wrong)
        return
    delta, lower = document.accounting.delta, document.accounting.interval.lower
    if curve is not None and delta is not None:
        implied = fixed_total([Spent(Cost(Fraction(0), Fraction(0)), curve)], delta)
        if implied < lower * (1 - _ROUNDING):
            yield f"the Renyi divergences imply epsilon {implied}, below the certified {lower}"


def _discreteness(document: BudgetDocument, promise: EpsilonDelta) -> Iterator[str]:
    """The promise must also cover what the accountants do not see: that published noise is discrete."""
    accounting, needed = document.accounting, combined(declared.slack for declared in document.releases)
    if accounting.search is not None:
        needed = needed.over_tries(accounting.search.tries.mean, DRAW_ERROR)
    stated = accounting.discrete_noise
    if stated.epsilon < needed.epsilon or stated.mass < needed.mass:
        yield f"the slack for discrete noise is at least ({needed.epsilon}, {needed.mass}), not {stated}"
        return
    if accounting.delta is None:
        yield "the price does not say at which delta it holds"
        return
    try:
        continuous = stated.continuous(promise)
    except InvalidInput as nothing_left:
        yield str(nothing_left)
        return
    upper = accounting.interval.upper
    if upper > continuous.epsilon or accounting.delta > continuous.delta:
        yield (
            f"the price ({upper}, {accounting.delta}) leaves less than the slack for discrete noise: "
            f"it may be at most ({continuous.epsilon}, {continuous.delta})"
        )


def _noise_source(document: BudgetDocument) -> Iterator[str]:
    research_source = document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY
    for declared in document.releases:
        if isinstance(declared, InTheClear):
            continue
        if (declared.sampler is NoiseSampler.SEEDED_RESEARCH_ONLY) != research_source:
            yield f"the sampler of {declared.name} does not fit the noise source {document.noise_source.value}"


def _bindings(document: BudgetDocument) -> Iterator[str]:
    """A ledger for all silos or one for each of them; no file of code named twice."""
    named = [bound.silo for bound in document.ledgers]
    if named not in ([], [None]) and sorted(map(str, named)) != sorted(silo.name for silo in document.data.silos):
        yield "ledgers must be one for all silos, or one for each silo"
    files = [code.name for code in document.code]
    for name in sorted({name for name in files if files.count(name) > 1}):
        yield f"the code {name} has two digests"


def _leaves(document: BudgetDocument) -> tuple[tuple[Leaf, int], ...]:
    return tuple(multiplicities(document.accounting.event).items())


def _room(document: BudgetDocument) -> tuple[list[Primitive], list[int]]:
    """The slots of the event and how many publications each holds; whole and begun epochs of one sampling share one."""
    slots: list[Primitive] = []
    left: list[int] = []
    shared: dict[tuple[Sampling, int, Primitive], int] = {}
    for leaf, times in _leaves(document):
        for place, (priced, room) in enumerate(_slots(leaf, times)):
            key = (whole(leaf.sampling), place, priced) if isinstance(leaf, Sampled) else None
            if key is not None and key in shared and isinstance(key[0], RandomAllocation):
                left[shared[key]] += room
                continue
            if key is not None:
                shared[key] = len(slots)
            slots.append(priced)
            left.append(room)
    return slots, left


def _slots(leaf: Leaf, times: int) -> Iterator[tuple[Primitive, int]]:
    match leaf:
        case Gaussian() | Laplace() | RandomizedResponse() | NonPrivate():
            yield leaf, times
        case Together(parts):
            for part in parts:
                yield part, times
        case Sampled(sampling, inner):
            yield from _slots(inner, times * rounds_of(sampling))
        case _:
            assert_never(leaf)


def _population(sampling: Sampling) -> int | None:
    match sampling:
        case Poisson() | RandomAllocation() | TruncatedPoisson() | Cyclic():
            return None
        case FixedSize(population) | ShuffledEpochs(population) | WithReplacement(population):
            return population
        case _:
            assert_never(sampling)

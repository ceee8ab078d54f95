"""What people ask of an accountant, one function each: `sigma`, `epsilon`, `rounds`, `theorems`, `check_theorem`.

All speak of Gaussian noise on batches. A noise multiplier is noise / (norm bound of one unit's contribution); for
replace-attribute it is noise / (largest distance between a record's two contributions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

from calibrate.accountants import registry
from calibrate.errors import InvalidInput, count, positive
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit, Relation
from calibrate.releases import Gaussian, Release, Rounds, Together
from calibrate.sampling import Batch, Cyclic, Sampling, SamplingName, rounds_of, sampling_named
from calibrate.search_cost import price_search
from calibrate.solve import Certificate, bisected, solve_noise, solve_rounds
from calibrate.tries import RandomTries

if TYPE_CHECKING:
    from calibrate.theorems.theorem import Theorem, Verdict

LEAST_NOISE, MOST_NOISE = 0.01, 1e100
MOST_ROUNDS = 10**12
_RATE_PRECISION = 1e-6

Rate = float | str | Fraction
Choice = TypeVar("Choice", bound=Enum)


@dataclass(frozen=True)
class NoisyRounds:
    """Rounds of one or several Gaussian values on batches, for one privacy unit: what is priced here.

    `noise_multipliers` has one entry per value of the same batch; `sampling` is None for the full batch.
    """

    noise_multipliers: tuple[float, ...]
    sampling: Sampling | None
    rounds: int
    unit: PrivacyUnit

    def __post_init__(self) -> None:
        for multiplier in self.noise_multipliers:
            if positive("noise multiplier", multiplier) < LEAST_NOISE:
                rule = f"is below {LEAST_NOISE:g}, which protects no one: epsilon is in the thousands"
                raise InvalidInput("noise_multiplier", multiplier, rule, f"give {LEAST_NOISE:g} or more")
            if multiplier > MOST_NOISE:
                rule = f"is above {MOST_NOISE:g}, where nothing is left of the data"
                raise InvalidInput("noise_multiplier", multiplier, rule, f"give at most {MOST_NOISE:g}")
        if count("rounds", self.rounds) > MOST_ROUNDS:
            raise InvalidInput("rounds", self.rounds, f"exceeds {MOST_ROUNDS:,}", "give fewer rounds")

    @property
    def release(self) -> Rounds:
        """What is priced; of an epoch that is begun, the lower end counts only the batches that were published."""
        return Rounds(self.sampling, self._one_round, self.rounds)

    @property
    def published(self) -> Release:
        """What an upper end is computed from; an epoch that is begun counts whole."""
        return self.release.published

    @property
    def _one_round(self) -> Gaussian | Together:
        values = tuple(Gaussian(multiplier) for multiplier in self.noise_multipliers)
        return values[0] if len(values) == 1 else Together(values)


def sigma(
    *,
    epsilon: float,
    delta: float,
    rounds: int | None = None,
    sampling_rate: Rate | None = None,
    sampling: str | None = None,
    relation: str = "add-remove",
    batch: str | None = None,
    batches: int | None = None,
    epochs: int | None = None,
    batch_limit: int | None = None,
    most_units: int | None = None,
    bands: int | None = None,
    noise_ratios: Sequence[float] = (1.0,),
) -> float:
    """The smallest noise multiplier that is certified to keep (epsilon, delta).

    Arguments:
        epsilon: The promise; at least this private.
        delta: The promise's delta, between 0 and 1.
        rounds: How often noise is published (default 1).
        sampling_rate: Batch / population, as a number or as text "256/7500"; not needed for the full batch.
        sampling: "poisson" (default if there is a rate), "fixed", "shuffled", "with-replacement", "random-allocation"
            (each unit in exactly one of the epoch's batches, at random), "truncated-poisson" (never above a limit),
            "cyclic" (groups of units in a fixed cycle, for banded noise) or "full".
        relation: "add-remove", "replace-one" or "replace-attribute": how two neighbouring data sets differ.
        batch: "secret" or "revealed"; by default secret where an amplification bound is proved.
        batches: Batches per epoch, instead of sampling_rate = 1 / batches. For "cyclic" the batches per cycle, with a
            sampling_rate that is smaller where members of a group are drawn.
        epochs: Epochs, instead of rounds = epochs * batches.
        batch_limit, most_units: For "truncated-poisson": the most units in a batch, and that any party has.
        bands: For "cyclic": rounds over which banded noise is correlated, at most `batches` (docs/theorems/banded.md).
        noise_ratios: Several values of one batch: their multipliers relative to the one that is returned.

    Guarantee: the rounds with noise `sigma * ratio` are (epsilon, delta)-private for the relation
    (docs/theorems/certified-accountant.md).

    >>> round(sigma(epsilon=1, delta=1e-5, sampling_rate=0.01, rounds=1000), 3)
    1.415
    """
    drawn = (sampling_rate, sampling, relation, batch, batches, epochs, batch_limit, most_units, bands)
    asked = noisy_rounds(noise_ratios, rounds, *drawn)
    target = EpsilonDelta(epsilon, delta)
    return solve_noise(asked.published, asked.unit, target, Certificate.UPPER).factor * float(noise_ratios[0])


def epsilon(
    *,
    noise_multiplier: float | Sequence[float],
    delta: float,
    rounds: int | None = None,
    sampling_rate: Rate | None = None,
    sampling: str | None = None,
    relation: str = "add-remove",
    batch: str | None = None,
    batches: int | None = None,
    epochs: int | None = None,
    batch_limit: int | None = None,
    most_units: int | None = None,
    bands: int | None = None,
    tries: float | None = None,
) -> EpsilonInterval:
    """What given noise costs: an interval that is certified to hold the smallest true epsilon at `delta`.

    Arguments:
        noise_multiplier: Noise relative to the contribution bound; several numbers are several values of one batch.
        delta: Between 0 and 1.
        rounds, sampling_rate, sampling, relation, batch, batches, epochs, batch_limit, most_units, bands: see `sigma`.
        tries: The mean of a secret random number of tries of which only the best is published, for a hyper-parameter
            search (calibrate/search_cost.py); without it there is one try.

    Guarantee: the rounds are (upper, delta)-private for the relation; no epsilon below `lower` can be proved from
    this description alone. An epoch that is begun counts whole for the upper end.

    >>> interval = epsilon(noise_multiplier=1.0, sampling_rate=0.01, rounds=1000, delta=1e-5)
    >>> round(interval.lower, 3), round(interval.upper, 3)
    (1.828, 1.828)
    """
    multipliers = (noise_multiplier,) if isinstance(noise_multiplier, (int, float)) else tuple(noise_multiplier)
    drawn = (sampling_rate, sampling, relation, batch, batches, epochs, batch_limit, most_units, bands)
    asked = noisy_rounds(multipliers, rounds, *drawn)
    if tries is not None:
        return price_search(asked.published, asked.unit, delta, RandomTries.with_mean(tries))
    return price(asked, delta)[0]


def rounds(
    *,
    epsilon: float,
    delta: float,
    noise_multiplier: float | Sequence[float],
    sampling_rate: Rate | None = None,
    sampling: str | None = None,
    relation: str = "add-remove",
    batch: str | None = None,
    batches: int | None = None,
    batch_limit: int | None = None,
    most_units: int | None = None,
    bands: int | None = None,
) -> int:
    """The largest number of rounds found that is certified to keep (epsilon, delta) with the given noise.

    Arguments:
        epsilon, delta: The promise.
        noise_multiplier: Noise relative to the contribution bound; several numbers are several values of one batch.
        sampling_rate, sampling, relation, batch, batches, batch_limit, most_units, bands: As for `sigma`.

    Guarantee: this many rounds are (epsilon, delta)-private for the relation. Raises NotCertified if not even one is.

    >>> rounds(epsilon=1, delta=1e-5, noise_multiplier=2.0, sampling_rate=0.01)
    2433
    """
    multipliers = (noise_multiplier,) if isinstance(noise_multiplier, (int, float)) else tuple(noise_multiplier)
    target = EpsilonDelta(epsilon, delta)
    drawn = (sampling_rate, sampling, relation, batch, batches, None, batch_limit, most_units, bands)
    one = noisy_rounds(multipliers, 1, *drawn)
    found = most_rounds(one, target)
    if not found:
        rule = f"costs more than epsilon = {target.epsilon:g} at delta = {target.delta:g} in its first round"
        raise InvalidInput("noise_multiplier", noise_multiplier, rule, "use more noise, or sample less")
    return found


@lru_cache(maxsize=256)
def most_rounds(one: NoisyRounds, target: EpsilonDelta) -> int:
    """The largest number of such rounds, in whole epochs, that keeps the target; 0 if there is none."""
    epoch = 1 if one.sampling is None else rounds_of(one.sampling)
    most = MOST_ROUNDS // epoch
    return epoch * solve_rounds(lambda n: replace(one, rounds=n * epoch).published, one.unit, target, most)


class BatchDrawing(TypedDict, total=False):
    """How each round's batch is drawn, as `sigma` has it."""

    sampling_rate: Rate | None
    sampling: str | None
    relation: str
    batch: str | None
    batches: int | None
    batch_limit: int | None
    most_units: int | None
    bands: int | None


class Solved(StrEnum):
    """The one of four values that was left out, and so was solved for."""

    EPSILON = "epsilon"
    NOISE = "noise-multiplier"
    ROUNDS = "rounds"
    RATE = "sampling-rate"


def solve_missing(
    epsilon: float | None,
    delta: float,
    noise_multipliers: Sequence[float],
    times: int | None,
    **drawn: Unpack[BatchDrawing],
) -> tuple[Solved, float, NoisyRounds]:
    """Which of epsilon, noise multiplier, rounds and Poisson rate was left out, its value, and the rounds with it.

    Rounds are one where another value is left out as well. Epsilon is left to `price`: not a number here.
    """
    if epsilon is None:
        described = noisy_rounds(noise_multipliers, times, **drawn)
        return Solved.EPSILON, math.nan, described
    if not noise_multipliers:
        noise = sigma(epsilon=epsilon, delta=delta, rounds=times, **drawn)
        return Solved.NOISE, noise, noisy_rounds((noise,), times, **drawn)
    if times is None:
        most = rounds(epsilon=epsilon, delta=delta, noise_multiplier=noise_multipliers, **drawn)
        return Solved.ROUNDS, most, noisy_rounds(noise_multipliers, most, **drawn)
    if drawn.get("sampling_rate") is not None or drawn.get("batches") is not None:
        raise InvalidInput("epsilon", epsilon, "leaves nothing to solve for", "leave out one of the values")
    if drawn.get("sampling") not in (None, SamplingName.POISSON):
        raise InvalidInput("sampling_rate", None, "is solved for Poisson batches only", "give the rate")
    target = EpsilonDelta(epsilon, delta)

    def at(rate: float) -> NoisyRounds:
        changed = drawn.copy()
        changed["sampling_rate"], changed["sampling"] = rate, SamplingName.POISSON
        return noisy_rounds(noise_multipliers, times, **changed)

    def within(rate: float) -> bool:
        return price(at(rate), target.delta)[0].upper <= target.epsilon

    largest = 1.0
    if not within(largest):
        if not within(_RATE_PRECISION):
            rule = f"costs more than epsilon = {target.epsilon:g} already at a sampling rate of {_RATE_PRECISION:g}"
            raise InvalidInput("noise_multiplier", tuple(noise_multipliers), rule, "use more noise")
        largest = bisected(within, _RATE_PRECISION, 1.0, _RATE_PRECISION)[0]
    return Solved.RATE, largest, at(largest)


def choose_bands(*, epsilon: float, delta: float, batches: int, rounds: int) -> int:
    """The number of bands, and of groups, with the smallest predicted error of running sums at (epsilon, delta).

    Arguments:
        epsilon, delta: The promise.
        batches: One over the share of the data in a batch.
        rounds: How often noise is published.

    With b bands there are b groups, of which each member joins with probability b / batches; 1 is independent noise on
    Poisson batches. Public numbers alone decide, so choosing costs nothing (docs/theorems/banded.md, equation 6).

    >>> choose_bands(epsilon=8, delta=1e-5, batches=4, rounds=4)
    4
    """
    from calibrate.banded import banded_strategy, prefix_error  # 0.4 s: an optimiser

    def error(bands: int) -> float:
        rate, drawn = f"1/{batches}", SamplingName.CYCLIC.value
        z = sigma(
            epsilon=epsilon, delta=delta, rounds=rounds, sampling=drawn, batches=bands, sampling_rate=rate, bands=bands
        )
        return z**2 * prefix_error(banded_strategy(bands, rounds), min(rounds, 20_000))

    tried = {min(batches, round(2 ** (power / 2))) for power in range(2 * count("batches", batches).bit_length() + 1)}
    return min(sorted(tried), key=error)


def theorems() -> tuple[Theorem, ...]:
    """Every claim of the catalogue; `.judge()` of one computes its verdict at its paper's own setting.

    >>> "steffle.theorem-3.3" in [theorem.id for theorem in theorems()]
    True
    """
    from calibrate.theorems.catalogue import CATALOGUE  # 0.1 s, which no other question needs

    return CATALOGUE


def check_theorem(id: str, **settings: object) -> Verdict:
    """The verdict on one published claim, computed.

    Arguments:
        id: The claim's name in the catalogue, such as "steffle.theorem-3.3".
        settings: Parameters of the claim that differ from the paper's own setting.

    >>> check_theorem("steffle.theorem-3.3", epsilon=1).outcome.value
    'fails'
    """
    from calibrate.theorems.catalogue import theorem_named  # 0.1 s, which no other question needs

    return theorem_named(id).judge(settings)


def price(asked: NoisyRounds, delta: float, accountant: str = "best") -> tuple[EpsilonInterval, str]:
    """The interval of epsilon at `delta` and the accountant that computed it: the named one, or the best."""
    if accountant == "best":
        found = registry.best_epsilon(asked.release, asked.unit, delta)
    else:
        found = registry.price(registry.AccountantName(accountant), asked.release, asked.unit, delta)
    return found.interval, found.accountant_name.value


def noisy_rounds(
    noise_multipliers: Sequence[float],
    rounds: int | None = None,
    sampling_rate: Rate | None = None,
    sampling: str | None = None,
    relation: str = "add-remove",
    batch: str | None = None,
    batches: int | None = None,
    epochs: int | None = None,
    batch_limit: int | None = None,
    most_units: int | None = None,
    bands: int | None = None,
) -> NoisyRounds:
    """The rounds that the arguments describe (see `sigma`), or a refusal that names the argument and the remedy."""
    if not noise_multipliers:
        raise InvalidInput("noise_multiplier", (), "must have at least one value", "give one number")
    cyclic = sampling == SamplingName.CYCLIC
    if bands is not None and not cyclic:
        raise InvalidInput("bands", bands, "is only for sampling cyclic", "name it, or drop bands")
    if batches is not None:
        if sampling_rate is not None and not cyclic:
            raise InvalidInput("batches", batches, "contradicts sampling_rate", "give one of the two")
        whole = Fraction(1, count("batches", batches))
        sampling_rate = whole if sampling_rate is None else sampling_rate
    if epochs is not None:
        if rounds is not None or batches is None:
            raise InvalidInput("epochs", epochs, "needs batches and no rounds", "give batches and epochs, or rounds")
        rounds = count("epochs", epochs) * batches
    default = SamplingName.FULL if sampling_rate is None else SamplingName.POISSON
    name, neighbours = _choice(SamplingName, "sampling", sampling or default), _choice(Relation, "relation", relation)
    for argument, value in (("batch_limit", batch_limit), ("most_units", most_units)):
        if (value is not None) != (name is SamplingName.TRUNCATED_POISSON):
            rule = "is needed by" if value is None else "is only for"
            raise InvalidInput(argument, value, f"{rule} sampling truncated-poisson", "give both or none")
    known = _batch(batch, name, neighbours)
    if name is SamplingName.CYCLIC:
        drawn: Sampling | None = _cyclic(sampling_rate, batches, bands, known)
    else:
        drawn = _sampling(name, sampling_rate, known, batch_limit, most_units)
    return NoisyRounds(tuple(noise_multipliers), drawn, 1 if rounds is None else rounds, PrivacyUnit.of(neighbours))


def _cyclic(sampling_rate: Rate | None, batches: int | None, bands: int | None, batch: Batch) -> Cyclic:
    """A cycle of this many batches; `sampling_rate` is that of the whole data, as everywhere."""
    if sampling_rate is None or batches is None:
        raise InvalidInput("batches", batches, "is needed for sampling cyclic", "give the batches per cycle")
    size, population = _ratio(sampling_rate)
    within = Fraction(size, population) * batches
    if not 0 < within <= 1:
        rule = "must be positive and at most one over the batches per cycle"
        raise InvalidInput("sampling_rate", sampling_rate, rule, "drop it: each unit once per cycle")
    return Cyclic(batches, float(within), 1 if bands is None else bands, batch)


def _choice(kind: type[Choice], argument: str, value: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(argument, value, "is not known", f"use {', '.join(each.value for each in kind)}") from None


def _batch(batch: str | None, sampling: SamplingName, relation: Relation) -> Batch:
    if batch is not None:
        return _choice(Batch, "batch", batch)
    if sampling is SamplingName.CYCLIC:
        return Batch.SECRET
    if sampling is SamplingName.RANDOM_ALLOCATION:
        amplified = relation is Relation.ADD_REMOVE
    else:
        sampled = sampling in (SamplingName.POISSON, SamplingName.FIXED, SamplingName.TRUNCATED_POISSON)
        amplified = sampled and relation is not Relation.REPLACE_ATTRIBUTE
    return Batch.SECRET if amplified else Batch.REVEALED


def _sampling(
    name: SamplingName, rate: Rate | None, batch: Batch, batch_limit: int | None, most_units: int | None
) -> Sampling | None:
    """The sampling of that name, if the rate says all that it needs."""
    size = population = 1
    if name is SamplingName.FULL:
        if rate is not None and len(set(_ratio(rate))) != 1:
            raise InvalidInput("sampling_rate", rate, "contradicts sampling full", "drop it, or name a sampling")
    elif rate is None:
        raise InvalidInput("sampling_rate", rate, f"is needed for sampling {name}", "give batch / population")
    else:
        size, population = _ratio(rate)
        _check_rate(name, rate, size, population)
    return sampling_named(
        name,
        batch,
        rate=size / population,
        population=population if most_units is None else most_units,
        size=size,
        batches=population,
        limit=batch_limit,
    )


def _check_rate(name: SamplingName, rate: Rate, size: int, population: int) -> None:
    """Refuse a rate that leaves open what is drawn; `size` and `population` are what it spells."""
    if not 0 < size <= population:
        raise InvalidInput("sampling_rate", rate, "must be in (0, 1]", "give a fraction such as 0.01 or 256/7500")
    if name is SamplingName.WITH_REPLACEMENT and _is_decimal(rate):
        rule = "is a decimal, but draws with replacement need both numbers"
        raise InvalidInput("sampling_rate", rate, rule, "give draws/population, such as 256/7500")
    if name is SamplingName.RANDOM_ALLOCATION and (_is_decimal(rate) or size != 1):
        rule = "must be one over the batches per epoch, as a fraction"
        raise InvalidInput("sampling_rate", rate, rule, "give 1/30 for epochs of 30 batches, or batches=30")
    # 0.3333 of the data would be four batches per epoch, the last of them nearly empty, where three are meant: fewer
    # epochs would be charged than are walked through.
    if name is SamplingName.SHUFFLED and _is_decimal(rate) and population % size:
        rule = f"is a decimal that does not divide an epoch into whole batches ({population / size:.6g} of them)"
        nearest = max(1, population // size)
        raise InvalidInput("sampling_rate", rate, rule, f"give batch/population, such as 256/7500, or 1/{nearest}")


def _is_decimal(rate: Rate) -> bool:
    return isinstance(rate, float) or (isinstance(rate, str) and "/" not in rate)


def _ratio(rate: Rate) -> tuple[int, int]:
    """Batch and population as given in "256/7500", or a decimal as the fraction that it spells."""
    try:
        if isinstance(rate, str) and "/" in rate:
            size, population = (int(part) for part in rate.split("/"))
            return size, population
        if not 0 < float(rate) <= 1:  # before any exact arithmetic: 1e-999999999 would fill the memory
            return 0, 1
        return Fraction(rate if isinstance(rate, Fraction) else str(rate)).as_integer_ratio()
    except ValueError:
        raise InvalidInput("sampling_rate", rate, "is not a number", "give 0.01 or 256/7500") from None

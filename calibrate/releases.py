"""The frozen algebra of what is published, and its JSON.

A release says *what leaves the silo*; it holds no data and no price. The algebra is closed: every
consumer matches on all of it and ends in `assert_never`.

Scale convention. `Gaussian.noise_multiplier` and `Laplace.scale` are relative to the **contribution
bound** of one unit, stated once per relation:

* add-remove, replace-one: the largest norm of one unit's contribution. Adding a unit moves the sum by at
  most 1 bound; replacing one moves it by at most 2, and the accountants charge those 2.
* replace-attribute: the largest distance between the two contributions of one record.

A manifest embeds what was priced, not only the price, so that anyone can recompute epsilon from the signed
bytes. Encoding and decoding are inverse to each other (tested as a law); decoding is strict: unknown kinds,
missing or additional keys and out-of-range numbers are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, assert_never

from calibrate.errors import InvalidInput, count, positive
from calibrate.sampling import (
    Batch,
    Cyclic,
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
)

if TYPE_CHECKING:
    from calibrate.manifest.strict_json import Json

MOST_MISSING = 2.0**-30
"""How far a signed column of a banded strategy may fall short of norm 1."""
MOST_BANDS = 1024


def check_column(column: tuple[float, ...]) -> tuple[float, ...]:
    """The column, if it can be signed: positive at its head, of norm at most 1 and hardly less, in exact arithmetic."""
    squares = sum((Fraction(value) ** 2 for value in column), Fraction(0))
    if not column or not column[0] > 0 or not (1 - Fraction(MOST_MISSING)) ** 2 <= squares <= 1:
        raise InvalidInput(
            "strategy",
            f"{len(column)} coefficients",
            "must begin with a positive number and have norm 1, not above",
            "use calibrate.banded.banded_strategy",
        )
    return column


@dataclass(frozen=True)
class Gaussian:
    """A vector with iid Gaussian noise of standard deviation `noise_multiplier` times the L2 bound."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        positive("noise multiplier", self.noise_multiplier)


@dataclass(frozen=True)
class Laplace:
    """A vector with iid Laplace noise of scale `scale` times the L1 bound."""

    scale: float

    def __post_init__(self) -> None:
        positive("Laplace scale", self.scale)


@dataclass(frozen=True)
class RandomizedResponse:
    """One category of `categories`, kept with probability e^eps / (e^eps + categories - 1)."""

    epsilon: float
    categories: int

    def __post_init__(self) -> None:
        positive("randomised-response epsilon", self.epsilon)
        count("categories", self.categories, least=2)


@dataclass(frozen=True)
class NonPrivate:
    """Published without any protection of the unit, and why that is claimed to be acceptable.

    It costs nothing only when `depends_on_unit` is false; otherwise the price is infinite.
    """

    why: str
    depends_on_unit: bool

    def __post_init__(self) -> None:
        if not self.why.strip():
            raise InvalidInput("why", self.why, "must say why this is published in the clear", "write one sentence")


@dataclass(frozen=True)
class Together:
    """Several noisy values of one and the same batch."""

    releases: tuple[Gaussian | Laplace, ...]

    def __post_init__(self) -> None:
        _check_tuple("releases", self.releases)


@dataclass(frozen=True)
class Sampled:
    """A release computed on a sampled batch (for shuffled epochs: on each batch of one epoch)."""

    sampling: Sampling
    release: Gaussian | Laplace | Together


@dataclass(frozen=True)
class Repeated:
    release: Release
    times: int

    def __post_init__(self) -> None:
        count("times", self.times)


@dataclass(frozen=True)
class InSequence:
    releases: tuple[Release, ...]

    def __post_init__(self) -> None:
        _check_tuple("releases", self.releases)


Leaf = Gaussian | Laplace | RandomizedResponse | NonPrivate | Together | Sampled
"""What an accountant prices once; repetition and sequence are applied by the fold, not by accountants."""

Release = Leaf | Repeated | InSequence


def leaves(release: Release, times: int = 1) -> Iterator[tuple[Leaf, int]]:
    """The leaves of a release with their multiplicities, in order."""
    match release:
        case Repeated(inner, n):
            yield from leaves(inner, times * n)
        case InSequence(parts):
            for part in parts:
                yield from leaves(part, times)
        case Gaussian() | Laplace() | RandomizedResponse() | NonPrivate() | Together() | Sampled():
            yield release, times
        case _:
            assert_never(release)


def over_rounds(sampling: Sampling | None, noisy: Gaussian | Laplace | Together, rounds: int) -> Release:
    """`rounds` rounds of `noisy` on batches drawn by `sampling` (None: the full data); a begun epoch counts whole."""
    match sampling:
        case None:
            return Repeated(noisy, rounds)
        case ShuffledEpochs() | Cyclic():
            return Repeated(Sampled(sampling, noisy), sampling.epochs_for(rounds))
        case RandomAllocation(batches, _, batch):  # an epoch that is begun has a price of its own
            whole, begun = divmod(count("rounds", rounds), batches)
            parts: tuple[Release, ...] = (Repeated(Sampled(sampling, noisy), whole),) if whole else ()
            return InSequence((*parts, *((Sampled(RandomAllocation(batches, begun, batch), noisy),) if begun else ())))
        case _:
            return Repeated(Sampled(sampling, noisy), rounds)


def reached_over_rounds(sampling: Sampling | None, noisy: Gaussian | Laplace | Together, rounds: int) -> Release:
    """What those rounds really reach: the first r batches of an epoch are a revealed batch r times as large.

    Guarantee: never costs more than `over_rounds`, and is attained: for revealed batches the unit is among the
    first r batches of a random permutation with probability r * size / population; of mixed sums those count that a
    unit of the first group is mixed into with its whole column.
    """
    if isinstance(sampling, Cyclic) and sampling.bands > 1:
        columns = sampling.whole_columns(rounds)
        # Signed columns have a norm of at least 1 - MOST_MISSING (docs/theorems/banded.md, equation 5).
        almost = _scale_leaf(noisy, 1 + 2 * MOST_MISSING)
        free = NonPrivate("No unit's part was mixed into all of its rounds yet.", depends_on_unit=False)
        return Repeated(Sampled(sampling, almost), columns) if columns else free
    if not isinstance(sampling, ShuffledEpochs):
        return over_rounds(sampling, noisy, rounds)
    whole, begun = divmod(count("rounds", rounds), sampling.batches_per_epoch)
    parts: tuple[Release, ...] = (Repeated(Sampled(sampling, noisy), whole),) if whole else ()
    if begun:
        part = FixedSize(sampling.population, begun * sampling.size, Batch.REVEALED)
        parts = (*parts, Sampled(part, noisy))
    return InSequence(parts)


def multiplicities(release: Release) -> dict[Leaf, int]:
    """How often each distinct leaf is published, whatever the bracketing: the normal form of a release."""
    total: dict[Leaf, int] = {}
    for leaf, times in leaves(release):
        total[leaf] = total.get(leaf, 0) + times
    return total


def scale_noise(release: Release, factor: float) -> Release:
    """The same release with every Gaussian multiplier and every Laplace scale times `factor`.

    Randomised response and what is published in the clear have no noise scale and stay as they are.
    """
    positive("noise factor", factor)
    match release:
        case Repeated(inner, n):
            return Repeated(scale_noise(inner, factor), n)
        case InSequence(parts):
            return InSequence(tuple(scale_noise(part, factor) for part in parts))
        case Gaussian() | Laplace() | Together():
            return _scale_leaf(release, factor)
        case Sampled(sampling, noisy):
            return Sampled(sampling, _scale_leaf(noisy, factor))
        case RandomizedResponse() | NonPrivate():
            return release
        case _:
            assert_never(release)


def _scale_leaf(noisy: Gaussian | Laplace | Together, factor: float) -> Gaussian | Laplace | Together:
    match noisy:
        case Gaussian() | Laplace():
            return _scale_value(noisy, factor)
        case Together(parts):
            return Together(tuple(_scale_value(part, factor) for part in parts))
        case _:
            assert_never(noisy)


def _scale_value(value: Gaussian | Laplace, factor: float) -> Gaussian | Laplace:
    match value:
        case Gaussian(multiplier):
            return Gaussian(multiplier * factor)
        case Laplace(scale):
            return Laplace(scale * factor)
        case _:
            assert_never(value)


def untruncated(release: Release) -> tuple[Release, float]:
    """The release with Poisson batches in place of truncated ones, and the chance that any batch differs, at most.

    Guarantee: for every data set of at most the stated population the two mechanisms, run side by side with the same
    draws and noise, publish the same except with that probability (docs/theorems/truncated-poisson.md, equation 1).
    """
    match release:
        case Repeated(inner, times):
            within, chance = untruncated(inner)
            return Repeated(within, times), times * chance
        case InSequence(parts):
            found = [untruncated(part) for part in parts]
            return InSequence(tuple(part for part, _ in found)), sum(chance for _, chance in found)
        case Sampled(TruncatedPoisson() as sampling, noisy):
            return Sampled(sampling.untruncated, noisy), sampling.overflow
        case _:
            return release, 0.0


def joint_gaussian(release: Gaussian | Together) -> Gaussian | None:
    """The single Gaussian release equivalent to several Gaussian values of one batch.

    Guarantee: scaling value i by 1/z_i turns the tuple into one vector whose sensitivity is at most
    sqrt(sum z_i^-2) under unit noise, so it is one Gaussian release with multiplier
    (sum z_i^-2)^(-1/2); with equality when one unit can move all values at once. None if a value is not Gaussian.
    """
    parts = (release,) if isinstance(release, Gaussian) else release.releases
    inverse_squares = 0.0
    for part in parts:
        if not isinstance(part, Gaussian):
            return None
        inverse_squares += part.noise_multiplier**-2
    return Gaussian(inverse_squares**-0.5)


def _check_tuple(argument: str, value: tuple[object, ...]) -> None:
    if not isinstance(value, tuple) or not value:
        raise InvalidInput(argument, value, "must be a non-empty tuple", "give at least one release, in a tuple")


def encode_release(release: Release) -> dict[str, Json]:
    """The JSON value of a release; `decode_release` is its inverse."""
    match release:
        case Gaussian(multiplier):
            return {"kind": "gaussian", "noiseMultiplier": float(multiplier)}
        case Laplace(scale):
            return {"kind": "laplace", "scale": float(scale)}
        case RandomizedResponse(epsilon, categories):
            return {"kind": "randomized-response", "epsilon": float(epsilon), "categories": int(categories)}
        case NonPrivate(why, depends):
            return {"kind": "non-private", "why": why, "dependsOnUnit": bool(depends)}
        case Together(parts):
            return {"kind": "together", "releases": [encode_release(part) for part in parts]}
        case Sampled(sampling, inner):
            return {"kind": "sampled", "sampling": encode_sampling(sampling), "release": encode_release(inner)}
        case Repeated(inner, times):
            return {"kind": "repeated", "release": encode_release(inner), "times": int(times)}
        case InSequence(parts):
            return {"kind": "in-sequence", "releases": [encode_release(part) for part in parts]}
        case _:
            assert_never(release)


def encode_sampling(sampling: Sampling) -> dict[str, Json]:
    """The JSON value of a sampling; `decode_sampling` is its inverse."""
    match sampling:
        case Poisson(rate, batch):
            return {"scheme": "poisson", "rate": float(rate), "batch": batch.value}
        case FixedSize(population, size, batch):
            return _sized("fixed-size", population, "size", size, batch)
        case ShuffledEpochs(population, size, batch):
            return _sized("shuffled-epochs", population, "size", size, batch)
        case WithReplacement(population, draws, batch):
            return _sized("with-replacement", population, "draws", draws, batch)
        case RandomAllocation(batches, drawn, batch):
            counts: dict[str, Json] = {"batches": int(batches), "drawn": int(drawn)}
            return {"scheme": "random-allocation", **counts, "batch": batch.value}
        case TruncatedPoisson(rate, population, limit, batch):
            sizes: dict[str, Json] = {"population": int(population), "limit": int(limit)}
            return {"scheme": "truncated-poisson", "rate": float(rate), **sizes, "batch": batch.value}
        case Cyclic(groups, rate, bands, batch):
            cycle: dict[str, Json] = {"groups": int(groups), "rate": float(rate), "bands": int(bands)}
            return {"scheme": "cyclic", **cycle, "batch": batch.value}
        case _:
            assert_never(sampling)


def decode_release(value: object) -> Release:
    """The release a JSON value stands for; raises `InvalidInput` for anything `encode_release` cannot write."""
    fields = _object("release", value)
    match fields.get("kind"):
        case "gaussian":
            _exactly(fields, "kind", "noiseMultiplier")
            return Gaussian(_number(fields, "noiseMultiplier"))
        case "laplace":
            _exactly(fields, "kind", "scale")
            return Laplace(_number(fields, "scale"))
        case "randomized-response":
            _exactly(fields, "kind", "epsilon", "categories")
            return RandomizedResponse(_number(fields, "epsilon"), _whole(fields, "categories"))
        case "non-private":
            _exactly(fields, "kind", "why", "dependsOnUnit")
            return NonPrivate(_text(fields, "why"), _truth(fields, "dependsOnUnit"))
        case "together":
            _exactly(fields, "kind", "releases")
            return Together(tuple(_noisy(part) for part in _list(fields, "releases")))
        case "sampled":
            _exactly(fields, "kind", "sampling", "release")
            return Sampled(decode_sampling(fields["sampling"]), _noisy_or_together(fields["release"]))
        case "repeated":
            _exactly(fields, "kind", "release", "times")
            return Repeated(decode_release(fields["release"]), _whole(fields, "times"))
        case "in-sequence":
            _exactly(fields, "kind", "releases")
            return InSequence(tuple(decode_release(part) for part in _list(fields, "releases")))
        case kind:
            raise InvalidInput("kind", kind, "is not a release of the algebra", "use one that privfair writes")


def decode_sampling(value: object) -> Sampling:
    """The sampling a JSON value stands for; raises `InvalidInput` for anything `encode_sampling` cannot write."""
    fields = _object("sampling", value)
    match fields.get("scheme"):
        case "poisson":
            _exactly(fields, "scheme", "rate", "batch")
            return Poisson(_number(fields, "rate"), _batch(fields))
        case "fixed-size":
            _exactly(fields, "scheme", "population", "size", "batch")
            return FixedSize(_whole(fields, "population"), _whole(fields, "size"), _batch(fields))
        case "shuffled-epochs":
            _exactly(fields, "scheme", "population", "size", "batch")
            return ShuffledEpochs(_whole(fields, "population"), _whole(fields, "size"), _batch(fields))
        case "with-replacement":
            _exactly(fields, "scheme", "population", "draws", "batch")
            return WithReplacement(_whole(fields, "population"), _whole(fields, "draws"), _batch(fields))
        case "random-allocation":
            _exactly(fields, "scheme", "batches", "drawn", "batch")
            return RandomAllocation(_whole(fields, "batches"), _whole(fields, "drawn"), _batch(fields))
        case "truncated-poisson":
            _exactly(fields, "scheme", "rate", "population", "limit", "batch")
            sizes = _whole(fields, "population"), _whole(fields, "limit")
            return TruncatedPoisson(_number(fields, "rate"), *sizes, _batch(fields))
        case "cyclic":
            _exactly(fields, "scheme", "groups", "rate", "bands", "batch")
            return Cyclic(_whole(fields, "groups"), _number(fields, "rate"), _whole(fields, "bands"), _batch(fields))
        case scheme:
            raise InvalidInput("scheme", scheme, "is not a known sampling", "use one that privfair writes")


def _sized(scheme: str, population: int, key: str, size: int, batch: Batch) -> dict[str, Json]:
    return {"scheme": scheme, "population": int(population), key: int(size), "batch": batch.value}


def _noisy(value: object) -> Gaussian | Laplace:
    release = decode_release(value)
    if isinstance(release, Gaussian | Laplace):
        return release
    raise InvalidInput("releases", type(release).__name__, "cannot be one value of a batch", "use Gaussian or Laplace")


def _noisy_or_together(value: object) -> Gaussian | Laplace | Together:
    release = decode_release(value)
    if isinstance(release, Gaussian | Laplace | Together):
        return release
    raise InvalidInput("release", type(release).__name__, "cannot be sampled", "use Gaussian, Laplace or Together")


def _object(argument: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InvalidInput(argument, value, "must be a JSON object", "write it as privfair does")
    return value


def _exactly(fields: Mapping[str, object], *names: str) -> None:
    if set(fields) != set(names):
        raise InvalidInput("keys", sorted(fields), f"must be exactly {sorted(names)}", "write them as privfair does")


def _number(fields: Mapping[str, object], name: str) -> float:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(name, value, "must be a number", "write a JSON number, not a text")
    return float(value)


def _whole(fields: Mapping[str, object], name: str) -> int:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInput(name, value, "must be a whole number", "write a JSON integer")
    return value


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise InvalidInput(name, value, "must be a text", "write a JSON string")
    return value


def _truth(fields: Mapping[str, object], name: str) -> bool:
    value = fields[name]
    if not isinstance(value, bool):
        raise InvalidInput(name, value, "must be true or false", "write a JSON truth value")
    return value


def _list(fields: Mapping[str, object], name: str) -> Sequence[object]:
    value = fields[name]
    if not isinstance(value, list | tuple):
        raise InvalidInput(name, value, "must be a list", "write a JSON array")
    return value


def _batch(fields: Mapping[str, object]) -> Batch:
    value = fields["batch"]
    for batch in Batch:
        if value == batch.value:
            return batch
    raise InvalidInput("batch", value, "must be secret or revealed", "state whether the observer knows the batch")

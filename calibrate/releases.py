"""The frozen algebra of what is published, and its JSON.

A release says *what leaves the silo*; it holds no data and no price. The algebra is closed: every
consumer matches on all of it and ends in `assert_never`. `release * 1000` repeats, `first + second` is in sequence,
`noisy.sampled(sampling)` draws batches; what they cost is asked of the release itself and answered in `answers.py`.

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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import cache
from importlib import import_module
from types import UnionType
from typing import TYPE_CHECKING, Any, assert_never, cast, get_args, get_origin, get_type_hints

from calibrate.errors import InvalidInput, count, positive
from calibrate.notebook import Pasteable
from calibrate.privacy_unit import CertifiedInterval, EpsilonInterval, PrivacyUnit, Relation
from calibrate.sampling import SCHEMES, Batch, Cyclic, FixedSize, RandomAllocation, Sampling, ShuffledEpochs, scheme_of

if TYPE_CHECKING:
    from dp_accounting import dp_event

    from calibrate import answers
    from calibrate.manifest.strict_json import Json

MOST_MISSING = 2.0**-30
"""How far a signed column of a banded strategy may fall short of norm 1."""
MOST_BANDS = 1024


def check_column(column: tuple[float, ...]) -> tuple[float, ...]:
    """The column, if it can be signed: positive at its head, of norm at most 1 and barely less, in exact arithmetic."""
    squares = sum((Fraction(value) ** 2 for value in column), Fraction(0))
    if not column or not column[0] > 0 or not (1 - Fraction(MOST_MISSING)) ** 2 <= squares <= 1:
        raise InvalidInput(
            "strategy",
            f"{len(column)} coefficients",
            "must begin with a positive number and have norm 1, not above",
            "use calibrate.banded.banded_strategy",
        )
    return column


class Composable(Pasteable):
    """What every release can do: be composed, and say what it costs.

    Each answer is an interval whose two ends are certified; `relation` says how neighbouring data sets differ
    ("add-remove", "replace-one", "replace-attribute", or a `PrivacyUnit`).
    """

    def __mul__(self, times: int) -> Repeated:
        return Repeated(self._itself, times)

    __rmul__ = __mul__

    def __add__(self, other: Release) -> InSequence:
        if not isinstance(other, Composable):
            return NotImplemented
        parts = (each.releases if isinstance(each, InSequence) else (each,) for each in (self._itself, other))
        return InSequence(tuple(part for several in parts for part in several))

    def epsilon(self, *, delta: float, relation: Neighbours = "add-remove") -> EpsilonInterval:
        """The smallest epsilon at `delta` against the `relation`: an interval that is certified to hold it.

        Guarantee: the release is (upper, delta)-private for the relation; no epsilon below `lower` can be proved from
        this description alone (docs/theorems/certified-accountant.md).
        """
        return self._answers(relation).epsilon(delta)

    def delta(self, *, epsilon: float, relation: Neighbours = "add-remove") -> CertifiedInterval:
        """The smallest delta at `epsilon` (0 or more) against the `relation`: an interval certified to hold it."""
        return self._answers(relation).delta(epsilon)

    def to_dp_event(self) -> dp_event.DpEvent:
        """The event of dp_accounting for this release; raises UnsupportedCombination where there is none."""
        event: dp_event.DpEvent = import_module("calibrate.dp_events").to_dp_event(self._itself)
        return event

    def _answers(self, relation: Neighbours) -> answers.Answers:
        # Imported when a price is asked for: the engine, which only publishes, imports no accountant.
        found: answers.Answers = import_module("calibrate.answers").Answers(self, PrivacyUnit.named(relation))
        return found

    @property
    def _itself(self) -> Release:
        return cast("Release", self)


class OnBatches(Composable):
    """Values with noise on the full data, which may be computed on sampled batches instead."""

    def sampled(self, sampling: Sampling) -> Sampled:
        """The same values computed on a batch drawn by `sampling` (for epochs and cycles: on each of its batches)."""
        return Sampled(sampling, cast("Gaussian | Laplace | Together", self))


@dataclass(frozen=True, repr=False)
class Gaussian(OnBatches):
    """A vector with iid Gaussian noise of standard deviation `noise_multiplier` times the L2 bound."""

    noise_multiplier: float

    def __post_init__(self) -> None:
        positive("noise multiplier", self.noise_multiplier)


@dataclass(frozen=True, repr=False)
class Laplace(OnBatches):
    """A vector with iid Laplace noise of scale `scale` times the L1 bound."""

    scale: float

    def __post_init__(self) -> None:
        positive("Laplace scale", self.scale)


@dataclass(frozen=True, repr=False)
class RandomizedResponse(Composable):
    """One category of `categories`, kept with probability e^eps / (e^eps + categories - 1)."""

    local_epsilon: float = field(metadata={"json": "epsilon"})
    categories: int

    def __post_init__(self) -> None:
        positive("randomised-response epsilon", self.local_epsilon)
        count("categories", self.categories, least=2)


@dataclass(frozen=True, repr=False)
class NonPrivate(Composable):
    """Published without any protection of the unit, and why that is claimed to be acceptable.

    It costs nothing only when `depends_on_unit` is false; otherwise the price is infinite.
    """

    why: str
    depends_on_unit: bool

    def __post_init__(self) -> None:
        if not self.why.strip():
            raise InvalidInput("why", self.why, "must say why this is published in the clear", "write a sentence")


@dataclass(frozen=True, repr=False)
class Together(OnBatches):
    """Several noisy values of one and the same batch."""

    releases: tuple[Gaussian | Laplace, ...]

    def __post_init__(self) -> None:
        _check_tuple("releases", self.releases)


@dataclass(frozen=True, repr=False)
class Sampled(Composable):
    """A release computed on a sampled batch (for epochs and cycles: on each batch of one of them)."""

    sampling: Sampling
    release: Gaussian | Laplace | Together

    def __repr__(self) -> str:
        return f"{self.release!r}.sampled({self.sampling!r})"


@dataclass(frozen=True, repr=False)
class Repeated(Composable):
    release: Release
    times: int

    def __post_init__(self) -> None:
        count("times", self.times)

    def __repr__(self) -> str:
        several = isinstance(self.release, InSequence) and len(self.release.releases) > 1
        return f"({self.release!r}) * {self.times}" if several else f"{self.release!r} * {self.times}"


@dataclass(frozen=True, repr=False)
class InSequence(Composable):
    releases: tuple[Release, ...]

    def __post_init__(self) -> None:
        _check_tuple("releases", self.releases)

    def __repr__(self) -> str:
        if len(self.releases) == 1 or any(isinstance(part, InSequence) for part in self.releases):
            return super().__repr__()
        return " + ".join(map(repr, self.releases))


@dataclass(frozen=True, repr=False)
class Rounds(Composable):
    """`rounds` rounds of `release` on batches drawn by `sampling` (None: the full data), whole epochs or not.

    Its upper end counts an epoch that is begun as a whole one where no smaller price is proved, its lower end only the
    batches that were published.
    """

    sampling: Sampling | None
    release: Gaussian | Laplace | Together
    rounds: int

    def __post_init__(self) -> None:
        count("rounds", self.rounds)

    @property
    def published(self) -> Release:
        """The releases that an upper end is computed from."""
        return over_rounds(self.sampling, self.release, self.rounds)


Leaf = Gaussian | Laplace | RandomizedResponse | NonPrivate | Together | Sampled
"""What an accountant prices once; repetition and sequence are applied by the fold, not by accountants."""

Release = Leaf | Repeated | InSequence | Rounds

Neighbours = str | Relation | PrivacyUnit


def leaves(release: Release, times: int = 1) -> Iterator[tuple[Leaf, int]]:
    """The leaves of a release with their multiplicities, in order."""
    match release:
        case Repeated(inner, n):
            yield from leaves(inner, times * n)
        case InSequence(parts):
            for part in parts:
                yield from leaves(part, times)
        case Rounds():
            yield from leaves(release.published, times)
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
        case RandomAllocation(batches, _, batch):  # an epoch that is begun has a separate price
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


def reached(release: Release) -> Release:
    """The release with only what was published of epochs that are begun: what a lower end is computed from."""
    match release:
        case Repeated(inner, times):
            return Repeated(reached(inner), times)
        case InSequence(parts):
            return InSequence(tuple(reached(part) for part in parts))
        case Rounds(sampling, noisy, rounds):
            return reached_over_rounds(sampling, noisy, rounds)
        case _:
            return release


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
        case Rounds(sampling, noisy, rounds):
            return Rounds(sampling, _scale_leaf(noisy, factor), rounds)
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
    """The JSON value of a release; `decode_release` is its inverse. Rounds are written as what they stand for."""
    if isinstance(release, Rounds):
        return encode_release(release.published)
    return {"kind": _KIND_OF[type(release)], **_encoded(release)}


def encode_sampling(sampling: Sampling) -> dict[str, Json]:
    """The JSON value of a sampling; `decode_sampling` is its inverse."""
    return {"scheme": scheme_of(sampling), **_encoded(sampling)}


def decode_release(value: object) -> Release:
    """The release a JSON value stands for; raises `InvalidInput` for anything `encode_release` cannot write."""
    found: Release = _decoded("release", "kind", KINDS, value)
    return found


def decode_sampling(value: object) -> Sampling:
    """The sampling a JSON value stands for; raises `InvalidInput` for anything `encode_sampling` cannot write."""
    found: Sampling = _decoded("sampling", "scheme", SCHEMES, value)
    return found


KINDS: dict[str, type] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "randomized-response": RandomizedResponse,
    "non-private": NonPrivate,
    "together": Together,
    "sampled": Sampled,
    "repeated": Repeated,
    "in-sequence": InSequence,
}
"""The releases as manifests name them; their JSON is this name and their fields in camelCase."""
_KIND_OF = {kind: name for name, kind in KINDS.items()}


@cache
def _fields_of(kind: type) -> dict[str, tuple[str, Any]]:
    """The fields of a release or a sampling: its own name, the one in JSON, and the type."""
    hints = get_type_hints(kind)
    return {each.metadata.get("json", _camel(each.name)): (each.name, hints[each.name]) for each in fields(kind)}


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _encoded(value: Release | Sampling) -> dict[str, Json]:
    kind: type = type(value)
    return {spelled: _to_json(getattr(value, name), hint) for spelled, (name, hint) in _fields_of(kind).items()}


def _to_json(value: Any, hint: Any) -> Json:
    if hint in (float, int, bool, str):  # whatever a caller gave, a manifest holds plain numbers
        plain: Json = hint(value)
        return plain
    match value:
        case Batch():
            return value.value
        case tuple():
            return [encode_release(part) for part in value]
        case _:
            return encode_sampling(value) if hint == Sampling else encode_release(value)


def _decoded(what: str, tag: str, kinds: Mapping[str, type], value: object) -> Any:
    if not isinstance(value, Mapping):
        raise InvalidInput(what, value, "must be a JSON object", "write it as privfair does")
    name = value.get(tag)
    if not isinstance(name, str) or name not in kinds:
        raise InvalidInput(tag, name, f"is not a {what}", "use one that privfair writes")
    wanted = _fields_of(kinds[name])
    if set(value) != {tag, *wanted}:
        raise InvalidInput("keys", sorted(value), f"must be exactly {sorted((tag, *wanted))}", "add or drop the others")
    given = {own: _from_json(spelled, hint, value[spelled]) for spelled, (own, hint) in wanted.items()}
    return kinds[name](**given)


_PLAIN: dict[type, tuple[type | UnionType, str]] = {
    float: (int | float, "must be a number"),
    int: (int, "must be a whole number"),
    bool: (bool, "must be true or false"),
    str: (str, "must be a text"),
}
"""The types of JSON that a field's type is read from, and the message for any other."""


def _from_json(name: str, hint: Any, value: object) -> object:
    if hint in _PLAIN:
        accepted, rule = _PLAIN[hint]
        if not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool):
            raise InvalidInput(name, value, rule, "write it as privfair does")
        return hint(value)
    if hint is Batch:
        if value not in [batch.value for batch in Batch]:
            raise InvalidInput(name, value, "must be secret or revealed", "state whether the observer knows the batch")
        return Batch(value)
    if hint == Sampling:
        return decode_sampling(value)
    if get_origin(hint) is not tuple:
        return _one_of(name, hint, value)
    if not isinstance(value, list | tuple):
        raise InvalidInput(name, value, "must be a list", "write a JSON array")
    return tuple(_one_of(name, get_args(hint)[0], part) for part in value)


def _one_of(name: str, allowed: UnionType, value: object) -> Release:
    release = decode_release(value)
    if not isinstance(release, allowed):
        kinds = ", ".join(kind.__name__ for kind in get_args(allowed))
        raise InvalidInput(name, type(release).__name__, "cannot stand here", f"use one of {kinds}")
    return release

"""Each named value a silo may publish, and the noise it carries.

`sensitivity` is the contribution bound of one unit (see `calibrate.releases`): the noise multiplier is
relative to it, so the standard deviation is `sigma = noiseMultiplier * sensitivity`. Under replace-one the sum
moves by twice that bound and the accountants charge the 2; it is not folded into `sensitivity`.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator
from pydantic.alias_generators import to_camel

from calibrate.discrete_noise import MOST_NUMBERS, NO_SLACK, ProfileSlack, slack_of_noise
from calibrate.privacy_unit import NoiseKind, PrivacyUnit, Protected, Relation
from calibrate.releases import MOST_BANDS, Gaussian, Laplace, NonPrivate, RandomizedResponse, check_column

# The kinds of value a manifest may hold, each with exactly one spelling.
#
# Texts are printable, because an officer reads them on a terminal: a control or bidirectional character could
# make a page say something other than what was signed. Instants are UTC to the second. Numbers are finite.

_INSTANT = "%Y-%m-%dT%H:%M:%SZ"


class StrictModel(BaseModel):
    """Frozen, no unknown fields, no coercion, no NaN; camelCase in JSON, snake_case in Python."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        alias_generator=to_camel,
        populate_by_name=True,
        hide_input_in_errors=True,
    )


def is_none(value: object) -> bool:
    """For fields that are in a file only where they say something."""
    return value is None


def _printable(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("must be printable, without line breaks or spaces at its ends")
    return text


def instant_from_text(value: object) -> object:
    """The instant of `2030-01-31T12:00:00Z`, the only spelling; other types pass on to the next check."""
    if not isinstance(value, str):
        return value
    try:
        instant = datetime.strptime(value, _INSTANT).replace(tzinfo=UTC)
    except ValueError as broken:
        raise ValueError(f"must be written like 2030-01-31T12:00:00Z, not {value[:40]!r}") from broken
    if instant_to_text(instant) != value:
        raise ValueError(f"must be written like 2030-01-31T12:00:00Z, not {value[:40]!r}")
    return instant


def instant_to_text(value: datetime) -> str:
    """An instant as manifests spell it, to the second and in UTC."""
    return value.strftime(_INSTANT)


def whole_utc_second(value: datetime) -> datetime:
    """The instant in UTC without fractions; a time without zone is refused, because it names no instant."""
    if value.tzinfo is None:
        raise ValueError("must carry a time zone")
    return value.astimezone(UTC).replace(microsecond=0)


Text = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_printable)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,63}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Positive = Annotated[float, Field(gt=0)]
OpenUnit = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=2**53 - 1)]
Instant = Annotated[
    datetime,
    BeforeValidator(instant_from_text),
    AfterValidator(whole_utc_second),
    PlainSerializer(instant_to_text, return_type=str),
]


# What a manifest promises: privacy, a paper's own noise with its true price, or nothing.


class Scope(StrictModel):
    """Whom and what a guarantee speaks of; NIST SP 800-226 asks for each of these in words."""

    unit: Protected
    adjacency: Relation
    scope: Text
    """Who may look at what: for example the server, at everything a silo sends."""
    covered: tuple[Text, ...]
    not_protected: Annotated[tuple[Text, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _unit_fits_adjacency(self) -> Scope:
        self.privacy_unit()
        return self

    def privacy_unit(self) -> PrivacyUnit:
        return PrivacyUnit(self.unit, self.adjacency)


class PrivateGuarantee(Scope):
    """(epsilon, delta) differential privacy for the unit, certified by the embedded accounting.

    Guarantee: for every two neighbouring data sets, each event in what the scope's observer sees is at most
    exp(epsilon) times likelier under one than under the other, up to delta, provided the stated assumptions
    hold.
    """

    kind: Literal["private"] = "private"
    variant: Literal["approximate-dp"] = "approximate-dp"
    epsilon: Positive
    delta: OpenUnit


class AsPrintedGuarantee(Scope):
    """A paper's own noise: what it claims, beside what was computed to be true. Nothing more is promised.

    `epsilon` is the certified true cost; None when no finite epsilon holds.
    """

    kind: Literal["as-printed"] = "as-printed"
    variant: Literal["approximate-dp"] = "approximate-dp"
    epsilon: Positive | None
    delta: OpenUnit
    claimed_epsilon: Positive
    claim: Text
    """Which theorem of which paper claims it."""


class NoPrivacyPromised(Scope):
    """A run without protection, such as a baseline; signed so that it cannot be mistaken for a private one."""

    kind: Literal["no-privacy-promised"] = "no-privacy-promised"
    why: Text


Guarantee = Annotated[PrivateGuarantee | AsPrintedGuarantee | NoPrivacyPromised, Field(discriminator="kind")]


_RELATIVE_ROUNDING = 1e-12
"""sigma and its two factors are doubles; a smaller sigma than this slack explains is less noise than priced."""

Shape = tuple[Annotated[int, Field(ge=0, le=2**53 - 1)], ...]


class NoiseSampler(Enum):
    """Which sampler draws the noise; the gate uses the one named here and no other."""

    DISCRETE_GRID = "discrete-grid"
    """Exact discrete noise on a power-of-two grid, from a stream keyed by the operating system."""
    CATEGORICAL = "categorical"
    """Randomised response, from the same stream."""
    SEEDED_RESEARCH_ONLY = "seeded-research-only"
    """Reproducible floating-point noise: whoever has the seed can subtract it. Protects nobody."""


class NoiseSource(Enum):
    """Where the randomness of all noise comes from: the labels of the engine's noise sources."""

    OPERATING_SYSTEM = "exact-discrete aes-256-ctr os-keyed"
    SEEDED_RESEARCH_ONLY = "UNSAFE-seeded-research-noise numpy-pcg64 floating-point"
    """Reproducible noise; a document that names it promises privacy to nobody, whatever its guarantee says."""


class _Published(StrictModel):
    """What the gate needs to know of every release."""

    name: Name
    publications: Count
    """How often it may be published: at most once per round."""
    shape: Shape | None = None

    @property
    def slack(self) -> ProfileSlack:
        """What discrete noise may add to the price of all publications: nothing, unless noise is drawn on a grid."""
        return NO_SLACK


class Noisy(_Published):
    """Noise on a value that one unit moves by at most `sensitivity`.

    `clip` is the per-unit clipping norm the sensitivity was derived from, where clipping is what bounds it.
    """

    _kind: ClassVar[NoiseKind]
    sensitivity: Positive
    clip: Positive | None = None
    noise_multiplier: Positive
    sampler: NoiseSampler
    family: Name | None = Field(default=None, exclude_if=is_none)
    """Values of one family are of disjoint sets of units: a replaced unit touches at most two, whose price is paid."""

    @property
    def slack(self) -> ProfileSlack:
        """Theorems 3 and 5 of docs/theorems/discrete-noise.md; research noise promises nothing to take it from."""
        if self.sampler is not NoiseSampler.DISCRETE_GRID:
            return NO_SLACK
        numbers = MOST_NUMBERS if self.shape is None else math.prod(self.shape)
        return slack_of_noise(self._kind, numbers, self.publications)


class GaussianNoise(Noisy):
    _kind = NoiseKind.GAUSSIAN
    mechanism: Literal["gaussian"] = "gaussian"
    norm: Literal["L2"] = "L2"
    sigma: Positive
    strategy: Annotated[tuple[float, ...], Field(min_length=2, max_length=MOST_BANDS)] | None = Field(
        default=None, exclude_if=is_none
    )
    """How the sums of rounds in a row are mixed before the noise; None where each stands alone."""

    @model_validator(mode="after")
    def _noise_is_as_priced(self) -> GaussianNoise:
        _check_scale("sigma", self.sigma, self.noise_multiplier, self.sensitivity)
        if self.strategy is not None:
            check_column(self.strategy)
        return self

    @property
    def bands(self) -> int:
        """How many rounds one contribution is mixed into."""
        return 1 if self.strategy is None else len(self.strategy)

    def primitive(self) -> Gaussian:
        """One publication as the priced event must hold it."""
        return Gaussian(self.noise_multiplier)


class LaplaceNoise(Noisy):
    """`noise_multiplier` is the scale of the Laplace law divided by the L1 bound."""

    _kind = NoiseKind.LAPLACE
    mechanism: Literal["laplace"] = "laplace"
    norm: Literal["L1"] = "L1"
    scale: Positive

    @model_validator(mode="after")
    def _noise_is_as_priced(self) -> LaplaceNoise:
        _check_scale("scale", self.scale, self.noise_multiplier, self.sensitivity)
        return self

    def primitive(self) -> Laplace:
        """One publication as the priced event must hold it."""
        return Laplace(self.noise_multiplier)


class RandomizedCategory(_Published):
    """One category per unit, kept with probability e^eps / (e^eps + categories - 1)."""

    mechanism: Literal["randomized-response"] = "randomized-response"
    epsilon: Positive
    categories: Annotated[int, Field(ge=2, le=2**31)]
    sampler: NoiseSampler

    def primitive(self) -> RandomizedResponse:
        """One publication as the priced event must hold it."""
        return RandomizedResponse(self.epsilon, self.categories)


class InTheClear(_Published):
    """Published without noise, with the reason why that is acceptable, or the admission that it is not."""

    mechanism: Literal["none"] = "none"
    why: Text
    depends_on_unit: bool

    def primitive(self) -> NonPrivate:
        """One publication as the priced event must hold it."""
        return NonPrivate(self.why, self.depends_on_unit)


DeclaredRelease = GaussianNoise | LaplaceNoise | RandomizedCategory | InTheClear


def _check_scale(name: str, scale: float, multiplier: float, sensitivity: float) -> None:
    priced = multiplier * sensitivity
    if not abs(scale - priced) <= _RELATIVE_ROUNDING * priced:
        raise ValueError(f"{name} = {scale} is not noiseMultiplier * sensitivity = {priced}")

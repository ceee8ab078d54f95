"""The budget document: the predicate of a signed manifest.

Fields follow NIST SP 800-226 and the registry of differential-privacy deployments: what is promised, which
noise on which release, how batches are drawn and who enforces it, how the price was computed, on which data,
for which plan, until when, and why. `calibrate.manifest.consistency` refuses a document whose parts
contradict one another, so a signature is never put under one.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import Field, PlainSerializer, PlainValidator, model_validator

from calibrate.compose import SignedCurve
from calibrate.discrete_noise import ProfileSlack
from calibrate.errors import InvalidInput
from calibrate.manifest.consistency import contradictions
from calibrate.manifest.mechanism import (
    Count,
    DeclaredRelease,
    Guarantee,
    Instant,
    Name,
    NoiseSampler,
    NoiseSource,
    Nonce,
    OpenUnit,
    Sha256,
    StrictModel,
    Text,
    is_none,
)
from calibrate.manifest.strict_json import Json, NotStrictJson, canonical, digest, in_our_words, parse_object
from calibrate.privacy_unit import EpsilonInterval
from calibrate.releases import Release, decode_release, decode_sampling, encode_release, encode_sampling
from calibrate.sampling import Sampling
from calibrate.tries import RandomTries

PREDICATE_TYPE = "urn:privfair:budget:v2"
"""Names the meaning of the fields below; a change of meaning gets a new version, never the same one."""


def _as_release(value: object) -> object:
    """A release from JSON, or from Python through JSON, so that both hold plain numbers only."""
    return decode_release(encode_release(value) if isinstance(value, Release) else value)


def _as_sampling(value: object) -> object:
    return decode_sampling(encode_sampling(value) if isinstance(value, Sampling) else value)


_Fields = dict[str, object]
Event = Annotated[Release, PlainValidator(_as_release), PlainSerializer(encode_release, return_type=_Fields)]
Scheme = Annotated[Sampling, PlainValidator(_as_sampling), PlainSerializer(encode_sampling, return_type=_Fields)]


class SamplingDeclaration(StrictModel):
    """How batches are drawn, and whether someone makes sure of it.

    With `assumption_enforced` false the price rests on the word of those who train.
    """

    scheme: Scheme
    assumption_enforced: bool
    enforced_by: Text


def _as_interval(value: object) -> EpsilonInterval:
    """An interval from Python or from JSON, where null stands for infinity, which JSON cannot write."""
    if not isinstance(value, EpsilonInterval):
        lower, upper = _numbers(value, "lower", "upper")
        return EpsilonInterval(math.inf if lower is None else lower, math.inf if upper is None else upper)
    return EpsilonInterval(float(value.lower), float(value.upper))


def _interval_to_json(interval: EpsilonInterval) -> dict[str, float | None]:
    ends = {"lower": interval.lower, "upper": interval.upper}
    return {name: None if end == math.inf else end for name, end in ends.items()}


def _as_slack(value: object) -> ProfileSlack:
    if isinstance(value, ProfileSlack):
        return value
    epsilon, mass = _numbers(value, "epsilon", "mass")
    if epsilon is None or mass is None:
        raise ValueError("must be finite")
    return ProfileSlack(epsilon, mass)


def _numbers(value: object, *names: str) -> list[float | None]:
    if not isinstance(value, Mapping) or set(value) != set(names):
        raise ValueError(f"must have exactly the fields {' and '.join(names)}")
    found = [value[name] for name in names]
    if any(isinstance(number, bool) or not isinstance(number, int | float | None) for number in found):
        raise ValueError(f"{' and '.join(names)} must be numbers")
    return [None if number is None else float(number) for number in found]


Enclosure = Annotated[
    EpsilonInterval, PlainValidator(_as_interval), PlainSerializer(_interval_to_json, return_type=_Fields)
]
_Declared = Annotated[DeclaredRelease, Field(discriminator="mechanism")]
Slack = Annotated[ProfileSlack, PlainValidator(_as_slack), PlainSerializer(asdict, return_type=dict[str, float])]


RenyiPoints = Annotated[
    tuple[tuple[Annotated[float, Field(gt=1)], Annotated[float, Field(ge=0)]], ...], Field(min_length=1, max_length=64)
]


class Opinion(StrictModel):
    """One accountant's certified price of the whole event."""

    accountant: Text
    library: Text
    version: Text
    interval: Enclosure


class SearchTerms(StrictModel):
    """The law of the number of tries of a search (calibrate/tries.py, equation 1), as it was priced."""

    gamma: OpenUnit
    shape: Annotated[float, Field(ge=0, le=10)]

    @property
    def tries(self) -> RandomTries:
        return RandomTries(self.gamma, self.shape)


class Accounting(Opinion):
    """The price, what exactly was priced, and a second accountant's independent price of the same event.

    The intervals hold at `delta`, a little less than the promised one: the rest pays for noise being discrete.
    """

    event: Event
    delta: OpenUnit | None
    discrete_noise: Slack
    """How much dearer discrete noise may be than the continuous noise that was priced."""
    assumptions: tuple[Text, ...]
    second_opinion: Opinion | None
    search: SearchTerms | None = Field(default=None, exclude_if=is_none)
    """Where the best of a random number of tries of the event is published; None for a single run."""
    renyi: RenyiPoints | None = Field(default=None, exclude_if=is_none)
    """Renyi divergences (order, upper bound) of the event, which totals are kept by; None in documents without."""


class SiloSize(StrictModel):
    """One party's data as the price assumes it; `size` counts protected units: records, or users.

    Under add-remove it is a public lower bound of their number, because the exact number tells who is in the data;
    under the other relations, and where nothing is promised, it is their number.
    """

    name: Text
    size: Count


class DataBinding(StrictModel):
    """Which data the budget is for: another silo, another size or another schema needs another budget."""

    silos: Annotated[tuple[SiloSize, ...], Field(min_length=1, max_length=10_000)]
    schema_digest: Sha256

    @model_validator(mode="after")
    def _names_are_unique(self) -> DataBinding:
        if len({silo.name for silo in self.silos}) != len(self.silos):
            raise ValueError("two silos have the same name")
        return self

    @classmethod
    def of(cls, schema_digest: str, silos: Iterable[tuple[str, int]]) -> DataBinding:
        """The binding of named sizes; the schema digest may carry its `sha256:` prefix."""
        with in_our_words("data"):
            return cls(
                silos=tuple(SiloSize(name=name, size=size) for name, size in silos),
                schema_digest=schema_digest.removeprefix("sha256:"),
            )

    def digest(self) -> str:
        return digest(self.model_dump(mode="json", by_alias=True))


VALID_DAYS = 90
"""How long a budget is valid by default."""


class Validity(StrictModel):
    issued_at: Instant
    not_before: Instant
    not_after: Instant

    @model_validator(mode="after")
    def _is_a_window(self) -> Validity:
        if not self.not_before < self.not_after or self.issued_at > self.not_after:
            raise ValueError("notBefore must lie before notAfter, and issuedAt not after it")
        return self


Parameter = bool | int | float | Text | tuple[float, ...] | tuple[Text, ...] | None
"""A parameter of a plan as JSON holds it."""


_Part = Annotated[Text, Field(max_length=60, pattern=r"^[^/]+$")]
_MARKS_OF_NAMES = frozenset(" .,-_()&'+:#@")
_SHOWN_MARKS = "".join(sorted(_MARKS_OF_NAMES)).strip()
_WRITTEN_TOGETHER = ({"CJK", "HIRAGANA", "KATAKANA"}, {"CJK", "HANGUL"}, {"CJK", "BOPOMOFO"})
"""Scripts that one name may mix, by the first word of their letters' Unicode names."""
_WITHOUT_MARKS = {"LATIN", "GREEK", "CYRILLIC"}
"""Scripts whose accented letters are single characters in NFKC; others need combining marks."""
_SEEN_AS = str.maketrans(
    "\u0430\u0435\u0456\u0458\u043a\u043c\u043e\u0440\u0441\u0442\u0443\u0445\u0455\u0501\u051b\u0432\u043d\u04bb"
    "\u03b1\u03b2\u03b5\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4\u03c5\u03c7\u0131i1|0 _.",
    "aeljkmopctyxsdqbhhabelkvoptuxllllo---",
)
"""Letters of other scripts, digits and separators that are easily taken for another character."""


def _is_safe(one: str) -> bool:
    return one in _MARKS_OF_NAMES or one.isalpha() or (one.isascii() and one.isdigit())


def seen_as(label: str) -> str:
    """One text for all labels that a reader could take for one another."""
    plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", label).casefold())
    return "".join(letter for letter in plain if not unicodedata.combining(letter)).translate(_SEEN_AS)


class DataIdentity(StrictModel):
    """Which data set the custodian says this is, whatever its size today: what total budgets are kept for."""

    name: _Part
    custodian: _Part
    version: _Part

    @property
    def label(self) -> str:
        """What a ledger calls this data set: two data sets have the same label only if all three parts agree."""
        return f"{self.custodian}/{self.name}/{self.version}"

    def require_safe(self) -> None:
        """Refuse a name that can look like another one: not NFKC, several scripts, or odd characters."""
        for part, text in self:
            scripts = {unicodedata.name(one, "?").partition(" ")[0].split("-")[0] for one in text if one.isalpha()}
            marks = "" if scripts & _WITHOUT_MARKS else "M"
            odd = [one for one in text if not _is_safe(one) and unicodedata.category(one)[0] != marks]
            rule = None
            if text != unicodedata.normalize("NFKC", text) or text != " ".join(text.split()):
                rule = "is not in Unicode's normal form NFKC with single spaces"
            elif odd:
                rule = f"has {odd[0]!a}, which is neither a letter nor a digit nor one of {_SHOWN_MARKS}"
            elif len(scripts) > 1 and not any(scripts <= together for together in _WRITTEN_TOGETHER):
                rule = f"mixes the scripts {' and '.join(sorted(scripts))}, so that it can look like another name"
            if rule is not None:
                raise InvalidInput(
                    f"[data.identity] {part}", ascii(text), rule, "write it in the letters of one script"
                )


class LedgerBinding(StrictModel):
    """The one ledger in which this budget may be claimed: for all silos, or for the silo that is named."""

    ledger: Sha256
    silo: Text | None = None


class OwnCode(StrictModel):
    """A Python file of the user that sees records; only these very bytes may be run under the budget."""

    name: Text
    sha256: Sha256


class BudgetDocument(StrictModel):
    """Everything an engine needs to publish under a budget, and everything a reader needs to judge it."""

    algorithm: Name
    parameters: Annotated[dict[Name, Parameter], Field(max_length=64)]
    """The plan's own parameters, by name: what the engine reads, so that no second place can decide a sensitivity."""
    guarantee: Guarantee
    releases: Annotated[tuple[_Declared, ...], Field(min_length=1, max_length=256)]
    rounds: Count
    sampling: Annotated[tuple[SamplingDeclaration, ...], Field(max_length=256)]
    accounting: Accounting
    data: DataBinding
    config_digest: Sha256
    noise_source: NoiseSource
    nonce: Nonce
    """Single use: the ledger accepts one claim per nonce, ever."""
    validity: Validity
    dataset: DataIdentity | None
    """None if no one declared one; then each binding of silos and sizes is a separate data set."""
    ledgers: Annotated[tuple[LedgerBinding, ...], Field(max_length=10_000)]
    """One for all silos, or one for each; empty if the budget is not bound, and may be claimed in any ledger."""
    code: Annotated[tuple[OwnCode, ...], Field(max_length=64)]
    justification: Text
    retention: Count | None = Field(default=None, exclude_if=is_none)
    """The transcript keeps every so many steps in full and the rest by digests; None keeps every value."""
    witness: Sha256 | None = Field(default=None, exclude_if=is_none)
    """Id of the key that countersigns each block of charges before its noise is drawn; None if no one does."""

    @model_validator(mode="after")
    def _parts_agree(self) -> BudgetDocument:
        found = contradictions(self)
        if found:
            raise ValueError("; ".join(found))
        return self

    def release(self, name: str) -> DeclaredRelease:
        """The declared release of that name; raises `InvalidInput` if the document declares none."""
        for declared in self.releases:
            if declared.name == name:
                return declared
        known = ", ".join(declared.name for declared in self.releases)
        raise InvalidInput("release", name, "is not declared in the manifest", f"publish one of: {known}")

    @property
    def retention_text(self) -> str | None:
        """What the transcript keeps, in words; None where it keeps every value."""
        if self.retention is None:
            return None
        return (
            f"Of every {self.retention} steps one is kept in full, and the digest of every value: what the other steps "
            "published can't be looked at again after a checkpoint. Bounds and grid are checked as it is published."
        )

    def code_digests(self) -> dict[str, str]:
        """The signed SHA-256 of each file of the user's code."""
        return {code.name: code.sha256 for code in self.code}

    def renyi_curve(self) -> SignedCurve | None:
        """What a Renyi filter adds up for this budget; None where the document does not state it."""
        points = self.accounting.renyi
        return None if points is None else SignedCurve(points, self.accounting.discrete_noise)

    def to_json(self) -> dict[str, Json]:
        value: dict[str, Json] = self.model_dump(mode="json", by_alias=True)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> BudgetDocument:
        """The document of a JSON object; raises pydantic's `ValidationError`, or `ValueError` if another
        spelling of the same document was given."""
        text = canonical(value)
        document = cls.model_validate_json(text)
        if canonical(document.to_json()) != text:
            raise ValueError("the fields are not spelled as privfair writes them")
        return document


# The digest that ties a manifest to the plan it was signed for.
#
# The engine computes it from what it is about to run, the issuer from what was priced; no plan class is needed
# for it.


NO_PLAN_FILE = (
    "No plan file was given: the digest of the configuration is the SHA-256 of the algorithm's name and its "
    "parameters in canonical JSON, and code of the user's own is bound only where its digest is listed."
)


def plan_digest(algorithm: str, parameters: Mapping[str, Json]) -> str:
    """SHA-256 of the algorithm's name and all of its parameters, in canonical JSON."""
    try:
        return digest({"algorithm": algorithm, "parameters": dict(parameters)})
    except NotStrictJson as broken:
        raise InvalidInput("parameters", parameters, str(broken), "use plain finite values") from broken


# The in-toto Statement v1 around a budget document: what is signed, and what it is about.
#
# Its two subjects are the plan and the data, by digest, so that generic in-toto tools can find the budget for
# a plan without understanding the predicate. Both digests are in the document as well and must agree.

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PLAN_SUBJECT = "plan"
DATA_SUBJECT = "data-binding"


@dataclass(frozen=True)
class Statement:
    """A statement taken apart; neither its version nor its predicate has been looked at yet."""

    statement_type: str
    predicate_type: str
    subjects: Json
    predicate: dict[str, Json]


def statement_bytes(document: BudgetDocument) -> bytes:
    """The canonical bytes to be signed for a document."""
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": expected_subjects(document),
            "predicateType": PREDICATE_TYPE,
            "predicate": document.to_json(),
        }
    )


def expected_subjects(document: BudgetDocument) -> list[Json]:
    """The subjects a document must have, recomputed from what it says."""
    return [
        {"name": PLAN_SUBJECT, "digest": {"sha256": document.config_digest}},
        {"name": DATA_SUBJECT, "digest": {"sha256": document.data.digest()}},
    ]


def read_statement(payload: bytes) -> Statement:
    """The parts of a statement; raises `NotStrictJson` unless it is canonical and has exactly its four fields."""
    fields = parse_object(payload)
    if canonical(fields) != payload:
        raise NotStrictJson("the statement is not in the canonical spelling of RFC 8785")
    if set(fields) != {"_type", "subject", "predicateType", "predicate"}:
        raise NotStrictJson("a statement has exactly the fields _type, subject, predicateType, predicate")
    statement_type, predicate_type = fields["_type"], fields["predicateType"]
    predicate = fields["predicate"]
    if not isinstance(statement_type, str) or not isinstance(predicate_type, str):
        raise NotStrictJson("_type and predicateType must be texts")
    if not isinstance(predicate, dict):
        raise NotStrictJson("the predicate must be an object")
    return Statement(statement_type, predicate_type, fields["subject"], predicate)


@dataclass(frozen=True)
class Issuer:
    """What the issuer decides: silos where the plan names no data, ledgers, how long, why, and which noise."""

    silos: tuple[tuple[str, int], ...] = ()
    ledgers: tuple[LedgerBinding, ...] = ()
    lifetime: timedelta = timedelta(days=VALID_DAYS)
    why: str = ""
    research_noise: bool = False
    not_protected: tuple[str, ...] = ()
    """What else is treated as public, each in one sentence."""
    witness: str | None = None
    """Id of the witness's key, where the plan names one."""

    @property
    def noise_source(self) -> NoiseSource:
        return NoiseSource.SEEDED_RESEARCH_ONLY if self.research_noise else NoiseSource.OPERATING_SYSTEM

    def sampler(self, exact: NoiseSampler) -> NoiseSampler:
        """The sampler a release names: the exact one, unless everything is research."""
        return NoiseSampler.SEEDED_RESEARCH_ONLY if self.research_noise else exact

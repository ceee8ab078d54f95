"""What a claim binds, the nine kinds of ledger entry, and their one canonical spelling.

An entry is written as canonical JSON (RFC 8785). Reading is strict: no unknown or missing field, no
other type, and the bytes must be exactly what writing the parsed entry again gives, which also refuses
duplicate keys, NaN, other orders and other spellings of a number.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import rfc8785
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from calibrate.compose import UNITS, BudgetFilter, SignedCurve
from calibrate.discrete_noise import ProfileSlack
from calibrate.errors import InvalidInput, LedgerRefused, count, positive
from calibrate.privacy_unit import PrivacyUnit
from privfair.durable import write_new_file

_HEX_64 = re.compile(r"[0-9a-f]{64}")
_LABEL = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,200}")


def digest_text(argument: str, value: str) -> str:
    """A SHA-256 digest as this package writes it."""
    if not isinstance(value, str) or not _HEX_64.fullmatch(value):
        raise InvalidInput(argument, value, "must be 64 lower-case hex digits", "give a SHA-256 digest")
    return value


def undeclared_dataset(data_digest: str) -> str:
    """What a data set without a declared identity is called: with another size it is another one."""
    return f"data {data_digest[:16]}"


def label(argument: str, value: str) -> str:
    """A short printable name, such as a party or a value name."""
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise InvalidInput(argument, value, "must be 1 to 200 printable characters", "give a shorter plain name")
    return value


@dataclass(frozen=True)
class ManifestTerms:
    """The part of a verified manifest that the ledger enforces; digests are SHA-256 in lower-case hex.

    `epsilon` and `delta` are the promise for all `rounds` together; an `epsilon` of None promises nothing
    finite, and is refused on data that has a budget. `dataset` is the declared identity of the data the promise is
    about and `unit` whom it protects: claims on one data set are added up. `data_digest` is that of the silos' names
    and sizes. `ledgers` are the identities of the ledgers it was signed for; every other one refuses it. `curve`
    are its signed Renyi divergences, without which only basic composition can keep a total. `declared` is what another
    tool will release, where no manifest was signed and no gate enforces it.
    """

    manifest_digest: str
    nonce: str
    envelope_digest: str
    rounds: int
    epsilon: float | None
    delta: float
    dataset: str
    data_digest: str
    valid_until: datetime
    unit: PrivacyUnit
    ledgers: tuple[str, ...] = ()
    purpose: str = ""
    signers: tuple[str, ...] = ()
    curve: SignedCurve | None = None
    declared: str | None = None

    def __post_init__(self) -> None:
        digest_text("manifest_digest", self.manifest_digest)
        digest_text("envelope_digest", self.envelope_digest)
        digest_text("data_digest", self.data_digest)
        label("nonce", self.nonce)
        label("dataset", self.dataset)
        for ledger in self.ledgers:
            digest_text("ledgers", ledger)
        for signer in self.signers:
            label("signers", signer)
        count("rounds", self.rounds)
        promise(1.0 if self.epsilon is None else self.epsilon, self.delta)
        if self.valid_until.tzinfo is None:
            raise InvalidInput("valid_until", self.valid_until, "must carry a time zone", "give it in UTC")


def promise(epsilon: float, delta: float) -> None:
    """Check an (epsilon, delta) that may also be pure (delta = 0)."""
    positive("epsilon", epsilon)
    if isinstance(delta, bool) or not isinstance(delta, float | int) or not 0 <= delta < 1:
        raise InvalidInput("delta", delta, "must be in [0, 1)", "give for example 1e-5")


class Release(NamedTuple):
    """One published value: which round, whose, what it is called, and the digest of its bytes."""

    round: int
    party: str
    name: str
    digest: str


@dataclass(frozen=True)
class ClaimToken:
    """The secret that lets its holder resume a claim; the ledger keeps only its digest.

    Save it in the run folder *before* claiming: then no crash can strand a manifest that was claimed by a
    process which died before it could write down how to resume.
    """

    secret: str = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.secret, str) or not _HEX_64.fullmatch(self.secret):
            raise InvalidInput("token", "(hidden)", "must be 64 lower-case hex digits", "use the saved file")

    @classmethod
    def fresh(cls) -> ClaimToken:
        return cls(secrets.token_hex(32))

    @classmethod
    def load(cls, path: Path) -> ClaimToken:
        return cls(Path(path).read_text("ascii", errors="replace").strip())

    @classmethod
    def at(cls, path: Path) -> ClaimToken:
        """The token of a run, saved before it is ever used; a half-written one was never used and is replaced."""
        if path.exists():
            try:
                return cls.load(path)
            except InvalidInput:
                path.unlink()
        token = cls.fresh()
        token.save(path)
        return token

    def save(self, path: Path) -> None:
        """Write the token durably to a new file that only its owner may read."""
        write_new_file(Path(path), f"{self.secret}\n".encode("ascii"), mode=0o600)

    @property
    def digest(self) -> str:
        return hashlib.sha256(b"privfair claim token\0" + self.secret.encode("ascii")).hexdigest()


def timestamp(moment: datetime) -> str:
    """UTC to the second, rounded down, so that a deadline is never later than signed."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def claimant_here() -> str:
    """The default claimant: user, machine and process."""
    user = f"uid {os.getuid()}" if hasattr(os, "getuid") else f"user {os.environ.get('USERNAME', 'unknown')}"
    return f"{user} on {platform.node()}, process {os.getpid()}"


# Why the ledger says no, one class per rule.
#
# ::
#
#     LedgerRefused
#     └── Refusal               subject, rule and remedy kept apart for programs
#         ├── NotIntact             a row, the chain or the append-only guard was changed
#         ├── RolledBack            the ledger is older than its anchor, or than what was already seen
#         ├── AlreadyClaimed        the manifest, or its single-use nonce, was claimed before
#         ├── WrongLedger           the manifest was signed for another ledger
#         ├── TrustRolledBack       the trust file is older than one seen before, or not from its root
#         ├── UnknownClaim          no claim in this ledger belongs to the token
#         ├── ClaimSuperseded       the claim was resumed elsewhere, or the object crossed a fork
#         ├── ClaimEnded            the claim is closed, or the manifest has expired
#         ├── BudgetExceeded        the data set's total budget does not allow the claim
#         ├── RoundsExhausted       more rounds asked for than were signed
#         ├── RoundNotHeld          a release of a round this session did not charge
#         ├── AlreadyReleased       a second release of one value in one round
#         └── Unavailable           the database or the anchor could not be read or written


class Refusal(LedgerRefused):
    """What was refused, by which rule, and what to do."""

    def __init__(self, subject: str, rule: str, remedy: str) -> None:
        self.subject = subject
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"ledger refused {subject}: {rule}; {remedy}")


class NotIntact(Refusal):
    """A row, the chain or the append-only guard is not as this ledger wrote it."""


class RolledBack(Refusal):
    """The ledger is older than its anchor, or than what this process has already seen."""


class AlreadyClaimed(Refusal):
    """The manifest, or its single-use nonce, was claimed before."""


class WrongLedger(Refusal):
    """The manifest was signed for other ledgers, or there is a ledger already where one is to be made."""


class TrustRolledBack(Refusal):
    """The trust file is older than one that this ledger has seen, or another root's."""


class UnknownClaim(Refusal):
    """No claim in this ledger belongs to the token."""


class ClaimSuperseded(Refusal):
    """The claim was resumed elsewhere, or the object crossed a fork."""


class ClaimEnded(Refusal):
    """The claim is closed, or the manifest has expired."""


class BudgetExceeded(Refusal):
    """The data set's total budget does not allow the claim."""


class RoundsExhausted(Refusal):
    """More rounds were asked for than the manifest's signers allowed."""


class RoundNotHeld(Refusal):
    """A release of a round that was not charged, or not by this session."""


class AlreadyReleased(Refusal):
    """A second release of one value in one round."""


class Unavailable(Refusal):
    """The database or the anchor could not be read or written, so nothing is granted."""


Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}\z")]
Label = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=1, lt=2**53)]
RoundNumber = Annotated[int, Field(ge=0, lt=2**53)]
Moment = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\z")]
Epsilon = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Delta = Annotated[float, Field(ge=0, lt=1)]


def unit_text(unit: PrivacyUnit) -> str:
    """A privacy unit as entries spell it, for example "record by replace-one"."""
    return f"{unit.protected.value} by {unit.relation.value}"


UNIT_OF_TEXT = {unit_text(unit): unit for unit in UNITS}


def _known_unit(text: str) -> str:
    if text not in UNIT_OF_TEXT:
        raise ValueError("there is no such unit")
    return text


UnitText = Annotated[str, AfterValidator(_known_unit)]
ReleasedValue = tuple[RoundNumber, Label, Label, Digest]


class _Entry(BaseModel):
    """What all kinds share: the place in the chain, and when it was written."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    seq: Count
    prev: Digest
    at: Moment


def _is_none(value: object) -> bool:
    return value is None


class Opened(_Entry):
    """The first entry: gives the ledger an identity, so that an anchor cannot be mistaken for another's."""

    kind: Literal["open"] = "open"
    version: Literal[2, 3] = 3
    """2 had no Renyi divergences in its claims; such a ledger is read and continued."""
    ledger: Digest
    bound_only: Literal[True] | None = Field(default=None, exclude_if=_is_none)
    """Refuse manifests that were signed for no ledger in particular."""


class ClaimedCurve(BaseModel):
    """The signed Renyi divergences (order, upper bound) of a claim, and its slack for discrete noise."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    points: tuple[tuple[float, float], ...]
    slack_epsilon: float
    slack_mass: float

    @classmethod
    def of(cls, curve: SignedCurve) -> ClaimedCurve:
        return cls(points=curve.points, slack_epsilon=curve.slack.epsilon, slack_mass=curve.slack.mass)

    def signed(self) -> SignedCurve:
        """The curve as filters take it; raises InvalidInput where it is none."""
        return SignedCurve(self.points, ProfileSlack(self.slack_epsilon, self.slack_mass))

    @model_validator(mode="after")
    def _is_a_curve(self) -> ClaimedCurve:
        try:
            self.signed()
        except InvalidInput as wrong:
            raise ValueError(str(wrong)) from wrong
        return self


class BudgetSet(_Entry):
    """The most that all claims on one data set may add up to for one unit, and the filter that keeps it.

    Without a filter it is kept by basic composition.
    """

    kind: Literal["budget"] = "budget"
    dataset: Label
    unit: UnitText
    epsilon: Epsilon
    delta: Delta
    filter: BudgetFilter | None = Field(default=None, exclude_if=_is_none)


class Claimed(_Entry):
    """A manifest is taken into use, once; `token` is the digest of the claimer's secret.

    `dataset` is the declared identity of the data, by which budgets are kept; `data` the digest of names and sizes.
    `ledgers` are those that the manifest was signed for. `declared` is what another tool will release, in place of a
    manifest that a gate enforces.
    """

    kind: Literal["claim"] = "claim"
    manifest: Digest
    nonce: Label
    envelope: Digest
    rounds: Count
    epsilon: Epsilon | None
    delta: Delta
    dataset: Label
    data: Digest
    unit: UnitText
    ledgers: tuple[Digest, ...]
    purpose: Annotated[str, Field(max_length=200)]
    signers: tuple[Label, ...]
    valid_until: Moment
    claimant: Label
    token: Digest
    curve: ClaimedCurve | None = Field(default=None, exclude_if=_is_none)
    declared: Annotated[str, Field(min_length=1, max_length=2000)] | None = Field(default=None, exclude_if=_is_none)


class Resumed(_Entry):
    """The token's holder starts again, in a new process; earlier sessions may not charge any more."""

    kind: Literal["resume"] = "resume"
    manifest: Digest
    session: Count
    claimant: Label


class Charged(_Entry):
    """Rounds `first` .. `end` - 1 are spent, whether or not they are ever released."""

    kind: Literal["charge"] = "charge"
    manifest: Digest
    session: Count
    first: RoundNumber
    end: Count


class Released(_Entry):
    """Values that left the gate: (round, party, name, digest of the bytes)."""

    kind: Literal["release"] = "release"
    manifest: Digest
    session: Count
    values: Annotated[tuple[ReleasedValue, ...], Field(min_length=1)]


class Closed(_Entry):
    """The claim is over; `transcript` is the final digest of what an observer saw, where one was kept.

    `abandoned` says why, where a run was given up; its rounds stay spent.
    """

    kind: Literal["close"] = "close"
    manifest: Digest
    session: Count
    transcript: Digest | None
    abandoned: Label | None


class Restored(_Entry):
    """The entries up to here come from a backup, and what followed them is unknown.

    So the ledger gets a new identity, which no manifest was signed for, open claims are over, and every budget counts
    as spent.
    """

    kind: Literal["restore"] = "restore"
    ledger: Digest


class TrustNoted(_Entry):
    """A trust file under which a run began or resumed: later ones must follow it, earlier ones are refused.

    `root` is the key that signed it (None: unsigned), `first_key` the first key that it lists.
    """

    kind: Literal["trust"] = "trust"
    root: Digest | None
    first_key: Digest
    sequence: Count
    trust: Digest
    successor: Digest | None = Field(default=None, exclude_if=_is_none)
    """The root key that this file hands over to; the one that signed it is taken no more."""


Entry = Opened | BudgetSet | Claimed | Resumed | Charged | Released | Closed | Restored | TrustNoted
_ADAPTER: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="kind")])


class UnreadableEntry(ValueError):
    """The text is not the canonical spelling of an entry."""


def encode(entry: Entry) -> str:
    """The canonical JSON text of an entry."""
    document = entry.model_dump(mode="json")
    if isinstance(entry, Released):
        # Text and small whole numbers under ASCII keys: here plain JSON is canonical (tested as a law),
        # several times faster, and releases are nearly all of a ledger's text.
        return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return rfc8785.dumps(document).decode("utf-8")


def decode(body: str) -> Entry:
    """The entry that `body` is the canonical spelling of; raises UnreadableEntry."""
    try:
        entry = _ADAPTER.validate_json(stored_bytes(body))
        canonical = encode(entry)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the text"
        raise UnreadableEntry(f"{place}: {first['msg']}") from error
    except rfc8785.CanonicalizationError as error:
        raise UnreadableEntry(str(error)) from error
    if canonical != body:
        raise UnreadableEntry("the text is not in canonical form")
    return entry


def stored_bytes(body: str) -> bytes:
    """The bytes behind a stored text, also where they are bytes that are not UTF-8."""
    return body.encode("utf-8", "surrogateescape")


# The hash chain: each entry's canonical text contains its number and the digest of the one before.
#
# Changing, dropping, inserting or reordering any entry breaks every digest after it. What a chain cannot
# show is that its end was cut off, or that an old copy replaced it: that is the anchor's task.

_REMEDY = "restore an untouched copy that is not older than the anchor, or ask the privacy officer for a new ledger"


@dataclass(frozen=True)
class Head:
    """The last entry's number and digest: together they stand for the whole ledger up to there."""

    seq: int
    hash: str


GENESIS = Head(0, "0" * 64)


@dataclass(frozen=True)
class Link:
    """One row as it is stored."""

    seq: int
    prev: str
    hash: str
    body: str

    @property
    def head(self) -> Head:
        return Head(self.seq, self.hash)


def link(entry: Entry) -> Link:
    """The row that stores `entry`."""
    body = encode(entry)
    return Link(entry.seq, entry.prev, hashlib.sha256(stored_bytes(body)).hexdigest(), body)


def read_link(row: Link, after: Head) -> Entry:
    """The entry of a stored row that must follow `after`; raises NotIntact and names the entry."""
    if row.seq != after.seq + 1:
        raise broken(after.seq + 1, f"the entry is missing, the next one stored is number {row.seq}")
    if row.prev != after.hash:
        raise broken(row.seq, "it does not follow from the entry before it")
    if hashlib.sha256(stored_bytes(row.body)).hexdigest() != row.hash:
        raise broken(row.seq, "its text does not have the digest it was stored with")
    try:
        entry = decode(row.body)
    except UnreadableEntry as error:
        if row.seq == 1 and '"version":1' in row.body:
            raise Unavailable(
                "this ledger",
                "it was made by version 1 of the format, which kept no data set's identity",
                "make a new one with `privfair ledger init` and have new manifests signed for it; what was claimed "
                "in this one is spent",
            ) from error
        raise broken(row.seq, f"its text is not an entry of this version ({error})") from error
    if (entry.seq, entry.prev) != (row.seq, row.prev):
        raise broken(row.seq, "its text was written for another place in the chain")
    return entry


def broken(seq: int, rule: str) -> NotIntact:
    """The refusal that says at which entry the ledger stops being trustworthy."""
    return NotIntact(f"entry {seq}", rule, _REMEDY)

"""From bytes that were handed over to a manifest an engine may spend.

`authenticate` answers *who signed what, and is it in force?*; `verify` also answers *is it for this plan and
this data?* Both raise `ManifestRefused`, naming the numbered step, or return a value that cannot be made in
any other way. Neither returns a truth value, so no caller can forget to look at it.

The engine imports this module; it therefore prices nothing. Step 12, the price, is in
`calibrate.manifest.issue`, for officers and auditors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import NoReturn, assert_never, final

from pydantic import ValidationError

from calibrate.errors import InvalidInput
from calibrate.manifest.document import (
    PAYLOAD_TYPE,
    PREDICATE_TYPE,
    STATEMENT_TYPE,
    BudgetDocument,
    DataBinding,
    SiloSize,
    Statement,
    expected_subjects,
    read_statement,
)
from calibrate.manifest.keys import BadSignature, BrokenEnvelope, Role, SignedPayload, check_signature, open_envelope
from calibrate.manifest.mechanism import NoiseSource, NoPrivacyPromised, PrivateGuarantee, instant_to_text
from calibrate.manifest.strict_json import NotStrictJson, Step, digest_of_bytes, first_fault
from calibrate.manifest.trust import TrustedKey, TrustFile
from calibrate.privacy_unit import Relation

_SEAL = object()
"""Held by this module alone: without it neither of the two results below can be constructed."""


_NOT_YET_READ = datetime.max.replace(tzinfo=UTC)
"""For the time of issue, while the content that tells it may not be parsed yet."""


class NeverPickled:
    """What was checked in this process vouches for nothing in another."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("it is passed on as its signed bytes and checked again, never pickled")


@dataclass(frozen=True)
class Signature:
    """A verified signature."""

    role: Role
    key_id: str


@final
@dataclass(frozen=True)
class AuthenticManifest(NeverPickled):
    """Signed by every role of the trust file, understood, and in force. Not yet tied to a run."""

    document: BudgetDocument
    digest: str
    """SHA-256 of the signed payload. The identity of a manifest: an envelope has many spellings, this has one."""
    envelope_digest: str
    """SHA-256 of the file as it was given, for the ledger to note which copy was used."""
    signatures: tuple[Signature, ...]
    unknown_key_ids: tuple[str, ...]
    """Further signatures by keys the trust file does not know; they count for nothing."""
    checked_at: datetime
    for_reading: bool
    """Whether it was not asked if the budget is in force."""
    seal: InitVar[object]
    remark: str | None = None
    """A sentence for readers of a run of the past: which of the keys have expired since it was signed."""

    def __post_init__(self, seal: object) -> None:
        _refuse_without_seal(seal, "AuthenticManifest", "authenticate")


@final
@dataclass(frozen=True)
class UnverifiedManifest:
    """What an envelope claims. For those who are about to sign it or want to look; no engine accepts it."""

    document: BudgetDocument
    digest: str
    claimed_key_ids: tuple[str, ...]


@dataclass(frozen=True)
class SiloData:
    """What one silo knows of its data, when it cannot see the other silos'."""

    name: str
    size: int
    schema_digest: str


@dataclass(frozen=True)
class IntendedRun:
    """What is about to be run: the digest of the plan, the data of all silos or of one, and the user's own code.

    `code` has the SHA-256 of the bytes of each file of the user's own that will be run.
    """

    config_digest: str
    data: DataBinding | SiloData
    code: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@final
@dataclass(frozen=True)
class VerifiedManifest(NeverPickled):
    """An authentic manifest for exactly this plan and this data: what the ledger claims and the gate obeys."""

    authentic: AuthenticManifest
    run: IntendedRun
    seal: InitVar[object]

    def __post_init__(self, seal: object) -> None:
        _refuse_without_seal(seal, "VerifiedManifest", "verify")

    @property
    def document(self) -> BudgetDocument:
        return self.authentic.document

    @property
    def digest(self) -> str:
        return self.authentic.digest

    @property
    def signatures(self) -> tuple[Signature, ...]:
        return self.authentic.signatures


def promises_privacy(document: BudgetDocument) -> bool:
    """Whether anyone is protected: a private guarantee, and noise that no one can reproduce."""
    private = isinstance(document.guarantee, PrivateGuarantee)
    return private and document.noise_source is NoiseSource.OPERATING_SYSTEM


def authenticate(
    envelope: bytes, trust: TrustFile, at: datetime | None = None, *, for_reading: bool = False
) -> AuthenticManifest:
    """Steps 1 to 9: signed by every role, with live keys, one meaning, a known version, in force at `at`.

    `for_reading` leaves out step 9, for a page about a run of the past; such a manifest can't be bound to a run. A key
    that has expired since then still vouches for what was issued while it was valid, and `remark` says so; a key that
    was revoked vouches for nothing.
    """
    now = _instant(at)
    opened = _step_1_envelope(envelope)
    _step_2_payload_type(opened)
    signers = _step_3_signatures(opened, trust)
    live = _step_4_key_status(signers, trust, now, _NOT_YET_READ if for_reading else None)
    document = _understood(opened.payload)
    if for_reading:
        live = _step_4_key_status(live, trust, now, document.validity.issued_at)
    else:
        _step_9_validity(document, now)
    known = {key.key_id for key in trust.keys}
    return AuthenticManifest(
        document=document,
        digest=digest_of_bytes(opened.payload),
        envelope_digest=digest_of_bytes(envelope),
        signatures=tuple(Signature(key.role, key.key_id) for key in live),
        unknown_key_ids=tuple(key_id for key_id in opened.key_ids if key_id not in known),
        checked_at=now,
        for_reading=for_reading,
        seal=_SEAL,
        remark=_remark(live, document, now),
    )


def verify(envelope: bytes, trust: TrustFile, run: IntendedRun, at: datetime | None = None) -> VerifiedManifest:
    """Steps 1 to 11: authentic, and for this very plan, code and data."""
    return bind(authenticate(envelope, trust, at), run)


def bind(authentic: AuthenticManifest, run: IntendedRun) -> VerifiedManifest:
    """Steps 10 and 11, for a manifest that is authentic already."""
    if authentic.for_reading:
        raise Step.VALIDITY.refuse("the budget was authenticated for reading only", "authenticate it for a run")
    _step_10_plan(authentic.document, run)
    _step_11_data(authentic.document, run)
    return VerifiedManifest(authentic, run, seal=_SEAL)


def require_still_signed(authentic: AuthenticManifest, trust: TrustFile, at: datetime | None = None) -> None:
    """Step 4 again, in the middle of a run: every role of a newer trust file has signed with a key that is live now.

    The signatures themselves were verified before, and a key's id is the digest of the key, so only the trust file
    and the clock can have changed. Raises `ManifestRefused`.
    """
    now, signed = _instant(at), {signature.key_id for signature in authentic.signatures}
    signers = tuple(key for key in trust.keys if key.key_id in signed)
    for role in trust.roles:
        if not any(key.role is role for key in signers):
            raise Step.SIGNATURES.refuse(f"no trusted key of the role {role.value} has signed")
    _step_4_key_status(signers, trust, now)


def read_unverified(envelope: bytes) -> UnverifiedManifest:
    """What the envelope says, with no signature checked: steps 1, 2 and 5 to 8.

    Signing needs it, because a signer reads before signing. It still refuses whatever is not a well-formed
    manifest, so that no one signs what no one could verify.
    """
    opened = _step_1_envelope(envelope)
    _step_2_payload_type(opened)
    document = _understood(opened.payload)
    return UnverifiedManifest(document, digest_of_bytes(opened.payload), opened.key_ids)


def _understood(payload: bytes) -> BudgetDocument:
    statement = _step_5_statement(payload)
    _step_6_version(statement)
    document = _step_7_document(statement)
    _step_8_subjects(statement, document)
    return document


def _step_1_envelope(envelope: bytes) -> SignedPayload:
    try:
        return open_envelope(envelope)
    except BrokenEnvelope as broken:
        raise Step.ENVELOPE.refuse(str(broken)) from broken


def _step_2_payload_type(opened: SignedPayload) -> None:
    if opened.payload_type != PAYLOAD_TYPE:
        raise Step.PAYLOAD_TYPE.refuse(f"the envelope holds {opened.payload_type[:80]!r}, not {PAYLOAD_TYPE!r}")


def _step_3_signatures(opened: SignedPayload, trust: TrustFile) -> tuple[TrustedKey, ...]:
    """Each role on its own; a wrong signature under a trusted key's id is refused even if others suffice."""
    if not trust.roles:
        raise Step.SIGNATURES.refuse(
            "the trust file lists auditors only, and a budget needs an officer's or owner's signature"
        )
    signers: list[TrustedKey] = []
    for role in trust.roles:
        present = [key for key in trust.keys_of(role) if key.key_id in opened.key_ids]
        if not present:
            raise Step.SIGNATURES.refuse(f"no trusted key of the role {role.value} has signed")
        for key in present:
            try:
                check_signature(opened, key.key())
            except BadSignature as broken:
                raise Step.SIGNATURES.refuse(
                    f"role {role.value}: {broken}: the manifest is forged, or was changed after it was signed"
                ) from broken
        signers.extend(present)
    return tuple(signers)


def _step_4_key_status(
    signers: tuple[TrustedKey, ...], trust: TrustFile, now: datetime, issued: datetime | None = None
) -> tuple[TrustedKey, ...]:
    """Before any content is parsed: what a revoked key signed is not to be looked at.

    With `issued`, for reading, a key counts too that has expired since, if it was valid when the budget was issued.
    """

    def counts(key: TrustedKey) -> bool:
        in_time = issued is not None and (issued is _NOT_YET_READ or key.objection(issued) is None)
        return key.objection(now) is None or (key.has_expired(now) and in_time)

    live = tuple(key for key in signers if counts(key))
    for role in trust.roles:
        if not any(key.role is role for key in live):
            objections = [str(key.objection(now)) for key in signers if key.role is role]
            raise Step.KEY_STATUS.refuse(f"role {role.value}: {', '.join(objections)}")
    return live


def _remark(signers: tuple[TrustedKey, ...], document: BudgetDocument, now: datetime) -> str | None:
    expired = [key for key in signers if key.has_expired(now)]
    if not expired:
        return None
    ends = ", ".join(f"{key.key_id[:12]} ({key.role.value}) on {key.valid_until:%Y-%m-%d}" for key in expired)
    return (
        f"Signed with a key that has expired since: {ends}. It was valid when the budget was issued, on "
        f"{document.validity.issued_at:%Y-%m-%d}, so what was done under it can be read; nothing more can be spent."
    )


def _step_5_statement(payload: bytes) -> Statement:
    try:
        return read_statement(payload)
    except NotStrictJson as broken:
        raise Step.STATEMENT.refuse(str(broken)) from broken


def _step_6_version(statement: Statement) -> None:
    if statement.statement_type != STATEMENT_TYPE:
        raise Step.VERSION.refuse(f"unknown statement type {statement.statement_type[:80]!r}")
    if statement.predicate_type != PREDICATE_TYPE:
        raise Step.VERSION.refuse(
            f"the budget version is {statement.predicate_type[:80]!r}, and only {PREDICATE_TYPE!r} is read here",
            "have the budget calibrated and signed again by this version of privfair",
        )


def _step_7_document(statement: Statement) -> BudgetDocument:
    try:
        return BudgetDocument.from_json(statement.predicate)
    except ValidationError as broken:
        raise Step.DOCUMENT.refuse(first_fault(broken)) from broken
    except ValueError as broken:
        raise Step.DOCUMENT.refuse(str(broken)) from broken


def _step_8_subjects(statement: Statement, document: BudgetDocument) -> None:
    if statement.subjects != expected_subjects(document):
        raise Step.SUBJECTS.refuse("the subjects are not the plan and the data the document speaks of")


def _step_9_validity(document: BudgetDocument, now: datetime) -> None:
    window = document.validity
    start = max(window.not_before, window.issued_at)
    if now < start:
        raise Step.VALIDITY.refuse(f"the budget is not valid before {instant_to_text(start)}")
    if now >= window.not_after:
        raise Step.VALIDITY.refuse(f"the budget expired at {instant_to_text(window.not_after)}")


def _step_10_plan(document: BudgetDocument, run: IntendedRun) -> None:
    if document.config_digest != run.config_digest:
        raise Step.PLAN.refuse(
            f"the budget is for the plan {document.config_digest[:12]}, not for {run.config_digest[:12]}"
        )
    require_signed_code(document, run.code)


def require_signed_code(document: BudgetDocument, code: Mapping[str, str]) -> None:
    """Refuse the user's own files unless they are the signed ones, by name and digest; raises at step 10."""
    signed = document.code_digests()
    for name in sorted(signed.keys() | code.keys()):
        if signed.get(name) != code.get(name):
            why = "was not signed" if name not in signed else "is not the file that was signed"
            raise Step.PLAN.refuse(f"the plan's own code {name} {why}")


def _step_11_data(document: BudgetDocument, run: IntendedRun) -> None:
    signed = document.data
    match run.data:
        case DataBinding():
            misfit = misfit_of_data(document, run.data)
        case SiloData(name, size, schema_digest):
            own = tuple(silo for silo in signed.silos if silo.name == name)
            if not own:
                raise Step.DATA.refuse(f"the budget is for {_names(signed)}, this silo is {name}")
            misfit = misfit_of_data(document, DataBinding.of(schema_digest, [(name, size)]), own)
        case _:
            assert_never(run.data)
    if misfit is not None:
        raise Step.DATA.refuse(misfit)


def misfit_of_data(
    document: BudgetDocument, found: DataBinding, among: tuple[SiloSize, ...] | None = None
) -> str | None:
    """Why data of these names, sizes and schema are not those of a document; None if they are.

    Guarantee: where units can be added or removed a size is compared with a signed lower bound and never told, so
    that two neighbouring data sets above the bound are accepted alike; else sizes are public and must be equal.
    """
    silos = document.data.silos if among is None else among
    if found.schema_digest != document.data.schema_digest:
        return "the data has another schema than the budget is for"
    if tuple(silo.name for silo in found.silos) != tuple(silo.name for silo in silos):
        return f"the budget is for {_names(document.data)}, the run has {_names(found)}"
    guarantee = document.guarantee
    bounds = not isinstance(guarantee, NoPrivacyPromised) and guarantee.adjacency is Relation.ADD_REMOVE
    for signed, given in zip(silos, found.silos, strict=True):
        if bounds and given.size < signed.size:
            return f"{signed.name} has fewer than the {signed.size} units that the budget needs"
        if not bounds and given.size != signed.size:
            return f"the budget is for {signed.name} with {signed.size}, the run has {given.size}"
    return None


def _names(data: DataBinding) -> str:
    return ", ".join(silo.name for silo in data.silos)


def _instant(at: datetime | None) -> datetime:
    if at is None:
        return datetime.now(UTC)
    if at.tzinfo is None:
        raise InvalidInput("at", at, "must carry a time zone", "give a time in UTC")
    return at.astimezone(UTC)


def _refuse_without_seal(seal: object, name: str, maker: str) -> None:
    if seal is not _SEAL:
        raise TypeError(f"{name} is made by calibrate.manifest.verify.{maker} alone")

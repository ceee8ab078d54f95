"""A signed audit: an in-toto Statement v1 about a model's digest, in a DSSE envelope signed by an auditor.

The subjects are the audited files, by digest, so that generic in-toto tools find the audit of a model; the predicate is
the conclusion. As with budgets, only verified bytes are parsed, and everything that has two spellings is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Annotated, Literal, NoReturn, final

from pydantic import Field, ValidationError

from audit.report.results import AuditReport, CheckOutcome
from calibrate.errors import Refused
from calibrate.manifest.document import PAYLOAD_TYPE, STATEMENT_TYPE, read_statement
from calibrate.manifest.keys import (
    BadSignature,
    BrokenEnvelope,
    Role,
    SignedPayload,
    SigningKey,
    check_signature,
    open_envelope,
    sign,
)
from calibrate.manifest.mechanism import Instant, OpenUnit, Sha256, StrictModel, Text
from calibrate.manifest.strict_json import Json, NotStrictJson, canonical, digest, first_fault
from calibrate.manifest.trust import TrustedKey, TrustFile

# What a signed audit says: the conclusion, drawn from the audit's JSON and tied to it by digest.

_LONGEST = 2000

NonNegative = Annotated[float, Field(ge=0)]


class PromiseOnTrial(StrictModel):
    epsilon: NonNegative
    delta: Annotated[float, Field(ge=0, lt=1)]
    source: Text


class AuditPredicate(StrictModel):
    """What the auditor says: the conclusion, what it rests on, and the digest of the whole report."""

    verdict: Literal["consistent", "violated", "inconclusive", "leaks", "no-leak-found"]
    why: Text
    epsilon_lower: NonNegative | None
    """The model leaks at least this much, with probability 1 - alpha of being right."""
    alpha: OpenUnit
    promised: PromiseOnTrial | None
    methods: tuple[Text, ...]
    attribute_finding: Text | None
    audited_at: Instant
    report_digest: Sha256
    """SHA-256 of the canonical text of the audit's JSON."""
    tool: Text

    def to_json(self) -> dict[str, Json]:
        found: dict[str, Json] = self.model_dump(mode="json", by_alias=True)
        return found

    @classmethod
    def of(cls, report: AuditReport, at: datetime) -> AuditPredicate:
        """The conclusion of an audit."""
        promised, attribute = report.promised, report.attribute_inference
        on_trial = None
        if promised is not None:
            source = _one_line(promised.source)
            on_trial = PromiseOnTrial(epsilon=promised.epsilon, delta=promised.delta, source=source)
        return cls(
            verdict=report.verdict.value,
            why=_one_line(report.why),
            epsilon_lower=report.epsilon_lower,
            alpha=1 - report.confidence,
            promised=on_trial,
            methods=_methods(report),
            attribute_finding=None if attribute is None else _one_line(attribute.why),
            audited_at=at,
            report_digest=report_digest(report.to_json()),
            tool=f"privfair {version('privfair')}",
        )


def report_digest(report: Mapping[str, Json]) -> str:
    """The digest that ties a statement to the JSON of its audit, however that is indented."""
    return digest(dict(report))


def _methods(report: AuditReport) -> tuple[str, ...]:
    """Which layers were looked at, and by which attacks and bounds."""
    answered = (check for check in report.checks if check.outcome is not CheckOutcome.NOT_POSSIBLE)
    names = list(dict.fromkeys(f"{check.layer.value} checks" for check in answered))
    names += [f"{one.name} ({one.bound.method.value})" for one in report.attacks]
    if report.membership is not None:
        names += [f"membership inference: {one.name.value}" for one in report.membership.attacks]
    if report.attribute_inference is not None:
        names += [f"attribute inference: {one.name}" for one in report.attribute_inference.attacks]
    return tuple(_one_line(name) for name in names)


def _one_line(text: str) -> str:
    """Printable and of bounded length, as every text that is signed."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printable.split())[:_LONGEST] or "(nothing was said)"


PREDICATE_TYPE = "urn:privfair:audit:v1"
MODEL_SUBJECT = "model"
_SEAL = object()


@final
@dataclass(frozen=True)
class VerifiedAudit:
    """An audit whose signature was checked; made by `verify_audit` alone."""

    predicate: AuditPredicate
    subjects: Mapping[str, str]
    """SHA-256 of each audited file, by subject name."""
    auditor: TrustedKey
    seal: InitVar[object]

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("VerifiedAudit is made by audit.report.statement.verify_audit alone")

    def __reduce__(self) -> NoReturn:
        raise TypeError("an audit is passed on as its signed bytes and verified again, never pickled")


class AuditRefused(Refused):
    """A signed audit that cannot be believed, or speaks of something else."""


def sign_audit(predicate: AuditPredicate, subjects: Mapping[str, str], key: SigningKey) -> bytes:
    """The signed statement as the bytes of its file; it is read back before it is handed out."""
    if MODEL_SUBJECT not in subjects:
        raise AuditRefused("an audit statement needs a model to be about; let the training finish first")
    envelope = sign(PAYLOAD_TYPE, _payload(predicate, subjects), key)
    said, about = _parse(open_envelope(envelope).payload)
    if said != predicate or about != dict(subjects):
        raise AuditRefused("the statement does not survive being written; report this as a bug")
    return envelope


def verify_audit(
    envelope: bytes, trust: TrustFile, subjects: Mapping[str, str], at: datetime | None = None
) -> VerifiedAudit:
    """The audit in an envelope, signed by an auditor of the trust file, about these very files.

    `subjects` are digests of what the reader holds; each must be a subject of the statement with the same digest.
    Raises `AuditRefused`; never returns a truth value that could be forgotten.
    """
    now = datetime.now(UTC) if at is None else at
    try:
        opened = open_envelope(envelope)
    except BrokenEnvelope as broken:
        raise AuditRefused(f"not an envelope: {broken}; fetch the audit again as privfair wrote it") from broken
    if opened.payload_type != PAYLOAD_TYPE:
        raise AuditRefused(f"the envelope holds {opened.payload_type[:80]!r}, no statement; give the signed audit")
    auditor = _signer(opened, trust, now)
    predicate, about = _parse(opened.payload)
    if predicate.audited_at > now:
        raise AuditRefused("the audit is dated in the future; check the clocks")
    for name, expected in subjects.items():
        if about.get(name) != expected:
            raise AuditRefused(
                f"the audit is about another {name} ({str(about.get(name))[:12]}, not {expected[:12]}); "
                "give the files it was made for"
            )
    return VerifiedAudit(predicate, about, auditor, seal=_SEAL)


def _signer(opened: SignedPayload, trust: TrustFile, now: datetime) -> TrustedKey:
    """A live auditor's key with a valid signature; a wrong signature under a known id is refused at once."""
    present = [key for key in trust.keys_of(Role.AUDITOR) if key.key_id in opened.key_ids]
    if not present:
        raise AuditRefused("no auditor of the trust file has signed it; trust its auditor, or ask one you trust")
    objections = []
    for key in present:
        try:
            check_signature(opened, key.key())
        except BadSignature as broken:
            raise AuditRefused(f"{broken}; fetch the audit again as its auditor signed it") from broken
        objection = key.objection(now)
        if objection is None:
            return key
        objections.append(objection)
    raise AuditRefused(f"{', '.join(objections)}; ask for an audit signed with a key that is valid now")


def _payload(predicate: AuditPredicate, subjects: Mapping[str, str]) -> bytes:
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(subjects.items())],
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate.to_json(),
        }
    )


def _parse(payload: bytes) -> tuple[AuditPredicate, dict[str, str]]:
    """Predicate and subjects of verified bytes; exactly one spelling is accepted."""
    try:
        statement = read_statement(payload)
        if statement.statement_type != STATEMENT_TYPE or statement.predicate_type != PREDICATE_TYPE:
            raise AuditRefused(
                f"the statement is a {statement.predicate_type[:80]!r}, not an audit; give the signed audit"
            )
        predicate = AuditPredicate.model_validate_json(canonical(statement.predicate))
        subjects = {str(one["name"]): str(one["digest"]["sha256"]) for one in statement.subjects}  # type: ignore[index,union-attr,call-overload]
        if _payload(predicate, subjects) != payload:
            raise AuditRefused("the statement is not spelled as privfair writes it; have the audit signed again")
    except ValidationError as broken:
        raise AuditRefused(f"{first_fault(broken)}; have the audit signed again") from broken
    except (NotStrictJson, KeyError, TypeError) as broken:
        raise AuditRefused(f"not an audit statement ({broken}); have the audit signed again") from broken
    return predicate, subjects

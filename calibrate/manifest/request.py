"""A budget that an engineer asks for and an officer has not signed yet: the request, the answer, and what changed.

Both travel as files. A request holds the whole budget document, so that what is signed is what was read, to the last
digit; the officer's machine prices it again before it signs (`calibrate.manifest.issue`). An answer is either the
signed manifest or a signed refusal with a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator

from calibrate.errors import InvalidInput, ManifestRefused
from calibrate.manifest.document import PAYLOAD_TYPE, BudgetDocument
from calibrate.manifest.issue import BudgetDraft, issue
from calibrate.manifest.keys import (
    BadSignature,
    BrokenEnvelope,
    PublicKey,
    SigningKey,
    check_signature,
    open_envelope,
    sign,
)
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    Instant,
    InTheClear,
    RandomizedCategory,
    Sha256,
    StrictModel,
    Text,
)
from calibrate.manifest.show import protected_text
from calibrate.manifest.strict_json import (
    Json,
    NotStrictJson,
    canonical,
    digest_of_bytes,
    first_fault,
    in_our_words,
    parse_object,
)
from calibrate.manifest.verify import promises_privacy, read_unverified
from calibrate.meaning import Meaning
from calibrate.privacy_unit import EpsilonDelta

FORMAT: Final = "urn:privfair:request:v1"
DECLINED_FORMAT: Final = "urn:privfair:declined:v1"
DECLINED_TYPE = "application/vnd.privfair.declined+json"
LARGEST_PLAN = 200_000


def _plain_lines(text: str) -> str:
    if not all(line.replace("\t", " ").isprintable() for line in text.split("\n")):
        raise ValueError("must be plain lines without control characters")
    return text


class BudgetRequest(StrictModel):
    """What an engineer asks an officer to sign: the document, who asks, and the plan file it is for."""

    format: Literal["urn:privfair:request:v1"]
    asked_by: Text
    asked_at: Instant
    document: BudgetDocument
    plan: Annotated[str, Field(max_length=LARGEST_PLAN), AfterValidator(_plain_lines)] | None
    """The text of the plan file, for reading; its digest must be the one in the document. None for a plan of flags."""

    @model_validator(mode="after")
    def _plan_is_the_one(self) -> BudgetRequest:
        if self.plan is not None and digest_of_bytes(self.plan.encode()) != self.document.config_digest:
            raise ValueError("the plan's text is not the plan that the document is bound to")
        return self

    def to_json(self) -> dict[str, Json]:
        value: dict[str, Json] = self.model_dump(mode="json", by_alias=True)
        return value

    @property
    def digest(self) -> str:
        """Names this very request, in the refusal that answers it."""
        return digest_of_bytes(canonical(self.to_json()))


class Declined(StrictModel):
    """An officer's refusal of one request."""

    format: Literal["urn:privfair:declined:v1"]
    request: Sha256
    reason: Text
    declined_at: Instant


def request_bytes(
    draft: BudgetDraft, asked_by: str, plan: bytes | None = None, asked_at: datetime | None = None
) -> bytes:
    """The file of a request.

    draft: What is asked for, with its two prices. asked_by: Who asks, in words. plan: The bytes of the plan file,
    for the officer to read; left out where the budget is bound to something else. asked_at: Now, unless given.
    """
    document = draft.document
    text = plan.decode("utf-8", errors="replace") if plan is not None else None
    if text is not None and digest_of_bytes(text.encode()) != document.config_digest:
        text = None
    with in_our_words("request"):
        asked = BudgetRequest(
            format=FORMAT,
            asked_by=" ".join(asked_by.split()),
            asked_at=asked_at or datetime.now(UTC),
            document=document,
            plan=text,
        )
    return canonical(asked.to_json()) + b"\n"


def read_request(content: bytes) -> BudgetRequest:
    """The request in a file; `InvalidInput` with the reason if it is anything else."""
    try:
        fields = parse_object(content)
        if fields.get("format") != FORMAT:
            raise NotStrictJson("it is not a request of version 1")
        return BudgetRequest.model_validate_json(canonical(fields))
    except ValidationError as broken:
        raise _not_a_request(first_fault(broken)) from None
    except (NotStrictJson, ValueError) as broken:
        raise _not_a_request(str(broken)) from None


def _not_a_request(why: str) -> InvalidInput:
    return InvalidInput("REQUEST", "(a file)", f"is not a request ({why})", "give what `privfair request` wrote")


def sign_request(request: BudgetRequest, key: SigningKey) -> bytes:
    """The signed manifest that grants the request, after this machine priced it with two accountants itself."""
    if request.document.validity.not_after <= datetime.now(UTC):
        raise ManifestRefused(
            "9 (validity window)", "what is asked for has expired already", "ask the engineer for a new request"
        )
    return issue(request.document, key)


def decline_request(request: BudgetRequest, reason: str, key: SigningKey) -> bytes:
    """A signed refusal, for the engineer to read and to keep."""
    with in_our_words("reason"):
        declined = Declined(
            format=DECLINED_FORMAT,
            request=request.digest,
            reason=" ".join(reason.split()),
            declined_at=datetime.now(UTC),
        )
    return sign(DECLINED_TYPE, canonical(declined.model_dump(mode="json", by_alias=True)), key)


def answer_path(file: Path, *, signed: bool) -> Path:
    """Where the answer to a request goes unless said otherwise: beside it."""
    return file.with_name(f"{file.stem}-{'signed' if signed else 'declined'}.json")


def read_declined(content: bytes, key: PublicKey | None = None) -> Declined:
    """The refusal in a file; with `key`, only if that key signed it."""
    try:
        opened = open_envelope(content)
        if opened.payload_type != DECLINED_TYPE:
            raise BrokenEnvelope("it is another signed document")
        if key is not None:
            check_signature(opened, key)
        return Declined.model_validate_json(canonical(parse_object(opened.payload)))
    except (BrokenEnvelope, BadSignature, NotStrictJson, ValidationError) as broken:
        why = first_fault(broken) if isinstance(broken, ValidationError) else str(broken)
        raise InvalidInput("ANSWER", "(a file)", f"is not a refusal ({why})", "ask for the answer again") from None


def grants(envelope: bytes, request: BudgetRequest) -> bool:
    """Whether a file is a manifest of exactly this request's document; signatures are not checked."""
    try:
        return open_envelope(envelope).payload_type == PAYLOAD_TYPE and (
            read_unverified(envelope).document == request.document
        )
    except (BrokenEnvelope, ManifestRefused):
        return False


# In words: what a document promises, and what is different from the last one.


def plain_words(document: BudgetDocument) -> tuple[str, ...]:
    """What signing this document would promise, whom it protects and what that means, one sentence per line."""
    guarantee = document.guarantee
    epsilon, delta = getattr(guarantee, "epsilon", None), getattr(guarantee, "delta", None)
    lines: list[str] = []
    if isinstance(guarantee, AsPrintedGuarantee):
        lines.append(
            f"A paper's own noise, which claims epsilon {guarantee.claimed_epsilon:g}; what it costs is below."
        )
    elif not promises_privacy(document):
        lines.append("NOBODY IS PROTECTED by this budget, whatever numbers stand in it.")
    lines.append(f"Protected: {protected_text(guarantee)}.")
    if epsilon is None or delta is None:
        lines.append("There is no finite promise: an observer of this run may learn everything.")
    else:
        lines.append(f"Promise: epsilon {epsilon:g} at delta {delta:g}.")
        lines += Meaning(EpsilonDelta(epsilon, delta)).sentences(protected_text(guarantee).split(",")[0])
    lines.append(f"It covers {document.rounds} rounds of {document.algorithm}, and can be spent once.")
    lines.append(f"Purpose: {document.justification}")
    return tuple(lines)


@dataclass(frozen=True)
class BudgetChange:
    """One thing that differs from an earlier budget; `worse` is True where it protects less, None where it depends."""

    what: str
    before: str
    after: str
    worse: bool | None = None

    @property
    def sentence(self) -> str:
        mark = {True: " (protects less)", False: " (protects more)", None: ""}[self.worse]
        return f"{self.what}: {self.before} -> {self.after}{mark}"


def last_before(document: BudgetDocument, others: Iterable[BudgetDocument]) -> BudgetDocument | None:
    """The newest other document for the same data set (the same silos where none is declared)."""
    same = [one for one in others if _subject(one) == _subject(document) and one.nonce != document.nonce]
    earlier = [one for one in same if one.validity.issued_at <= document.validity.issued_at]
    return max(earlier, key=lambda one: one.validity.issued_at, default=None)


def _subject(document: BudgetDocument) -> object:
    named = document.dataset
    return named.label if named is not None else tuple(sorted(silo.name for silo in document.data.silos))


def changes(before: BudgetDocument, after: BudgetDocument) -> tuple[BudgetChange, ...]:
    """Everything that a reader of the earlier budget would be wrong about in the later one."""
    return tuple(_changes(before, after))


def _changes(before: BudgetDocument, after: BudgetDocument) -> Iterator[BudgetChange]:
    old, new = before.guarantee, after.guarantee
    if old.kind != new.kind:
        yield BudgetChange("kind of promise", old.kind, new.kind)
    for name in ("epsilon", "delta"):
        first, second = getattr(old, name, None), getattr(new, name, None)
        if first != second:
            yield BudgetChange(name, _number(first), _number(second), _more(first, second))
    if protected_text(old) != protected_text(new):
        yield BudgetChange("protected", protected_text(old), protected_text(new))
    if before.noise_source != after.noise_source:
        yield BudgetChange("source of noise", before.noise_source.value, after.noise_source.value)
    for name, first, second in (
        ("algorithm", before.algorithm, after.algorithm),
        ("rounds", str(before.rounds), str(after.rounds)),
    ):
        if first != second:
            yield BudgetChange(name, first, second)
    for key in sorted({*before.parameters, *after.parameters} - {"rounds"}):
        earlier, later = before.parameters.get(key), after.parameters.get(key)
        if earlier != later:
            yield BudgetChange(f"parameter {key.replace('_', '-')}", _number(earlier), _number(later))
    yield from _changed_noise(before, after)
    for lost in sorted(set(old.not_protected) - set(new.not_protected)):
        yield BudgetChange("no longer listed as unprotected", lost, "-")
    for gained in sorted(set(new.not_protected) - set(old.not_protected)):
        yield BudgetChange("newly listed as unprotected", "-", gained)
    yield from _changed_binding(before, after)


def _changed_noise(before: BudgetDocument, after: BudgetDocument) -> Iterator[BudgetChange]:
    noises = [{one.name: _noise_of(one) for one in document.releases} for document in (before, after)]
    for name in sorted({*noises[0], *noises[1]}):
        first, second = (noise.get(name, "not published") for noise in noises)
        if first != second:
            yield BudgetChange(f"noise on {name}", first, second)


def _noise_of(declared: object) -> str:
    if isinstance(declared, InTheClear):
        return "none: sent in the clear"
    if isinstance(declared, RandomizedCategory):
        return f"randomised response with epsilon {declared.epsilon:.6g}"
    scale = getattr(declared, "sigma", None) or getattr(declared, "scale", None)
    return f"{scale:.6g} ({getattr(declared, 'mechanism', 'noise')})"


def _changed_binding(before: BudgetDocument, after: BudgetDocument) -> Iterator[BudgetChange]:
    for what, first, second in (
        ("data set", _named(before), _named(after)),
        ("silos", _silos(before), _silos(after)),
        ("schema of the data", before.data.schema_digest[:12], after.data.schema_digest[:12]),
        ("plan file", before.config_digest[:12], after.config_digest[:12]),
        ("code that sees records", _code(before), _code(after)),
        ("ledger", _ledgers(before), _ledgers(after)),
        ("days it is valid", _days(before), _days(after)),
        ("purpose", before.justification, after.justification),
    ):
        if first != second:
            yield BudgetChange(what, first, second)


def _named(document: BudgetDocument) -> str:
    return "none declared" if document.dataset is None else document.dataset.label


def _silos(document: BudgetDocument) -> str:
    return ", ".join(f"{silo.name} {silo.size}" for silo in document.data.silos)


def _code(document: BudgetDocument) -> str:
    return ", ".join(f"{code.name} {code.sha256[:12]}" for code in document.code) or "none"


def _ledgers(document: BudgetDocument) -> str:
    return ", ".join(bound.ledger[:12] for bound in document.ledgers) or "not bound to a ledger"


def _days(document: BudgetDocument) -> str:
    return str((document.validity.not_after - document.validity.not_before).days)


def _number(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _more(first: float | None, second: float | None) -> bool:
    """Whether the second of two prices is the higher; none at all is the highest."""
    if second is None:
        return True
    return first is not None and second > first

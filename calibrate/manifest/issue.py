"""Putting a signature under a budget, never without having it priced twice first: one's own, or one that was asked for.

What an engineer asks an officer to sign travels as a file. A request holds the whole budget document, so that what is
signed is what was read, to the last digit; the officer's machine prices it again before it signs. The answer is either
the signed manifest or a signed refusal with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import InitVar, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, assert_never, final

from pydantic import AfterValidator, Field, ValidationError, model_validator

from calibrate.accountants import registry
from calibrate.accountants.registry import total_cost
from calibrate.compose import ORDERS
from calibrate.errors import InvalidInput, ManifestRefused, NotCertified, UnsupportedCombination
from calibrate.manifest import keys as signature
from calibrate.manifest.document import PAYLOAD_TYPE, BudgetDocument, Opinion, statement_bytes
from calibrate.manifest.keys import BadSignature, BrokenEnvelope, PublicKey, SigningKey, check_signature, open_envelope
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    Instant,
    NoPrivacyPromised,
    PrivateGuarantee,
    Sha256,
    StrictModel,
    Text,
)
from calibrate.manifest.strict_json import (
    Json,
    NotStrictJson,
    Step,
    canonical,
    digest_of_bytes,
    first_fault,
    in_our_words,
    parse_object,
)
from calibrate.manifest.verify import NeverPickled, read_unverified
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit
from calibrate.releases import Release
from calibrate.tries import RandomTries

if TYPE_CHECKING:
    from calibrate.accountants.registry import Priced
    from calibrate.budget import CertifiedBudget

_SEAL = object()
_QUADRATURE = 1.02
"""By how much the second price of a search may exceed the first: quadrature, and laws that are rounded up."""
_ROUNDING = 1e-9
"""By how much two machines may differ in one divergence; a curve is an upper bound by more than that."""

# Two independent accountants must agree before anybody signs.
#
# One accountant's bug would otherwise become a signed promise. Agreement means that their certified intervals
# overlap: both can then be right. What is promised is the upper end of the better one.


@dataclass(frozen=True)
class CrossCheck:
    """Two opinions on one event that do not contradict each other; `first` is the one to promise from."""

    first: Opinion
    second: Opinion


def cross_check(
    release: Release,
    unit: PrivacyUnit,
    delta: float,
    epsilon: float | None,
    first: Priced | None = None,
    tries: RandomTries | None = None,
) -> CrossCheck:
    """Prices a release twice; raises `ManifestRefused` unless both agree and the price is within `epsilon`.

    `epsilon` is None where nothing finite is promised: a paper's own noise, priced to show what it costs. `first` is
    the best accountant's price of this very release at this delta, if it is known already. With `tries`, what is priced
    is a search over tries of the release.
    """
    if tries is None:
        checked = _two_prices(release, unit, delta, first)
    else:
        checked = _two_prices_of_search(release, unit, delta, tries)
    upper = checked.first.interval.upper
    if epsilon is not None and upper > epsilon:
        raise Step.PRICE.refuse(f"the certified epsilon {upper} exceeds the promised {epsilon}")
    return checked


def _two_prices(release: Release, unit: PrivacyUnit, delta: float, known: Priced | None) -> CrossCheck:
    first = known or registry.best_epsilon(release, unit, delta)
    second = registry.second_opinion(release, unit, delta, first)
    if not registry.agree(first, second):
        raise Step.PRICE.refuse(
            f"{_words(first)} but {_words(second)}, so there is no second opinion that agrees",
            "report the event as a bug; until it is fixed, choose a sampling that both accountants price alike",
        )
    return CrossCheck(_opinion(first), _opinion(second))


def _two_prices_of_search(release: Release, unit: PrivacyUnit, delta: float, tries: RandomTries) -> CrossCheck:
    """A search is priced from closed divergences, and again from divergences by quadrature that must not be larger."""
    # Imported when used: it loads numerical libraries that `privfair calibrate --help` must not wait for.
    from calibrate.search_cost import price_search, second_price

    first = _opinion(registry.priced_by(registry.AccountantName.RENYI, price_search(release, unit, delta, tries)))
    second = Opinion(
        accountant="renyi by quadrature",
        library=first.library,
        version=first.version,
        interval=second_price(release, unit, delta, tries),
    )
    if second.interval.upper > first.interval.upper * _QUADRATURE:
        raise Step.PRICE.refuse(
            f"the search costs {first.interval.upper} by closed formulas and {second.interval.upper} by quadrature",
            "report the event as a bug; until it is fixed, sign single runs",
        )
    return CrossCheck(first, second)


def _opinion(priced: Priced) -> Opinion:
    return Opinion(
        accountant=priced.accountant_name.value,
        library=priced.library,
        version=priced.version,
        interval=priced.interval,
    )


def _words(priced: Priced) -> str:
    return f"{priced.accountant_name.value} certifies [{priced.interval.lower}, {priced.interval.upper}]"


@final
@dataclass(frozen=True)
class BudgetDraft(NeverPickled):
    """A document whose event was priced twice in this process, so that signing it needs no further price."""

    document: BudgetDocument
    seal: InitVar[object]
    certified: CertifiedBudget | None = None
    """The calibrated budget that it promises; None for a paper's own noise, and where nothing is promised."""

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("only calibrate.manifest.draft makes a BudgetDraft")

    @classmethod
    def from_check(
        cls, document: BudgetDocument, checked: CrossCheck | None, certified: CertifiedBudget | None = None
    ) -> BudgetDraft:
        """The document with the opinions that were computed for its event; None where it promises nothing."""
        accounting = document.accounting
        if checked is None:
            expected = isinstance(document.guarantee, NoPrivacyPromised)
        else:
            printed = Opinion.model_validate({name: getattr(accounting, name) for name in Opinion.model_fields})
            expected = printed == checked.first and accounting.second_opinion == checked.second
        if not expected:
            raise Step.PRICE.refuse("the document does not print the prices that were computed for it")
        return cls(document, _SEAL, certified)


# Step 12: the price, recomputed from the signed event by two accountants.
#
# Kept apart from `verify`, because the engine verifies and must not be able to calibrate itself. Officers do
# this before they sign, auditors afterwards: no one has to believe the epsilon that is printed.


def recompute(document: BudgetDocument) -> CrossCheck | None:
    """Two fresh prices of the document's event; None if it promises nothing that has a price.

    Raises `ManifestRefused` at step 12 if the accountants contradict each other, if the price and the slack
    for discrete noise together exceed what is promised, or if the printed interval cannot be right.
    """
    guarantee, accounting = document.guarantee, document.accounting
    match guarantee:
        case NoPrivacyPromised():
            return None
        case PrivateGuarantee() | AsPrintedGuarantee():
            delta, most = guarantee.delta if accounting.delta is None else accounting.delta, None
            if guarantee.epsilon is not None:
                promise = EpsilonDelta(guarantee.epsilon, guarantee.delta)
                most = accounting.discrete_noise.continuous(promise).epsilon
            tries = None if accounting.search is None else accounting.search.tries
            fresh = cross_check(accounting.event, guarantee.privacy_unit(), delta, most, tries=tries)
        case _:
            assert_never(guarantee)
    printed = accounting.interval
    for opinion in (fresh.first, fresh.second):
        if not printed.agrees_with(opinion.interval):
            raise Step.PRICE.refuse(
                f"the document prints [{printed.lower}, {printed.upper}], which {opinion.accountant} excludes"
            )
    _require_renyi(document)
    return fresh


def renyi_points(
    event: Release, unit: PrivacyUnit, tries: RandomTries | None = None
) -> tuple[tuple[float, float], ...] | None:
    """Finite Renyi divergences of an event at the orders of `calibrate.compose`; None where none is proved."""
    try:
        curve = _divergences(event, unit, ORDERS, tries)
    except (UnsupportedCombination, NotCertified):
        return None
    points = tuple((order, value) for order, value in zip(ORDERS, curve, strict=True) if value < math.inf)
    return points or None


def _divergences(
    event: Release, unit: PrivacyUnit, orders: tuple[float, ...], tries: RandomTries | None
) -> tuple[float, ...]:
    """Of one run of the event, or of a whole search over tries of it."""
    from calibrate.accountants.renyi import RenyiAccountant
    from calibrate.search_cost import search_divergences

    if tries is not None:
        return search_divergences(event, unit, orders, tries)
    return total_cost(RenyiAccountant(orders), event, unit).values


def _require_renyi(document: BudgetDocument) -> None:
    """Refuse a document that prints a smaller Renyi divergence than its event has."""
    accounting = document.accounting
    printed, search = accounting.renyi, accounting.search
    if printed is None:
        return
    orders, unit = tuple(order for order, _ in printed), document.guarantee.privacy_unit()
    fresh = _divergences(accounting.event, unit, orders, None if search is None else search.tries)
    for (order, value), true in zip(printed, fresh, strict=True):
        if value < true * (1 - _ROUNDING):
            raise Step.PRICE.refuse(f"the document prints a Renyi divergence of {value} at order {order}, not {true}")


def issue(document: BudgetDocument | BudgetDraft, key: SigningKey) -> bytes:
    """The signed manifest of a document, as the bytes of its file.

    Two independent accountants price the embedded event first, unless they did so while the document was made;
    `ManifestRefused` if they contradict each other or the document. The result is read back before it is
    returned, so that nothing is ever issued that verification would not understand.
    """
    if isinstance(document, BudgetDraft):
        document = document.document
    else:
        recompute(document)
    envelope = signature.sign(PAYLOAD_TYPE, statement_bytes(document), key)
    if read_unverified(envelope).document != document:
        raise ManifestRefused(
            Step.DOCUMENT.label, "the document does not survive being written", "report this as a bug"
        )
    return envelope


def add_signature(envelope: bytes, key: SigningKey) -> bytes:
    """The manifest with one more signature, after the signer's own recomputation of its price.

    Compare it with a draft of the same plan first (`require_same`). Earlier signatures are kept as they are; whether
    they are valid is for `verify` to say, which knows whom to trust. A key that signed already is refused.
    """
    recompute(read_unverified(envelope).document)
    try:
        return signature.add_signature(open_envelope(envelope), key)
    except BrokenEnvelope as broken:
        raise Step.SIGNATURES.refuse(str(broken), "sign with the key of a role that has not signed yet") from broken


# A budget that an engineer asks for and an officer has not signed yet: the request and the answer.

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
    return InvalidInput("REQUEST", "(a file)", f"is not a request ({why})", "give what `privfair budget request` wrote")


_FREE = ("nonce", "validity", "justification")
"""What follows from no plan, and may therefore differ from a second draft."""
_MOST_SHOWN = 3


def differences(asked: BudgetDocument, drafted: BudgetDocument) -> tuple[str, ...]:
    """Each field of `asked` that is not as drafted, in one clause; numbers may differ as two machines' do."""
    first, second = (parse_object(canonical(one.to_json())) for one in (asked, drafted))
    for name in _FREE:
        del first[name], second[name]
    return tuple(_differences("", first, second))


def _differences(place: str, asked: Json, drafted: Json) -> Iterator[str]:
    match asked, drafted:
        case dict(), dict():
            for name in dict.fromkeys((*asked, *drafted)):
                yield from _differences(f"{place}.{name}".strip("."), asked.get(name), drafted.get(name))
        case list(), list() if len(asked) == len(drafted):
            for number, pair in enumerate(zip(asked, drafted, strict=True)):
                yield from _differences(f"{place}[{number}]", *pair)
        case int() | float(), int() | float() if not {bool} & {type(asked), type(drafted)}:
            whole = isinstance(asked, int) and isinstance(drafted, int)
            if asked != drafted if whole else not math.isclose(asked, drafted, rel_tol=_ROUNDING):
                yield f"{place} is {_short(asked)}, and {_short(drafted)} follows from the plan"
        case _ if type(asked) is not type(drafted) or asked != drafted:
            yield f"{place} is {_short(asked)}, and {_short(drafted)} follows from the plan"


def _short(value: Json) -> str:
    text = canonical(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


def require_same(asked: BudgetDocument, drafted: BudgetDocument) -> None:
    """Refuse a document that is not what follows from its plan, nonce, dates and purpose apart."""
    found = differences(asked, drafted)
    if found:
        more = f" (and {len(found) - _MOST_SHOWN} more)" if len(found) > _MOST_SHOWN else ""
        raise Step.PLAN.refuse(
            f"what is asked for is not what follows from its plan: {'; '.join(found[:_MOST_SHOWN])}{more}",
            "have the engineer write the request again with this version of privfair: `privfair budget request`",
        )


def sign_request(request: BudgetRequest, key: SigningKey, drafted: BudgetDraft) -> bytes:
    """The signed manifest that grants the request.

    `drafted` is what this machine drafted and priced for the same plan: a request that differs from it is refused.
    """
    require_same(request.document, drafted.document)
    if request.document.validity.not_after <= datetime.now(UTC):
        raise Step.VALIDITY.refuse("what is asked for has expired already", "ask the engineer for a new request")
    free = {name: getattr(request.document, name) for name in _FREE}
    same = drafted.document.model_copy(update=free) == request.document
    return issue(BudgetDraft(request.document, _SEAL) if same else request.document, key)


def decline_request(request: BudgetRequest, reason: str, key: SigningKey) -> bytes:
    """A signed refusal, for the engineer to read and to keep."""
    with in_our_words("reason"):
        declined = Declined(
            format=DECLINED_FORMAT,
            request=request.digest,
            reason=" ".join(reason.split()),
            declined_at=datetime.now(UTC),
        )
    return signature.sign(DECLINED_TYPE, canonical(declined.model_dump(mode="json", by_alias=True)), key)


def answer_path(file: Path, *, signed: bool) -> Path:
    """Where the answer to a request goes unless another place is named: next to it."""
    return file.with_name(f"{file.stem}-{'signed' if signed else 'declined'}.json")


def answers_no(content: bytes) -> bool:
    """Whether the file is an envelope with a refusal; its signature is not checked."""
    try:
        return open_envelope(content).payload_type == DECLINED_TYPE
    except BrokenEnvelope:
        return False


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

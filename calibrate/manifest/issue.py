"""Putting a signature under a budget, never without having it priced twice first."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, NoReturn, assert_never, final

from calibrate.accountants import registry
from calibrate.accountants.accountant import total_cost
from calibrate.compose import ORDERS
from calibrate.errors import ManifestRefused, NotCertified, UnsupportedCombination
from calibrate.manifest import keys as signature
from calibrate.manifest.consistency import could_both_be_right
from calibrate.manifest.document import PAYLOAD_TYPE, BudgetDocument, Opinion, statement_bytes
from calibrate.manifest.keys import BrokenEnvelope, SigningKey, open_envelope
from calibrate.manifest.mechanism import AsPrintedGuarantee, NoPrivacyPromised, PrivateGuarantee
from calibrate.manifest.strict_json import Step
from calibrate.manifest.verify import read_unverified
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
    if tries is not None:
        return _cross_check_search(release, unit, delta, epsilon, tries)
    first = first or registry.best_epsilon(release, unit, delta)
    second = registry.second_opinion(release, unit, delta, first)
    if not registry.agree(first, second):
        raise Step.PRICE.refuse(
            f"{_words(first)} but {_words(second)}, so there is no second opinion that agrees",
            "report the event as a bug; until it is fixed, choose a sampling that both accountants price alike",
        )
    if epsilon is not None and first.interval.upper > epsilon:
        raise Step.PRICE.refuse(f"the certified epsilon {first.interval.upper} exceeds the promised {epsilon}")
    return CrossCheck(_opinion(first), _opinion(second))


def _cross_check_search(
    release: Release, unit: PrivacyUnit, delta: float, epsilon: float | None, tries: RandomTries
) -> CrossCheck:
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
    if epsilon is not None and first.interval.upper > epsilon:
        raise Step.PRICE.refuse(f"the certified epsilon {first.interval.upper} exceeds the promised {epsilon}")
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
class BudgetDraft:
    """A document whose event was priced twice in this process, so that signing it needs no further price."""

    document: BudgetDocument
    seal: InitVar[object]
    certified: CertifiedBudget | None = None
    """The calibrated budget that it promises; None for a paper's own noise, and where nothing is promised."""

    def __post_init__(self, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("only calibrate.manifest.draft makes a BudgetDraft")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a document is passed on as its signed bytes and priced again, never pickled")

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
# this before they sign, auditors afterwards: nobody has to believe the epsilon that is printed.


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
        if not could_both_be_right(printed, opinion.interval):
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

    Earlier signatures are kept as they are; whether they are valid is for `verify` to say, which knows whom to
    trust. A key that signed already is refused.
    """
    recompute(read_unverified(envelope).document)
    try:
        return signature.add_signature(open_envelope(envelope), key)
    except BrokenEnvelope as broken:
        raise Step.SIGNATURES.refuse(str(broken), "sign with the key of a role that has not signed yet") from broken

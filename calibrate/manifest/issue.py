"""Putting a signature under a budget, never without having it priced twice first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from calibrate.errors import ManifestRefused
from calibrate.manifest import keys as signature
from calibrate.manifest.consistency import continuous_target, could_both_be_right
from calibrate.manifest.document import PAYLOAD_TYPE, Accounting, BudgetDocument, Interval, Opinion, statement_bytes
from calibrate.manifest.keys import BrokenEnvelope, SigningKey, open_envelope
from calibrate.manifest.mechanism import AsPrintedGuarantee, NoPrivacyPromised, PrivateGuarantee
from calibrate.manifest.strict_json import Step
from calibrate.manifest.verify import read_unverified
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit
from calibrate.releases import Release

if TYPE_CHECKING:
    from calibrate.accountants.registry import Priced


# Two independent accountants must agree before anybody signs.
#
# One accountant's bug would otherwise become a signed promise. Agreement means that their certified intervals
# overlap: both can then be right. What is promised is the upper end of the better one.


@dataclass(frozen=True)
class CrossCheck:
    """Two opinions on one event that do not contradict each other; `first` is the one to promise from."""

    first: Opinion
    second: Opinion


def cross_check(release: Release, unit: PrivacyUnit, delta: float, epsilon: float | None) -> CrossCheck:
    """Prices a release twice; raises `ManifestRefused` unless both agree and the price is within `epsilon`.

    `epsilon` is None where nothing finite is promised: a paper's own noise, priced to show what it costs.
    """
    # Imported when used: accountants load numerical libraries that reading a manifest must not need.
    from calibrate.accountants import registry

    first = registry.best_epsilon(release, unit, delta)
    second = registry.second_opinion(release, unit, delta)
    if not registry.agree(first, second):
        raise Step.PRICE.refuse(
            f"{_words(first)} but {_words(second)}, so there is no second opinion that agrees",
            "report the event as a bug; until it is mended, choose a sampling that both accountants price alike",
        )
    if epsilon is not None and first.interval.upper > epsilon:
        raise Step.PRICE.refuse(f"the certified epsilon {first.interval.upper} exceeds the promised {epsilon}")
    return CrossCheck(_opinion(first), _opinion(second))


def _opinion(priced: Priced) -> Opinion:
    return Opinion(
        accountant=priced.accountant_name.value,
        library=priced.library,
        version=priced.version,
        interval=Interval.of(priced.interval),
    )


def _words(priced: Priced) -> str:
    return f"{priced.accountant_name.value} certifies [{priced.interval.lower}, {priced.interval.upper}]"


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
            delta = guarantee.delta if accounting.delta is None else accounting.delta
            most = _most_for_continuous_noise(guarantee, accounting)
            fresh = cross_check(accounting.event, guarantee.privacy_unit(), delta, most)
        case _:
            assert_never(guarantee)
    printed = accounting.interval.certified()
    for opinion in (fresh.first, fresh.second):
        if not could_both_be_right(printed, opinion.interval.certified()):
            raise Step.PRICE.refuse(
                f"the document prints [{printed.lower}, {printed.upper}], which {opinion.accountant} excludes"
            )
    return fresh


def _most_for_continuous_noise(
    guarantee: PrivateGuarantee | AsPrintedGuarantee, accounting: Accounting
) -> float | None:
    """The largest price that leaves room for the slack of discrete noise."""
    if guarantee.epsilon is None:
        return None
    promise = EpsilonDelta(guarantee.epsilon, guarantee.delta)
    return continuous_target(promise, accounting.discrete_noise.slack()).epsilon


def issue(document: BudgetDocument, key: SigningKey) -> bytes:
    """The signed manifest of a document, as the bytes of its file.

    Two independent accountants price the embedded event first; `ManifestRefused` if they contradict each
    other or the document. The result is read back before it is returned, so that nothing is ever issued
    that verification would not understand.
    """
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

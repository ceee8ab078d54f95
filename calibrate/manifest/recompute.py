"""Step 12: the price, recomputed from the signed event by two accountants.

Kept apart from `verify`, because the engine verifies and must not be able to calibrate itself. Officers do
this before they sign, auditors afterwards: nobody has to believe the epsilon that is printed.
"""

from __future__ import annotations

from typing import assert_never

from calibrate.manifest.consistency import could_both_be_right
from calibrate.manifest.cross_check import CrossCheck, cross_check
from calibrate.manifest.discreteness import continuous_target
from calibrate.manifest.document import Accounting, BudgetDocument
from calibrate.manifest.guarantee import AsPrintedGuarantee, NoPrivacyPromised, PrivateGuarantee
from calibrate.manifest.steps import Step
from calibrate.privacy_unit import EpsilonDelta


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

"""Step 12: the price, recomputed from the signed event by two accountants.

Kept apart from `verify`, because the engine verifies and must not be able to calibrate itself. Officers do
this before they sign, auditors afterwards: nobody has to believe the epsilon that is printed.
"""

from __future__ import annotations

from typing import assert_never

from calibrate.manifest.consistency import could_both_be_right
from calibrate.manifest.cross_check import CrossCheck, cross_check
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.guarantee import AsPrintedGuarantee, NoPrivacyPromised, PrivateGuarantee
from calibrate.manifest.steps import Step


def recompute(document: BudgetDocument) -> CrossCheck | None:
    """Two fresh prices of the document's event; None if it promises nothing that has a price.

    Raises `ManifestRefused` at step 12 if the accountants contradict each other, if the price exceeds what is
    promised, or if the interval printed in the document cannot be right.
    """
    guarantee = document.guarantee
    event = document.accounting.event
    match guarantee:
        case NoPrivacyPromised():
            return None
        case PrivateGuarantee() | AsPrintedGuarantee():
            fresh = cross_check(event, guarantee.privacy_unit(), guarantee.delta, guarantee.epsilon)
        case _:
            assert_never(guarantee)
    printed = document.accounting.interval.certified()
    for opinion in (fresh.first, fresh.second):
        if not could_both_be_right(printed, opinion.interval.certified()):
            raise Step.PRICE.refuse(
                f"the document prints [{printed.lower}, {printed.upper}], which {opinion.accountant} excludes"
            )
    return fresh

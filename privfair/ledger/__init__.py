"""The privacy ledger: what was claimed, charged and released, on disk before any noise is drawn.

`Ledger.create(...)` once, `Ledger.open(...)`, `ledger.claim(terms)`, `claim.charge_ahead()`,
`claim.record_release(...)`.
See docs/ledger.md for what it promises and what a crash loses.
"""

from privfair.ledger.claim import DEFAULT_BLOCK, Claim, ClaimState, DataBudgetStatus, LedgerStatus, ManifestStatus
from privfair.ledger.entries import (
    ClaimEnded,
    ClaimToken,
    Head,
    ManifestTerms,
    Release,
    RolledBack,
    Unavailable,
    UnknownClaim,
)
from privfair.ledger.ledger import Ledger
from privfair.ledger.store import LedgerAccess

__all__ = [
    "DEFAULT_BLOCK",
    "Claim",
    "ClaimEnded",
    "ClaimState",
    "ClaimToken",
    "DataBudgetStatus",
    "Head",
    "Ledger",
    "LedgerAccess",
    "LedgerStatus",
    "ManifestStatus",
    "ManifestTerms",
    "Release",
    "RolledBack",
    "Unavailable",
    "UnknownClaim",
]

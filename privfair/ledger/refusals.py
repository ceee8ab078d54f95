"""Why the ledger says no, one class a rule.

::

    LedgerRefused
    └── Refusal               subject, rule and remedy kept apart for programs
        ├── NotIntact             a row, the chain or the append-only guard was changed
        ├── RolledBack            the ledger is older than its anchor, or than what was already seen
        ├── AlreadyClaimed        the manifest, or its single-use nonce, was claimed before
        ├── UnknownClaim          no claim in this ledger belongs to the token
        ├── ClaimSuperseded       the claim was resumed elsewhere, or the object crossed a fork
        ├── ClaimEnded            the claim is closed, or the manifest has expired
        ├── BudgetExceeded        the data set's total budget does not allow the claim
        ├── RoundsExhausted       more rounds asked for than were signed
        ├── RoundNotHeld          a release of a round this session did not charge
        ├── AlreadyReleased       a second release of one value in one round
        └── Unavailable           the database or the anchor could not be read or written
"""

from __future__ import annotations

from calibrate.errors import LedgerRefused


class Refusal(LedgerRefused):
    """One sentence: what was refused, by which rule, and what to do."""

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

"""What a ledger says about itself, for people and for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from privfair.ledger.anchor import AnchorState
from privfair.ledger.book import Account, Book
from privfair.ledger.entries import Head


class ClaimState(Enum):
    """OPEN may still charge; EXHAUSTED has charged all it may; CLOSED was ended by its holder."""

    OPEN = "open"
    EXHAUSTED = "exhausted"
    CLOSED = "closed"


@dataclass(frozen=True)
class ManifestStatus:
    """One claimed manifest. Rounds charged are spent, whether released or lost in a crash."""

    manifest_digest: str
    state: ClaimState
    rounds: int
    charged: int
    released_rounds: int
    releases: int
    epsilon: float | None
    delta: float
    unit: str
    data_digest: str
    valid_until: str
    claimant: str
    claimed_at: str
    claim_hash: str
    session: int
    transcript_digest: str | None


@dataclass(frozen=True)
class DataBudgetStatus:
    """The total promise for one data set, and the sum of what was claimed on it."""

    data_digest: str
    unit: str
    epsilon: float
    delta: float
    claimed_epsilon: float
    claimed_delta: float


@dataclass(frozen=True)
class LedgerStatus:
    """The whole ledger at one moment."""

    location: str
    ledger: str
    entries: int
    head: Head
    anchor: AnchorState
    manifests: tuple[ManifestStatus, ...]
    budgets: tuple[DataBudgetStatus, ...]


def describe(location: str, book: Book, anchor: AnchorState) -> LedgerStatus:
    return LedgerStatus(
        location=location,
        ledger=book.ledger,
        entries=book.head.seq,
        head=book.head,
        anchor=anchor,
        manifests=tuple(describe_manifest(account) for account in book.accounts.values()),
        budgets=tuple(_budget(book, data) for data in book.budgets),
    )


def describe_manifest(account: Account) -> ManifestStatus:
    claim = account.claim
    if account.closed is not None:
        state = ClaimState.CLOSED
    elif account.remaining == 0:
        state = ClaimState.EXHAUSTED
    else:
        state = ClaimState.OPEN
    return ManifestStatus(
        manifest_digest=claim.manifest,
        state=state,
        rounds=claim.rounds,
        charged=account.charged,
        released_rounds=len(account.released_rounds),
        releases=account.releases,
        epsilon=claim.epsilon,
        delta=claim.delta,
        unit=claim.unit,
        data_digest=claim.data,
        valid_until=claim.valid_until,
        claimant=claim.claimant,
        claimed_at=claim.at,
        claim_hash=account.head.hash,
        session=account.session,
        transcript_digest=account.closed.transcript if account.closed else None,
    )


def _budget(book: Book, data: str) -> DataBudgetStatus:
    budget = book.budgets[data]
    epsilon, delta = book.spent_on(data)
    return DataBudgetStatus(data, budget.unit, budget.epsilon, budget.delta, float(epsilon), float(delta))

"""What a ledger says about itself, for people and for the command line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calibrate.compose import exact, rounded_up
from calibrate.privacy_unit import PrivacyUnit
from privfair.ledger.anchor import AnchorState
from privfair.ledger.book import Account, Book
from privfair.ledger.entries import UNIT_OF_TEXT, Closed, Head, unit_text


class ClaimState(Enum):
    """OPEN may still charge; EXHAUSTED has charged all it may; CLOSED was ended by its holder, ABANDONED given up."""

    OPEN = "open"
    EXHAUSTED = "exhausted"
    CLOSED = "closed"
    ABANDONED = "abandoned"


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
    dataset: str
    data_digest: str
    purpose: str
    signers: tuple[str, ...]
    valid_until: str
    claimant: str
    claimed_at: str
    claim_hash: str
    session: int
    transcript_digest: str | None
    abandoned: str | None


@dataclass(frozen=True)
class DataBudgetStatus:
    """What was claimed on one data set for one unit, and the cap where one is set.

    `claimed_epsilon` is None where the claims bound nothing for the unit; `epsilon` is None where no budget is set.
    """

    dataset: str
    unit: str
    epsilon: float | None
    delta: float | None
    claimed_epsilon: float | None
    claimed_delta: float | None
    spent_by_restore: bool

    @property
    def left(self) -> float | None:
        """How much epsilon further claims may promise; None without a budget."""
        if self.epsilon is None or self.claimed_epsilon is None:
            return None
        return 0.0 if self.spent_by_restore else max(0.0, float(exact(self.epsilon) - exact(self.claimed_epsilon)))


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
        budgets=tuple(_budget(book, dataset, unit) for dataset, unit in _kept(book)),
    )


def describe_manifest(account: Account) -> ManifestStatus:
    claim = account.claim
    closed = account.closed if isinstance(account.closed, Closed) else None
    if closed is not None and closed.abandoned is not None:
        state = ClaimState.ABANDONED
    elif account.closed is not None:
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
        dataset=claim.dataset,
        data_digest=claim.data,
        purpose=claim.purpose,
        signers=claim.signers,
        valid_until=claim.valid_until,
        claimant=claim.claimant,
        claimed_at=claim.at,
        claim_hash=account.head.hash,
        session=account.session,
        transcript_digest=closed.transcript if closed else None,
        abandoned=closed.abandoned if closed else None,
    )


def _kept(book: Book) -> dict[tuple[str, PrivacyUnit], None]:
    """Data sets and units with a budget, then those with claims alone."""
    claims = [account.claim for account in book.accounts.values()]
    return dict.fromkeys([*book.budgets, *((claim.dataset, UNIT_OF_TEXT[claim.unit]) for claim in claims)])


def _budget(book: Book, dataset: str, unit: PrivacyUnit) -> DataBudgetStatus:
    budget, spent = book.budgets.get((dataset, unit)), book.spent_on(dataset, unit)
    return DataBudgetStatus(
        dataset=dataset,
        unit=unit_text(unit),
        epsilon=budget.epsilon if budget else None,
        delta=budget.delta if budget else None,
        claimed_epsilon=rounded_up(spent.epsilon) if spent else None,
        claimed_delta=rounded_up(spent.delta) if spent else None,
        spent_by_restore=budget is not None and book.restored is not None,
    )

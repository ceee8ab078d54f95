"""What a ledger says about itself, for people and for the command line."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from calibrate.compose import ODOMETER_DELTA, BudgetFilter, Spent, exact, odometer, rounded_up
from calibrate.manifest.show import describe_unit
from calibrate.privacy_unit import PrivacyUnit
from privfair.ledger.book import Account, Book, basic_total
from privfair.ledger.entries import UNIT_OF_TEXT, Claimed, Closed, Head, unit_text
from privfair.ledger.journal import AnchorState
from privfair.ledger.terms import undeclared_dataset


class ClaimState(Enum):
    """OPEN may still charge; EXHAUSTED has charged all it may; CLOSED was ended by its holder, ABANDONED given up."""

    OPEN = "open"
    EXHAUSTED = "exhausted"
    CLOSED = "closed"
    ABANDONED = "abandoned"


@dataclass(frozen=True)
class ManifestStatus:
    """One claimed manifest: the claim, and what became of it. Rounds charged are spent, released or lost in a crash."""

    claim: Claimed
    claim_hash: str
    state: ClaimState
    charged: int
    released_rounds: int
    releases: int
    session: int
    transcript_digest: str | None
    abandoned: str | None

    @property
    def dataset_declared(self) -> bool:
        """False where the data set is identified by the digest of names and sizes, for want of a declared identity."""
        return self.claim.dataset != undeclared_dataset(self.claim.data)


@dataclass(frozen=True)
class DataBudgetStatus:
    """What was claimed on one data set for one unit, and the cap where one is set.

    `claimed_epsilon` is None where the claims bound nothing for the unit; `epsilon` is None where no budget is set.
    `filter` is what keeps the budget ("basic" or "renyi"), `used` the share of it that is taken. `odometer_epsilon` is
    the running total by Renyi divergences, at `odometer_delta`; None where a claim states none.
    """

    dataset: str
    unit: str
    epsilon: float | None
    delta: float | None
    claimed_epsilon: float | None
    claimed_delta: float | None
    spent_by_restore: bool
    filter: str | None = None
    used: float | None = None
    odometer_epsilon: float | None = None
    odometer_delta: float = ODOMETER_DELTA

    @property
    def left(self) -> float | None:
        """How much epsilon further claims may promise, in proportion under a Renyi filter; None without a budget."""
        if self.epsilon is None or self.claimed_epsilon is None:
            return None
        if self.spent_by_restore:
            return 0.0
        if self.filter == BudgetFilter.RENYI and self.used is not None:
            return self.epsilon * max(0.0, 1 - self.used)
        return max(0.0, float(exact(self.epsilon) - exact(self.claimed_epsilon)))


def unit_in_words(unit: str) -> str:
    """Whom a ledger's unit ("record by add-remove") speaks of, as an officer would say it."""
    return describe_unit(UNIT_OF_TEXT[unit]).partition(" (")[0]


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
    """The whole ledger at `location` as people read it, from its book and the state of its anchor."""
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
    """One claimed manifest as people read it, from its account in the book."""
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
        claim=account.claim,
        claim_hash=account.head.hash,
        state=state,
        charged=account.charged,
        released_rounds=len(account.released_rounds),
        releases=account.releases,
        session=account.session,
        transcript_digest=closed.transcript if closed else None,
        abandoned=closed.abandoned if closed else None,
    )


def _kept(book: Book) -> dict[tuple[str, PrivacyUnit], None]:
    """Data sets and units with a budget, then those with claims alone."""
    claims = [account.claim for account in book.accounts.values()]
    return dict.fromkeys([*book.budgets, *((claim.dataset, UNIT_OF_TEXT[claim.unit]) for claim in claims)])


def _budget(book: Book, dataset: str, unit: PrivacyUnit) -> DataBudgetStatus:
    budget, claims = book.budgets.get((dataset, unit)), book.claims_on(dataset, unit)
    spent = None if claims is None else basic_total(claims)
    running = None if claims is None else odometer(claims, ODOMETER_DELTA)
    kept = _kept_by(book, dataset, unit, claims)
    return DataBudgetStatus(
        dataset=dataset,
        unit=unit_text(unit),
        epsilon=budget.epsilon if budget else None,
        delta=budget.delta if budget else None,
        claimed_epsilon=rounded_up(spent.epsilon) if spent else None,
        claimed_delta=rounded_up(spent.delta) if spent else None,
        spent_by_restore=budget is not None and book.restored is not None,
        odometer_epsilon=None if running is None or math.isinf(running) else running,
        filter=kept[0] if kept else None,
        used=kept[1] if kept else None,
    )


def _kept_by(book: Book, dataset: str, unit: PrivacyUnit, claims: tuple[Spent, ...] | None) -> tuple[str, float] | None:
    """What keeps a budget, and the share of it that is taken; None where there is none."""
    budget = book.budgets.get((dataset, unit))
    if budget is None or claims is None:
        return None
    if not claims:
        return (budget.filter or BudgetFilter.BASIC).value, 0.0
    found = book.filter_on(dataset, unit, claims[0])
    if found is not None:
        return BudgetFilter.RENYI.value, min(1.0, found.used(claims))
    spent = basic_total(claims)
    shares = [spent.epsilon / exact(budget.epsilon)] + ([spent.delta / exact(budget.delta)] if budget.delta else [])
    return BudgetFilter.BASIC.value, min(1.0, float(max(shares)))

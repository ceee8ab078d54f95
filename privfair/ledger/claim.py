"""A claim in use (charge rounds ahead, publish, record what was published), and what a ledger reports of its claims."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import partial
from typing import Protocol

from calibrate.compose import ODOMETER_DELTA, BudgetFilter, Spent, exact, odometer, rounded_up
from calibrate.errors import count
from calibrate.manifest.document import BudgetDocument, seen_as
from calibrate.manifest.show import describe_unit
from calibrate.privacy_unit import PrivacyUnit
from privfair.ledger.book import Account, Book, basic_total, not_charged, released_before, short
from privfair.ledger.entries import (
    UNIT_OF_TEXT,
    AlreadyReleased,
    Charged,
    Claimed,
    ClaimToken,
    Closed,
    Head,
    Refusal,
    Release,
    Released,
    RoundNotHeld,
    WrongLedger,
    digest_text,
    label,
    link,
    undeclared_dataset,
    unit_text,
)
from privfair.ledger.journal import AnchorState, Draft, Journal

DEFAULT_BLOCK = 32
"""Rounds to charge ahead: where syncing no longer dominates and a crash still loses little (see docs)."""

_MOST_VALUES = 2000
"""Releases in one entry, so that no single row becomes unwieldy."""


Charges = Sequence[tuple[int, str]]
"""Where blocks of charges end, and the hashes of their entries, in order."""


class Witness(Protocol):
    """Another party that remembers how far each budget was charged."""

    def countersign(self, key_id: str, manifest: str, party: str, charges: Charges) -> None:
        """Raise unless the witness with this key takes `charges` as what followed what it has seen."""
        ...


class Claim:
    """The right to spend one manifest, held by one session of one process.

    The order is the guarantee: `charge` returns after the charge is on disk; only then may noise be drawn
    for those rounds; `record_release` is called before the bytes leave the gate, and refuses a second one.
    Records are written with the next charge, with `flush` or with `close`. What a crash loses are the
    records since then, never the charges: the rounds stay spent, a resumed session gets fresh ones, and
    `reconcile` adds the lost records from the transcript.
    """

    def __init__(self, journal: Journal, token: ClaimToken, ledger: str, account: Account) -> None:
        self.token = token
        self.ledger = ledger
        self.manifest = account.claim.manifest
        self.head: Head = account.head
        self.rounds = account.claim.rounds
        self.session = account.session
        self._journal = journal
        self._charged = account.charged
        self._first = account.charged
        self._pending: list[Release] = []
        self._recorded: set[tuple[int, str, str]] = set()
        self._countersign: Callable[[Charges], None] | None = None
        self._last: Charges = ()

    def countersigned(self, ask: Callable[[Charges], None]) -> None:
        """Have what was charged so far, and each later block before it is held, countersigned by `ask`."""
        entries = (one for one in self._journal.entries() if isinstance(one, Charged))
        charges = [(one.end, link(one).hash) for one in entries if one.manifest == self.manifest]
        ask(charges)
        self._countersign, self._last = ask, charges[-1:]

    @property
    def charged(self) -> int:
        """Rounds of the manifest spent so far, by all sessions."""
        return self._charged

    @property
    def remaining(self) -> int:
        """Signed rounds that may still be charged."""
        return self.rounds - self._charged

    @property
    def held(self) -> range:
        """The rounds this session charged; noise may be drawn for these and for no others."""
        return range(self._first, self._charged)

    def charge(self, rounds: int) -> range:
        """Spend the next `rounds` rounds; they are on disk, for good, before this returns."""
        count("rounds", rounds)

        def next_rounds(book: Book) -> Iterator[Draft]:
            yield from self._unwritten(book)
            first = book.account(self.manifest).charged
            yield self._draft(Charged, first=first, end=first + int(rounds))

        with self._journal.lock:
            book = self._journal.append(next_rounds)
            self._pending.clear()
            self._charged = end = book.account(self.manifest).charged
            if self._countersign is not None:
                newest = (end, book.head.hash)
                try:
                    self._countersign((*self._last, newest))
                except BaseException:
                    self._first = end  # spent, and never used
                    raise
                self._last = (newest,)
            return range(end - int(rounds), end)

    def charge_ahead(self, block: int = DEFAULT_BLOCK) -> range:
        """Spend the next block, or what is left of the signed rounds; refused where nothing is left."""
        return self.charge(min(count("block", block), max(1, self.remaining)))

    def require_unreleased(self, round_number: int, party: str, name: str) -> None:
        """Refuse, before any noise is drawn, a value this session may not release now."""
        self._journal.require_own_process()
        key = (round_number, party, name)
        if not 0 <= round_number < self._charged:
            raise not_charged(self.manifest, key, self._charged)
        if round_number not in self.held:
            raise RoundNotHeld(
                f"to release {name!r} of {party!r} in round {round_number} of manifest {short(self.manifest)}",
                f"an earlier session charged it; this one holds rounds from {self._first} on",
                "send published bytes again from the transcript, or continue with a fresh round",
            )
        if key in self._recorded:
            raise released_before(self.manifest, key)

    def record_release(self, round_number: int, party: str, name: str, digest: str) -> None:
        """Note that a value is about to leave the gate; at most once for each round, party and name."""
        release = Release(
            count("round", round_number, least=0),
            label("party", party),
            label("name", name),
            digest_text("digest", digest),
        )
        with self._journal.lock:
            self.require_unreleased(release.round, party, name)
            self._recorded.add(release[:3])
            self._pending.append(release)

    def reconcile(self, releases: Iterable[Release]) -> int:
        """Record what the transcript shows and a crash kept out of the ledger; how many were missing.

        A release that is recorded already must have the same digest: two different publications of one
        value are what the ledger exists to prevent, and are refused.
        """
        wanted = list(releases)
        with self._journal.lock:
            self.flush()
            known = self._journal.refresh()[0].account(self.manifest).digests
            missing = []
            for release in wanted:
                recorded = known.get(release[:3])
                if recorded is None:
                    missing.append(release)
                elif recorded != release.digest:
                    raise AlreadyReleased(
                        f"to reconcile {release.name!r} of {release.party!r} in round {release.round} "
                        f"of manifest {short(self.manifest)}",
                        f"the ledger recorded {short(recorded)}, the transcript holds {short(release.digest)}",
                        "find out which was sent; noise was drawn twice or the transcript was changed",
                    )
            self._journal.append(lambda book: self._batches(missing))
            self._recorded.update(release[:3] for release in missing)
            return len(missing)

    def flush(self) -> None:
        """Write the records that are waiting, durably."""
        with self._journal.lock:
            if self._pending:
                self._journal.append(self._unwritten)
                self._pending.clear()

    def close(self, transcript_digest: str | None = None) -> None:
        """Write what is waiting and end the claim for good; unspent rounds lapse."""
        if transcript_digest is not None:
            digest_text("transcript_digest", transcript_digest)

        def last(book: Book) -> Iterator[Draft]:
            yield from self._unwritten(book)
            yield self._draft(Closed, transcript=transcript_digest, abandoned=None)

        with self._journal.lock:
            self._journal.append(last)
            self._pending.clear()

    def __reduce__(self) -> str:
        raise TypeError("a Claim cannot be copied or pickled; resume it with its token")

    def _unwritten(self, book: Book) -> Iterator[Draft]:
        # After a lost connection the records may have been committed unknown to us: leave those out.
        known = book.account(self.manifest).digests
        yield from self._batches([r for r in self._pending if known.get(r[:3]) != r.digest])

    def _batches(self, releases: Sequence[Release]) -> Iterator[Draft]:
        for start in range(0, len(releases), _MOST_VALUES):
            batch = tuple(tuple(release) for release in releases[start : start + _MOST_VALUES])
            yield self._draft(Released, values=batch)

    def _draft(self, kind: type[Charged | Released | Closed], **content: object) -> Draft:
        return partial(kind, manifest=self.manifest, session=self.session, **content)  # type: ignore[arg-type]


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

    @property
    def datasets(self) -> tuple[str, ...]:
        """The data sets that the ledger knows, by a limit or a claim."""
        return tuple(dict.fromkeys(one.dataset for one in self.budgets))

    def compare(self, document: BudgetDocument) -> tuple[str, ...]:
        """Sentences about what the ledger knows of a document's data set.

        Refused if the document is bound to another ledger or to none, or if its data set looks like another one.
        """
        require_bound(document, self.ledger)
        if document.dataset is None:
            return ("No data set is declared: with other silos or sizes the ledger starts another total.",)
        document.dataset.require_safe()
        known, name = self.datasets, document.dataset.label
        require_no_double(_TO_SIGN, name, known)
        if name in known:
            return (f"The ledger knows the data set {name}: this budget is added to its total.",)
        near = get_close_matches(seen_as(name), [seen_as(one) for one in known], n=1, cutoff=0)
        nearest = next((one for one in known if [seen_as(one)] == near), None)
        compared = "it knows none" if nearest is None else f"of the {len(known)} it knows, {nearest} is the nearest"
        return (f"NEW DATA SET for your ledger, with a separate total: {name} ({compared}).",)


_TO_SIGN = "to sign this budget"


def require_bound(document: BudgetDocument, ledger: str) -> None:
    """Refuse a document that may not be claimed in the ledger of this id, or may be claimed in any."""
    bound = [one.ledger for one in document.ledgers]
    if ledger not in bound:
        named = " and ".join(one[:16] for one in bound) or "no ledger, so that any ledger would take it"
        rule = f"it is bound to {named}, and yours is {ledger[:16]}"
        raise WrongLedger(_TO_SIGN, rule, "have it requested with `--ledger` and the id of your ledger")


def require_no_double(subject: str, name: str, known: Iterable[str]) -> None:
    """Refuse a new data set whose name a reader could take for a known one: its totals would be kept apart."""
    if name in known:
        return
    double = next((one for one in known if seen_as(one) == seen_as(name)), None)
    if double is not None:
        rule = f"the data set {name!a} looks like {double!a}, which the ledger knows"
        raise Refusal(subject, rule, "use the known name for the same data, or a plainly different one")


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

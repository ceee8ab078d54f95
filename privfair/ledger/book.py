"""The rules of the ledger, as a fold over its entries.

A `Book` is what the entries so far add up to. Each entry, whether about to be written or read back, is
admitted by the same rules; so whatever chain verifies has obeyed them from its first entry on. Because
an entry names its predecessor's digest and the database refuses two successors of one entry, the writer
has always judged by the very state that its entry follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import assert_never

from calibrate.compose import BudgetFilter, Cost, RenyiFilter, Spent, chosen_filter, cost_for, exact, spent_for
from calibrate.privacy_unit import PrivacyUnit
from privfair.ledger.entries import (
    GENESIS,
    UNIT_OF_TEXT,
    AlreadyClaimed,
    AlreadyReleased,
    BudgetExceeded,
    BudgetSet,
    Charged,
    Claimed,
    ClaimEnded,
    ClaimSuperseded,
    Closed,
    Entry,
    Head,
    Link,
    NotIntact,
    Opened,
    Refusal,
    Released,
    Restored,
    Resumed,
    RoundNotHeld,
    RoundsExhausted,
    TrustNoted,
    TrustRolledBack,
    UnknownClaim,
    WrongLedger,
    broken,
    read_link,
)

_NEW_MANIFEST = "have a new manifest with a fresh nonce signed"


@dataclass
class Account:
    """One manifest's running state."""

    claim: Claimed
    head: Head
    ledger: str
    """The identity that the ledger had when it was claimed."""
    session: int = 1
    charged: int = 0
    releases: int = 0
    released_rounds: set[int] = field(default_factory=set)
    digests: dict[tuple[int, str, str], str] = field(default_factory=dict)
    closed: Closed | Restored | None = None

    @property
    def remaining(self) -> int:
        return self.claim.rounds - self.charged


class Book:
    """What the entries admitted so far add up to."""

    def __init__(self) -> None:
        self.ledger = ""
        self.bound_only = False
        self.identities: set[str] = set()
        self.hashes: list[str] = [GENESIS.hash]
        self.accounts: dict[str, Account] = {}
        self.budgets: dict[tuple[str, PrivacyUnit], BudgetSet] = {}
        self.restored: Restored | None = None
        self.trusted: dict[str, TrustNoted] = {}
        """The newest trust file of each line of files: by the root key, or by the first key of an unsigned one."""
        self._nonces: dict[str, int] = {}
        self._tokens: dict[str, str] = {}

    @property
    def head(self) -> Head:
        return Head(len(self.hashes) - 1, self.hashes[-1])

    @property
    def datasets(self) -> set[str]:
        """The data sets that have a limit or a claim."""
        return {name for name, _ in self.budgets} | {one.claim.dataset for one in self.accounts.values()}

    def contains(self, head: Head) -> bool:
        """Whether `head` was the end of this very chain at some time."""
        return head.seq < len(self.hashes) and self.hashes[head.seq] == head.hash

    def account(self, manifest: str) -> Account:
        try:
            return self.accounts[manifest]
        except KeyError:
            raise UnknownClaim(
                f"manifest {short(manifest)}", "it was never claimed in this ledger", "claim it first"
            ) from None

    def account_of_token(self, token_digest: str) -> Account:
        try:
            return self.accounts[self._tokens[token_digest]]
        except KeyError:
            raise UnknownClaim(
                "to resume", "no claim in this ledger was made with this token", "check ledger and run folder"
            ) from None

    def replay(self, row: Link) -> None:
        """Admit a stored row; whatever is wrong with it means that the ledger is not intact."""
        entry = read_link(row, self.head)
        try:
            self.admit(entry, row.hash)
        except NotIntact:
            raise
        except Refusal as refusal:
            raise broken(row.seq, f"the ledger would never have written it ({refusal.rule})") from refusal

    def admit(self, entry: Entry, digest: str) -> None:
        """Take in the next entry, or refuse and stay as before."""
        if (entry.seq == 1) != isinstance(entry, Opened):
            raise broken(entry.seq, "a ledger begins with one opening entry")
        match entry:
            case Opened():
                self._take_identity(entry.ledger)
                self.bound_only = entry.bound_only is True
            case BudgetSet():
                self._admit_budget(entry)
            case Claimed():
                self._admit_claim(entry, digest)
            case Resumed():
                self._admit_resume(entry)
            case Charged():
                self._admit_charge(entry)
            case Released():
                self._admit_releases(entry)
            case Closed():
                self._admit_close(entry)
            case Restored():
                self._admit_restore(entry)
            case TrustNoted():
                self._admit_trust(entry)
            case _:
                assert_never(entry)
        self.hashes.append(digest)

    def claims_on(self, dataset: str, unit: PrivacyUnit) -> tuple[Spent, ...] | None:
        """What each claim on a data set spends for one unit, in order; exactly as the decimals were signed.

        None where a claim bounds nothing for the unit: it promises no privacy, or protects a finer unit only.
        """
        found = []
        for account in self.accounts.values():
            if account.claim.dataset == dataset:
                spent = _spent(account.claim, unit)
                if spent is None:
                    return None
                found.append(spent)
        return tuple(found)

    def filter_on(self, dataset: str, unit: PrivacyUnit, first: Spent | None) -> RenyiFilter | None:
        """The Renyi filter that keeps a data set's budget, given its first claim; None: basic composition."""
        budget = self.budgets[dataset, unit]
        return chosen_filter(budget.filter or BudgetFilter.BASIC, budget.epsilon, budget.delta, first)

    def _admit_budget(self, entry: BudgetSet) -> None:
        subject, unit = f"a budget for data set {entry.dataset!r}", UNIT_OF_TEXT[entry.unit]
        if (entry.dataset, unit) in self.budgets:
            raise BudgetExceeded(
                subject, "it has one for this unit already, never raised", "continue with the budget that is set"
            )
        if self.restored is not None:
            raise BudgetExceeded(
                subject,
                f"the ledger was restored from a backup in entry {self.restored.seq}, so earlier claims may be missing",
                "keep data collected since then in a new ledger",
            )
        if self.claims_on(entry.dataset, unit) is None:
            raise BudgetExceeded(
                subject,
                f"an earlier claim on this data set promised nothing for {entry.unit}",
                "no budget can bound what was lost; set one for a unit that all claims protect",
            )
        self.budgets[entry.dataset, unit] = entry

    def _admit_claim(self, entry: Claimed, digest: str) -> None:
        subject = f"to claim manifest {short(entry.manifest)}"
        if entry.manifest in self.accounts:
            earlier = self.accounts[entry.manifest]
            raise AlreadyClaimed(
                subject,
                f"a manifest is claimed once, and {earlier.claim.claimant} did so in entry {earlier.head.seq}",
                f"resume with the token of that run, or {_NEW_MANIFEST}",
            )
        if entry.nonce in self._nonces:
            raise AlreadyClaimed(subject, f"its nonce was used in entry {self._nonces[entry.nonce]}", _NEW_MANIFEST)
        if entry.token in self._tokens:
            raise AlreadyClaimed(subject, "its token belongs to another claim", "let the ledger make a fresh token")
        if entry.valid_until <= entry.at:
            raise ClaimEnded(subject, f"the manifest expired at {entry.valid_until}", _NEW_MANIFEST)
        if self.bound_only and not entry.ledgers:
            raise WrongLedger(
                subject,
                "it was signed for no ledger in particular, and this ledger takes only what was signed for it",
                f"have it signed with --ledger {short(self.ledger)}",
            )
        if entry.ledgers and self.ledger not in entry.ledgers:
            raise WrongLedger(
                subject,
                f"it was signed for ledger {' or '.join(map(short, entry.ledgers))}, and this is {short(self.ledger)}",
                "use the ledger it names, or have it signed for this one",
            )
        if entry.declared is not None:
            self._check_declared(entry, subject)
        self._check_budget(entry, subject)
        self.accounts[entry.manifest] = Account(entry, Head(entry.seq, digest), self.ledger)
        self._nonces[entry.nonce] = entry.seq
        self._tokens[entry.token] = entry.manifest

    def _check_declared(self, entry: Claimed, subject: str) -> None:
        """Another tool may charge where an officer set a limit, in a ledger that takes more than signed budgets."""
        if self.bound_only:
            raise WrongLedger(
                subject,
                "no one signed it, and this ledger takes only what was signed for it",
                "have a budget signed, or let another tool charge a ledger that was made without --bound-only",
            )
        if all(dataset != entry.dataset for dataset, _ in self.budgets):
            raise BudgetExceeded(
                subject,
                f"data set {entry.dataset!r} has no limit, so that no one allowed another tool to charge it",
                "have the privacy officer set one with `privfair ledger limit`",
            )

    def _check_budget(self, entry: Claimed, subject: str) -> None:
        for (dataset, unit), budget in self.budgets.items():
            if dataset != entry.dataset:
                continue
            asked, before = _spent(entry, unit), self.claims_on(dataset, unit)
            named = f"data set {dataset!r} has a budget for {budget.unit}"
            if asked is None or before is None:
                what = "promises no privacy" if entry.epsilon is None else f"protects {entry.unit}"
                raise BudgetExceeded(
                    subject,
                    f"it {what}, and {named}, which would bound nothing any more",
                    "use other data, or a manifest that protects the budget's unit",
                )
            if self.restored is not None:
                raise BudgetExceeded(
                    subject,
                    f"{named}, which is treated as spent since entry {self.restored.seq} restored a backup",
                    "have manifests on other data signed",
                )
            found = self.filter_on(dataset, unit, (*before, asked)[0])
            why = _over_basic(budget, before, asked) if found is None else _over_filter(found, before, asked)
            if why is not None:
                raise BudgetExceeded(
                    subject,
                    f"{named} {why}",
                    "ask the privacy officer for a smaller promise; what was claimed is never refunded",
                )

    def _admit_resume(self, entry: Resumed) -> None:
        account = self._open_account(entry.manifest, "to resume")
        if entry.session != account.session + 1:
            raise ClaimSuperseded(
                f"to resume manifest {short(entry.manifest)}",
                f"session {account.session} must be followed by {account.session + 1}, not {entry.session}",
                "resume again",
            )
        account.session = entry.session

    def _admit_charge(self, entry: Charged) -> None:
        account = self._open_account(entry.manifest, "to charge")
        subject = f"to charge rounds {entry.first} to {entry.end - 1} of manifest {short(entry.manifest)}"
        self._check_session(account, entry.session, subject)
        if entry.end > account.claim.rounds or entry.end <= entry.first:
            raise RoundsExhausted(
                subject,
                f"{account.claim.rounds} rounds were signed and {account.charged} are spent",
                f"ask for at most {account.remaining}, or {_NEW_MANIFEST}",
            )
        if entry.first != account.charged:
            raise RoundsExhausted(
                subject, f"rounds are charged once and in order, next is {account.charged}", "charge again"
            )
        if account.claim.valid_until <= entry.at:
            raise ClaimEnded(subject, f"the manifest expired at {account.claim.valid_until}", _NEW_MANIFEST)
        account.charged = entry.end

    def _admit_releases(self, entry: Released) -> None:
        account = self._open_account(entry.manifest, "to record releases")
        if entry.session > account.session:
            raise ClaimSuperseded(
                f"to record releases of manifest {short(entry.manifest)}",
                f"session {entry.session} has not begun",
                "resume first",
            )
        fresh: dict[tuple[int, str, str], str] = {}
        for number, party, name, digest in entry.values:
            key = (number, party, name)
            if number >= account.charged:
                raise not_charged(entry.manifest, key, account.charged)
            if key in account.digests or key in fresh:
                raise released_before(entry.manifest, key)
            fresh[key] = digest
        account.digests.update(fresh)
        account.released_rounds.update(key[0] for key in fresh)
        account.releases += len(fresh)

    def _admit_trust(self, entry: TrustNoted) -> None:
        subject = f"trust file {entry.sequence} ({short(entry.trust)})"
        roots = sorted({noted.root for noted in self.trusted.values() if noted.root is not None})
        line = entry.root or entry.first_key
        given_by = next((noted for noted in self.trusted.values() if noted.successor == entry.root), None)
        if entry.root is not None and given_by is not None and given_by.root is not None:
            line = given_by.root
        elif roots and entry.root not in roots:
            raise TrustRolledBack(
                subject,
                f"this ledger takes trust files of the root key {' or '.join(map(short, roots))} alone",
                "name the root key in config.toml, and the trust file that it signed",
            )
        before = self.trusted.get(line)
        if before is not None and before.successor not in (None, entry.root) and entry.trust != before.trust:
            raise TrustRolledBack(
                subject,
                f"trust file {before.sequence} handed over to the root key {short(str(before.successor))}",
                "use the trust file that the new root key signed, and name that key as `root` in config.toml",
            )
        if before is not None and entry.trust != before.trust and entry.sequence <= before.sequence:
            raise TrustRolledBack(
                subject,
                f"trust file {before.sequence} ({short(before.trust)}) was seen before, in entry {before.seq}",
                "use the newest trust file",
            )
        self.trusted.pop(line, None)
        self.trusted[entry.root or entry.first_key] = entry

    def _admit_close(self, entry: Closed) -> None:
        account = self._open_account(entry.manifest, "to close")
        self._check_session(account, entry.session, f"to close manifest {short(entry.manifest)}")
        account.closed = entry
        # Only an open claim can release, so only an open claim needs to know what was released already.
        account.digests.clear()

    def _take_identity(self, ledger: str) -> None:
        self.ledger = ledger
        self.identities.add(ledger)

    def _admit_restore(self, entry: Restored) -> None:
        self._take_identity(entry.ledger)
        self.restored = entry
        for account in self.accounts.values():
            if account.closed is None:
                account.closed = entry
                account.digests.clear()

    def _open_account(self, manifest: str, act: str) -> Account:
        account = self.account(manifest)
        if account.closed is not None:
            raise ClaimEnded(
                f"{act} manifest {short(manifest)}", f"entry {account.closed.seq} closed it", _NEW_MANIFEST
            )
        return account

    @staticmethod
    def _check_session(account: Account, session: int, subject: str) -> None:
        if session != account.session:
            raise ClaimSuperseded(
                subject,
                f"session {session} was superseded by session {account.session}",
                "stop this process, the run was resumed elsewhere",
            )


def not_charged(manifest: str, key: tuple[int, str, str], charged: int) -> RoundNotHeld:
    """The refusal of a release in a round that is not charged; `key` is round, party and name of the value."""
    return RoundNotHeld(
        _release_subject(manifest, key), f"only rounds below {charged} are charged", "charge the round first"
    )


def released_before(manifest: str, key: tuple[int, str, str]) -> AlreadyReleased:
    """The refusal of a second release of one value; `key` is round, party and name of the value."""
    return AlreadyReleased(
        _release_subject(manifest, key),
        "each value is released at most once per round",
        "send the bytes of the transcript again, never draw new ones",
    )


def _release_subject(manifest: str, key: tuple[int, str, str]) -> str:
    number, party, name = key
    return f"to release {name!r} of {party!r} in round {number} of manifest {short(manifest)}"


def _spent(claim: Claimed, unit: PrivacyUnit) -> Spent | None:
    if claim.epsilon is None:
        return None
    promised = UNIT_OF_TEXT[claim.unit]
    curve = None if claim.curve is None else claim.curve.signed()
    return spent_for(cost_for(claim.epsilon, claim.delta, promised, unit), curve, promised, unit)


def basic_total(claims: Iterable[Spent]) -> Cost:
    """The exact sums of epsilon and delta."""
    epsilon = delta = Fraction(0)
    for claim in claims:
        epsilon, delta = epsilon + claim.cost.epsilon, delta + claim.cost.delta
    return Cost(epsilon, delta)


def _over_basic(budget: BudgetSet, before: tuple[Spent, ...], asked: Spent) -> str | None:
    """Why a claim does not fit by basic composition; None where it does."""
    spent = basic_total(before)
    for name, taken, cost, most in (
        ("epsilon", spent.epsilon, asked.cost.epsilon, budget.epsilon),
        ("delta", spent.delta, asked.cost.delta, budget.delta),
    ):
        if taken + cost > exact(most):
            return f"of {name} {most}, earlier claims took {float(taken):g} and this one asks for {float(cost):g}"
    return None


def _over_filter(found: RenyiFilter, before: tuple[Spent, ...], asked: Spent) -> str | None:
    """Why a claim does not fit the Renyi filter; None where it does."""
    if asked.curve is None:
        return "that a Renyi filter keeps, and it states no Renyi divergences, so it must be signed again"
    if found.admits((*before, asked)):
        return None
    return (
        f"of epsilon {found.epsilon} at delta {found.delta}, earlier claims took {found.used(before):.1%} of its Renyi "
        f"filter and this one asks for {found.used((asked,)):.1%}"
    )


def short(digest: str) -> str:
    """Enough of a digest for a person to recognise it."""
    return digest[:12]

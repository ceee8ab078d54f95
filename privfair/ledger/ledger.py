"""The privacy ledger: claim once, charge durably, then release; nothing is ever refunded."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from calibrate.compose import BudgetFilter, RenyiFilter
from calibrate.errors import InvalidInput
from calibrate.manifest.trust import TrustSeen
from calibrate.privacy_unit import PrivacyUnit
from calibrate.releases import Neighbours
from privfair.durable import write_new_file
from privfair.ledger.book import Book
from privfair.ledger.claim import (
    Claim,
    LedgerStatus,
    ManifestStatus,
    Witness,
    describe,
    describe_manifest,
    require_no_double,
)
from privfair.ledger.entries import (
    BudgetSet,
    Claimed,
    ClaimedCurve,
    ClaimToken,
    Closed,
    Head,
    Link,
    ManifestTerms,
    NotIntact,
    Release,
    Released,
    Resumed,
    TrustNoted,
    Unavailable,
    UnreadableEntry,
    claimant_here,
    decode,
    encode,
    label,
    link,
    promise,
    timestamp,
    unit_text,
)
from privfair.ledger.journal import Anchor, AnchorFile, Draft, Journal, check_anchor
from privfair.ledger.store import Backend, LedgerAccess, PostgresTable, SqliteFile, Store
from privfair.ledger.witness import ClaimReceipt

# From what the user wrote to a database: a file path, or a PostgreSQL URL.

_DRIVER = "postgresql+psycopg"


def backend_for(location: str | Path, access: LedgerAccess) -> Backend:
    """The database behind a location."""
    if not _is_url(location):
        if not Path(location).name:
            raise _bad_location(location)
        return SqliteFile(Path(location), access)
    try:
        url = make_url(str(location))
    except ArgumentError as error:
        raise _bad_location(location) from error
    if url.drivername not in ("postgresql", _DRIVER):
        raise _bad_location(url.render_as_string(hide_password=True))
    return PostgresTable(url.set(drivername=_DRIVER))


def default_anchor(location: str | Path, access: LedgerAccess) -> Path | None:
    """LEDGER.anchor for a file; None for a server, which is refused where the ledger is to be written."""
    if not _is_url(location):
        path = Path(location)
        if not path.name:
            raise _bad_location(location)
        return path.with_name(f"{path.name}.anchor")
    if access is LedgerAccess.WRITE:
        raise InvalidInput(
            "anchor", None, "a PostgreSQL ledger needs an anchor on this side", "name a file, kept for good"
        )
    return None


def _is_url(location: str | Path) -> bool:
    return isinstance(location, str) and (":" in location.split("/", 1)[0])


def _bad_location(shown: str | Path) -> InvalidInput:
    return InvalidInput("ledger", str(shown), f"must be a file path or {_DRIVER}://...", "give one of the two")


def _utc_now() -> datetime:
    return datetime.now(UTC)


def _journal(
    location: str | Path,
    anchor: Path | None,
    access: LedgerAccess,
    now: Callable[[], datetime],
    begin: Callable[[Journal], None],
) -> Journal:
    """The entries at a place, opened by one of the journal's ways to begin."""
    store = Store(backend_for(location, access))
    try:
        path = default_anchor(location, access) if anchor is None else Path(anchor)
        journal = Journal(store, None if path is None else AnchorFile(path), access, now)
        begin(journal)
    except BaseException:
        store.close()
        raise
    return journal


def read_backup(path: Path) -> tuple[tuple[Link, ...], Book]:
    """The rows of a backup and what they add up to, verified by all rules."""
    try:
        lines = Path(path).read_text("utf-8", errors="surrogateescape").removesuffix("\n").split("\n")
    except OSError as error:
        raise InvalidInput("backup", str(path), f"cannot be read ({error.strerror})", "check the path") from error
    rows, book = [], Book()
    for line in filter(None, lines):
        try:
            rows.append(link(decode(line)))
        except UnreadableEntry as error:
            raise NotIntact(f"backup {path}", f"line {len(rows) + 1} is not an entry", "use another copy") from error
        book.replay(rows[-1])
    if not rows:
        raise NotIntact(f"backup {path}", "it is empty", "use another copy")
    return tuple(rows), book


class Ledger:
    """One open ledger. Safe for several threads; each process opens its own.

    Guarantee: a round that `Claim.charge` returned is in an entry that was synced to disk before the call
    returned; no round of a manifest is ever returned twice, by whatever process; and never more rounds
    than were signed. So the releases of a manifest, for the unit and data its (epsilon, delta) speak of,
    stay within the composition that the accountant priced. This rests on the database keeping what it
    committed, and on the anchor for telling an old copy from the newest one.

    >>> import privfair as pf, tempfile
    >>> path = tempfile.mkdtemp() + "/ledger.db"
    >>> pf.Ledger.create(path).close()
    >>> with pf.Ledger.open(path) as ledger:
    ...     ledger.receipts()  # what was claimed from it so far
    ()
    """

    witness: Witness | None = None
    """Who countersigns the charges of budgets that name a witness."""

    def __init__(
        self,
        location: str | Path,
        anchor: Path | None = None,
        access: LedgerAccess = LedgerAccess.WRITE,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        """Open the ledger that was made at a file path or a PostgreSQL URL, verify all of it, and check its anchor.

        Without `anchor`, a file's anchor is `<file>.anchor` in its folder; a PostgreSQL ledger that is to be
        written needs one to be named. A ledger that is to be written and whose anchor is missing is
        refused: `Ledger.adopt` is the way to give it a new one.

        location: The path or the URL. anchor: Its anchor file. access: To read, or to write. now: The clock.
        """
        self._journal = _journal(location, anchor, access, now, Journal.begin)

    @classmethod
    def open(
        cls,
        location: str | Path,
        anchor: Path | None = None,
        access: LedgerAccess = LedgerAccess.WRITE,
        now: Callable[[], datetime] = _utc_now,
    ) -> Self:
        """Open a ledger; the same as calling the class."""
        return cls(location, anchor, access, now)

    @classmethod
    def create(
        cls,
        location: str | Path,
        anchor: Path | None = None,
        now: Callable[[], datetime] = _utc_now,
        bound_only: bool = False,
    ) -> Self:
        """Make a ledger with a new identity where there is none; no other function makes one.

        With `bound_only` it refuses manifests that were signed for no ledger in particular.

        location: The path or the URL. anchor: Its anchor file. now: The clock.
        """
        begin = partial(Journal.create, bound_only=bound_only)
        return cls._with(_journal(location, anchor, LedgerAccess.WRITE, now, begin))

    @classmethod
    def restore(
        cls, backup: Path, location: str | Path, anchor: Path | None = None, now: Callable[[], datetime] = _utc_now
    ) -> Self:
        """Make a ledger of a backup, at a place that has none.

        Where the anchor file is still there and says that the backup ends where the ledger ended, nothing is lost and
        the ledger is used again. Otherwise claims and charges after the backup are unknown. Then, so that no
        promise can be broken: the ledger gets a new identity, so that manifests signed for the old one are refused;
        claims that were open are over; every budget of a data set is treated as spent. The old anchor is kept
        next to the new one with `.lost` at its end.

        backup: What `backup` wrote. location: The new path or URL. anchor: Its new anchor file. now: The clock.
        """
        rows, book = read_backup(backup)
        path = default_anchor(location, LedgerAccess.WRITE) if anchor is None else Path(anchor)
        assert path is not None
        found = AnchorFile(path).read()
        if found is not None and found.ledger not in book.identities:
            check_anchor(found, book)
        complete = found is not None and found.head == book.head
        begin = partial(Journal.restore, rows=rows, complete=complete)
        return cls._with(_journal(location, path, LedgerAccess.WRITE, now, begin))

    @classmethod
    def _with(cls, journal: Journal) -> Self:
        ledger = cls.__new__(cls)
        ledger._journal = journal
        return ledger

    @classmethod
    def adopt(cls, location: str | Path, anchor: Path, expected: Head) -> Self:
        """Give an existing ledger a new anchor file, given an end it is known to have had.

        `expected` must come from elsewhere than the ledger: another host's anchor, a signed report, the
        officer's notes. A ledger that does not contain it is refused.

        location: The path or the URL. anchor: The new anchor file.
        """
        with cls.open(location, anchor, LedgerAccess.READ) as found:
            found._journal.require(expected)
            found._journal.move_anchor()
        return cls.open(location, anchor)

    def claim(self, terms: ManifestTerms, token: ClaimToken | None = None, claimant: str | None = None) -> Claim:
        """Take a manifest into use, once; a second claim is refused.

        Pass a token that is already saved, so that a crash right after the claim can be resumed from.

        terms: What the manifest allows. token: Proves the claim later. claimant: Who claims [default: this process].
        """
        token = token or ClaimToken.fresh()
        draft = partial(
            Claimed,
            manifest=terms.manifest_digest,
            nonce=terms.nonce,
            envelope=terms.envelope_digest,
            rounds=int(terms.rounds),
            epsilon=None if terms.epsilon is None else float(terms.epsilon),
            delta=float(terms.delta),
            dataset=terms.dataset,
            data=terms.data_digest,
            unit=unit_text(terms.unit),
            ledgers=tuple(terms.ledgers),
            purpose=" ".join(terms.purpose.split())[:200],
            signers=tuple(terms.signers),
            valid_until=timestamp(terms.valid_until),
            claimant=label("claimant", claimant_here() if claimant is None else claimant),
            token=token.digest,
            curve=None if terms.curve is None else ClaimedCurve.of(terms.curve),
            declared=terms.declared,
        )

        def first(book: Book) -> tuple[Draft]:
            require_no_double("to claim", terms.dataset, book.datasets)
            return (draft,)

        with self._journal.lock:
            book = self._journal.append(first)
            return Claim(self._journal, token, book.ledger, book.account(terms.manifest_digest))

    def resume(self, token: ClaimToken, claimant: str | None = None) -> Claim:
        """Resume a claim after a crash: fresh rounds only, and earlier sessions can charge no more.

        token: Of the claim. claimant: Who resumes [default: this process].
        """
        who = label("claimant", claimant_here() if claimant is None else claimant)

        def next_session(book: Book) -> tuple[Draft]:
            account = book.account_of_token(token.digest)
            manifest, session = account.claim.manifest, account.session + 1
            return (partial(Resumed, manifest=manifest, session=session, claimant=who),)

        with self._journal.lock:
            book = self._journal.append(next_session)
            return Claim(self._journal, token, book.ledger, book.account_of_token(token.digest))

    def remember_trust(self, seen: TrustSeen) -> None:
        """Write down the trust file that is in force, unless it is the last one of its line; refuse an earlier one.

        Guarantee: once a trust file in which a key is revoked was remembered, no earlier file of the same root key
        (or, unsigned, with the same first key) is accepted; once a root-signed file was, no unsigned one is. A file
        that names another root key is the last one that this root signs.

        seen: The file's root key, sequence and digest.
        """
        draft = partial(
            TrustNoted,
            root=seen.root,
            first_key=seen.first_key,
            sequence=seen.sequence,
            trust=seen.digest,
            successor=seen.successor,
        )

        def news(book: Book) -> tuple[Draft, ...]:
            last = book.trusted.get(seen.root or seen.first_key)
            known = last is not None and (last.root, last.trust) == (seen.root, seen.digest)
            return () if known else (draft,)

        with self._journal.lock:
            if news(self._journal.refresh()[0]):  # a run asks after every block: nothing new costs no transaction
                self._journal.append(news)

    def set_budget(
        self,
        dataset: str,
        unit: Neighbours,
        epsilon: float,
        delta: float,
        filter_by: BudgetFilter = BudgetFilter.SMALLER,
    ) -> None:
        """Cap what all claims on one data set may promise together for one unit; set once, never raised.

        `filter_by` says which proof keeps the total: basic composition, a Renyi filter, or whichever of the two lets
        the first claim be repeated more often.

        Guarantee: the claims on `dataset` together are (epsilon, delta)-DP for `unit`, by basic composition with
        adaptively chosen parameters (docs/ledger.md) or by a Renyi filter
        (docs/theorems/composition.md#filters-and-odometers), as long as each manifest's own promise holds and the same
        people's data does not appear under another name or in another ledger.
        """
        promise(epsilon, delta)
        if filter_by is BudgetFilter.RENYI and RenyiFilter.of(epsilon, delta) is None:
            raise InvalidInput(
                "--filter", "renyi", f"has no proof for epsilon {epsilon:g} at delta {delta:g}", "use basic or smaller"
            )
        draft = partial(
            BudgetSet,
            dataset=label("data set", dataset),
            unit=unit_text(PrivacyUnit.named(unit)),
            epsilon=float(epsilon),
            delta=float(delta),
            filter=filter_by,
        )

        def limit(book: Book) -> tuple[Draft]:
            require_no_double("to set a limit", dataset, book.datasets)
            return (draft,)

        self._journal.append(limit)

    def abandon(self, manifest_digest: str, why: str) -> ManifestStatus:
        """Give a run up: its claim is over, its rounds stay spent, and `why` stays on record.

        manifest_digest: Of the claimed manifest. why: The reason, for the record.
        """
        reason = label("why", why)

        def last(book: Book) -> tuple[Draft]:
            session = book.account(manifest_digest).session
            return (partial(Closed, manifest=manifest_digest, session=session, transcript=None, abandoned=reason),)

        with self._journal.lock:
            return describe_manifest(self._journal.append(last).account(manifest_digest))

    def backup(self, out: Path) -> Anchor:
        """Write every entry to a new file, one per line, and return the end that the backup has.

        out: The new file.
        """
        with self._journal.lock:
            lines = [encode(entry) for entry in self._journal.entries()]
            found = self.anchor()
        if len(lines) != found.head.seq:
            raise Unavailable(self._journal.store.label, "it grew while it was copied", "make the backup again")
        try:
            write_new_file(Path(out), "".join(f"{line}\n" for line in lines).encode("utf-8"), mode=0o600)
        except OSError as error:
            raise InvalidInput(
                "--out", str(out), f"cannot be written ({error.strerror})", "name a new file in an existing folder"
            ) from error
        return found

    @property
    def identity(self) -> str:
        """What manifests name, to say that they are for this ledger and no other."""
        return self.anchor().ledger

    @classmethod
    def identity_of(cls, ledger: Ledger | str | Path) -> str:
        """The identity of an open ledger, of the one at a path or a URL, or as it is given (64 hexadecimal digits)."""
        if isinstance(ledger, Ledger):
            return ledger.identity
        if isinstance(ledger, str) and re.fullmatch("[0-9a-f]{64}", ledger):
            return ledger
        with cls.open(ledger, access=LedgerAccess.READ) as opened:
            return opened.identity

    def status(self) -> LedgerStatus:
        """Rounds signed, charged and released, for each manifest, as of now."""
        with self._journal.lock:
            book, state = self._journal.refresh()
            return describe(self._journal.store.label, book, state)

    def manifest_status(self, manifest_digest: str) -> ManifestStatus:
        """The same for one manifest; refused where it was never claimed here.

        manifest_digest: Of the claimed manifest.
        """
        with self._journal.lock:
            book, _ = self._journal.refresh()
            return describe_manifest(book.account(manifest_digest))

    def verify(self) -> tuple[int, Head]:
        """Read everything again from the first entry on, by all rules; the number of entries and the head."""
        with self._journal.lock:
            head = self._journal.reread().head
            return head.seq, head

    def anchor(self) -> Anchor:
        """What to write down elsewhere: which ledger, and its last entry."""
        with self._journal.lock:
            book, _ = self._journal.refresh()
            return Anchor(book.ledger, book.head)

    def releases(self, manifest_digest: str) -> tuple[Release, ...]:
        """Every release recorded for a manifest, in the order it was recorded.

        manifest_digest: Of the claimed manifest.
        """
        self.manifest_status(manifest_digest)
        return tuple(
            Release(*value)
            for entry in self._journal.entries()
            if isinstance(entry, Released) and entry.manifest == manifest_digest
            for value in entry.values
        )

    def receipts(self) -> tuple[ClaimReceipt, ...]:
        """One receipt per claim, for a transparency log (`privfair.ledger.witness`)."""
        with self._journal.lock:
            book, _ = self._journal.refresh()
            return tuple(ClaimReceipt.of(account) for account in book.accounts.values())

    def close(self) -> None:
        """Give the database connection back; claims stay as they are."""
        self._journal.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> str:
        raise TypeError("a Ledger cannot be copied or pickled; open it again")

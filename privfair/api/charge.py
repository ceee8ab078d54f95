"""Charge another tool's release to a ledger before it is made: priced, compared with the limit, written to disk."""

from __future__ import annotations

import hashlib
import math
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from calibrate.compose import SignedCurve
from calibrate.discrete_noise import ProfileSlack
from calibrate.errors import InvalidInput, LedgerRefused, positive
from calibrate.manifest.issue import cross_check, renyi_points
from calibrate.privacy_unit import PrivacyUnit
from calibrate.releases import Neighbours, RandomizedResponse, Release
from privfair.ledger import Claim, DataBudgetStatus, Ledger, ManifestTerms
from privfair.ledger.witness import ClaimReceipt

DECLARED = "declared, not enforced"
_TIME_TO_CHARGE = timedelta(days=1)
_LONGEST = 1900


@dataclass(frozen=True)
class Charge:
    """A release that is paid for: entry `receipt.seq` of the ledger holds it, and nothing is ever refunded.

    `totals` say what the data set's limits have left, and its running total by Renyi divergences. As a context manager
    it ends the entry's claim after the block; if the block raises, the ledger notes which kind of error.
    """

    dataset: str
    unit: PrivacyUnit
    epsilon: float
    delta: float
    receipt: ClaimReceipt
    totals: tuple[DataBudgetStatus, ...]
    _ledger: SharedLedger = field(repr=False, compare=False)
    _claim: Claim = field(repr=False, compare=False)

    def __enter__(self) -> Charge:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._claim.close()
            return
        with suppress(LedgerRefused):  # the block's own error counts
            self._ledger.abandon(self.receipt.manifest, f"the release ended with {kind.__name__}")


class SharedLedger(Ledger):
    """An open ledger that other tools can charge as well; `pf.Ledger` is this class.

    >>> import privfair as pf, tempfile
    >>> place = tempfile.mkdtemp() + "/ledger.db"
    >>> with pf.Ledger.create(place) as ledger:
    ...     ledger.set_budget("clinic/ward7", "add-remove", epsilon=1.0, delta=1e-6)
    ...     with ledger.charge("clinic/ward7", epsilon=0.25, why="mean age") as charge:
    ...         pass  # only now may the other tool draw its noise
    ...     charge.totals[0].left
    0.75
    """

    def charge(
        self,
        dataset: str,
        *,
        release: Release | None = None,
        epsilon: float | None = None,
        delta: float = 0.0,
        relation: Neighbours = "add-remove",
        why: str = "",
    ) -> Charge:
        """Charge a release that another tool is about to make; only what this returns for may be published.

        Give `release`, which is priced here by two accountants that must agree, or the `epsilon` that the tool states.

        dataset: Its name; the privacy officer has set a limit for it. release: What will be published. epsilon: Its
        cost by the tool's own word. delta: Goes with epsilon. relation: How neighbouring data sets differ, or the
        `PrivacyUnit`. why: The purpose, for the record.

        Guarantee: returns after the charge is on disk, and only if all claims on the data set stay within its limits.
        Raises otherwise, also if the ledger can't be reached: then publish nothing. That the tool releases what was
        declared is its own word: the entry says "declared, not enforced".
        """
        unit = PrivacyUnit.named(relation)
        declared, cost, curve = _declared(release, epsilon, delta, unit)
        nonce = secrets.token_hex(32)
        digest = hashlib.sha256(f"{nonce} {declared}".encode()).hexdigest()
        terms = ManifestTerms(
            manifest_digest=digest,
            nonce=nonce,
            envelope_digest=digest,
            rounds=1,
            epsilon=cost,
            delta=delta,
            dataset=dataset,
            data_digest=hashlib.sha256(repr(dataset).encode()).hexdigest(),
            valid_until=datetime.now(UTC) + _TIME_TO_CHARGE,
            unit=unit,
            ledgers=(self.identity,),
            purpose=why,
            curve=curve,
            declared=f"{DECLARED}: {declared}",
        )
        claim = self.claim(terms)
        claim.charge(1)
        receipt = next(one for one in self.receipts() if one.manifest == digest)
        totals = tuple(one for one in self.status().budgets if one.dataset == dataset)
        return Charge(dataset, unit, cost, delta, receipt, totals, _ledger=self, _claim=claim)


def _declared(
    release: Release | None, epsilon: float | None, delta: float, unit: PrivacyUnit
) -> tuple[str, float, SignedCurve | None]:
    """What is to be released in words, the epsilon to charge for it, and its Renyi divergences if they are known."""
    if (release is None) == (epsilon is None):
        rule = "must be given, or release, and not both"
        raise InvalidInput("epsilon", epsilon, rule, "give what is released, or what the other tool says it costs")
    if release is None:
        cost = positive("epsilon", math.nan if epsilon is None else epsilon)
        # With delta 0 every release is post-processing of one coin (Kairouz, Oh, Viswanath, ICML 2015).
        curve = None if delta else _curve(RandomizedResponse(cost, 2), PrivacyUnit.named("replace-attribute"))
        return f"epsilon {cost!r} by the word of another tool", cost, curve
    cost = cross_check(release, unit, delta, None).first.interval.upper
    return repr(release)[:_LONGEST], cost, _curve(release, unit)


def _curve(release: Release, unit: PrivacyUnit) -> SignedCurve | None:
    points = renyi_points(release, unit)
    return None if points is None else SignedCurve(points, ProfileSlack(0.0, 0.0))

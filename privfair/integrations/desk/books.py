"""The ledger as an officer reads it: what was promised on which data, by whom and why, and what needs a look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction

from markupsafe import Markup

from audit.report.charts import Axis, Series, line_chart
from calibrate.compose import cost_for, rounded_up
from privfair.ledger import Ledger, LedgerAccess, LedgerStatus
from privfair.ledger.claim import ClaimState, DataBudgetStatus, ManifestStatus, unit_in_words
from privfair.ledger.entries import UNIT_OF_TEXT
from privfair.ledger.journal import AnchorState

_NEARLY = 0.1
_SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class AccountHistory:
    """One data set and unit: the claims that spend its budget, in time, and the curve of what is spent."""

    budget: DataBudgetStatus
    claims: tuple[ManifestStatus, ...]
    spent: tuple[tuple[str, float], ...]
    """Epsilon promised so far, after each claim."""
    chart: Markup | None


@dataclass(frozen=True)
class Books:
    status: LedgerStatus
    accounts: tuple[AccountHistory, ...]
    warnings: tuple[str, ...]


def open_books(location: str) -> Books:
    """The whole ledger, read again and verified; what it refuses is raised as it is."""
    with Ledger.open(location, access=LedgerAccess.READ) as ledger:
        status = ledger.status()
    accounts = tuple(_account(status, budget) for budget in status.budgets)
    return Books(status, accounts, tuple(_warnings(status, accounts)))


def _account(status: LedgerStatus, budget: DataBudgetStatus) -> AccountHistory:
    unit, total = UNIT_OF_TEXT[budget.unit], Fraction(0)
    claims, spent = [], []
    for one in sorted(status.manifests, key=lambda one: one.claim.at):
        claim = one.claim
        if claim.dataset != budget.dataset:
            continue
        claims.append(one)
        cost = None if claim.epsilon is None else cost_for(claim.epsilon, claim.delta, UNIT_OF_TEXT[claim.unit], unit)
        if cost is not None:
            total += cost.epsilon
            spent.append((claim.at, rounded_up(total)))
    bounded = budget.claimed_epsilon is not None
    return AccountHistory(budget, tuple(claims), tuple(spent), _curve(budget, spent) if spent and bounded else None)


def _curve(budget: DataBudgetStatus, spent: list[tuple[str, float]]) -> Markup:
    """A staircase: each claim is paid for whole at the moment it is made."""
    first = _moment(spent[0][0])
    days = [(_moment(at) - first).total_seconds() / _SECONDS_PER_DAY for at, _ in spent]
    end = max(days[-1] * 1.1, days[-1] + 1.0)
    across, up = [0.0], [0.0]
    for day, (_, total) in zip(days, spent, strict=True):
        across += [day, day]
        up += [up[-1], total]
    across.append(end)
    up.append(up[-1])
    x = Axis.around(f"days since {spent[0][0][:10]}", across)
    cap = budget.epsilon
    y = Axis.around("epsilon", [*up, *([] if cap is None else [cap])])
    lines = [Series("promises so far, added up", tuple(across), tuple(up))]
    if cap is not None:
        lines.append(Series("the most that may be promised", (0.0, end), (cap, cap), dashed=True))
    return Markup(line_chart(f"Epsilon promised over time for {budget.dataset}", x, y, lines))


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _warnings(status: LedgerStatus, accounts: tuple[AccountHistory, ...]) -> Iterator[str]:
    if status.anchor is not AnchorState.CURRENT:
        yield f"The anchor of this ledger is {status.anchor.value}: an older copy could not be told from the newest."
    for account in accounts:
        budget = account.budget
        name = f"{budget.dataset} ({unit_in_words(budget.unit)})"
        if budget.spent_by_restore:
            yield f"{name}: the budget counts as spent, because the ledger was restored and may lack claims."
        elif budget.claimed_epsilon is None:
            yield f"{name}: nothing bounds what was released; a claim promised this unit no privacy."
        elif budget.epsilon is None:
            yield f"{name}: no total is set, so nothing stops further claims; `privfair ledger limit` sets one."
        elif budget.left is not None and budget.left <= _NEARLY * budget.epsilon:
            yield f"{name}: {budget.left:g} of {budget.epsilon:g} is left."
    now = datetime.now(UTC)
    for one in status.manifests:
        short = one.claim.manifest[:12]
        if one.state is ClaimState.OPEN and _moment(one.claim.valid_until) < now:
            yield f"Manifest {short} is still open after its validity ended: close its run, or abandon it."
        if one.charged > one.released_rounds and one.state is not ClaimState.OPEN:
            lost = one.charged - one.released_rounds
            yield f"Manifest {short}: {lost} charged rounds were never released; they stay spent."
        if not one.claim.signers:
            yield f"Manifest {short} was claimed without a known signer."

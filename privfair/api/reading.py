"""What the command line says about budgets and runs, as functions: explain, compose, audit, report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from audit.report.page import render, report_content
from audit.settings import AuditOptions
from calibrate.compose import UnitPromise, compose_beforehand
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.trust import FolderTrust, TrustFile
from calibrate.manifest.verify import authenticate, read_unverified
from calibrate.meaning import Meaning
from calibrate.privacy_unit import EpsilonDelta
from privfair.ledger import Ledger, LedgerAccess
from privfair.run.open_run import TrustInForce
from privfair.run.public import promise_of
from privfair.run.signed_budget import BudgetSource, envelope_of

if TYPE_CHECKING:
    from audit.report.results import AuditReport


def explain(
    budget: BudgetSource | None = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    trust: str | Path | TrustFile | None = None,
) -> Meaning:
    """What a promise means: the attacker's best accuracy, and the trade-off curve.

    >>> import privfair as pf
    >>> f"{pf.explain(epsilon=1.0, delta=1e-5).right_guesses:.4f}"
    '0.7311'

    Args:
        budget: a signed budget; or give epsilon and delta.
        epsilon: the promise to explain, if there is no budget.
        delta: the delta that goes with it.
        trust: whose signatures on the budget are checked; None checks none.
    """
    if (budget is None) == (epsilon is None or delta is None):
        raise InvalidInput("budget", None, "or else epsilon and delta must be given", "give one of the two")
    if budget is None:
        assert epsilon is not None
        assert delta is not None
        return Meaning(EpsilonDelta(epsilon, delta))
    promise = promise_of(_document(budget, trust))
    if promise.epsilon is None:
        raise UnsupportedCombination(
            "words for this budget", "it makes no finite promise: no one is protected", "ask for a private budget"
        )
    return Meaning(EpsilonDelta(promise.epsilon, promise.delta))


def compose(budgets: Iterable[BudgetSource], *, silos: int | None = None) -> UnitPromise:
    """What several budgets promise together to one person who is in all of them; signatures are not checked.

    >>> import privfair as pf
    >>> priced = pf.budget(1.0, 1e-5, units=1000, rounds=10, sampling_rate=0.05, shapes={"gradient": (3,)})
    >>> signed = priced.sign(pf.generate_key())
    >>> 1.0 < pf.compose([signed, signed]).epsilon < 2.0
    True

    Args:
        budgets: signed budgets.
        silos: in at most how many silos of each budget the person's data are; every silo by default.

    Guarantee: as `calibrate.compose.compose_beforehand`, for budgets that were signed without looking at one another's
    results; `calibrate.compose.compose` is the sum that holds for any.
    """
    documents = [(f"budget {place}", _document(budget, None)) for place, budget in enumerate(budgets, start=1)]
    curves = [document.renyi_curve() for _, document in documents]
    return compose_beforehand(promises_of(documents, silos), curves)


def promises_of(documents: Iterable[tuple[str, BudgetDocument]], silos: int | None) -> list[UnitPromise]:
    """What each budget promises to one person, as often as their data are in its silos; refused where it is nothing."""
    found = []
    for name, document in documents:
        promise, times = promise_of(document), len(document.data.silos)
        if promise.epsilon is None:
            raise UnsupportedCombination(
                f"a promise over {name}", "it promises no privacy, so no sum does", "leave it out, or do not use it"
            )
        found.append(UnitPromise(promise.unit, promise.epsilon, promise.delta, min(times, silos or times)))
    return found


def audit_run(
    run: str | Path,
    *,
    trust: str | Path | TrustFile | None = None,
    ledger: str | Path | None = None,
    anchor: str | Path | None = None,
    plan: str | Path | None = None,
    trust_code: bool = False,
    reruns: int | None = None,
    seed: int = 0,
    confidence: float | None = None,
    budget_seconds: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> AuditReport:
    """Audit a run folder, as `privfair audit RUN`: its verdict, with every check and attack.

    Args:
        run: the folder that `privfair train`, `Plan.train` or `BudgetedRun` left.
        trust: whose signatures count; None checks none, and says so.
        ledger: the ledger it was spent from, to compare charges with releases.
        anchor: the ledger's anchor file; by default next to a ledger file.
        plan: the plan in its own place, if it names data files relative to it.
        trust_code: whether code that the folder brings may run.
        reruns: how often the statistical attack runs the training again (4 by default); 0 leaves it out.
        seed: of the auditor's coins.
        confidence: of the lower bound on epsilon; by default what suits the algorithm (0.95; pay-once 0.999).
        budget_seconds: of processor time (60 by default), for trying units one by one, and for more reruns while an
            attack is as right as without noise.
        progress: called with a sentence before each layer.
    """
    from audit.runs.run_audit import audit_run as judge_run

    trusted = FolderTrust(None if trust is None else TrustInForce(trust).file, trust_code)
    options, place = AuditOptions.of(reruns, seed, confidence, budget_seconds), None if plan is None else Path(plan)
    if ledger is None:
        return judge_run(Path(run), options, trusted, None, progress, place)
    with Ledger.open(ledger, None if anchor is None else Path(anchor), LedgerAccess.READ) as book:
        return judge_run(Path(run), options, trusted, book, progress, place)


def report(
    run: str | Path, path: str | Path, *, audit: AuditReport | None = None, trust: str | Path | TrustFile | None = None
) -> Path:
    """Write one self-contained page about a run, for a privacy officer; the page's path.

    Args:
        run: the run folder.
        path: of the HTML file to write.
        audit: what `audit_run` returned.
        trust: whose signatures count; without it the page says in red that no one checked them.
    """
    signers = None if trust is None else TrustInForce(trust).file
    Path(path).write_text(render(report_content(Path(run), audit, signers)), encoding="utf-8")
    return Path(path)


def _document(budget: BudgetSource, trust: str | Path | TrustFile | None) -> BudgetDocument:
    envelope = envelope_of(budget)
    if trust is None:
        return read_unverified(envelope).document
    return authenticate(envelope, TrustInForce(trust).file, for_reading=True).document

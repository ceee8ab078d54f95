"""A search in one process: a secret random number of tries under one budget, of which the best alone is shown.

The whole budget is charged before the number of tries is drawn. Each try is a run of the production engine with a gate,
a transcript and a ledger that no other run has, in a folder that is deleted when the try ends; nothing of a try but the
best model, its setting and its score ever reaches the run folder. Nothing counts the tries.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from pydantic import JsonValue
from torch import Tensor

from calibrate.errors import Refused
from calibrate.manifest.document import BudgetDocument
from privfair.batches.randomness import SystemWords
from privfair.fairness.measurement import Measured
from privfair.federation.coordinator import Position, train_until
from privfair.ledger import Ledger
from privfair.plan.plan import SearchPlan
from privfair.run.folder import RunFolder
from privfair.run.open_run import OpenRun, TrustInForce
from privfair.run.prepare import PreparedRun
from privfair.run.record import RunRecord, Status


@dataclass(frozen=True, eq=False)
class _Try:
    """What a try is judged by, and what is shown of it if it is the best."""

    score: float
    setting: int
    theta: Tensor
    metrics: Measured
    steps: int


class BestTry(TypedDict):
    """search.json: the setting of the best try, and its score."""

    setting: dict[str, JsonValue]
    score: str
    value: float


def run_search(
    run: PreparedRun, folder: RunFolder, ledger: Ledger, trust: TrustInForce | None
) -> tuple[RunRecord, BestTry]:
    """Claim and charge the whole budget, make the tries, write the best one; run.json and search.json.

    Guarantee: what the folder shows afterwards is the best of K tries, K from the signed law (equation 1 of
    calibrate/tries.py), by a rule that looks at each try's own output; so the price of the manifest covers it
    (docs/theorems/composition.md#searches-and-groups). A search that stops has spent its budget and shows nothing.
    """
    search, record = run.search, run.record(ledger.identity)
    assert search is not None
    _require_signed_law(run.document, search)
    spending = OpenRun(run.manifest, ledger, folder, trust=trust).begin({**run.files(), **record.file()})
    spending.charge_all()
    try:
        best = _best_try(spending, run, search)
    except BaseException:
        spending.note(record, Status.INTERRUPTED)
        raise
    run.save_model(folder, best.theta)
    chosen = BestTry(setting=dict(search.settings[best.setting]), score=search.score.value, value=best.score)
    folder.write_json(folder.search, chosen)
    spending.finish()
    return spending.note(record, Status.FINISHED, best.steps, metrics=best.metrics), chosen


def _require_signed_law(document: BudgetDocument, search: SearchPlan) -> None:
    """Refuse a plan with a search under a budget that pays for one run, or for another number of tries."""
    signed = document.accounting.search
    if signed is None or signed.tries != search.tries:
        raise Refused(
            "the plan has a [search] that the budget does not pay for; calibrate and sign the plan again, or drop it"
        )


def _best_try(spending: OpenRun, run: PreparedRun, search: SearchPlan) -> _Try:
    """The number of tries is drawn now, from the operating system; of equal scores the first one counts."""
    words = SystemWords()
    best: _Try | None = None
    for _ in range(search.tries.drawn_by(int.from_bytes(words.words(2).tobytes(), "little"))):
        setting = int.from_bytes(words.words(2).tobytes(), "little") % len(run.tries)
        with tempfile.TemporaryDirectory(prefix=".try-", dir=spending.folder.path) as hidden:
            one = _one_try(spending, run.tries[setting], setting, search, Path(hidden))
        if best is None or one.score > best.score:
            best = one
    assert best is not None
    return best


def _one_try(spending: OpenRun, run: PreparedRun, setting: int, search: SearchPlan, hidden: Path) -> _Try:
    """A whole run, with its own ledger in addition to the one that has been charged."""
    start = Position(run.algorithm.start())
    with Ledger.create(hidden / "ledger.db") as own, spending.attempt(own, RunFolder(hidden)) as attempt:
        position = train_until(run.algorithm, attempt.parties(run), start, run.updates)
        attempt.finish()
    theta = run.algorithm.theta(position.state)
    assert run.held_out is not None
    metrics = run.held_out.measure(run.model, theta, position.step, position.round).as_json()
    return _Try(search.score.of(metrics["overall"]), setting, theta, metrics, position.step)

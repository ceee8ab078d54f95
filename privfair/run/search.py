"""A search in one process: a secret random number of tries under one budget, of which the best alone is shown.

The whole budget is charged before the number of tries is drawn. Each try is a run of the production engine with a gate,
a transcript and a ledger of its own, in a folder that is deleted when the try ends; nothing of a try but the best
model, its setting and its score ever reaches the run folder. Nothing counts the tries.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrate.errors import Refused
from calibrate.manifest.document import BudgetDocument
from privfair.batches.randomness import SystemWords
from privfair.durable import replace_file
from privfair.federation.coordinator import Position, run_steps
from privfair.federation.local_party import LocalParties
from privfair.ledger import ClaimToken, Ledger
from privfair.plan.search import SearchPlan
from privfair.run.folder import RunFolder, json_file, save_model
from privfair.run.open_run import Trust, begin
from privfair.run.prepare import PreparedRun, claim_terms
from privfair.run.public import Status
from privfair.run.summary import Ran, receipts, summary


@dataclass(frozen=True, eq=False)
class _Try:
    """What a try is judged by, and what is shown of it if it is the best."""

    score: float
    setting: int
    theta: Tensor
    metrics: dict[str, Any]
    steps: int


def run_search(run: PreparedRun, folder: RunFolder, ledger: Ledger, trust: Trust | None) -> dict[str, Any]:
    """Claim and charge the whole budget, make the tries, write the best one; the summary of run.json.

    Guarantee: what the folder shows afterwards is the best of K tries, K from the signed law (equation 1 of
    calibrate/tries.py), by a rule that looks at each try's own output; so the price of the manifest covers it
    (docs/theorems/hyperparameter-search.md). A search that stops has spent its budget and shows nothing.
    """
    search, identity = run.search, ledger.anchor().ledger
    assert search is not None
    _require_signed_law(run.document, search)
    ran = Ran(run.manifest, run.sampling, run.updates)

    def about(status: Status, best: _Try | None = None) -> dict[str, Any]:
        known = None if status is Status.BEGUN else ledger.manifest_status(run.manifest.digest)
        steps, metrics = (0, None) if best is None else (best.steps, best.metrics)
        return summary(status, ran, folder, identity, steps, metrics, known)

    def note(status: Status, best: _Try | None = None) -> dict[str, Any]:
        document = about(status, best)
        folder.write_json(folder.summary, document)
        return document

    files = {**run.files(), folder.summary.name: json_file(about(Status.BEGUN))}
    claim = begin(run.manifest, ledger, folder, files, trust)
    claim.charge(run.document.rounds)
    try:
        best = _best_try(run, search, folder)
    except BaseException:
        note(Status.INTERRUPTED)
        raise
    save_model(folder, run.model, best.theta, run.data.encoding(), run.promise.text)
    for name, code in run.plan.own_code().items():
        replace_file(folder.path / name, code)
    chosen = {"setting": dict(search.settings[best.setting]), "score": search.score.value, "value": best.score}
    folder.write_json(folder.search, chosen)
    claim.close()
    folder.write_json(folder.receipts, receipts(ledger, run.manifest.digest))
    return note(Status.FINISHED, best)


def _require_signed_law(document: BudgetDocument, search: SearchPlan) -> None:
    """Refuse a plan with a search under a budget that pays for one run, or for another number of tries."""
    signed = document.accounting.search
    if signed is None or signed.tries != search.tries:
        raise Refused(
            "the plan has a [search] that the budget does not pay for; calibrate and sign the plan again, or drop it"
        )


def _best_try(run: PreparedRun, search: SearchPlan, folder: RunFolder) -> _Try:
    """The number of tries is drawn now, from the operating system; of equal scores the first one counts."""
    words = SystemWords()
    best: _Try | None = None
    for _ in range(search.tries.drawn_by(int.from_bytes(words.words(2).tobytes(), "little"))):
        setting = int.from_bytes(words.words(2).tobytes(), "little") % len(run.tries)
        with tempfile.TemporaryDirectory(prefix=".try-", dir=folder.path) as hidden:
            one = _one_try(run.tries[setting], setting, search, Path(hidden))
        if best is None or one.score > best.score:
            best = one
    assert best is not None
    return best


def _one_try(run: PreparedRun, setting: int, search: SearchPlan, hidden: Path) -> _Try:
    """A whole run, with a ledger of its own beside the one that has been charged."""
    terms = replace(claim_terms(run.manifest), ledgers=())
    with Ledger.create(hidden / "ledger.db") as own:
        claim = own.claim(terms, ClaimToken.at(hidden / "claim.token"))
        position: Position[Any] = Position(run.algorithm.start())
        files = hidden / "transcript.bin", hidden / "batches.bin"
        with LocalParties.open(run.setup, claim, *files, position) as parties:
            for reached in run_steps(run.algorithm, parties, position, run.updates):
                position = reached
            parties.finish()
    theta = run.algorithm.theta(position.state)
    assert run.held_out is not None
    metrics = run.held_out.measure(run.model, theta, position.step, position.round).as_json()
    return _Try(search.score.of(metrics["overall"]), setting, theta, metrics, position.step)

"""Does anyone's training function keep its promise? Canaries with coins, one run or many, at three levels of access.

The function is called as it is. What it is given is the data without the canaries whose coin said "out"; what is looked
at is what `Access` names. Each finished run is one file, so that nothing is lost by an interrupt.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from audit import bounds
from audit.bounds.lower_bound import OneRunBound
from audit.coins.loop import measure_loop
from audit.coins.one_run import claim_of
from audit.coins.training_canaries import TrainingCanaries, TrainingCanaryKind, training_data
from audit.coins.training_signals import CROWD, Access, Train, Watch, call_training, loaded, scores_of_runs
from audit.executors import finished
from audit.models.in_memory import signal_of_model
from audit.named import load_named
from audit.report.results import Attack, AuditReport, Conclusion
from audit.settings import CONFIDENCE, TRAINING_RUNS
from audit.verdict import is_at_ceiling, judge
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, count, open_unit, positive
from calibrate.privacy_unit import EpsilonDelta
from calibrate.releases import Release
from privfair.durable import require_bounded_archive

Score = Callable[[Any, Any], ArrayLike]
Progress = Callable[[int, int], None]

_SHARES = (0.02, 0.05, 0.1, 0.25, 0.6)
"""Of all guesses, strongest first: how many count. Declared here, before any coin is flipped."""
_FEWEST = 12
_SEEDED = "Two runs on the same data are identical, so the training draws no noise, or seeds its noise itself"
_LEAST_TO_LEARN, _MOST_LESSONS = 8, 16
"""From so many runs on, half of them, up to this number, teach how canaries look in and out, and are not counted."""


@dataclass(frozen=True)
class TrainingAuditOptions:
    """How hard to look at a training function."""

    access: Access = Access.FINAL_MODEL
    runs: int = TRAINING_RUNS
    canaries: int | None = None
    unit: str | None = None
    confidence: float = CONFIDENCE
    seed: int = 0
    budget_seconds: float | None = None
    """None: all runs, however long they take."""

    def __post_init__(self) -> None:
        count("runs", self.runs)
        if self.canaries is not None:
            count("canaries", self.canaries, least=2)
        count("seed", self.seed, least=0)
        open_unit("confidence", self.confidence)
        if self.budget_seconds is not None:
            positive("budget seconds", self.budget_seconds)


@final
@dataclass(frozen=True, eq=False)
class TrainingRun:
    """One call of the function, as a plain value that another process can be sent."""

    train: Train | str
    """The function itself, or module:name, which each process loads for itself."""
    canaries: TrainingCanaries
    access: Access
    seed: int
    score: Score | str | None = None

    def __call__(self, number: int, beginning: int = 0) -> tuple[Floats, float]:
        """For each step (of a model: one) a signal per canary, larger for "was in"; and how many seconds it took.

        The generators of Python, numpy and torch restart in every run, so that runs in forked processes do not share
        their noise. A function that seeds itself does share it; that is the function's own doing, and counts. Another
        `beginning` of the generators is for the same run once more.
        """
        data = self.canaries.dataset(self.canaries.coins(number, self.seed), number, self.seed).given
        watch = Watch(self.access, self.canaries.records.given, self.canaries.crowd(CROWD).given)
        start = time.perf_counter()
        model = call_training(self.train, data, watch, self.seed, number, beginning)
        seconds = time.perf_counter() - start
        with redirect_stdout(sys.stderr):
            signals = [self._of_model(model)] if self.access is Access.FINAL_MODEL else watch.steps
        if not signals:
            rule = f"never called watch with its {self.access.value}, or only once"
            raise InvalidInput(
                "train", _name_of(loaded(self.train)), rule, "see docs/audit-training.md, or audit its final model"
            )
        table = np.stack(signals)
        if table.shape[1:] != (len(self.canaries.records),) or not np.isfinite(table).all():
            raise InvalidInput(
                "scores", table.shape, "must be one finite number per record", "check score or gradients"
            )
        return np.stack([self.canaries.per_unit(row) for row in table]), seconds

    def _of_model(self, model: Any) -> Floats:
        records = self.canaries.records
        if self.score is not None:
            return np.asarray(loaded(self.score)(model, records.given), dtype=np.float64)
        return signal_of_model(model, records)


def audit_training(
    train: Train | str,
    data: object,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    mechanism: Release | str | None = None,
    access: Access | str = Access.FINAL_MODEL,
    label: str | None = None,
    unit: str | None = None,
    runs: int = TRAINING_RUNS,
    canaries: int | None = None,
    score: Score | str | None = None,
    control: Train | str | None = None,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    budget_seconds: float | None = None,
    executor: Executor | None = None,
    folder: Path | str | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Audit anyone's training function: canaries with coins, a valid lower bound on epsilon, and a verdict.

    train: `train(data) -> model`, whatever library it uses, or its name as module:function; with access to
        more than the model `train(data, watch)`, which calls `watch` once per step (docs/audit-training.md).
    data: a pandas table, or a pair (features, labels) of arrays or tensors; canaries are taken out of it.
    epsilon: the tested claim, for adding or removing one unit; None to ask only for the bound.
    delta: at which the bound and the claim are meant.
    mechanism: the release that the function declares, for adding or removing one unit. Its noise, batches and steps
        are measured (audit/coins/loop.py), and the bound proves more, for functions that are this release at some
        noise. Without `epsilon` its price is the claim.
    access: what an observer sees: final-model, iterates or gradients.
    label: the table's column with the class, or the quantity.
    unit: the table's column that tells people apart; one coin per person.
    runs: how often the function is called; one is enough for a valid bound, many see more.
    canaries: how many units have a coin in each run; None for as many as the access can tell apart.
    score: `score(model, records)`, one number per record, larger for "was in"; None for the model's own confidence.
    control: the same function without noise; it tells the power, without which nothing is called consistent.
    confidence: probability with which the bound is not above the true epsilon.
    seed: of canaries, coins and orders; the function must not know it.
    budget_seconds: fewer runs, so many as fit by the time of the first, which is then not counted.
    executor: any concurrent.futures.Executor, also Dask's; None runs here.
    folder: where finished runs are kept; a second call goes on where the first was stopped.
    progress: called with the number of finished runs and of all.

    Guarantee: docs/theorems/audit-bounds.md, "The e-process" and "Canaries": coins are fair, independent and enter
    nothing but the data, so that the bound is valid for every function that is private with respect to adding or
    removing one unit.
    """
    release: Release | None = load_named(mechanism) if isinstance(mechanism, str) else mechanism
    chosen = TrainingAuditOptions(Access(access), runs, canaries, unit, confidence, seed, budget_seconds)
    if epsilon is not None:
        EpsilonDelta(epsilon, delta)
    promise = claim_of(epsilon, delta, release, "claimed of the training function")
    rare, table = chosen.access is not Access.FINAL_MODEL, training_data(data, label, unit)
    taken = TrainingCanaries.take(table, chosen.canaries, unit, seed, rare)
    loop = () if release is None or unit is not None else measure_loop(train, table, release, seed)
    case = TrainingRun(train, taken, chosen.access, seed, score)
    store = _Store.of(folder, case, chosen, "runs")
    seen = _Campaign(case, chosen, executor, store, progress).run()
    guesses = _guesses(seen, taken, seed)
    method = bounds.OneRun() if release is None else bounds.bound_for(release)
    bound = bounds.bound_over(method, _declared(guesses), delta, confidence)
    power, without = 0.0, None
    if control is not None:
        quiet = TrainingRun(control, taken, chosen.access, seed, score)
        apart = _Store.of(folder, quiet, chosen, "control")
        without = _guesses(_Campaign(quiet, chosen, executor, apart, progress).run(), taken, seed)
        claimed = bounds.claimed_curve(method, 0.0 if promise is None else promise.epsilon, delta)
        power = _power(claimed, method, without, guesses.coins, confidence)
    attack = _attack(chosen, bound, guesses, without, power)
    effort = "name a control, the same training without noise"
    if without is not None:
        claimed = bounds.claimed_curve(method, 0.0 if promise is None else promise.epsilon, delta)
        each, enough = store.seconds(0) or 0.0, [2, 4, 8, 16, 32]
        while enough and _power(claimed, method, without, enough[0] * guesses.coins, confidence) < bounds.CONCLUSIVE:
            enough.pop(0)
        more = (enough[0] - 1) * runs if enough else 0
        effort = f"audit with about {more} more runs, {more * each:.0f} s" if more else "audit with more runs"
    report = judge(promise, loop, (attack,), confidence, effort=effort)
    if _repeats_itself(case, executor, store, seen):
        kept = report.verdict is not Conclusion.CONSISTENT
        verdict = report.verdict if kept else Conclusion.INCONCLUSIVE
        report = report.model_copy(update={"verdict": verdict, "why": f"{report.why}. {_SEEDED}"})
    return report


def _repeats_itself(case: TrainingRun, executor: Executor | None, store: _Store, seen: _Seen) -> bool:
    """Whether the first run shows the very same once more, although all generators begin elsewhere; and is not always
    the same, whatever the data."""
    first = store.signals(0)
    if all(np.array_equal(first, other) for other in seen.signals):
        return False
    again, _ = case(0, 1) if executor is None else executor.submit(case, 0, 1).result()
    return np.array_equal(first, again)


def _attack(
    options: TrainingAuditOptions,
    bound: bounds.LowerBound,
    guesses: bounds.RankedGuesses,
    without: bounds.RankedGuesses | None,
    power: float,
) -> Attack:
    best = bound.evidence
    assert isinstance(best, bounds.GuessCounts)
    right = float(guesses.correct.mean())
    clean = None if without is None else float(without.correct.mean())
    compared = "no control without noise, so its power is not known"
    if clean is not None:
        compared = f"{100 * clean:.1f}% without noise"
    text = (
        f"{best.coins} coins, {100 * right:.1f}% of all guesses right ({compared}); "
        f"of the {best.guesses} strongest {best.correct}"
    )
    return Attack(
        name=f"canaries seen through {options.access.value}",
        power=power,
        evidence=text,
        bound=bound,
        right=right,
        right_without_noise=clean,
        at_ceiling=clean is not None and is_at_ceiling(right, clean, best.coins),
    )


def _declared(guesses: bounds.RankedGuesses) -> tuple[bounds.GuessCounts, ...]:
    return tuple(bounds.counts_at((guesses,), _number(share, guesses.coins)) for share in _SHARES)


def _number(share: float, coins: int) -> int:
    return min(coins, max(_FEWEST, round(share * coins)))


def _power(
    claim: bounds.TradeOff, method: OneRunBound, control: bounds.RankedGuesses, coins: int, confidence: float
) -> float:
    """The chance of refuting the claim with so many coins, if guesses were as right as the control's: the largest over
    the declared shares, each at its own level, is a lower bound of that of all together."""
    designs = (
        bounds.OneRunDesign(coins, _number(share, coins), counts.correct / counts.guesses)
        for share, counts in zip(_SHARES, _declared(control), strict=True)
    )
    return max(bounds.power_against(claim, method, design, confidence, len(_SHARES)) for design in designs)


@dataclass(frozen=True, eq=False)
class _Seen:
    """The signals of runs, one table each; the first `lessons` of them only teach and are not counted."""

    numbers: tuple[int, ...]
    signals: list[Floats]
    lessons: int


def _guesses(seen: _Seen, canaries: TrainingCanaries, seed: int) -> bounds.RankedGuesses:
    """Of all counted runs; how a canary looks in and out is learnt from the other runs alone."""
    coins = np.stack([canaries.coins(number, seed) for number in seen.numbers])
    kinds = np.array([tuple(TrainingCanaryKind).index(kind) for kind in canaries.kinds])
    lessons = seen.lessons
    scores = scores_of_runs(seen.signals[lessons:], seen.signals[:lessons], coins[:lessons], kinds)
    return bounds.RankedGuesses.from_scores(scores.ravel(), coins[lessons:].ravel().astype(np.int64))


@final
@dataclass(frozen=True, eq=False)
class _Campaign:
    """All runs of one function; their number is fixed before the first that is counted."""

    run_once: TrainingRun
    options: TrainingAuditOptions
    executor: Executor | None
    store: _Store
    progress: Progress | None

    def run(self) -> _Seen:
        runs, pilots = self.options.runs, 0
        budget = self.options.budget_seconds
        if budget is not None:
            seconds = self.store.seconds(0) or dict(self._finish([0]))[0]
            # A clock that stopped the runs would have looked at their coins, so the timed one is not counted.
            pilots, runs = 1, min(runs, 1 + max(1, int(budget / max(seconds, 1e-6)) * _workers(self.executor)))
        total = max(runs, pilots + 1)
        learnt = min(total // 2, _MOST_LESSONS) if total >= _LEAST_TO_LEARN else 0
        todo = [number for number in range(total) if self.store.seconds(number) is None]
        for done, _ in enumerate(self._finish(todo), total - len(todo) + 1):
            if self.progress is not None:
                self.progress(done, total)
        numbers = tuple(range(0 if learnt else pilots, total))
        return _Seen(numbers, [self.store.signals(number) for number in numbers], learnt)

    def _finish(self, numbers: list[int]) -> Iterator[tuple[int, float]]:
        """Run these, keep each as soon as it is there."""
        for number, found in finished(self.executor, self.run_once, numbers):
            yield number, self.store.keep(number, *found)


@final
class _Store:
    """Finished runs in memory and, if a folder is named, one file each; a folder of other runs is refused."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[int, tuple[Floats, float]] = {}
        for path in sorted(folder.glob("run-*.npz")) if folder is not None else ():
            require_bounded_archive(path, "folder")
            with np.load(path, allow_pickle=False) as found:
                self._known[int(path.stem.split("-")[1])] = found["signals"], float(found["seconds"])

    @classmethod
    def of(cls, folder: Path | str | None, case: TrainingRun, options: TrainingAuditOptions, part: str) -> _Store:
        if folder is None:
            return cls(None)
        place, mark = Path(folder) / part, _fingerprint(case, options)
        place.mkdir(parents=True, exist_ok=True)
        known = place / "of"
        if known.exists() and known.read_text(encoding="utf-8") != mark:
            raise InvalidInput("folder", str(folder), "holds runs of another function, data or options", "name another")
        known.write_text(mark, encoding="utf-8")
        return cls(place)

    def seconds(self, number: int) -> float | None:
        """None if the run is not finished."""
        return self._known[number][1] if number in self._known else None

    def signals(self, number: int) -> Floats:
        return self._known[number][0]

    def keep(self, number: int, signals: Floats, seconds: float) -> float:
        self._known[number] = signals, seconds
        if self._folder is not None:
            beside = self._folder / f".{number}.{os.getpid()}.npz"
            np.savez(beside, signals=signals, seconds=seconds)
            os.replace(beside, self._folder / f"run-{number:05d}.npz")
        return seconds


def _fingerprint(case: TrainingRun, options: TrainingAuditOptions) -> str:
    """Of everything that decides a run: the function's own file, the data, canaries and seed."""
    parts = [
        _name_of(loaded(case.train)),
        _source_of(loaded(case.train)),
        case.canaries.rest.digest(),
        case.canaries.records.digest(),
        f"{options.access.value} {options.canaries} {options.unit} {options.seed}",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _source_of(function: Train) -> str:
    """The text of the function's file, so that changed code is not mistaken for the old."""
    try:
        path = inspect.getsourcefile(inspect.unwrap(getattr(function, "func", function)))
        return "" if path is None else Path(path).read_text(encoding="utf-8")
    except (OSError, TypeError):
        return ""


def _name_of(function: Train) -> str:
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"


def _workers(executor: Executor | None) -> int:
    known = getattr(executor, "_max_workers", 1)
    return known if isinstance(known, int) else 1

"""The canary audit: coins on whole records or users, guesses from transcript and model, valid bounds and a power."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from audit.bounds import (
    ErrorCounts,
    FDPOneRun,
    JointExact,
    LowerBound,
    OneRun,
    OneRunDesign,
    ProfileCurve,
    RankedGuesses,
    RepeatedDesign,
    TradeOff,
    bound_over,
    counts_at,
    p_value_over,
    power_against,
    power_at,
)
from audit.coins.canary_choice import CanaryDesign, design_canaries
from audit.coins.canary_decoder import CanaryKind, Decoder, Seen, Views
from audit.coins.canary_runs import CanaryRuns, Effort, run_canaries
from audit.coins.insertion import Scaling
from audit.report.results import Attack, CurveTest, Promise
from audit.runs.evidence import RunEvidence
from audit.verdict import is_at_ceiling, manifest_curve
from calibrate.arrays import Floats
from calibrate.manifest.mechanism import PrivateGuarantee

_SHARES = (0.15, 0.4, 1.0)
"""Which shares of a run's coins are guessed, declared before anything is run; Bonferroni over them is in the bound."""
_FITTING = 0.25
"""The first so many runs fit the decoder of the repeated-run test, and are not counted by it."""
_LEAST_RUNS = 16


@dataclass(frozen=True)
class _Error:
    """How the allowed error is shared out, so that the largest of all bounds is valid: the shares add up to one.

    The tests of the manifest's own curve are sharp, so a clean run is flagged by them about as often as they are
    allowed to; like the noise checks they get a thousandth in all (at 95%).
    """

    coins: float = 0.5
    repeated: float = 0.18
    model: float = 0.3
    curve: float = 0.01
    """For each of two."""


_ERROR = _Error()


def canary_audit(
    evidence: RunEvidence,
    promise: Promise,
    *,
    effort: Effort,
    seed: int,
    confidence: float,
    kind: CanaryKind = CanaryKind.GRADIENT,
    progress: Callable[[int], None] | None = None,
) -> tuple[Attack, ...]:
    """Rerun the plan with canaries and bound epsilon from below by what transcripts and models betray.

    Guarantee: with probability at least `confidence` over coins and noise, no bound exceeds the true epsilon at the
    promise's delta and no curve that the run keeps is refuted (docs/theorems/audit-bounds.md, "Canaries").
    """
    scaling = Scaling.of(evidence)
    design = None if scaling is None else design_canaries(evidence, scaling, kind, seed)
    if design is None:
        return ()
    runs = run_canaries(evidence, design, effort, seed, progress)
    curve = _curve_on_trial(evidence, promise)
    judge = _Judge(design, runs, promise, curve, 1 - confidence)
    attacks = [judge.coins()]
    if len(runs.coins) >= _LEAST_RUNS and judge.both_sides_tested:
        attacks.append(judge.repeated())
    if runs.model is not None and len(runs.coins) >= effort.at_least:
        attacks.append(judge.model(attacks[0].power))
    return tuple(attacks)


def _curve_on_trial(evidence: RunEvidence, promise: Promise) -> ProfileCurve | None:
    """What the manifest signs beyond its one (epsilon, delta); a paper's claim has no more than that."""
    if not isinstance(evidence.document.guarantee, PrivateGuarantee):
        return None
    return manifest_curve(evidence.document)


@dataclass(frozen=True, eq=False)
class _Judge:
    """One audit's runs, turned into attacks."""

    design: CanaryDesign
    runs: CanaryRuns
    promise: Promise
    curve: TradeOff | None
    error: float

    def coins(self) -> Attack:
        """All coins of all runs, pooled: one-run bounds."""
        guesses = self._rank(self.runs.noisy)
        controls = self._rank(self.runs.clean)
        bound, power, grid = self._one_run(guesses, controls, _ERROR.coins)
        readings = sorted({Decoder.fit(views).reading.value for views in self.runs.noisy})
        text = (
            f"{self._setting()}; of the {grid[-1]} guesses per run {100 * _success(guesses, grid[-1]):.1f}% were right "
            f"({100 * _success(controls, grid[-1]):.1f}% without noise); reading: {', '.join(readings)}"
        )
        test = None
        if self.curve is not None:
            p_value = p_value_over(FDPOneRun(), [counts_at(guesses, number) for number in grid], self.curve)
            test = CurveTest.at(p_value, _ERROR.curve * self.error)
        name = f"{self.design.kind.value} canaries against the transcript"
        right, quiet = _success(guesses, grid[-1]), _success(controls, grid[-1])
        return Attack(
            name=name,
            bound=bound,
            power=power,
            evidence=text,
            curve=test,
            right=right,
            right_without_noise=quiet,
            at_ceiling=is_at_ceiling(right, quiet, grid[-1] * len(guesses)),
        )

    def repeated(self) -> Attack:
        """One canary over all runs: the tight test, with a decoder fitted on other runs and its threshold at 0."""
        fitting = self._fitting
        scores, clean = (self._first_canary(seen, fitting) for seen in (self.runs.noisy[0], self.runs.clean[0]))
        truth = self.runs.coins[fitting:, 0]
        at_bound, at_curve = _ERROR.repeated * self.error, _ERROR.curve * self.error
        method, level = JointExact(nuisance_error=at_bound / 10), 1 - at_bound
        counts = ErrorCounts.at(0.0, scores[truth == 0], scores[truth == 1])
        bound = method.lower_bound(counts, self.promise.delta, level)
        quiet = ErrorCounts.at(0.0, clean[truth == 0], clean[truth == 1])
        design = RepeatedDesign(
            quiet.runs_without,
            quiet.runs_with,
            (quiet.false_positives + 0.5) / (quiet.runs_without + 1),
            (quiet.false_negatives + 0.5) / (quiet.runs_with + 1),
        )
        power = power_at(self.promise.epsilon, self.promise.delta, method, design, level)
        text = (
            f"one canary in {len(truth)} runs: {counts.false_positives} of {counts.runs_without} runs without it and "
            f"{counts.false_negatives} of {counts.runs_with} with it were taken for the other kind"
        )
        test = None
        if self.curve is not None:
            sharp = JointExact(nuisance_error=at_curve / 10)
            test = CurveTest.at(sharp.p_value(counts, self.curve), at_curve)
            power = max(power, power_against(self.curve, sharp, design, 1 - at_curve))
        name = f"one {self.design.kind.value} canary, repeated runs"
        return Attack(name=name, bound=bound, power=power, evidence=text, curve=test)

    def model(self, most_power: float) -> Attack:
        """The final model alone: what somebody sees who never sees a message.

        Its control is not a model but the messages without noise, added up; so it is credited with no more power than
        the attack on the messages has.
        """
        assert self.runs.model is not None
        guesses = self._guesses(self.runs.model - self.runs.model.mean(axis=0))
        controls = self._guesses(np.concatenate([_sum_of_rounds(views[0]) for views in self.runs.clean], axis=1))
        bound, power, grid = self._one_run(guesses, controls, _ERROR.model)
        text = (
            f"{self._setting()}; of the {grid[-1]} guesses per run {100 * _success(guesses, grid[-1]):.1f}% were right"
        )
        name = f"{self.design.kind.value} canaries against the final model"
        return Attack(name=name, bound=bound, power=min(power, most_power), evidence=text)

    @property
    def both_sides_tested(self) -> bool:
        """Whether the first canary's coin fell on either side among the runs that are counted."""
        return len(np.unique(self.runs.coins[self._fitting :, 0])) == 2

    @property
    def _fitting(self) -> int:
        return max(6, round(_FITTING * len(self.runs.coins)))

    def _one_run(
        self, guesses: tuple[RankedGuesses, ...], controls: tuple[RankedGuesses, ...], share: float
    ) -> tuple[LowerBound, float, tuple[int, ...]]:
        """The bound at its share of the error, its power against missing noise, and the numbers of guesses."""
        method, grid = OneRun(), _grid(self.design.coins)
        level, delta = 1 - share * self.error, self.promise.delta
        bound = bound_over(method, [counts_at(guesses, number) for number in grid], delta, level)
        runs = len(guesses)
        power = max(
            power_at(
                self.promise.epsilon,
                delta,
                method,
                OneRunDesign(self.design.coins * runs, number * runs, _success(controls, number)),
                level,
                len(grid),
            )
            for number in grid
        )
        return bound, power, grid

    def _rank(self, silos: tuple[Views, ...]) -> tuple[RankedGuesses, ...]:
        return self._guesses(np.concatenate([Decoder.fit(views).scores(views) for views in silos], axis=1))

    def _guesses(self, scores: Floats) -> tuple[RankedGuesses, ...]:
        return tuple(RankedGuesses.from_scores(row, coins) for row, coins in zip(scores, self.runs.coins, strict=True))

    def _first_canary(self, views: Views, fitting: int) -> Floats:
        """Scores of the runs that did not fit the decoder, so that they are independent of one another."""
        known = self.runs.coins[:fitting, :1]
        fitted = Decoder.fit(tuple(_first_of(seen, slice(None, fitting), known) for seen in views))
        return fitted.scores(tuple(_first_of(seen, slice(fitting, None)) for seen in views))[:, 0]

    def _setting(self) -> str:
        return (
            f"{len(self.runs.coins)} runs of the production code with {self.design.coins} coins each, "
            f"{self.design.meaning.value}"
        )


def _grid(coins: int) -> tuple[int, ...]:
    return tuple(sorted({max(1, round(share * coins)) for share in _SHARES}))


def _success(runs: tuple[RankedGuesses, ...], guesses: int) -> float:
    return float(np.concatenate([run.ordered()[:guesses] for run in runs]).mean())


def _sum_of_rounds(seen: Seen) -> Floats:
    """All rounds added up, as a model does that is trained with one step size."""
    total = seen.values[..., 0].sum(axis=1)
    return np.asarray(total - total.mean(axis=0))


def _first_of(seen: Seen, runs: slice, coins: NDArray[np.int64] | None = None) -> Seen:
    """The first canary alone, in some of the runs; with its coins where these runs are not counted."""
    other = None if seen.other is None else seen.other[runs, :, :1]
    return Seen(seen.values[runs, :, :1], seen.levels[:, :, :1], seen.rate, other, coins, seen.epoch)

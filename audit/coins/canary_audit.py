"""The canary audit: coins on whole records or users, guesses from transcript and model, valid bounds and a power.

Canary runs come one after the other, each with fresh coins; of each is kept only what the decoders look at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from audit import bounds
from audit.coins.canary_choice import CanaryDesign, design_canaries
from audit.coins.canary_decoder import Decoder, Seen, Views
from audit.coins.insertion import Scaling
from audit.report.results import Attack, CurveTest, Promise
from audit.runs.evidence import AuditorsManifest, RunEvidence
from audit.runs.rerun import Coins, RunWatch, rerun
from audit.verdict import is_at_ceiling, manifest_curve
from calibrate.arrays import Floats
from calibrate.errors import count, positive
from calibrate.manifest.mechanism import PrivateGuarantee
from privfair.contribution import Published

# How the final model answers a canary: the observer who is given nothing but the model looks there.


def model_response(design: CanaryDesign) -> Floats | None:
    """(canaries, parameters): which way one round's update moves the model when the canary's side goes from 0 to 1.

    Found by the algorithm's own `update`, which takes published values alone. None where a first update does not
    reach the model (several local steps), or where a canary has no say in it.
    """
    rows = []
    for silo in design.silos:
        signals = design.signals[silo.name][0]
        levels, looks = signals.levels[0], signals.looks
        for canary in range(len(silo.canaries)):
            change = levels[1, canary] - levels[0, canary]
            step = tuple(
                size * look[0, canary] / max(float(np.square(look[0, canary]).sum()), 1e-12)
                for size, look in zip(change, looks, strict=True)
            )
            rows.append(_movement(design, silo.name, step))
    found = np.stack(rows)
    return found if (np.square(found).sum(axis=1) > 0).all() else None


def _movement(design: CanaryDesign, party: str, step: tuple[Floats, ...]) -> Floats:
    algorithm = design.algorithm
    nothing = tuple(np.zeros_like(part) for part in step)
    still = algorithm.update(algorithm.start(), _as_published(design, party, nothing))
    moved = algorithm.update(algorithm.start(), _as_published(design, party, step))
    change = algorithm.theta(moved) - algorithm.theta(still)
    return np.asarray(change.numpy(), dtype=np.float64)


def _as_published(design: CanaryDesign, party: str, step: tuple[Floats, ...]) -> dict[str, dict[str, Published]]:
    """A round in which every party sends zero, and `party` sends `step` (in units of the noise)."""
    out: dict[str, dict[str, Published]] = {}
    for silo in design.silos:
        sent = {name: np.zeros(shape) for name, shape in design.algorithm.shapes().items()}
        if silo.name == party:
            for name, sigma, part in zip(design.scaling.names, design.scaling.sigmas, step, strict=True):
                sent[name] = (part * sigma).reshape(sent[name].shape)
        out[silo.name] = {name: Published(0, silo.name, name, values) for name, values in sent.items()}
    return out


_Looks = dict[tuple[str, str, int], Floats]
"""By the silo that looks, the silo that is looked at, and the view."""
_SHORTEST = 1e-6
COIN_STREAM, NOISE_STREAM, _PILOT_STREAM = 0xC0145, 0x4015E, 0x9107
"""In addition to the seed, so that coins, noise and the runs that only measure time share no stream."""


@dataclass(frozen=True)
class Effort:
    """At most this many runs, and as many as take about this many seconds of the processor, but at least `at_least`.

    A run takes a little longer with more canaries in it, so a clock that stops the runs would look at their coins. The
    number of runs is therefore fixed before the first, by timing runs that are not counted.
    """

    most: int
    seconds: float
    at_least: int = 6

    def __post_init__(self) -> None:
        count("canary runs", self.most)
        positive("seconds", self.seconds)

    def runs(self, pilot: Callable[[], float]) -> int:
        """How many runs, by what `pilot` (a run that is counted nowhere) takes; the first may have to warm up."""
        least = min(self.at_least, self.most)
        if least == self.most:
            return least
        taken = pilot()
        if least * taken < self.seconds < self.most * taken:
            taken = min(taken, pilot())
        return min(self.most, max(least, int(self.seconds / max(taken, _SHORTEST))))


@dataclass(frozen=True, eq=False)
class CanaryRuns:
    """All runs of one audit: coins (runs, canaries) with the silos side by side, and what was seen of them."""

    coins: NDArray[np.int64]
    noisy: tuple[Views, ...]
    """One entry per silo."""
    clean: tuple[Views, ...]
    """The same before the noise: the control."""
    model: Floats | None
    """(runs, canaries): the final model along each canary's response; None where the model does not answer."""


def run_canaries(
    evidence: RunEvidence,
    design: CanaryDesign,
    effort: Effort,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> CanaryRuns:
    """Toss, train, listen; as often as the effort allows."""
    # Tagged, because (seed, 0) is the stream of the bare seed, from which canaries' directions are drawn.
    random = np.random.default_rng((seed, COIN_STREAM))
    engine = _Engine(evidence, design, AuditorsManifest(), np.random.default_rng((seed, NOISE_STREAM)))
    responses = model_response(design)
    coins, noisy, clean, models = [], [], [], []
    for _ in range(effort.runs(lambda: engine.time_one_run(seed))):
        tossed, watch, theta = engine.run(random)
        coins.append(np.concatenate([tossed[silo.name] for silo in design.silos]))
        noisy.append(_look(design, watch, noise=True))
        clean.append(_look(design, watch, noise=False))
        if responses is not None:
            models.append(theta @ responses.T)
        if progress is not None:
            progress(len(coins))
    model = np.stack(models) if models else None
    return CanaryRuns(np.stack(coins), _group_by_silo(design, noisy), _group_by_silo(design, clean), model)


@dataclass(frozen=True, eq=False)
class _Engine:
    """The run's own engine on silos with canaries, each time with noise of its own."""

    evidence: RunEvidence
    design: CanaryDesign
    auditor: AuditorsManifest
    seeds: np.random.Generator

    def run(self, random: np.random.Generator) -> tuple[Coins, RunWatch, Floats]:
        """Toss the coins of every silo, and train: the coins, both sides of the gate, and the final model."""
        design, watch = self.design, RunWatch()
        coins = {silo.name: random.integers(0, 2, len(silo.canaries)) for silo in design.silos}
        silos = tuple(silo.with_coins(coins[silo.name]) for silo in design.silos)
        made = rerun(
            replace(self.evidence, algorithm=design.algorithm, silos=silos),
            self.auditor,
            seed=int(self.seeds.integers(2**62)),
            sizes={silo.name: silo.size(coins[silo.name]) for silo in design.silos},
            block=self.evidence.document.rounds,
            observer=watch,
        )
        return coins, watch, design.algorithm.theta(made.last.state).numpy().astype(np.float64)

    def time_one_run(self, seed: int) -> float:
        """The processor's time of a run with coins that are never looked at."""
        start = time.process_time()
        _, watch, _ = self.run(np.random.default_rng((seed, _PILOT_STREAM)))
        for noise in (True, False):
            _look(self.design, watch, noise=noise)
        return time.process_time() - start


def _look(design: CanaryDesign, watch: RunWatch, *, noise: bool) -> _Looks:
    """Each silo's looks at each silo's messages that a decoder may need: its own, and those of the next one."""
    messages = {silo.name: design.scaling.rows(silo.name, watch, noise=noise) for silo in design.silos}
    out = {}
    for name, following in zip(messages, _next(messages), strict=True):
        for view, signals in enumerate(design.signals[name]):
            out[name, name, view] = signals.seen(messages[name])
            if following != name:
                out[name, following, view] = signals.seen(messages[following])
    return out


def _group_by_silo(design: CanaryDesign, runs: list[_Looks]) -> tuple[Views, ...]:
    names = [silo.name for silo in design.silos]
    found = []
    for name, following in zip(names, _next(names), strict=True):
        views = []
        for view, signals in enumerate(design.signals[name]):
            values = np.stack([run[name, name, view] for run in runs])
            other = np.stack([run[name, following, view] for run in runs]) if following != name else None
            views.append(Seen(values, signals.levels_of(values.shape[1]), design.rate, other, epoch=design.epoch))
        found.append(tuple(views))
    return tuple(found)


def _next(names: Iterable[str]) -> list[str]:
    listed = list(names)
    return [*listed[1:], *listed[:1]]


_SHARES = (0.15, 0.4, 1.0)
"""Which shares of a run's coins are guessed, declared before anything is run; Bonferroni over them is in the bound."""
_FITTING = 0.25
"""The first this many runs fit the decoder of the repeated-run test, and are not counted by it."""
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
    progress: Callable[[int], None] | None = None,
) -> tuple[Attack, ...]:
    """Rerun the plan with canaries and bound epsilon from below by what transcripts and models reveal.

    Guarantee: with probability at least `confidence` over coins and noise, no bound exceeds the true epsilon at the
    promise's delta and no curve that the run keeps is refuted (docs/theorems/audit-bounds.md, "Canaries").
    """
    scaling = Scaling.of(evidence)
    design = None if scaling is None else design_canaries(evidence, scaling, seed)
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


def _curve_on_trial(evidence: RunEvidence, promise: Promise) -> bounds.ProfileCurve | None:
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
    curve: bounds.TradeOff | None
    error: float

    def coins(self) -> Attack:
        """All coins of all runs, pooled: one-run bounds."""
        guesses = self._rank(self.runs.noisy)
        controls = self._rank(self.runs.clean)
        bound, power, grid = self._one_run(guesses, controls, _ERROR.coins)
        readings = sorted({Decoder.fit(views).reading.value for views in self.runs.noisy})
        right, quiet = bounds.share_right(guesses, grid[-1]), bounds.share_right(controls, grid[-1])
        text = (
            f"{self._setting()}; of the {grid[-1]} guesses per run {100 * right:.1f}% were right "
            f"({100 * quiet:.1f}% without noise); reading: {', '.join(readings)}"
        )
        test = None
        if self.curve is not None:
            p_value = bounds.p_value_over(
                bounds.FDPOneRun(), [bounds.counts_at(guesses, number) for number in grid], self.curve
            )
            test = CurveTest.at(p_value, _ERROR.curve * self.error)
        name = "gradient-space canaries against the transcript"
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
        method, level = bounds.JointExact(nuisance_error=at_bound / 10), 1 - at_bound
        counts = bounds.ErrorCounts.at(0.0, scores[truth == 0], scores[truth == 1])
        bound = method.lower_bound(counts, self.promise.delta, level)
        quiet = bounds.ErrorCounts.at(0.0, clean[truth == 0], clean[truth == 1])
        design = bounds.RepeatedDesign(
            quiet.runs_without,
            quiet.runs_with,
            (quiet.false_positives + 0.5) / (quiet.runs_without + 1),
            (quiet.false_negatives + 0.5) / (quiet.runs_with + 1),
        )
        power = bounds.power_at(self.promise.epsilon, self.promise.delta, method, design, level)
        text = (
            f"one canary in {len(truth)} runs: {counts.false_positives} of {counts.runs_without} runs without it and "
            f"{counts.false_negatives} of {counts.runs_with} with it were taken for the other kind"
        )
        test = None
        if self.curve is not None:
            sharp = bounds.JointExact(nuisance_error=at_curve / 10)
            test = CurveTest.at(sharp.p_value(counts, self.curve), at_curve)
            power = max(power, bounds.power_against(self.curve, sharp, design, 1 - at_curve))
        name = "one gradient-space canary, repeated runs"
        return Attack(name=name, bound=bound, power=power, evidence=text, curve=test)

    def model(self, most_power: float) -> Attack:
        """The final model alone: what someone sees who never sees a message.

        Its control is not a model but the messages without noise, added up; so it is credited with no more power than
        the attack on the messages has.
        """
        assert self.runs.model is not None
        guesses = self._guesses(self.runs.model - self.runs.model.mean(axis=0))
        controls = self._guesses(np.concatenate([_sum_of_rounds(views[0]) for views in self.runs.clean], axis=1))
        bound, power, grid = self._one_run(guesses, controls, _ERROR.model)
        right = bounds.share_right(guesses, grid[-1])
        text = f"{self._setting()}; of the {grid[-1]} guesses per run {100 * right:.1f}% were right"
        name = "gradient-space canaries against the final model"
        return Attack(name=name, bound=bound, power=min(power, most_power), evidence=text)

    @property
    def both_sides_tested(self) -> bool:
        """Whether the first canary's coin fell on either side among the runs that are counted."""
        return len(np.unique(self.runs.coins[self._fitting :, 0])) == 2

    @property
    def _fitting(self) -> int:
        return max(6, round(_FITTING * len(self.runs.coins)))

    def _one_run(
        self, guesses: tuple[bounds.RankedGuesses, ...], controls: tuple[bounds.RankedGuesses, ...], share: float
    ) -> tuple[bounds.LowerBound, float, tuple[int, ...]]:
        """The bound at its share of the error, its power against missing noise, and the numbers of guesses."""
        method, grid = bounds.OneRun(), _grid(self.design.coins)
        level, delta = 1 - share * self.error, self.promise.delta
        bound = bounds.bound_over(method, [bounds.counts_at(guesses, number) for number in grid], delta, level)
        runs = len(guesses)
        power = max(
            bounds.power_at(
                self.promise.epsilon,
                delta,
                method,
                bounds.OneRunDesign(self.design.coins * runs, number * runs, bounds.share_right(controls, number)),
                level,
                len(grid),
            )
            for number in grid
        )
        return bound, power, grid

    def _rank(self, silos: tuple[Views, ...]) -> tuple[bounds.RankedGuesses, ...]:
        return self._guesses(np.concatenate([Decoder.fit(views).scores(views) for views in silos], axis=1))

    def _guesses(self, scores: Floats) -> tuple[bounds.RankedGuesses, ...]:
        return tuple(
            bounds.RankedGuesses.from_scores(row, coins) for row, coins in zip(scores, self.runs.coins, strict=True)
        )

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


def _sum_of_rounds(seen: Seen) -> Floats:
    """All rounds added up, as a model does that is trained with one step size."""
    total = seen.values[..., 0].sum(axis=1)
    return np.asarray(total - total.mean(axis=0))


def _first_of(seen: Seen, runs: slice, coins: NDArray[np.int64] | None = None) -> Seen:
    """The first canary alone, in some of the runs; with its coins where these runs are not counted."""
    other = None if seen.other is None else seen.other[runs, :, :1]
    return Seen(seen.values[runs, :, :1], seen.levels[:, :, :1], seen.rate, other, coins, seen.epoch)

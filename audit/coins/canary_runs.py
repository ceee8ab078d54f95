"""Canary runs, one after the other, each with fresh coins; kept is only what the decoders look at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audit.coins.canary_choice import CanaryDesign
from audit.coins.canary_decoder import Seen, Views
from audit.runs.evidence import AuditorsManifest, RunEvidence
from audit.runs.rerun import RunWatch, rerun
from calibrate.arrays import Floats
from calibrate.errors import count, positive
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
    shapes: dict[str, Any] = dict(design.algorithm.shapes())
    for silo in design.silos:
        sent = {name: np.zeros(shape) for name, shape in shapes.items()}
        if silo.name == party:
            for name, sigma, part in zip(design.scaling.names, design.scaling.sigmas, step, strict=True):
                sent[name] = (part * sigma).reshape(sent[name].shape)
        out[silo.name] = {name: Published(0, silo.name, name, values) for name, values in sent.items()}
    return out


_Looks = dict[tuple[str, str, int], Floats]
"""By the silo that looks, the silo that is looked at, and the view."""
_SHORTEST = 1e-6
COIN_STREAM, NOISE_STREAM, _PILOT_STREAM = 0xC0145, 0x4015E, 0x9107
"""Beside the seed, so that coins, noise and the runs that only measure time share no stream."""


@dataclass(frozen=True)
class Effort:
    """At most so many runs, as many as take about so many seconds of the processor's time, but `at_least` so many.

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
    engine = _Engine(evidence, AuditorsManifest(), np.random.default_rng((seed, NOISE_STREAM)))
    responses = model_response(design)
    coins, noisy, clean, models = [], [], [], []
    for _ in range(effort.runs(lambda: _time_one_run(design, engine, seed))):
        seen = engine.run(design, random)
        coins.append(np.concatenate([seen.coins[silo.name] for silo in design.silos]))
        noisy.append(_look(design, seen.watch, noise=True))
        clean.append(_look(design, seen.watch, noise=False))
        if responses is not None:
            models.append(seen.theta @ responses.T)
        if progress is not None:
            progress(len(coins))
    model = np.stack(models) if models else None
    return CanaryRuns(np.stack(coins), _group_by_silo(design, noisy), _group_by_silo(design, clean), model)


@dataclass(frozen=True, eq=False)
class _SeenRun:
    """One run: its coins by silo, both sides of the gate, and the final model."""

    coins: dict[str, NDArray[np.int64]]
    watch: RunWatch
    theta: Floats


@dataclass(frozen=True, eq=False)
class _Engine:
    """The run's own engine on silos with canaries, each time with noise of its own."""

    evidence: RunEvidence
    auditor: AuditorsManifest
    seeds: np.random.Generator

    def run(self, design: CanaryDesign, random: np.random.Generator) -> _SeenRun:
        """Toss the coins of every silo, and train."""
        coins = {silo.name: random.integers(0, 2, len(silo.canaries)) for silo in design.silos}
        silos = tuple(silo.with_coins(coins[silo.name]) for silo in design.silos)
        watch = RunWatch()
        made = rerun(
            replace(self.evidence, algorithm=design.algorithm, silos=silos),
            self.auditor,
            seed=int(self.seeds.integers(2**62)),
            sizes={silo.name: silo.size(coins[silo.name]) for silo in design.silos},
            block=self.evidence.document.rounds,
            observer=watch,
        )
        return _SeenRun(coins, watch, design.algorithm.theta(made.last.state).numpy().astype(np.float64))


def _time_one_run(design: CanaryDesign, engine: _Engine, seed: int) -> float:
    """The processor's time of a run with coins that are never looked at."""
    start = time.process_time()
    seen = engine.run(design, np.random.default_rng((seed, _PILOT_STREAM)))
    for noise in (True, False):
        _look(design, seen.watch, noise=noise)
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

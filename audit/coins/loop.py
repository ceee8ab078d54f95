"""Measure a training loop instead of guessing coins: its noise, its sensitivity and its batches.

Two runs from equal seeds share noise and batches, so one record exchanged shows what a record moves in the first step.
In data of a few distinct records the noise is what a step moves outside their gradients. Torch's optimisers show their
gradients by themselves; other code calls `watch.gradient`. A sensitivity found this way is a lower end: it refutes a
declared mechanism and never proves it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, final

import numpy as np
from scipy.stats import binom, chi2

from audit.coins.training_canaries import AnyData, other_labels
from audit.coins.training_signals import Access, GradientsOf, Train, call_training, flat, torch_gradients
from audit.report.results import NOISE_SHARES, Check, CheckOutcome, Layer, NoisePower, PowerPoint, not_possible
from calibrate.arrays import Floats, Integers
from calibrate.releases import Gaussian, Release, Sampled, multiplicities
from calibrate.sampling import Poisson

LEVEL = 1e-4
"""A loop that does what it declares is refuted with this probability at most, all tests together."""
NOISE, BATCHES, FRESH = "noise of the loop", "batches of the loop", "fresh noise in the loop"
_SHARE = LEVEL / 3
_SEEDS, _FIRSTS, _DISTINCT = 8, 24, 8
_MOST_STEPS, _MOST_NUMBERS = 64, 20_000_000
_EQUAL, _OUTSIDE, _RANK, _WHOLE, _ROUNDING, _APART, _TINY = 1e-6, 1e-2, 1e-5, 0.1, 1e-3, 0.3, 1e-100
_HALF, _FALLS = 0.5, 0.9
_ALIKE, _LEAST_VALUES = 0.8, 60
"""Noise of two steps whose correlation is above this is not fresh; with that many values chance gets there at 1e-13."""


@dataclass(frozen=True)
class DeclaredLoop:
    """What a release says of each step: the least noise multiplier, the rate of Poisson batches, the steps."""

    multiplier: float
    rate: float | None
    steps: int

    @classmethod
    def of(cls, release: Release) -> DeclaredLoop | None:
        """None for a release whose steps are not one Gaussian each."""
        leaves = multiplicities(release)
        noise = [leaf.release if isinstance(leaf, Sampled) else leaf for leaf in leaves]
        drawn = {leaf.sampling if isinstance(leaf, Sampled) else Poisson(1.0) for leaf in leaves}
        multipliers = [one.noise_multiplier for one in noise if isinstance(one, Gaussian)]
        if len(multipliers) < len(leaves) or not all(isinstance(one, Poisson) for one in drawn):
            return None
        rates = {one.rate for one in drawn if isinstance(one, Poisson)}
        return cls(min(multipliers), rates.pop() if len(rates) == 1 else None, sum(leaves.values()))


class _SeenEnough(BaseException):
    """Ends a training whose first step is all that is asked; no Exception, which the training might catch."""


@dataclass(eq=False)
class _Step:
    values: Floats
    rows: Floats | None = None
    """The gradient of each distinct record where the step began."""
    at: tuple[Any, ...] = ()
    """Torch's parameters there, to ask for these gradients later."""


@final
@dataclass(eq=False)
class _Recorder:
    """Takes the place of `Watch`, with the same methods; keeps each step's gradient."""

    records: Any
    only_first: bool
    asking: bool
    """Whether the records' gradients are wanted, too."""
    access: Access = Access.GRADIENTS
    steps: list[_Step] = field(default_factory=list)
    total: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    """Names and lengths of the layers, in order."""
    shown: bool = False
    """Whether the function calls the watch."""
    _torch: tuple[Any, Any, Any] | None = None
    _parameters: dict[int, Any] = field(default_factory=dict)

    def gradient(self, noisy: object, gradients_of: GradientsOf) -> None:
        self.shown = True
        parts = noisy if isinstance(noisy, list | tuple) else [noisy]
        values = [flat(part) for part in parts]
        self.sizes = {f"block {number + 1}": part.size for number, part in enumerate(values)}
        self.total += 1
        if len(self.steps) < self._most():
            rows = np.asarray(gradients_of(self.records), dtype=np.float64) if self.asking else None
            self.steps.append(_Step(np.concatenate(values), rows))
        self._stop()

    def parameters(self, values: object, gradients_of: GradientsOf) -> None:
        """Not used: differences of parameters are gradients for plain descent only."""

    def step(self, module: Any, loss: Any, encode: Any = None) -> None:
        self.shown, self._torch = True, (module, loss, encode)
        self._stop()

    def before_step(self, optimizer: Any, *_: object) -> None:
        """Called by torch before any optimiser's step, where gradients and parameters are those of the step."""
        if not self.shown and not self.asking:
            self._stop()
        used = [one for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        self._parameters |= {id(one): one for one in used}
        self.sizes = {f"parameters {number + 1}": one.numel() for number, one in enumerate(used)}
        self.total += 1
        if len(self.steps) < self._most():
            self.steps.append(_Step(flat([one.grad for one in used]), at=tuple(one.detach().clone() for one in used)))

    def _most(self) -> int:
        return min(_MOST_STEPS, max(2, _MOST_NUMBERS // max(1, sum(self.sizes.values()))))

    def _stop(self) -> None:
        if self.only_first and self.steps:
            raise _SeenEnough

    def ask_torch(self, model: Any) -> None:
        """Gradients of the records where each step began, by the loss that was shown, or the usual one."""
        module, loss, encode = self._torch or (model, _usual_loss, None)
        named = {id(one): name for name, one in getattr(module, "named_parameters", list)() if one.requires_grad}
        sizes = {len(step.at) for step in self.steps}
        if not self._parameters or set(named) != set(self._parameters) or sizes != {len(named)}:
            return
        self.sizes = {named[key].removeprefix("_module."): one.numel() for key, one in self._parameters.items()}
        ends = dict(zip(named, np.cumsum([self._parameters[key].numel() for key in named]).tolist(), strict=True))
        order = np.concatenate([np.arange(ends[key] - one.numel(), ends[key]) for key, one in self._parameters.items()])
        for step in self.steps:
            for one, value in zip(self._parameters.values(), step.at, strict=True):
                one.data.copy_(value)
            try:
                rows = torch_gradients(module, loss, self.records if encode is None else encode(self.records))
            except (RuntimeError, TypeError, ValueError):
                return
            step.rows = rows[:, order]


def _usual_loss(prediction: Any, label: Any) -> Any:
    """Of one output every loss has the same direction; of several it is taken to be the cross-entropy."""
    if prediction.shape[-1] > 1 and not label.is_floating_point():
        return -prediction.log_softmax(-1).gather(-1, label[:, None]).mean()
    return ((prediction.flatten() - label.flatten()) ** 2).mean()


def _observe(
    train: Train | str, case: _Exchange, exchanged: int, start: tuple[int, int], *, first: bool, asking: bool
) -> _Recorder:
    """One training from the seeds that `start` names, to its end or to the first step."""
    recorder, handle, model = _Recorder(case.records.given, first, asking), None, None
    try:
        from torch.optim.optimizer import register_optimizer_step_pre_hook
    except ImportError:
        pass
    else:
        handle = register_optimizer_step_pre_hook(recorder.before_step)
    try:
        with suppress(_SeenEnough):
            model = call_training(train, case.data(exchanged).given, recorder, *start)
    finally:
        if handle is not None:
            handle.remove()
    if asking:
        recorder.ask_torch(model)
    return recorder


@final
@dataclass(frozen=True, eq=False)
class _Exchange:
    """Data of one far-out record in many copies, and a few others; the first of the copies are exchanged."""

    canary: AnyData
    other: AnyData
    ordinary: AnyData
    copies: int

    @classmethod
    def of(cls, data: AnyData, number: int, seed: int) -> _Exchange:
        """For an even number the other record differs in its label, else it is an ordinary one."""
        random = np.random.default_rng((seed, 0x100B, number))
        _, one_each = np.unique(data.labels, return_index=True)
        more = random.permutation(len(data))[:_DISTINCT]
        rows = np.unique(np.concatenate((one_each[: 4 * _DISTINCT], more)))
        ordinary = data.part(rows)
        canary = ordinary.part(rows[:1] * 0).made_rare(data, random)
        other = canary.with_labels(other_labels(canary.labels, data.labels, random))
        return cls(canary, ordinary.part(rows[:1] * 0) if number % 2 else other, ordinary, len(data) - len(rows))

    def data(self, exchanged: int) -> AnyData:
        first, rest = (np.zeros(size, dtype=np.int64) for size in (exchanged, self.copies - exchanged))
        return self.other.part(first).joined(self.canary.part(rest)).joined(self.ordinary)

    @property
    def records(self) -> AnyData:
        return self.canary.joined(self.other).joined(self.ordinary)


@dataclass(frozen=True, eq=False)
class _Seen:
    """One seed: the steps of a whole run, what one record moves in the first step, and how many took part in it."""

    run: _Recorder
    copies: int
    moved: Floats | None = None
    batch: int | None = None
    repeats: bool = True


def _measure_once(train: Train | str, data: AnyData, number: int, seed: int) -> _Seen:
    case, start = _Exchange.of(data, number, seed), (seed, number)

    def first_step(exchanged: int) -> Floats:
        return _observe(train, case, exchanged, start, first=True, asking=False).steps[0].values

    run = _observe(train, case, 0, start, first=False, asking=True)
    if not run.steps or run.steps[0].rows is None:
        return _Seen(run, case.copies)
    base, rows = run.steps[0].values, run.steps[0].rows
    if not number and not np.array_equal(first_step(0), base):
        return _Seen(run, case.copies, repeats=False)
    everyone = first_step(case.copies) - base
    least = _EQUAL * float(np.linalg.norm(base))
    if not np.linalg.norm(everyone) > least:
        return _Seen(run, case.copies, batch=0)
    # Of the smallest number of exchanged records that changes the step the last one takes part, and no other.
    none, some, moved = 0, case.copies, everyone
    while some - none > 1:
        middle = (none + some) // 2
        found = first_step(middle) - base
        none, some, moved = (none, middle, found) if np.linalg.norm(found) > least else (middle, some, moved)
    if max(_outside(one, rows, run) for one in (moved, everyone)) > _OUTSIDE:
        return _Seen(run, case.copies)
    ratio = float(np.linalg.norm(everyone) / np.linalg.norm(moved))
    batch = round(ratio) if abs(ratio - round(ratio)) < _WHOLE else None
    return _Seen(run, case.copies, _of_one_record(moved, rows[:2]), batch)


def _outside(moved: Floats, rows: Floats, run: _Recorder) -> float:
    """Which part of a difference lies outside the records' gradients, layer by layer."""
    parts = [float(np.linalg.norm(left)) for left, _ in _by_layer(_Step(moved, rows), run)]
    return float(np.linalg.norm(parts) / np.linalg.norm(moved))


def _by_layer(step: _Step, run: _Recorder) -> Iterator[tuple[Floats, int]]:
    """For each layer what is orthogonal to all records' gradients, and how many of its directions are."""
    assert step.rows is not None
    ends = np.cumsum(list(run.sizes.values()))[:-1]
    for part, own in zip(np.split(step.values, ends), np.split(step.rows, ends, axis=1), strict=True):
        basis = _basis(own)
        yield part - basis.T @ (basis @ part), len(part) - len(basis)


def _of_one_record(moved: Floats, rows: Floats) -> Floats:
    """What one record adds, at least: its part where the two can be separated, else half of the exchange."""
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
    if np.linalg.svd(unit, compute_uv=False).min() > _APART:
        parts = np.linalg.lstsq(unit.T, moved, rcond=None)[0]
        if np.linalg.norm(moved - parts @ unit) < _ROUNDING / 10 * np.linalg.norm(moved):
            return np.asarray(max((*(parts[:, np.newaxis] * unit), moved / 2), key=np.linalg.norm))
    return moved / 2


def _basis(rows: Floats) -> Floats:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not lengths.max() > 0:
        return rows[:0]
    # A gradient that has all but vanished is mostly rounding, and would add a direction.
    _, sizes, vectors = np.linalg.svd(rows / np.maximum(lengths, _ROUNDING * lengths.max()), full_matrices=False)
    return np.asarray(vectors[sizes > _RANK * sizes[0]])


@final
@dataclass(frozen=True, eq=False)
class _Noise:
    """What each step of each run moves outside the records' gradients; axes: runs, steps, layers."""

    names: tuple[str, ...]
    squares: Floats
    free: Floats
    """How many values are in each sum of squares."""
    fresh: Floats
    """Of the layer with most values, one row of length 1 for each run and step that has noise."""
    first: tuple[float, int]
    """Squares and values of that layer in the first step of more runs."""

    @classmethod
    def of(cls, runs: Sequence[_Recorder], firsts: Sequence[_Recorder], least: float) -> _Noise:
        """Steps with less than the `least` length of noise have none."""
        names, lengths, rows = tuple(runs[0].sizes), list(runs[0].sizes.values()), []
        steps, largest = min(len(list(takewhile(_is_finite, run.steps))) for run in runs), int(np.argmax(lengths))
        squares, free = np.zeros((2, len(runs), steps, len(names)))
        for place in np.ndindex(squares.shape[:2]):
            found = list(_by_layer(runs[place[0]].steps[place[1]], runs[0]))
            squares[place], free[place] = [left @ left for left, _ in found], [number for _, number in found]
            size = float(np.linalg.norm(found[largest][0]))
            if size > least:
                rows.append(found[largest][0] / size)
        begun = [list(_by_layer(run.steps[0], run))[largest] for run in (*runs, *firsts) if _is_finite(run.steps[0])]
        first = sum(float(left @ left) for left, _ in begun), sum(number for _, number in begun)
        return cls(names, squares, free, np.array(rows).reshape(-1, lengths[largest]), first)

    def spread(self, failure: float) -> Floats:
        """A value of each layer's noise that its standard deviation exceeds with this probability at most."""
        totals = zip(self.squares.sum(axis=(0, 1)), self.free.sum(axis=(0, 1)), strict=True)
        return np.array([_spread(failure, *one) for one in totals])

    def ahead(self, failure: float) -> float:
        """By which factor the first step, where records are exchanged, may have more noise than all steps together."""
        usual = self.spread(_HALF)[self.free.sum(axis=(0, 1)).argmax()]
        return max(1.0, _spread(failure, *self.first) / max(float(usual), _TINY))

    def falls(self, failure: float) -> int:
        """How many steps have less noise than the first, in the layer with most values."""
        layer, least = self.free.sum(axis=(0, 1)).argmax(), _FALLS * _spread(1 - failure, *self.first)
        each = zip(self.squares[..., layer].sum(axis=0), self.free[..., layer].sum(axis=0), strict=True)
        return sum(_spread(failure, squares, free) < least for squares, free in each if free)


def _spread(failure: float, squares: float, free: float) -> float:
    return float(math.sqrt(squares / chi2.ppf(failure, max(free, 1))))


def _is_finite(step: _Step) -> bool:
    return step.rows is not None and bool(np.isfinite(step.values).all() and np.isfinite(step.rows).all())


def measure_loop(train: Train | str, data: AnyData, mechanism: Release, seed: int = 0) -> tuple[Check, ...]:
    """Whether a loop has the noise, the batches and the steps that it declares; refuted at level 1e-4 in all.

    Guarantee: docs/theorems/audit-bounds.md, "A measured loop": for loops that draw noise and batches from the
    generators of Python, numpy and torch, and use the gradients that they show.
    """
    declared = DeclaredLoop.of(mechanism)
    if declared is None:
        return (not_possible(Layer.NOISE, NOISE, "the mechanism is not steps of one Gaussian each on Poisson batches"),)
    seen: list[_Seen] = []
    for number in range(_SEEDS):
        seen.append(_measure_once(train, data, number, seed))
        why = _why_not(seen[-1])
        if why:
            return (not_possible(Layer.NOISE, NOISE, why),)
    longest = max((float(np.linalg.norm(one.moved)) for one in seen if one.moved is not None), default=0.0)
    case = _Exchange.of(data, 0, seed)
    starts = ((seed, _SEEDS + number) for number in range(_FIRSTS))
    firsts = [_observe(train, case, 0, start, first=True, asking=True) for start in starts]
    noise = _Noise.of([one.run for one in seen], firsts, _ROUNDING * longest)
    return _noise_check(declared, seen, noise), _batch_check(declared, seen), _fresh_check(noise)


def _why_not(seen: _Seen) -> str:
    if not seen.run.steps:
        return "no gradient is seen; call watch.gradient once per step (docs/audit-training.md)"
    if not seen.repeats:
        return "two runs from equal seeds differ, so the function uses a generator that cannot be seeded from outside"
    if len({step.values.size for step in seen.run.steps}) > 1:
        return "the steps have different parameters, as with two optimisers"
    if seen.run.steps[0].rows is None:
        return "gradients of single records are not known; call watch.step(model, loss) once per step"
    return ""


def _noise_check(declared: DeclaredLoop, seen: Sequence[_Seen], noise: _Noise) -> Check:
    """The quotient of noise and sensitivity, with separate noise for each layer."""
    moved = [one.moved for one in seen if one.moved is not None]
    steps, free = noise.squares.shape[1], noise.free.sum(axis=(0, 1))
    if not moved or not steps or not free.any():
        return not_possible(Layer.NOISE, NOISE, "no record's part is told from the others' in the first step")
    failure = _SHARE / (2 * len(free) * len(moved))
    middle, low, high = (noise.spread(one) for one in (_HALF, 1 - failure, failure))
    known, ends = free > 0, np.cumsum(list(seen[0].run.sizes.values()))
    parts = np.stack([np.linalg.norm(one, axis=1) for one in _split(np.stack(moved), ends)], axis=1)[:, known]
    # Records' parts in units of noise, squared; deviations of the layers add like independent ones (MOVER).
    found, least, most = (parts**2 / np.maximum(spread[known], _TINY) ** 2 for spread in (middle, high, low))
    whole = found.sum(axis=1)
    fewer, more = (np.sqrt(((found - end) ** 2).sum(axis=1)) for end in (least, most))
    value, lower, upper = (float(1 / np.sqrt(sums.max())) for sums in (whole, whole + more, whole - fewer))
    upper *= noise.ahead(failure)
    if upper < _ROUNDING and not seen[0].run.shown:
        why = "the optimiser's gradients have no noise; if it is added elsewhere, show it with watch.gradient"
        return not_possible(Layer.NOISE, NOISE, why)
    finding = (
        f"effective noise multiplier {value:.3f}, from {lower:.3f} to {upper:.3f}, declared {declared.multiplier:.3f}; "
        f"{int(free.sum())} values of noise in {int(known.sum())} layers, {len(moved)} exchanges of one record"
    )
    open_layers = [name for name, one in zip(noise.names, known, strict=True) if not one]
    falls = noise.falls(failure)
    finding += f"; layers not measured: {', '.join(open_layers)}" if open_layers else ""
    finding += (
        f"; less noise in {falls} of {steps} steps than in the first, where records are exchanged" if falls else ""
    )
    outcome = CheckOutcome.NOT_POSSIBLE if open_layers or falls else CheckOutcome.PASSED
    if upper < declared.multiplier * (1 - _ROUNDING):
        outcome = CheckOutcome.FAILED
    power = _power(declared.multiplier / max(upper, _TINY), float(free[known].min()))
    return Check(layer=Layer.NOISE, name=NOISE, outcome=outcome, finding=finding, noise_power=power)


def _split(values: Floats, ends: Integers) -> list[Floats]:
    return np.split(values, ends[:-1], axis=1)


def _power(reached: float, free: float) -> NoisePower:
    """How likely less noise were refuted, by the layer with fewest values; `reached` is declared / upper end."""

    def power(share: float) -> float:
        return 1.0 if share == 0 else float(chi2.cdf(free * (reached / share) ** 2, free))

    curve = tuple(PowerPoint(share=share, power=power(share)) for share in NOISE_SHARES)
    return NoisePower(noticed=min(1.0, reached), curve=curve)


def _batch_check(declared: DeclaredLoop, seen: Sequence[_Seen]) -> Check:
    """Too many steps, too large batches, or batches of one size where records should join independently."""
    steps = max(one.run.total for one in seen)
    counts = [one.batch for one in seen if one.batch is not None]
    finding = f"{steps} steps, declared {declared.steps}"
    failed = steps > declared.steps
    known = len(counts) == len(seen) and declared.rate is not None
    if known:
        copies, rate = seen[0].copies, declared.rate or 0.0
        finding += f"; {np.mean(counts):.1f} of {copies} records in the first batch, declared {rate * copies:.1f}"
        several = float(binom.sf(sum(counts) - 1, len(counts) * copies, rate))
        failed |= several < _SHARE / 2
        if rate < 1 and _range_p_value(counts, copies, rate) < _SHARE / 2:
            failed, finding = True, f"{finding}; batches have one size, so records do not join them independently"
    outcome = CheckOutcome.PASSED if known else CheckOutcome.NOT_POSSIBLE
    return Check(layer=Layer.NOISE, name=BATCHES, outcome=CheckOutcome.FAILED if failed else outcome, finding=finding)


def _range_p_value(counts: Sequence[int], records: int, rate: float) -> float:
    """The probability that as many binomial numbers lie as close together."""
    low = np.arange(records + 1)
    width = max(counts) - min(counts)
    whole = binom.cdf(low + width, records, rate) - binom.cdf(low - 1, records, rate)
    without = whole - binom.pmf(low, records, rate)
    return float((whole ** len(counts) - np.maximum(without, 0.0) ** len(counts)).sum())


def _fresh_check(noise: _Noise) -> Check:
    """Whether two steps, or two runs from other seeds, share their noise."""
    if noise.fresh.shape[1] < _LEAST_VALUES or len(noise.fresh) < 2:
        return not_possible(Layer.NOISE, FRESH, f"no layer has {_LEAST_VALUES} values of noise in two steps")
    alike = np.abs(noise.fresh @ noise.fresh.T - np.eye(len(noise.fresh)))
    failed = float(alike.max()) > _ALIKE
    pair = [int(one) for one in np.unravel_index(int(alike.argmax()), alike.shape)]
    runs = {one // noise.squares.shape[1] for one in pair}
    where = "two steps of one run" if len(runs) == 1 else "two runs from different seeds"
    finding = f"{where} have the same noise" if failed else f"{len(noise.fresh)} steps have different noise"
    return Check(
        layer=Layer.NOISE, name=FRESH, outcome=CheckOutcome.FAILED if failed else CheckOutcome.PASSED, finding=finding
    )

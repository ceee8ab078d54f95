"""What an observer of a training run sees, and how canaries are scored by it.

A training function that offers more than its model takes a second argument, `watch`, and calls it once per step:

    watch.gradient(noisy, gradients_of)          the gradient that the step used, after clipping and noise
    watch.parameters(values, gradients_of)       all parameters after the step
    watch.step(module, loss, encode)             either of them, for a torch module, after `optimizer.step()`

`gradients_of(records)` gives one row per record: the gradient of its loss at the current parameters, in the order of
the values. Records come in the form in which the function takes its data. Nothing else is asked of the function.

`scores_of_runs` learns from other runs how a canary looks when it is in and when it is out. Any score is allowed that
does not look at the coins of the runs that are counted; a better one only finds more.
"""

from __future__ import annotations

import inspect
import random as standard_random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from enum import Enum
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike

from audit.named import load_named
from calibrate.arrays import Booleans, Floats, Integers
from calibrate.errors import InvalidInput

GradientsOf = Callable[[Any], ArrayLike]
Train = Callable[..., Any]

_MOST_COORDINATES = 20_000
"""Of a larger model this many, drawn at random, are looked at."""
CROWD, _RIDGE = 200, 1e-3
"""Number of other records asked in each step; directions that hold more than this share of one gradient are loud."""
_TINY = 1e-12


class Access(Enum):
    """What the observer sees of a training run."""

    FINAL_MODEL = "final-model"
    ITERATES = "iterates"
    GRADIENTS = "gradients"


@final
class Watch:
    """Turns each step into one number per canary record: how far the step went in the direction of its gradient.

    Directions in which the crowd, some of the other records, is loud count less (Fisher's discriminant with the crowd's
    second moments and a ridge for the noise). It never sees a coin.
    """

    def __init__(self, access: Access, records: Any, crowd: Any = None) -> None:
        self.access, self._records, self._crowd = access, records, crowd
        self._before: tuple[Floats, Floats] | None = None
        self._ahead: Floats | None = None
        self._kept: Any = None
        self.steps: list[Floats] = []
        """What each step reveals of each canary record."""

    def gradient(self, noisy: object, gradients_of: GradientsOf) -> None:
        """One step's gradient as the optimiser used it: an array, or a sequence of arrays or tensors."""
        if self.access is Access.GRADIENTS:
            self._score(self._chosen(flat(noisy)), self._directions(gradients_of))

    def parameters(self, values: object, gradients_of: GradientsOf) -> None:
        """All parameters after one step; the change since the call before is what is looked at."""
        if self.access is not Access.ITERATES:
            return
        now, directions = self._chosen(flat(values)), self._directions(gradients_of)
        if self._before is not None:
            self._score(self._before[0] - now, self._before[1])
        self._before = now, directions

    def step(self, module: Any, loss: Callable[[Any, Any], Any], encode: Callable[[Any], Any] | None = None) -> None:
        """After `optimizer.step()`, with the gradients still there; the first call shows where the second began.

        module: the model, in Opacus' wrapper or not.
        loss: `loss(module(x), y)` is what it is trained on, for a batch of records.
        encode: from data as the training function takes them to the pair of tensors (x, y); not needed for such pairs.
        """
        if self.access is Access.FINAL_MODEL:
            return
        parameters = [one for one in module.parameters() if one.requires_grad]

        def gradients_of(records: Any) -> Floats:
            return torch_gradients(module, loss, records if encode is None else encode(records))

        if self.access is Access.ITERATES:
            self.parameters(parameters, gradients_of)
            return
        # The step's gradients were taken where the call before left the parameters, not where they are now.
        if self._ahead is not None:
            self._score(self._chosen(flat([one.grad for one in parameters])), self._ahead)
        self._ahead = self._directions(gradients_of)

    def _directions(self, gradients_of: GradientsOf) -> Floats:
        table = np.asarray(gradients_of(self._records), dtype=np.float64)
        if table.ndim != 2:
            raise InvalidInput("gradients_of", table.shape, "must give one row per record", "flatten each gradient")
        own = self._chosen(table)
        if self._crowd is not None:
            own = _without_loud(own, self._chosen(np.asarray(gradients_of(self._crowd), dtype=np.float64)))
        return np.asarray(own / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), _TINY))

    def _chosen(self, values: Floats) -> Floats:
        if values.shape[-1] <= _MOST_COORDINATES:
            return values
        if self._kept is None:
            self._kept = np.random.default_rng(0).permutation(values.shape[-1])[:_MOST_COORDINATES]
        return np.asarray(values[..., self._kept])

    def _score(self, moved: Floats, directions: Floats) -> None:
        if moved.shape != directions.shape[1:]:
            rule = f"must be rows of {len(moved)} numbers, as many as the values of the step"
            raise InvalidInput("gradients_of", directions.shape, rule, "give gradients of the same parameters")
        if not np.isfinite(moved).all():
            raise InvalidInput("watch", "NaN or infinite", "must be finite", "train with a smaller learning rate")
        self.steps.append(directions @ moved)


def call_training(train: Train | str, given: Any, watch: Any, seed: int, number: int, beginning: int = 0) -> Any:
    """The function's model, with all generators begun as these numbers say; `watch` is given if it takes one.

    What the function prints goes to standard error: standard output is the command's own.
    """
    words = np.random.SeedSequence((seed, 0x5EED + beginning, number)).generate_state(3)
    first, second, third = (int(one) for one in words)
    standard_random.seed(first)
    np.random.seed(second)
    with suppress(ImportError):
        import torch

        torch.manual_seed(third)
    with redirect_stdout(sys.stderr):
        function = loaded(train)
        return function(given, watch) if _takes_watch(function) else function(given)


def loaded(function: Callable[..., Any] | str) -> Callable[..., Any]:
    """The function itself, or the one that module:name names."""
    return load_named(function) if isinstance(function, str) else function


def _takes_watch(function: Train) -> bool:
    """Whether a second argument can be given."""
    try:
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        return False
    return True


def _without_loud(own: Floats, crowd: Floats) -> Floats:
    """own (C + ridge)^-1 ridge, with C the second moments of the crowd's gradients, each of length 1 at most."""
    longest = np.maximum(1.0, np.linalg.norm(crowd, axis=1, keepdims=True))
    unit = crowd / longest
    # Woodbury: the inverse of a matrix as large as the crowd, not as the model.
    small = unit @ unit.T + _RIDGE * len(unit) * np.eye(len(unit))
    return np.asarray(own - np.linalg.solve(small, unit @ own.T).T @ unit)


def flat(values: object) -> Floats:
    """All numbers of an array, or of a sequence of arrays or tensors, in order."""
    parts = values if isinstance(values, Sequence) else [values]
    if not len(parts) or any(part is None for part in parts):
        raise InvalidInput(
            "watch", "a missing gradient", "must hold a value for every parameter", "call it after the step"
        )
    flat = [np.asarray(part.detach().cpu() if hasattr(part, "detach") else part, np.float64) for part in parts]
    return np.concatenate([part.ravel() for part in flat])


def torch_gradients(module: Any, loss: Callable[[Any, Any], Any], records: Any) -> Floats:
    """One row per record, in the order of the module's trainable parameters."""
    import torch

    from audit.models.torch_targets import plain_module

    plain = plain_module(module)
    names = {id(one): name for name, one in plain.named_parameters()}
    values = {names[id(one)]: one.detach() for one in module.parameters() if one.requires_grad}
    frozen = {name: one.detach() for name, one in plain.named_buffers()}

    def loss_of_one(parameters: Mapping[str, Any], x: Any, y: Any) -> Any:
        return loss(torch.func.functional_call(plain, {**parameters, **frozen}, (x.unsqueeze(0),)), y.unsqueeze(0))

    x, y = (torch.as_tensor(part) for part in records)
    if x.is_floating_point():  # a file's numbers are double; the module's own precision is what was trained
        x = x.to(next(iter(values.values())).dtype)
    training = plain.training
    plain.eval()
    try:
        each = torch.func.vmap(torch.func.grad(loss_of_one), in_dims=(None, 0, 0))(values, x, y)
    finally:
        plain.train(training)
    return torch.cat([each[name].flatten(1) for name in values], dim=1).double().numpy()


_PRIOR = 4.0
"""This many imaginary lessons pull each canary toward the mean of its kind."""
_SHIFTS = np.concatenate((np.linspace(0.02, 0.5, 9), np.geomspace(0.6, 12.0, 24)))
_RATES = np.geomspace(0.005, 0.995, 25)
_MOST_VALUES = 4000

Series = list[Floats]
"""Per run a table (steps, canaries)."""


def scores_of_runs(signals: Series, lessons: Series, coins: Booleans, kinds: Integers) -> Floats:
    """One score per run and canary, positive for "in"; its size orders the guesses.

    signals: of the runs that are counted; lessons: of runs that are not, with their `coins` (runs, canaries).
    kinds: of each canary. Without lessons the middle of each kind in each run is "no idea".
    """
    scores = np.zeros((len(signals), len(kinds)))
    for kind in np.unique(kinds):
        mine = kinds == kind
        parts, learnt = ([table[:, mine] for table in runs] for runs in (signals, lessons))
        if not lessons:
            scores[:, mine] = _by_rank(np.stack([table.sum(axis=0) for table in parts]))
        elif min(len(table) for table in (*parts, *learnt)) > 1:
            scores[:, mine] = _over_steps(parts, learnt, coins[:, mine])
        else:
            totals, taught = (np.stack([table.sum(axis=0) for table in runs]) for runs in (parts, learnt))
            scores[:, mine] = _log_ratios(totals, taught, coins[:, mine])
    return scores


def _by_rank(totals: Floats) -> Floats:
    middle = np.median(totals, axis=1, keepdims=True)
    spread = np.median(np.abs(totals - middle), axis=1, keepdims=True)
    return np.asarray((totals - middle) / np.maximum(spread, _TINY))


def _over_steps(signals: Series, lessons: Series, coins: Booleans) -> Floats:
    """The sum over steps of log(1 - rate + rate exp(shift z - shift^2 / 2)): a canary takes part in some steps only.

    z is a step's signal in units of its spread in lessons without the canary; shift and rate fit those with it.
    """
    without = [table[:, ~own].ravel() for table, own in zip(lessons, coins, strict=True)]
    spread = max(float(np.concatenate(without).std()), _TINY)
    outside = (~coins).sum(axis=0)
    sums = sum(np.where(own, 0.0, table.mean(axis=0)) for table, own in zip(lessons, coins, strict=True))
    centres = np.asarray(sums) / np.maximum(outside, 1)
    scales = np.sqrt(
        (_PRIOR * spread**2 + sum(_squares(table, own, centres) for table, own in zip(lessons, coins, strict=True)))
        / (_PRIOR + outside)
    )
    inside = np.concatenate(
        [((table - centres) / scales)[:, own].ravel() for table, own in zip(lessons, coins, strict=True)]
    )
    shift, rate = _fit(inside[:: max(1, len(inside) // _MOST_VALUES)])
    return np.stack([_gains((table - centres) / scales, shift, rate).sum(axis=0) for table in signals])


def _squares(table: Floats, own: Booleans, centres: Floats) -> Floats:
    return np.where(own, 0.0, ((table - centres) ** 2).mean(axis=0))


def _gains(z: Floats, shift: float, rate: float) -> Floats:
    return np.asarray(np.log1p(rate * np.expm1(np.minimum(shift * z - shift**2 / 2, 500.0))))


def _fit(values: Floats) -> tuple[float, float]:
    """The shift and the rate under which these values are likeliest."""
    if not len(values):
        return float(_SHIFTS[0]), 1.0
    choices = [(float(shift), float(rate)) for shift in _SHIFTS for rate in _RATES]
    return max(choices, key=lambda choice: float(_gains(values, *choice).mean()))


def _log_ratios(signals: Floats, lessons: Floats, coins: Booleans) -> Floats:
    """Log likelihood ratios of two normal laws with one variance, shrunk toward the canary's kind."""
    inside, outside = coins.sum(axis=0), (~coins).sum(axis=0)
    sums_in, sums_out = (lessons * coins).sum(axis=0), (lessons * ~coins).sum(axis=0)
    both = (inside > 0) & (outside > 0)
    gaps = sums_in[both] / inside[both] - sums_out[both] / outside[both]
    weights = 1 / (1 / inside[both] + 1 / outside[both])
    usual = float((gaps * weights).sum() / max(weights.sum(), _TINY)) if both.any() else 0.0
    # The canary's own middle, given the usual gap: each lesson is moved to the middle between in and out.
    # In expectation a lesson is middle + gap / 2 with the canary and middle - gap / 2 without it.
    middles = (sums_in - inside * usual / 2 + sums_out + outside * usual / 2) / len(lessons)
    gap = np.full(lessons.shape[1], usual)
    weight = weights / (weights + _PRIOR)
    gap[both] = weight * gaps + (1 - weight) * usual
    left = lessons - middles - np.where(coins, 0.5, -0.5) * gap
    pooled = float((left**2).mean())
    variance = (_PRIOR * pooled + (left**2).sum(axis=0)) / (_PRIOR + len(lessons))
    return np.asarray(np.maximum(gap, 0.0) * (signals - middles) / np.maximum(variance, _TINY))

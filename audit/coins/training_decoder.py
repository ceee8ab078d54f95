"""From signals of canaries to scores: how a canary looks when it is in and when it is out, learnt from other runs.

Any score is allowed that does not look at the coins of the runs that are counted; a better one only finds more.
"""

from __future__ import annotations

import numpy as np

from calibrate.arrays import Booleans, Floats, Integers

_PRIOR = 4.0
"""So many imaginary lessons pull each canary toward the mean of its kind."""
_TINY = 1e-12
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
    middles = (sums_in - inside * usual / 2 + sums_out + outside * usual / 2) / len(lessons)
    gap = np.full(lessons.shape[1], usual)
    weight = weights / (weights + _PRIOR)
    gap[both] = weight * gaps + (1 - weight) * usual
    left = lessons - middles - np.where(coins, 0.5, -0.5) * gap
    pooled = float((left**2).mean())
    variance = (_PRIOR * pooled + (left**2).sum(axis=0)) / (_PRIOR + len(lessons))
    return np.asarray(np.maximum(gap, 0.0) * (signals - middles) / np.maximum(variance, _TINY))

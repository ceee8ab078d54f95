"""Are a run's recorded batches what was declared? Poisson, fixed size, shuffled, with replacement.

A sampling is told by what it repeats. Poisson batches vary in size and share units by chance; fixed-size ones share
units but not their size; shuffled ones share none within an epoch. Pricing one as another breaks the guarantee. How
secret batches are drawn is decided by a rehearsal with known words (`audit.probes.known_key`).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import logsumexp

from audit.bounds.binomial import two_sided
from audit.runs.evidence import Batches
from calibrate.sampling import (
    Cyclic,
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
)

_SLOPES = np.geomspace(1e-3, 100.0, 120)
_STEEPEST = 2.0
"""Of the slopes for sizes that vary too much; steeper ones only see the cuts."""
_TELLING = 8
"""From this many batches on their sizes show a law."""


def wrong_batches(sampling: Sampling | None, units: int, batches: Batches, level: float) -> str | None:
    """What is wrong with these batches; None if nothing is. Each statistical question has this level."""
    sizes = {len(batch) for batch in batches.values()}
    match sampling:
        case None:
            whole = all(np.array_equal(batch, np.arange(units)) for batch in batches.values())
            return None if whole else "a batch is not everybody"
        case WithReplacement(draws=draws):
            return None if sizes <= {draws} else "a batch has another number of draws"
        case ShuffledEpochs(size=size):
            return _wrong_epochs(units, size, batches)
        case FixedSize(size=size):
            if not sizes <= {size} or _twice_in_a_batch(batches):
                return f"a batch has not {size} different units"
            return _wrong_returns(size / units, batches, level)
        case TruncatedPoisson(limit=limit) if max(sizes) > limit:
            return f"a batch has more than {limit} units"
        case Poisson(rate=rate) | TruncatedPoisson(rate=rate):  # cuts are too rare to be seen in any size
            if _twice_in_a_batch(batches):
                return "a unit is in a batch twice"
            return _wrong_sizes(units, rate, batches, level) or _wrong_returns(rate, batches, level)
        case RandomAllocation() | Cyclic():
            return None  # secret: none is on record


def _twice_in_a_batch(batches: Batches) -> bool:
    return any(len(np.unique(batch)) != len(batch) for batch in batches.values())


def _wrong_sizes(units: int, rate: float, batches: Batches, level: float) -> str | None:
    """As many participations as declared, and as unevenly spread over the rounds."""
    sizes = np.array([len(batch) for batch in batches.values()])
    if two_sided(sizes.sum(), units * len(sizes), rate) < level:
        return f"{sizes.sum()} participations where {units * len(sizes) * rate:.0f} are declared"
    spread = units * rate * (1 - rate)
    if spread < 1 or len(sizes) < _TELLING:
        return None
    dispersion = float(np.square(sizes - units * rate).sum() / spread)
    if _so_uneven(units, rate, sizes, dispersion, level) < level:
        return f"sizes vary {math.sqrt(dispersion / len(sizes)):.2f} times as much as Poisson batches do"
    return None


def _so_uneven(units: int, rate: float, sizes: NDArray[np.int64], dispersion: float, level: float) -> float:
    """How likely sizes of true Poisson batches vary so little or so much, at most, if that is below `level`.

    Chernoff's bound with the exact law of one size, cut where that law has next to nothing left; a size beyond the cuts
    is itself as unlikely as they are. Chi-squared would sound too many alarms where batches are small.
    """
    law, rounds = stats.binom(units, rate), len(sizes)
    beyond = level / 4
    low, high = law.ppf(beyond / (2 * rounds)), law.isf(beyond / (2 * rounds))
    if sizes.min() < low or sizes.max() > high:
        return beyond
    usual = np.arange(low, high + 1)
    squares = np.square(usual - units * rate) / (units * rate * (1 - rate))
    slopes = np.concatenate((-_SLOPES, _SLOPES[_SLOPES < _STEEPEST]))[:, np.newaxis]
    moments = logsumexp(law.logpmf(usual) + slopes * squares, axis=1)
    # Chernoff: min over slopes of exp(n log E exp(slope x) - slope d); negative slopes bound the lower tail.
    smallest = float(np.min(rounds * moments - slopes[:, 0] * dispersion))
    return beyond + 2 * math.exp(min(0.0, smallest))


def _wrong_returns(rate: float, batches: Batches, level: float) -> str | None:
    """How many units of one batch are in the next one, over pairs of rounds that do not overlap."""
    in_order = [batches[number] for number in sorted(batches)]
    pairs = list(zip(in_order[::2], in_order[1::2], strict=False))
    again = sum(len(np.intersect1d(one, other)) for one, other in pairs)
    # Given the first batch of a pair, each of its units is in the second with the declared probability; with a
    # fixed size the draws are negatively dependent, which makes the binomial tails safe.
    trials = sum(len(one) for one, _ in pairs)
    if pairs and two_sided(again, trials, rate) < level:
        return f"{again} units came back in the next round where {trials * rate:.0f} are expected"
    return None


def _wrong_epochs(units: int, size: int, batches: Batches) -> str | None:
    """Within the rounds of one epoch no one takes part twice, and only the last batch is smaller."""
    per_epoch = -(-units // size)
    epochs: dict[int, dict[int, NDArray[np.int64]]] = {}
    for number, batch in batches.items():
        epochs.setdefault(number // per_epoch, {})[number % per_epoch] = batch
    for epoch, parts in epochs.items():
        joined = np.concatenate(list(parts.values()))
        if len(np.unique(joined)) != len(joined):
            return f"a unit takes part twice in the epoch that begins at round {epoch * per_epoch}"
        if any(len(batch) != size for place, batch in parts.items() if place < per_epoch - 1):
            return f"a batch before the last of its epoch has not {size} units"
    return None

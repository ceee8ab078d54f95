"""Are batches of different rounds, silos and beginnings of a run independent, and groups a matter of the record alone?

Given their sizes, independent batches are random parts of the units, for every sampling that treats units alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import kl_div

from calibrate.sampling import (
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
)
from privfair.algorithms.algorithm import SiloTensors
from privfair.batches.participation import group_of_units

Batches = Mapping[int, NDArray[np.int64]]
"""By round; rounds that a crash left behind are missing."""
_MOST_UNITS = 100_000
"""Of a larger silo so many are compared."""


def related_rounds(sampling: Sampling | None, units: int, batches: Batches, level: float) -> str | None:
    """Whether two rounds share more or fewer units than by chance; of allocated epochs, rounds of different ones."""
    if not isinstance(sampling, Poisson | TruncatedPoisson | FixedSize | RandomAllocation):
        return None
    per_epoch, units = _per_epoch(sampling, units), min(units, _MOST_UNITS)
    numbers = np.array(sorted(batches))
    members = _membership(units, [batches[number] for number in numbers.tolist()])
    one, two = np.triu_indices(len(numbers), 1)
    apart = numbers[one] // per_epoch != numbers[two] // per_epoch
    one, two = one[apart], two[apart]
    if not len(one):
        return None
    sizes, both = members.sum(axis=1), (members @ members.T)[one, two]
    p_values = _chance_of_sharing(both, sizes[one], sizes[two], units)
    worst = int(p_values.argmin())
    if p_values[worst] < level / len(one):
        pair = f"rounds {numbers[one[worst]]} and {numbers[two[worst]]}"
        return f"{pair} share {both[worst]:.0f} units, far from what chance explains"
    return None


def _per_epoch(sampling: Sampling | None, units: int) -> int:
    """Rounds within which batches depend on one another."""
    if isinstance(sampling, ShuffledEpochs):
        return -(-units // sampling.size)
    return sampling.batches if isinstance(sampling, RandomAllocation) else 1


def _membership(units: int, batches: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """A row per batch with ones for its members, of the first so many units."""
    table = np.zeros((len(batches), units))
    for row, batch in zip(table, batches, strict=True):
        row[batch[batch < units]] = 1.0
    return table


def _chance_of_sharing(
    both: NDArray[np.float64], one: NDArray[np.float64], two: NDArray[np.float64], units: int
) -> NDArray[np.float64]:
    """How likely two random parts of these sizes share so few or so many units, at most.

    Hoeffding's bound exp(-size KL(share, rate)) for draws without replacement, either way.
    """
    size, rate = np.maximum(one, 1.0), two / units
    share = both / size
    bits = np.where(one > 0, kl_div(share, rate) + kl_div(1 - share, 1 - rate), 0.0)  # an empty batch tells nothing
    return np.asarray(np.minimum(1.0, 2 * np.exp(-one * bits)))


def related_silos(
    sampling: Sampling | None, units: Mapping[str, int], drawn: Mapping[str, Batches], level: float
) -> str | None:
    """Whether two silos share their randomness: the same places of both are drawn together, in files of any size."""
    pairs = list(combinations(drawn.items(), 2))
    for (one, first), (other, second) in pairs:
        common = min(units[one], units[other])
        if isinstance(sampling, ShuffledEpochs | WithReplacement):  # silos of one size only
            same = all(n in second and np.array_equal(batch, second[n]) for n, batch in first.items())
            if same and _log_chance_of_batches(sampling, common, first) < math.log(level / len(pairs)):
                return f"{one} and {other} drew the same units in every round"
        if predicted_batches(sampling, common, first, second, level / len(pairs)) is not None:
            return f"{one} and {other} draw the same places of their files"
    return None


def predicted_batches(
    sampling: Sampling | None, units: int, first: Batches, again: Batches, level: float
) -> str | None:
    """Whether a run that is begun once more under the same papers and seed draws the same units in the same rounds.

    Batches that follow from the plan's seed or the manifest are no secret, however random they look.
    """
    if not isinstance(sampling, Poisson | TruncatedPoisson | FixedSize | RandomAllocation):
        return None
    rounds, units = sorted(first.keys() & again.keys()), min(units, _MOST_UNITS)
    if not rounds:
        return None
    here, there = (_membership(units, [batches[r] for r in rounds]) for batches in (first, again))
    sizes, both = here.sum(axis=1), (here * there).sum(axis=1)
    p_values = _chance_of_sharing(both, sizes, there.sum(axis=1), units)
    chance = 0.0
    if np.array_equal(here, there):  # small batches tell nothing one by one; a batch of an epoch is part of the rest
        chance = _log_chance_of_batches(sampling, units, {r: first[r][first[r] < units] for r in rounds})
    if chance < math.log(level / 2) or p_values.min() < level / (2 * len(rounds)):
        return "batches are the same when the run is begun again under the same papers"
    return None


def _log_chance_of_batches(sampling: Sampling, units: int, batches: Batches) -> float:
    """The logarithm of how likely these very batches are, in any order of their members, given their sizes."""
    taken: dict[int, int] = {}
    chance, per_epoch = 0.0, _per_epoch(sampling, units)
    for round_number, batch in batches.items():
        if isinstance(sampling, WithReplacement):
            repeats = np.unique(batch, return_counts=True)[1].tolist()
            chance += math.lgamma(len(batch) + 1) - sum(math.lgamma(one + 1) for one in repeats)
            chance -= len(batch) * math.log(units)
            continue
        epoch = round_number // per_epoch
        chance -= _log_choices(units - taken.get(epoch, 0), len(batch))
        taken[epoch] = taken.get(epoch, 0) + len(batch)
    return chance


def _log_choices(units: int, size: int) -> float:
    return math.lgamma(units + 1) - math.lgamma(size + 1) - math.lgamma(units - size + 1)


def moving_groups(silo: SiloTensors, groups: int) -> str | None:
    """Whether a record's group of the cycle depends on the others: without the first one, and in another order."""
    whole = group_of_units(silo, groups)
    for rows in (torch.arange(1, len(silo)), torch.arange(len(silo)).flip(0)):
        part = replace(silo, x=silo.x[rows], y=silo.y[rows], s=silo.s[rows], record_numbers=None)
        if not np.array_equal(group_of_units(part, groups), whole[rows.numpy()]):
            return "the group of a record in the cycle depends on the other records"
    return None

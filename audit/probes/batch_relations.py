"""Are batches of different rounds, silos and beginnings of a run independent, and groups a matter of the record alone?

Given their sizes, independent batches are random parts of the units, for every sampling that treats units alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import kl_div

from calibrate.sampling import Cyclic, FixedSize, Poisson, RandomAllocation, Sampling, TruncatedPoisson
from privfair.algorithms.algorithm import SiloTensors
from privfair.batches.participation import group_of_units

Batches = Mapping[int, NDArray[np.int64]]
"""By round; rounds that a crash left behind are missing."""
_MOST_UNITS = 100_000
"""Of a larger silo so many are compared."""
_TELLING = 8
"""From so many units on two equal batches are no accident."""


def related_rounds(sampling: Sampling | None, units: int, batches: Batches, level: float) -> str | None:
    """Whether two rounds share more or fewer units than by chance; of allocated epochs, rounds of different ones."""
    if not isinstance(sampling, Poisson | TruncatedPoisson | FixedSize | RandomAllocation):
        return None
    per_epoch, units = _per_epoch(sampling), min(units, _MOST_UNITS)
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


def _per_epoch(sampling: Sampling | None) -> int:
    """Rounds within which batches depend on one another."""
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
    bits = kl_div(share, rate) + kl_div(1 - share, 1 - rate)
    return np.asarray(np.minimum(1.0, 2 * np.exp(-one * bits)))


def related_silos(
    sampling: Sampling | None, units: Mapping[str, int], drawn: Mapping[str, Batches], level: float
) -> str | None:
    """Whether two silos share their randomness: the same places of both are drawn together, in files of any size."""
    if not isinstance(sampling, Poisson | TruncatedPoisson | FixedSize | RandomAllocation):
        return _same_in_two_silos(sampling, drawn)
    pairs = list(combinations(drawn.items(), 2))
    for (one, first), (other, second) in pairs:
        common = min(units[one], units[other])
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
        taken: dict[int, float] = {}
        for round_number, size in zip(rounds, sizes.tolist(), strict=True):
            epoch = round_number // _per_epoch(sampling)
            chance -= _log_choices(units - taken.get(epoch, 0.0), size)
            taken[epoch] = taken.get(epoch, 0.0) + size
    if chance < math.log(level / 2) or p_values.min() < level / (2 * len(rounds)):
        return "batches are the same when the run is begun again under the same papers"
    return None


def _log_choices(units: float, size: float) -> float:
    return math.lgamma(units + 1) - math.lgamma(size + 1) - math.lgamma(units - size + 1)


def moving_groups(silo: SiloTensors, groups: int) -> str | None:
    """Whether a record's group of the cycle depends on the others: without the first one, and in another order."""
    whole = group_of_units(silo, groups)
    for rows in (torch.arange(1, len(silo)), torch.arange(len(silo)).flip(0)):
        part = replace(silo, x=silo.x[rows], y=silo.y[rows], s=silo.s[rows], record_numbers=None)
        if not np.array_equal(group_of_units(part, groups), whole[rows.numpy()]):
            return "the group of a record in the cycle depends on the other records"
    return None


def _same_in_two_silos(sampling: Sampling | None, drawn: Mapping[str, Batches]) -> str | None:
    """Silos of one size that draw the same units in every round share their randomness; not where content decides."""
    if sampling is None or isinstance(sampling, Cyclic):
        return None
    for (one, first), (other, second) in pairwise(drawn.items()):
        same = all(np.array_equal(batch, second[number]) for number, batch in first.items())
        if same and sum(len(batch) for batch in first.values()) >= _TELLING:
            return f"{one} and {other} drew the same units in every round"
    return None

"""What the authors' public code computes (`privfair.algorithms.baselines.steffle_public_code`), and what it costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.stats import norm

from privfair_experiments import stacked
from privfair_experiments.steffle.settings import (
    DELTA,
    PRINTED_BATCH,
    PRINTED_CLIP,
    PRINTED_EPOCHS,
    PRINTED_FAIRNESS,
    PRINTED_RADIUS,
    Noise,
    Setting,
    gaussian_multiplier,
    noise_as_printed,
)
from privfair_experiments.steffle.split import Measured, Split, each_knob, printed_batches, printed_rule

PUBLIC_CODE, PUBLIC_PAID = "SteFFLe, public code", "SteFFLe, public code, noise paid"
FIRST_GROUPS = {
    "public code without noise, first record's group": None,
    "public code without noise, group 0": 0,
    "public code without noise, group 1": 1,
}
"""Whose positive answers the public code punishes."""


def public_code(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...]) -> Iterator[Measured]:
    """With the noise that it adds: Theorem 3.3's for a *mean* over the batch, beside a sum.

    The true epsilon is that of 40 such pairs of Gaussian releases (Dong, Roth, Su 2022), rounded up, for every record
    but the first of a silo: that one's attribute says which group all of its silo punishes.
    """
    noises = [noise_as_printed(setting, split.silo_size, epsilon) for epsilon in epsilons]
    reach = _w_reach(setting, split.silo_size, max(PRINTED_FAIRNESS))
    of_theta, of_w = (np.repeat([getattr(one, name) for one in noises], len(PRINTED_FAIRNESS)) for name in _SIGMAS)
    theta = _public_code(setting, split, seed, np.tile(PRINTED_FAIRNESS, len(noises)), of_theta, of_w)
    promises = [(epsilon, _summed_epsilon(noise, reach)) for epsilon, noise in zip(epsilons, noises, strict=True)]
    yield from each_knob(PUBLIC_CODE, split, theta, promises, PRINTED_FAIRNESS)


def paid_public_code(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...]) -> Iterator[Measured]:
    """With noise that pays for the sum and for W, half of the budget each; the group that is punished is public."""
    priced = [gaussian_multiplier(PRINTED_EPOCHS, epsilon) for epsilon in epsilons]
    weights = np.tile(PRINTED_FAIRNESS, len(priced))
    z = math.sqrt(2) * np.repeat([one for one, _ in priced], len(PRINTED_FAIRNESS))
    of_w = np.array([_w_reach(setting, split.silo_size, weight) for weight in weights])
    theta = _public_code(setting, split, seed, weights, z * 2 * PRINTED_CLIP, z * of_w, first=0)
    promises = [(epsilon, true) for epsilon, (_, true) in zip(epsilons, priced, strict=True)]
    yield from each_knob(PUBLIC_PAID, split, theta, promises, PRINTED_FAIRNESS)


def public_code_without_noise(
    setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...], method: str
) -> Iterator[Measured]:
    nothing = np.zeros(len(PRINTED_FAIRNESS))
    first = FIRST_GROUPS[method]
    theta = _public_code(setting, split, seed, np.array(PRINTED_FAIRNESS), nothing, nothing, first)
    yield from each_knob(method, split, theta, [(None, None)], PRINTED_FAIRNESS)


_SIGMAS = ("sigma_theta", "sigma_w")


def _public_code(
    setting: Setting,
    split: Split,
    seed: int,
    fairness: stacked.Wide,
    sigma: stacked.Wide,
    sigma_w: stacked.Wide,
    first: int | None = None,
) -> stacked.Wide:
    share = setting.frequencies[0][first or 0]
    columns = stacked.PublicCodeColumns(fairness, sigma, sigma_w, share, PRINTED_CLIP, PRINTED_RADIUS, first=first)
    steps = replace(printed_rule(split.silo_size), rounds=PRINTED_EPOCHS * math.ceil(split.silo_size / PRINTED_BATCH))
    return stacked.public_code(split.train, columns, steps, printed_batches(split, seed), seed)


def _w_reach(setting: Setting, size: int, weight: float) -> float:
    """How far one attribute moves the mean in W, in the shortest batch of an epoch."""
    return 2 * weight / math.sqrt(min(setting.frequencies[0])) / (size % PRINTED_BATCH or PRINTED_BATCH)


def _summed_epsilon(noise: Noise, w_reach: float) -> float:
    """An epsilon that the sum in theta and the mean in W keep: the first term of the Gaussian curve alone is DELTA."""
    each = (2 * PRINTED_CLIP / noise.sigma_theta) ** 2 + (w_reach / noise.sigma_w) ** 2
    mu = math.sqrt(PRINTED_EPOCHS * each)
    return mu * mu / 2 + mu * float(norm.isf(DELTA))

"""SteFFLe's competitors and variants on its own axes, many runs at once; and the cells of its sweeps.

Every private method but the nominal ones is at a certified epsilon, with full batches, so that no price rests on a
secret batch. Logistic regression, two groups, research noise, as in `stacked`. Step sizes, clips and balls were chosen
on splits 100 and 101, which are not measured, the same for every epsilon, h and number of silos.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from calibrate.budget import calibrate_plan
from calibrate.plans.clipped_sums import GRADIENT, LOSS, FedfdpPlan
from calibrate.privacy_unit import EpsilonDelta
from privfair.fairness.fermi import Independence
from privfair_experiments import stacked
from privfair_experiments.steffle.public_code import (
    FIRST_GROUPS,
    PUBLIC_CODE,
    PUBLIC_PAID,
    paid_public_code,
    public_code,
    public_code_without_noise,
)
from privfair_experiments.steffle.settings import (
    DELTA,
    EPSILONS,
    HETEROGENEITY,
    SETTINGS,
    SILOS,
    Setting,
    calibrated_noise,
    gaussian_multiplier,
    printed_but_paid,
)
from privfair_experiments.steffle.split import (
    CALIBRATED,
    ERM,
    NO_NOISE,
    NON_PRIVATE,
    PAY_ONCE,
    PRINTED,
    RAISED,
    Job,
    Measured,
    Row,
    Split,
    Trainer,
    calibrated_steffle,
    descend,
    each_knob,
    pay_once,
    plain_steffle,
    printed_steffle,
    rule,
    run_trainers,
    without_attribute,
)

FERMI, FERMI_FREE, TRAN, FEDFDP = "DP-FERMI, central", "FERMI, central, without privacy", "Tran, central", "FedFDP"
PRINTED_PAID = "SteFFLe as printed, noise paid"
FOR_ODDS, FREE_FOR_ODDS = "SteFFLe calibrated, for odds", "SteFFLe without privacy, for odds"
TRAN_FOR_ODDS = "Tran, central, for odds"
TRAN_ROUNDS, TRAN_CLIP, TRAN_RATE, TRAN_MULTIPLIER_RATE = 80, 2.0, 1.0, 0.5
TRAN_LARGEST = (0.0, 0.15, 0.3, 0.5, 1.0, 2.0)
FEDFDP_ROUNDS, FEDFDP_CLIP, FEDFDP_LOSS_CLIP, FEDFDP_RATIO, FEDFDP_RATE = 100, 2.0, 2.5, 2.5, 4.0
FEDFDP_FAIRNESS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
SWEPT_H, SWEPT_SILOS = (0.0, 0.25, 0.5, 0.75, 0.9), (1, 3, 6, 12, 25, 50)
UNEQUAL_SILOS = (6, 12, 50)
"""Numbers of silos that h = .75 is measured with beside three."""
_SWEPT_THRESHOLDS = tuple(np.round(np.arange(0.0, 1.51, 0.25), 2).tolist())
AXES = tuple(setting for setting in SETTINGS if setting.name != "adult-steps")
_CREDIT_CARD, _ADULT = AXES
ODDS = {
    "credit-card": replace(
        _CREDIT_CARD,
        notion=Independence.EQUALISED_ODDS,
        frequencies=((0.39, 0.61), (0.43, 0.57)),
        steffle_fairness=(8.0, 32.0, 128.0, 256.0, 512.0),
        pay_once_fairness=(8.0, 32.0, 64.0),
        lipschitz=0.1,
    ),
    "adult": replace(
        _ADULT,
        notion=Independence.EQUALISED_ODDS,
        frequencies=((0.38, 0.62), (0.15, 0.85)),
        minority_fraction=0.14,
        steffle_fairness=(2.0, 4.0, 8.0, 16.0, 32.0),
        pay_once_fairness=(0.5, 1.0, 2.0, 4.0, 8.0),
        w_radius=0.05,
    ),
}
"""SteFFLe trained for equalised odds: its blocks are the classes."""


def main_jobs(methods: Iterable[str], splits: int, h: float) -> list[Job]:
    """Three silos, all epsilons."""
    return [Job(setting.name, h, split, tuple(methods)) for split in range(splits) for setting in AXES]


def swept_jobs(splits: int) -> list[Job]:
    """What the sweeps of h and of the number of silos need beyond three silos at h = 0 and .75; epsilon 1."""
    cuts = [(h, SILOS) for h in SWEPT_H if h not in HETEROGENEITY] + [(0.0, n) for n in SWEPT_SILOS if n != SILOS]
    cuts += [(HETEROGENEITY[-1], silos) for silos in UNEQUAL_SILOS]
    return [
        Job(setting.name, h, split, tuple(SWEPT), silos)
        for setting in AXES
        for split in range(splits)
        for h, silos in cuts
    ]


def run_axes(job: Job) -> list[Row]:
    swept = job.silos != SILOS or job.h not in HETEROGENEITY
    return run_trainers(job, SWEPT if swept else RIVALS | BESIDE, EPSILONS[:1] if swept else EPSILONS)


def _pooled(split: Split) -> stacked.StackedSilo:
    parts = [(silo.x, silo.y, silo.s) for silo in split.train]
    return stacked.StackedSilo(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def dp_fermi(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...]) -> Iterator[Measured]:
    """SteFFLe calibrated with one silo of all records: its noise is that of all of them together."""
    whole, weights = _pooled(split), setting.steffle_fairness
    noises = [calibrated_noise(setting, len(whole), epsilon) for epsilon in epsilons]
    theta = descend(setting, (whole,), split.start, weights, noises, seed)
    promises = [(epsilon, noise.true_epsilon) for epsilon, noise in zip(epsilons, noises, strict=True)]
    yield from each_knob(FERMI, split, theta, promises, weights)


def plain_fermi(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...]) -> Iterator[Measured]:
    weights = setting.plain_fairness
    theta = descend(setting, (_pooled(split),), split.start, weights, [NO_NOISE], seed)
    yield from each_knob(FERMI_FREE, split, theta, [(None, None)], weights)


def tran(
    setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...], for_odds: bool = False
) -> Iterator[Measured]:
    """Lagrange multipliers on gaps of soft rates, of all records in one place (Tran et al. 2021): parity, or odds.

    A record's group part is (rate, its gradient, 1), clipped to norm TRAN_CLIP; another attribute moves it from one
    group to the other, a distance of sqrt(2) TRAN_CLIP, which the noise of every round is calibrated to. The gradient
    of the loss uses no attribute and is exact. The gap's gradient has the gap's sign. For odds there is a gap and a
    multiplier for each class, and a record is in one class.
    """
    whole = _pooled(split)
    priced = [gaussian_multiplier(TRAN_ROUNDS, epsilon) for epsilon in epsilons]
    knobs, random = TRAN_LARGEST, np.random.default_rng((seed, 3))
    sigma = np.repeat([z * math.sqrt(2) * TRAN_CLIP for z, _ in priced], len(knobs))
    largest = np.tile(knobs, len(priced))
    x, y, n = whole.x, whole.y, len(whole)
    norms = np.square(np.linalg.norm(x, axis=1))[:, None]
    theta = stacked.Theta(rule(TRAN_RATE, TRAN_ROUNDS), np.repeat(split.start[:, None], len(sigma), axis=1))
    blocks = (y == 0, y == 1) if for_odds else (np.ones(n, dtype=bool),)
    multipliers = [np.zeros(len(sigma)) for _ in blocks]
    members = [[(block & (whole.s == group)).astype(np.float32)[:, None] for group in (0, 1)] for block in blocks]
    for step in range(TRAN_ROUNDS):
        p = stacked.sigmoid(x @ theta.values.astype(np.float32))
        slope = p * (1 - p)
        shrink = np.minimum(1, TRAN_CLIP / np.sqrt(1 + p * p + slope * slope * norms)).astype(np.float32)
        gradient = (x.T @ (p - y[:, None])).astype(np.float64) / n
        for place, of_block in enumerate(members):
            rates, gradients = [], []
            for member in of_block:
                own = member * shrink
                count = own.sum(axis=0, dtype=np.float64) + sigma * random.standard_normal(len(sigma))
                total = (own * p).sum(axis=0, dtype=np.float64) + sigma * random.standard_normal(len(sigma))
                noisy = (x.T @ (own * slope)).astype(np.float64) + sigma * random.standard_normal(theta.values.shape)
                count = np.maximum(count, 0.01 * n)
                rates.append(total / count)
                gradients.append(noisy / count)
            gap = rates[0] - rates[1]
            grown = multipliers[place] + TRAN_MULTIPLIER_RATE * np.abs(gap) * (largest > 0)
            multipliers[place] = np.minimum(grown, largest)
            gradient = gradient + multipliers[place] * np.sign(gap) * (gradients[0] - gradients[1])
        theta.advance(step, gradient)
    promises = [(epsilon, true) for epsilon, (_, true) in zip(epsilons, priced, strict=True)]
    yield from each_knob(TRAN_FOR_ODDS if for_odds else TRAN, split, theta.values, promises, knobs)


@lru_cache
def _fedfdp_noise(epsilon: float) -> tuple[float, float, float]:
    plan = FedfdpPlan(1.0, FEDFDP_ROUNDS, FEDFDP_CLIP, FEDFDP_LOSS_CLIP, FEDFDP_RATIO)
    budget = calibrate_plan(plan, EpsilonDelta(epsilon, DELTA))
    gradient, loss = budget.value(GRADIENT).sigma, budget.value(LOSS).sigma
    assert gradient is not None
    assert loss is not None
    return gradient, loss, budget.certified.upper


def fedfdp(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...]) -> Iterator[Measured]:
    """FedFDP with full batches: every silo sends its clipped, weighted gradients and its clipped losses with noise.

    The factor 1 + lambda Delta, Delta being the record's loss minus the published mean loss, is clipped with the
    gradient (`privfair.fairness.clipping.fair_clipping`); the server's momentum is post-processing.
    """
    random = np.random.default_rng((seed, 5))
    priced = [_fedfdp_noise(epsilon) for epsilon in epsilons]
    knobs = FEDFDP_FAIRNESS
    sigma, sigma_loss = (np.repeat([one[k] for one in priced], len(knobs)) for k in (0, 1))
    fairness, total = np.tile(knobs, len(priced)).astype(np.float32), sum(len(silo) for silo in split.train)
    theta = stacked.Theta(rule(FEDFDP_RATE, FEDFDP_ROUNDS), np.zeros((split.train[0].x.shape[1], len(sigma))))
    mean = np.full(len(sigma), math.log(2))
    for step in range(FEDFDP_ROUNDS):
        gradient, losses = np.zeros_like(theta.values), np.zeros(len(sigma))
        for silo in split.train:
            scores = silo.x @ theta.values.astype(np.float32)
            residual = stacked.sigmoid(scores) - silo.y[:, None]
            own = np.logaddexp(0, scores) - silo.y[:, None] * scores
            weighted = residual * (1 + fairness * (own - mean.astype(np.float32)))
            weighted *= _shrunk(weighted, np.linalg.norm(silo.x, axis=1))
            gradient += silo.x.T @ weighted + sigma * random.standard_normal(gradient.shape)
            clipped = np.minimum(own, FEDFDP_LOSS_CLIP).sum(axis=0, dtype=np.float64)
            losses += clipped + sigma_loss * random.standard_normal(len(sigma))
        theta.advance(step, gradient / total)
        mean = np.clip(losses / total, 0.0, FEDFDP_LOSS_CLIP)
    promises = [(epsilon, true) for epsilon, (_, _, true) in zip(epsilons, priced, strict=True)]
    yield from each_knob(FEDFDP, split, theta.values, promises, knobs)


def _shrunk(weighted: NDArray[np.floating], norms: NDArray[np.floating]) -> NDArray[np.floating]:
    lengths = np.abs(weighted) * norms[:, None]
    return np.asarray(np.minimum(1, FEDFDP_CLIP / np.maximum(lengths, 1e-9)), dtype=np.float32)


def _odds(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...]) -> Iterator[Measured]:
    return calibrated_steffle(ODDS[setting.name], split, seed, epsilons, FOR_ODDS)


def _free_odds(setting: Setting, split: Split, seed: int, epsilons: tuple[float, ...]) -> Iterator[Measured]:
    return plain_steffle(ODDS[setting.name], split, seed, epsilons, FREE_FOR_ODDS)


RIVALS: dict[str, Trainer] = {TRAN: tran, FEDFDP: fedfdp, PUBLIC_CODE: public_code, FOR_ODDS: _odds, FERMI: dp_fermi}
BESIDE: dict[str, Trainer] = {
    PRINTED_PAID: partial(printed_steffle, method=PRINTED_PAID, noise_of=printed_but_paid),
    PUBLIC_PAID: paid_public_code,
    FERMI_FREE: plain_fermi,
    FREE_FOR_ODDS: _free_odds,
    TRAN_FOR_ODDS: partial(tran, for_odds=True),
    **{method: partial(public_code_without_noise, method=method) for method in FIRST_GROUPS},
}
SWEPT: dict[str, Trainer] = {
    ERM: partial(without_attribute, thresholds=_SWEPT_THRESHOLDS),
    CALIBRATED: calibrated_steffle,
    PRINTED: printed_steffle,
    PAY_ONCE: pay_once,
}
"""Methods that another cut into silos can change; one that trains in one place sees the same records."""
TITLES = {setting.name: setting.title for setting in AXES}
LOOKS = {
    PRINTED: ("tab:red", "x", "-"),
    PUBLIC_CODE: ("tab:orange", "v", "-"),
    CALIBRATED: ("tab:blue", "o", "-"),
    PAY_ONCE: ("tab:green", "s", "-"),
    FERMI: ("tab:cyan", "d", "-"),
    TRAN: ("tab:purple", "^", "-"),
    FEDFDP: ("tab:brown", "P", "-"),
    FOR_ODDS: ("navy", "*", "-"),
    NON_PRIVATE: ("0.2", ".", "-"),
    RAISED: ("0.55", "", "--"),
    ERM: ("black", "o", "-"),
}
"""Colour, marker and line of each method in the figures."""

"""RMIA, the relative attack (Zarifzadeh, Liu and Shokri 2024, arXiv 2312.03262).

A record x is compared with population records z: LR(x, z) = (p(x | target) / p(x)) / (p(z | target) / p(z)), where p(x)
is the mean over reference models. The score is the share of z with LR(x, z) >= gamma. LR is a quotient of two numbers
that belong to one record each, so the share is found by sorting one side and searching in it: no table of pairs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from audit.attacks.membership.result import AttackName
from audit.attacks.membership.signals import Signals, log_probability
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from calibrate.validation import positive


@final
@dataclass(frozen=True)
class Rmia:
    """One reference model is enough, though more are better.

    `offline_weight` (the paper's a) makes up for reference models that never saw a record: its mean probability is
    then taken as ((1 + a) p_out + 1 - a) / 2. It is used for records without any model that saw them.
    """

    gamma: float = 2.0
    offline_weight: float = 0.33
    name: ClassVar[AttackName] = AttackName.RMIA
    least_models: ClassVar[int] = 1

    def __post_init__(self) -> None:
        positive("gamma", self.gamma)
        if not 0 <= self.offline_weight <= 1:
            raise InvalidInput("offline weight", self.offline_weight, "must lie in [0, 1]", "give 0.33")

    def scores(self, signals: Signals) -> Floats:
        """The audited records themselves are the population z."""
        ratios = self.log_ratios(signals)
        return shares_above(ratios, ratios, self.gamma)

    def log_ratios(self, signals: Signals) -> Floats:
        """log (p(x | target) / p(x)) of each record."""
        if not signals.models:
            raise InvalidInput("shadow models", 0, "must be at least one", "train a reference model")
        probability = np.exp(log_probability(signals.shadow))
        numbers_in = signals.included.sum(axis=0)
        numbers_out = signals.models - numbers_in
        inside = (probability * signals.included).sum(axis=0) / np.maximum(numbers_in, 1)
        outside = (probability * ~signals.included).sum(axis=0) / np.maximum(numbers_out, 1)
        corrected = ((1 + self.offline_weight) * outside + 1 - self.offline_weight) / 2
        mean = np.where(
            numbers_in == 0, corrected, np.where(numbers_out == 0, inside, (inside + outside) / 2)
        )
        return log_probability(signals.target) - np.log(np.maximum(mean, np.finfo(np.float64).tiny))


def shares_above(log_ratios: Floats, population: Floats, gamma: float) -> Floats:
    """For each x the share of z with ratio(x) / ratio(z) >= gamma, by one sort and one search each."""
    if not len(population):
        raise InvalidInput("population", 0, "must hold records", "give at least one")
    ordered = np.sort(population)
    # Needles in growing order walk through the array once and stay in the cache.
    order = np.argsort(log_ratios)
    found = np.empty(len(log_ratios))
    found[order] = np.searchsorted(ordered, log_ratios[order] - math.log(gamma), side="right")
    return found / len(ordered)

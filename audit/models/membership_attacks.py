"""What a membership attack is, and the attacks by name: loss threshold, LiRA, RMIA, and those of plug-ins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, final

import numpy as np

from audit.models.shadow_models import Signals, log_probability
from audit.report.results import AttackName
from audit.settings import require_attack
from calibrate.arrays import Booleans, Floats
from calibrate.errors import InvalidInput, positive
from calibrate.plugins import PluginGroup, Plugins


@final
@dataclass(frozen=True)
class LossThreshold:
    """The negative loss (Yeom et al. 2018): a record the model fits well was probably in its training data.

    It needs no other model, and mistakes easy records for members.
    """

    name: ClassVar[AttackName] = AttackName.LOSS
    least_models: ClassVar[int] = 0

    def scores(self, signals: Signals) -> Floats:
        return log_probability(signals.target)


OWN_VARIANCE_FROM = 64
"""With fewer shadow models a variance of each record's own is too noisy, and one for all records is used."""
_LEAST_DEVIATION = 1e-3


@final
@dataclass(frozen=True)
class LiraOnline:
    """LiRA, the likelihood-ratio attack (Carlini et al. 2022, arXiv 2112.03570), with and without each record.

    For each record the signals of shadow models trained with it, and of those trained without it, are each fitted by a
    normal law. The score is the logarithm of the ratio of the two densities at the target's signal.
    """

    name: ClassVar[AttackName] = AttackName.LIRA_ONLINE
    least_models: ClassVar[int] = 2

    def scores(self, signals: Signals) -> Floats:
        with_it = _fit_normal("with", signals, signals.included)
        without = _fit_normal("without", signals, ~signals.included)
        return _log_density(signals.target, *with_it) - _log_density(signals.target, *without)


@final
@dataclass(frozen=True)
class LiraOffline:
    """LiRA with models without the record alone: by how many deviations the target is above their mean."""

    name: ClassVar[AttackName] = AttackName.LIRA_OFFLINE
    least_models: ClassVar[int] = 2

    def scores(self, signals: Signals) -> Floats:
        mean, deviation = _fit_normal("without", signals, ~signals.included)
        return (signals.target - mean) / deviation


def _fit_normal(which: str, signals: Signals, chosen: Booleans) -> tuple[Floats, Floats]:
    """Mean and deviation of each record's signals over the chosen models."""
    numbers = chosen.sum(axis=0)
    if not signals.models or numbers.min() < 1:
        record = int(np.argmin(numbers)) if signals.models else 0
        raise InvalidInput(
            "shadow models",
            signals.models,
            f"must include one trained {which} record {record}, and every other",
            "train more of them, on random halves of the records",
        )
    mean = np.where(chosen, signals.shadow, 0.0).sum(axis=0) / numbers
    squares = np.where(chosen, (signals.shadow - mean) ** 2, 0.0).sum(axis=0)
    if signals.models >= OWN_VARIANCE_FROM and numbers.min() >= 2:
        variance = squares / (numbers - 1)
    else:
        free = max(1, int(numbers.sum()) - signals.records)
        variance = np.full(signals.records, squares.sum() / free)
    return mean, np.maximum(np.sqrt(variance), _LEAST_DEVIATION)


def _log_density(value: Floats, mean: Floats, deviation: Floats) -> Floats:
    """Up to a constant that both densities share."""
    return -0.5 * ((value - mean) / deviation) ** 2 - np.log(deviation)


@final
@dataclass(frozen=True)
class Rmia:
    """RMIA, the relative attack (Zarifzadeh, Liu and Shokri 2024, arXiv 2312.03262).

    A record x is compared with population records z: LR(x, z) = (p(x | target) / p(x)) / (p(z | target) / p(z)), where
    p(x) is the mean over reference models. The score is the share of z with LR(x, z) >= gamma. LR is a quotient of two
    numbers that belong to one record each, so the share is found by sorting one side and searching in it: no table of
    pairs. One reference model is enough, though more are better.

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
        # p(x) is the mean of models with and without x; where one kind is missing, the other alone.
        mean = np.where(numbers_in == 0, corrected, np.where(numbers_out == 0, inside, (inside + outside) / 2))
        return np.asarray(log_probability(signals.target) - np.log(np.maximum(mean, np.finfo(np.float64).tiny)))


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


class Scoring(Protocol):
    """Turns signals into one score per record, larger for likelier members; never told who is one."""

    @property
    def least_models(self) -> int:
        """How many shadow models it needs."""
        ...

    def scores(self, signals: Signals) -> Floats: ...


class MembershipAttack(Scoring, Protocol):
    """A scoring with a name in reports."""

    @property
    def name(self) -> AttackName: ...


@final
@dataclass(frozen=True)
class PluginAttack:
    """An attack that another package brings; it runs only where it is asked for, and has its share of the error."""

    plugin: str
    scoring: Scoring
    name: ClassVar[AttackName] = AttackName.PLUGIN

    @property
    def least_models(self) -> int:
        return self.scoring.least_models

    def scores(self, signals: Signals) -> Floats:
        found = np.asarray(self.scoring.scores(signals), dtype=np.float64)
        if found.shape != (signals.records,) or not np.isfinite(found).all():
            rule = f"gave scores of shape {found.shape} for {signals.records} records, or some that are not finite"
            raise InvalidInput("attack", self.plugin, rule, "fix that package")
        return found


def _read_scoring(name: str, found: object) -> Scoring | None:
    fits = isinstance(getattr(found, "least_models", None), int) and callable(getattr(found, "scores", None))
    return found if fits else None  # type: ignore[return-value]  # a structural type, checked above


ATTACK_PLUGINS: Plugins[Scoring] = Plugins(
    PluginGroup.ATTACKS,
    "an object with least_models, a whole number, and scores(signals)",
    _read_scoring,
    lambda: {name.value for name in AttackName},
)
"""The membership attacks of other packages."""


def plugin_attack(name: str) -> PluginAttack:
    """The attack of that name from another package, or a refusal."""
    require_attack(name)
    found = ATTACK_PLUGINS.get(name)
    if found is None:
        raise InvalidInput("attack", name, "is the name of a built-in attack, which runs by itself", "leave it out")
    return PluginAttack(name, found)


ONLINE_ATTACKS: tuple[MembershipAttack, ...] = (LossThreshold(), Rmia(), LiraOnline())
"""With shadow models trained on random halves of the audited records."""
OFFLINE_ATTACKS: tuple[MembershipAttack, ...] = (LossThreshold(), Rmia(), LiraOffline())
"""With shadow models trained on other records only."""
WITHOUT_MODELS: tuple[MembershipAttack, ...] = (LossThreshold(),)

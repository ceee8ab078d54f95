"""The fair plug-in beyond parity of two groups: equal opportunity by sex, and parity of sex by race, on Adult.

Descents run in float32 with the noise of all silos drawn at once; counts and rule are the production code's. Nothing
was tuned for this: options, clips and shares are those of parity by sex. That 1.6 is too small a reach for four groups
was seen on split 100.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from calibrate.plans.fair_plugin import GROUPS, SCORES
from calibrate.privacy_unit import Protected
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.fair_plugin import Clips, FairPlugin, FairPluginOptions
from privfair.algorithms.parts.descent import DescentRule
from privfair.data.dataset import Dataset
from privfair.fairness.constraints import ResponseChannel
from privfair.fairness.fermi import Independence
from privfair.models.linear import LogisticRegression
from privfair_experiments.fair_plugin.report import Row
from privfair_experiments.fair_plugin.run import ROUNDS, Last, cut_and_split, last_round, plan_and_noise, rule_scores
from privfair_experiments.stacked import logistic_descents
from privfair_experiments.steffle.settings import SETTINGS, SILOS
from privfair_experiments.steffle.split import whole_records

TARGETS = (1.0, 0.1, 0.067, 0.04)
EPSILON = 1.0
SEX_BY_RACE = ("female, white", "male, white", "female, other", "male, other")


@dataclass(frozen=True)
class Case:
    """What is to be treated alike, as rows name it."""

    name: str
    notion: Independence
    groups: int


CASES = (
    Case("adult-steps, equal opportunity", Independence.EQUAL_OPPORTUNITY, 2),
    Case("adult-steps, sex by race", Independence.DEMOGRAPHIC_PARITY, len(SEX_BY_RACE)),
)


@lru_cache
def _data(groups: int) -> Dataset:
    """Adult with steps; where race is an attribute it is no feature."""
    whole = whole_records(next(one for one in SETTINGS if one.name == "adult-steps"))
    if groups == 2:
        return whole
    of_race = [name.startswith("race=") for name in whole.feature_names]
    white = whole.features[:, whole.feature_names.index("race=White")] > 0
    return replace(
        whole,
        features=np.ascontiguousarray(whole.features[:, ~np.array(of_race)]),
        feature_names=tuple(name for name, out in zip(whole.feature_names, of_race, strict=True) if not out),
        group=np.where(white, 0, 2) + whole.group,
        group_names=SEX_BY_RACE,
    )


def run_notion(case: Case, split: int) -> Iterator[Row]:
    """All rows of one split: records and attributes at epsilon 1, and without privacy, for every target."""
    silos, (x, y, s) = cut_and_split(_data(case.groups), "age", split)
    among = y == 1 if case.notion is Independence.EQUAL_OPPORTUNITY else np.ones(len(y), dtype=bool)
    kinds = ((Protected.RECORD, None), (Protected.RECORD, EPSILON), (Protected.ATTRIBUTE, EPSILON))
    for protect, epsilon in kinds:
        algorithm, last = _train(case, silos, protect, epsilon, split)
        for target in TARGETS:
            positive = rule_scores(algorithm, last, target, x) > 0
            rates = [float(positive[among & (s == group)].mean()) for group in range(case.groups)]
            name = "no privacy" if epsilon is None else "fair-plugin"
            error = float((positive != y).mean())
            yield (case.name, split, protect.value, name, epsilon, target, error, max(rates) - min(rates))


def _train(
    case: Case, silos: list[SiloTensors], protect: Protected, epsilon: float | None, seed: int
) -> tuple[FairPlugin, Last]:
    x, y, s = (np.concatenate([getattr(silo, name).numpy() for silo in silos]) for name in "xys")
    random, attribute = np.random.default_rng((seed, 23)), protect is Protected.ATTRIBUTE
    plan, noise, turned = plan_and_noise(protect, epsilon, case.groups)
    channel = ResponseChannel.of_epsilon(case.groups, turned) if attribute else None
    answers = s if channel is None else _respond(s, channel, random)
    members = np.eye(case.groups)[s] if channel is None else channel.memberships(torch.from_numpy(answers)).numpy()
    own = FairPluginOptions(notion=case.notion)
    rule = DescentRule(own.learning_rate, own.momentum, rounds=ROUNDS - 1 - attribute, cosine=True)
    inside = y == 1 if case.notion is Independence.EQUAL_OPPORTUNITY else np.ones(len(y), dtype=bool)
    softmax = case.groups > 2
    targets = {
        SCORES: (x, y[:, None], plan.clip, False),
        GROUPS: (x[inside], members[inside] if softmax else members[inside, 1:], plan.group_clip, softmax),
    }
    kept = {
        name: logistic_descents(
            features,
            target.astype(np.float32),
            None if attribute else clip,
            np.full(target.shape[1], noise.get(name, 0.0) * math.sqrt(SILOS)),
            rule,
            random,
            len(x),
            several,
        )
        for name, (features, target, clip, several) in targets.items()
    }
    algorithm = FairPlugin(
        LogisticRegression(x.shape[1]),
        LogisticRegression(x.shape[1], case.groups),
        own,
        len(x),
        ROUNDS,
        None if attribute else Clips(plan.clip, plan.group_clip, plan.count_clip),
        channel,
        max(len(silo) for silo in silos),
    )
    thetas = [np.concatenate([kept[name][number].ravel() for name in (SCORES, GROUPS)]) for number in (0, 1)]
    return algorithm, last_round(algorithm, silos, thetas, answers, noise, random)


def _respond(s: NDArray[np.int64], channel: ResponseChannel, random: np.random.Generator) -> NDArray[np.int64]:
    """Kept, or any of the other groups."""
    other = (s + random.integers(1, channel.groups, len(s))) % channel.groups
    return np.where(random.random(len(s)) < channel.keep, s, other)

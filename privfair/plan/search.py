"""The [search] section of a plan: which settings to try, how often, and by what the best try is known.

::

    [search]
    tries = 10                # on average; the number itself is random and stays secret
    shape = 0                 # of the law of that number; 0 unless given, 1 is the geometric law
    score = "accuracy"        # on the held-out records: accuracy, balanced_accuracy, auc or loss

    [[search.settings]]       # each try takes one of these at random, over what [training] says
    learning-rate = 0.1
    [[search.settings]]
    learning-rate = 1.0
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from calibrate.errors import InvalidInput
from calibrate.tries import RandomTries
from privfair.plan.file import PlanFile

_KEYS = ("tries", "shape", "score", "settings")
_OF_THE_RUN = ("rounds", "signed-rounds", "model", "retention", "block", "positive", "sampling", "batch-size")
"""What all tries have in common: what is signed, and what a score must mean for all of them alike."""
_MOST_SETTINGS = 1000


class TryScore(Enum):
    """By what a try is judged on the held-out records."""

    ACCURACY = "accuracy"
    BALANCED_ACCURACY = "balanced_accuracy"
    AUC = "auc"
    LOSS = "loss"

    def of(self, metrics: Mapping[str, Any]) -> float:
        """Larger is better; minus infinity where none was measured."""
        value = metrics.get(self.value)
        if not isinstance(value, int | float) or math.isnan(value):
            return -math.inf
        return -float(value) if self is TryScore.LOSS else float(value)


@dataclass(frozen=True)
class SearchPlan:
    """What is tried: the law of the number of tries, the score, and one plan per setting."""

    tries: RandomTries
    score: TryScore
    settings: tuple[Mapping[str, Any], ...]
    plans: tuple[PlanFile, ...]


def search_plan(file: PlanFile) -> SearchPlan | None:
    """The typed [search] of a plan file; None where it has none."""
    section = file.search
    if section is None:
        return None
    unknown = sorted(set(section) - set(_KEYS))
    if unknown:
        rule = f"is not known; a search has {', '.join(_KEYS)}"
        raise InvalidInput(f"[search] {unknown[0]}", "(a value)", rule, "drop it")
    for key in ("tries", "settings"):
        if key not in section:
            raise InvalidInput(f"[search] {key}", None, "is needed", "see docs/training.md")
    tries = RandomTries.with_mean(_number("tries", section["tries"]), _number("shape", section.get("shape", 0.0)))
    settings = _settings(section["settings"])
    plans = tuple(replace(file, training={**file.training, **one}, search=None) for one in settings)
    return SearchPlan(tries, _score(section.get("score", TryScore.ACCURACY.value)), settings, plans)


def _number(key: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"[search] {key}", value, "must be a number", "write for example tries = 10")
    return float(min(value, 1e300))


def _score(value: object) -> TryScore:
    try:
        return TryScore(value)
    except ValueError:
        known = ", ".join(score.value for score in TryScore)
        raise InvalidInput("[search] score", value, "is not known", f"use one of {known}") from None


def _settings(value: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise InvalidInput("[search] settings", "(a value)", "must be tables", "write [[search.settings]] for each")
    if len(value) > _MOST_SETTINGS:
        raise InvalidInput("[search] settings", len(value), f"are more than {_MOST_SETTINGS}", "give fewer")
    for one in value:
        common = sorted(set(one) & set(_OF_THE_RUN))
        if common:
            rule = "is the same for all tries, because the budget is signed for it"
            raise InvalidInput(f"[[search.settings]] {common[0]}", "(a value)", rule, "write it under [training]")
    return tuple(value)

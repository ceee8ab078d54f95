"""One vector a user, clipped as a whole: FPFL and Tran's multipliers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from audit.sensitivity.domain import Domain
from audit.sensitivity.engine_scene import CLIP, COLUMNS, FEATURES, GROUPS, THETA, Numbers, planned_claim, sent, silo_of
from audit.sensitivity.falsify import Entry
from audit.sensitivity.subject import Subject
from calibrate.arrays import Floats
from calibrate.plans.fpfl import CohortSampling, FpflPlan
from privfair.algorithms.algorithm import Algorithm
from privfair.algorithms.baselines.tran import TranMultipliers, TranOptions
from privfair.algorithms.fpfl import Fpfl, FpflOptions
from privfair.fairness.constraints import FairnessNotion
from privfair.models.linear import LogisticRegression

_USERS, _COHORT, _MOST = 4, 4.0, 3
_STATISTICS = "user_statistics"


def _claim(build: Callable[[], Algorithm[Any]], sampling: CohortSampling) -> Callable[[str], Entry]:
    def entry(id: str) -> Entry:
        algorithm = build()
        start = algorithm.start()
        cohort = torch.arange(_USERS)

        def value(x: Floats, y: Numbers, s: Numbers, user: Numbers, theta: Floats) -> Floats:
            state = replace(start, theta=torch.from_numpy(theta))
            return sent(algorithm.contribution(state, 0, silo_of(x, y, s, user), cohort), _STATISTICS)

        domain = Domain(COLUMNS, {"theta": THETA}, most=_MOST, user="user", most_per_user=2)
        says = (
            f"{type(algorithm).__name__}.contribution(): a user's whole vector keeps the plan's bound, "
            f"{sampling.value} cohorts"
        )
        claim = planned_claim(FpflPlan(_USERS, 4, 10, CLIP, sampling), _STATISTICS)
        return Entry(id, says, claim, Subject(value, domain))

    return entry


def _fpfl(notion: FairnessNotion) -> Callable[[], Fpfl]:
    options = FpflOptions(notion=notion)
    return lambda: Fpfl(LogisticRegression(FEATURES), options, GROUPS, _COHORT, CLIP)


def _tran() -> TranMultipliers:
    return TranMultipliers(LogisticRegression(FEATURES), TranOptions(), GROUPS, _COHORT, CLIP)


BUILDERS: dict[str, Callable[[str], Entry]] = {
    "engine.fpfl.user_statistics.poisson": _claim(_fpfl(FairnessNotion.EQUALISED_ODDS), CohortSampling.POISSON),
    "engine.fpfl.user_statistics.fixed": _claim(_fpfl(FairnessNotion.ACCURACY), CohortSampling.FIXED),
    "engine.tran.user_statistics": _claim(_tran, CohortSampling.POISSON),
}

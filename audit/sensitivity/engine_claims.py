"""The engine's own algorithms: their real `contribution()` against the bound that their plan puts into the manifest.

The records, the state an honest or dishonest server could have published (theta, W, the mean loss) and the batch (all
records) are the search's to choose; the algorithm is the one that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from audit.sensitivity.claim import DistanceClaim
from audit.sensitivity.domain import Domain
from audit.sensitivity.entry import Entry
from audit.sensitivity.spaces import Ball, Box, Category
from audit.sensitivity.subject import Subject
from calibrate.claims import SensitivityClaim
from calibrate.errors import InvalidInput
from calibrate.plans.fedfdp import FedfdpPlan
from calibrate.plans.fpfl import CohortSampling, FpflPlan
from calibrate.plans.plan import Plan
from calibrate.plans.steffle import StefflePlan
from privfair.algorithms.algorithm import Message, SiloTensors
from privfair.algorithms.fair_options import FedFdpOptions, FpflOptions
from privfair.algorithms.fedfdp import FedFdp, FedFdpClips
from privfair.algorithms.fpfl import Fpfl
from privfair.algorithms.steffle import Steffle, SteffleBounds
from privfair.algorithms.steffle_options import SteffleOptions
from privfair.contribution import Floats
from privfair.fairness.notions import FairnessNotion
from privfair.models.logistic import LogisticRegression

Numbers = NDArray[np.int64]
_FEATURES, _GROUPS, _CLIP, _LOSS_CLIP, _RADIUS = 2, 2, 0.7, 2.0, 1.0
_BATCH, _RHO, _LIPSCHITZ = 8, 0.3, 0.5
_USERS = 6
_PARTY = "north"
_COLUMNS = {"x": Box(-3.0, 3.0, (_FEATURES,)), "y": Category(2), "s": Category(_GROUPS)}
_THETA = Ball(4.0, (_FEATURES + 1,))


def planned_claim(plan: Plan, name: str) -> DistanceClaim:
    """The distance that a plan's bound on one unit's contribution implies under the plan's relation."""
    for value in plan.values():
        if value.name == name:
            bound = SensitivityClaim(name, value.sensitivity, value.norm, plan.unit.relation, (), "the plan")
            return DistanceClaim.from_contribution(bound, plan.unit.protected)
    raise InvalidInput("name", name, "is no value of the plan", "name a value that the plan publishes")


def sent(message: Message, name: str) -> Floats:
    """What the algorithm hands to the gate under this name."""
    (values,) = (part.values for part in message.noisy if part.name == name)
    return values


def _silo(x: Floats, y: Numbers, s: Numbers, user: Numbers | None = None) -> SiloTensors:
    owners = None if user is None else torch.from_numpy(user)
    return SiloTensors(_PARTY, torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(s), owners)


def _steffle(name: str) -> Callable[[str], Entry]:
    def build(id: str) -> Entry:
        plan = StefflePlan(100, _BATCH, 10, _RHO, _LIPSCHITZ, _RADIUS, groups=_GROUPS)
        bounds = SteffleBounds(_BATCH, _RHO, _LIPSCHITZ, _RADIUS)
        # Frequencies are public here and may be as uneven as the signed fraction allows.
        options = SteffleOptions(group_frequencies=(_RHO, _RHO))
        algorithm = Steffle(LogisticRegression(_FEATURES), options, bounds, {_PARTY: 1.0}, _GROUPS)
        start = algorithm.start()

        def value(x: Floats, y: Numbers, s: Numbers, theta: Floats, deviation: Floats) -> Floats:
            descent = replace(start.descent, theta=torch.from_numpy(theta))
            state = replace(start, descent=descent, deviation=torch.from_numpy(deviation))
            message = algorithm.contribution(state, 0, _silo(x, y, s), torch.arange(len(y)))
            return sent(message, name)

        public = {"theta": _THETA, "deviation": Ball(_RADIUS, (1, _GROUPS, 2))}
        domain = Domain(_COLUMNS, public, fewest=1, most=4, attribute="s")
        says = f"Steffle.contribution(): {name} keeps the plan's bound"
        return Entry(id, says, planned_claim(plan, name), Subject(value, domain))

    return build


def _fedfdp(name: str) -> Callable[[str], Entry]:
    def build(id: str) -> Entry:
        plan = FedfdpPlan(0.25, 10, _CLIP, _LOSS_CLIP, 2.5)
        clips = FedFdpClips(_CLIP, _LOSS_CLIP)
        model, options = LogisticRegression(_FEATURES), FedFdpOptions(fairness=2.0)
        algorithm = FedFdp(model, options, {_PARTY: 1.0}, {_PARTY: 10.0}, clips)
        start = algorithm.start()

        def value(x: Floats, y: Numbers, s: Numbers, theta: Floats, mean_loss: Any, loss_clip: Any) -> Floats:
            state = replace(start, theta=torch.from_numpy(theta), mean_loss=float(mean_loss))
            state = replace(state, loss_clips=(float(loss_clip),))
            return sent(algorithm.contribution(state, 0, _silo(x, y, s), torch.arange(len(y))), name)

        public = {"theta": _THETA, "mean_loss": Box(0.0, _LOSS_CLIP), "loss_clip": Box(0.01, _LOSS_CLIP)}
        says = f"FedFdp.contribution(): {name} keeps the plan's bound"
        return Entry(id, says, planned_claim(plan, name), Subject(value, Domain(_COLUMNS, public, most=4)))

    return build


def _fpfl(sampling: CohortSampling) -> Callable[[str], Entry]:
    def build(id: str) -> Entry:
        plan = FpflPlan(_USERS, 4, 10, _CLIP, sampling)
        options = FpflOptions(notion=FairnessNotion.EQUALISED_ODDS)
        algorithm = Fpfl(LogisticRegression(_FEATURES), options, _GROUPS, 4.0, _CLIP)
        start = algorithm.start()

        def value(x: Floats, y: Numbers, s: Numbers, user: Numbers, theta: Floats) -> Floats:
            state = replace(start, theta=torch.from_numpy(theta))
            cohort = torch.arange(_USERS)
            return sent(algorithm.contribution(state, 0, _silo(x, y, s, user), cohort), "user_statistics")

        domain = Domain(_COLUMNS, {"theta": _THETA}, user="user")
        says = f"Fpfl.contribution(): a user's whole vector keeps the plan's bound, {sampling.value} cohorts"
        return Entry(id, says, planned_claim(plan, "user_statistics"), Subject(value, domain))

    return build


BUILDERS: dict[str, Callable[[str], Entry]] = {
    "engine.steffle.h_theta": _steffle("h_theta"),
    "engine.steffle.h_W": _steffle("h_W"),
    "engine.fedfdp.gradient": _fedfdp("gradient"),
    "engine.fedfdp.loss": _fedfdp("loss"),
    "engine.fpfl.user_statistics.poisson": _fpfl(CohortSampling.POISSON),
    "engine.fpfl.user_statistics.fixed": _fpfl(CohortSampling.FIXED),
}

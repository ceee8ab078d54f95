"""What the claims about the engine share: small silos, the bound a plan puts into a manifest, what goes to the gate."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from audit.sensitivity.claim import DistanceClaim
from audit.sensitivity.spaces import Ball, Box, Category
from calibrate.arrays import Floats
from calibrate.claims import SensitivityClaim
from calibrate.errors import InvalidInput
from calibrate.plans.plan import Plan
from calibrate.privacy_unit import Relation
from privfair.algorithms.algorithm import Message, SiloTensors

Numbers = NDArray[np.int64]
FEATURES, GROUPS, CLIP, LOSS_CLIP = 2, 2, 0.7, 2.0
PARTY = "north"
SHARES, EXPECTED = {PARTY: 1.0}, {PARTY: 10.0}
COLUMNS = {"x": Box(-3.0, 3.0, (FEATURES,)), "y": Category(2), "s": Category(GROUPS)}
THETA = Ball(4.0, (FEATURES + 1,))
NOTHING = 1e-9
"""The distance allowed to a value that the protected unit cannot influence: rounding."""


def planned_claim(plan: Plan, name: str) -> DistanceClaim:
    """The distance that a plan's bound on one unit's contribution implies under the plan's relation."""
    for value in (*plan.values(), *plan.once()):
        if value.name == name:
            bound = SensitivityClaim(name, value.sensitivity, value.norm, plan.unit.relation, (), "the plan")
            return DistanceClaim.from_contribution(bound, plan.unit.protected)
    raise InvalidInput("name", name, "is no value of the plan", "name a value that the plan publishes")


def unmoved_by_the_attribute() -> DistanceClaim:
    """The claim of a value that is sent in the clear because no attribute enters it."""
    return DistanceClaim(NOTHING, Relation.REPLACE_ATTRIBUTE)


def sent(message: Message, name: str) -> Floats:
    """What the algorithm hands to the gate under this name."""
    for part in message.noisy:
        if part.name == name:
            return part.values
    if message.randomized and name in message.randomized:
        return message.randomized[name].astype(np.float64)
    assert message.clear is not None
    return message.clear[name]


def silo_of(
    x: Floats, y: Numbers, s: Numbers, user: Numbers | None = None, client: Numbers | None = None
) -> SiloTensors:
    owners = None if user is None else torch.from_numpy(user)
    clients = None if client is None else torch.from_numpy(client)
    return SiloTensors(PARTY, torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(s), owners, clients)

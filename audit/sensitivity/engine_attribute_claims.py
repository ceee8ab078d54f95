"""Messages about a record's attribute: SteFFLe's gradients and histogram, pay-once's responses, and what is clear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from audit.sensitivity.claim import DistanceClaim
from audit.sensitivity.domain import Domain
from audit.sensitivity.engine_scene import (
    COLUMNS,
    FEATURES,
    GROUPS,
    PARTY,
    SHARES,
    THETA,
    Numbers,
    planned_claim,
    sent,
    silo_of,
    unmoved_by_the_attribute,
)
from audit.sensitivity.falsify import Entry
from audit.sensitivity.spaces import Ball
from audit.sensitivity.subject import Subject
from calibrate.arrays import Floats
from calibrate.plans.pay_once import PayOncePlan
from calibrate.plans.steffle import StefflePlan
from privfair.algorithms.pay_once import PayOnce, PayOnceOptions
from privfair.algorithms.steffle import HISTOGRAM, Steffle, SteffleBounds, SteffleOptions
from privfair.fairness.penalty import ResponseChannel
from privfair.models.linear import LogisticRegression

_BATCH, _RHO, _LIPSCHITZ, _RADIUS = 8, 0.3, 0.5, 1.0
_BOUNDS = SteffleBounds(_BATCH, _RHO, _LIPSCHITZ, _RADIUS)
_MOST = 4
_ALL = (1, GROUPS, 2)
_LINE = torch.linspace(-0.3, 0.4, 2 * GROUPS, dtype=torch.float64).reshape(_ALL)


def _plan() -> StefflePlan:
    return StefflePlan(100, _BATCH, 10, _RHO, _LIPSCHITZ, _RADIUS, groups=GROUPS, histogram_noise_ratio=1.0)


def _steffle(name: str, claim: Callable[[], DistanceClaim]) -> Callable[[str], Entry]:
    def entry(id: str) -> Entry:
        # Frequencies are public here and may be as uneven as the signed fraction allows.
        options = SteffleOptions(group_frequencies=(_RHO, _RHO))
        algorithm = Steffle(LogisticRegression(FEATURES), options, _BOUNDS, {PARTY: 1.0}, GROUPS)
        start = algorithm.start()

        def value(x: Floats, y: Numbers, s: Numbers, theta: Floats, deviation: Floats) -> Floats:
            descent = replace(start.descent, theta=torch.from_numpy(theta))
            state = replace(start, descent=descent, deviation=torch.from_numpy(deviation))
            message = algorithm.contribution(state, 0, silo_of(x, y, s), torch.arange(len(y)))
            return sent(message, name)

        public = {"theta": THETA, "deviation": Ball(_RADIUS, _ALL)}
        domain = Domain(COLUMNS, public, fewest=1, most=_MOST, attribute="s")
        says = f"Steffle.contribution(): {name} keeps the plan's bound"
        return Entry(id, says, claim(), Subject(value, domain))

    return entry


def _histogram(id: str) -> Entry:
    algorithm = Steffle(LogisticRegression(FEATURES), SteffleOptions(), _BOUNDS, {PARTY: 1.0}, GROUPS)
    start = algorithm.start()

    def value(x: Floats, y: Numbers, s: Numbers) -> Floats:
        return sent(algorithm.contribution(start, 0, silo_of(x, y, s), torch.arange(len(y))), HISTOGRAM)

    domain = Domain(COLUMNS, fewest=1, most=_MOST, attribute="s")
    says = "Steffle.contribution(): the paid histogram of the groups keeps the plan's bound"
    return Entry(id, says, planned_claim(_plan(), HISTOGRAM), Subject(value, domain))


def _pay_once() -> PayOnce:
    channel, options = ResponseChannel.of_epsilon(GROUPS, 1.0), PayOnceOptions(fairness=1.0)
    return PayOnce(LogisticRegression(FEATURES), options, channel, _MOST, SHARES)


def _responses(id: str) -> Entry:
    """How many entries of the vector that goes through randomised response one attribute changes."""
    algorithm, name = _pay_once(), "randomised_attribute"
    start = algorithm.start()

    def value(x: Floats, y: Numbers, s: Numbers) -> Floats:
        return sent(algorithm.contribution(start, 0, silo_of(x, y, s), torch.arange(len(y))), name)

    domain = Domain(COLUMNS, fewest=1, most=_MOST, attribute="s")
    says = "PayOnce.contribution(): one attribute is one entry of the randomised vector"
    return Entry(id, says, planned_claim(PayOncePlan(GROUPS), name), Subject(value, domain))


def _after_paying(id: str) -> Entry:
    """All later messages, at a state that has published responses: no true attribute enters them."""
    algorithm = _pay_once()
    start = algorithm.start()
    answers = {PARTY: torch.arange(_MOST) % GROUPS}

    def value(x: Floats, y: Numbers, s: Numbers, theta: Floats) -> Floats:
        descent = replace(start.descent, theta=torch.from_numpy(theta))
        state = replace(start, descent=descent, responses=answers, joint=_LINE)
        message = algorithm.contribution(state, 1, silo_of(x, y, s), torch.arange(len(y)))
        return np.concatenate([sent(message, name).ravel() for name in ("g", "joint")])

    domain = Domain(COLUMNS, {"theta": THETA}, fewest=1, most=_MOST, attribute="s")
    says = "PayOnce.contribution(): after the responses no message depends on an attribute"
    return Entry(id, says, unmoved_by_the_attribute(), Subject(value, domain))


BUILDERS: dict[str, Callable[[str], Entry]] = {
    "engine.steffle.h_theta": _steffle("h_theta", lambda: planned_claim(_plan(), "h_theta")),
    "engine.steffle.h_W": _steffle("h_W", lambda: planned_claim(_plan(), "h_W")),
    "engine.steffle.g": _steffle("g", unmoved_by_the_attribute),
    "engine.steffle.attribute_histogram": _histogram,
    "engine.pay-once.randomised_attribute": _responses,
    "engine.pay-once.after-paying": _after_paying,
}
UNMOVED = ("engine.steffle.g", "engine.pay-once.after-paying")
"""Claims of values that no attribute enters: the search should find no distance at all."""

"""MMD-fair FedAvg: published predictions, clipped updates of the clients, the paid histogram; one record replaced.

The draw lists all records, the replaced one last: so coupled, two draws that differ in one record differ in one place
of each group's list, whatever its group becomes (docs/theorems/mmd-fedavg.md).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from audit.sensitivity.domain import Domain
from audit.sensitivity.engine_scene import CLIP, COLUMNS, FEATURES, PARTY, THETA, Numbers, planned_claim, sent, silo_of
from audit.sensitivity.falsify import Entry
from audit.sensitivity.spaces import Box
from audit.sensitivity.subject import Subject
from calibrate.arrays import Floats
from calibrate.plans.mmd_fedavg import PREDICTIONS, UPDATES, MmdFedavgPlan
from calibrate.plans.plan import HISTOGRAM
from privfair.algorithms.mmd_fedavg import MmdFedAvg, MmdFedAvgOptions, MmdFedAvgState, MmdTerms, PaidCounts
from privfair.contribution import Published
from privfair.fairness.kernels import GaussianNoise
from privfair.models.linear import LogisticRegression

_CLIENTS, _SAMPLES, _MOST = 2, 3, 4
_PLAN = MmdFedavgPlan(10, _SAMPLES, 10, users=_CLIENTS, cohort=_CLIENTS, update_clip=CLIP, histogram_noise_ratio=1.0)
_SHARES = (0.5, 0.5)
_DOMAIN = Domain(COLUMNS, {"theta": THETA}, fewest=1, most=_MOST)


def _algorithm() -> MmdFedAvg:
    terms = MmdTerms((_MOST, _MOST), _SAMPLES, _CLIENTS, PaidCounts(), CLIP, GaussianNoise(0.1))
    return MmdFedAvg(LogisticRegression(FEATURES), MmdFedAvgOptions(local_rate=2.0), terms)


def _clients(records: int) -> Numbers:
    return np.arange(records, dtype=np.int64) % _CLIENTS


def _first_message(name: str, round: int) -> Callable[[str], Entry]:
    def entry(id: str) -> Entry:
        algorithm = _algorithm()

        def value(x: Floats, y: Numbers, s: Numbers, theta: Floats) -> Floats:
            state = MmdFedAvgState(torch.from_numpy(theta), _SHARES)
            silo = silo_of(x, y, s, client=_clients(len(y)))
            message = algorithm.contribution(state, round, silo, torch.arange(len(y)))
            return sent(message, name)

        says = f"MmdFedAvg.contribution(): {name} keeps the plan's bound"
        return Entry(id, says, planned_claim(_PLAN, name), Subject(value, _DOMAIN))

    return entry


def _updates(id: str) -> Entry:
    """The reply, whatever predictions were published before it."""
    algorithm = _algorithm()

    def value(x: Floats, y: Numbers, s: Numbers, theta: Floats, predictions: Floats) -> Floats:
        state = MmdFedAvgState(torch.from_numpy(theta), _SHARES)
        silo = silo_of(x, y, s, client=_clients(len(y)))
        batch = torch.cat([torch.arange(len(y)), len(y) + torch.arange(_CLIENTS)])
        seen = {
            name: Published(1, PARTY, name, np.array(given))
            for name, given in zip(PREDICTIONS, predictions, strict=True)
        }
        return sent(algorithm.reply(state, 1, silo, batch, {PARTY: seen}), UPDATES)

    public = {"theta": THETA, "predictions": Box(-1.0, 2.0, (2, _SAMPLES))}
    domain = Domain(COLUMNS, public, fewest=1, most=_MOST)
    says = "MmdFedAvg.reply(): the cohort's updates keep the plan's bound"
    return Entry(id, says, planned_claim(_PLAN, UPDATES), Subject(value, domain))


BUILDERS: dict[str, Callable[[str], Entry]] = {
    **{f"engine.mmd-fedavg.{name}": _first_message(name, 1) for name in PREDICTIONS},
    "engine.mmd-fedavg.client_updates": _updates,
    "engine.mmd-fedavg.attribute_histogram": _first_message(HISTOGRAM, 0),
}

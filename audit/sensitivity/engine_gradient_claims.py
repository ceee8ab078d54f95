"""Sums of clipped gradients and losses: DP-FedSGD and its corrected local steps, FedFDP, q-FFL, agnostic FL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from audit.sensitivity.domain import Domain
from audit.sensitivity.engine_scene import (
    CLIP,
    COLUMNS,
    EXPECTED,
    FEATURES,
    LOSS_CLIP,
    SHARES,
    THETA,
    Numbers,
    planned_claim,
    sent,
    silo_of,
)
from audit.sensitivity.falsify import Entry
from audit.sensitivity.spaces import Box
from audit.sensitivity.subject import Subject
from calibrate.arrays import Floats
from calibrate.plans.fedfdp import FedfdpPlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.plan import Plan
from calibrate.privacy_unit import Relation
from privfair.algorithms.algorithm import Algorithm
from privfair.algorithms.ali_dpfl import AliDpfl, AliDpflOptions
from privfair.algorithms.baselines.agnostic_fl import AgnosticFl, AgnosticOptions
from privfair.algorithms.baselines.feddyn import FedDyn, FedDynOptions
from privfair.algorithms.baselines.fedprox import FedProx, FedProxOptions
from privfair.algorithms.baselines.q_ffl import QFfl, QFflOptions
from privfair.algorithms.baselines.scaffold import Scaffold, ScaffoldOptions
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.fed_sgda import FedSgda
from privfair.algorithms.fedfdp import FedFdp, FedFdpClips, FedFdpOptions
from privfair.algorithms.parts.clients import ClippedPairs, ClippedSums
from privfair.algorithms.parts.descent import DescentRule
from privfair.algorithms.parts.options import GradientOptions
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model

_FEDFDP = FedfdpPlan(0.25, 10, CLIP, LOSS_CLIP, 2.5)
_SUMS, _PAIRS = ClippedSums(CLIP, EXPECTED), ClippedPairs(CLIP, LOSS_CLIP, EXPECTED)


def _gaussian(relation: Relation, *noise: float) -> GaussianPlan:
    return GaussianPlan(sampling_rate=0.25, rounds=10, relation=relation, noise=noise or (1.0,), clip=CLIP)


def _claim(build: Callable[[Model], Algorithm[Any]], plan: Plan, name: str) -> Callable[[str], Entry]:
    """Any algorithm whose checkpoint holds the model's parameters as `theta`."""

    def entry(id: str) -> Entry:
        algorithm = build(LogisticRegression(FEATURES))
        start = algorithm.checkpoint(algorithm.start())

        def value(x: Floats, y: Numbers, s: Numbers, theta: Floats) -> Floats:
            state = algorithm.restore(start | {"theta": theta})
            return sent(algorithm.contribution(state, 0, silo_of(x, y, s), torch.arange(len(y))), name)

        fewest = 1 if plan.unit.relation is Relation.REPLACE_ONE else 0
        domain = Domain(COLUMNS, {"theta": THETA}, fewest=fewest, most=4)
        says = f"{type(algorithm).__name__}.contribution(): {name} keeps the bound of a {plan.algorithm.value} plan"
        return Entry(id, says, planned_claim(plan, name), Subject(value, domain))

    return entry


def _fedfdp(name: str) -> Callable[[str], Entry]:
    def entry(id: str) -> Entry:
        clips = FedFdpClips(CLIP, LOSS_CLIP)
        options = FedFdpOptions(fairness=2.0)
        algorithm = FedFdp(LogisticRegression(FEATURES), options, SHARES, EXPECTED, clips)
        start = algorithm.start()

        def value(x: Floats, y: Numbers, s: Numbers, theta: Floats, mean_loss: Any, loss_clip: Any) -> Floats:
            state = replace(start, theta=torch.from_numpy(theta), mean_loss=float(mean_loss))
            state = replace(state, loss_clips=(float(loss_clip),))
            return sent(algorithm.contribution(state, 0, silo_of(x, y, s), torch.arange(len(y))), name)

        public = {"theta": THETA, "mean_loss": Box(0.0, LOSS_CLIP), "loss_clip": Box(0.01, LOSS_CLIP)}
        says = f"FedFdp.contribution(): {name} keeps the plan's bound"
        return Entry(id, says, planned_claim(_FEDFDP, name), Subject(value, Domain(COLUMNS, public, most=4)))

    return entry


def _dp_fedsgd(model: Model) -> DpFedSgd:
    return DpFedSgd(model, GradientOptions(), CLIP, EXPECTED["north"])


def _weighed_loss(theta: Tensor, w: Tensor, x: Tensor, y: Tensor, s: Tensor) -> Tensor:
    """Cross-entropy in which the maximiser weighs up a group; of one record."""
    score = torch.dot(x, theta[:-1]) + theta[-1]
    plain = torch.nn.functional.softplus(score) - y * score
    return (1.0 + torch.where(s == 0, w[0], w[1])) * plain


def _fed_sgda(model: Model) -> FedSgda:
    theta, w = model.initial(0), torch.tensor([0.4, -0.3], dtype=torch.float64)
    return FedSgda(_weighed_loss, theta, w, 2.0, 0.5, EXPECTED["north"], 0.1, 1.0, DescentRule(), CLIP)


_ADD_REMOVE, _REPLACE = _gaussian(Relation.ADD_REMOVE), _gaussian(Relation.REPLACE_ONE)

BUILDERS: dict[str, Callable[[str], Entry]] = {
    "engine.gaussian.value_1": _claim(_dp_fedsgd, _ADD_REMOVE, "value_1"),
    "engine.gaussian.value_1.replace-one": _claim(_dp_fedsgd, _REPLACE, "value_1"),
    "engine.fedprox.value_1": _claim(
        lambda model: FedProx(model, FedProxOptions(), SHARES, _SUMS), _ADD_REMOVE, "value_1"
    ),
    "engine.scaffold.value_1": _claim(
        lambda model: Scaffold(model, ScaffoldOptions(), SHARES, _SUMS), _ADD_REMOVE, "value_1"
    ),
    "engine.feddyn.value_1": _claim(
        lambda model: FedDyn(model, FedDynOptions(), SHARES, _SUMS), _ADD_REMOVE, "value_1"
    ),
    "engine.ali-dpfl.value_1": _claim(
        lambda model: AliDpfl(model, AliDpflOptions(), SHARES, _SUMS, 1.0, 10), _ADD_REMOVE, "value_1"
    ),
    "engine.fed-sgda.value_1": _claim(_fed_sgda, _gaussian(Relation.ADD_REMOVE, 1.0, 1.0), "value_1"),
    "engine.fed-sgda.value_2": _claim(_fed_sgda, _gaussian(Relation.ADD_REMOVE, 1.0, 1.0), "value_2"),
    "engine.fedfdp.gradient": _fedfdp("gradient"),
    "engine.fedfdp.loss": _fedfdp("loss"),
    "engine.q-ffl.gradient": _claim(lambda model: QFfl(model, QFflOptions(), SHARES, _PAIRS), _FEDFDP, "gradient"),
    "engine.q-ffl.loss": _claim(lambda model: QFfl(model, QFflOptions(), SHARES, _PAIRS), _FEDFDP, "loss"),
    "engine.agnostic-fl.gradient": _claim(
        lambda model: AgnosticFl(model, AgnosticOptions(), SHARES, _PAIRS), _FEDFDP, "gradient"
    ),
    "engine.agnostic-fl.loss": _claim(
        lambda model: AgnosticFl(model, AgnosticOptions(), SHARES, _PAIRS), _FEDFDP, "loss"
    ),
}

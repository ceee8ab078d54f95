"""The engine's own algorithms: their real `contribution()` against the bound that their plan puts into the manifest.

The records, the state an honest or dishonest server could have published (theta, W, the mean loss) and the batch (all
records) are the search's to choose; the algorithm is the one that trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from audit.claims.claim import DistanceClaim, Domain, Subject
from audit.claims.falsify import CataloguedClaim
from audit.claims.spaces import Ball, Box, Category, Space
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from calibrate.plans.clipped_sums import FedfdpPlan, FpflPlan
from calibrate.plans.fair_plugin import ATTRIBUTE, FLIPS, GROUPS, RATES, SCORES, FairPluginPlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.mmd_fedavg import PREDICTIONS, UPDATES, MmdFedavgPlan
from calibrate.plans.plan import HISTOGRAM, Plan
from calibrate.plans.steffle import StefflePlan
from calibrate.privacy_unit import Norm, Protected, Relation, SensitivityClaim
from calibrate.sampling import SamplingName
from privfair.algorithms.algorithm import Algorithm, Message, SiloTensors
from privfair.algorithms.ali_dpfl import AliDpfl, AliDpflOptions
from privfair.algorithms.baselines import drift
from privfair.algorithms.baselines.client_losses import AgnosticFl, AgnosticOptions, QFfl, QFflOptions
from privfair.algorithms.baselines.tran import TranMultipliers, TranOptions
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.fair_plugin import Clips, FairPlugin, FairPluginOptions
from privfair.algorithms.fed_sgda import FedSgda
from privfair.algorithms.fedfdp import FedFdp, FedFdpClips, FedFdpOptions
from privfair.algorithms.fpfl import Fpfl, FpflOptions, FpflState
from privfair.algorithms.mmd_fedavg import (
    MmdFedAvg,
    MmdFedAvgOptions,
    MmdFedAvgState,
    MmdTerms,
    NoiseCorrection,
    PaidCounts,
)
from privfair.algorithms.parts.clients import ClippedPairs, ClippedSums
from privfair.algorithms.parts.descent import DescentRule
from privfair.algorithms.pay_once import PayOnce, PayOnceOptions
from privfair.algorithms.steffle import Steffle, SteffleBounds, SteffleOptions
from privfair.contribution import Published
from privfair.fairness.constraints import FairnessNotion, KernelKind, ResponseChannel
from privfair.fairness.mmd import GaussianSmoothing
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model
from privfair.plan.sections import GradientOptions

Numbers = NDArray[np.int64]
Builder = Callable[[str], CataloguedClaim]
"""From an id to its claim: the algorithm is built when the claim is asked for."""

# What the claims share: small silos, the bound a plan puts into a manifest, what goes to the gate.

_FEATURES, _GROUPS, _CLIP, _LOSS_CLIP, _MOST = 2, 2, 0.7, 2.0, 4
_PARTY = "north"
_SHARES, _EXPECTED = {_PARTY: 1.0}, {_PARTY: 10.0}
_COLUMNS: dict[str, Space | Category] = {"x": Box(-3.0, 3.0, (_FEATURES,)), "y": Category(2), "s": Category(_GROUPS)}
_THETA = Ball(4.0, (_FEATURES + 1,))
_NOTHING = 1e-9
"""The distance allowed to a value that the protected unit cannot influence: rounding."""


def _planned(plan: Plan, name: str) -> DistanceClaim:
    """The distance that a plan's bound on one unit's contribution implies under the plan's relation."""
    for value in (*plan.values(), *plan.once()):
        if value.name == name:
            bound = SensitivityClaim(name, value.sensitivity, value.kind.norm, plan.unit.relation, (), "the plan")
            return DistanceClaim.from_contribution(bound, plan.unit.protected)
    raise InvalidInput("name", name, "is not a value of the plan", "name a value that the plan publishes")


_UNMOVED = DistanceClaim(_NOTHING, Relation.REPLACE_ATTRIBUTE)
"""The claim of a value that is sent in the clear because no attribute enters it."""


def _value_named(message: Message, name: str) -> Floats:
    """What the algorithm hands to the gate under this name."""
    for part in message.noisy:
        if part.name == name:
            return part.values
    if message.randomized and name in message.randomized:
        return message.randomized[name].astype(np.float64)
    assert message.clear is not None
    return message.clear[name]


def _sent(algorithm: Algorithm[Any], state: object, silo: SiloTensors, name: str) -> Floats:
    """What the silo's own records, all of them, make it send under this name."""
    return _value_named(algorithm.contribution(state, 0, silo, torch.arange(len(silo))), name)


def _silo(x: Floats, y: Numbers, s: Numbers, user: Numbers | None = None, client: Numbers | None = None) -> SiloTensors:
    owners = None if user is None else torch.from_numpy(user)
    clients = None if client is None else torch.from_numpy(client)
    tensors = (torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(s))
    return SiloTensors(_PARTY, *tensors, unit_of_row=owners, client_of_row=clients)


def _logistic() -> LogisticRegression:
    return LogisticRegression(_FEATURES)


# Sums of clipped gradients and losses: DP-FedSGD and its corrected local steps, FedFDP, q-FFL, agnostic FL.

_FEDFDP = FedfdpPlan(0.25, 10, _CLIP, _LOSS_CLIP, 2.5)
_SUMS, _PAIRS = ClippedSums(_CLIP, _EXPECTED), ClippedPairs(_CLIP, _LOSS_CLIP, _EXPECTED)


def _gaussian(relation: Relation, *noise: float) -> GaussianPlan:
    return GaussianPlan(sampling_rate=0.25, rounds=10, relation=relation, noise=noise or (1.0,), clip=_CLIP)


def _gradients(build: Callable[[Model], Algorithm[Any]], plan: Plan, name: str, id: str) -> CataloguedClaim:
    """Any algorithm whose checkpoint holds the model's parameters as `theta`."""
    algorithm = build(_logistic())
    start = algorithm.checkpoint(algorithm.start())

    def value(x: Floats, y: Numbers, s: Numbers, theta: Floats) -> Floats:
        state = algorithm.restore(start | {"theta": theta})
        return _sent(algorithm, state, _silo(x, y, s), name)

    fewest = 1 if plan.unit.relation is Relation.REPLACE_ONE else 0
    domain = Domain(_COLUMNS, {"theta": _THETA}, fewest=fewest, most=_MOST)
    says = f"{type(algorithm).__name__}.contribution(): {name} keeps the bound of a {plan.algorithm.value} plan"
    return CataloguedClaim(id, says, _planned(plan, name), Subject(value, domain))


def _fedfdp(name: str, id: str) -> CataloguedClaim:
    clips, options = FedFdpClips(_CLIP, _LOSS_CLIP), FedFdpOptions(fairness=2.0)
    algorithm = FedFdp(_logistic(), options, _SHARES, _EXPECTED, clips)
    start = algorithm.start()

    def value(x: Floats, y: Numbers, s: Numbers, theta: Floats, mean_loss: Floats, loss_clip: Floats) -> Floats:
        state = replace(start, theta=torch.from_numpy(theta), mean_loss=float(mean_loss))
        state = replace(state, loss_clips=(float(loss_clip),))
        return _sent(algorithm, state, _silo(x, y, s), name)

    public: dict[str, Space] = {"theta": _THETA, "mean_loss": Box(0.0, _LOSS_CLIP), "loss_clip": Box(0.01, _LOSS_CLIP)}
    says = f"FedFdp.contribution(): {name} keeps the plan's bound"
    return CataloguedClaim(id, says, _planned(_FEDFDP, name), Subject(value, Domain(_COLUMNS, public, most=_MOST)))


def _dp_fedsgd(model: Model) -> DpFedSgd:
    return DpFedSgd(model, GradientOptions(), _CLIP, _EXPECTED[_PARTY])


def _weighed_loss(theta: Tensor, w: Tensor, x: Tensor, y: Tensor, s: Tensor) -> Tensor:
    """Cross-entropy of one record in which the maximiser weighs up a group."""
    score = torch.dot(x, theta[:-1]) + theta[-1]
    plain = torch.nn.functional.softplus(score) - y * score
    return (1.0 + torch.where(s == 0, w[0], w[1])) * plain


def _fed_sgda(model: Model) -> FedSgda:
    theta, w = model.initial(0), torch.tensor([0.4, -0.3], dtype=torch.float64)
    return FedSgda(
        _weighed_loss, theta, w, 2.0, 0.5, _EXPECTED[_PARTY], w_step=0.1, w_radius=1.0, rule=DescentRule(), clip=_CLIP
    )


_ADD_REMOVE, _REPLACE = _gaussian(Relation.ADD_REMOVE), _gaussian(Relation.REPLACE_ONE)
_LOCAL_STEPS: dict[str, Callable[[Model], Algorithm[Any]]] = {
    "fedprox": lambda model: drift.FedProx(model, drift.FedProxOptions(), _SHARES, _SUMS),
    "scaffold": lambda model: drift.Scaffold(model, drift.ScaffoldOptions(), _SHARES, _SUMS),
    "feddyn": lambda model: drift.FedDyn(model, drift.FedDynOptions(), _SHARES, _SUMS),
    "ali-dpfl": lambda model: AliDpfl(model, AliDpflOptions(), _SHARES, _SUMS, 1.0, 10),
}
_GRADIENTS_AND_LOSSES: dict[str, Callable[[Model], Algorithm[Any]]] = {
    "q-ffl": lambda model: QFfl(model, QFflOptions(), _SHARES, _PAIRS),
    "agnostic-fl": lambda model: AgnosticFl(model, AgnosticOptions(), _SHARES, _PAIRS),
}

# Messages about a record's attribute: SteFFLe's gradients and histogram, pay-once's responses, and what is clear.

_BATCH, _RHO, _LIPSCHITZ, _RADIUS = 8, 0.3, 0.5, 1.0
_ALL = (1, _GROUPS, 2)
_LINE = torch.linspace(-0.3, 0.4, 2 * _GROUPS, dtype=torch.float64).reshape(_ALL)
_STEFFLE = StefflePlan(100, _BATCH, 10, _RHO, _LIPSCHITZ, _RADIUS, groups=_GROUPS, histogram_noise_ratio=1.0)
_BOUNDS = SteffleBounds.of(_STEFFLE)


def _attribute_domain(public: dict[str, Space] | None = None) -> Domain:
    return Domain(_COLUMNS, public or {}, fewest=1, most=_MOST, attribute="s")


def _steffle(name: str, stated: DistanceClaim, id: str) -> CataloguedClaim:
    # Frequencies are public here and may be as uneven as the signed fraction allows.
    options = SteffleOptions(group_frequencies=(_RHO, _RHO))
    algorithm = Steffle(_logistic(), options, _BOUNDS, {_PARTY: 1.0}, _GROUPS)
    start = algorithm.start()

    def value(x: Floats, y: Numbers, s: Numbers, theta: Floats, deviation: Floats) -> Floats:
        descent = replace(start.descent, theta=torch.from_numpy(theta))
        state = replace(start, descent=descent, deviation=torch.from_numpy(deviation))
        return _sent(algorithm, state, _silo(x, y, s), name)

    domain = _attribute_domain({"theta": _THETA, "deviation": Ball(_RADIUS, _ALL)})
    says = f"Steffle.contribution(): {name} keeps the plan's bound"
    return CataloguedClaim(id, says, stated, Subject(value, domain))


def _at_start(algorithm: Algorithm[Any], stated: DistanceClaim, name: str, says: str, id: str) -> CataloguedClaim:
    """A value that is published once, at the beginning."""
    start = algorithm.start()

    def value(x: Floats, y: Numbers, s: Numbers) -> Floats:
        return _sent(algorithm, start, _silo(x, y, s), name)

    return CataloguedClaim(id, says, stated, Subject(value, _attribute_domain()))


def _histogram(id: str) -> CataloguedClaim:
    algorithm = Steffle(_logistic(), SteffleOptions(), _BOUNDS, {_PARTY: 1.0}, _GROUPS)
    says = "Steffle.contribution(): the paid histogram of the groups keeps the plan's bound"
    return _at_start(algorithm, _planned(_STEFFLE, HISTOGRAM), HISTOGRAM, says, id)


def _pay_once() -> PayOnce:
    channel, options = ResponseChannel.of_epsilon(_GROUPS, 1.0), PayOnceOptions(fairness=1.0)
    return PayOnce(_logistic(), options, channel, _MOST, _SHARES)


def _responses(id: str) -> CataloguedClaim:
    """How many entries of the vector that goes through randomised response one attribute changes."""
    says = "PayOnce.contribution(): one attribute is one entry of the randomised vector"
    one_entry = DistanceClaim(_GROUPS - 1.0, Relation.REPLACE_ATTRIBUTE, norm=Norm.L1)
    return _at_start(_pay_once(), one_entry, ATTRIBUTE, says, id)


def _after_paying(id: str) -> CataloguedClaim:
    """All later messages, at a state that has published responses: no true attribute enters them."""
    algorithm = _pay_once()
    start = algorithm.start()
    answers = {_PARTY: torch.arange(_MOST) % _GROUPS}

    def value(x: Floats, y: Numbers, s: Numbers, theta: Floats) -> Floats:
        descent = replace(start.descent, theta=torch.from_numpy(theta))
        state = replace(start, descent=descent, responses=answers, joint=_LINE)
        message = algorithm.contribution(state, 1, _silo(x, y, s), torch.arange(len(y)))
        return np.concatenate([_value_named(message, name).ravel() for name in ("g", "joint")])

    says = "PayOnce.contribution(): after the responses no message depends on an attribute"
    return CataloguedClaim(id, says, _UNMOVED, Subject(value, _attribute_domain({"theta": _THETA})))


# The fair plug-in: two clipped sums, and two histograms at the end of the run.

_LAST = 3
_SENT_IN = {SCORES: 0, GROUPS: 0, RATES: _LAST - 1, FLIPS: _LAST}


def _fair_plugin(protect: Protected) -> tuple[FairPlugin, FairPluginPlan]:
    plan = FairPluginPlan(_LAST + 1, protect, _GROUPS, _CLIP, _CLIP / 2, 1.0 if protect is Protected.RECORD else _CLIP)
    attribute, options = protect is Protected.ATTRIBUTE, FairPluginOptions(bins=4)
    clips = None if attribute else Clips(plan.clip, plan.group_clip, plan.count_clip)
    channel = ResponseChannel.of_epsilon(_GROUPS, 1.0) if attribute else None
    return FairPlugin(_logistic(), _logistic(), options, 10, plan.rounds, clips, channel, largest_silo=_MOST), plan


_PLUGIN_STATE: dict[str, Space] = {"theta": Ball(4.0, (2 * (_FEATURES + 1),)), "rates": Box(0.0, 9.0, (_GROUPS, 2))}


def _plugin_message(algorithm: FairPlugin, silo: SiloTensors, step: int, theta: Floats, rates: Floats) -> Message:
    start, units = algorithm.start(), torch.arange(silo.units)
    descent = replace(start.descent, theta=torch.from_numpy(theta), kept=torch.from_numpy(theta))
    answers = {} if algorithm.channel is None else {_PARTY: torch.arange(_MOST) % _GROUPS}
    state = replace(start, descent=descent, rates=torch.from_numpy(rates), responses=answers)
    return algorithm.contribution(state, step, silo, units)


def _plugin(name: str, protect: Protected, id: str) -> CataloguedClaim:
    algorithm, plan = _fair_plugin(protect)

    def value(x: Floats, y: Numbers, s: Numbers, theta: Floats, rates: Floats, user: Numbers | None = None) -> Floats:
        return _value_named(_plugin_message(algorithm, _silo(x, y, s, user), _SENT_IN[name], theta, rates), name)

    domain = Domain(_COLUMNS, _PLUGIN_STATE, most=_MOST)
    if protect is Protected.USER:
        domain = Domain(_COLUMNS, _PLUGIN_STATE, most=3, user="user", most_per_user=2)
    says = f"FairPlugin.contribution(): {name} keeps the bound of the plan, for {protect.value}s"
    return CataloguedClaim(id, says, _planned(plan, name), Subject(value, domain))


def _plugin_after_paying(id: str) -> CataloguedClaim:
    algorithm, _ = _fair_plugin(Protected.ATTRIBUTE)

    def value(x: Floats, y: Numbers, s: Numbers, theta: Floats, rates: Floats) -> Floats:
        message = _plugin_message(algorithm, _silo(x, y, s), _LAST, theta, rates)
        return np.concatenate([_value_named(message, name).ravel() for name in (SCORES, GROUPS, FLIPS)])

    says = "FairPlugin.contribution(): after the responses no message depends on an attribute"
    return CataloguedClaim(id, says, _UNMOVED, Subject(value, _attribute_domain(_PLUGIN_STATE)))


# One vector per user, clipped as a whole: FPFL and Tran's multipliers.

_USERS, _COHORT = 4, 4.0
_STATISTICS = "user_statistics"


def _state_at(start: Any, theta: Tensor) -> Any:
    if isinstance(start, FpflState):
        return replace(start, descent=replace(start.descent, theta=theta))
    return replace(start, theta=theta)


def _users(build: Callable[[], Algorithm[Any]], sampling: SamplingName, id: str) -> CataloguedClaim:
    algorithm = build()
    start, cohort = algorithm.start(), torch.arange(_USERS)

    def value(x: Floats, y: Numbers, s: Numbers, user: Numbers, theta: Floats) -> Floats:
        state = _state_at(start, torch.from_numpy(theta))
        return _value_named(algorithm.contribution(state, 0, _silo(x, y, s, user), cohort), _STATISTICS)

    domain = Domain(_COLUMNS, {"theta": _THETA}, most=3, user="user", most_per_user=2)
    name, stated = type(algorithm).__name__, _planned(FpflPlan(_USERS, 4, 10, _CLIP, sampling), _STATISTICS)
    says = f"{name}.contribution(): a user's whole vector keeps the plan's bound, {sampling} cohorts"
    return CataloguedClaim(id, says, stated, Subject(value, domain))


def _fpfl(notion: FairnessNotion, weights: tuple[tuple[float, ...], ...] = ()) -> Callable[[], Fpfl]:
    return lambda: Fpfl(_logistic(), FpflOptions(notion=notion, group_weight=weights), _GROUPS, _COHORT, _CLIP)


def _tran() -> TranMultipliers:
    return TranMultipliers(_logistic(), TranOptions(), _GROUPS, _COHORT, _CLIP)


# MMD-FedAvg: published predictions of all groups, and the cohort's clipped updates in reply; once with three groups and
# the energy kernel.

_CLIENTS, _SAMPLES = 2, 3
_MMD = MmdFedavgPlan(10, _SAMPLES, 10, users=_CLIENTS, cohort=_CLIENTS, update_clip=_CLIP, histogram_noise_ratio=1.0)


def _mmd_domain(groups: int, **public: Space) -> Domain:
    """The batch is in random order, and neighbours' orders are coupled so that the replaced record comes last."""
    columns = {**_COLUMNS, "s": Category(groups)}
    return Domain(columns, {"theta": _THETA, **public}, fewest=1, most=_MOST, unit_last=True)


def _mmd(groups: int) -> MmdFedAvg:
    terms = MmdTerms((_MOST, _MOST), _SAMPLES, _CLIENTS, PaidCounts(), _CLIP, GaussianSmoothing(0.1))
    own = MmdFedAvgOptions(local_rate=2.0)
    if groups > 2:
        own = replace(own, kernel=KernelKind.ENERGY, correction=NoiseCorrection.NONE, fairness=20.0)
    return MmdFedAvg(_logistic(), own, terms, groups=groups)


def _mmd_state(theta: Floats, groups: int) -> MmdFedAvgState:
    return MmdFedAvgState(torch.from_numpy(theta), (1 / groups,) * groups)


def _mmd_silo(x: Floats, y: Numbers, s: Numbers) -> SiloTensors:
    return _silo(x, y, s, client=np.arange(len(y), dtype=np.int64) % _CLIENTS)


def _mmd_message(name: str, step: int, groups: int, id: str) -> CataloguedClaim:
    algorithm = _mmd(groups)

    def value(x: Floats, y: Numbers, s: Numbers, theta: Floats) -> Floats:
        message = algorithm.contribution(_mmd_state(theta, groups), step, _mmd_silo(x, y, s), torch.arange(len(y)))
        return _value_named(message, name)

    says = f"MmdFedAvg.contribution(): {name} keeps the plan's bound"
    claimed = _planned(replace(_MMD, groups=groups), name)
    return CataloguedClaim(id, says, claimed, Subject(value, _mmd_domain(groups)))


def _mmd_updates(groups: int, id: str) -> CataloguedClaim:
    """The reply, whatever predictions were published before it."""
    algorithm = _mmd(groups)

    def value(x: Floats, y: Numbers, s: Numbers, theta: Floats, predictions: Floats) -> Floats:
        batch = torch.cat([torch.arange(len(y)), len(y) + torch.arange(_CLIENTS)])
        seen = {
            name: Published(1, _PARTY, name, np.array(given))
            for name, given in zip(algorithm.names, predictions, strict=True)
        }
        message = algorithm.reply(_mmd_state(theta, groups), 1, _mmd_silo(x, y, s), batch, {_PARTY: seen})
        return _value_named(message, UPDATES)

    domain = _mmd_domain(groups, predictions=Box(-1.0, 2.0, (groups, _SAMPLES)))
    says = "MmdFedAvg.reply(): the cohort's updates keep the plan's bound"
    return CataloguedClaim(id, says, _planned(_MMD, UPDATES), Subject(value, domain))


_TWO_VALUES = _gaussian(Relation.ADD_REMOVE, 1.0, 1.0)
BUILDERS: dict[str, Builder] = {
    "engine.steffle.h_theta": partial(_steffle, "h_theta", _planned(_STEFFLE, "h_theta")),
    "engine.steffle.h_W": partial(_steffle, "h_W", _planned(_STEFFLE, "h_W")),
    "engine.steffle.g": partial(_steffle, "g", _UNMOVED),
    "engine.steffle.attribute_histogram": _histogram,
    "engine.pay-once.randomised_attribute": _responses,
    "engine.pay-once.after-paying": _after_paying,
    **{f"engine.fair-plugin.{name}": partial(_plugin, name, Protected.RECORD) for name in _SENT_IN},
    **{f"engine.fair-plugin.{name}.users": partial(_plugin, name, Protected.USER) for name in (SCORES, FLIPS)},
    "engine.fair-plugin.after-paying": _plugin_after_paying,
    "engine.gaussian.value_1": partial(_gradients, _dp_fedsgd, _ADD_REMOVE, "value_1"),
    "engine.gaussian.value_1.replace-one": partial(_gradients, _dp_fedsgd, _REPLACE, "value_1"),
    **{
        f"engine.{name}.value_1": partial(_gradients, build, _ADD_REMOVE, "value_1")
        for name, build in _LOCAL_STEPS.items()
    },
    **{f"engine.fed-sgda.{name}": partial(_gradients, _fed_sgda, _TWO_VALUES, name) for name in ("value_1", "value_2")},
    **{f"engine.fedfdp.{name}": partial(_fedfdp, name) for name in ("gradient", "loss")},
    **{
        f"engine.{algorithm}.{name}": partial(_gradients, build, _FEDFDP, name)
        for algorithm, build in _GRADIENTS_AND_LOSSES.items()
        for name in ("gradient", "loss")
    },
    "engine.fpfl.user_statistics.poisson": partial(_users, _fpfl(FairnessNotion.EQUALISED_ODDS), SamplingName.POISSON),
    "engine.fpfl.user_statistics.fixed": partial(
        _users, _fpfl(FairnessNotion.ACCURACY, ((1.0, 1.0), (40.0, 1.0))), SamplingName.FIXED
    ),
    "engine.tran.user_statistics": partial(_users, _tran, SamplingName.POISSON),
    **{f"engine.mmd-fedavg.{name}": partial(_mmd_message, name, 1, 2) for name in PREDICTIONS},
    "engine.mmd-fedavg.client_updates": partial(_mmd_updates, 2),
    "engine.mmd-fedavg.predictions.three-groups": partial(_mmd_message, "predictions_group_2", 1, 3),
    "engine.mmd-fedavg.client_updates.energy": partial(_mmd_updates, 3),
    "engine.mmd-fedavg.attribute_histogram": partial(_mmd_message, HISTOGRAM, 0, 2),
}
UNMOVED = ("engine.steffle.g", "engine.pay-once.after-paying", "engine.fair-plugin.after-paying")
"""Claims of values that no attribute enters: the search should find no distance at all."""

"""Every algorithm with the plan that prices it, on every kind of model, ready for one contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrate.plans.clipped_sums import FedfdpPlan, FpflPlan
from calibrate.plans.fair_plugin import FairPluginPlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.mmd_fedavg import MmdFedavgPlan
from calibrate.plans.plan import Plan
from calibrate.plans.steffle import StefflePlan
from calibrate.privacy_unit import Protected, Relation
from calibrate.sampling import Batch, FixedSize, Poisson, Sampling, SamplingName, ShuffledEpochs
from privfair.algorithms.algorithm import Algorithm, Message, Received, SiloTensors
from privfair.algorithms.ali_dpfl import AliDpfl, AliDpflOptions
from privfair.algorithms.baselines.averaging import FedAvg, FedAvgOptions, FedSgd
from privfair.algorithms.baselines.central_erm import CentralErm, CentralErmOptions
from privfair.algorithms.baselines.client_losses import AgnosticFl, AgnosticOptions, QFfl, QFflOptions
from privfair.algorithms.baselines.drift import (
    FedDyn,
    FedDynOptions,
    FedProx,
    FedProxOptions,
    Scaffold,
    ScaffoldOptions,
)
from privfair.algorithms.baselines.fedfair import FedFair, FedFairOptions
from privfair.algorithms.baselines.steffle_public_code import StefflePublicCode
from privfair.algorithms.baselines.tran import TranMultipliers, TranOptions
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.fair_plugin import Clips, FairPlugin, FairPluginOptions
from privfair.algorithms.fedfdp import FedFdp, FedFdpClips, FedFdpOptions
from privfair.algorithms.fpfl import Fpfl, FpflOptions, ModelChoice
from privfair.algorithms.mmd_fedavg import (
    CountsInTheClear,
    MmdFedAvg,
    MmdFedAvgOptions,
    MmdTerms,
    NoiseCorrection,
    PaidCounts,
)
from privfair.algorithms.parts.clients import ClippedPairs, ClippedSums
from privfair.algorithms.parts.descent import DescentRule, Iterate
from privfair.algorithms.parts.paid_scales import PaidScales
from privfair.algorithms.pay_once import PayOnce, PayOnceOptions
from privfair.algorithms.steffle import Steffle, SteffleBounds, SteffleOptions
from privfair.batches.participation import Participation
from privfair.batches.randomness import SeededWords
from privfair.contribution import BoundedContribution, Published
from privfair.fairness.constraints import FairnessNotion, KernelKind, MmdCriterion, ResponseChannel
from privfair.fairness.fermi import Independence
from privfair.fairness.mmd import GaussianSmoothing
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model
from privfair.models.perceptron import Perceptron
from privfair.models.scaled import ScaledModel, Scales
from privfair.models.torch_module import TorchModule, made_up_records
from privfair.models.trees import BoostedTrees
from privfair.plan.sections import GradientOptions
from privfair_experiments.baselines.fairfed import FairFed, FairFedOptions
from privfair_experiments.baselines.fedfb import FedFb, FedFbOptions
from privfair_experiments.baselines.local_mmd import LocalMmd, LocalMmdOptions

FEATURES, RECORDS, USERS, CLIENTS, ROUNDS = 3, 40, 16, 4, 4
SHARES = {"north": 0.5, "south": 0.5}
EXPECTED = {"north": 10.0, "south": 10.0}

IMAGE = (1, 4, 4)


class Branched(nn.Module):
    """A user's own module: two branches that are added, a norm, and a parameter that is added directly."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(4))
        self.value, self.door = nn.Linear(FEATURES, 4), nn.Linear(FEATURES, 4)
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.value(x)) + torch.sigmoid(self.door(x)) + self.shift))


def _small_cnn() -> nn.Module:
    """The layers of the papers' nets (privfair.models.torch_module), on four by four pixels."""
    return nn.Sequential(
        *(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)), nn.Flatten(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)
    )


# One of each: a module is tried out when it is made, which takes longer than a round.
_CNN = TorchModule(_small_cnn, made_up_records(IMAGE))
_MODULE = TorchModule(Branched, made_up_records((FEATURES,)))

MODELS: dict[str, Callable[[], Model]] = {
    "logistic": lambda: LogisticRegression(FEATURES),
    "softmax": lambda: LogisticRegression(FEATURES, 3),
    "perceptron": lambda: Perceptron(FEATURES, (4,)),
    "cnn": lambda: _CNN,
    "module": lambda: _MODULE,
}
NETS = ("cnn", "module")


@dataclass(frozen=True, eq=False)
class Case:
    """One algorithm: how it is built, which plan prices it, how its batches may be drawn, who takes part."""

    name: str
    build: Callable[[Model], Algorithm[Any]]
    samplings: tuple[Sampling | None, ...]
    parties: tuple[str, ...] = ("north", "south")
    plan: Plan | None = None
    kinds: tuple[str, ...] = ("logistic", "softmax", "perceptron", "cnn", "module")
    of_tables: bool = False
    """Whether it knows records with columns alone, no images."""

    def released(self, algorithm: Algorithm[Any], trained: Model) -> Model:
        """The model that a run ends with, which is the one it trains but for the fair rule around it."""
        if isinstance(algorithm, PaidScales):
            return algorithm.model
        return algorithm.released if isinstance(algorithm, FairPlugin) else trained

    def __str__(self) -> str:
        return self.name


_POISSON = Poisson(0.25, Batch.SECRET)
_FIXED = FixedSize(RECORDS, 10, Batch.REVEALED)
_SHUFFLED = ShuffledEpochs(RECORDS, 12, Batch.REVEALED)
_SHUFFLED_TENS = ShuffledEpochs(RECORDS, 10, Batch.REVEALED)
_ANY = (None, _POISSON, _FIXED, _SHUFFLED)
_CLIPS = FedFdpClips(0.3, 2.0)


def _fpfl(clip: float | None, notion: FairnessNotion) -> Callable[[Model], Fpfl]:
    options = FpflOptions(notion=notion, choice=ModelChoice.BEST_PUBLISHED)
    return lambda model: Fpfl(model, options, 2, 4.0, clip)


def _mmd(private: bool, criterion: MmdCriterion) -> Callable[[Model], MmdFedAvg]:
    counts = PaidCounts() if private else CountsInTheClear()
    noise = GaussianSmoothing(0.3) if private else None
    terms = MmdTerms((RECORDS // CLIENTS,) * CLIENTS, 3, 2, counts, 0.2 if private else None, noise)
    return lambda model: MmdFedAvg(model, MmdFedAvgOptions(criterion=criterion), terms)


_MMD_PLAN = MmdFedavgPlan(5, 3, ROUNDS, users=CLIENTS, cohort=2, update_clip=0.2, histogram_noise_ratio=1.0)


def _mmd_of_three(model: Model) -> MmdFedAvg:
    """Three groups, and the energy kernel with a large weight."""
    two = _mmd(True, MmdCriterion.STATISTICAL_PARITY)(model)
    own = replace(two.options, kernel=KernelKind.ENERGY, correction=NoiseCorrection.NONE, fairness=20.0)
    return replace(two, options=own, groups=3)


_SUMS, _PAIRS = ClippedSums(1.0, EXPECTED), ClippedPairs(0.3, 2.0, EXPECTED)
_GAUSSIAN = GaussianPlan(sampling_rate=0.25, rounds=ROUNDS, clip=1.0, relation=Relation.ADD_REMOVE)
_FEDFDP = FedfdpPlan(0.25, ROUNDS, 0.3, 2.0, 2.5)

_STEFFLE = SteffleBounds.of(StefflePlan(100, 10, ROUNDS, 0.3, 0.5, 0.5))


def _steffle(model: Model) -> Steffle:
    return Steffle(model, SteffleOptions(group_frequencies=(0.5, 0.5)), _STEFFLE, SHARES, 2, ROUNDS)


def _public_code(model: Model) -> StefflePublicCode:
    rule, odds = DescentRule(0.25, momentum=0.0), Independence.EQUALISED_ODDS
    return StefflePublicCode(model, odds, 1.5, rule, 0.1, 1.0, 1.0, (0.4, 0.6), tuple(SHARES))


def _pay_once(model: Model) -> PayOnce:
    return PayOnce(model, PayOnceOptions(), ResponseChannel.of_epsilon(2, 1.0), RECORDS, SHARES, ROUNDS)


def _fair_plugin(protect: Protected, notion: Independence) -> Callable[[Model], FairPlugin]:
    options, attribute = FairPluginOptions(notion=notion, bins=5), protect is Protected.ATTRIBUTE
    clips = None if attribute else Clips(0.5, 0.4, 1.5 if protect is Protected.USER else 1.0)
    channel = ResponseChannel.of_epsilon(2, 1.0) if attribute else None

    def build(model: Model) -> FairPlugin:
        groups = LogisticRegression(IMAGE[1] * IMAGE[2] if model is _CNN else FEATURES)
        return FairPlugin(model, groups, options, 2 * RECORDS, ROUNDS, clips, channel, RECORDS)

    return build


def _scaled(model: Model) -> PaidScales:
    """Clipped steps on made-up records, two of whose features are numeric columns."""
    inner = DpFedSgd(model, GradientOptions(), 1.0, 80.0)
    public = Scales(torch.zeros(FEATURES, dtype=torch.float64), torch.ones(FEATURES, dtype=torch.float64))
    scaled = ScaledModel(model, FEATURES)
    return PaidScales(inner, scaled, public, 2, 2 * RECORDS, (2,), 3**0.5, 0.3)


def _fair_plan(protect: Protected) -> FairPluginPlan:
    return FairPluginPlan(ROUNDS, protect, 2, 0.5, 0.4, 1.5 if protect is Protected.USER else 1.0)


def _steffle_plan(sampling: SamplingName) -> StefflePlan:
    size = RECORDS if sampling is SamplingName.FULL else _STEFFLE.batch_size
    return StefflePlan(RECORDS, size, ROUNDS, 0.3, 0.5, 0.5, sampling)


_WEIGHTS = (1.0, 40.0)
"""One class counts forty times: a bound that was not folded in would break at once."""
_GROUP_WEIGHTS = ((1.0, 30.0), (0.1, 1.0))


def _weighted_mmd(model: Model) -> MmdFedAvg:
    plain = _mmd(True, MmdCriterion.STATISTICAL_PARITY)(model)
    return replace(plain, options=replace(plain.options, class_weight=_WEIGHTS))


_WEIGHTED_CASES = tuple(
    Case(f"{name}, classes weighed", build, (sampling,), parties, plan, ("logistic",))
    for name, build, sampling, parties, plan in (
        (
            "steffle",
            lambda model: replace(_steffle(model), options=replace(_steffle(model).options, class_weight=_WEIGHTS)),
            _SHUFFLED_TENS,
            ("north", "south"),
            _steffle_plan(SamplingName.SHUFFLED),
        ),
        (
            "gaussian",
            lambda model: DpFedSgd(model, GradientOptions(), 1.0, 20.0, class_weight=_WEIGHTS),
            _POISSON,
            ("north", "south"),
            _GAUSSIAN,
        ),
        (
            "fedprox",
            lambda model: FedProx(model, FedProxOptions(), SHARES, replace(_SUMS, class_weight=_WEIGHTS)),
            _POISSON,
            ("north", "south"),
            _GAUSSIAN,
        ),
        (
            "fedfdp",
            lambda model: FedFdp(model, FedFdpOptions(class_weight=_WEIGHTS), SHARES, EXPECTED, _CLIPS),
            _POISSON,
            ("north", "south"),
            _FEDFDP,
        ),
        (
            "fpfl",
            lambda model: Fpfl(model, FpflOptions(class_weight=_WEIGHTS, group_weight=_GROUP_WEIGHTS), 2, 4.0, 2.0),
            Poisson(0.25),
            ("users",),
            FpflPlan(USERS, 4, ROUNDS, 2.0, SamplingName.POISSON),
        ),
        ("mmd-fedavg", _weighted_mmd, None, ("central",), _MMD_PLAN),
    )
)


CASES = (
    Case("steffle", _steffle, (_SHUFFLED_TENS, _POISSON), plan=_steffle_plan(SamplingName.SHUFFLED)),
    Case("steffle, public code", _public_code, _ANY, kinds=("logistic", "perceptron", "cnn", "module")),
    Case("pay-once", _pay_once, (None,)),
    Case(
        "fair-plugin",
        _fair_plugin(Protected.RECORD, Independence.DEMOGRAPHIC_PARITY),
        (None,),
        plan=_fair_plan(Protected.RECORD),
        kinds=("logistic", "perceptron", "module"),
    ),
    Case(
        "gaussian, scaled",
        _scaled,
        (None,),
        plan=GaussianPlan(1.0, ROUNDS, scale_columns=2, scale_share=0.1),
        kinds=("logistic",),
        of_tables=True,
    ),
    Case(
        "fair-plugin, users",
        _fair_plugin(Protected.USER, Independence.EQUAL_OPPORTUNITY),
        (None,),
        ("users",),
        _fair_plan(Protected.USER),
        ("logistic",),
    ),
    Case(
        "fair-plugin, attributes",
        _fair_plugin(Protected.ATTRIBUTE, Independence.DEMOGRAPHIC_PARITY),
        (None,),
        kinds=("logistic",),
    ),
    Case(
        "fair-plugin, trees",
        lambda model: replace(
            _fair_plugin(Protected.ATTRIBUTE, Independence.DEMOGRAPHIC_PARITY)(model),
            model=BoostedTrees(FEATURES, ROUNDS - 2, 4),
            parties=tuple(SHARES),
        ),
        (None,),
        kinds=("logistic",),
    ),
    Case(
        "fair-plugin, distilled",
        lambda model: replace(
            _fair_plugin(Protected.ATTRIBUTE, Independence.DEMOGRAPHIC_PARITY)(model),
            pupil=BoostedTrees(FEATURES, ROUNDS - 3, 4),
            parties=tuple(SHARES),
        ),
        (None,),
        kinds=("logistic",),
    ),
    Case("fedprox", lambda model: FedProx(model, FedProxOptions(local_steps=2), SHARES), (_SHUFFLED,)),
    Case(
        "fedprox, private", lambda model: FedProx(model, FedProxOptions(), SHARES, _SUMS), (_POISSON,), plan=_GAUSSIAN
    ),
    Case("scaffold", lambda model: Scaffold(model, ScaffoldOptions(local_steps=2), SHARES), (_SHUFFLED,)),
    Case(
        "scaffold, private",
        lambda model: Scaffold(model, ScaffoldOptions(local_steps=2), SHARES, _SUMS),
        (_POISSON,),
        plan=_GAUSSIAN,
    ),
    Case("feddyn", lambda model: FedDyn(model, FedDynOptions(local_steps=2), SHARES), (_SHUFFLED,)),
    Case(
        "feddyn, private",
        lambda model: FedDyn(model, FedDynOptions(local_steps=2), SHARES, _SUMS),
        (_POISSON,),
        plan=_GAUSSIAN,
    ),
    Case(
        "ali-dpfl",
        lambda model: AliDpfl(model, AliDpflOptions(communications=3), SHARES, _SUMS, 2.0, ROUNDS),
        (_POISSON,),
        plan=_GAUSSIAN,
    ),
    Case("q-ffl", lambda model: QFfl(model, QFflOptions(local_steps=2), SHARES), (_SHUFFLED,)),
    Case("q-ffl, private", lambda model: QFfl(model, QFflOptions(), SHARES, _PAIRS), (_POISSON,), plan=_FEDFDP),
    Case("agnostic-fl", lambda model: AgnosticFl(model, AgnosticOptions(), SHARES), (_SHUFFLED,)),
    Case(
        "agnostic-fl, private",
        lambda model: AgnosticFl(model, AgnosticOptions(), SHARES, _PAIRS),
        (_POISSON,),
        plan=_FEDFDP,
    ),
    Case("local-mmd", lambda model: LocalMmd(model, LocalMmdOptions(local_batch=7), SHARES), _ANY),
    Case("fairfed", lambda model: FairFed(model, FairFedOptions(fairness=1.0), SHARES), (None, _SHUFFLED)),
    Case(
        "fedfb",
        lambda model: FedFb(model, FedFbOptions(), SHARES),
        (None, _SHUFFLED),
        kinds=("logistic", "perceptron", "cnn", "module"),
    ),
    Case(
        "tran",
        lambda model: TranMultipliers(model, TranOptions(), 2, 4.0, 1.0),
        (Poisson(0.25),),
        ("users",),
        FpflPlan(USERS, 4, ROUNDS, 1.0, SamplingName.POISSON),
    ),
    Case("fedsgd", lambda model: FedSgd(model, GradientOptions(), SHARES), _ANY),
    Case("fedavg", lambda model: FedAvg(model, FedAvgOptions(local_batch=3), SHARES), _ANY),
    Case("central-erm", lambda model: CentralErm(model, CentralErmOptions(l2=0.1, iterations=10)), _ANY, ("central",)),
    Case(
        "gaussian, descent",
        lambda model: DpFedSgd(
            model,
            GradientOptions(),
            1.0,
            20.0,
            rule=DescentRule(0.5, 0.9, iterate=Iterate.TAIL_AVERAGE, rounds=8, cosine=True),
        ),
        (_POISSON,),
        plan=_GAUSSIAN,
        kinds=("logistic", "softmax"),
    ),
    Case("gaussian", lambda model: DpFedSgd(model, GradientOptions(), 1.0, 20.0), (_POISSON,), plan=_GAUSSIAN),
    Case(
        "fedfdp",
        lambda model: FedFdp(model, FedFdpOptions(fairness=2.0), SHARES, EXPECTED, _CLIPS),
        (_POISSON,),
        plan=_FEDFDP,
    ),
    Case(
        "fedfdp, two local steps",
        lambda model: FedFdp(model, FedFdpOptions(local_steps=2), SHARES, EXPECTED, _CLIPS),
        (_POISSON,),
        plan=_FEDFDP,
    ),
    Case("fedfair", lambda model: FedFair(model, FedFairOptions(local_batch=3), SHARES), _ANY),
    Case("fl", _fpfl(None, FairnessNotion.NONE), (None, Poisson(0.25), FixedSize(USERS, 4)), ("users",)),
    Case("ffl", _fpfl(None, FairnessNotion.ACCURACY), (None, FixedSize(USERS, 4)), ("users",)),
    Case(
        "pfl",
        _fpfl(1.0, FairnessNotion.NONE),
        (Poisson(0.25),),
        ("users",),
        FpflPlan(USERS, 4, ROUNDS, 1.0, SamplingName.POISSON),
    ),
    Case(
        "fpfl",
        _fpfl(2.0, FairnessNotion.EQUALISED_ODDS),
        (FixedSize(USERS, 4), Poisson(0.25)),
        ("users",),
        FpflPlan(USERS, 4, ROUNDS, 2.0, SamplingName.FIXED),
    ),
    Case("mmd-fedavg, no privacy", _mmd(False, MmdCriterion.EQUAL_OPPORTUNITY), (None,), ("central",)),
    Case("mmd-fedavg", _mmd(True, MmdCriterion.STATISTICAL_PARITY), (None,), ("central",), _MMD_PLAN),
    Case("mmd-fedavg, three groups", _mmd_of_three, (None,), ("central, three groups",), replace(_MMD_PLAN, groups=3)),
    *_WEIGHTED_CASES,
)


def silo(name: str, model: Model, seed: int = 0, scale: float = 1.0) -> SiloTensors:
    """Forty records with all groups and classes; of users or clients where the party collects them."""
    generator = torch.Generator().manual_seed(seed + len(name))
    shape = IMAGE if model is _CNN else (FEATURES,)
    x = torch.randn(RECORDS, *shape, generator=generator, dtype=torch.float64) * scale
    y = torch.arange(RECORDS) % model.classes
    s = (torch.arange(RECORDS) // model.classes) % (3 if "three" in name else 2)
    owners = torch.Generator().manual_seed(seed)
    owner = torch.randint(0, USERS, (RECORDS,), generator=owners) if name == "users" else None
    client = torch.arange(RECORDS) % CLIENTS if name.startswith("central") else None
    return SiloTensors(name, x, y, s, owner, client)


def batch_for(
    case: Case, algorithm: Algorithm[Any], party: SiloTensors, sampling: Sampling | None, round: int
) -> Tensor:
    """As the engine draws it."""
    source = SeededWords(round, f"{case.name} {party.name}")
    if algorithm.draws:
        return torch.from_numpy(algorithm.draw(party, source))
    units = USERS if party.unit_of_row is not None else len(party)
    return torch.from_numpy(Participation(party.name, units, sampling, source).batch(round))


@dataclass(frozen=True)
class Sent:
    """What one party sends in one round, in one or two messages."""

    messages: tuple[Message, ...]

    @property
    def noisy(self) -> tuple[BoundedContribution, ...]:
        return tuple(contribution for message in self.messages for contribution in message.noisy)

    @property
    def clear(self) -> dict[str, np.ndarray]:
        return {name: values for message in self.messages for name, values in (message.clear or {}).items()}

    @property
    def randomized(self) -> dict[str, np.ndarray]:
        sent = (message.randomized or {} for message in self.messages)
        return {name: np.asarray(codes, dtype=np.float64) for each in sent for name, codes in each.items()}

    @property
    def values(self) -> dict[str, np.ndarray]:
        return {c.name: c.values for c in self.noisy} | self.randomized | self.clear

    def published(self, round: int, party: str) -> dict[str, Published]:
        return {
            name: Published(round, party, name, np.array(values, dtype=np.float64))
            for name, values in self.values.items()
        }


def send(
    algorithm: Algorithm[Any],
    state: Any,
    round: int,
    parties: Mapping[str, SiloTensors],
    batches: Mapping[str, Tensor],
    seen: Received | None = None,
) -> dict[str, Sent]:
    """One round's messages of all parties, without noise; replies to `seen`, or to what was sent first."""
    first = {
        name: Sent((algorithm.contribution(state, round, party, batches[name]),)) for name, party in parties.items()
    }
    if not algorithm.replies:
        return first
    if seen is None:
        seen = {name: sent.published(round, name) for name, sent in first.items()}
    return {
        name: replace(
            first[name], messages=(*first[name].messages, algorithm.reply(state, round, party, batches[name], seen))
        )
        for name, party in parties.items()
    }

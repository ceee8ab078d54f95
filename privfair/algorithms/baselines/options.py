"""What the [training] section may say for the papers' baselines; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calibrate.errors import count, positive
from privfair.algorithms.parts.options import GradientOptions, at_least_zero
from privfair.fairness.constraints import FairnessNotion, KernelKind, MmdCriterion, RateValue, Score


@dataclass(frozen=True)
class FedProxOptions:
    """`proximal` is mu of the term mu/2 |w - w_global|^2."""

    learning_rate: float = 0.5
    local_steps: int = 1
    proximal: float = 0.1

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        count("local-steps", self.local_steps)
        at_least_zero("proximal", self.proximal)


@dataclass(frozen=True)
class ScaffoldOptions:
    learning_rate: float = 0.5
    local_steps: int = 5
    server_rate: float = 1.0

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        count("local-steps", self.local_steps)
        positive("server-rate", self.server_rate)


@dataclass(frozen=True)
class FedDynOptions:
    """`regularisation` is alpha of the dynamic regulariser."""

    learning_rate: float = 0.5
    local_steps: int = 5
    regularisation: float = 0.1

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        count("local-steps", self.local_steps)
        positive("regularisation", self.regularisation)


@dataclass(frozen=True)
class QFflOptions:
    """`exponent` is q; 0 is FedAvg."""

    learning_rate: float = 0.5
    local_steps: int = 1
    exponent: float = 1.0
    loss_floor: float = 1e-3
    """A published loss is held above this before it is raised to a power."""

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        count("local-steps", self.local_steps)
        at_least_zero("exponent", self.exponent)
        positive("loss-floor", self.loss_floor)


@dataclass(frozen=True)
class AgnosticOptions:
    learning_rate: float = 0.5
    weight_rate: float = 0.1

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        at_least_zero("weight-rate", self.weight_rate)


@dataclass(frozen=True)
class AliDpflOptions:
    """ALI-DPFL: how often models may be averaged, and the constants of its convergence bound."""

    learning_rate: float = 0.5
    communications: int = 20
    """R_s: aggregations allowed; as many as steps, or more, means one step each."""
    first_steps: int = 2
    """Local steps before the first aggregation, and until mu is known."""
    most_steps: int = 100
    strong_convexity: float | None = None
    """mu, if it is public; left out: estimated from published gradients."""
    heterogeneity: float = 0.0
    """Gamma = F* - sum_k p_k F_k*, a public figure."""

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        count("communications", self.communications)
        count("most-steps", self.most_steps)
        count("first-steps", self.first_steps)
        if self.strong_convexity is not None:
            positive("strong-convexity", self.strong_convexity)
        at_least_zero("heterogeneity", self.heterogeneity)


class StepMethod(Enum):
    """Which local steps a `gaussian` plan takes along its noisy gradients; the corrections cost no privacy."""

    FEDSGD = "fedsgd"
    FEDPROX = "fedprox"
    SCAFFOLD = "scaffold"
    FEDDYN = "feddyn"
    ALI_DPFL = "ali-dpfl"


@dataclass(frozen=True)
class PrivateStepOptions:
    """DP-FedSGD, or another method on noisy gradients: what [training] may say under a `gaussian` plan.

    `learning_rate_decay` is for fedsgd; `local_steps` for fedprox, scaffold and feddyn, each a round of the budget;
    `communications` and what follows it for ali-dpfl.
    """

    method: StepMethod = StepMethod.FEDSGD
    learning_rate: float = 0.5
    learning_rate_decay: float = 0.0
    local_steps: int = 1
    proximal: float = 0.1
    server_rate: float = 1.0
    regularisation: float = 0.1
    communications: int = 20
    first_steps: int = 2
    most_steps: int = 100
    strong_convexity: float | None = None
    heterogeneity: float = 0.0

    def __post_init__(self) -> None:
        _ = (self.plain, self.prox, self.controlled, self.dynamic, self.adaptive)

    @property
    def plain(self) -> GradientOptions:
        return GradientOptions(self.learning_rate, self.learning_rate_decay)

    @property
    def prox(self) -> FedProxOptions:
        return FedProxOptions(self.learning_rate, self.local_steps, self.proximal)

    @property
    def controlled(self) -> ScaffoldOptions:
        return ScaffoldOptions(self.learning_rate, self.local_steps, self.server_rate)

    @property
    def dynamic(self) -> FedDynOptions:
        return FedDynOptions(self.learning_rate, self.local_steps, self.regularisation)

    @property
    def adaptive(self) -> AliDpflOptions:
        return AliDpflOptions(
            self.learning_rate,
            self.communications,
            self.first_steps,
            self.most_steps,
            self.strong_convexity,
            self.heterogeneity,
        )


@dataclass(frozen=True)
class LocalMmdOptions:
    """FedAvg whose clients each punish the MMD between the groups among their own records."""

    learning_rate: float = 0.1
    local_epochs: int = 1
    local_batch: int | None = None
    fairness: float = 1.0
    criterion: MmdCriterion = MmdCriterion.STATISTICAL_PARITY
    score: Score = Score.PROBABILITY
    kernel: KernelKind = KernelKind.ENERGY
    kernel_width: float = 0.5
    positive_class: int = 1

    def __post_init__(self) -> None:
        _check_local(self.learning_rate, self.local_epochs, self.local_batch)
        at_least_zero("fairness", self.fairness)
        positive("kernel-width", self.kernel_width)
        count("positive-class", self.positive_class, least=0)


@dataclass(frozen=True)
class FairFedOptions:
    """FairFed with a local MMD penalty (as the MMD paper combines them); `budget` is beta."""

    learning_rate: float = 0.1
    local_epochs: int = 1
    local_batch: int | None = None
    budget: float = 1.0
    fairness: float = 0.0
    criterion: MmdCriterion = MmdCriterion.STATISTICAL_PARITY
    """Statistical parity or equal opportunity: of the metric and of the local penalty."""
    kernel: KernelKind = KernelKind.ENERGY
    kernel_width: float = 0.5
    positive_class: int = 1

    def __post_init__(self) -> None:
        _check_local(self.learning_rate, self.local_epochs, self.local_batch)
        at_least_zero("budget", self.budget)
        at_least_zero("fairness", self.fairness)
        positive("kernel-width", self.kernel_width)
        count("positive-class", self.positive_class, least=0)


class ReweightedNotion(Enum):
    """What FedFB equalises."""

    STATISTICAL_PARITY = "statistical-parity"
    EQUAL_OPPORTUNITY = "equal-opportunity"


@dataclass(frozen=True)
class FedFbOptions:
    """FedFB; `weight_rate` is its alpha."""

    learning_rate: float = 0.1
    local_epochs: int = 1
    local_batch: int | None = None
    weight_rate: float = 0.05
    notion: ReweightedNotion = ReweightedNotion.STATISTICAL_PARITY

    def __post_init__(self) -> None:
        _check_local(self.learning_rate, self.local_epochs, self.local_batch)
        at_least_zero("weight-rate", self.weight_rate)


@dataclass(frozen=True)
class TranOptions:
    """Basic multipliers: no tolerance, no damping, multipliers of at most `largest_multiplier`."""

    learning_rate: float = 0.1
    notion: FairnessNotion = FairnessNotion.DEMOGRAPHIC_PARITY
    multiplier_rate: float = 0.01
    largest_multiplier: float = 1.0
    rate_value: RateValue = RateValue.PREDICTIONS
    cohort: int | None = None
    """Users a round, the batch size; left out: all of them."""
    records_per_user: float = 2.0
    least_count: float = 1.0
    positive_class: int = 1

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        positive("multiplier-rate", self.multiplier_rate)
        if self.cohort is not None:
            count("cohort", self.cohort)
        positive("largest-multiplier", self.largest_multiplier)
        positive("records-per-user", self.records_per_user)
        positive("least-count", self.least_count)
        count("positive-class", self.positive_class, least=0)


def _check_local(learning_rate: float, local_epochs: int, local_batch: int | None) -> None:
    positive("learning-rate", learning_rate)
    count("local-epochs", local_epochs)
    if local_batch is not None:
        count("local-batch", local_batch)

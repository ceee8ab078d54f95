"""What the [training] section may say for the fair algorithms of the papers; importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from calibrate.errors import InvalidInput, count, positive, rate
from privfair.algorithms.parts.options import at_least_zero
from privfair.fairness.constraints import FairnessNotion, KernelKind, MmdCriterion, RateValue, Score


class LossClipRule(Enum):
    """How each client's loss is clipped."""

    ADAPTIVE = "adaptive"
    """By the client's last published mean loss, times `loss_headroom`."""
    SIGNED = "signed"
    """By the signed bound in every round."""


class PairMethod(Enum):
    """What a `fedfdp` plan does with its noisy gradients and losses."""

    FEDFDP = "fedfdp"
    Q_FFL = "q-ffl"
    AGNOSTIC_FL = "agnostic-fl"


@dataclass(frozen=True)
class FedFdpOptions:
    """FedFDP; without a clip it is FedFair. `fairness` is lambda; 0 is DP-FedAvg.

    With another `method` the same noisy gradients and losses train q-FFL (`exponent` is q) or agnostic learning
    (`weight_rate` moves the mixture), at the same price.
    """

    method: PairMethod = PairMethod.FEDFDP
    learning_rate: float = 0.5
    fairness: float = 0.5
    local_steps: int = 1
    loss_clip_rule: LossClipRule = LossClipRule.ADAPTIVE
    loss_headroom: float = 2.0
    """1 is the paper's rule, which can only shrink the clip."""
    loss_floor: float = 0.01
    initial_loss: float | None = None
    """The mean loss assumed before the first is published; left out: that of guessing, ln(classes)."""
    exponent: float = 1.0
    weight_rate: float = 0.1

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        at_least_zero("fairness", self.fairness)
        at_least_zero("exponent", self.exponent)
        at_least_zero("weight-rate", self.weight_rate)
        count("local-steps", self.local_steps)
        positive("loss-floor", self.loss_floor)
        if not 1 <= self.loss_headroom < float("inf"):
            raise InvalidInput("loss-headroom", self.loss_headroom, "must be at least 1", "1 is the paper's own rule")
        if self.initial_loss is not None:
            at_least_zero("initial-loss", self.initial_loss)


class ModelChoice(Enum):
    """Which model a run of FPFL ends with."""

    LAST = "last"
    BEST_PUBLISHED = "best-published"
    """The most accurate among the fair ones, judged by the published noisy statistics alone."""
    SMOOTHED = "smoothed"
    """An exponential mean of the models (at first a plain one): the last steps' noise, of batches as of the gate,
    averages out."""


@dataclass(frozen=True)
class FpflOptions:
    """FPFL and its ladder: the notion "none" for FL and PFL; no clip for FL and FFL."""

    learning_rate: float = 0.1
    notion: FairnessNotion = FairnessNotion.FALSE_NEGATIVE_RATE
    tolerance: float = 0.02
    multiplier_rate: float = 0.01
    damping: float = 2.0
    rate_value: RateValue = RateValue.PREDICTIONS
    choice: ModelChoice = ModelChoice.LAST
    smoothing: float = 0.01
    """How much the newest model counts in the smoothed one."""
    records_per_user: float = 2.0
    """A public figure: the sum of gradients is divided by the expected cohort times this, never by a true count."""
    least_count: float = 1.0
    """A group whose noisy count falls below is left out of the round's constraints."""
    positive_class: int = 1

    def __post_init__(self) -> None:
        positive("learning-rate", self.learning_rate)
        at_least_zero("tolerance", self.tolerance)
        positive("multiplier-rate", self.multiplier_rate)
        at_least_zero("damping", self.damping)
        rate("smoothing", self.smoothing)
        positive("records-per-user", self.records_per_user)
        positive("least-count", self.least_count)
        count("positive-class", self.positive_class, least=0)


class NoiseCorrection(Enum):
    """What is done about the kernel that noise on the scores leaves (docs/theorems/convolved-kernels.md)."""

    EXACT = "exact"
    """Compute with the kernel that the noise turns into the wanted one."""
    NONE = "none"
    """Compute with the wanted kernel; what acts is its convolution with the noise."""


class ClientWeights(Enum):
    BY_SIZE = "by-size"
    """Each client counts by its public number of records, so that the sum is the pooled objective."""
    EQUAL = "equal"
    """Algorithm 1 as printed."""


@dataclass(frozen=True)
class MmdFedAvgOptions:
    """MMD-fair FedAvg. `fairness` is lambda; the score follows from the criterion unless it is given."""

    local_rate: float = 0.1
    local_rate_factor: float = 1.0
    """By which the local step shrinks from round to round; the paper's real-data runs use 0.99."""
    server_rate: float = 1.0
    local_epochs: int = 1
    local_batch: int | None = None
    fairness: float = 1.0
    criterion: MmdCriterion = MmdCriterion.STATISTICAL_PARITY
    score: Score | None = None
    kernel: KernelKind = KernelKind.GAUSSIAN
    kernel_width: float = 0.5
    correction: NoiseCorrection = NoiseCorrection.EXACT
    weights: ClientWeights = ClientWeights.BY_SIZE
    positive_class: int = 1
    group_shares: tuple[float, ...] | None = None
    """Each cell's share of all records, if these are public: group 0's conditions, then group 1's."""
    least_share: float = 0.01
    """Paid (noisy) shares of groups are held above this before they are divided by."""

    def __post_init__(self) -> None:
        positive("local-rate", self.local_rate)
        rate("local-rate-factor", self.local_rate_factor)
        positive("server-rate", self.server_rate)
        count("local-epochs", self.local_epochs)
        if self.local_batch is not None:
            count("local-batch", self.local_batch)
        at_least_zero("fairness", self.fairness)
        positive("kernel-width", self.kernel_width)
        count("positive-class", self.positive_class, least=0)
        rate("least-share", self.least_share)

    @property
    def compared(self) -> Score:
        """The score in use."""
        if self.score is not None:
            return self.score
        return Score.MISS if self.criterion is MmdCriterion.RISK_PARITY else Score.PROBABILITY

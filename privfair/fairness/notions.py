"""Which fairness is meant and what is compared, as types; importable without torch."""

from __future__ import annotations

from enum import Enum


class FairnessNotion(Enum):
    """Which rates FPFL brings together across groups."""

    NONE = "none"
    """No rate at all: plain (private) federated learning."""
    FALSE_NEGATIVE_RATE = "false-negative-rate"
    ACCURACY = "accuracy"
    DEMOGRAPHIC_PARITY = "demographic-parity"
    EQUALISED_ODDS = "equalised-odds"


class RateValue(Enum):
    """What a rate counts; its gradient is always that of the probabilities, which have one."""

    PREDICTIONS = "predictions"
    """Predicted classes, as the gaps that are reported count them."""
    PROBABILITIES = "probabilities"
    """Predicted probabilities: then the update is the exact gradient of the augmented Lagrangian."""


class MmdCriterion(Enum):
    """Which laws of scores the MMD compares between the two groups."""

    STATISTICAL_PARITY = "statistical-parity"
    EQUAL_OPPORTUNITY = "equal-opportunity"
    EQUALISED_ODDS = "equalised-odds"
    RISK_PARITY = "risk-parity"


class Score(Enum):
    """The number S(h(x), y) that is compared."""

    PROBABILITY = "probability"
    """Of the positive class; in [0, 1]."""
    LOGIT = "logit"
    """Log-odds of the positive class (two classes); unbounded."""
    MISS = "miss"
    """1 - probability of the true class: a bounded risk, in [0, 1]."""
    LOG_LOSS = "log-loss"
    """Cross-entropy: an unbounded risk."""

    @property
    def bounded(self) -> bool:
        return self in (Score.PROBABILITY, Score.MISS)


class KernelKind(Enum):
    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    ENERGY = "energy"

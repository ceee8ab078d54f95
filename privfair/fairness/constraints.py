"""Group rates as sums over records: which records count, and the linear form of the class probabilities summed.

A *rate* j is the mean of <v_j(y), p(x)> over the records with a certain true class (or over all): v picks a
class, or the true one. The constraint of rate j and group a is |rate in a - rate overall| <= tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import torch
from torch import Tensor

from calibrate.errors import InvalidInput
from privfair.fairness.notions import FairnessNotion, RateValue


@dataclass(frozen=True)
class Rate:
    """P(prediction is `counted` | true class is `given`); `given` None: all records; `counted` None: the true class."""

    given: int | None
    counted: int | None
    complement: bool = False
    """Whether the probability of *not* predicting it is meant."""

    def members(self, y: Tensor) -> Tensor:
        """Which records the rate is taken over."""
        return torch.ones_like(y, dtype=torch.bool) if self.given is None else y == self.given

    def directions(self, y: Tensor, classes: int) -> Tensor:
        """v for each record: the rate sums <v, probabilities>, up to `offset`."""
        counted = y if self.counted is None else torch.full_like(y, self.counted)
        one_hot = torch.nn.functional.one_hot(counted, classes).to(torch.float64)
        return -one_hot if self.complement else one_hot

    @property
    def offset(self) -> float:
        return 1.0 if self.complement else 0.0


def rates_of(notion: FairnessNotion, classes: int, positive_class: int) -> tuple[Rate, ...]:
    """The rates that a notion compares. Of all classes' probabilities one follows from the others and is left out."""
    if not 0 <= positive_class < classes:
        raise InvalidInput(
            "positive-class", positive_class, f"must be below {classes}", "number a class from 0"
        )
    others = tuple(c for c in range(classes) if c != 0) if classes > 2 else (positive_class,)
    match notion:
        case FairnessNotion.NONE:
            return ()
        case FairnessNotion.FALSE_NEGATIVE_RATE:
            return (Rate(positive_class, positive_class, complement=True),)
        case FairnessNotion.ACCURACY:
            return (Rate(None, None),)
        case FairnessNotion.DEMOGRAPHIC_PARITY:
            return tuple(Rate(None, c) for c in others)
        case FairnessNotion.EQUALISED_ODDS:
            return tuple(Rate(given, c) for given in range(classes) for c in others)
        case _:
            assert_never(notion)


def predicted(probabilities: Tensor, value: RateValue) -> Tensor:
    """What a rate counts for each record: probabilities, or the predicted class with weight one."""
    match value:
        case RateValue.PROBABILITIES:
            return probabilities.to(torch.float64)
        case RateValue.PREDICTIONS:
            best = probabilities.argmax(dim=1)
            return torch.nn.functional.one_hot(best, probabilities.shape[1]).to(torch.float64)
        case _:
            assert_never(value)

"""The model a plan asks for: `model = "logistic"`, or a table [training.model] with a kind and its own keys."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any, assert_never

from calibrate.errors import InvalidInput
from calibrate.validation import count
from privfair.plan_section import read_section

if TYPE_CHECKING:
    import torch

    from privfair.models.model import Model


class ModelKind(Enum):
    LOGISTIC = "logistic"


@dataclass(frozen=True)
class ModelPlan:
    """Which model; its size follows from the data."""

    kind: ModelKind = ModelKind.LOGISTIC

    @property
    def linear(self) -> bool:
        return self.kind is ModelKind.LOGISTIC

    @property
    def dtype(self) -> torch.dtype:
        """Double precision for linear models, where it costs nothing; single precision for networks."""
        import torch

        return torch.float64 if self.linear else torch.float32


def read_model_plan(value: Any) -> ModelPlan:
    """The typed plan of a name or a table."""
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise InvalidInput("[training] model", value, "must be a name or a table", 'write model = "logistic"')
    return read_section(ModelPlan, "training.model", table)


def build_model(plan: ModelPlan, feature_shape: tuple[int, ...], classes: int) -> Model:
    """The model for records of this shape."""
    features = prod(count("feature shape", side) for side in feature_shape)
    match plan.kind:
        case ModelKind.LOGISTIC:
            from privfair.models.logistic import LogisticRegression

            if len(feature_shape) != 1:
                raise InvalidInput(
                    "[training] model",
                    plan.kind.value,
                    f"needs plain features, not {feature_shape}",
                    "use a network",
                )
            return LogisticRegression(features, classes)
        case _:
            assert_never(plan.kind)

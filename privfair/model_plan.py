"""The model a plan asks for: `model = "logistic"`, or a table [training.model] with a kind and its own keys.

::

    [training.model]
    kind = "perceptron"        # logistic | perceptron | cnn | module
    hidden = [64, 32]          # perceptron: sizes of the hidden layers
    activation = "relu"        # perceptron: relu | tanh
    # architecture = "compact" # cnn: compact | strided | fedavg | fedavg-unpadded
    # file = "net.py"          # module: a Python file beside the plan ...
    # function = "build"       # ... and the function in it that makes a torch.nn.Module
    # sha256 = "..."           # module: if given, the file must have this digest
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from calibrate.errors import InvalidInput
from privfair.models.kinds import Activation, CnnArchitecture
from privfair.plan_section import key_names, read_section, refuse_unknown
from privfair.user_function import UserFunction

if TYPE_CHECKING:
    import torch

    from privfair.models.model import Model


class ModelKind(Enum):
    LOGISTIC = "logistic"
    PERCEPTRON = "perceptron"
    CNN = "cnn"
    MODULE = "module"


_KEYS = {
    ModelKind.LOGISTIC: (),
    ModelKind.PERCEPTRON: ("hidden", "activation"),
    ModelKind.CNN: ("architecture",),
    ModelKind.MODULE: ("file", "function", "sha256"),
}


@dataclass(frozen=True)
class ModelPlan:
    """Which model; its size follows from the data."""

    kind: ModelKind = ModelKind.LOGISTIC
    hidden: tuple[int, ...] = (64,)
    activation: Activation = Activation.RELU
    architecture: CnnArchitecture = CnnArchitecture.COMPACT
    file: str | None = None
    function: str = "build"
    sha256: str | None = None
    folder: Path = Path()
    """Where the plan lies; not a key of the plan."""

    @property
    def dtype(self) -> torch.dtype:
        """Double precision for linear models, where it costs nothing; single precision for networks."""
        import torch

        return torch.float64 if self.kind is ModelKind.LOGISTIC else torch.float32

    def code(self) -> bytes | None:
        """The module's source, to be kept with the run; None for built-in models."""
        return None if self.kind is not ModelKind.MODULE else _code(self).source()


def read_model_plan(value: Any, folder: Path = Path()) -> ModelPlan:
    """The typed plan of a name or a table."""
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise InvalidInput("[training] model", value, "must be a name or a table", 'write model = "logistic"')
    refuse_unknown("training.model", table, (*(k for k in key_names(ModelPlan) if k != "folder"),))
    plan = read_section(ModelPlan, "training.model", table)
    for key in table:
        if key != "kind" and key.replace("-", "_") not in _KEYS[plan.kind]:
            known = ", ".join(_KEYS[plan.kind]) or "nothing more"
            raise InvalidInput(
                f"[training.model] {key}",
                table[key],
                f"has no meaning for {plan.kind.value}",
                f"it takes {known}",
            )
    if plan.kind is ModelKind.MODULE:
        _code(plan).require_beside("net.py")
    return replace(plan, folder=folder)


def build_model(plan: ModelPlan, feature_shape: tuple[int, ...], classes: int) -> Model:
    """The model for records of this shape."""
    match plan.kind:
        case ModelKind.LOGISTIC:
            from privfair.models.logistic import LogisticRegression

            return LogisticRegression(prod(feature_shape), classes)
        case ModelKind.PERCEPTRON:
            from privfair.models.perceptron import Perceptron

            return Perceptron(prod(feature_shape), plan.hidden, classes, plan.activation)
        case ModelKind.CNN:
            from privfair.models.convolutional import convolutional

            if len(feature_shape) != 3:
                raise InvalidInput(
                    "[training.model] kind",
                    "cnn",
                    f"needs images, not records of shape {feature_shape}",
                    "use another",
                )
            channels, height, width = feature_shape
            return convolutional(plan.architecture, (channels, height, width), classes)
        case ModelKind.MODULE:
            return _module(plan, feature_shape, classes)
        case _:
            assert_never(plan.kind)


def _module(plan: ModelPlan, feature_shape: tuple[int, ...], classes: int) -> Model:
    from privfair.models.record_isolation import made_up_records
    from privfair.models.torch_module import TorchModule

    model = TorchModule(_code(plan).load("name a function without arguments"), made_up_records(feature_shape))
    if model.classes != classes:
        raise InvalidInput(
            f"[training.model] {plan.function}",
            model.classes,
            f"must give one score for each of {classes} classes",
            "mend the module's last layer",
        )
    return model


def _code(plan: ModelPlan) -> UserFunction:
    return UserFunction("training.model", plan.folder, plan.file, plan.function, plan.sha256)

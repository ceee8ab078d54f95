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

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from calibrate.errors import InvalidInput
from privfair.models.kinds import Activation, CnnArchitecture
from privfair.plan_section import key_names, read_section, refuse_unknown

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
        return None if self.kind is not ModelKind.MODULE else _source(self)


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
        _require_beside(plan.file)
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

    model = TorchModule(_function(plan), made_up_records(feature_shape))
    if model.classes != classes:
        raise InvalidInput(
            f"[training.model] {plan.function}",
            model.classes,
            f"must give one score for each of {classes} classes",
            "mend the module's last layer",
        )
    return model


def _function(plan: ModelPlan) -> Callable[[], Any]:
    path = plan.folder / str(plan.file)
    _source(plan)
    name = f"privfair_module_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[], Any] | None = getattr(module, plan.function, None)
    if not callable(found):
        raise InvalidInput(
            "[training.model] function",
            plan.function,
            f"is not defined in {path}",
            "name a function without arguments",
        )
    return found


def _source(plan: ModelPlan) -> bytes:
    path = plan.folder / str(plan.file)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(
            "[training.model] file", str(path), f"cannot be read ({error.strerror})", "put it beside the plan"
        ) from error
    if plan.sha256 is not None and hashlib.sha256(content).hexdigest() != plan.sha256:
        raise InvalidInput(
            "[training.model] sha256",
            plan.sha256,
            f"is not the digest of {path}",
            "use the file that was signed",
        )
    return content


def _require_beside(file: str | None) -> None:
    if file is None or Path(file).name != file or not file.endswith(".py"):
        raise InvalidInput(
            "[training.model] file",
            file,
            "must be a .py file in the plan's own folder",
            'write file = "net.py"',
        )

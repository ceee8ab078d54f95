"""The [training.min-max] table: a min-max loss of one's own under a `gaussian` plan with two noise ratios.

::

    [training.min-max]
    file = "game.py"                     # beside the plan; defines loss(theta, w, x, y, s) of one record, in torch
    w-size = 4                           # length of w, which starts at zero
    theta-clip = 1.0                     # of each record's gradient in theta, and in w
    w-clip = 1.0
    w-step = 0.1
    w-radius = 1.0                       # w stays in this ball around zero
    momentum = 0.0
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from calibrate.errors import InvalidInput, count, positive
from privfair.models.model import Activation, CnnArchitecture
from privfair.plan.file import key_names, read_section, refuse_unknown

if TYPE_CHECKING:
    import torch

    from privfair.models.model import Model


# A function in the user's own Python file beside a plan: found, bound by its digest where one is given, loaded.


@dataclass(frozen=True)
class UserFunction:
    """`function` of `file`; `place` is the plan's table that names it, for messages."""

    place: str
    folder: Path
    file: str | None
    function: str
    sha256: str | None = None

    def require_beside(self, example: str) -> None:
        """Refuse a file elsewhere: the run folder keeps a copy beside its plan."""
        if self.file is None or Path(self.file).name != self.file or not self.file.endswith(".py"):
            raise InvalidInput(
                f"[{self.place}] file",
                self.file,
                "must be a .py file in the plan's own folder",
                f'write file = "{example}"',
            )

    def source(self) -> bytes:
        """The file's bytes, which must have the signed digest if the plan names one."""
        path = self.folder / str(self.file)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InvalidInput(
                f"[{self.place}] file", str(path), f"cannot be read ({error.strerror})", "put it beside the plan"
            ) from error
        if self.sha256 is not None and hashlib.sha256(content).hexdigest() != self.sha256:
            raise InvalidInput(
                f"[{self.place}] sha256", self.sha256, f"is not the digest of {path}", "use the file that was signed"
            )
        return content

    def load(self, remedy: str) -> Callable[..., Any]:
        """Run the file and take the function out of it."""
        path = self.folder / str(self.file)
        self.source()
        name = f"privfair_module_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found: Callable[..., Any] | None = getattr(module, self.function, None)
        if not callable(found):
            raise InvalidInput(f"[{self.place}] function", self.function, f"is not defined in {path}", remedy)
        return found


# The model a plan asks for: `model = "logistic"`, or a table [training.model] with a kind and its own keys.
#
# ::
#
#     [training.model]
#     kind = "perceptron"        # logistic | perceptron | cnn | module
#     hidden = [64, 32]          # perceptron: sizes of the hidden layers
#     activation = "relu"        # perceptron: relu | tanh
#     # architecture = "compact" # cnn: compact | strided | fedavg | fedavg-unpadded
#     # file = "net.py"          # module: a Python file beside the plan ...
#     # function = "build"       # ... and the function in it that makes a torch.nn.Module
#     # sha256 = "..."           # module: if given, the file must have this digest


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
                f"[training.model] {key}", table[key], f"has no meaning for {plan.kind.value}", f"it takes {known}"
            )
    if plan.kind is ModelKind.MODULE:
        _code(plan).require_beside("net.py")
    return replace(plan, folder=folder)


def build_model(plan: ModelPlan, feature_shape: tuple[int, ...], classes: int) -> Model:
    """The model for records of this shape."""
    match plan.kind:
        case ModelKind.LOGISTIC:
            from privfair.models.linear import LogisticRegression

            return LogisticRegression(prod(feature_shape), classes)
        case ModelKind.PERCEPTRON:
            from privfair.models.perceptron import Perceptron

            return Perceptron(prod(feature_shape), plan.hidden, classes, plan.activation)
        case ModelKind.CNN:
            from privfair.models.convolutional import convolutional

            if len(feature_shape) != 3:
                raise InvalidInput(
                    "[training.model] kind", "cnn", f"needs images, not records of shape {feature_shape}", "use another"
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
            "fix the module's last layer",
        )
    return model


def _code(plan: ModelPlan) -> UserFunction:
    return UserFunction("training.model", plan.folder, plan.file, plan.function, plan.sha256)


_PLACE = "training.min-max"


@dataclass(frozen=True)
class _Table:
    file: str
    w_size: int
    theta_clip: float
    w_clip: float
    function: str = "loss"
    sha256: str | None = None
    w_step: float = 0.1
    w_radius: float = 1.0
    momentum: float = 0.0

    def __post_init__(self) -> None:
        count(f"[{_PLACE}] w-size", self.w_size)
        for name in ("theta_clip", "w_clip", "w_step", "w_radius"):
            positive(f"[{_PLACE}] {name.replace('_', '-')}", getattr(self, name))
        if not 0 <= self.momentum < 1:
            raise InvalidInput(f"[{_PLACE}] momentum", self.momentum, "must lie in [0, 1)", "0 is plain descent")


@dataclass(frozen=True)
class MinMaxPlan:
    """The typed table, and where its code lies."""

    code: UserFunction
    table: _Table = field(repr=False)


def read_min_max_plan(value: Any, folder: Path = Path()) -> MinMaxPlan:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"[{_PLACE}]", value, "must be a table", f"write [{_PLACE}] with its keys")
    table = read_section(_Table, _PLACE, value)
    code = UserFunction(_PLACE, folder, table.file, table.function, table.sha256)
    code.require_beside("game.py")
    return MinMaxPlan(code, table)

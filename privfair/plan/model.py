"""The model a plan asks for: `model = "logistic"`, or a table [training.model] with a kind and its own keys.

::

    [training.model]
    kind = "perceptron"        # logistic | perceptron | cnn | trees | module | plugin
    hidden = [64, 32]          # perceptron: sizes of the hidden layers
    activation = "relu"        # perceptron: relu | tanh
    # architecture = "compact" # cnn: compact | strided | fedavg | fedavg-unpadded
    # trees = 240              # trees: how many, one per round; for fair-plugin with protect = "attribute"
    # leaves = 15              # trees: of each tree, at most
    # file = "net.py"          # module: a Python file next to the plan ...
    # function = "build"       # ... and the function in it that makes a torch.nn.Module
    # sha256 = "..."           # module: if given, the file must have this digest
    # name = "my-net"          # plugin: the entry point of another package in the group privfair.models
    # bits = 13                # perceptron, cnn, module, plugin: precision of products, 7 | 13 | "largest"
    # isolation = "exact"      # module, plugin: exact | alone (any layers, one record per pass, an assumption)

The table [training.min-max] has a min-max loss of the user instead, under a `gaussian` plan with two noise ratios::

    [training.min-max]
    file = "game.py"                     # next to the plan; defines loss(theta, w, x, y, s) of one record, in torch
    w-size = 4                           # length of w, which starts at zero
    theta-clip = 1.0                     # of each record's gradient in theta, and in w
    w-clip = 1.0
    w-step = 0.1
    w-radius = 1.0                       # w stays in this ball around zero
    momentum = 0.0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import prod
from pathlib import Path
from typing import Any, assert_never

import torch

from calibrate.errors import InvalidInput, PrivfairError, nearest
from calibrate.plugins import PluginGroup, Plugins
from privfair.models.alone_module import ISOLATION_ASSUMED, AloneModule
from privfair.models.exact import Bits
from privfair.models.fair_rule import DistilledRule, FairRule
from privfair.models.linear import LogisticRegression
from privfair.models.model import Activation, CnnArchitecture, Model
from privfair.models.perceptron import Perceptron
from privfair.models.scaled import ScaledModel
from privfair.models.torch_module import TorchModule, convolutional, made_up_records
from privfair.models.trees import BoostedTrees
from privfair.plan.own_code import UserFunction
from privfair.plan.sections import BelowOne, Checked, Count, Positive, key_names, read_section, refuse_unknown


class ModelKind(Enum):
    LOGISTIC = "logistic"
    PERCEPTRON = "perceptron"
    CNN = "cnn"
    TREES = "trees"
    MODULE = "module"
    PLUGIN = "plugin"


class Isolation(Enum):
    """Why what a record contributes depends on no other record."""

    EXACT = "exact"
    """By arithmetic: the module is converted, and products do not round."""
    ALONE = "alone"
    """By assumption: one record per pass, for modules that can't be converted."""


_KEYS = {
    ModelKind.LOGISTIC: (),
    ModelKind.PERCEPTRON: ("hidden", "activation", "bits"),
    ModelKind.CNN: ("architecture", "bits"),
    ModelKind.TREES: ("trees", "leaves"),
    ModelKind.MODULE: ("file", "function", "sha256", "bits", "isolation"),
    ModelKind.PLUGIN: ("name", "bits", "isolation"),
}

ModuleMaker = Callable[[tuple[int, ...], int], torch.nn.Module]
"""A model of another package: the module for records of this shape and this number of classes."""


def _read_maker(name: str, found: object) -> ModuleMaker | None:
    return found if callable(found) else None


MODEL_PLUGINS: Plugins[ModuleMaker] = Plugins(
    PluginGroup.MODELS, "a function of a record's shape and the number of classes", _read_maker, tuple
)
"""The models of other packages, asked for by kind = "plugin" and their name."""


@dataclass(frozen=True)
class RuleForm:
    """What decides the form of a fair rule (`FairRule`) next to its two models."""

    groups: int
    opportunity: bool
    positive: int
    pupil_trees: int = 0
    """Of the model that the rule is distilled into; 0 where the rule itself is released."""


@dataclass(frozen=True)
class ModelPlan:
    """Which model; its size follows from the data."""

    kind: ModelKind = ModelKind.LOGISTIC
    hidden: tuple[int, ...] = (64,)
    activation: Activation = Activation.RELU
    architecture: CnnArchitecture = CnnArchitecture.COMPACT
    trees: int = 240
    leaves: int = 15
    file: str | None = None
    function: str = "build"
    sha256: str | None = None
    name: str | None = None
    bits: Bits = Bits.THIRTEEN
    isolation: Isolation = Isolation.EXACT
    code: UserFunction | None = None
    """The module's source, to be kept with the run; None for built-in models. Not a key of the plan."""
    rule: RuleForm | None = None
    """The fair rule around the model, which fair-plugin releases. Not a key of the plan."""
    scaled: bool = False
    """Whether features are scaled before the model sees them. Not a key of the plan."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee assumes of the model."""
        return (ISOLATION_ASSUMED,) if self.isolation is Isolation.ALONE else ()

    @property
    def dtype(self) -> torch.dtype:
        """Double precision for linear models and trees, where it costs nothing; single precision for networks."""
        return torch.float64 if self.kind in (ModelKind.LOGISTIC, ModelKind.TREES) else torch.float32


def read_model_plan(value: Any, folder: Path = Path()) -> ModelPlan:
    """The typed plan of a name or a table."""
    table = {"kind": value} if isinstance(value, str) else value
    if not isinstance(table, dict):
        raise InvalidInput("[training] model", value, "must be a name or a table", 'write model = "logistic"')
    refuse_unknown(
        "training.model", table, [key for key in key_names(ModelPlan) if key not in ("code", "rule", "scaled")]
    )
    plan = read_section(ModelPlan, "training.model", table)
    for key in table:
        if key != "kind" and key.replace("-", "_") not in _KEYS[plan.kind]:
            known = ", ".join(_KEYS[plan.kind]) or "nothing more"
            raise InvalidInput(
                f"[training.model] {key}", table[key], f"has no meaning for {plan.kind.value}", f"it takes {known}"
            )
    if plan.isolation is Isolation.ALONE and "bits" in table:
        rule = 'has no meaning for isolation = "alone", which computes in float64'
        raise InvalidInput("[training.model] bits", table["bits"], rule, "drop it")
    if plan.kind is not ModelKind.MODULE:
        return plan
    code = UserFunction.read("training.model", folder, plan.file, plan.function, plan.sha256, "net.py")
    return replace(plan, code=code)


def build_model(plan: ModelPlan, feature_shape: tuple[int, ...], classes: int) -> Model:
    """The model for records of this shape."""
    model = _build_unscaled(plan, feature_shape, classes)
    if not plan.scaled:
        return model
    if len(feature_shape) != 1:
        raise InvalidInput("[privacy] scale-columns", feature_shape, "is for columns of a table", "drop it")
    return ScaledModel(model, feature_shape[0])


def _build_unscaled(plan: ModelPlan, feature_shape: tuple[int, ...], classes: int) -> Model:
    model = _build_plain(plan, feature_shape, classes)
    if plan.rule is None:
        return model
    groups = LogisticRegression(prod(feature_shape), plan.rule.groups)
    rule = FairRule(model, groups, plan.rule.opportunity, plan.rule.positive)
    if not plan.rule.pupil_trees:
        return rule
    return DistilledRule(BoostedTrees(prod(feature_shape), plan.rule.pupil_trees, plan.leaves), rule)


def _build_plain(plan: ModelPlan, feature_shape: tuple[int, ...], classes: int) -> Model:
    match plan.kind:
        case ModelKind.LOGISTIC:
            return LogisticRegression(prod(feature_shape), classes)
        case ModelKind.PERCEPTRON:
            return Perceptron(prod(feature_shape), plan.hidden, classes, plan.activation, plan.bits)
        case ModelKind.CNN:
            if len(feature_shape) != 3:
                raise InvalidInput(
                    "[training.model] kind", "cnn", f"needs images, not records of shape {feature_shape}", "use another"
                )
            channels, height, width = feature_shape
            return convolutional(plan.architecture, (channels, height, width), classes, plan.bits)
        case ModelKind.TREES:
            return _trees(plan, prod(feature_shape), classes)
        case ModelKind.MODULE:
            return _module(plan, feature_shape, classes)
        case ModelKind.PLUGIN:
            return _plugin_module(plan, feature_shape, classes)
        case _:
            assert_never(plan.kind)


def _trees(plan: ModelPlan, features: int, classes: int) -> Model:
    if plan.rule is None:
        rule, remedy = "are grown by fair-plugin alone", 'use algorithm = "fair-plugin", or another model'
        raise InvalidInput("[training.model] kind", "trees", rule, remedy)
    if classes != 2:
        raise InvalidInput("classes", classes, "must be 2 for trees", "use data with two classes")
    return BoostedTrees(features, plan.trees, plan.leaves)


def _module(plan: ModelPlan, feature_shape: tuple[int, ...], classes: int) -> Model:
    assert plan.code is not None
    function = plan.code.load("name a function without arguments")
    with plan.code.running("when its module is built and tried out"):
        model = _own_module(plan, function, feature_shape)
    if model.classes != classes:
        raise InvalidInput(
            f"[training.model] {plan.function}",
            model.classes,
            f"must give one score for each of {classes} classes",
            "fix the module's last layer",
        )
    return model


def _own_module(
    plan: ModelPlan, build: Callable[[], torch.nn.Module], feature_shape: tuple[int, ...]
) -> TorchModule | AloneModule:
    match plan.isolation:
        case Isolation.EXACT:
            return TorchModule(build, made_up_records(feature_shape), plan.bits)
        case Isolation.ALONE:
            return AloneModule(build, made_up_records(feature_shape))
        case _:
            assert_never(plan.isolation)


def _plugin_module(plan: ModelPlan, feature_shape: tuple[int, ...], classes: int) -> Model:
    name = plan.name or ""
    make, plugin = MODEL_PLUGINS.get(name), MODEL_PLUGINS.find(name)
    if make is None or plugin is None:
        remedy = nearest(name, MODEL_PLUGINS.names()) if MODEL_PLUGINS.names() else "install the package that brings it"
        raise InvalidInput("[training.model] name", name, "is not an installed model", remedy)
    try:
        model = _own_module(plan, lambda: make(feature_shape, classes), feature_shape)
    except PrivfairError:
        raise
    except Exception as error:
        raise plugin.broken(error) from error
    if model.classes != classes:
        raise plugin.broken(ValueError(f"it gives {model.classes} scores for {classes} classes"))
    return model


_PLACE = "training.min-max"


@dataclass(frozen=True)
class _Table(Checked):
    place = f"[{_PLACE}]"
    file: str
    w_size: Count
    theta_clip: Positive
    w_clip: Positive
    function: str = "loss"
    sha256: str | None = None
    w_step: Positive = 0.1
    w_radius: Positive = 1.0
    momentum: BelowOne = 0.0


@dataclass(frozen=True)
class MinMaxPlan:
    """The typed table, and where its code lies."""

    code: UserFunction
    table: _Table = field(repr=False)


def read_min_max_plan(value: Any, folder: Path = Path()) -> MinMaxPlan:
    """The user's own min-max loss, from its table in a plan; its file is relative to `folder`."""
    if not isinstance(value, Mapping):
        raise InvalidInput(f"[{_PLACE}]", value, "must be a table", f"write [{_PLACE}] with its keys")
    table = read_section(_Table, _PLACE, value)
    code = UserFunction.read(_PLACE, folder, table.file, table.function, table.sha256, "game.py")
    return MinMaxPlan(code, table)

"""Targets that torch computes: a module from memory or from a file, and the model of a run folder."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import nn

from audit.models.records import AuditedRecords, RecordTables
from audit.models.shadow_models import ShadowRecipe, phi_from_logits
from audit.models.stacked import StackedLogistic, StackedModule, StackedPerceptron, why_not_stackable
from audit.models.targets import OutputKind, numeric_inputs, phi_of_outputs
from audit.named import load_named
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from calibrate.manifest.trust import UNTRUSTED, FolderTrust
from privfair.data.encode import Standardisation, codes, encode_features
from privfair.data.infer import FileLayout
from privfair.data.schema import schema_from_json
from privfair.durable import require_bounded_archive
from privfair.plan.model import ModelKind, ModelPlan, build_model
from privfair.run.folder import RunFolder, load_theta
from privfair.run.public import read_folder_plan

# A torch module, from memory or from a file that the auditor trusts.

_WRAPPERS = {"opacus": ("_module", "module"), "torch.nn.parallel": ("module",), "torch._dynamo": ("_orig_mod",)}
"""Where wrappers of Opacus, of parallel training and of the compiler keep the model itself."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def plain_module(module: nn.Module) -> nn.Module:
    """The model itself: out of its wrappers, and without the hooks that Opacus leaves in its layers.

    Parameters are shared with the module that was given, which stays as it was.
    """
    for package, places in _WRAPPERS.items():
        for place in places:
            inner = getattr(module, place, None)
            if type(module).__module__.startswith(package) and isinstance(inner, nn.Module):
                return plain_module(inner)
    return _without_hooks(module) if any(_opacus_hooks(layer) for layer in module.modules()) else module


def _opacus_hooks(layer: nn.Module) -> list[tuple[str, int]]:
    hooks = ((kind, key, hook) for kind in _HOOKS for key, hook in getattr(layer, kind).items())
    return [(kind, key) for kind, key, hook in hooks if getattr(hook, "func", hook).__module__.startswith("opacus")]


def _without_hooks(module: nn.Module) -> nn.Module:
    plain = copy.copy(module)
    for kind in _HOOKS:
        gone = {key for found, key in _opacus_hooks(module) if found == kind}
        kept = ((key, hook) for key, hook in getattr(module, kind).items() if key not in gone)
        setattr(plain, kind, OrderedDict(kept))
    children = module._modules.items()
    plain._modules = {name: None if layer is None else _without_hooks(layer) for name, layer in children}
    return plain


_AT_ONCE = 4096


def outputs_of(module: nn.Module, x: torch.Tensor) -> list[Any]:
    """What the module answers in evaluation mode, some records at a time; it is put back into its mode afterwards."""
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            return [module(part) for part in torch.split(x, _AT_ONCE)]
    finally:
        module.train(training)


@final
@dataclass(frozen=True, eq=False)
class TorchTarget:
    """The module is put into evaluation mode for the questions, and back afterwards."""

    module: nn.Module
    source: str = "module"
    outputs: OutputKind = OutputKind.BY_LOOK
    class_names: tuple[str, ...] | None = None
    kind: ClassVar[str] = "torch"
    feature_names: ClassVar[tuple[str, ...] | None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "module", plain_module(self.module))

    def signal(self, records: AuditedRecords) -> Floats:
        first = next(self.module.parameters(), None)
        dtype = torch.float32 if first is None or not first.is_floating_point() else first.dtype
        x = torch.from_numpy(numeric_inputs(records, self.source)).to(dtype)
        try:
            parts = outputs_of(self.module, x)
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidInput(
                "model",
                self.source,
                f"does not take records of {x.shape[1]} numbers ({str(error).splitlines()[0]})",
                "give the columns it was trained on, in its order",
            ) from error
        if not all(isinstance(part, torch.Tensor) for part in parts):
            raise InvalidInput("model", self.source, "gave no tensor", "wrap it so that it returns scores")
        table = torch.cat(parts).double().numpy()
        return phi_of_outputs(np.asarray(table), records.labels, self.outputs, self.source)

    def shadow_recipe(self, records: AuditedRecords) -> ShadowRecipe:
        """Its own architecture; where that cannot be stacked, a net with its widest hidden size."""
        if why_not_stackable(self.module) is None:
            return StackedModule(self.module)
        widths = [layer.out_features for layer in self.module.modules() if isinstance(layer, nn.Linear)][:-1]
        return StackedPerceptron((max(16, min(256, max(widths, default=64))),))


# A file that holds parameters alone, and the auditor's own module to put them in.

_INSIDE = ("state_dict", "model_state_dict", "model")
"""Where checkpoints keep a model's parameters."""
_PREFIXES = ("_module.", "module.", "_orig_mod.")
"""What the wrappers of Opacus, of parallel training and of the compiler put before names."""


def module_with_parameters(architecture: str, path: Path) -> nn.Module:
    """The auditor's own module with the parameters in the file, which is read as numbers alone and runs nothing."""
    found = load_named(architecture)
    module = found() if callable(found) and not isinstance(found, nn.Module) else found
    if not isinstance(module, nn.Module):
        raise InvalidInput("--architecture", architecture, "does not make a torch module", "name a class or a function")
    try:
        require_bounded_archive(path, "--model")
        state = torch.load(path, weights_only=True, map_location="cpu")
    except (OSError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        rule = f"cannot be read as parameters alone ({str(error).splitlines()[0]})"
        raise InvalidInput("--model", str(path), rule, "save model.state_dict()") from error
    for name in _INSIDE:
        state = state.get(name, state) if isinstance(state, dict) else state
    if not isinstance(state, dict):
        raise InvalidInput("--model", str(path), "holds no state dict", "save model.state_dict()")
    for prefix in _PREFIXES:
        if state and all(str(name).startswith(prefix) for name in state):
            state = {str(name)[len(prefix) :]: value for name, value in state.items()}
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError) as error:
        rule = f"has other parameters than {architecture} ({' '.join(str(error).split())[:200]})"
        raise InvalidInput("--model", str(path), rule, "name the architecture it was trained with") from error
    return module


# The model of a run folder: its own encoding, its own architecture for the shadow models.


@final
@dataclass(frozen=True, eq=False)
class RunTarget:
    folder: RunFolder
    plan: ModelPlan
    kind: ClassVar[str] = "privfair run"
    feature_names: ClassVar[tuple[str, ...] | None] = None

    @classmethod
    def open(cls, path: Path, trusted: FolderTrust = UNTRUSTED) -> RunTarget:
        """The model of a run folder; `trusted` says whether code that it brings may run."""
        folder = RunFolder.existing(path)
        if not folder.model.exists():
            raise InvalidInput(
                "--model", str(path), "has no model yet", "let the training finish (privfair train --resume)"
            )
        return cls(folder, read_folder_plan(folder, trusted, model_only=True).plan.model)

    @property
    def source(self) -> str:
        return str(self.folder.path)

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.folder.read_json(self.folder.encoding)["class_names"])

    @property
    def layout(self) -> FileLayout:
        """How most of the run's files were written."""
        encoding = self.folder.read_json(self.folder.encoding)
        return FileLayout(encoding["delimiter"], encoding.get("decimal", "."))

    def encode(self, tables: RecordTables, unit: str | None = None) -> AuditedRecords:
        """The records as the run encoded its own; `unit` names the column that tells people apart."""
        encoding = self.folder.read_json(self.folder.encoding)
        if encoding["schema"] is None:
            raise InvalidInput("--model", self.source, "was trained on images, which come in no table", "use Python")
        schema = schema_from_json(encoding["schema"])
        features = np.concatenate([encode_features(table, schema) for table in tables.all])
        if encoding["standardisation"] is not None:
            fitted = {key: tuple(values) for key, values in encoding["standardisation"].items()}
            features = Standardisation(**fitted).apply(features)
        names = encoding["feature_names"]
        return AuditedRecords(
            features,
            np.concatenate([codes(table, schema.target) for table in tables.all]),
            self.class_names,
            tables.members.records,
            tables.nonmembers.records,
            {name: features[:, place] for place, name in enumerate(names)},
            units=tables.units(unit),
        )

    def signal(self, records: AuditedRecords) -> Floats:
        features = records.features
        model = build_model(self.plan, (features.shape[1],), len(records.class_names))
        with torch.no_grad():
            x = torch.from_numpy(features).to(self.plan.dtype)
            logits = model.logits(load_theta(self.folder, model), x).double().numpy()
        return phi_from_logits(logits, records.labels)

    def shadow_recipe(self, records: AuditedRecords) -> ShadowRecipe:
        if self.plan.kind is ModelKind.LOGISTIC:
            return StackedLogistic()
        return StackedPerceptron(self.plan.hidden if self.plan.kind is ModelKind.PERCEPTRON else (64,))

"""What every target can do: give its signal on records, and say which shadow models resemble it."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Protocol, final

import numpy as np
import torch
from torch import nn

from audit.membership.records import AuditedRecords, RecordTables, class_text
from audit.membership.shadow.stacked_linear import StackedLogistic
from audit.membership.shadow.stacked_module import StackedModule, why_not_stackable
from audit.membership.shadow.stacked_perceptron import StackedPerceptron
from audit.membership.shadow.train import ShadowRecipe, ShadowRecords
from audit.membership.signals import Signals, phi_from_logits, phi_from_probabilities
from audit.report.results import AttackName, ModelQuality
from calibrate.arrays import Booleans, Floats, Integers
from calibrate.errors import InvalidInput
from privfair.data.benchmark_files import Standardisation
from privfair.data.dataset import EVERYONE
from privfair.data.encode import codes, encode_features
from privfair.data.infer import FileLayout
from privfair.data.read import BadData
from privfair.data.schema import schema_from_json
from privfair.fairness.gaps import count_confusion
from privfair.fairness.measurement import Measurement
from privfair.plan.model import ModelKind, ModelPlan, build_model
from privfair.run.folder import RunFolder, load_theta
from privfair.run.metrics import area_under_curve
from privfair.run.trusted_plan import UNTRUSTED, FolderTrust, read_folder_plan


class OutputKind(Enum):
    """What a model's outputs are."""

    BY_LOOK = "by-look"
    """Probabilities if every row is at least 0 and adds up to 1, else logits."""
    PROBABILITIES = "probabilities"
    LOGITS = "logits"


class Target(Protocol):
    """A trained model under attack."""

    @property
    def kind(self) -> str: ...

    @property
    def source(self) -> str:
        """The file or folder, or a name."""
        ...

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """In the order of the outputs; None if the model does not say."""
        ...

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """The columns it takes, if it knows them by name."""
        ...

    def signal(self, records: AuditedRecords) -> Floats:
        """phi of every row."""
        ...

    def shadow_recipe(self, records: AuditedRecords) -> ShadowRecipe:
        """Models that resemble it, where nothing else is asked for."""
        ...


def quality_of(target: Target, records: AuditedRecords) -> ModelQuality:
    """What the model is worth on the non-members: its answer is the class whose signal is largest."""
    outside, names = slice(records.members, records.audited), records.class_names
    asked = (replace(records, labels=np.full_like(records.labels, number)) for number in range(len(names)))
    signals = np.stack([target.signal(one)[outside] for one in asked], axis=1)
    labels = records.labels[outside]
    counted = count_confusion(labels, signals.argmax(axis=1), np.zeros_like(labels), names, EVERYONE)
    overall = Measurement(counted, len(names) - 1).as_json()
    area = area_under_curve(torch.from_numpy(signals), torch.from_numpy(labels))
    return ModelQuality.of(overall | {"auc": area, "demographic_parity": None})


def numeric_inputs(records: AuditedRecords, source: str) -> Floats:
    """The columns in the files' order; text has no place in a model that takes numbers alone."""
    for name, values in records.columns.items():
        if values.dtype.kind not in "biuf":
            raise BadData(
                source,
                "takes numbers, and this column of the records holds text",
                "encode it as the model expects, or leave it out (--drop)",
                column=name,
            )
    return np.column_stack([values.astype(np.float64) for values in records.columns.values()])


def phi_of_outputs(outputs: Floats, labels: Integers, kind: OutputKind, source: str) -> Floats:
    """phi from a model's raw outputs; a single output column must be explained."""
    table = np.asarray(outputs, dtype=np.float64)
    table = table[:, np.newaxis] if table.ndim == 1 else table
    if table.ndim != 2 or len(table) != len(labels):
        raise InvalidInput(
            "model", source, f"gave outputs of shape {table.shape}, not one row per record", "check its output"
        )
    if not np.isfinite(table).all():
        raise InvalidInput("model", source, "gave outputs that are not finite", "check model and records")
    if table.shape[1] == 1:
        table = _two_columns(table[:, 0], kind, source)
    looks_like_probabilities = (table >= 0).all() and np.allclose(table.sum(axis=1), 1.0, atol=1e-3)
    if labels.max() >= table.shape[1]:
        raise InvalidInput(
            "model",
            source,
            f"has {table.shape[1]} outputs, and the records have a class number {int(labels.max())}",
            "name the classes in the model's order (--classes)",
        )
    if kind is OutputKind.PROBABILITIES or (kind is OutputKind.BY_LOOK and looks_like_probabilities):
        return phi_from_probabilities(table, labels)
    return phi_from_logits(table, labels)


def _two_columns(single: Floats, kind: OutputKind, source: str) -> Floats:
    match kind:
        case OutputKind.PROBABILITIES:
            return np.column_stack((1 - single, single))
        case OutputKind.LOGITS:
            return np.column_stack((np.zeros_like(single), single))
        case OutputKind.BY_LOOK:
            raise InvalidInput(
                "model",
                source,
                "has one output column, which may be a probability or a logit of the second class",
                "say which: --outputs probabilities or --outputs logits",
            )


# Scores that somebody else's attack gave each record, in a column of the two files.


class MemberEnd(Enum):
    """Which end of a score means "member"."""

    LARGER = "larger"
    SMALLER = "smaller"
    """For example a loss."""


@final
@dataclass(frozen=True)
class UserScore:
    """The score as it is; for the bound on epsilon it must have been made without knowing who is a member."""

    name: ClassVar[AttackName] = AttackName.SCORE
    least_models: ClassVar[int] = 0

    def scores(self, signals: Signals) -> Floats:
        return signals.target


def read_scores(tables: RecordTables, column: str, direction: MemberEnd = MemberEnd.LARGER) -> Floats:
    """One score per record, members first; larger means "member"."""
    values = np.concatenate([table.numbers(column) for table in (tables.members, tables.nonmembers)])
    return values if direction is MemberEnd.LARGER else -values


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
        training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                parts = [self.module(part) for part in torch.split(x, _AT_ONCE)]
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidInput(
                "model",
                self.source,
                f"does not take records of {x.shape[1]} numbers ({str(error).splitlines()[0]})",
                "give the columns it was trained on, in its order",
            ) from error
        finally:
            self.module.train(training)
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


# A fitted scikit-learn classifier with predict_proba, or a pipeline that ends in one.


# Shadow models of a scikit-learn estimator: the same estimator, unfitted, trained again and again.


@final
@dataclass(frozen=True, eq=False)
class ClonedEstimator:
    """A clone with the target's own settings is the best stand-in; it is trained one model at a time."""

    estimator: Any
    inputs: Any
    """What the estimator is given, one row for each of the records: an array, or a table with named columns."""
    kind: ClassVar[str] = "the target's own estimator"

    @property
    def training(self) -> str:
        return f"clones of {type(self.estimator).__name__} with its own settings"

    def signals(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> Floats:
        return np.stack([self._one(records, own, seed) for own, seed in zip(included, seeds, strict=True)])

    def _one(self, records: ShadowRecords, own: Booleans, seed: int) -> Floats:
        from sklearn.base import clone

        model = clone(self.estimator)
        seeded = {name: seed % 2**31 for name in model.get_params() if name.split("__")[-1] == "random_state"}
        model.set_params(**seeded)
        if len(np.unique(records.labels[own])) < 2:
            raise InvalidInput("records", int(own.sum()), "of a shadow model hold one class only", "give more records")
        rows = np.flatnonzero(own)
        mine = self.inputs.iloc[rows] if hasattr(self.inputs, "iloc") else self.inputs[rows]
        model.fit(mine, records.labels[own])
        table = np.zeros((len(records), records.classes))
        table[:, np.asarray(model.classes_, dtype=np.int64)] = model.predict_proba(self.inputs)
        return phi_from_probabilities(table, records.labels)


@final
@dataclass(frozen=True, eq=False)
class SklearnTarget:
    """If the estimator was fitted on named columns it gets them by name, text included; else all, as numbers."""

    estimator: Any
    source: str = "estimator"
    kind: ClassVar[str] = "scikit-learn"

    def __post_init__(self) -> None:
        if not hasattr(self.estimator, "predict_proba"):
            raise InvalidInput(
                "model",
                f"{self.source} ({type(self.estimator).__name__})",
                "has no predict_proba, so it gives no confidence",
                "wrap it in sklearn.calibration.CalibratedClassifierCV, or bring scores (--score)",
            )
        if not hasattr(self.estimator, "classes_"):
            raise InvalidInput("model", self.source, "is not fitted", "fit it before it is audited")

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(class_text(value) for value in np.asarray(self.estimator.classes_).tolist())

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        names = getattr(self.estimator, "feature_names_in_", None)
        return None if names is None else tuple(str(name) for name in names)

    def signal(self, records: AuditedRecords) -> Floats:
        try:
            table = np.asarray(self.estimator.predict_proba(self._inputs(records)), dtype=np.float64)
        except (ValueError, TypeError) as error:
            raise InvalidInput(
                "model",
                self.source,
                f"does not take these records ({str(error).splitlines()[0]})",
                "give the columns it was fitted on, no more (--drop) and no fewer",
            ) from error
        return phi_from_probabilities(table, records.labels)

    def shadow_recipe(self, records: AuditedRecords) -> ShadowRecipe:
        return ClonedEstimator(self.estimator, self._inputs(records))

    def _inputs(self, records: AuditedRecords) -> Any:
        names = self.feature_names
        if names is None:
            return numeric_inputs(records, self.source)
        import pandas as pd

        for name in names:
            if name not in records.columns:
                raise BadData(
                    self.source,
                    "was fitted on this column, and the records do not have it",
                    "add the column, or do not drop it",
                    column=name,
                )
        return pd.DataFrame({name: records.columns[name] for name in names})


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

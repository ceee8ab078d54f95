"""What every target can do: give its signal, name its shadow models; and how one is opened: scikit-learn, ONNX."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Protocol, final

import numpy as np
from numpy.typing import NDArray

from audit.models.records import AuditedRecords, RecordTables, class_text
from audit.models.shadow_models import ShadowRecipe, ShadowRecords, Signals, phi_from_logits, phi_from_probabilities
from audit.named import refuse_pickle, refuse_unknown_kind
from audit.report.results import AttackName, ModelQuality
from calibrate.arrays import Booleans, Floats, Integers
from calibrate.errors import InvalidInput
from calibrate.manifest.trust import UNTRUSTED, FolderTrust
from privfair.data.dataset import EVERYONE
from privfair.data.read import BadData
from privfair.fairness.measurement import Measurement, area_under_curve, count_confusion


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


def is_torch_module(model: Any) -> bool:
    """Told by its class's name, so that torch is loaded for torch's models only."""
    return any(one.__module__.startswith("torch.nn") for one in type(model).__mro__)


def quality_of(target: Target, records: AuditedRecords) -> ModelQuality:
    """What the model is worth on the non-members: its answer is the class whose signal is largest."""
    outside, names = slice(records.members, records.audited), records.class_names
    asked = (replace(records, labels=np.full_like(records.labels, number)) for number in range(len(names)))
    signals = np.stack([target.signal(one)[outside] for one in asked], axis=1)
    labels = records.labels[outside]
    counted = count_confusion(labels, signals.argmax(axis=1), np.zeros_like(labels), names, EVERYONE)
    overall = Measurement(counted, len(names) - 1).as_json()
    area = area_under_curve(signals, labels)
    return ModelQuality.of({**overall, "auc": area, "demographic_parity": None})


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


# Scores that someone else's attack gave each record, in a column of the two files.


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


# Shadow models of a scikit-learn estimator: the same estimator, unfitted, trained again and again.


def twin_forest(estimator: Any) -> Any | None:
    """The forest of regression trees that splits as a forest of two classes does, in two thirds of its time; or None.

    Gini's impurity of two classes is twice the variance of their numbers 0 and 1, so both prefer the same splits, and a
    leaf's mean is its share of the second class. scikit-learn checks the targets of a regression once, and those of a
    classification once per tree. Where rounding breaks a tie, single trees differ, as with another seed.
    """
    if not type(estimator).__module__.startswith("sklearn.ensemble"):
        return None
    from sklearn import ensemble

    twins = {
        ensemble.RandomForestClassifier: ensemble.RandomForestRegressor,
        ensemble.ExtraTreesClassifier: ensemble.ExtraTreesRegressor,
    }
    if type(estimator) not in twins:
        return None
    settings = estimator.get_params(deep=False)
    split_alike = settings.pop("criterion") == "gini" and settings.pop("class_weight") is None
    in_other_units = ("min_impurity_decrease", "ccp_alpha", "monotonic_cst", "oob_score", "warm_start")
    if not split_alike or any(settings[name] for name in in_other_units):
        return None
    return twins[type(estimator)](**settings)


def fitted_clone(estimator: Any, inputs: Any, labels: NDArray[Any], own: Booleans, seed: int) -> Any:
    """The same estimator, unfitted, trained on its own records with its own seed; inputs are an array or a table."""
    from sklearn.base import clone

    model = clone(estimator)
    model.set_params(**{name: seed % 2**31 for name in model.get_params() if name.split("__")[-1] == "random_state"})
    rows = np.flatnonzero(own)
    return model.fit(inputs.iloc[rows] if hasattr(inputs, "iloc") else inputs[rows], labels[rows])


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
        grown = "" if twin_forest(self.estimator) is None else ", for two classes grown as regressions that split alike"
        return f"clones of {type(self.estimator).__name__} with its own settings{grown}"

    def signals(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> Floats:
        return np.stack([self._one(records, own, seed) for own, seed in zip(included, seeds, strict=True)])

    def _one(self, records: ShadowRecords, own: Booleans, seed: int) -> Floats:
        if len(np.unique(records.labels[own])) < 2:
            raise InvalidInput("records", int(own.sum()), "of a shadow model hold one class only", "give more records")
        twin = twin_forest(self.estimator) if records.classes == 2 else None
        model = fitted_clone(self.estimator if twin is None else twin, self.inputs, records.labels, own, seed)
        table = np.zeros((len(records), records.classes))
        if twin is not None:
            table[:, 1] = model.predict(self.inputs)
            table[:, 0] = 1 - table[:, 1]
        else:
            table[:, np.asarray(model.classes_, dtype=np.int64)] = model.predict_proba(self.inputs)
        return phi_from_probabilities(table, records.labels)


# A fitted scikit-learn classifier with predict_proba, or a pipeline that ends in one.


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


# From a path to a target: by what the file is (ONNX runs here), never running its code without being told to.

# An ONNX file, run by onnxruntime: scores or probabilities, or scikit-learn's pair of labels and probabilities.

_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64}


@final
@dataclass(frozen=True, eq=False)
class OnnxTarget:
    """One input of shape (records, features); among the outputs the first with one number per class."""

    session: Any
    source: str
    outputs: OutputKind = OutputKind.BY_LOOK
    kind: ClassVar[str] = "onnx"
    class_names: ClassVar[tuple[str, ...] | None] = None
    feature_names: ClassVar[tuple[str, ...] | None] = None

    @classmethod
    def open(cls, path: Path, outputs: OutputKind = OutputKind.BY_LOOK) -> OnnxTarget:
        try:
            import onnxruntime
        except ImportError as error:
            raise InvalidInput(
                "--model",
                str(path),
                "is an ONNX file, and onnxruntime is not installed",
                "pip install 'privfair[onnx]'",
            ) from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        try:
            session = onnxruntime.InferenceSession(str(path), sess_options=options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's own errors share no public base class
            first = str(error).splitlines()[0]
            raise InvalidInput("--model", str(path), f"is not an ONNX model ({first})", "export it again") from None
        return cls(session, str(path), outputs)

    def signal(self, records: AuditedRecords) -> Floats:
        inputs = self.session.get_inputs()
        if len(inputs) != 1 or inputs[0].type not in _TYPES:
            kinds = ", ".join(f"{one.name}: {one.type}" for one in inputs)
            raise InvalidInput(
                "model",
                self.source,
                f"must have one input of floating-point numbers, and has {kinds}",
                "export it with a single input (records, features)",
            )
        x = numeric_inputs(records, self.source).astype(_TYPES[inputs[0].type])
        try:
            answers = self.session.run(None, {inputs[0].name: x})
        except Exception as error:  # as above
            raise InvalidInput(
                "model",
                self.source,
                f"does not take {x.shape[1]} features ({str(error).splitlines()[0][:200]})",
                "give the columns it was trained on, in its order",
            ) from None
        table = self._scores(answers, records.class_names)
        return phi_of_outputs(table, records.labels, self.outputs, self.source)

    def shadow_recipe(self, records: AuditedRecords) -> ShadowRecipe:
        from audit.models.stacked import StackedPerceptron

        return StackedPerceptron()

    def _scores(self, answers: list[Any], classes: tuple[str, ...]) -> Floats:
        for answer in answers:
            if isinstance(answer, list) and answer and isinstance(answer[0], dict):
                return self._by_class(answer, classes)
            if isinstance(answer, np.ndarray) and answer.dtype.kind == "f":
                return answer.astype(np.float64)
        raise InvalidInput("model", self.source, "has no output with scores", "export it with its probabilities")

    def _by_class(self, rows: list[dict[Any, float]], classes: tuple[str, ...]) -> Floats:
        """skl2onnx's dictionaries from class to probability."""
        named = [{class_text(name): value for name, value in row.items()} for row in rows]
        if set(named[0]) != set(classes):
            raise InvalidInput(
                "--classes",
                ",".join(classes),
                f"are not the classes of {self.source} ({','.join(sorted(named[0]))})",
                "name these, in any order",
            )
        return np.array([[row[name] for name in classes] for row in named])


class PickleTrust(Enum):
    """A pickle can run any code when it is opened; joblib and torch files are pickles too."""

    REFUSED = "refused"
    TRUSTED = "trusted"


def open_target(
    path: Path,
    trust: PickleTrust = PickleTrust.REFUSED,
    outputs: OutputKind = OutputKind.BY_LOOK,
    folder: FolderTrust = UNTRUSTED,
    architecture: str | None = None,
) -> Target:
    """A run folder (as far as `folder` trusts it), an .onnx file, or a trusted pickle of an estimator or module.

    architecture: module:name of what makes the module, for a file that holds its parameters alone.
    """
    if path.is_dir() or architecture is not None:
        from audit.models.torch_targets import RunTarget, TorchTarget, module_with_parameters

        if architecture is None or path.is_dir():
            return RunTarget.open(path, folder)
        return TorchTarget(module_with_parameters(architecture, path), str(path), outputs)
    refuse_unknown_kind(path)
    suffix = path.suffix.lower()
    if not path.is_file():
        raise InvalidInput("--model", str(path), "does not exist or is not a file", "check the path")
    if suffix == ".onnx":
        return OnnxTarget.open(path, outputs)
    if trust is PickleTrust.REFUSED:
        refuse_pickle(path)
    return _target_of(_unpickle(path, suffix), path, outputs)


def _unpickle(path: Path, suffix: str) -> Any:
    try:
        if suffix in (".pt", ".pth"):
            import torch

            return torch.load(path, weights_only=False, map_location="cpu")
        if suffix == ".joblib":
            import joblib

            return joblib.load(path)
        with path.open("rb") as file:
            return pickle.load(file)
    except ImportError as error:
        raise InvalidInput(
            "--model", str(path), f"needs a package that is not installed ({error})", "install it"
        ) from error
    except Exception as error:  # a pickle may raise anything
        raise InvalidInput(
            "--model", str(path), f"cannot be opened ({type(error).__name__}: {error})", "save it again"
        ) from error


def _target_of(found: Any, path: Path, outputs: OutputKind) -> Target:
    if is_torch_module(found):
        from audit.models.torch_targets import TorchTarget

        return TorchTarget(found, str(path), outputs)
    if isinstance(found, dict):
        raise InvalidInput(
            "--model",
            str(path),
            "holds parameters without a model (a state dict)",
            "name what makes the model (--architecture module:Class), or save the whole module",
        )
    return SklearnTarget(found, str(path))

"""Models in memory, of anybody's making: `pf.audit_model`, and the signal that every audit of such a model uses.

What a model says of a record is taken from the first of these that it offers: `loss(record)`; `predict_proba` with
`classes_`; a torch module's outputs, or their `logits`, as Hugging Face's classifiers name them; `predict` of a
quantity; or the model is itself a function of the features.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from audit.bounds import CurveFamily
from audit.coins.training_canaries import ArrayData, TableData, training_data
from audit.models.epsilon_bound import ClaimOnTrial
from audit.models.exposure import grouping_column
from audit.models.membership_audit import MembershipOptions, Progress
from audit.models.membership_audit import audit_model as audit_target
from audit.models.records import AuditedRecords, class_text
from audit.models.shadow_models import ShadowRecipe, ShadowRecords, phi_from_probabilities
from audit.models.targets import ClonedEstimator, OutputKind, fitted_clone, is_torch_module, phi_of_outputs
from audit.report.results import Assignment, AuditReport
from audit.settings import BY_CLASS, BY_CORRECTNESS, CONFIDENCE, ExposureOptions
from calibrate.arrays import Booleans, Floats, Integers
from calibrate.errors import InvalidInput
from calibrate.manifest.trust import TrustFile
from calibrate.manifest.verify import authenticate, read_unverified
from calibrate.privacy_unit import Relation

_MOST_CATEGORIES = 100


def signal_of_model(model: Any, data: TableData | ArrayData, outputs: OutputKind = OutputKind.BY_LOOK) -> Floats:
    """One number per record, larger the more the model looks as if it knew the record."""
    if hasattr(model, "loss") and callable(model.loss):
        return -np.array([float(model.loss(record)) for record in _records(data)])
    source, features = type(model).__name__, _features(model, data)
    if hasattr(model, "predict_proba"):
        classes = tuple(class_text(value) for value in np.asarray(model.classes_).tolist())
        table = np.asarray(model.predict_proba(features), dtype=np.float64)
        return phi_from_probabilities(table, class_numbers(data.labels, classes))
    if is_torch_module(model):
        return _of_outputs(_torch_outputs(model, features), data.labels, outputs, source)
    if hasattr(model, "predict"):
        return _of_quantities(np.asarray(model.predict(features), dtype=np.float64), data.labels)
    if callable(model):
        return _of_outputs(np.asarray(model(features), dtype=np.float64), data.labels, outputs, source)
    raise InvalidInput(
        "model", source, "has neither loss, predict_proba nor predict, and is not a function", "wrap it in one"
    )


def class_numbers(labels: NDArray[Any], classes: tuple[str, ...]) -> Integers:
    """The place of each label among the model's classes."""
    places = {name: place for place, name in enumerate(classes)}
    names = [class_text(value) for value in labels.tolist()]
    if not set(names) <= set(places):
        raise InvalidInput(
            "labels",
            "other values",
            f"must be classes of the model ({', '.join(classes[:10])})",
            "check the label column",
        )
    return np.array([places[name] for name in names], dtype=np.int64)


def _of_outputs(table: Floats, labels: NDArray[Any], outputs: OutputKind, source: str) -> Floats:
    """Scores of classes, or one column of predicted quantities where the labels are quantities."""
    single = table.ndim == 1 or table.shape[1] == 1
    if single and labels.dtype.kind == "f" and not np.isin(labels, (0.0, 1.0)).all():
        return _of_quantities(table, labels)
    if labels.dtype.kind not in "biuf" or not np.equal(np.mod(labels.astype(np.float64), 1), 0).all():
        raise InvalidInput(
            "labels", "not whole numbers", "must be the numbers of the model's outputs", "number them from 0"
        )
    return phi_of_outputs(table, labels.astype(np.int64), outputs, source)


def _of_quantities(predicted: Floats, labels: NDArray[Any]) -> Floats:
    """Minus the squared error."""
    return np.asarray(-((predicted.reshape(len(labels)) - labels.astype(np.float64)) ** 2))


def _torch_outputs(model: Any, features: Any) -> Floats:
    import torch

    from audit.models.torch_targets import outputs_of, plain_module

    module = plain_module(model)
    first = next(module.parameters(), None)
    x = torch.as_tensor(np.asarray(features))
    layers = (layer for layer in module.modules() if any(True for _ in layer.parameters(recurse=False)))
    if not isinstance(next(layers, None), torch.nn.Embedding):  # which takes the numbers of words
        x = x.to(torch.float32 if first is None else first.dtype) if x.is_floating_point() or x.ndim == 2 else x
    return torch.cat([getattr(part, "logits", part) for part in outputs_of(module, x)]).double().numpy()


def _features(model: Any, data: TableData | ArrayData) -> Any:
    """What the model is given: its own columns by name if it knows them, else all but label and unit."""
    if isinstance(data, ArrayData):
        return data.x
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        names = [name for name in data.frame.columns if name not in (data.label, data.unit)]
    table = data.frame[list(names)]
    return table.to_numpy(np.float64) if is_torch_module(model) else table


def _records(data: TableData | ArrayData) -> list[Any]:
    """Rows of a table as dictionaries, or pairs (features, label)."""
    if isinstance(data, ArrayData):
        return list(zip(data.x, data.y, strict=True))
    return [dict(zip(data.frame.columns, row, strict=True)) for row in data.frame.itertuples(index=False)]


# Shadow models of a regressor: clones, trained again and again.


@final
@dataclass(frozen=True, eq=False)
class ClonedRegressor:
    estimator: Any
    inputs: Any
    labels: Floats
    kind: ClassVar[str] = "the target's own estimator"

    @property
    def training(self) -> str:
        return f"clones of {type(self.estimator).__name__} with its own settings"

    def signals(self, records: ShadowRecords, included: Booleans, seeds: tuple[int, ...]) -> Floats:
        models = (
            fitted_clone(self.estimator, self.inputs, self.labels, *each) for each in zip(included, seeds, strict=True)
        )
        predicted = (np.asarray(model.predict(self.inputs), dtype=np.float64) for model in models)
        return np.stack([_of_quantities(each, self.labels) for each in predicted])


@final
@dataclass(frozen=True, eq=False)
class InMemoryTarget:
    """A model with the records it is asked about, in the order of the audited ones."""

    model: Any
    data: TableData | ArrayData
    outputs: OutputKind = OutputKind.BY_LOOK
    kind: ClassVar[str] = "in memory"
    class_names: ClassVar[tuple[str, ...] | None] = None
    feature_names: ClassVar[tuple[str, ...] | None] = None

    @property
    def source(self) -> str:
        return type(self.model).__name__

    def signal(self, records: AuditedRecords) -> Floats:
        return signal_of_model(self.model, self.data, self.outputs)

    @property
    def is_classifier(self) -> bool:
        """Whether shadow classifiers can stand in for it."""
        labels = self.data.labels
        return not hasattr(self.model, "loss") and (labels.dtype.kind != "f" or bool(np.isin(labels, (0.0, 1.0)).all()))

    def shadow_recipe(self, records: AuditedRecords) -> ShadowRecipe:
        """Clones of an estimator; else a small net, where the model tells classes apart."""
        features = _features(self.model, self.data)
        if hasattr(self.model, "get_params") and hasattr(self.model, "predict_proba"):
            return ClonedEstimator(self.model, features)
        if hasattr(self.model, "get_params") and hasattr(self.model, "fit"):
            return ClonedRegressor(self.model, features, self.data.labels.astype(np.float64))
        from audit.models.stacked import StackedPerceptron

        return StackedPerceptron()

    @property
    def has_shadow_models(self) -> bool:
        return self.is_classifier or (hasattr(self.model, "get_params") and hasattr(self.model, "fit"))


def audit_model(
    model: Any,
    members: object,
    nonmembers: object,
    *,
    population: object = None,
    label: str | None = None,
    unit: str | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    relation: Relation | str = Relation.ADD_REMOVE,
    assignment: Assignment | str = Assignment.EXCHANGEABLE,
    shadow_models: int | None = None,
    outputs: OutputKind | str = OutputKind.BY_LOOK,
    family: CurveFamily | str | None = None,
    manifest: str | PathLike[str] | None = None,
    trust: TrustFile | None = None,
    by: tuple[str, ...] = (),
    exposed: int = 0,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Who was in the training data of a model in memory? Attacks, a bound on epsilon, a verdict.

    model: anything with `loss(record)`, `predict_proba` or `predict`, a torch module, or a function of the features
        that gives one row of class scores per record. A record is a dictionary (of a table), or (features, label).
    members, nonmembers: pandas tables, or pairs (features, labels); nonmembers come from the same source.
    population: other records; shadow models are trained on these alone.
    label: the tables' column with the class or the quantity.
    unit: the tables' column that tells people apart; one coin per person.
    epsilon, delta: the claim tested; without epsilon the verdict is leaks or no-leak-found.
    relation: how neighbouring data sets of the claim differ: add-remove or replace-one.
    assignment: how members were chosen: exchangeable (a random part) or coins (a fair coin each).
    shadow_models: how many to compare with; None: 64 where the model can be imitated, else 0.
    outputs: what a single column of outputs is: probabilities or logits.
    family: epsilon-delta assumes nothing; gaussian reads the bound as that of one Gaussian release and proves more; by
        default what the manifest signs.
    manifest: the signed budget whose promise is tested, with its own trade-off curve, instead of epsilon.
    trust: whose signatures count; None: the manifest is read as it is.
    by: groups to compare, under `membership.exposure`: class, correctness, or columns of the tables.
    exposed: how many of the most exposed records to list, with intervals that hold together (16 shadow models or more).
    confidence, seed: of all bounds and intervals; of pairs and shadow models.
    executor, progress: any concurrent.futures.Executor for shadow models; called with models done and all.

    Guarantee: docs/theorems/audit-bounds.md#membership, as for `privfair audit --model`.
    """
    given = [members, nonmembers, *(() if population is None else (population,))]
    parts = [training_data(one, label, unit) for one in given]
    everyone = parts[0]
    for part in parts[1:]:
        everyone = everyone.joined(part)
    target = InMemoryTarget(model, everyone, OutputKind(outputs))
    records = _audited(target, everyone, len(parts[0]), len(parts[1]), unit, tuple(by))
    wanted = (64 if target.has_shadow_models else 0) if shadow_models is None else shadow_models
    if wanted and not target.has_shadow_models:
        raise InvalidInput("shadow models", wanted, "cannot imitate a model known by its loss alone", "ask for 0")
    options = MembershipOptions(
        wanted,
        None,
        Assignment(assignment),
        confidence,
        seed,
        delta,
        family=None if family is None else CurveFamily(family),
        exposure=ExposureOptions(tuple(by), exposed),
    )
    claim = None if epsilon is None else ClaimOnTrial.said(epsilon, delta, Relation(relation))
    if manifest is not None:
        if epsilon is not None:
            raise InvalidInput("epsilon", epsilon, "is given beside a manifest", "give one: one promise is on trial")
        envelope = Path(manifest).read_bytes()
        read = read_unverified(envelope) if trust is None else authenticate(envelope, trust, for_reading=True)
        claim = ClaimOnTrial.of_manifest(read.document)
    return audit_target(target, records, options, claim, executor, progress)


def _audited(
    target: InMemoryTarget,
    data: TableData | ArrayData,
    members: int,
    nonmembers: int,
    unit: str | None,
    by: tuple[str, ...],
) -> AuditedRecords:
    """Features as numbers for shadow models and for the rule that never sees the model."""
    labels, names = np.zeros(len(data), dtype=np.int64), tuple("01")
    features = _numbers(data)
    if target.is_classifier:
        known = getattr(target.model, "classes_", None)
        values = np.unique(data.labels) if known is None else np.asarray(known)
        names = tuple(class_text(value) for value in values.tolist())
        if known is None and data.labels.dtype.kind in "biuf":
            names = tuple(str(number) for number in range(max(2, int(data.labels.max()) + 1)))
        labels = class_numbers(data.labels, names)
    else:
        quantity = data.labels.astype(np.float64) if data.labels.dtype.kind in "biuf" else np.zeros(len(data))
        features = np.column_stack((features, quantity))
    if not target.is_classifier and {BY_CLASS, BY_CORRECTNESS} & set(by):
        raise InvalidInput("by", ", ".join(by), "needs a model that tells classes apart", "name columns of the tables")
    table = data.frame if isinstance(data, TableData) else {}
    named = {name: grouping_column(name, np.asarray(table[name])) for name in by if name in table}
    units = None if unit is None else data.units(unit)
    columns = {str(place): features[:, place] for place in range(features.shape[1])}
    return AuditedRecords(features, labels, names, members, nonmembers, columns, units=units, groupings=named)


def _numbers(data: TableData | ArrayData) -> Floats:
    if isinstance(data, ArrayData):
        if data.x.dtype.kind not in "biuf":
            return np.zeros((len(data), 1))
        return data.x.reshape(len(data), -1).astype(np.float64)
    columns: list[Floats] = []
    for name in data.frame.columns:
        values = np.asarray(data.frame[name])
        if name in (data.label, data.unit):
            continue
        if values.dtype.kind in "biuf":
            numbers = values.astype(np.float64)
            columns.append(((numbers - numbers.mean()) / max(float(numbers.std()), 1e-12))[:, np.newaxis])
        else:
            distinct, codes = np.unique(values.astype(np.str_), return_inverse=True)
            if len(distinct) <= _MOST_CATEGORIES:
                columns.append(np.eye(len(distinct))[codes.reshape(-1)])
    return np.hstack(columns) if columns else np.zeros((len(data), 1))

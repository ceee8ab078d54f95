"""Models under attribute inference: a run, or any model of the membership audit with two files of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor, nn
from torch.nn import functional

from audit.models.attribute_attacks import (
    Attribute,
    AttributeRecords,
    AttributeTarget,
    Codes,
    SensitiveInput,
    WhiteBoxTarget,
)
from audit.models.attribute_audit import AttributeOptions, attribute_inference
from audit.models.records import AuditedRecords, RecordTables, class_text
from audit.models.targets import Target as MembershipTarget
from audit.models.torch_targets import RunTarget, TorchTarget
from audit.report.results import AttributeInference
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from calibrate.manifest.trust import UNTRUSTED, FolderTrust
from privfair.data.dataset import Silos
from privfair.data.read import BadData
from privfair.data.training_data import TrainingData, load_training_data
from privfair.models.model import Model, mean_over
from privfair.plan.model import build_model
from privfair.run.folder import RunFolder, load_theta
from privfair.run.public import read_folder_plan

_CHUNK = 16_384


@final
@dataclass(frozen=True, eq=False)
class RunModel:
    """The model of a run with its parameters."""

    model: Model
    theta: Tensor
    dtype: torch.dtype

    def probabilities(self, features: Floats) -> Floats:
        with torch.no_grad():
            found = self.model.probabilities(self.theta, self._tensor(features))
        return found.double().numpy()

    def signals(self, features: Floats, labels: Codes) -> Floats:
        """Scores, loss and gradient norm of every record."""
        x, y = self._tensor(features), torch.from_numpy(np.asarray(labels))
        with torch.no_grad():
            scores = self.model.logits(self.theta, x).double()
        weighed = self.model.weighted_gradient(self.theta, x, y, mean_over(max(1, len(y))))
        columns = (scores, weighed.losses.double()[:, None], weighed.norms.double()[:, None])
        return torch.cat(columns, dim=1).detach().numpy()

    def _tensor(self, features: Floats) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(features)).to(self.dtype)


@final
class ModuleWeights:
    """A torch module that ends in a linear layer: scores, and what that last layer is fed.

    The gradient of a record's loss in the last layer is (probabilities - label) x (activations, 1), so its norm is
    the product of the two norms and needs no back-propagation.
    """

    def __init__(self, module: nn.Module) -> None:
        linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
        if not linear:
            raise InvalidInput(
                "module",
                type(module).__name__,
                "must have a linear layer for the white-box attack",
                "attack its outputs instead",
            )
        self._module = module.eval()
        self._last = linear[-1]

    def probabilities(self, features: Floats) -> Floats:
        return np.concatenate([functional.softmax(scores, dim=1) for scores, _ in self._passes(features)])

    def signals(self, features: Floats, labels: Codes) -> Floats:
        """Activations before the last layer, scores, loss, and the last layer's gradient norm."""
        parts = []
        for place, (scores, fed) in enumerate(self._passes(features)):
            y = torch.from_numpy(np.asarray(labels[place * _CHUNK : place * _CHUNK + len(scores)]))
            loss = functional.cross_entropy(scores, y, reduction="none")[:, None]
            off = functional.softmax(scores, dim=1) - functional.one_hot(y, scores.shape[1])
            # |off x (fed, 1)| = |off| sqrt(|fed|^2 + 1).
            norm = off.norm(dim=1, keepdim=True) * (1 + fed.square().sum(dim=1, keepdim=True)).sqrt()
            parts.append(torch.cat([fed, scores, loss, norm], dim=1))
        return torch.cat(parts).numpy()

    def _passes(self, features: Floats) -> list[tuple[Tensor, Tensor]]:
        """Scores and activations, a part of the records at a time."""
        seen: list[Tensor] = []

        def note(layer: nn.Module, given: tuple[Any, ...], scores: Any) -> None:
            seen.append(given[0].detach())

        example = next(self._module.parameters())
        found = []
        hook = self._last.register_forward_hook(note)
        try:
            with torch.no_grad():
                for part in torch.split(torch.from_numpy(np.ascontiguousarray(features)), _CHUNK):
                    seen.clear()
                    scores = self._module(part.to(example.dtype))
                    found.append((scores.double(), seen[-1].double().flatten(1)))
        finally:
            hook.remove()
        return found


# Attribute inference on a model with two files of records: members and non-members.


MOST_VALUES = 30
Columns = Mapping[str, NDArray[Any]]


def attribute_inference_of_model(
    target: MembershipTarget, tables: RecordTables, records: AuditedRecords, column: str, options: AttributeOptions
) -> AttributeInference:
    """Attack what the model says about `column` of its members.

    A column among the model's inputs is tried out value by value. One that was left out (--drop), or is not a feature
    of the run, can only be read off the answers.
    """
    values, codes = _values(tables, column)
    if isinstance(target, RunTarget):
        return _attack(run_model(target, records), Attribute(column, values), records, records.features, codes, options)
    inputs = InputTable.of(records.columns)
    attribute = Attribute(column, values, inputs.spelling(column, values))
    table = inputs.encode(records.columns)
    return _attack(_with_weights(target, records, inputs), attribute, records, table, codes, options)


def _attack(
    target: AttributeTarget,
    attribute: Attribute,
    records: AuditedRecords,
    table: Floats,
    codes: Codes,
    options: AttributeOptions,
) -> AttributeInference:
    audited = AttributeRecords(table[: records.audited], records.labels[: records.audited], codes)
    coins = records.coins()
    rows = coins.first_rows
    members, others = audited.rows(rows[coins.is_member]), audited.rows(rows[~coins.is_member])
    return attribute_inference(target, attribute, members, others, options)


def _values(tables: RecordTables, column: str) -> tuple[tuple[str, ...], Codes]:
    """The attribute's values over both files, and every record's."""
    texts = np.concatenate(
        [
            np.array([class_text(_number_or_text(cell)) for cell in table.column(column).tolist()])
            for table in (tables.members, tables.nonmembers)
        ]
    )
    distinct, codes = np.unique(texts, return_inverse=True)
    if not 2 <= len(distinct) <= MOST_VALUES:
        raise BadData(
            tables.members.file,
            f"holds {len(distinct)} different values",
            f"give an attribute with 2 to {MOST_VALUES} values; put a number into a few ranges first",
            column=column,
        )
    return tuple(distinct.tolist()), codes.astype(np.int64)


def _number_or_text(cell: Any) -> Any:
    try:
        return float(cell)
    except (TypeError, ValueError):
        return cell


@dataclass(frozen=True)
class _Piece:
    """One column of the files: its place in the table, and its texts where it is not a number."""

    name: str
    start: int
    texts: tuple[str, ...] | None

    @property
    def width(self) -> int:
        return 1 if self.texts is None else len(self.texts)


@final
@dataclass(frozen=True)
class InputTable:
    """The files' columns as one table of numbers and back: numbers as they are, texts one column per text."""

    pieces: tuple[_Piece, ...]

    @classmethod
    def of(cls, columns: Columns) -> InputTable:
        pieces, start = [], 0
        for name, values in columns.items():
            texts = tuple(np.unique(values).tolist()) if values.dtype.kind == "U" else None
            pieces.append(_Piece(name, start, texts))
            start += pieces[-1].width
        return cls(tuple(pieces))

    def encode(self, columns: Columns) -> Floats:
        parts = []
        for piece in self.pieces:
            values = columns[piece.name]
            if piece.texts is None:
                parts.append(values.astype(np.float64)[:, np.newaxis])
            else:
                parts.append((values[:, np.newaxis] == np.array(piece.texts)).astype(np.float64))
        return np.hstack(parts)

    def decode(self, table: Floats) -> dict[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {}
        for piece in self.pieces:
            part = table[:, piece.start : piece.start + piece.width]
            found[piece.name] = part[:, 0] if piece.texts is None else np.array(piece.texts)[part.argmax(axis=1)]
        return found

    def spelling(self, column: str, values: tuple[str, ...]) -> SensitiveInput | None:
        """How each value of a column stands in the table; None if the column is not an input."""
        for piece in self.pieces:
            if piece.name == column:
                if piece.texts is None:
                    return SensitiveInput((piece.start,), tuple((float(value),) for value in values))
                places = tuple(range(piece.start, piece.start + piece.width))
                one_hot = {
                    text.strip(): row for text, row in zip(piece.texts, np.eye(piece.width).tolist(), strict=True)
                }
                return SensitiveInput(places, tuple(tuple(one_hot[value]) for value in values))
        return None


@final
@dataclass(frozen=True, eq=False)
class AskedByClass:
    """Probabilities from a membership target's log-odds, one question per class."""

    target: MembershipTarget
    inputs: InputTable
    class_names: tuple[str, ...]

    def probabilities(self, features: Floats) -> Floats:
        columns = self.inputs.decode(features)
        classes = range(len(self.class_names))
        odds = [self._log_odds(features, columns, number) for number in classes]
        found = np.stack([expit(one) for one in odds], axis=1)
        return np.asarray(found / found.sum(axis=1, keepdims=True), dtype=np.float64)

    def _log_odds(self, features: Floats, columns: Columns, number: int) -> Floats:
        labels = np.full(len(features), number, dtype=np.int64)
        asked = AuditedRecords(features, labels, self.class_names, len(features), 0, columns)
        return self.target.signal(asked)


@final
@dataclass(frozen=True, eq=False)
class WithWeights:
    """Answers from one side, what the weights tell from the other."""

    answers: AttributeTarget
    weights: WhiteBoxTarget

    def probabilities(self, features: Floats) -> Floats:
        return self.answers.probabilities(features)

    def signals(self, features: Floats, labels: Codes) -> Floats:
        return self.weights.signals(features, labels)


def _with_weights(target: MembershipTarget, records: AuditedRecords, inputs: InputTable) -> AttributeTarget:
    """White box where the model is a torch module that ends in one score per class."""
    asked = AskedByClass(target, inputs, records.class_names)
    if isinstance(target, TorchTarget):
        linear = [layer for layer in target.module.modules() if isinstance(layer, nn.Linear)]
        if linear and linear[-1].out_features == len(records.class_names):
            return WithWeights(asked, ModuleWeights(target.module))
    return asked


def run_model(target: RunTarget, records: AuditedRecords) -> WhiteBoxTarget:
    """The model of a run folder, with its weights."""
    model = build_model(target.plan, (records.features.shape[1],), len(records.class_names))
    return RunModel(model, load_theta(target.folder, model), target.plan.dtype)


# Attribute inference on the model of a run: its training records against its test records.


def attribute_inference_of_run(
    run: Path, options: AttributeOptions, trusted: FolderTrust = UNTRUSTED, plan_path: Path | None = None
) -> AttributeInference:
    """Attack the run's model from the outside and with its weights; the attribute is never an input of such a model.

    Members are the training records, non-members the test records, which the run drew from the same records at random
    unless its plan names test files of their own.
    """
    folder = RunFolder.existing(run)
    if not folder.model.exists():
        raise InvalidInput("RUN", str(run), "has no model yet", "let the training finish")
    found = read_folder_plan(folder, trusted, plan_path, model_only=True)
    plan, unit = found.plan, found.document.guarantee.privacy_unit()
    data = load_training_data(plan.data, central=plan.recipe.central, unit=unit)
    if data.test is None:
        raise InvalidInput("RUN", str(run), "has no test records, which are needed as non-members", "use --model")
    first = data.parties[0].data
    if len(data.feature_shape) != 1:
        raise InvalidInput("RUN", str(run), "was trained on images", "attack it in Python, with features")
    if first.groups < 2:
        raise InvalidInput("RUN", str(run), "has records of one group only", "there is nothing to guess")
    model = build_model(plan.model, data.feature_shape, first.classes)
    target = RunModel(model, load_theta(folder, model), plan.model.dtype)
    name = "the attribute" if first.schema is None or first.schema.sensitive is None else first.schema.sensitive.name
    attribute = Attribute(name, first.group_names)
    return attribute_inference(target, attribute, members_of(data), _records(data.test), options)


def members_of(data: TrainingData) -> AttributeRecords:
    """Every training record once, with its true attribute.

    Where attributes are held apart, a record is with its holder (without the attribute) and with a sensitive silo.
    """
    if data.apart is None:
        return _records(data.parties)
    return _records(Silos(tuple(silo for silo in data.parties if silo.name in data.apart.sensitive)))


def _records(silos: Silos) -> AttributeRecords:
    pooled = silos.pooled()
    return AttributeRecords(
        np.asarray(pooled.features, dtype=np.float64),
        np.asarray(pooled.label, dtype=np.int64),
        np.asarray(pooled.group, dtype=np.int64),
    )

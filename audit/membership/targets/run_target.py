"""The model of a run folder: its own encoding, its own architecture for the shadow models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import numpy as np
import torch

from audit.membership.records import AuditedRecords, RecordTables
from audit.membership.shadow.stacked_linear import StackedLogistic
from audit.membership.shadow.stacked_perceptron import StackedPerceptron
from audit.membership.shadow.train import ShadowRecipe
from audit.membership.signals import phi_from_logits
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from privfair.data.benchmark_files import Standardisation
from privfair.data.encode import codes, encode_features
from privfair.data.schema import schema_from_json
from privfair.plan.model import ModelKind, ModelPlan, build_model
from privfair.plan.training import read_training_plan
from privfair.run.folder import RunFolder, load_theta


@final
@dataclass(frozen=True, eq=False)
class RunTarget:
    folder: RunFolder
    plan: ModelPlan
    kind: ClassVar[str] = "privfair run"
    feature_names: ClassVar[tuple[str, ...] | None] = None

    @classmethod
    def open(cls, path: Path) -> RunTarget:
        folder = RunFolder.existing(path)
        if not folder.model.exists():
            raise InvalidInput(
                "--model", str(path), "has no model yet", "let the training finish (privfair train --resume)"
            )
        return cls(folder, read_training_plan(folder.plan).model)

    @property
    def source(self) -> str:
        return str(self.folder.path)

    @property
    def class_names(self) -> tuple[str, ...]:
        return tuple(self.folder.read_json(self.folder.encoding)["class_names"])

    @property
    def delimiter(self) -> str:
        """Of the run's files, and so of the records'."""
        return str(self.folder.read_json(self.folder.encoding)["delimiter"])

    def encode(self, tables: RecordTables) -> AuditedRecords:
        """The records as the run encoded its own."""
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

"""Attribute inference on the model of a run: its training records against its test records."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from audit.attacks.attribute.attribute_audit import AttributeOptions, attribute_inference
from audit.attacks.attribute.records import Attribute, AttributeRecords
from audit.attacks.attribute.result import AttributeInference
from audit.attacks.attribute.torch_targets import RunModel
from calibrate.errors import InvalidInput
from privfair.model_plan import build_model
from privfair.run_folder import RunFolder
from privfair.saved_model import load_theta
from privfair.silos import Silos
from privfair.training_data import TrainingData, load_training_data
from privfair.training_plan import read_training_plan


def attribute_inference_of_run(
    run: Path, options: AttributeOptions, plan_path: Path | None = None
) -> AttributeInference:
    """Attack the run's model from the outside and with its weights; the attribute is never an input of such a model.

    Members are the training records, non-members the test records, which the run drew from the same records at random
    unless its plan names test files of their own.
    """
    folder = RunFolder.existing(run)
    if not folder.model.exists():
        raise InvalidInput("RUN", str(run), "has no model yet", "let the training finish")
    plan = read_training_plan(folder.plan if plan_path is None else plan_path)
    data = load_training_data(plan.data, central=plan.recipe.central)
    first = data.parties[0].data
    if len(data.feature_shape) != 1:
        raise InvalidInput("RUN", str(run), "was trained on images", "attack it in Python, with features")
    if first.groups < 2:
        raise InvalidInput("RUN", str(run), "has records of one group only", "there is nothing to guess")
    model = build_model(plan.model, data.feature_shape, first.classes)
    target = RunModel(model, load_theta(folder, model), plan.model.dtype)
    name = (
        "the attribute"
        if first.schema is None or first.schema.sensitive is None
        else first.schema.sensitive.name
    )
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

"""A trained model on disk: a torch state dict, and readable JSON for linear models."""

from __future__ import annotations

import io
import json
import math
import pickle
from typing import Any

import torch
from torch import Tensor

from calibrate.errors import Refused
from privfair.ledger.durable import replace_file
from privfair.models.logistic import LogisticRegression
from privfair.models.model import Model
from privfair.run_folder import RunFolder


def save_model(
    folder: RunFolder, model: Model, theta: Tensor, encoding: dict[str, Any], promise: str
) -> None:
    """Write model.pt, and model.json where the model is linear; each at one stroke."""
    content = io.BytesIO()
    torch.save(state_dict(model, theta), content)
    replace_file(folder.model, content.getvalue())
    if isinstance(model, LogisticRegression):
        weight, bias = state_dict(model, theta).values()
        scored = encoding["class_names"][1:] if model.classes == 2 else encoding["class_names"]
        folder.write_json(
            folder.linear_model,
            {
                "kind": "logistic",
                "promise": promise,
                "classes": encoding["class_names"],
                "features": encoding["feature_names"],
                "scores": "softmax over the classes; a class without weights has score 0",
                "weights": {name: row.tolist() for name, row in zip(scored, weight, strict=True)},
                "intercepts": dict(zip(scored, bias.tolist(), strict=True)),
            },
        )


def load_theta(folder: RunFolder, model: Model) -> Tensor:
    """The parameter vector of a saved model; only tensors are read, never code."""
    try:
        saved = torch.load(folder.model, weights_only=True)
        return _theta(model, saved)
    except (OSError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError) as broken:
        raise Refused(
            f"{folder.model} is not the model of this run ({type(broken).__name__}); train it again"
        ) from None


def readable_difference(folder: RunFolder, model: LogisticRegression, theta: Tensor) -> float:
    """By how much model.json differs from the given parameters; infinite if it is another model's, or damaged."""
    weight, bias = state_dict(model, theta).values()
    try:
        told = json.loads(folder.linear_model.read_text("utf-8"))
        rows = torch.tensor([told["weights"][name] for name in told["weights"]], dtype=weight.dtype)
        intercepts = torch.tensor([told["intercepts"][name] for name in told["weights"]], dtype=bias.dtype)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return math.inf
    if rows.shape != weight.shape or intercepts.shape != bias.shape:
        return math.inf
    return max(float((rows - weight).abs().max()), float((intercepts - bias).abs().max()))


def state_dict(model: Model, theta: Tensor) -> dict[str, Tensor]:
    """The parameters by name, as torch's own layers name them; linear models have weight and bias."""
    return {name: value.detach().clone() for name, value in model.named_parameters(theta).items()}


def _theta(model: Model, saved: dict[str, Tensor]) -> Tensor:
    theta = torch.zeros(model.size, dtype=torch.float64)
    places = model.named_parameters(theta)
    if set(places) != set(saved):
        raise ValueError("other parameters")
    for name, place in places.items():
        if place.shape != saved[name].shape:
            raise ValueError("another shape")
        place.copy_(saved[name])  # a view of theta
    return theta

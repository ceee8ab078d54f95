"""From a path to a target: by what the file is, and never running its code without being told to."""

from __future__ import annotations

import pickle
from enum import Enum
from pathlib import Path
from typing import Any

from audit.attacks.membership.targets.onnx_file import OnnxTarget
from audit.attacks.membership.targets.run_target import RunTarget
from audit.attacks.membership.targets.sklearn_estimator import SklearnTarget
from audit.attacks.membership.targets.target import OutputKind, Target
from audit.attacks.membership.targets.torch_target import TorchTarget
from calibrate.errors import InvalidInput, Refused

_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth")


class PickleTrust(Enum):
    """A pickle can run any code when it is opened; joblib and torch files are pickles too."""

    REFUSED = "refused"
    TRUSTED = "trusted"


def open_target(
    path: Path,
    trust: PickleTrust = PickleTrust.REFUSED,
    outputs: OutputKind = OutputKind.BY_LOOK,
) -> Target:
    """A run folder, an .onnx file, or a trusted pickle of an estimator or a torch module."""
    if path.is_dir():
        return RunTarget.open(path)
    suffix = path.suffix.lower()
    if suffix not in (".onnx", *_PICKLES):
        raise InvalidInput(
            "--model",
            str(path),
            "is of no known kind",
            f"give a run folder, .onnx, or {', '.join(_PICKLES)}; for scores of your own leave --model out and "
            "name their column with --score",
        )
    if not path.is_file():
        raise InvalidInput("--model", str(path), "does not exist or is no file", "check the path")
    if suffix == ".onnx":
        return OnnxTarget.open(path, outputs)
    if trust is PickleTrust.REFUSED:
        raise Refused(
            f"--model {path}: opening a {suffix} file runs whatever code it carries; add --trust-pickle if you know "
            "who made it, or export the model as ONNX"
        )
    return _of_object(_unpickled(path, suffix), path, outputs)


def _unpickled(path: Path, suffix: str) -> Any:
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


def _of_object(found: Any, path: Path, outputs: OutputKind) -> Target:
    from torch import nn

    if isinstance(found, nn.Module):
        return TorchTarget(found, str(path), outputs)
    if isinstance(found, dict):
        raise InvalidInput(
            "--model",
            str(path),
            "holds parameters without a model (a state dict)",
            "save the whole module, export ONNX, or name the run folder",
        )
    return SklearnTarget(found, str(path))

"""From a path to a target: by what the file is (ONNX runs here), and never running its code without being told to."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from audit.models.records import AuditedRecords, class_text
from audit.models.shadow_models import ShadowRecipe
from audit.models.targets import OutputKind, SklearnTarget, Target, is_torch_module, numeric_inputs, phi_of_outputs
from audit.named import refuse_pickle, refuse_unknown_kind
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from privfair.run.folder_trust import UNTRUSTED, FolderTrust

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

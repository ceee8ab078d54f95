"""An ONNX file, run by onnxruntime: scores or probabilities, or scikit-learn's pair of labels and probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from audit.attacks.membership.records import AuditedRecords, class_text
from audit.attacks.membership.shadow.recipe import ShadowRecipe
from audit.attacks.membership.shadow.stacked_perceptron import StackedPerceptron
from audit.attacks.membership.targets.target import OutputKind, numeric_inputs, phi_of_outputs
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput

_TYPES = {"tensor(float)": np.float32, "tensor(double)": np.float64}


@final
@dataclass(frozen=True, eq=False)
class OnnxTarget:
    """One input of shape (records, features); among the outputs the first with one number a class."""

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
            session = onnxruntime.InferenceSession(
                str(path), sess_options=options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's own errors share no public base class
            first = str(error).splitlines()[0]
            raise InvalidInput(
                "--model", str(path), f"is no ONNX model ({first})", "export it again"
            ) from None
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
        return StackedPerceptron()

    def _scores(self, answers: list[Any], classes: tuple[str, ...]) -> Floats:
        for answer in answers:
            if isinstance(answer, list) and answer and isinstance(answer[0], dict):
                return self._by_class(answer, classes)
            if isinstance(answer, np.ndarray) and answer.dtype.kind == "f":
                return answer.astype(np.float64)
        raise InvalidInput(
            "model", self.source, "has no output with scores", "export it with its probabilities"
        )

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

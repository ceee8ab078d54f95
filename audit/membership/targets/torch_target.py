"""A torch module, from memory or from a file that the auditor trusts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from torch import nn

from audit.membership.records import AuditedRecords
from audit.membership.shadow.stacked_module import StackedModule, why_not_stackable
from audit.membership.shadow.stacked_perceptron import StackedPerceptron
from audit.membership.shadow.train import ShadowRecipe
from audit.membership.targets.target import OutputKind, numeric_inputs, phi_of_outputs
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput

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

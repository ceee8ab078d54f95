"""Convolutional nets from the papers, as torch modules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never, final

import torch
from torch import nn

from calibrate.errors import InvalidInput, count
from privfair.models.model import CnnArchitecture
from privfair.models.record_isolation import made_up_records
from privfair.models.torch_module import TorchModule


@final
@dataclass(frozen=True)
class CnnBuilder:
    """Builds one architecture for images of (channels, height, width); can be pickled, unlike a closure."""

    architecture: CnnArchitecture
    shape: tuple[int, int, int]
    classes: int

    def __post_init__(self) -> None:
        if len(self.shape) != 3:
            raise InvalidInput(
                "shape",
                self.shape,
                "must be (channels, height, width) for a convolutional net",
                "give images, or take the model mlp",
            )
        for size in self.shape:
            count("shape", size)
        count("classes", self.classes, least=2)

    def __call__(self) -> nn.Sequential:
        features, hidden = _features(self.architecture, self.shape[0]), _hidden(self.architecture)
        with torch.no_grad():
            try:
                inputs = features(torch.zeros(1, *self.shape)).numel()
            except RuntimeError as error:
                rule = f"is too small for the net {self.architecture.value}"
                raise InvalidInput("shape", self.shape, rule, "give images of 28 x 28 or more") from error
        return nn.Sequential(
            *features, nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, self.classes)
        )


def convolutional(architecture: CnnArchitecture, shape: tuple[int, int, int], classes: int) -> TorchModule:
    """The architecture as a model, for images of this shape."""
    return TorchModule(CnnBuilder(architecture, shape, classes), made_up_records(shape))


def _features(architecture: CnnArchitecture, channels: int) -> nn.Sequential:
    layers: tuple[nn.Module, ...]
    match architecture:
        case CnnArchitecture.FEDAVG:
            layers = (
                *(nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            )
        case CnnArchitecture.UNPADDED:
            layers = (
                *(nn.Conv2d(channels, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
                *(nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            )
        case CnnArchitecture.STRIDED:
            layers = (*(nn.Conv2d(channels, 32, 5, stride=2), nn.ReLU()), *(nn.Conv2d(32, 64, 5, stride=2), nn.ReLU()))
        case CnnArchitecture.COMPACT:
            layers = (
                *(nn.Conv2d(channels, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)),
                *(nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1)),
            )
        case _:
            assert_never(architecture)
    return nn.Sequential(*layers)


def _hidden(architecture: CnnArchitecture) -> int:
    match architecture:
        case CnnArchitecture.FEDAVG | CnnArchitecture.UNPADDED:
            return 512
        case CnnArchitecture.STRIDED:
            return 100
        case CnnArchitecture.COMPACT:
            return 32
        case _:
            assert_never(architecture)

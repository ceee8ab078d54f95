"""Where each named parameter lies in the flat vector theta."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrate.errors import InvalidInput


@dataclass(frozen=True)
class ParameterLayout:
    """Names and shapes, in the order in which theta holds them."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, named: Iterable[tuple[str, Tensor]]) -> ParameterLayout:
        pairs = tuple((name, tuple(value.shape)) for name, value in named)
        return cls(tuple(name for name, _ in pairs), tuple(shape for _, shape in pairs))

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """The parameters as views of theta."""
        if theta.shape != (self.size,):
            raise InvalidInput(
                "theta",
                tuple(theta.shape),
                f"must be a vector of {self.size} entries",
                "start from initial()",
            )
        pieces = theta.split([math.prod(shape) for shape in self.shapes])
        return {
            name: piece.view(shape)
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }

    def join(self, values: Mapping[str, Tensor]) -> Tensor:
        """One flat vector of the named values, in this order."""
        return torch.cat([values[name].reshape(-1) for name in self.names])

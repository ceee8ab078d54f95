"""Every kind of model, and torch modules that exercise every way a layer's gradients can be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from privfair.models.convolutional import convolutional
from privfair.models.linear import LogisticRegression
from privfair.models.model import Activation, CnnArchitecture, Model
from privfair.models.perceptron import Perceptron
from privfair.models.record_isolation import made_up_records
from privfair.models.torch_module import Route, TorchModule

TOKENS = 7


class Residual(nn.Module):
    """Convolutions of every kind, group norm, an activation in place and a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 4, 3, stride=2, padding=1, dilation=1)
        self.norm = nn.GroupNorm(2, 4)
        self.act = nn.ReLU(inplace=True)
        self.grouped = nn.Conv2d(4, 4, (3, 1), padding=(1, 0), groups=2, bias=False)
        self.dilated = nn.Conv2d(4, 6, 2, dilation=2)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.first(x)))
        x = x + self.grouped(x)
        return self.head(torch.tanh(self.dilated(x)).mean(dim=(2, 3)))


class Sequence(nn.Module):
    """Embedding, layer norm, and linear layers over few and over many positions."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 6)
        self.norm = nn.LayerNorm(6)
        self.mix = nn.Linear(6, 8)
        self.head = nn.Linear(8 * length, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.norm(self.embed(x)))).flatten(1))


class OwnParameter(nn.Module):
    """A parameter of the module itself, beside a layer that is used directly by its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 1.0]))
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x * self.scale, self.inner.weight, self.inner.bias)


class WeightBehindTheBack(nn.Module):
    """The layer runs, and its weight is used once more without it: only the whole module shows the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x)) @ self.inner.weight)


class Reused(nn.Module):
    """One layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(torch.tanh(self.inner(x)))))


class Tied(nn.Module):
    """Two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.two(torch.tanh(self.one(x)))))


class InPlace(nn.Module):
    """Changes layers' outputs in place, where no module shows it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.one(x))
        return self.head(functional.leaky_relu_(self.two(hidden), 0.3))


def partly_frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    module[2].weight.requires_grad_(False)
    return module


def volumes() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 2, 2), nn.Tanh(), nn.ConvTranspose3d(2, 2, 2), nn.Flatten(), nn.Linear(54, 3))


def ghost_convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 40, 3), nn.Flatten(), nn.Linear(160, 3))


def signals() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 3, 3, padding="same"), nn.Conv1d(3, 3, 2, stride=2), nn.Flatten(), nn.Linear(12, 3)
    )


def circular() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(32, 3))


@dataclass(frozen=True, eq=False)
class ModelCase:
    """A model, what its records look like, and the route a module must take."""

    name: str
    build: Callable[[], Model]
    shape: tuple[int, ...]
    tokens: bool = False
    route: Route | None = None

    def records(self, number: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, model_of(self.name).classes, (number,), generator=generator)
        if self.tokens:
            return torch.randint(0, TOKENS, (number, *self.shape), generator=generator), labels
        return torch.randn(number, *self.shape, generator=generator, dtype=torch.float64).to(dtype), labels

    def theta(self, seed: int = 0) -> Tensor:
        """Away from the start, where nothing is zero by accident."""
        model = model_of(self.name)
        generator = torch.Generator().manual_seed(seed + 100)
        return model.initial(seed) + 0.3 * torch.randn(model.size, generator=generator, dtype=torch.float64)


def _module(
    name: str, build: Callable[[], nn.Module], shape: tuple[int, ...], route: Route = Route.LAYER_BY_LAYER
) -> ModelCase:
    return ModelCase(name, lambda: TorchModule(build, made_up_records(shape)), shape, route=route)


def _tokens(name: str, length: int) -> ModelCase:
    example = torch.arange(3 * length).reshape(3, length) % TOKENS
    return ModelCase(
        name, lambda: TorchModule(lambda: Sequence(length), example), (length,), tokens=True, route=Route.LAYER_BY_LAYER
    )


CASES = (
    ModelCase("logistic", lambda: LogisticRegression(5), (5,)),
    ModelCase("softmax", lambda: LogisticRegression(4, 3), (4,)),
    ModelCase("logistic-of-images", lambda: LogisticRegression(12), (1, 3, 4)),
    ModelCase("perceptron-relu", lambda: Perceptron(5, (6, 4), 3), (5,)),
    ModelCase("perceptron-tanh", lambda: Perceptron(5, (7,), 2, Activation.TANH), (5,)),
    ModelCase(
        "cnn-strided",
        lambda: convolutional(CnnArchitecture.STRIDED, (1, 16, 16), 3),
        (1, 16, 16),
        route=Route.LAYER_BY_LAYER,
    ),
    _module("residual", Residual, (2, 8, 8)),
    _module("ghost-convolution", ghost_convolution, (3, 4, 4)),
    _module("signals", signals, (2, 8)),
    _module("volumes", volumes, (1, 3, 3, 3)),
    _module("circular", circular, (1, 4, 4)),
    _tokens("few-tokens", 2),
    _tokens("many-tokens", 12),
    _module("own-parameter", OwnParameter, (4,)),
    _module("partly-frozen", partly_frozen, (4,)),
    _module("behind-the-back", WeightBehindTheBack, (4,), Route.WHOLE_MODULE),
    _module("reused", Reused, (4,), Route.WHOLE_MODULE),
    _module("tied", Tied, (4,), Route.WHOLE_MODULE),
    _module("in-place", InPlace, (4,), Route.WHOLE_MODULE),
)
BY_NAME = {case.name: case for case in CASES}


@cache
def model_of(name: str) -> Model:
    return BY_NAME[name].build()

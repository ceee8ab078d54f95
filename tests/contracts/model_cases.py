"""Every kind of model, and torch modules that use every covered layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from privfair.models.alone_module import AloneModule
from privfair.models.exact import Bits
from privfair.models.linear import LogisticRegression
from privfair.models.model import Activation, CnnArchitecture, Model
from privfair.models.perceptron import Perceptron
from privfair.models.torch_module import TorchModule, convolutional, made_up_records

TOKENS = 7


class Block(nn.Module):
    """A residual block, with an activation and an addition in place."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(2, outputs), nn.GroupNorm(outputs, outputs)])
        self.act = nn.ReLU(inplace=True)
        self.skip = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norms[1](self.second(self.act(self.norms[0](self.first(x)))))
        out += self.skip(x)
        return self.act(out)


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        Block(4, 4, 1),
        Block(4, 6, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


class Transformer(nn.Module):
    """Tokens, learned positions, encoder layers, a mean over positions."""

    def __init__(self, length: int, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 8, padding_idx=0)
        self.places = nn.Parameter(0.3 * torch.randn(length, 8))
        layer = nn.TransformerEncoderLayer(
            8,
            2,
            12,
            0.0,
            nn.GELU(approximate="tanh") if norm_first else "relu",
            batch_first=True,
            norm_first=norm_first,
        )
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(8), enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x) + self.places).mean(dim=1))


class Attended(nn.Module):
    """Attention on the records themselves; one position is selected."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.norm = nn.LayerNorm((3, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found, _ = self.attend(x, x, x)
        return self.head(self.norm(x + found)[:, 0])


class Functions(nn.Module):
    """Covered functions and methods."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Conv2d(2, 4, 3, padding="same"), nn.Conv2d(4, 4, 1), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.leaky_relu(self.one(x), 0.3), 3, stride=2, padding=1)
        x = torch.add(functional.silu(self.two(x)), functional.gelu(x, approximate="tanh"))
        x = x.permute(0, 2, 3, 1).transpose(1, 3).mean(dim=(2,), keepdim=True)
        return self.head(x.view(x.size(0), -1))


class Sequence(nn.Module):
    """Embedding, layer norm, and a linear layer over positions."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 6)
        self.norm = nn.LayerNorm(6)
        self.mix = nn.Linear(6, 8)
        self.head = nn.Linear(8 * length, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.norm(self.embed(x)))).flatten(1))


class Reused(nn.Module):
    """One layer called twice, and an activation that is not covered."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sin(self.inner(torch.sin(self.inner(x)))))


def partly_frozen() -> nn.Module:
    module = nn.Sequential(
        nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)
    )
    module[0].requires_grad_(False)
    module[2].weight.requires_grad_(False)
    module[4].bias.requires_grad_(False)
    module[5].weight.requires_grad_(False)
    return module


def signals() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 3, 3, padding="same"),
        nn.SiLU(),
        nn.Conv1d(3, 4, 2, dilation=2, bias=False),
        nn.MaxPool1d(2, 1),
        nn.AvgPool1d(2, 1, padding=1, count_include_pad=False),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def activations() -> nn.Module:
    kinds = (nn.ReLU(), nn.LeakyReLU(-0.5), nn.Tanh(), nn.Sigmoid(), nn.SiLU(), nn.GELU(approximate="tanh"))
    layers = [layer for kind in kinds for layer in (kind, nn.Linear(5, 5))]
    return nn.Sequential(nn.Linear(4, 5), *layers[:-1], nn.Dropout(0.0), nn.Linear(5, 3))


def pools() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)),
        nn.MaxPool2d(2, 1, ceil_mode=True),
        nn.AvgPool2d(2, 1, padding=1),
        nn.Tanh(),
        nn.Flatten(2),
        nn.Linear(40, 4),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


def plain_norms() -> nn.Module:
    return nn.Sequential(
        nn.GroupNorm(1, 2, affine=False), nn.LayerNorm(4, elementwise_affine=False), nn.Flatten(), nn.Linear(32, 3)
    )


Build = Callable[[], nn.Module]
MODULES: dict[str, tuple[Build, tuple[int, ...], bool]] = {
    "linear": (lambda: nn.Linear(4, 3), (4,), False),
    "activations": (activations, (4,), False),
    "resnet": (resnet, (2, 8, 8), False),
    "pools": (pools, (2, 8, 8), False),
    "plain-norms": (plain_norms, (2, 4, 4), False),
    "functions": (Functions, (2, 8, 8), False),
    "signals": (signals, (2, 8), False),
    "attention": (Attended, (3, 4), False),
    "few-tokens": (lambda: Sequence(2), (2,), True),
    "many-tokens": (lambda: Sequence(12), (12,), True),
    "transformer": (lambda: Transformer(5, norm_first=True), (5,), True),
    "transformer-norm-last": (lambda: Transformer(5, norm_first=False), (5,), True),
    "partly-frozen": (partly_frozen, (4,), False),
}
"""Modules of covered layers: how to build them, the shape of a record, and whether records are tokens."""


def example_of(shape: tuple[int, ...], tokens: bool) -> Tensor:
    size = 3 * int(torch.Size(shape).numel())
    return torch.arange(size).reshape(3, *shape) % TOKENS if tokens else made_up_records(shape)


def module_model(name: str, bits: Bits) -> TorchModule:
    build, shape, tokens = MODULES[name]
    return TorchModule(build, example_of(shape, tokens), bits)


@dataclass(frozen=True, eq=False)
class ModelCase:
    """A model, and what its records look like."""

    name: str
    build: Callable[[], Model]
    shape: tuple[int, ...]
    tokens: bool = False

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
        return model.initial(seed) + 0.1 * torch.randn(model.size, generator=generator, dtype=torch.float64)

    def reference(self, theta: Tensor, x: Tensor) -> Tensor:
        """The scores by torch's own layers, in float64; differentiable in theta."""
        model = model_of(self.name)
        if isinstance(model, LogisticRegression):
            named = model.named_parameters(theta)
            scores = functional.linear(x.flatten(1).to(theta.dtype), named["weight"], named["bias"])
            return functional.pad(scores, (1, 0)) if model.classes == 2 else scores
        assert isinstance(model, (Perceptron, TorchModule, AloneModule))
        given = x if self.tokens else x.to(theta.dtype)
        return torch.func.functional_call(
            model.as_module(theta.detach()), model.named_parameters(theta), (given,), strict=False
        )


def _module(name: str) -> ModelCase:
    _, shape, tokens = MODULES[name]
    return ModelCase(name, lambda: module_model(name, Bits.LARGEST), shape, tokens)


CASES = (
    ModelCase("logistic", lambda: LogisticRegression(5), (5,)),
    ModelCase("softmax", lambda: LogisticRegression(4, 3), (4,)),
    ModelCase("logistic-of-images", lambda: LogisticRegression(12), (1, 3, 4)),
    ModelCase("perceptron-relu", lambda: Perceptron(5, (6, 4), 3, bits=Bits.LARGEST), (5,)),
    ModelCase("perceptron-tanh", lambda: Perceptron(5, (7,), 2, Activation.TANH, Bits.LARGEST), (5,)),
    ModelCase("cnn-strided", lambda: convolutional(CnnArchitecture.STRIDED, (1, 16, 16), 3, Bits.LARGEST), (1, 16, 16)),
    *(_module(name) for name in MODULES),
    ModelCase("alone", lambda: AloneModule(Reused, made_up_records((4,))), (4,)),
)
BY_NAME = {case.name: case for case in CASES}


@cache
def model_of(name: str) -> Model:
    return BY_NAME[name].build()

"""Torch modules as models, a user's or one from the literature: converted to networks of exact arithmetic."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from calibrate.errors import InvalidInput, count
from privfair.models.conversion import convert
from privfair.models.exact import Bits
from privfair.models.layer_conversion import refuse
from privfair.models.model import EXACT, CnnArchitecture, ParameterLayout
from privfair.models.network import Network, NetworkModel

_AGREEMENT = 1e-3
"""Relative to the largest score, between the module's scores and the network's at the largest number of bits."""


@final
class TorchModule(NetworkModel):
    """A module of covered layers: one tensor in (dimension 0 is the record), one score per class out.

    `build` makes the module; `initial(seed)` calls it under that seed. `example` are at least two made-up records
    (`made_up_records`), or records of token numbers: their shape is all that is used of them, and once they are scored
    to compare the network with the module. Parameters with requires_grad=False stay as built.
    """

    def __init__(self, build: Callable[[], nn.Module], example: Tensor, bits: Bits = Bits.THIRTEEN) -> None:
        self._built, self._bits = BuiltModule(build, example), bits
        module, example, layout = self._built.module, self._built.example, self._built.layout
        nodes = convert(module, example)
        tokens = not example.dtype.is_floating_point
        # A little away from the start: a last layer that starts at zero would hide what is before it.
        random = torch.Generator().manual_seed(2)
        start = {name: value.detach() for name, value in module.named_parameters() if value.requires_grad}
        theta = layout.join(start)
        theta = theta + 0.05 * torch.randn(theta.shape, generator=random, dtype=EXACT)
        moved = self._built.with_parameters(theta)
        scores = moved(example.clone())
        finest = Network(nodes, layout, scores.shape[1], Bits.LARGEST, tokens)
        pulled = torch.randn(scores.shape, generator=random, dtype=EXACT)
        trained = [value for value in moved.parameters() if value.requires_grad]
        value = (scores * pulled).sum() + 0.0 * sum(one.sum() for one in trained)  # also if no gradient reaches scores
        try:
            slopes = torch.autograd.grad(value, trained)
        except RuntimeError as error:  # fx traces h += x as h + x
            place = re.search(r"output \d+ of (\w+)", str(error))
            what = f"the output of {place[1]}" if place else "a value"
            refuse("", type(module).__name__, f"changes {what} in place, which gradients need", "write h = h + x")
        gradient = finest.score_gradients(theta, example, pulled).sum(dim=0)
        if not (
            _agree(finest.logits(theta, example), scores.detach())
            and _agree(gradient, torch.cat([one.flatten() for one in slopes]))
        ):
            rule = "has other scores or gradients than its network: values change in place, or gradients stop"
            refuse("", type(module).__name__, rule, "change no values in place, and start from parameters below 1,024")
        self._exact = Network(nodes, layout, scores.shape[1], bits, tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        return TorchModule, (self._built.build, self._built.example, self._bits)

    @property
    def _network(self) -> Network:
        return self._exact

    @property
    def classes(self) -> int:
        return self._network.classes

    def initial(self, seed: int) -> Tensor:
        return self._built.initial(seed)

    def as_module(self, theta: Tensor) -> nn.Module:
        """The module with these parameters, for use elsewhere."""
        return self._built.with_parameters(theta)


def _agree(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= _AGREEMENT * expected.abs().max())


# What a user's function builds.


def made_up_records(shape: tuple[int, ...], records: int = 3) -> Tensor:
    """Standard normal records to try a module on; always the same, and no one's."""
    generator = torch.Generator().manual_seed(20_240)
    return torch.randn((records, *shape), generator=generator, dtype=torch.float64)


@final
class BuiltModule:
    """What `build` makes; `module` is a float64 copy in training mode, which stays as it was built.

    Parameters with requires_grad=False are not part of theta.
    """

    def __init__(self, build: Callable[[], nn.Module], example: Tensor) -> None:
        if len(example) < 2:
            raise InvalidInput("example", len(example), "must hold at least 2 made-up records", "make up more")
        self.build = build
        self.example = example.to(EXACT) if example.dtype.is_floating_point else example
        module = _build_seeded(build, 0)
        for name, layer in module.named_modules():
            if isinstance(layer, nn.modules.lazy.LazyModuleMixin):
                rule = "has no sizes yet"
                raise InvalidInput("module", f"{name}: {type(layer).__name__}", rule, "give its sizes")
        self.layout = _layout(module)
        self.module = module.to(EXACT)

    def initial(self, seed: int) -> Tensor:
        """The trainable parameters of a module built under this seed."""
        module = _build_seeded(self.build, seed)
        if _layout(module) != self.layout:
            rule = "builds modules with different parameters"
            raise InvalidInput("build", self.build, rule, "let it build the same module each time")
        return self.layout.join({name: value.to(EXACT) for name, value in _trainable(module)})

    def with_parameters(self, theta: Tensor) -> nn.Module:
        """A copy of the module with these parameters, in the type of theta."""
        module = copy.deepcopy(self.module).to(theta.dtype)
        module.load_state_dict(self.layout.split(theta), strict=False)
        return module


def _build_seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A copy of the module built under a seed; the caller's random numbers stay as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build()
    if not isinstance(module, nn.Module):
        raise InvalidInput("build", type(module).__name__, "must return a torch.nn.Module", "return the module itself")
    return copy.deepcopy(module).train()


def _trainable(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, value.detach()) for name, value in module.named_parameters() if value.requires_grad)


def _layout(module: nn.Module) -> ParameterLayout:
    layout = ParameterLayout.of(_trainable(module))
    if layout.size == 0:
        rule = "has no trainable parameters"
        raise InvalidInput("module", type(module).__name__, rule, "set requires_grad=True on what is to be trained")
    return layout


# Convolutional nets from the literature.


@final
@dataclass(frozen=True)
class _Net:
    """Two convolutions, each as (channels, kernel, stride, padding), max-pooling after each, and hidden units."""

    first: tuple[int, int, int, int]
    second: tuple[int, int, int, int]
    pool: tuple[int, int] | None
    """Window and stride; None for no pooling."""
    hidden: int

    def features(self, channels: int) -> Iterator[nn.Module]:
        for outputs, kernel, stride, padding in (self.first, self.second):
            yield from (nn.Conv2d(channels, outputs, kernel, stride, padding), nn.ReLU())
            if self.pool is not None:
                yield nn.MaxPool2d(*self.pool)
            channels = outputs


_NETS = {
    CnnArchitecture.FEDAVG: _Net((32, 5, 1, 2), (64, 5, 1, 2), (2, 2), 512),
    CnnArchitecture.UNPADDED: _Net((32, 5, 1, 0), (64, 5, 1, 0), (2, 2), 512),
    CnnArchitecture.STRIDED: _Net((32, 5, 2, 0), (64, 5, 2, 0), None, 100),
    CnnArchitecture.COMPACT: _Net((16, 8, 2, 3), (32, 4, 2, 0), (2, 1), 32),
}


@final
@dataclass(frozen=True)
class CnnBuilder:
    """Builds one architecture for images of (channels, height, width); can be pickled, unlike a closure."""

    architecture: CnnArchitecture
    shape: tuple[int, int, int]
    classes: int

    def __post_init__(self) -> None:
        if len(self.shape) != 3:
            rule = "must be (channels, height, width) for a convolutional net"
            raise InvalidInput("shape", self.shape, rule, "give images, or take the model mlp")
        for size in self.shape:
            count("shape", size)
        count("classes", self.classes, least=2)

    def __call__(self) -> nn.Sequential:
        net = _NETS[self.architecture]
        features = nn.Sequential(*net.features(self.shape[0]))
        with torch.no_grad():
            try:
                inputs = features(torch.zeros(1, *self.shape)).numel()
            except RuntimeError as error:
                rule = f"is too small for the net {self.architecture.value}"
                raise InvalidInput("shape", self.shape, rule, "give images of 28 x 28 or more") from error
        return nn.Sequential(
            *features, nn.Flatten(), nn.Linear(inputs, net.hidden), nn.ReLU(), nn.Linear(net.hidden, self.classes)
        )


def convolutional(
    architecture: CnnArchitecture, shape: tuple[int, int, int], classes: int, bits: Bits = Bits.THIRTEEN
) -> TorchModule:
    """The architecture as a model, for images of this shape."""
    return TorchModule(CnnBuilder(architecture, shape, classes), made_up_records(shape), bits)

"""How fast a private step is: privfair against Opacus and against plain SGD, side by side in one process.

Run `python -m tests.benchmarks.private_step_speed` to measure and to rewrite docs/benchmarks.md; it ends
with exit code 1 if a lead over Opacus that the page states was lost. A step is: forward, per-record gradients clipped
to 1 and summed, update of the parameters. Opacus gets a plain batch and its normal step (PrivacyEngine, no data loader
in the timed part). Nothing is compared before both are seen to sum the same clipped gradients.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise

import torch
from opacus import PrivacyEngine
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from privfair.models.exact import Bits
from privfair.models.layers import Conv2d, Linear, MaxPool2d, NetLayer, Relu, Reshape
from privfair.models.linear import LogisticRegression
from privfair.models.model import ParameterLayout, Records, Weigh, WeightedGradient, clipped_to
from privfair.models.network import Network, chain
from tests.sections import write_section

BLOCK_SECONDS, CASE_SECONDS = 0.05, 6.0
FEWEST, MOST = 7, 15
LEARNING_RATE = 0.1
CLIP = 1.0
LARGEST_FOR_OPACUS = 1e9
"""Bytes of per-record gradients that its default mode is given memory for."""
AGREEMENT = {Bits.SEVEN: 0.3, Bits.THIRTEEN: 0.1, Bits.LARGEST: 0.01}
"""Where a comparison stops as meaningless: relative distance of two sums; on random records most of a sum cancels."""

OPACUS, GHOST, SGD = "Opacus", "Opacus, ghost clipping", "plain SGD"

Step = Callable[[], object]
Gradient = Callable[[Tensor, Records, Tensor, Weigh], WeightedGradient]


@dataclass(frozen=True, eq=False)
class Case:
    """One model and batch, the same for all."""

    name: str
    module: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    batch: int
    bits: tuple[Bits, ...] = (Bits.SEVEN, Bits.THIRTEEN, Bits.LARGEST)
    precision: torch.dtype = torch.float32
    least: float | None = None
    """The stated lead over the faster mode of Opacus, with the fewest bits."""
    goals: tuple[float, ...] = ()
    """The leads over ghost clipping that were aimed at, for each of the first `bits`."""

    def records(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(self.batch, *self.shape, generator=generator).to(self.precision)
        return x, torch.randint(0, self.classes, (self.batch,), generator=generator)

    @property
    def linear(self) -> bool:
        return isinstance(self.module(), nn.Linear)

    @property
    def size(self) -> int:
        return sum(one.numel() for one in self.module().parameters())


@dataclass(frozen=True)
class Result:
    case: Case
    routines: dict[Bits, str]
    apart: dict[Bits, float]
    seconds: dict[Bits | str, list[float]] = field(default_factory=dict)

    def ratio(self, peer: str, bits: Bits) -> tuple[float, float, float] | None:
        """A peer's time over ours: median, lower and upper quartile over the repetitions."""
        if peer not in self.seconds:
            return None
        paired = [theirs / ours for theirs, ours in zip(self.seconds[peer], self.seconds[bits], strict=True)]
        low, middle, high = statistics.quantiles(paired, n=4)
        return middle, low, high

    @property
    def lead(self) -> float:
        found = [self.ratio(peer, self.case.bits[0]) for peer in (OPACUS, GHOST)]
        return min(one[0] for one in found if one is not None)

    @property
    def holds(self) -> bool:
        return self.case.least is None or self.lead >= self.case.least


# The nets.


def _mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _compact() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.ReLU(),
        nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def _padded() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, 1, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, 1, 2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1568, 112), nn.ReLU(), nn.Linear(112, 10),
    )  # fmt: skip


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def network(module: nn.Module, shape: tuple[int, ...], classes: int, bits: Bits) -> Network:
    """The same layers in exact arithmetic; parameters in the order in which the module has them."""
    layers: list[NetLayer] = [Reshape(shape)] if len(shape) == 1 else []
    one = torch.zeros(1, *shape)
    for name, layer in module.named_children():
        weight, bias = f"{name}.weight", f"{name}.bias"
        if isinstance(layer, nn.Conv2d):
            form = (_pair(layer.stride), _pair(layer.padding), _pair(layer.dilation))  # type: ignore[arg-type]
            channels, height, width = one.shape[1:]
            kernel = _pair(layer.kernel_size)
            layers.append(Conv2d((channels, height, width), layer.out_channels, kernel, *form, weight, bias))
        elif isinstance(layer, nn.MaxPool2d):
            layers.append(MaxPool2d(_pair(layer.kernel_size), _pair(layer.stride), (0, 0), (1, 1), False))
        elif isinstance(layer, nn.Linear):
            layers.append(Linear(layer.in_features, layer.out_features, weight, bias))
        else:
            layers.append(Reshape((-1,)) if isinstance(layer, nn.Flatten) else Relu())
        one = layer(one)
    return Network(chain(*layers), ParameterLayout.of(module.named_parameters()), classes, bits)


def cases() -> tuple[Case, ...]:
    largest, image = (Bits.LARGEST,), (1, 28, 28)
    logistic = [
        Case("logistic regression, 85 features, float64", lambda: nn.Linear(85, 1), (85,), 2, batch, largest,
             torch.float64, least)
        for batch, least in ((64, None), (256, LEAD_LOGISTIC), (1024, None))
    ]  # fmt: skip
    return (
        *logistic,
        Case("softmax regression, 784 x 10", lambda: nn.Linear(784, 10), (784,), 10, 256, largest),
        Case("MLP 85-64-32-2", lambda: _mlp(85, 64, 32, 2), (85,), 2, 256),
        Case("MLP, 60 thousand parameters", lambda: _mlp(784, 72, 40, 10), (784,), 10, 512, least=LEAD_60K,
             goals=(2.3, 1.5)),
        Case("MLP, 1 million", lambda: _mlp(784, 800, 480, 10), (784,), 10, 512, least=LEAD_LARGE, goals=(3.3, 1.8)),
        Case("MLP, 10 million", lambda: _mlp(784, 2800, 2800, 10), (784,), 10, 512, (Bits.SEVEN, Bits.THIRTEEN),
             least=LEAD_LARGE, goals=(4.0, 2.0)),
        Case("CNN, 26 thousand (Opacus's example)", _compact, image, 10, 64),
        Case("CNN, 190 thousand", _padded, image, 10, 64),
    )  # fmt: skip


LEAD_LOGISTIC, LEAD_60K, LEAD_LARGE = 5.0, 1.0, 1.0


# The steps.


def our_gradient(case: Case, bits: Bits) -> tuple[Gradient, str]:
    """The clipped sum and the routine that was chosen for it."""
    if not case.linear:
        net = network(case.module(), case.shape, case.classes, bits)
        return net.weighted_gradient, type(net.arithmetic.products).__name__
    return LogisticRegression(case.shape[0], case.classes).weighted_gradient, "InDouble"


def our_step(case: Case, bits: Bits) -> Step:
    """theta rests in float64, as the engine keeps it; features were put on their grids when the silo was loaded."""
    gradient, weigh = our_gradient(case, bits)[0], clipped_to(CLIP)
    x, y = case.records()
    batch, theta = Records(x), _theta(case, torch_parts(case)[0].parameters())

    def step() -> None:
        theta.sub_(gradient(theta, batch, y, weigh).total, alpha=LEARNING_RATE / case.batch)

    return step


def _theta(case: Case, pieces: object) -> Tensor:
    """Parameters of a module as one vector, in our order."""
    parts = [piece.detach().to(torch.float64) for piece in pieces]  # type: ignore[attr-defined]
    if case.linear:
        return torch.cat((parts[0].T, parts[1][None])).flatten()
    return torch.cat([part.flatten() for part in parts])


def torch_parts(case: Case) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """Module, loss, features, labels; two classes with one score, as ours has."""
    torch.manual_seed(0)
    module = case.module().to(case.precision)
    x, y = case.records()
    if case.linear and case.classes == 2:
        return nn.Sequential(module, nn.Flatten(0)), nn.BCEWithLogitsLoss(), x, y.to(case.precision)
    return module, nn.CrossEntropyLoss(), x, y


def opacus_step(case: Case, ghost: bool) -> tuple[Step, nn.Module]:
    module, loss, x, y = torch_parts(case)
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    settings = {"grad_sample_mode": "ghost", "criterion": loss} if ghost else {}
    private, optimizer, *rest = PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=case.batch),
        noise_multiplier=0.0,
        max_grad_norm=CLIP,
        poisson_sampling=False,
        **settings,
    )
    criterion = rest[0] if ghost else loss

    def step() -> None:
        optimizer.zero_grad()
        criterion(private(x), y).backward()
        optimizer.step()

    return step, private


def sgd_step(case: Case) -> Step:
    module, loss, x, y = torch_parts(case)
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)

    def step() -> None:
        optimizer.zero_grad()
        loss(module(x), y).backward()
        optimizer.step()

    return step


def distance(case: Case, bits: Bits) -> float:
    """How far Opacus's sum of clipped gradients and ours are apart, relatively, at the same parameters."""
    step, private = opacus_step(case, ghost=True)
    before = [parameter.detach().clone() for parameter in private.parameters()]
    step()
    moved = [then - now.detach() for then, now in zip(before, private.parameters(), strict=True)]
    x, y = case.records()
    ours = our_gradient(case, bits)[0](_theta(case, before), Records(x), y, clipped_to(CLIP)).total
    theirs = _theta(case, moved) * case.batch / LEARNING_RATE
    return float((ours - theirs).norm() / ours.norm())


def measure(case: Case, apart: dict[Bits, float]) -> Result:
    """Blocks of steps in turns; processor time, so that a busy machine does not slow one of them more than another."""
    steps: dict[Bits | str, Step] = {bits: our_step(case, bits) for bits in case.bits}
    steps |= {SGD: sgd_step(case), GHOST: opacus_step(case, ghost=True)[0]}
    if case.size * case.batch * 4 <= LARGEST_FOR_OPACUS:
        steps[OPACUS] = opacus_step(case, ghost=False)[0]
    single = {peer: _block(step, 1) for peer, step in steps.items()}
    lengths = {peer: max(1, math.ceil(BLOCK_SECONDS / seconds)) for peer, seconds in single.items()}
    turn = sum(single[peer] * (length + 1) for peer, length in lengths.items())
    routines = {bits: our_gradient(case, bits)[1] for bits in case.bits}
    result = Result(case, routines, apart, {peer: [] for peer in steps})
    for _ in range(min(MOST, max(FEWEST, round(CASE_SECONDS / turn)))):
        for peer, step in steps.items():
            result.seconds[peer].append(_block(step, lengths[peer]))
    return result


def _block(step: Step, length: int) -> float:
    """Seconds a step; the first one warms the caches and is not counted."""
    step()
    start = time.process_time()
    for _ in range(length):
        step()
    return (time.process_time() - start) / length


# The page.

_ROUTINES = {"InIntegers": "int8", "InSingle": "float32", "InDouble": "float64"}


def page(results: list[Result]) -> str:
    return f"""# Speed of a private step

For those who choose a model, or the number of `bits`: what a private step costs next to Opacus and next to plain SGD.
Run `python -m tests.benchmarks.private_step_speed` to measure it on your machine.

Measured with torch {torch.__version__.split("+")[0]} and Opacus {version("opacus")} on a processor with
{torch.backends.cpu.get_cpu_capability()}, one thread, at a load of {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores.
Times are processor time, contenders in turns in one process.
A step is the forward pass, per-record gradients clipped to {CLIP:g} and summed, and the update, without noise.
Noise has [its own page](noise.md). Opacus runs as its `PrivacyEngine` sets it up, by default and with ghost clipping.
Before timing, the sums of clipped gradients are compared.
"apart" is the norm of their difference over the norm of ours.
The command stops above 30% at 7 bits, 10% at 13 and 1% with the most bits. Opacus sums in float32 itself.
The records are random numbers, so most of a sum cancels and rounding weighs more than in training.

A ratio is how many times longer the other one takes: median with quartiles. Below 1, privfair is the slower one.

| model | batch | bits | routine | apart | privfair, ms | Opacus | Opacus ghost | plain SGD |
|---|---:|---:|---|---:|---:|---:|---:|---:|
{chr(10).join(row for result in results for row in _rows(result))}

A dash: per-record gradients would need more than 1 GB in Opacus's default mode.

At 7 and 13 bits the program tries the exact routines on this machine and takes the fastest.
All of them give the same bits. On processors with VNNI that is the int8 routine.
{_which(results)}
Small nets and small batches are dominated by the cost of calling the libraries.

## Goals

What was aimed at on a processor with VNNI, over ghost clipping; measured here.

| model | batch | bits | at least | measured | |
|---|---:|---:|---:|---:|---|
{chr(10).join(row for result in results for row in _goals(result))}

## Stated leads

Over the faster mode of Opacus, with the fewest bits in the table; the command fails if one is lost.

| model | batch | at least | measured |
|---|---:|---:|---:|
{chr(10).join(_stated(result) for result in results if result.case.least is not None)}

Earlier versions stated leads of 15 (logistic regression) and 4 (MLPs) over Opacus's default mode, and at most 1.5 to 2
times plain SGD. Their steps rounded in ways that let one record change what others contribute; they are gone.
"""


def _which(results: list[Result]) -> str:
    if any(name == "InIntegers" for result in results for name in result.routines.values()):
        return "It was chosen where the table says int8."
    return """These rows were measured without it.
Here all products at 13 bits are float64; at 7 bits only the sum over records is."""


def _rows(result: Result) -> list[str]:
    def shown(peer: str, bits: Bits) -> str:
        found = result.ratio(peer, bits)
        return "-" if found is None else f"{found[0]:.2g} ({found[1]:.2g} to {found[2]:.2g})"

    case = result.case
    return [
        f"| {case.name} | {case.batch} | {bits.value} | {_ROUTINES[result.routines[bits]]} | {result.apart[bits]:.1%} "
        f"| {statistics.median(result.seconds[bits]) * 1e3:.3g} "
        f"| {' | '.join(shown(peer, bits) for peer in (OPACUS, GHOST, SGD))} |"
        for bits in case.bits
    ]


def _goals(result: Result) -> list[str]:
    rows = []
    for bits, goal in zip(result.case.bits, result.case.goals, strict=False):
        found = result.ratio(GHOST, bits)
        assert found is not None
        reached = "reached" if found[0] >= goal else "missed"
        rows.append(
            f"| {result.case.name} | {result.case.batch} | {bits.value} | {goal:g} | {found[0]:.2f} | {reached} |"
        )
    return rows


def _stated(result: Result) -> str:
    return f"| {result.case.name} | {result.case.batch} | {result.case.least:g} | {result.lead:.2g} |"


def main() -> int:
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message=".*backward hook.*")
    torch.set_num_threads(1)
    results = []
    with threadpool_limits(1):
        for case in cases():
            apart = {bits: distance(case, bits) for bits in case.bits}
            if any(apart[bits] > AGREEMENT[bits] for bits in case.bits):
                print(f"{case.name}: the sums of clipped gradients are too far apart to compare: {apart}")
                return 1
            results.append(measure(case, apart))
            print("\n".join(_rows(results[-1])), flush=True)
    write_section("private-step", page(results))
    lost = [result for result in results if not result.holds]
    for result in lost:
        print(f"lost: {result.case.name}, batch {result.case.batch}")
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())

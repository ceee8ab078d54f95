"""How fast a private step is: privfair against Opacus and against plain SGD, side by side in one process.

Run `python -m tests.benchmarks.private_step_speed` to measure and to rewrite docs/benchmarks/private-step.md; it ends
with exit code 1 if a promised lead over Opacus was lost, or a promised limit against plain SGD is passed. With the
argument `sgd` only that part of the page is measured and rewritten. A step is: forward, per-record gradients clipped
to 1 and summed, update of the parameters. Opacus gets a plain batch and its normal step (PrivacyEngine, no data loader
in the timed part). Nothing is compared before both are seen to sum the same clipped gradients.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path

import torch
from opacus import PrivacyEngine
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from privfair.models.convolutional import CnnBuilder, convolutional
from privfair.models.layers import SINGLE_SLACK, WORTH_SINGLE
from privfair.models.linear import LogisticRegression
from privfair.models.model import CnnArchitecture, Model, clipped_to
from privfair.models.perceptron import Perceptron

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "private-step.md"
BLOCK_SECONDS = 0.05
REPETITIONS = 21
LEARNING_RATE = 0.1
CLIP = 1.0

Step = Callable[[], object]


class Peer(Enum):
    """Whom a step is compared with."""

    OURS = "privfair"
    OPACUS = "Opacus"
    OPACUS_GHOST = "Opacus, ghost clipping"
    SGD = "plain SGD"


_OPACUS = (Peer.OPACUS, Peer.OPACUS_GHOST)


@dataclass(frozen=True, eq=False)
class Case:
    """One model and batch, the same for everybody."""

    name: str
    model: Callable[[], Model]
    module: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    batch: int
    precision: torch.dtype = torch.float32
    least: float | None = None
    """The promised lead over Opacus, if any."""

    most: float | None = None
    """The promised limit of our time over plain SGD's, if any."""

    def records(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(self.batch, *self.shape, generator=generator).to(self.precision)
        return x, torch.randint(0, self.classes, (self.batch,), generator=generator)


@dataclass(frozen=True)
class Result:
    case: Case
    seconds: dict[Peer, float]
    ratios: dict[Peer, tuple[float, float, float]]
    """A peer's time over ours: median, lower and upper quartile over the repetitions."""

    @property
    def holds(self) -> bool:
        return self.case.least is None or self.ratios[Peer.OPACUS][0] >= self.case.least

    @property
    def within(self) -> bool:
        return self.case.most is None or 1 / self.ratios[Peer.SGD][0] <= self.case.most


def _mlp(*sizes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _cnn(architecture: CnnArchitecture, batch: int, least: float | None) -> Case:
    shape, name = (1, 28, 28), f"4-layer CNN, {architecture.value}"
    build = CnnBuilder(architecture, shape, 10)
    return Case(name, lambda: convolutional(architecture, shape, 10), build, shape, 10, batch, least=least, most=2.0)


def cases() -> tuple[Case, ...]:
    logistic = [
        Case(
            f"logistic regression, 85 features, {str(precision)[6:]}",
            lambda: LogisticRegression(85),
            lambda: nn.Linear(85, 1),
            (85,),
            2,
            batch,
            precision,
            least=15.0 if (batch, precision) == (256, torch.float64) else None,
        )
        for batch in (64, 256, 1024)
        for precision in (torch.float64, torch.float32)
    ]
    return (
        *logistic,
        Case("softmax regression, 784 x 10", lambda: LogisticRegression(784, 10), lambda: nn.Linear(784, 10),
             (784,), 10, 256),
        Case("MLP 85-64-32-2", lambda: Perceptron(85, (64, 32)), lambda: _mlp(85, 64, 32, 2), (85,), 2, 256, least=4.0,
             most=1.5),
        Case("MLP 784-128-10", lambda: Perceptron(784, (128,), 10), lambda: _mlp(784, 128, 10), (784,), 10, 256,
             least=4.0, most=1.5),
        _cnn(CnnArchitecture.COMPACT, 64, 1.0),
        _cnn(CnnArchitecture.COMPACT, 256, 1.0),
        _cnn(CnnArchitecture.STRIDED, 64, 1.0),
        _cnn(CnnArchitecture.FEDAVG, 64, 1.0),
    )  # fmt: skip


def our_step(case: Case) -> Step:
    """theta rests in float64, as the engine keeps it."""
    model, weigh = case.model(), clipped_to(CLIP)
    x, y = case.records()
    theta = model.initial(0)

    def step() -> None:
        nonlocal theta
        theta = theta.sub(model.weighted_gradient(theta, x, y, weigh).total, alpha=LEARNING_RATE / case.batch)

    return step


def torch_parts(case: Case) -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    """Module, loss, features, labels; two classes with one score, as ours has."""
    torch.manual_seed(0)
    module = case.module().to(case.precision)
    x, y = case.records()
    if _one_score(case):
        return nn.Sequential(module, nn.Flatten(0)), nn.BCEWithLogitsLoss(), x, y.to(case.precision)
    return module, nn.CrossEntropyLoss(), x, y


def _one_score(case: Case) -> bool:
    return case.classes == 2 and case.module().state_dict().keys() == {"weight", "bias"}


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


def same_sum(case: Case) -> float:
    """How far Opacus's sum of clipped gradients and ours are apart, relatively, at the same parameters.

    Large fully connected nets clip a little below the bound, to pay for float32; the comparison gives that back.
    """
    step, private = opacus_step(case, ghost=False)
    before = [parameter.detach().clone() for parameter in private.parameters()]
    step()
    moved = [then - now.detach() for then, now in zip(before, private.parameters(), strict=True)]
    model = case.model()
    theta, theirs = _as_theta(model, before), _as_theta(model, moved) * case.batch / LEARNING_RATE
    enlarged = SINGLE_SLACK if isinstance(model, Perceptron) and model.size >= WORTH_SINGLE else 0.0
    ours = model.weighted_gradient(theta, *case.records(), clipped_to(CLIP * (1.0 + enlarged))).total
    return float((ours - theirs).norm() / ours.norm())


def _as_theta(model: Model, pieces: list[Tensor]) -> Tensor:
    theta = torch.zeros(model.size, dtype=torch.float64)
    for place, piece in zip(model.named_parameters(theta).values(), pieces, strict=True):
        place.copy_(piece)
    return theta


def measure(case: Case, everybody: bool = True) -> Result:
    """Blocks of steps in turns; processor time, so that a busy machine slows nobody's share."""
    steps = {Peer.OURS: our_step(case), Peer.SGD: sgd_step(case)}
    if everybody:
        steps |= {peer: opacus_step(case, ghost=peer is Peer.OPACUS_GHOST)[0] for peer in _OPACUS}
    lengths = {peer: max(1, round(BLOCK_SECONDS / _block(step, 3))) for peer, step in steps.items()}
    seconds: dict[Peer, list[float]] = {peer: [] for peer in steps}
    for _ in range(REPETITIONS):
        for peer, step in steps.items():
            seconds[peer].append(_block(step, lengths[peer]))
    ratios = {}
    for peer in steps.keys() - {Peer.OURS}:
        paired = [theirs / ours for theirs, ours in zip(seconds[peer], seconds[Peer.OURS], strict=True)]
        low, middle, high = statistics.quantiles(paired, n=4)
        ratios[peer] = (middle, low, high)
    return Result(case, {peer: statistics.median(found) for peer, found in seconds.items()}, ratios)


def _block(step: Step, length: int) -> float:
    """Seconds a step; the first one warms the caches and is not counted."""
    step()
    start = time.process_time()
    for _ in range(length):
        step()
    return (time.process_time() - start) / length


def page(results: list[Result]) -> str:
    return f"""# Speed of a private step

Written by `python -m tests.benchmarks.private_step_speed` with torch {torch.__version__.split("+")[0]} and Opacus
{_opacus_version()}: processor time of one thread, contenders in turns in one process, {REPETITIONS} repetitions.
A step is the forward pass, per-record gradients clipped to {CLIP:g} and summed, and the update; same batch, same
model, clipping on. No noise in any of them: in privfair noise belongs to the gate and has [its own page](noise.md).
Opacus runs as its `PrivacyEngine` sets it up, in its default mode and with its ghost clipping; both get the batch as
ready tensors. Before timing, the two sums of clipped gradients are compared and must agree. privfair forms norms and
sums in float64 whatever the features' type, but for the sums of large fully connected nets (below; they clip
0.4% under the bound, which is given back for the comparison). Opacus and SGD compute in the type named.

Ratios are medians over the repetitions, with quartiles: how many times longer the other one takes.

| model | batch | privfair, ms | Opacus / privfair | Opacus ghost / privfair | plain SGD / privfair | promised |
|---|---:|---:|---:|---:|---:|---:|
{chr(10).join(_row(result) for result in results)}

Two-class logistic regression is a matter of overhead: its arithmetic takes some ten microseconds, so the lead shrinks
as the batch grows. In wide layers the lead comes from never forming a record's gradient matrix, in convolutions from
one batched product over records; there Opacus's own ghost mode trades memory for a second backward pass.
Times depend on the machine and its load, ratios less so: between runs they move by a fifth, but for the small MLP and
the strided CNN by half, as Opacus's large temporary arrays sometimes come from fresh memory and sometimes do not.
"""


_AGAINST = "## Against plain SGD"


def against_sgd(results: list[Result]) -> str:
    """The last part of the page: how much longer a private step takes than one that protects nobody."""
    rows = []
    for result in results:
        if result.case.most is not None:
            middle, low, high = (1 / part for part in result.ratios[Peer.SGD])
            shown = f"{middle:.2f} ({high:.2f} to {low:.2f})"
            rows.append(f"| {result.case.name} | {result.case.batch} | {shown} | {result.case.most:g} |")
    return f"""{_AGAINST}

Our time over that of a step of `torch.optim.SGD` on the same net, forward and backward in float32: medians with
quartiles, measured at a load of {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores.

| model | batch | privfair / plain SGD | promised: at most |
|---|---:|---:|---:|
{chr(10).join(rows)}

Convolutions gather the patches that each output looks at, of so many records at a time that they stay in the cache,
and form every record's gradient in a batched product; norms are added up in float64 over blocks of float32. Large fully
connected nets sum over records in float32 where their norms pay for its rounding
([what rounding can do](../models.md#what-rounding-can-do)).
The strided net depends most on what else the machine does: each record's gradient of its second convolution has 51,200
numbers, and 13 MB of them are written and read twice per step; at a load of 15 it took 2.9 times as long as plain SGD.
"""


def _row(result: Result) -> str:
    def shown(peer: Peer) -> str:
        middle, low, high = result.ratios[peer]
        return f"{middle:.3g} ({low:.3g} to {high:.3g})"

    case = result.case
    promised = "" if case.least is None else f"{case.least:g}"
    ours = result.seconds[Peer.OURS] * 1e3
    peers = (Peer.OPACUS, Peer.OPACUS_GHOST, Peer.SGD)
    return f"| {case.name} | {case.batch} | {ours:.3g} | {' | '.join(map(shown, peers))} | {promised} |"


def _opacus_version() -> str:
    from importlib.metadata import version

    return version("opacus")


def _passed_limits(results: list[Result]) -> int:
    passed = [result for result in results if not result.within]
    for result in passed:
        print(f"slower than promised beside plain SGD: {result.case.name}, batch {result.case.batch}")
    return len(passed)


def main() -> int:
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message=".*backward hook.*")
    torch.set_num_threads(1)
    with threadpool_limits(1):
        if sys.argv[1:] == ["sgd"]:
            results = [measure(case, everybody=False) for case in cases() if case.most is not None]
            section = against_sgd(results)
            PAGE.write_text(
                PAGE.read_text("utf-8").partition(_AGAINST)[0].rstrip() + f"\n\n{section}", encoding="utf-8"
            )
            print(section)
            return int(bool(_passed_limits(results)))
        for case in cases():
            apart = same_sum(case)
            if apart > 1e-4:
                print(f"{case.name}: the sums of clipped gradients differ by {apart:.1e}, nothing to compare")
                return 1
        results = [measure(case) for case in cases()]
    text = f"{page(results)}\n{against_sgd(results)}"
    PAGE.write_text(text, encoding="utf-8")
    print(text)
    lost = [result for result in results if not result.holds]
    for result in lost:
        print(f"lost: {result.case.name}, batch {result.case.batch}")
    return int(bool(lost) or bool(_passed_limits(results)))


if __name__ == "__main__":
    sys.exit(main())

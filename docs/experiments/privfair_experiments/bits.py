"""What the bits of exact contributions cost in accuracy: `make experiments NAME=bits`.

Fashion-MNIST, a fully connected net and a convolutional one, clipped and noisy steps. Every variant starts from the
same parameters and sees the same batches and the same noise, so that differences are paired by seed. "float32" and
"float64" are per-record gradients by torch.func, which round a record by its place in the batch. About an hour of one
core; rows in data/bits.csv are not trained again. Needs Debian's dataset-fashion-mnist.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor
from torch.func import functional_call, grad, vmap

from privfair.data.images import load_fashion_mnist
from privfair.models.exact import Bits
from privfair.models.model import Records, clipped_to
from privfair.models.torch_module import TorchModule
from privfair_experiments import PAGES

ROWS, PAGE = PAGES / "data" / "bits.csv", PAGES / "bits.md"
VARIANTS: dict[str, Bits | torch.dtype] = {
    "float32": torch.float32,
    "float64": torch.float64,
    "7 bits": Bits.SEVEN,
    "13 bits": Bits.THIRTEEN,
    "largest": Bits.LARGEST,
}
STEPS, BATCH, CLIP = {"MLP": 400, "CNN": 200}, {"MLP": 256, "CNN": 128}, 1.0
RATE, OTHER_RATES, SEEDS = 1.0, (0.95, 0.9), range(5)
"""The other rates, of the CNN in float32, show how far a change of the effective step alone moves the accuracy."""
NOISE = 1.0
"""Noise multiplier of each step."""


def build_mlp() -> torch.nn.Sequential:
    """784-72-40-10: 59,842 parameters."""
    sizes = (784, 72, 40, 10)
    layers: list[torch.nn.Module] = [torch.nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def build_cnn() -> torch.nn.Sequential:
    """Two 5 x 5 convolutions with pooling, two fully connected layers: 190,106 parameters."""
    return torch.nn.Sequential(
        *(torch.nn.Conv2d(1, 16, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Conv2d(16, 32, 5, padding=2), torch.nn.ReLU(), torch.nn.MaxPool2d(2)),
        *(torch.nn.Flatten(), torch.nn.Linear(1568, 112), torch.nn.ReLU(), torch.nn.Linear(112, 10)),
    )


BUILDERS: dict[str, Callable[[], torch.nn.Sequential]] = {"MLP": build_mlp, "CNN": build_cnn}


def images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images in [0, 1], and their classes."""
    train, test = load_fashion_mnist()
    pairs = [
        (torch.from_numpy(np.array(d.features, dtype=np.float32)), torch.from_numpy(np.array(d.label)))
        for d in (train, test)
    ]
    (x, y), (held_x, held_y) = pairs
    return x.reshape(-1, 1, 28, 28), y.long(), held_x.reshape(-1, 1, 28, 28), held_y.long()


def rounding_step(net: str, dtype: torch.dtype) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The sum of clipped gradients as other libraries compute it, in one floating-point type."""
    module = BUILDERS[net]().to(dtype)
    names, shapes = zip(*((name, value.shape) for name, value in module.named_parameters()), strict=True)
    sizes = [math.prod(shape) for shape in shapes]

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(functional_call(module, parameters, (x[None],)), y[None])

    each = vmap(grad(loss), in_dims=(None, 0, 0))

    def step(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        pieces = torch.split(theta.to(dtype), sizes)
        named = {n: piece.view(shape) for n, piece, shape in zip(names, pieces, shapes, strict=True)}
        totals = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in zip(names, shapes, strict=True)}
        for some_x, some_y in zip(torch.split(x.to(dtype), 64), torch.split(y, 64), strict=True):
            found = {name: one.flatten(1) for name, one in each(named, some_x, some_y).items()}
            norms = torch.stack([one.norm(dim=1).double() for one in found.values()]).norm(dim=0)
            factors = (CLIP / norms.clamp_min(CLIP)).to(dtype)
            for name, one in found.items():
                totals[name] += (factors @ one).view(totals[name].shape)
        return torch.cat([one.flatten() for one in totals.values()])

    return step


def train(net: str, variant: str, rate: float, seed: int, data: tuple[Tensor, ...]) -> tuple[float, float]:
    """Test accuracy after the fixed number of steps, and processor time."""
    x, y, held_x, held_y = data
    kind, began = VARIANTS[variant], time.process_time()
    exact = TorchModule(BUILDERS[net], torch.zeros(2, 1, 28, 28), kind if isinstance(kind, Bits) else Bits.LARGEST)
    rounding = None if isinstance(kind, Bits) else rounding_step(net, kind)
    theta, random = exact.initial(seed), torch.Generator().manual_seed(1000 + seed)
    for _ in range(STEPS[net]):
        rows = torch.randperm(len(x), generator=random)[: BATCH[net]]
        noise = torch.randn(len(theta), generator=random, dtype=torch.float64) * (NOISE * CLIP)
        if rounding is None:
            total = exact.weighted_gradient(theta, Records(x, rows), y[rows], clipped_to(CLIP)).total
        else:
            total = rounding(theta, x[rows], y[rows])
        theta = theta - rate * (total + noise) / BATCH[net]
    module = exact.as_module(theta.float())
    with torch.no_grad():
        found = torch.cat([module(part).argmax(dim=1) for part in torch.split(held_x, 1000)])
    return float((found == held_y).double().mean()), time.process_time() - began


Accuracies = dict[tuple[str, str, float, int], float]
"""By net, variant, rate and seed."""


def known() -> Accuracies:
    """Accuracies of the rows so far."""
    with ROWS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {(r["net"], r["variant"], float(r["rate"]), int(r["seed"])): float(r["accuracy"]) for r in rows}


def differences(found: Accuracies, net: str, variant: str, rate: float = RATE) -> list[float]:
    """Paired differences to float32 at the usual rate, by seed."""
    return [
        found[net, variant, rate, seed] - found[net, "float32", RATE, seed]
        for seed in SEEDS
        if (net, variant, rate, seed) in found and (net, "float32", RATE, seed) in found
    ]


def difference(found: Accuracies, net: str, variant: str, rate: float = RATE) -> str:
    """Their mean, with its 95% interval (Student's t)."""
    pairs = differences(found, net, variant, rate)
    if len(pairs) < 2:
        return "-"
    half = float(student.ppf(0.975, len(pairs) - 1)) * float(np.std(pairs, ddof=1)) / math.sqrt(len(pairs))
    return f"{np.mean(pairs):+.4f} +- {half:.4f}"


def conclusion(found: Accuracies) -> list[str]:
    """What the differences of the CNN are worth, and what follows for the default."""
    seven, wide = (np.abs(differences(found, "CNN", variant)).max() for variant in ("7 bits", "float64"))
    moved = np.abs([differences(found, "CNN", "float32", rate) for rate in OTHER_RATES]).max()
    within = "within" if seven <= max(wide, moved) else "beyond"
    return [
        f"At 7 bits the CNN differs by {difference(found, 'CNN', '7 bits')}, {within} its noise: float64 is up to",
        f"{wide:.4f} from float32 on one seed, and a rate 5 or 10% smaller moves float32 by up to {moved:.4f}.",
        f"13 bits, the default, differs by {difference(found, 'CNN', '13 bits')}; 7 bits is the fast option.",
    ]


def write_page(found: Accuracies) -> None:
    """The table of accuracies and paired differences, and what follows for the default."""
    lines = [
        "# Accuracy of exact contributions",
        "",
        "Written by `make experiments NAME=bits` from data/bits.csv. Fashion-MNIST, clip 1, noise multiplier 1,",
        f"{STEPS['MLP']} steps of {BATCH['MLP']} images for the MLP (59,842 parameters),",
        f"{STEPS['CNN']} steps of {BATCH['CNN']} for the CNN (190,106).",
        "All variants share first parameters, batches and noise, seed by seed. float32 and float64 are",
        "per-record gradients by torch.func, which round a record by its place in the batch.",
        "",
        "| net | variant | rate | seeds | test accuracy | paired difference to float32, 95% interval |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for net, variant, rate in dict.fromkeys(key[:3] for key in sorted(found, key=_order)):
        own = [found[net, variant, rate, seed] for seed in SEEDS if (net, variant, rate, seed) in found]
        what = difference(found, net, variant, rate)
        lines.append(f"| {net} | {variant} | {rate:g} | {len(own)} | {np.mean(own):.4f} | {what} |")
    PAGE.write_text("\n".join([*lines, "", *conclusion(found)]) + "\n", encoding="utf-8")


def _order(key: tuple[str, str, float, int]) -> tuple[int, float, int, int]:
    net, variant, rate, seed = key
    return list(BUILDERS).index(net), abs(rate - RATE), list(VARIANTS).index(variant), seed


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=list(BUILDERS), default=list(BUILDERS))
    chosen = parser.parse_args(arguments).only
    torch.set_num_threads(1)
    data = images()
    settings = [(net, variant, RATE) for net in chosen for variant in VARIANTS]
    settings += [("CNN", "float32", rate) for rate in OTHER_RATES if "CNN" in chosen]
    for seed in SEEDS:
        for net, variant, rate in settings:
            if (net, variant, rate, seed) in known():
                continue
            accuracy, seconds = train(net, variant, rate, seed, data)
            with ROWS.open("a", newline="") as file:
                csv.writer(file).writerow((net, variant, rate, seed, f"{accuracy:.4f}", f"{seconds:.0f}"))
            print(net, variant, rate, seed, f"{accuracy:.4f}", f"{seconds:.0f} s", flush=True)
    write_page(known())

"""Banded against independent noise at equal epsilon: `make experiments NAME=banded`.

About four minutes of one core. Needs the extras train, data, and Debian's dataset-fashion-mnist for the second half.
Writes banded.md and banded.json into `--out`; what stands in banded.json is not trained again.

Linear softmax models with clipped gradients, trained as `algorithm = "gaussian"` trains them; noise multipliers come
from the certified accountant, the correlated noise from the signed strategy and the engine's own forward substitution.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from calibrate.banded import banded_strategy, prefix_error
from calibrate.questions import choose_bands, sigma
from privfair.contribution import RecentRounds
from privfair.data.benchmarks import load_adult
from privfair.data.images import DEBIAN_FOLDER, load_fashion_mnist
from privfair_experiments import PAGES
from privfair_experiments.seed_intervals import Interval, load_rows, save_rows

BATCHES, EPOCHS, DELTA = 100, 4, 1e-5
ROUNDS = BATCHES * EPOCHS
EPSILONS = (1.0, 4.0)
SMALL = {"Adult": (1000, 4000), "Fashion-MNIST features": (4000,)}
"""Training records of small silos."""
SEEDS, TUNING_SEEDS = range(12), (100, 101)
RATES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
INDEPENDENT, CHOSEN, WHOLE = "independent", "banded", "banded, whole groups"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """One trained model."""

    data: str
    epsilon: float
    method: str
    bands: int
    learning_rate: float
    seed: int
    accuracy: float


@dataclass(frozen=True)
class Data:
    """Features of norm at most 1 by public rules, with a constant as the last one."""

    name: str
    features: Floats
    label: NDArray[np.int64]
    classes: int
    most: int | None = None

    def split(self, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        order = np.random.default_rng((seed, 1)).permutation(len(self.label))
        return order[len(order) // 5 :][: self.most], order[: len(order) // 5]


def adult() -> Data:
    """Adult with the loader's public scaling."""

    found = load_adult()
    return Data("Adult", _bounded(np.asarray(found.features)), np.asarray(found.label), 2)


def fashion() -> Data | None:
    """Histograms of gradients of Fashion-MNIST in 7 x 7 cells: no pretraining, no statistic of the data."""

    if not DEBIAN_FOLDER.exists():
        print("without Fashion-MNIST: apt install dataset-fashion-mnist", file=sys.stderr)
        return None
    found, _ = load_fashion_mnist()
    images = np.asarray(found.features, dtype=np.float32).reshape(-1, 28, 28)[::2]
    return Data("Fashion-MNIST features", _bounded(_histograms(images)), np.asarray(found.label)[::2], 10)


def _histograms(images: NDArray[np.float32], angles: int = 8) -> Floats:
    """Per cell of 4 x 4 pixels: gradient strength by angle, relative to the cell's own, and the mean brightness."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)), mode="edge")
    across, down = padded[:, 1:-1, 2:] - padded[:, 1:-1, :-2], padded[:, 2:, 1:-1] - padded[:, :-2, 1:-1]
    strength = np.hypot(across, down)
    place = (np.arctan2(down, across) % np.pi) / np.pi * angles
    parts = []
    for angle in range(angles):
        distance = np.abs((place - angle + angles / 2) % angles - angles / 2)
        parts.append(_cells(strength * np.clip(1 - distance, 0, None)))
    table = np.stack(parts, axis=1)
    table /= np.sqrt(np.square(table).sum(axis=1, keepdims=True) + 0.1)
    flat = table.reshape(len(images), -1)
    return np.concatenate((flat, 2 * _cells(images).reshape(len(images), -1) / 16 - 0.6), axis=1).astype(np.float64)


def _cells(images: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(images.reshape(-1, 7, 4, 7, 4).sum(axis=(2, 4)))


def _bounded(features: NDArray[np.floating]) -> Floats:
    with_constant = np.concatenate((features, np.ones((len(features), 1))), axis=1)
    return np.asarray(with_constant / np.linalg.norm(with_constant, axis=1, keepdims=True), dtype=np.float64)


def train(data: Data, epsilon: float, bands: int, learning_rate: float, seed: int) -> float:
    """The accuracy of one model on held-out records. One band is independent noise on Poisson batches."""
    training, test = data.split(seed)
    random = np.random.default_rng((seed, 2))
    z, column = noise_multiplier(epsilon, bands), banded_strategy(bands, ROUNDS)
    group, within = random.integers(bands, size=len(training)), bands / BATCHES
    theta, recent = np.zeros((data.features.shape[1], data.classes)), RecentRounds(column)
    for step in range(ROUNDS):
        turn = np.flatnonzero(group == step % bands)
        batch = training[turn[random.random(len(turn)) < within]]
        total = _clipped_sum(data.features[batch], data.label[batch], theta)
        noise = random.normal(scale=z, size=theta.shape)
        if bands > 1:  # what the coordinator's forward substitution makes of independent noise
            noise = recent.unmix(step, noise)
            recent.add(step, noise)
        theta -= learning_rate * (total + noise) / (len(training) / BATCHES)
    return float((np.argmax(data.features[test] @ theta, axis=1) == data.label[test]).mean())


def _clipped_sum(x: Floats, y: NDArray[np.int64], theta: Floats) -> Floats:
    """Softmax gradients clipped at 1; a record's gradient is the product of x and the residual."""
    scores = x @ theta
    chances = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    chances[np.arange(len(y)), y] -= 1
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(chances, axis=1)
    return np.asarray(x.T @ (chances / np.maximum(1.0, norms)[:, None]))


@cache
def noise_multiplier(epsilon: float, bands: int) -> float:
    """The smallest certified one, for `ROUNDS` batches of one hundredth of the data."""
    return sigma(
        epsilon=epsilon,
        delta=DELTA,
        rounds=ROUNDS,
        sampling="cyclic",
        batches=bands,
        sampling_rate=f"1/{BATCHES}",
        bands=bands,
    )


def methods(epsilon: float) -> Iterator[tuple[str, int]]:
    """Each method with its bands, which follow from public numbers alone."""
    yield INDEPENDENT, 1
    yield CHOSEN, choose_bands(epsilon=epsilon, delta=DELTA, batches=BATCHES, rounds=ROUNDS)
    yield WHOLE, BATCHES


@dataclass
class Measured:
    """Every model that was trained, on file at once."""

    path: Path
    rows: list[Row]

    def accuracy(self, data: Data, epsilon: float, method: str, bands: int, rate: float, seed: int) -> float:

        key = (data.name, epsilon, method, bands, rate, seed)
        for row in self.rows:
            if (row.data, row.epsilon, row.method, row.bands, row.learning_rate, row.seed) == key:
                return row.accuracy
        found = train(data, epsilon, bands, rate, seed)
        self.rows.append(Row(*key, found))
        save_rows(self.rows, self.path)
        return found


def best_rate(rows: list[Row], data: str, epsilon: float) -> float:
    """The learning rate with the best accuracy on the seeds for tuning, of one method's rows."""
    tuned = [row for row in rows if row.seed in TUNING_SEEDS and (row.data, row.epsilon) == (data, epsilon)]
    return max(RATES, key=lambda rate: sum(row.accuracy for row in tuned if row.learning_rate == rate))


def run(results: Path, seeds: range) -> list[Row]:
    """The learning rate of each method is chosen on seeds of its own."""

    measured = Measured(results, load_rows(Row, results) if results.exists() else [])
    whole = [data for data in (adult(), fashion()) if data is not None]
    small = [
        replace(data, name=f"{data.name}, {most} records", most=most) for data in whole for most in SMALL[data.name]
    ]
    for data, epsilon in product((*whole, *small), EPSILONS):
        for method, bands in methods(epsilon):
            for rate, seed in product(RATES, TUNING_SEEDS):
                measured.accuracy(data, epsilon, method, bands, rate, seed)
            best = best_rate([row for row in measured.rows if row.method == method], data.name, epsilon)
            for seed in seeds:
                measured.accuracy(data, epsilon, method, bands, best, seed)
            print(f"{data.name} epsilon {epsilon:g} {method}: rate {best:g}", file=sys.stderr, flush=True)
    return measured.rows


def page(rows: list[Row]) -> str:
    """The whole page: template with its tables filled in."""

    lines = ["| data | epsilon | method | bands | noise multiplier | error of running sums | rate | accuracy | gain |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    final = [row for row in rows if row.seed not in TUNING_SEEDS]
    for data, epsilon in dict.fromkeys((row.data, row.epsilon) for row in final):
        own = [row for row in final if (row.data, row.epsilon) == (data, epsilon)]
        rate = best_rate([row for row in rows if row.method == INDEPENDENT], data, epsilon)
        plain = {row.seed: row.accuracy for row in own if (row.method, row.learning_rate) == (INDEPENDENT, rate)}
        for method, bands in dict.fromkeys((row.method, row.bands) for row in own):
            rate = best_rate([row for row in rows if row.method == method], data, epsilon)
            of_method = [row for row in own if row.method == method and row.learning_rate == rate]
            mean = Interval.of(100 * row.accuracy for row in of_method)
            gain = Interval.of(100 * (row.accuracy - plain[row.seed]) for row in of_method)
            z = noise_multiplier(epsilon, bands)
            error = z * prefix_error(banded_strategy(bands, ROUNDS), ROUNDS) ** 0.5
            shown = "" if method == INDEPENDENT else gain.text(2, signed=True)
            lines.append(
                f"| {data} | {epsilon:g} | {method} | {bands} | {z:.3f} | {error:.2f} | {rate:g} "
                f"| {mean.text(2)} | {shown} |"
            )
    template = (PAGES / "banded-template.md").read_text("utf-8")
    return template.replace("<!-- table -->", "\n".join(lines)).replace("<!-- seeds -->", str(len(plain)))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="fewer splits, for a quick look")
    parser.add_argument("--out", type=Path, default=PAGES)
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "banded.md").write_text(page(run(chosen.out / "banded.json", SEEDS[: chosen.seeds])), "utf-8")

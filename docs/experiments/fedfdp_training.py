"""One run: the algorithm's own class, Poisson batches as the engine draws them, noise as calibrated, Psi at the end.

Signing, ledger and transcript are left out: the net's transcript would take gigabytes. The noise is numpy's, seeded, so
that the runs can be repeated; that protects nobody, and the images are public.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from fedfdp_settings import BETA, CLIENTS, LEAST, SAMPLING_RATE, STEPS, Clients, Method, budget

from calibrate.sampling import Batch, Poisson
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.batches.participation import Participation
from privfair.batches.randomness import SeededWords
from privfair.contribution import Published
from privfair.data.benchmarks import Benchmark, load_benchmark
from privfair.data.partition import DirichletByLabel, cut_into_silos, split_silos
from privfair.fairness.clipping import psi
from privfair.models.convolutional import convolutional
from privfair.models.model import CnnArchitecture, Model, clipped_to
from privfair.run.metrics import HeldOutRecords


@dataclass(frozen=True, eq=False)
class Federation:
    """Ten clients with training and test images of their own kinds."""

    model: Model
    silos: tuple[SiloTensors, ...]
    held_out: HeldOutRecords
    clients: Clients


@dataclass(frozen=True)
class Row:
    """One trained model."""

    method: str
    seed: int
    sigma: float
    true_epsilon: float
    accuracy: float
    psi: float
    loss: float
    """Weighted by the clients' shares, as Psi is."""
    worst: float
    """The lowest accuracy of a client."""
    longer: float
    """The share of training records (100 of each client) whose gradient at the trained model exceeds the clip."""
    seconds: float


def federation(seed: int) -> Federation:
    """Fashion-MNIST, each class shared out by Dirichlet(0.1), a quarter of each client's images held out."""
    silos = cut_into_silos(load_benchmark(Benchmark.FASHION_MNIST), DirichletByLabel(CLIENTS, BETA, LEAST), seed)
    parts = split_silos(silos, seed)
    tensors = tuple(
        SiloTensors(
            silo.name,
            torch.from_numpy(np.array(silo.data.features, dtype=np.float32)),
            torch.from_numpy(np.array(silo.data.label)),
            torch.from_numpy(np.array(silo.data.group)),
        )
        for silo in parts.train
    )
    total = sum(len(silo) for silo in tensors)
    clients = Clients(
        {silo.name: len(silo) / total for silo in tensors}, {silo.name: SAMPLING_RATE * len(silo) for silo in tensors}
    )
    model = convolutional(CnnArchitecture.UNPADDED, (1, 28, 28), 10)
    return Federation(model, tensors, HeldOutRecords(parts.test, torch.float32), clients)


def run(method: Method, on: Federation, seed: int) -> Row:
    start = time.process_time()
    certified = budget(method.priced, method.clip)
    algorithm = method.build(on.model, on.clients, seed)
    theta = _train(algorithm, {value.name: value.sigma for value in certified.values}, on, seed)
    measured = on.held_out.measure(on.model, theta, STEPS, None)
    seconds = time.process_time() - start
    by_client = measured.measured.as_json()["silos"]
    shares = on.clients.shares
    return Row(
        method=method.name,
        seed=seed,
        sigma=certified.values[0].noise_multiplier or 0.0,
        true_epsilon=certified.certified.upper,
        accuracy=measured.measured.as_json()["overall"]["accuracy"],
        psi=psi(measured.silo_losses, shares),
        loss=sum(shares[name] * loss for name, loss in measured.silo_losses.items()),
        longer=_longer_than_the_clip(on, theta, method.clip),
        worst=min(client["accuracy"] for client in by_client.values()),
        seconds=seconds,
    )


def _train(algorithm: Algorithm[Any], sigmas: dict[str, float | None], on: Federation, seed: int) -> torch.Tensor:
    noise = np.random.default_rng(seed)
    rate = Poisson(SAMPLING_RATE, Batch.SECRET)
    batches = {
        silo.name: Participation(silo.name, len(silo), rate, SeededWords(seed, f"batches of {silo.name}"))
        for silo in on.silos
    }
    state = algorithm.start()
    for step in range(STEPS):
        received = {}
        for silo in on.silos:
            batch = torch.from_numpy(batches[silo.name].batch(step))
            message = algorithm.contribution(state, step, silo, batch)
            assert not message.clear, "nothing leaves without noise"
            sent = {}
            for part in message.noisy:
                sigma = sigmas[part.name]
                assert sigma is not None
                assert part.measured <= part.bound
                values = part.values + sigma * noise.standard_normal(part.values.shape)
                sent[part.name] = Published(step, silo.name, part.name, values)
            received[silo.name] = sent
        state = algorithm.update(state, received)
    return algorithm.theta(state)


def _longer_than_the_clip(on: Federation, theta: torch.Tensor, clip: float) -> float:
    norms = [on.model.weighted_gradient(theta, silo.x[:100], silo.y[:100], clipped_to(clip)).norms for silo in on.silos]
    return float((torch.cat(norms) > clip).double().mean())

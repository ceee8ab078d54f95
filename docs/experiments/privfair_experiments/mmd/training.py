"""One cell of the MMD experiment: data, algorithm of the engine, training, and what the model does on test records."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from calibrate.budget import CertifiedBudget, calibrate_plan
from calibrate.plans.mmd_fedavg import MmdFedavgPlan
from calibrate.privacy_unit import EpsilonDelta
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.algorithms.baselines.client_losses import AgnosticFl, AgnosticOptions
from privfair.algorithms.mmd_fedavg import (
    PREDICTIONS,
    CountsInTheClear,
    MmdFedAvg,
    MmdFedAvgOptions,
    MmdTerms,
    NoiseCorrection,
    PublicShares,
)
from privfair.data.dataset import Silos
from privfair.data.partition import split_silos
from privfair.data.training_data import silo_tensors
from privfair.fairness.constraints import KernelKind
from privfair.fairness.mmd import GaussianSmoothing
from privfair.models.model import Model
from privfair_experiments.baselines.fairfed import FairFed, FairFedOptions
from privfair_experiments.baselines.fedfb import FedFb, FedFbOptions
from privfair_experiments.baselines.local_mmd import LocalMmd, LocalMmdOptions
from privfair_experiments.engine_run import Signed, promised, train, unpromised
from privfair_experiments.mmd.settings import DELTA, EPSILON, PRIVATE, SAMPLES, Method, PrivateSetting, Schedule

CENTRAL = "central"


@dataclass(frozen=True)
class Row:
    """One trained model; `knob` is the fairness weight (FedFB: its alpha), `own` the heterogeneity."""

    task: str
    method: str
    knob: float
    own: float
    seed: int
    true_epsilon: float | None
    accuracy: float
    parity_gap: float


@dataclass(frozen=True, eq=False)
class Clients:
    """Training records client by client, and all test records together."""

    train: tuple[SiloTensors, ...]
    x: torch.Tensor
    y: np.ndarray
    s: np.ndarray

    @classmethod
    def of(cls, silos: Silos, seed: int, dtype: torch.dtype) -> Clients:
        parts = split_silos(silos, seed)
        train = tuple(silo_tensors(silo, dtype) for silo in parts.train)
        test = parts.test.pooled()
        x = torch.from_numpy(np.array(test.features)).to(dtype)
        return cls(train, x, np.array(test.label), np.array(test.group))

    @property
    def sizes(self) -> dict[str, int]:
        return {silo.name: len(silo) for silo in self.train}

    @property
    def shares(self) -> dict[str, float]:
        total = sum(self.sizes.values())
        return {name: size / total for name, size in self.sizes.items()}

    def collected(self) -> SiloTensors:
        """All records with one collector, who knows each one's client."""
        x, y, s = (torch.cat([getattr(silo, name) for silo in self.train]) for name in ("x", "y", "s"))
        sizes = torch.tensor(tuple(self.sizes.values()))
        return SiloTensors(CENTRAL, x, y, s, None, torch.repeat_interleave(torch.arange(len(sizes)), sizes))

    def measure(self, model: Model, theta: torch.Tensor, threshold: float | None = None) -> tuple[float, float]:
        """Accuracy, and the gap between the groups' rates of positive predictions; the likelier class unless told."""
        with torch.no_grad():
            logits = model.logits(theta, self.x)
            likely = logits.argmax(dim=1) == 1 if threshold is None else torch.softmax(logits, dim=1)[:, 1] >= threshold
            positive = likely.numpy()
        rates = [positive[self.s == group].mean() for group in (0, 1)]
        return float((positive == (self.y == 1)).mean()), float(abs(rates[0] - rates[1]))


@dataclass(frozen=True, eq=False)
class Cell:
    """What to train on what."""

    clients: Clients
    model: Model
    schedule: Schedule
    seed: int


def run_cell(cell: Cell, method: Method, knob: float) -> tuple[float | None, float, float]:
    """True epsilon (None without privacy), accuracy and parity gap."""
    if method in PRIVATE:
        return _private(cell, PRIVATE[method], knob)
    rounds = cell.schedule.rounds * (cell.schedule.epochs if method is Method.AGNOSTIC else 1)
    algorithm = _algorithm(cell, method, knob)
    if method in (Method.OURS, Method.CENTRAL):
        silos: tuple[SiloTensors, ...] = (cell.clients.collected(),)
    else:
        silos = cell.clients.train
    signed = unpromised(algorithm, rounds, {silo.name: len(silo) for silo in silos})
    return None, *cell.clients.measure(cell.model, train(algorithm, signed, silos, cell.seed))


def _algorithm(cell: Cell, method: Method, knob: float) -> Algorithm[Any]:
    model, clients, seed = cell.model, cell.clients, cell.seed
    epochs, batch, rate, factor = cell.schedule.epochs, cell.schedule.batch, cell.schedule.rate, cell.schedule.factor
    match method:
        case Method.OURS:
            options = MmdFedAvgOptions(
                local_rate=rate,
                local_rate_factor=factor,
                local_epochs=epochs,
                local_batch=batch,
                fairness=knob,
                kernel=KernelKind.ENERGY,
            )
            terms = MmdTerms(tuple(clients.sizes.values()), SAMPLES, len(clients.train), CountsInTheClear())
            return MmdFedAvg(model, options, terms, seed)
        case Method.CENTRAL:
            own = LocalMmdOptions(rate, epochs, None, factor, fairness=knob)
            return LocalMmd(model, own, {CENTRAL: 1.0}, seed)
        case Method.LOCAL:
            own = LocalMmdOptions(rate, epochs, batch, factor, fairness=knob)
            return LocalMmd(model, own, clients.shares, seed)
        case Method.FAIRFED:
            fair = FairFedOptions(rate, epochs, batch, factor, fairness=knob)
            return FairFed(model, fair, clients.shares, seed)
        case Method.FEDFB:
            weighed = FedFbOptions(learning_rate=rate, local_epochs=epochs, local_batch=batch, weight_rate=knob)
            return FedFb(model, weighed, clients.shares, seed)
        case Method.AGNOSTIC:
            return AgnosticFl(model, AgnosticOptions(learning_rate=0.5), clients.shares, seed=seed)
        case _:
            raise ValueError(method)


def _private(cell: Cell, setting: PrivateSetting, knob: float) -> tuple[float, float, float]:
    budget = _budget(setting, cell.schedule.rounds)
    noise = budget.value(PREDICTIONS[0]).sigma
    assert noise is not None
    # Where noise is wider than the kernel, no kernel undoes it, and the convolved one has to do.
    exact = noise < setting.kernel_width
    options = MmdFedAvgOptions(
        local_rate=cell.schedule.rate,
        local_epochs=cell.schedule.epochs,
        fairness=knob,
        kernel=KernelKind.GAUSSIAN,
        kernel_width=setting.kernel_width,
        correction=NoiseCorrection.EXACT if exact else NoiseCorrection.NONE,
    )
    terms = MmdTerms(
        tuple(cell.clients.sizes.values()),
        SAMPLES,
        setting.cohort,
        PublicShares((0.5, 0.5)),
        setting.update_clip,
        GaussianSmoothing(noise),
        setting.group_size,
    )
    algorithm = MmdFedAvg(cell.model, options, terms, cell.seed)
    collector = cell.clients.collected()
    signed: Signed = promised(algorithm, budget, {CENTRAL: len(collector)})
    theta = train(algorithm, signed, (collector,), cell.seed)
    return budget.certified.upper, *cell.clients.measure(cell.model, theta)


@lru_cache
def _budget(setting: PrivateSetting, rounds: int) -> CertifiedBudget:
    plan = MmdFedavgPlan(
        setting.group_size,
        SAMPLES,
        rounds,
        users=setting.clients,
        cohort=setting.cohort,
        update_clip=setting.update_clip,
        update_noise_ratio=setting.update_noise_ratio,
    )
    return calibrate_plan(plan, EpsilonDelta(EPSILON, DELTA))

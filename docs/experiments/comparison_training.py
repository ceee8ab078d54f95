"""One run of a plan through the whole engine: calibrated, signed, charged, trained; measured on its test records."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from comparison_plans import HETEROGENEITY, SETTINGS, SILOS, Method, Setting, Unit, methods, plan_text

from calibrate.manifest.issue import issue
from calibrate.manifest.keys import Role, generate
from calibrate.manifest.trust import TrustedKey, TrustFile
from privfair.data import training_data
from privfair.data.partition import Heterogeneous, cut_into_silos
from privfair.data.silos import Silos
from privfair.data.training_data import load_training_data
from privfair.fairness.clipping import psi
from privfair.ledger import Ledger
from privfair.models.linear import LogisticRegression
from privfair.plan.file import read_plan_file
from privfair.plan.issue import Issuing, promise, without_promise
from privfair.plan.training import read_training_plan
from privfair.run.folder import RunFolder, load_theta
from privfair.run.metrics import HeldOutRecords
from privfair.training import train

# Every run signs, trains and measures on the same public table, which cannot be written to: read it once a process.
training_data.load_benchmark = lru_cache(training_data.load_benchmark)


@dataclass(frozen=True)
class Row:
    """One trained model; `epsilon` is the target, `true_epsilon` the certified upper end."""

    data: str
    method: str
    unit: str
    epsilon: float
    true_epsilon: float | None
    seed: int
    error: float
    demographic_parity: float
    equalised_odds: float
    false_negative_gap: float
    psi: float
    seconds: float


@dataclass(frozen=True)
class Job:
    data: str
    method: str
    epsilon: float
    seed: int


def jobs_of(setting: Setting, epsilons: tuple[float, ...], seeds: tuple[int, ...]) -> list[Job]:
    """References without privacy are trained once a seed."""
    return [
        Job(setting.title, method.name, epsilon, seed)
        for seed in seeds
        for method in methods(setting)
        for epsilon in (epsilons if method.unit is not Unit.NOBODY else epsilons[:1])
    ]


def run_job(job: Job) -> Row:
    setting = next(one for one in SETTINGS if one.title == job.data)
    method = next(one for one in methods(setting) if one.name == job.method)
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that research noise protects nobody is said on the page
        return _run(job, setting, method, Path(folder))


def _run(job: Job, setting: Setting, method: Method, folder: Path) -> Row:
    plan = folder / "plan.toml"
    plan.write_text(plan_text(method, setting, job.epsilon, job.seed), "utf-8")
    true_epsilon = _sign(plan, folder)
    Ledger.create(folder / "ledger.db").close()
    start = time.process_time()
    train(
        plan,
        manifest=folder / "budget.json",
        trust=folder / "trust.json",
        ledger=folder / "ledger.db",
        out=folder / "run",
    )
    seconds = time.process_time() - start
    test = load_training_data(read_training_plan(plan).data).test
    if len(test) != SILOS:  # users, or many clients: their test records, cut like everybody's silos
        test = cut_into_silos(
            test.pooled(), Heterogeneous(SILOS, setting.benchmark.age_column, HETEROGENEITY), job.seed
        )
    return _measured(job, method, true_epsilon, test, RunFolder(folder / "run"), seconds)


def _sign(plan: Path, folder: Path) -> float | None:
    """A manifest for the plan's bytes, by a key that lives as long as the run; what it truly costs."""
    key, file = generate(), read_plan_file(plan)
    start = datetime.now(UTC) - timedelta(days=1)
    trust = TrustFile(keys=(TrustedKey.of(key.public, Role.PRIVACY_OFFICER, start),))
    (folder / "trust.json").write_bytes(trust.to_bytes())
    if not file.target_section:
        (folder / "budget.json").write_bytes(issue(without_promise(file, "reference", Issuing()), key))
        return None
    budget, document = promise(file, file.target(), Issuing(research_noise=True))
    (folder / "budget.json").write_bytes(issue(document, key))
    return budget.certified.upper


def _measured(
    job: Job, method: Method, true_epsilon: float | None, test: Silos, folder: RunFolder, seconds: float
) -> Row:
    model = LogisticRegression(test[0].data.features.shape[1])
    theta = load_theta(folder, model)
    found = HeldOutRecords(test, torch.float64).measure(model, theta, 0, None)
    overall = found.as_json()["overall"]
    total = sum(test.sizes)
    shares = {name: size / total for name, size in zip(test.names, test.sizes, strict=True)}
    return Row(
        data=job.data,
        method=method.name,
        unit=method.unit.value,
        epsilon=job.epsilon,
        true_epsilon=true_epsilon,
        seed=job.seed,
        error=1 - overall["accuracy"],
        demographic_parity=overall["demographic_parity"],
        equalised_odds=overall["equalised_odds"],
        false_negative_gap=overall["false_negative_gap"],
        psi=psi(found.silo_losses, shares),
        seconds=seconds,
    )

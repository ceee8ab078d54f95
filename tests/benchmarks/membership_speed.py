"""How fast shadow models are trained when stacked, against the usual loop in the same process.

Run `python -m tests.benchmarks.membership_speed` to measure and to rewrite docs/benchmarks.md; it ends with
exit code 1 if a promised ratio is missed. The usual loop is one model after another with torch's DataLoader, autograd
and optimiser. Only a few of its models are timed and the rest extrapolated, in its favour: the fastest counts.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import joblib
import numpy as np
import pandas as pd
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from audit.models.membership_attacks import shares_above
from audit.models.shadow_models import ShadowRecipe, ShadowRecords, random_halves, train_shadow_models
from audit.models.stacked import StackedLogistic, StackedPerceptron
from tests.audit.private_shadow_models import StackedPrivateLogistic
from tests.sections import write_section

RECORDS, FEATURES, MODELS, EPOCHS, OWN_BATCH = 4000, 50, 64, 10, 64
LOOP_MODELS = 3
LEAST_LOGISTIC, LEAST_PERCEPTRON, MOST_RMIA_SECONDS, MOST_PRIVATE_SECONDS = 100.0, 4.0, 0.050, 10.0
X, Z = 20_000, 10_000
AUDITED, AUDITED_FEATURES = 4000, 20
PRIVATE_RUNS, PRIVATE_STEPS, PRIVATE_RECORDS, PRIVATE_FEATURES = 2000, 100, 500, 20


def records() -> ShadowRecords:
    random = np.random.default_rng(0)
    features = random.normal(size=(RECORDS, FEATURES))
    labels = features @ random.normal(size=FEATURES) + 4 * random.normal(size=RECORDS) > 0
    return ShadowRecords(features, labels.astype(np.int64), 2)


@dataclass(frozen=True)
class Loop:
    """One model by the usual means: the same epochs, steps, batch size, learning rate and momentum."""

    build: Callable[[], nn.Module]
    learning_rate: float
    loader: bool = True

    def train(self, x: Tensor, y: Tensor) -> nn.Module:
        model = self.build()
        optimiser = torch.optim.SGD(model.parameters(), lr=self.learning_rate, momentum=0.9)
        loss = nn.CrossEntropyLoss()
        batches = DataLoader(TensorDataset(x, y), batch_size=OWN_BATCH, shuffle=True)
        for _ in range(EPOCHS):
            source = batches if self.loader else self._sliced(x, y)
            for features, labels in source:
                optimiser.zero_grad()
                loss(model(features), labels).backward()
                optimiser.step()
        return model

    @staticmethod
    def _sliced(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(x))
        return [(x[rows], y[rows]) for rows in order.split(OWN_BATCH)]


@dataclass(frozen=True)
class Race:
    """Seconds for all models, and how well each side's models fit their own records."""

    name: str
    stacked: float
    with_loader: float
    without_loader: float
    stacked_accuracy: float
    loop_accuracy: float

    @property
    def ratio(self) -> float:
        return self.with_loader / self.stacked

    @property
    def ratio_without_loader(self) -> float:
        return self.without_loader / self.stacked


def race(name: str, recipe: ShadowRecipe, build: Callable[[], nn.Module], rate: float) -> Race:
    data, included = records(), random_halves(MODELS, RECORDS, 0)
    x, y = torch.from_numpy(data.features).float(), torch.from_numpy(data.labels)

    def stacked() -> np.ndarray:
        return train_shadow_models(recipe, data, included, 0, group=MODELS)

    def loop(with_loader: bool) -> tuple[float, nn.Module]:
        best, model = float("inf"), build()
        for own in included[:LOOP_MODELS]:
            rows = torch.from_numpy(np.flatnonzero(own))
            seconds, model = timed(lambda rows=rows: Loop(build, rate, with_loader).train(x[rows], y[rows]))
            best = min(best, seconds)
        return MODELS * best, model

    stacked()
    fastest, signals = min((timed(stacked) for _ in range(3)), key=lambda pair: pair[0])
    Loop(build, rate).train(x[:128], y[:128])
    with_loader, model = loop(True)
    without_loader, _ = loop(False)
    own = torch.from_numpy(np.flatnonzero(included[LOOP_MODELS - 1]))
    right = (model(x[own]).argmax(dim=1) == y[own]).float().mean().item()
    return Race(name, fastest, with_loader, without_loader, float((signals[included] > 0).mean()), float(right))


def timed(call: Callable[[], object]) -> tuple[float, object]:
    """Processor time, so that other work on the machine does not count; everything runs on one thread."""
    start = time.process_time()
    answer = call()
    return time.process_time() - start, answer


def races() -> tuple[Race, Race]:
    logistic = StackedLogistic(epochs=EPOCHS, batch=2 * OWN_BATCH, learning_rate=0.05, penalty=0.0)
    net = StackedPerceptron((64,), epochs=EPOCHS, batch=OWN_BATCH, learning_rate=0.05)
    return (
        race("logistic regression", logistic, lambda: nn.Linear(FEATURES, 2), 0.05),
        race(
            "perceptron, 64 hidden units",
            net,
            lambda: nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 2)),
            0.05,
        ),
    )


def rmia_seconds() -> float:
    random = np.random.default_rng(0)
    x, z = random.normal(size=X), random.normal(size=Z)
    return min(timed(lambda: shares_above(x, z, 2.0))[0] for _ in range(9))


def private_seconds() -> float:
    random = np.random.default_rng(0)
    features = random.normal(size=(PRIVATE_RECORDS, PRIVATE_FEATURES))
    data = ShadowRecords(features, (features[:, 0] > 0).astype(np.int64), 2)
    included = random_halves(PRIVATE_RUNS, PRIVATE_RECORDS, 0)
    recipe = StackedPrivateLogistic(PRIVATE_STEPS, clip=1.0, noise_multiplier=5.0)
    return min(timed(lambda: train_shadow_models(recipe, data, included, 0, group=PRIVATE_RUNS))[0] for _ in range(2))


@dataclass(frozen=True)
class CommandLine:
    """A whole `privfair audit --model`, with everything it loads: half of the records are members."""

    name: str
    model: Any
    shadow_models: int
    most_seconds: float

    def seconds(self) -> float:
        random = np.random.default_rng(0)
        x = random.normal(size=(AUDITED, AUDITED_FEATURES))
        labels = (x @ random.normal(size=AUDITED_FEATURES) + 4 * random.normal(size=AUDITED) > 0).astype(np.int64)
        frame = pd.DataFrame({f"x{column}": x[:, column] for column in range(AUDITED_FEATURES)})
        members = slice(0, AUDITED // 2)
        self.model.fit(frame[members], labels[members])
        files = "--model m.joblib --trust-pickle --members in.csv --nonmembers out.csv --label label --shadow-models"
        with TemporaryDirectory() as folder:
            joblib.dump(self.model, f"{folder}/m.joblib")
            for name, part in (("in.csv", members), ("out.csv", slice(AUDITED // 2, None))):
                frame[part].assign(label=labels[part]).to_csv(f"{folder}/{name}", index=False)
            main = "from privfair.cli import main; main()"
            asked = [sys.executable, "-c", main, "audit", *files.split(), str(self.shadow_models)]
            place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
            before = _seconds_of_children()
            subprocess.run(asked, cwd=folder, env=place, check=True, capture_output=True)
        return _seconds_of_children() - before


def _seconds_of_children() -> float:
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


COMMANDS = (
    CommandLine("logistic regression", LogisticRegression(), 64, 5.0),
    CommandLine("forest of 100 trees", RandomForestClassifier(100, random_state=0), 16, 10.0),
)


def page(found: tuple[Race, Race], rmia: float, private: float, commands: dict[str, float]) -> str:
    audits = "\n".join(
        f"| {one.name} | {one.shadow_models} | {commands[one.name]:.1f} | {one.most_seconds:g} |" for one in COMMANDS
    )
    rows = "\n".join(
        f"| {one.name} | {one.stacked:.2f} | {one.with_loader:.1f} | **{one.ratio:.0f}** | "
        f"{one.without_loader:.1f} | {one.ratio_without_loader:.0f} | {one.stacked_accuracy:.3f} / "
        f"{one.loop_accuracy:.3f} |"
        for one in found
    )
    return f"""# Speed of membership audits

Written by `python -m tests.benchmarks.membership_speed`: processor time of one core, one process. {MODELS} shadow
models, each on a random half of {RECORDS} records with {FEATURES} features, {EPOCHS} epochs, batches of {OWN_BATCH} of
the model's own records, descent with momentum 0.9. The loop trains one model after another with autograd and torch's
optimiser; {LOOP_MODELS} of its models are timed and the fastest is multiplied by {MODELS}. The stack is the fastest of
three, all models in one group.

| model | stacked, s | loop with DataLoader, s | faster by | loop without DataLoader, s | faster by \
| accuracy on own records, stack / loop |
|---|---:|---:|---:|---:|---:|---|
{rows}

The loop without DataLoader draws batches by index, which is what remains when only that mistake is fixed. Accuracies
are there to show that both sides did the same work.

| task | seconds |
|---|---:|
| RMIA scores of {X:,} records against a population of {Z:,} ({X * Z // 10**6} million pairs) | {rmia:.4f} |
| {PRIVATE_RUNS:,} private logistic regressions ({PRIVATE_STEPS} noisy full-batch steps, {PRIVATE_RECORDS} records, \
{PRIVATE_FEATURES} features) | {private:.2f} |

A whole `privfair audit --model` of a scikit-learn model, with everything it loads: {AUDITED // 2:,} members and as many
non-members with {AUDITED_FEATURES} features, the fastest of three.

| model | shadow models | seconds | wanted at most |
|---|---:|---:|---:|
{audits}
"""


def main() -> int:
    torch.set_num_threads(1)
    found, rmia, private = races(), rmia_seconds(), private_seconds()
    commands = {one.name: min(one.seconds() for _ in range(3)) for one in COMMANDS}
    text = page(found, rmia, private, commands)
    write_section("membership", text)
    print(text)
    logistic, net = found
    kept = (
        logistic.ratio >= LEAST_LOGISTIC,
        net.ratio >= LEAST_PERCEPTRON,
        rmia <= MOST_RMIA_SECONDS,
        private <= MOST_PRIVATE_SECONDS,
        *(commands[one.name] <= one.most_seconds for one in COMMANDS),
    )
    return int(not all(kept))


if __name__ == "__main__":
    sys.exit(main())

"""What `audit training` finds on Adult (5,000 records): three loops that break their promise, and honest ones.

`python -m tests.benchmarks.audit_acceptance RESULTS.jsonl` appends one line per audit, goes on where it was stopped,
and prints the table of docs/audit-training.md. It needs opacus, scikit-learn and the files of Adult.
"""

from __future__ import annotations

import functools
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import privfair as pf
from privfair.data.benchmarks import load_adult
from tests.audit.strangers_training import opacus_loop

RECORDS, RATE, STEPS, DELTA, HIDDEN = 5_000, 0.05, 20, 1e-5, 16
MODELS = {"logistic": 0, "perceptron": HIDDEN}
SEEDS, HONEST_RUNS = 20, 16

Case = tuple[str, Callable[..., Any], dict[str, Any]]


def adult() -> tuple[np.ndarray, np.ndarray]:
    """Features and classes of records drawn at random."""
    data = load_adult()
    rows = np.random.default_rng(0).permutation(len(data.label))[:RECORDS]
    return np.asarray(data.features)[rows].astype(np.float32), np.asarray(data.label)[rows].astype(np.int64)


def logistic(data: Any) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=60).fit(*data)


def perceptron(data: Any) -> Any:
    from sklearn.neural_network import MLPClassifier

    return MLPClassifier((HIDDEN,), max_iter=15, solver="adam", learning_rate_init=0.01).fit(*data)


def cases() -> Iterator[Case]:
    """The broken ones first; then honest ones, seed by seed, so that an unfinished file speaks of all."""
    sigma = {epsilon: _sigma(epsilon) for epsilon in (1.0, 4.0)}
    seen: dict[str, Any] = {"epsilon": 1.0, "access": "gradients"}
    for name, hidden in MODELS.items():
        loop = functools.partial(opacus_loop, hidden=hidden, rate=RATE, steps=STEPS)
        yield f"{name}, a third of the noise", functools.partial(loop, noise=sigma[1.0] / 3), {**seen, "runs": 120}
        yield (
            f"{name}, the mean is clipped",
            functools.partial(loop, noise=sigma[1.0], clip_mean=True),
            {**seen, "runs": 24},
        )
    yield "logistic, scikit-learn", logistic, {"epsilon": 1.0, "runs": 32}
    yield "perceptron, scikit-learn", perceptron, {"epsilon": 1.0, "runs": 32}
    for seed in range(SEEDS):
        for epsilon in sigma:
            for name, hidden in MODELS.items():
                loop = functools.partial(opacus_loop, hidden=hidden, rate=RATE, steps=STEPS, noise=sigma[epsilon])
                asked = {"epsilon": epsilon, "access": "gradients", "runs": HONEST_RUNS, "seed": seed}
                yield f"{name}, honest at epsilon {epsilon:g}, seed {seed}", loop, asked


def _sigma(epsilon: float) -> float:
    return float(pf.sigma(epsilon=epsilon, delta=DELTA, sampling_rate=RATE, rounds=STEPS))


def main(path: Path) -> None:
    warnings.filterwarnings("ignore")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    done = {found["case"]: found for found in map(json.loads, lines)}
    data = adult()
    for name, train, asked in cases():
        if name in done:
            continue
        start = time.process_time()
        report = pf.audit_training(train, data, delta=DELTA, **asked)
        done[name] = {
            "case": name,
            "verdict": report.verdict.value,
            "epsilon_lower": report.epsilon_lower,
            "runs": asked["runs"],
            "cpu_seconds": round(time.process_time() - start, 1),
        }
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(done[name]) + "\n")
    for line in table(done):
        print(line)


def table(done: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Broken loops one by one, honest ones counted."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for name, one in done.items():
        kinds.setdefault(name.partition(", seed")[0], []).append(one)
    yield "| loop | verdict | epsilon at least | runs | CPU seconds |"
    yield "|---|---|---|---|---|"
    for name, some in kinds.items():
        kept = sum(one["verdict"] != "violated" for one in some)
        verdict = some[0]["verdict"] if len(some) == 1 else f"not refuted in {kept} of {len(some)} seeds"
        largest, seconds = (max(one[key] for one in some) for key in ("epsilon_lower", "cpu_seconds"))
        yield f"| {name} | {verdict} | {largest:.2f} | {some[0]['runs']} | {seconds:.0f} |"


if __name__ == "__main__":
    main(Path(sys.argv[1]))

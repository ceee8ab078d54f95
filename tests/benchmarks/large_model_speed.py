"""FedFDP's net through gate, ledger and transcript: what a round costs beside its bare arithmetic, and on disk.

Run `python -m tests.benchmarks.large_model_speed` to measure and to rewrite docs/benchmarks.md; it ends
with exit code 1 if a promise is not kept. The bare arithmetic is taken from the very same rounds, in the same process:
the contributions and the updates, as they are timed there, and a floating-point generator's noise for as many numbers.

`--whole FOLDER` trains all 763 rounds (about 40 minutes of one core) and keeps the run there, to be audited and for the
FedFDP page; begun again with the same folder it resumes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from privfair.federation import local_party
from privfair.noise import ExactNoise
from privfair.plan.training import block_for
from privfair.run import open_run, public
from privfair.training import prepare, train
from privfair.transcript import TranscriptWriter
from tests.benchmarks.whole_run_speed import _Timed
from tests.privfair.small_runs import Desk
from tests.sections import write_section

ROUNDS, RETENTION, FEW, MEASURED_EVERY = 763, 20, 22, 25
MOST_RATIO, MOST_BYTES = 1.2, 2e9
CLIENTS = (2500, 6300, 5700, 1450, 4550, 4400, 9000, 7600, 1800, 7900)
"""Images that each client has for sure: public numbers, within 3% of the true ones."""
SIZES = "\n".join(f"silo-{client} = {size}" for client, size in enumerate(CLIENTS))
PLAN = f"""algorithm = "fedfdp"
[target]
epsilon = 3.52
delta = 1e-5
[privacy]
sampling-rate = 0.05
rounds = {ROUNDS}
clip = 0.1
loss-clip = 2.5
loss-noise-ratio = 2.5
[data]
dataset = "fashion-mnist"
seed = 2
[data.at-least]
{SIZES}
[data.partition]
kind = "dirichlet"
silos = 10
beta = 0.1
[training]
rounds = {{updates}}
retention = {RETENTION}
measure-every = {MEASURED_EVERY}
learning-rate = 1.0
fairness = 0.5
[training.model]
kind = "cnn"
architecture = "fedavg-unpadded"
"""
"""The paper's own numbers; it does not print lambda."""


@dataclass(frozen=True)
class Disk:
    """Bytes of a run folder, by what becomes of them in a longer run."""

    kept: int
    """Transcript and states: they grow with every step that is kept."""
    recent: int
    """Forgotten after the next checkpoint."""
    recent_rounds: int
    once: int
    """Model, checkpoint and everything else."""

    @classmethod
    def of(cls, run: Path) -> Disk:
        sizes = {path: path.stat().st_size for path in run.rglob("*") if path.is_file()}
        recent = [size for path, size in sizes.items() if path.suffix == ".recent"]
        kept = sum(size for path, size in sizes.items() if path.name.endswith((".state.npz", "transcript.bin")))
        return cls(kept, sum(recent), len(recent), sum(sizes.values()) - kept - sum(recent))


@dataclass(frozen=True)
class Round:
    """Processor seconds so far, of the run and of its bare arithmetic; what lay on disk."""

    whole: float
    bare: float
    disk: Disk


def _numpy_noise(size: int, parties: int) -> float:
    """Seconds of floating-point noise for one round."""
    generator, begin = np.random.default_rng(0), time.process_time()
    for _ in range(parties):
        generator.standard_normal(size)
    return time.process_time() - begin


@dataclass(frozen=True)
class Measured:
    """What one process saw of a run."""

    rounds: list[Round]
    parts: dict[str, float]
    """Seconds of each part, in all these rounds."""
    noise: float
    """Seconds of floating-point noise for one round."""


def measure(folder: Path, updates: int) -> Measured:
    """So many rounds, in a run of this folder; an interrupted one goes on."""
    plan, budget, trust, out = (folder / name for name in ("plan.toml", "budget.json", "trust.json", "run"))
    resume = out.exists()
    if not resume:
        Desk.at(folder, PLAN.format(updates=updates), lambda _: None).budget()
    run = prepare(plan, budget, trust)
    noise = statistics.median(_numpy_noise(run.model.size, len(run.silos)) for _ in range(5))
    parts = {name: _Timed(owner, method) for name, (owner, method) in _parts(type(run.algorithm)).items()}
    rounds: list[Round] = []

    def note(_: object) -> None:
        bare = parts["contributions"].seconds + parts["updates"].seconds
        rounds.append(Round(time.process_time() - parts["measuring"].seconds, bare, Disk.of(out)))

    train(plan, manifest=budget, trust=trust, ledger=folder / "ledger.db", out=out, resume=resume, progress=note)
    return Measured(rounds, {name: part.seconds for name, part in parts.items()}, noise)


def _parts(algorithm: type) -> dict[str, tuple[Any, str]]:
    return {
        "contributions": (algorithm, "contribution"),
        "updates": (algorithm, "update"),
        "exact noise": (ExactNoise, "gaussian"),
        "transcript": (TranscriptWriter, "append"),
        "digests of states": (local_party, "state_digest"),
        "checkpoints": (open_run, "save_checkpoint"),
        "measuring": (public.Measuring, "measure"),
    }


def page(measured: Measured, updates: int) -> tuple[str, bool]:
    """The page, and whether both promises are kept."""
    rounds = measured.rounds
    first, last, counted = rounds[0], rounds[-1], len(rounds) - 1
    whole, bare = (last.whole - first.whole) / counted, (last.bare - first.bare) / counted + measured.noise
    ratio, alone = whole / bare, whole / (bare - measured.noise)
    of_run = len(range(0, ROUNDS, RETENTION)) + 1
    a_step = last.disk.kept / (len(range(0, updates, RETENTION)) + 1)
    fullest = max(rounds, key=lambda one: one.disk.recent).disk
    a_round = fullest.recent / fullest.recent_rounds
    ahead = max(fullest.recent_rounds, block_for(ROUNDS) + 1) * a_round
    at_most = of_run * a_step + ahead + last.disk.once
    rows = "".join(
        f"| {name} | {seconds / len(rounds):.3f} | {seconds / len(rounds) / whole:.1%} |\n"
        for name, seconds in measured.parts.items()
        if name != "measuring"
    )
    command = "python -m tests.benchmarks.large_model_speed" + (" --whole FOLDER" if updates == ROUNDS else "")
    text = f"""# A large model through gate, ledger and transcript

Written by `{command}`, torch {torch.__version__.split("+")[0]}, one thread:
FedFDP's net (582,026 parameters) on Fashion-MNIST, ten clients by Dirichlet(0.1), Poisson batches of 5%, one noisy step
per round, exact noise, `retention = {RETENTION}`. {counted} rounds of the production engine after a first one, in
processor time, at a load of {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores.
Reading the data and measuring the model are left out.

| | seconds per round |
|---|---:|
| the whole round | {whole:.3f} |
| its bare arithmetic: contributions and updates of these very rounds, and numpy's noise | {bare:.3f} |
| **ratio** (promised: at most {MOST_RATIO}) | **{ratio:.3f}** |
| ratio to contributions and updates alone, without any noise | {alone:.3f} |

{ROUNDS} rounds take {ROUNDS * whole / 60:.0f} minutes of this processor under this load,
{ROUNDS * bare / 60:.0f} of them bare arithmetic{"" if updates == ROUNDS else " (extrapolated)"}.

| part | seconds per round | share |
|---|---:|---:|
{rows}
**On disk**: a step that is kept takes {a_step / 1e6:.1f} MB (ten clients' values and the state), a round that is not
{a_round / 1e6:.1f} MB until the next checkpoint. {ROUNDS} rounds keep {of_run} steps: {of_run * a_step / 1e9:.2f} GB at
the end, at most **{at_most / 1e9:.2f} GB** on the way (promised: {MOST_BYTES / 1e9:.0f} GB). Whole, in the same form,
it would be {ROUNDS * a_round / 1e9:.1f} GB, and as plain doubles {ROUNDS * 10 * 8 * 582_027 / 1e9:.1f} GB.
"""
    return text, ratio <= MOST_RATIO and at_most <= MOST_BYTES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whole", type=Path, metavar="FOLDER", help="all rounds, in a run that stays in this folder")
    folder: Path | None = parser.parse_args().whole
    torch.set_num_threads(1)
    if folder is None:
        with TemporaryDirectory() as place:
            text, kept = page(measure(Path(place), FEW), FEW)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        text, kept = page(measure(folder, ROUNDS), ROUNDS)
    write_section("large-model", text)
    print(text)
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main())

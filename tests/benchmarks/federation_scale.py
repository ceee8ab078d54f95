"""How a round grows with the number of parties: in one process, over guards, and simulated without holding the data.

python -m tests.benchmarks scale
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from privfair.algorithms.algorithm import SiloTensors
from privfair.contribution import Published
from privfair.federation.coordinator import Position, run_steps
from privfair.run.federated import train_over
from privfair.run.open_run import OpenRun, TrustInForce
from privfair.run.prepare import PreparedRun, prepare_run
from tests.federation.sites import Sites
from tests.privfair.small_runs import SCHEMA, Desk

RECORDS, ROUNDS = 60, 8
IN_ONE_PROCESS, GUARDED, SIMULATED = 1000, 50, 10_000
_PLAN = """algorithm = "gaussian"
[target]
epsilon = 8.0
delta = 1e-5
[privacy]
sampling-rate = 0.5
rounds = {rounds}
clip = 1.0
[data]
schema = "schema.toml"
[data.silos]
{silos}[training]
learning-rate = 1.0
measure-every = 100000
"""


class ManySites(Sites):
    """Sites of one size under made-up names."""

    @property
    def parties(self) -> tuple[str, ...]:
        return tuple(path.stem for path in sorted(self.folder.glob("p*.csv")))

    @classmethod
    def of(cls, folder: Path, number: int) -> ManySites:
        names = [f"p{place:04d}" for place in range(number)]
        silos = "".join(f"{name} = {RECORDS - 10}\n" for name in names)
        desk = Desk.at(folder, _PLAN.format(rounds=ROUNDS, silos=silos))
        (folder / "schema.toml").write_text(SCHEMA, encoding="utf-8")
        for name in names:
            random = np.random.default_rng(int(name[1:]))
            rows = ["age,income,job,sex,default"]
            for place in range(RECORDS):
                age, income = random.integers(18, 90), random.normal(10, 2)
                sex, label = ("female", "male")[place % 2], ("no", "yes")[place // 2 % 2]
                rows.append(f"{age},{income:.3f},clerk,{sex},{label}")
            (folder / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
        desk.budget()
        return cls(desk, "gaussian")

    def together(self) -> PreparedRun:
        files = {name: self.folder / f"{name}.csv" for name in self.parties}
        trust = TrustInForce(self.desk.trust).file
        return prepare_run(self.desk.plan, self.manifest.read_bytes(), trust, files)


def _row(kind: str, parties: int, milliseconds: float, mebibytes: float, per_round: float) -> str:
    return f"| {kind} | {parties:,} | {milliseconds:,.0f} | {mebibytes:,.0f} | {per_round / 1024:,.1f} |\n"


def in_one_process(folder: Path) -> str:
    sites = ManySites.of(folder, IN_ONE_PROCESS)
    run = sites.together()
    (folder / "all").mkdir()
    with OpenRun.apart(run.manifest, folder / "all") as spending:
        parties = spending.parties(run)
        begun = time.process_time()
        for _ in run_steps(run.algorithm, parties, Position(run.algorithm.start()), ROUNDS):
            pass
        spent = 1e3 * (time.process_time() - begun) / ROUNDS
        spending.finish()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return _row(
        "one process", IN_ONE_PROCESS, spent, memory, (folder / "all" / "transcript.bin").stat().st_size / ROUNDS
    )


def _own_memory(process: int) -> float:
    """Mebibytes that a process shares with nobody."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def over_guards(folder: Path) -> str:
    sites = ManySites.of(folder, GUARDED)
    with sites.guards() as transport:
        before = [_cpu(child) for child in sites.children]
        own = time.process_time()
        train_over(transport, sites.signed(), folder / "run")
        spent = sum(_cpu(child) for child in sites.children) - sum(before) + time.process_time() - own
        memory = sum(_own_memory(child) for child in sites.children)
    written = sum((folder / name / "transcript.bin").stat().st_size for name in sites.parties)
    return _row("guards", GUARDED, 1e3 * spent / ROUNDS, memory, written / ROUNDS)


def _cpu(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def simulated(folder: Path) -> str:
    """One party's records at a time, made when they are needed; noise as signed, no gate and no ledger."""
    run = ManySites.of(folder, 2).together()
    algorithm, state = run.algorithm, run.algorithm.start()
    noise, names = np.random.default_rng(0), [silo.name for silo in run.silos]
    begun, rounds = time.process_time(), 2
    for step in range(rounds):
        sums: dict[str, dict[str, np.ndarray]] = {name: {} for name in names}
        for party in range(SIMULATED):
            random = torch.Generator().manual_seed(party)
            x = torch.rand((RECORDS, *run.facts.feature_shape), generator=random, dtype=run.silos[0].x.dtype)
            y, s = torch.arange(RECORDS) % 2, torch.arange(RECORDS) // 2 % 2
            silo = SiloTensors(names[party % len(names)], x, y, s)
            for value in algorithm.contribution(state, step, silo, torch.arange(0, RECORDS, 2)).noisy:
                noisy = value.values + noise.normal(0, 1, value.values.shape)
                found = sums[silo.name]
                found[value.name] = found.get(value.name, 0) + noisy * len(names) / SIMULATED
        received = {
            party: {name: Published(step, party, name, np.asarray(v)) for name, v in values.items()}
            for party, values in sums.items()
        }
        state = algorithm.update(state, received)
    spent = 1e3 * (time.process_time() - begun) / rounds
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    size = sum(int(np.prod(shape)) for shape in algorithm.shapes().values())
    return _row("simulated", SIMULATED, spent, memory, 8 * size * SIMULATED)


def main() -> int:
    warnings.simplefilter("ignore")
    print("| | parties | processor ms per round | memory, MiB | published KiB per round |\n|---|---:|---:|---:|---:|")
    for measured in (simulated, over_guards, in_one_process):
        with tempfile.TemporaryDirectory(prefix="pf") as place:
            print(measured(Path(place)), end="", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

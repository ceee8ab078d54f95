"""Processor time per round: guards over sockets against the same run in one process, three silos.

    python -m tests.benchmarks guards

Both run on the same machine, one after the other, and only their ratio is meant: the processor time of everybody (three
guards and the coordinator) per round, after a few rounds of warming up.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from privfair.run.federated import train_over
from privfair.run.public import Progress
from tests.federation.sites import Sites
from tests.privfair.small_runs import Desk

NAMES = ("north", "south", "west")
RECORDS, FEATURES, WARM = 3000, 12, 8
_PAGE = Path("docs/benchmarks/guards.md")
_IN_ONE_PLACE = """files = ["north.csv", "south.csv", "west.csv"]
test-files = ["test/north.csv", "test/south.csv", "test/west.csv"]
schema = "schema.toml"
at-least = 3000"""
_AT_SITES = 'schema = "schema.toml"\n[data.silos]\n' + "".join(f"{name} = {RECORDS}\n" for name in NAMES)
PLANS = {
    "steffle": """algorithm = "steffle"
[target]
epsilon = 1.0
delta = 1e-5
[privacy]
silo-size = 3000
batch-size = 3000
sampling = "full"
rounds = {rounds}
minority-fraction = 0.35
lipschitz = 0.5
w-radius = 0.5
[data]
{data}
[training]
group-frequencies = [0.45, 0.55]
fairness = 8.0
measure-every = 100000
""",
    "fedfdp": """algorithm = "fedfdp"
[target]
epsilon = 2.0
delta = 1e-5
[privacy]
sampling-rate = 0.05
rounds = {rounds}
clip = 1.0
loss-clip = 2.0
loss-noise-ratio = 2.5
[data]
{data}
[training]
learning-rate = 0.5
fairness = 0.5
measure-every = 100000
""",
}


def _write(folder: Path, records: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    for place, name in enumerate(NAMES):
        x = random.normal(size=(records, FEATURES)) + 0.3 * place
        s = (random.random(records) < 0.45).astype(int)
        y = (x[:, 0] - 0.5 * x[:, 1] + 0.8 * s + random.normal(size=records) > 0.2).astype(int)
        lines = [",".join([*(f"x{i}" for i in range(FEATURES)), "sex", "y"])]
        for row, group, label in zip(x, s, y, strict=True):
            lines.append(",".join([*(f"{v:.6f}" for v in row), ("female", "male")[group], ("no", "yes")[label]]))
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    numeric = "".join(f"[numeric.x{i}]\nbounds = [-8, 8]\n" for i in range(FEATURES))
    head = 'version = 1\n[target]\ncolumn = "y"\nclasses = ["no", "yes"]\n[sensitive]\ncolumn = "sex"\n'
    (folder / "schema.toml").write_text(f'{head}groups = ["female", "male"]\n{numeric}', encoding="utf-8")


def _desk(folder: Path, plan: str) -> Desk:
    desk = Desk.at(folder, plan)
    _write(folder, RECORDS, 7)
    (folder / "test").mkdir()
    _write(folder / "test", 50, 8)
    return desk


def _cpu(process: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_one_process(folder: Path, plan: str) -> tuple[float, int]:
    """Processor milliseconds per round, and rounds."""
    desk = _desk(folder, plan)
    stamps: list[float] = []
    manifest = desk.budget()
    desk.train(manifest, progress=lambda _: stamps.append(time.process_time()))
    return 1e3 * (stamps[-2] - stamps[WARM]) / (len(stamps) - 2 - WARM), len(stamps)


def over_guards(folder: Path, plan: str) -> tuple[float, float]:
    """Processor milliseconds per round of the three guards together, and of the coordinator."""
    sites = Sites(_desk(folder, plan), "steffle, shuffled")
    sites.desk.budget()
    stamps: list[tuple[float, float]] = []
    with sites.guards() as transport:
        children = sites.children

        def stamp(_: Progress) -> None:
            stamps.append((sum(_cpu(child) for child in children), time.process_time()))

        train_over(transport, sites.signed(), folder / "run", progress=stamp)
    rounds = len(stamps) - 2 - WARM
    (guards, own), (guards_then, own_then) = stamps[WARM], stamps[-2]
    return 1e3 * (guards_then - guards) / rounds, 1e3 * (own_then - own) / rounds


_TOP = """# Guards over sockets against one process

`python -m tests.benchmarks guards`: processor time per round of everybody together, three silos of 3,000 records and 12
features on one machine, ledgers and transcripts on, exact noise. The bound is 1.5 times the run in one process plus
1 ms per silo.

| algorithm | one process, ms | guards, ms | coordinator, ms | all over one | bound, ms |
|---|---:|---:|---:|---:|---:|
"""


def main(rounds: int = 300) -> int:
    warnings.simplefilter("ignore")
    rows, kept = [], True
    for name, plan in PLANS.items():
        with tempfile.TemporaryDirectory(prefix="pf") as place:
            root = Path(place)
            one, _ = in_one_process(root / "one", plan.format(rounds=rounds, data=_IN_ONE_PLACE))
            guards, own = over_guards(root / "s", plan.format(rounds=rounds, data=_AT_SITES))
        both, bound = guards + own, 1.5 * one + len(NAMES)
        kept &= both <= bound
        rows.append(f"| {name} | {one:.2f} | {guards:.2f} | {own:.2f} | {both / one:.2f} | {bound:.2f} |\n")
        print(rows[-1], end="", flush=True)
    _PAGE.write_text(_TOP + "".join(rows), encoding="utf-8")
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:])))

"""Processor time per round: guards over sockets against the same run in one process, three silos.

    python -m tests.benchmarks guards

Both run on the same machine, one after the other, and only their ratio is meant: the processor time of everybody (three
guards and the coordinator) per round, after a few rounds of warming up.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
import warnings
from pathlib import Path

from privfair.cli.demo import _DATA, SITES, _write_sites
from privfair.cli.demo import PLANS as DEMOS
from privfair.run.federated import train_over
from privfair.run.public import Progress
from tests.federation.sites import Sites
from tests.privfair.small_runs import Desk
from tests.sections import write_section

WARM = 8
ALGORITHMS = ("steffle", "fedfdp")


def _plan(algorithm: str, rounds: int) -> str:
    """The plan of `privfair demo` on Credit Card, with so many rounds, and never measured but at the end."""
    text = re.sub(r"(?m)^rounds = \d+$", f"rounds = {rounds}", DEMOS[algorithm])
    return re.sub(r"(?m)^measure-every = \d+$", "measure-every = 100000", text)


def sites_of(folder: Path, algorithm: str, rounds: int) -> Sites:
    """Three sites with a third of Credit Card each, and a signed budget that names them."""
    plan = _plan(algorithm, rounds)
    desk = Desk.at(folder, plan)
    table = "".join(f"{name} = {size}\n" for name, size in _write_sites(plan, folder).items())
    desk.plan.write_text(plan.replace(_DATA, f'\n[data]\nschema = "schema.toml"\n\n[data.silos]\n{table}'))
    desk.budget()
    return Sites(desk, "steffle, shuffled")


def processor_seconds(process: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_one_process(folder: Path, algorithm: str, rounds: int) -> float:
    """Processor milliseconds per round."""
    desk = Desk.at(folder, _plan(algorithm, rounds))
    stamps: list[float] = []
    manifest = desk.budget()
    desk.train(manifest, progress=lambda _: stamps.append(time.process_time()))
    return 1e3 * (stamps[-2] - stamps[WARM]) / (len(stamps) - 2 - WARM)


def over_guards(folder: Path, algorithm: str, rounds: int) -> tuple[float, float]:
    """Processor milliseconds per round of the three guards together, and of the coordinator."""
    sites = sites_of(folder, algorithm, rounds)
    stamps: list[tuple[float, float]] = []
    with sites.guards() as transport:
        children = sites.children

        def stamp(_: Progress) -> None:
            stamps.append((sum(processor_seconds(child) for child in children), time.process_time()))

        train_over(transport, sites.signed(), folder / "run", progress=stamp)
    timed = len(stamps) - 2 - WARM
    (guards, own), (guards_then, own_then) = stamps[WARM], stamps[-2]
    return 1e3 * (guards_then - guards) / timed, 1e3 * (own_then - own) / timed


_TOP = """# Guards over sockets against one process

`python -m tests.benchmarks guards`: processor time per round of everybody together, three silos of 7,500 records of
Credit Card on one machine ({rounds} rounds of the plans of `privfair demo`, at a load of {load:.0f} on {cores} cores),
ledgers and transcripts on, exact noise. The bound is 1.5 times the run in one process plus 1 ms per silo.

| algorithm | one process, ms | guards, ms | coordinator, ms | all over one | bound, ms |
|---|---:|---:|---:|---:|---:|
"""


def main(rounds: int = 100) -> int:
    warnings.simplefilter("ignore")
    rows, kept = [], True
    for name in ALGORITHMS:
        with tempfile.TemporaryDirectory(prefix="pf") as place:
            root = Path(place)
            one = in_one_process(root / "one", name, rounds)
            guards, own = over_guards(root / "s", name, rounds)
        both, bound = guards + own, 1.5 * one + len(SITES)
        kept &= both <= bound
        rows.append(f"| {name} | {one:.2f} | {guards:.2f} | {own:.2f} | {both / one:.2f} | {bound:.2f} |\n")
        print(rows[-1], end="", flush=True)
    top = _TOP.format(rounds=rounds, load=os.getloadavg()[0], cores=os.cpu_count())
    write_section("guards", top + "".join(rows))
    return int(not kept)


if __name__ == "__main__":
    sys.exit(main(*(int(word) for word in sys.argv[1:])))

"""`python -m tests.planted_bugs.clean_runs [RUNS [MESSAGES]]`: how many clean runs of each algorithm are flagged.

Every statistical question of an audit is asked of each run: recorded batches, the noise of the run (or its floor), and
the rehearsal with its noise, its batches and the gate alone (asked MESSAGES times). Noise and batches are drawn anew in
each run, from a seed. Deterministic questions are left out where they say the same of every clean run.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from scipy import stats

from audit.conformance import check_conformance
from audit.noise import check_noise, check_noise_floor
from audit.probes import rehearsal
from audit.probes.check_probes import check_rehearsal
from audit.report.results import Check, CheckOutcome
from privfair.ledger import Ledger, LedgerAccess
from tests.planted_bugs.fixed_randomness import fixed_randomness
from tests.planted_bugs.workshop import Engine, Workshop

STATED = 1e-3 + 1e-3 + 1e-6 + 1e-5 + 1e-5
"""How often a clean run may be flagged: L1, the noise, the gate and the batches of the rehearsal, recorded batches."""


def flagged(workshop: Workshop, engine: Engine, seed: int) -> list[str]:
    """What the statistical questions have against one clean run."""
    with fixed_randomness(seed), workshop.trained(engine) as trained:
        evidence = trained.evidence()
        with Ledger.open(trained.ledger, None, LedgerAccess.READ) as ledger:
            checks: tuple[Check, ...] = check_conformance(evidence, ledger)
        checks += check_noise(evidence) if evidence.batches_known else check_noise_floor(evidence)
        checks += check_rehearsal(evidence)
    return [f"{one.name}: {one.finding}" for one in checks if one.outcome is CheckOutcome.FAILED]


def most_alarms(runs: int) -> int:
    """More flagged runs than this have a probability below a thousandth if the stated level holds."""
    return int(stats.binom(runs, STATED).ppf(0.999))


def main(words: list[str]) -> int:
    runs = int(words[0]) if words else 100
    rehearsal.MESSAGES = int(words[1]) if len(words) > 1 else rehearsal.MESSAGES
    engines = [one for one in Engine if one is not Engine.STEFFLE_LONG]
    done, alarms = Counter[Engine](), Counter[Engine]()
    seconds = dict.fromkeys(engines, 0.0)
    try:
        with TemporaryDirectory() as folder:
            workshop = Workshop(Path(folder))
            for seed, engine in product(range(runs), engines):
                start = time.process_time()
                said = flagged(workshop, engine, 1000 + seed)
                done[engine] += 1
                alarms[engine] += bool(said)
                seconds[engine] += time.process_time() - start
                for one in said or ["-"]:
                    print(f"{engine.value}, seed {seed}: {one}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("interrupted; the table shows the runs that were made", file=sys.stderr)
    print("| clean runs of | runs | flagged | allowed | processor seconds per run |\n|---|---|---|---|---|")
    for one in (engine for engine in engines if done[engine]):
        each = seconds[one] / done[one]
        print(f"| {one.value} | {done[one]} | {alarms[one]} | {most_alarms(done[one])} | {each:.1f} |")
    return int(any(alarms[one] > most_alarms(done[one]) for one in engines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

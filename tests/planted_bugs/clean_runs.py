"""`python -m tests.planted_bugs.clean_runs [RUNS [MESSAGES [LOG]]]`: how many clean runs of each algorithm are flagged.

Every statistical question of an audit is asked of each run: recorded batches, the noise of the run (or its floor), and
the rehearsal with its noise, its batches and the gate alone (asked MESSAGES times). Noise and batches are drawn anew in
each run, from a seed. Deterministic questions are left out where they say the same of every clean run. Runs are noted
in LOG, one line each; called again with the same LOG, the missing ones are made.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from scipy import stats

from audit.probes.check_probes import check_rehearsal
from audit.report.results import Check, CheckOutcome
from audit.runs import rerun
from audit.runs.conformance import check_conformance
from audit.runs.noise import check_noise, check_noise_floor
from privfair.ledger import Ledger, LedgerAccess
from tests.planted_bugs.fixed_randomness import fixed_randomness
from tests.planted_bugs.workshop import Engine, Workshop

STATED = 5e-5 + 1e-6 + 1e-5
"""How often a clean run may be flagged: L1, the gate alone, recorded batches."""


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


@dataclass(frozen=True)
class CleanRun:
    """One run that was made: what was said against it, and its seconds of processor time."""

    engine: str
    seed: int
    messages: int
    said: list[str]
    seconds: float


def main(words: list[str]) -> int:
    runs = int(words[0]) if words else 100
    rerun.MESSAGES = int(words[1]) if len(words) > 1 else rerun.MESSAGES
    log = Path(words[2]) if len(words) > 2 else None
    made = _read(log)
    known = {(one.engine, one.seed) for one in made}
    engines = [one for one in Engine if one is not Engine.STEFFLE_LONG]
    missing = [(seed, one) for seed, one in product(range(runs), engines) if (one.value, seed) not in known]
    try:
        with TemporaryDirectory() as folder:
            workshop = Workshop(Path(folder))
            for seed, engine in missing:
                made.append(_make(workshop, engine, seed))
                print(f"{engine.value}, seed {seed}: {'; '.join(made[-1].said) or '-'}", file=sys.stderr, flush=True)
                if log is not None:
                    with log.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(made[-1])) + "\n")
    except KeyboardInterrupt:
        print("interrupted; the table shows the runs that were made", file=sys.stderr)
    return _show(made, [one.value for one in engines])


def _read(log: Path | None) -> list[CleanRun]:
    """The runs of an earlier try that asked the gate as often."""
    if log is None or not log.exists():
        return []
    found = [CleanRun(**json.loads(line)) for line in log.read_text("utf-8").splitlines()]
    return [one for one in found if one.messages == rerun.MESSAGES]


def _make(workshop: Workshop, engine: Engine, seed: int) -> CleanRun:
    start = time.process_time()
    said = flagged(workshop, engine, 1000 + seed)
    return CleanRun(engine.value, seed, rerun.MESSAGES, said, time.process_time() - start)


def _show(made: list[CleanRun], engines: list[str]) -> int:
    """The table; 1 if more runs were flagged than the stated level explains."""
    print("| clean runs of | runs | flagged | expected at most | allowed | processor seconds per run |")
    print("|---|---|---|---|---|---|")
    too_many = 0
    for engine in engines:
        of_engine = [one for one in made if one.engine == engine]
        if not of_engine:
            continue
        number, alarms = len(of_engine), sum(bool(one.said) for one in of_engine)
        too_many |= alarms > most_alarms(number)
        each = sum(one.seconds for one in of_engine) / number
        expected = number * STATED
        print(f"| {engine} | {number} | {alarms} | {expected:.2f} | {most_alarms(number)} | {each:.1f} |")
    return int(too_many)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`make bench`: every comparison, one after another; each writes its section of docs/benchmarks.md.

Each comparison has a process of its own, in which it measures itself and its peers side by side. Name some of them to
run only those: `python -m tests.benchmarks calibration noise`.
"""

from __future__ import annotations

import os
import subprocess
import sys

_BENCHMARKS = {
    "calibration": "tests.benchmarks.calibration_speed",
    "noise": "tests.benchmarks.noise_speed",
    "startup": "tests.benchmarks.startup_speed",
    "ledger": "tests.benchmarks.ledger_speed",
    "load": "tests.benchmarks.load_speed",
    "large-model": "tests.benchmarks.large_model_speed",
    "private-step": "tests.benchmarks.private_step_speed",
    "opacus": "tests.benchmarks.opacus_speed",
    "whole-run": "tests.benchmarks.whole_run_speed",
    "guards": "tests.benchmarks.guard_speed",
    "scale": "tests.benchmarks.federation_scale",
    "membership": "tests.benchmarks.membership_speed",
}


def main(names: list[str]) -> int:
    """0 if every comparison came out as the pages promise, 1 otherwise."""
    unknown = sorted(set(names) - set(_BENCHMARKS))
    if unknown:
        print(f"there is no benchmark {unknown[0]!r}; choose from {', '.join(_BENCHMARKS)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or _BENCHMARKS:
        print(f"== {name}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", _BENCHMARKS[name]], env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
        )
        if done.returncode:
            failed.append(name)
    if failed:
        print(f"not as promised: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

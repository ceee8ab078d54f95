"""`make bench`: every comparison, one after another; each writes its page under docs/benchmarks.

Name some of them to run only those: `python -m tests.benchmarks calibration noise`.
"""

from __future__ import annotations

import importlib
import sys

_BENCHMARKS = {
    "calibration": "tests.benchmarks.calibration_speed",
    "noise": "tests.benchmarks.noise_speed",
    "ledger": "tests.benchmarks.ledger_speed",
    "private-step": "tests.benchmarks.private_step_speed",
}


def main(names: list[str]) -> None:
    unknown = sorted(set(names) - set(_BENCHMARKS))
    if unknown:
        sys.exit(f"there is no benchmark {unknown[0]!r}; choose from {', '.join(_BENCHMARKS)}")
    for name in names or _BENCHMARKS:
        print(f"== {name}", flush=True)
        importlib.import_module(_BENCHMARKS[name]).main()


if __name__ == "__main__":
    main(sys.argv[1:])

"""What each level of access sees of one DP-SGD loop on Adult: bounds at epsilon 1, 2, 4, 8, all noise and a third.

`python -m tests.benchmarks.audit_access [RUNS]` prints the table of docs/evidence.md#coverage-and-power.
"""

from __future__ import annotations

import sys

import privfair as pf
from audit.coins.training_signals import Access
from tests.audit.strangers_training import RATE, STEPS, LogisticLoop
from tests.benchmarks.audit_acceptance import adult

EPSILONS = (1.0, 2.0, 4.0, 8.0)


def main(runs: int) -> None:
    data = adult()
    print("| noise | access | " + " | ".join(f"epsilon {one:g}" for one in EPSILONS) + " |")
    print("|---|---|" + "---|" * len(EPSILONS))
    for share in (1.0, 1 / 3):
        for access in Access:
            cells = []
            for epsilon in EPSILONS:
                sigma = pf.sigma(epsilon=epsilon, delta=1e-5, sampling_rate=RATE, rounds=STEPS)
                report = pf.audit_training(LogisticLoop(share * sigma), data, epsilon=epsilon, access=access, runs=runs)
                cells.append(f"{report.epsilon_lower:.2f} {report.verdict.value}")
            print(f"| {'all' if share == 1 else 'a third'} | {access.value} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)

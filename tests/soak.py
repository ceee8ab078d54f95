"""`make soak`: does the suite ever fail by chance? The default suite several times, the tests of true noise many times.

    python -m tests.soak --suite 5 --marked 200

Each repetition is a fresh pytest, so that nothing is left over from the one before; the output of one that fails is
shown whole. The last line is the result, and the exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

DEFAULT = "not slow"
MARKED = "true_noise and not slow"


def main() -> int:
    parser = argparse.ArgumentParser(description="Repeat the suite until chance had its chance.")
    parser.add_argument("--suite", type=int, default=5, help="How often the default suite is run.")
    parser.add_argument("--marked", type=int, default=200, help="How often the tests marked true_noise are run.")
    parser.add_argument("--processes", type=int, default=2, help="Processes that share the tests of one repetition.")
    given = parser.parse_args()
    began, failed = time.monotonic(), []
    for selection, times in ((DEFAULT, given.suite), (MARKED, given.marked)):
        for number in range(1, times + 1):
            command = [sys.executable, "-m", "pytest", "-q", "-n", str(given.processes), "-p", "no:cacheprovider"]
            done = subprocess.run([*command, "-m", selection], capture_output=True, text=True, check=False)
            last = (done.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")
            print(f"{selection}, {number} of {times}: {last}", flush=True)
            if done.returncode:
                failed.append(f"{selection} {number}")
                print(done.stdout + done.stderr, flush=True)
    minutes = (time.monotonic() - began) / 60
    print(
        f"soak: the default suite {given.suite} times and the tests of true noise {given.marked} times in "
        f"{minutes:.0f} minutes; {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

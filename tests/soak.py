"""`make soak`: does the suite ever fail by chance? The default suite several times, the tests of true noise many times.

    python -m tests.soak --suite 5 --marked 200

Each repetition of the suite is a fresh pytest; of the tests of true noise, which are short, one pytest runs ten. The
output of one that fails is shown whole. The last line is the result, and the exit code is 1 if anything failed.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

DEFAULT = "not slow"
MARKED = "true_noise and not slow"
TOGETHER = 10
"""So many repetitions of the tests of true noise share one pytest."""

ROOT = Path(__file__).parents[1]


def repeat(selection: str, times: int, at_once: int, arguments: Sequence[str]) -> list[str]:
    """Runs the selected tests `times` times, `at_once` of these runs side by side; the names of those that failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", selection, *arguments]
    failed: list[str] = []

    def once(_: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    with ThreadPoolExecutor(at_once) as pool:
        for number, done in enumerate(pool.map(once, range(times)), start=1):
            last = (done.stdout.strip().splitlines() or ["no output"])[-1].strip("= ")
            print(f"{selection}, {number} of {times}: {last}", flush=True)
            if done.returncode:
                failed.append(f"{selection} {number}")
                print(done.stdout + done.stderr, flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Repeat the suite until chance had its chance.")
    parser.add_argument("--suite", type=int, default=5, help="How often the default suite is run.")
    parser.add_argument("--marked", type=int, default=200, help="How often the tests marked true_noise are run.")
    parser.add_argument("--processes", type=int, default=2, help="Processes that work at the same time.")
    given = parser.parse_args()
    began = time.monotonic()
    files = [str(path) for path in (ROOT / "tests").rglob("test_*.py") if "true_noise" in path.read_text()]
    failed = repeat(DEFAULT, given.suite, 1, ["-n", str(given.processes)])
    tens = math.ceil(given.marked / TOGETHER)
    again = ["-n", "0", "--keep-duplicates", *sorted(files) * TOGETHER]
    failed += repeat(MARKED, tens, given.processes, again)
    minutes = (time.monotonic() - began) / 60
    print(
        f"soak: the default suite {given.suite} times and the tests of true noise {tens * TOGETHER} times in "
        f"{minutes:.0f} minutes; {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

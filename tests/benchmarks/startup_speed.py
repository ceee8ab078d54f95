"""How long it takes until something answers: imports and commands, beside a bare interpreter and an import of numpy.

    python -m tests.benchmarks startup

Seconds of processor time of a fresh process, the median of several, all of them in turns; written to
docs/benchmarks.md.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

from tests.sections import write_section

TIMES = 7
IMPORT_LIMIT = 0.15
"""Seconds of `import privfair`, above the bare interpreter."""

GOALS = (
    ("privfair --help", 3.0, "python, nothing imported"),
    ("privfair account", 3.0, "import numpy"),
    ("import privfair", 1.0, "import numpy"),
)
"""What, how many times the anchor, the anchor."""

_COMMAND = "import sys; sys.argv = ['privfair', *{words!r}]; from privfair.cli import main; main()"
CASES = {
    "python, nothing imported": "pass",
    "import numpy": "import numpy",
    "import privfair": "import privfair",
    "privfair.sigma": "import privfair; privfair.sigma(epsilon=1, delta=1e-5, sampling_rate=0.01, rounds=1000)",
    "privfair --help": _COMMAND.format(words=["--help"]),
    "privfair train --help": _COMMAND.format(words=["train", "--help"]),
    "privfair account": _COMMAND.format(
        words=[
            "account",
            "--noise-multiplier=1",
            "--sampling=poisson",
            "--sampling-rate=0.01",
            "--rounds=99",
            "--delta=1e-5",
        ]
    ),
}


def _seconds(code: str) -> float:
    """Processor seconds of one fresh process, user and system; modules are compiled beforehand, as pip does it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, env=kept)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _goal(medians: dict[str, float], what: str, most: float, anchor: str) -> str:
    ratio = medians[what] / medians[anchor]
    return f"| `{what}` | {most:g} x `{anchor}` | {ratio:.2f} | {'reached' if ratio <= most else 'missed'} |"


def main() -> int:
    """Measure, write the page; 1 if an import is slower than promised."""
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for turn in range(TIMES + 1):
        for name, code in CASES.items():
            seconds = _seconds(code)
            if turn:  # the first one compiles
                found[name].append(seconds)
    medians = {name: statistics.median(times) for name, times in found.items()}
    bare, peer = medians["python, nothing imported"], medians["import numpy"] - medians["python, nothing imported"]
    rows = [
        f"| `{name}` | {seconds:.3f} | {seconds - bare:.3f} | {(seconds - bare) / peer:.2f} |"
        for name, seconds in medians.items()
    ]
    text = (
        "# Start-up\n\nSeconds of processor time of a fresh process, the median of "
        f"{TIMES}, measured in turns by `python -m tests.benchmarks startup`.\nThe last column divides by what an "
        "import of numpy takes.\n\n| what | seconds | above the interpreter | against numpy |\n|---|---:|---:|---:|\n"
        + "\n".join(rows)
        + f"\n\nPromised: `import privfair` at most {IMPORT_LIMIT} seconds above the interpreter, and no numpy or "
        "torch before it is needed.\n\nGoals for whole processes:\n\n"
        "| what | at most | measured | |\n|---|---:|---:|---|\n"
        + "\n".join(_goal(medians, *goal) for goal in GOALS)
        + "\n"
    )
    write_section("startup", text)
    print(text)
    return int(medians["import privfair"] - bare > IMPORT_LIMIT)


if __name__ == "__main__":
    sys.exit(main())

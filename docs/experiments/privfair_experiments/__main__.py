"""Run one experiment: `python -m privfair_experiments NAME [options]`; `NAME --help` lists its options."""

from __future__ import annotations

import os
import sys
from importlib import import_module

RUNNERS = {
    "banded": "banded",
    "bits": "bits",
    "fair-plugin": "fair_plugin.run",
    "fedfdp": "fedfdp.run",
    "fpfl": "fpfl.run",
    "headlines": "headlines",
    "images": "images.run",
    "matrix": "matrix",
    "mmd": "mmd.run",
    "steffle": "steffle.run",
    "steffle-axes": "steffle.run_axes",
}
"""The module behind each NAME; its `main` gets the other arguments."""


def main(arguments: list[str]) -> None:
    """Run the experiment that the first argument names."""
    if not arguments or arguments[0] not in RUNNERS:
        sys.exit(f"usage: python -m privfair_experiments NAME [options]; NAME is one of {', '.join(RUNNERS)}")
    name, *options = arguments
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # before numpy is loaded; the processes share the cores
    sys.argv[0] = f"{sys.argv[0]} {name}"
    import_module(f"privfair_experiments.{RUNNERS[name]}").main(options)


if __name__ == "__main__":
    main(sys.argv[1:])

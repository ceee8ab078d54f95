"""Through how many files three commands run: calibrate and sign, train, audit a run.

    python -m tests.architecture.flows

runs them on a small SteFFLe plan and lists, in order of first call, every file of the three packages in which a
function was called (not merely imported). docs/architecture.md quotes the numbers.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.architecture.tree import PACKAGES, ROOT
from tests.end_to_end.command_line import privfair
from tests.privfair.small_runs import steffle_plan, write_silos

_PLAN = steffle_plan(24)


@contextmanager
def _called_files() -> Iterator[dict[str, None]]:
    """The files of our packages in which functions are called meanwhile, in order of first call."""
    found: dict[str, None] = {}
    ours = {str(ROOT / package) for package in PACKAGES}

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and any(code.co_filename.startswith(each) for each in ours):
            found.setdefault(str(Path(code.co_filename).relative_to(ROOT)))

    sys.setprofile(watch)
    try:
        yield found
    finally:
        sys.setprofile(None)


def flows(folder: Path) -> dict[str, list[str]]:
    """The files of each flow, by command."""
    write_silos(folder)
    plan, key, trust, ledger = (folder / name for name in ("plan.toml", "officer.pem", "trust.json", "ledger.db"))
    plan.write_text(_PLAN, encoding="utf-8")
    role = ("--role", "privacy-officer")
    before = [
        ("keys", "generate", *role, "--out", key),
        ("keys", "trust", "--key", key, *role, "--out", trust),
        ("ledger", "init", ledger),
    ]
    chain = ("--trust", trust, "--ledger", ledger)
    commands = {
        "calibrate": ("calibrate", plan, "--out", folder / "budget.json", "--key", key),
        "train": ("train", plan, "--manifest", folder / "budget.json", *chain, "--out", folder / "run", "--quiet"),
        "audit": ("audit", folder / "run", "--plan", plan, *chain),
    }
    for words in before:
        privfair(*words)
    found: dict[str, list[str]] = {}
    for name, words in commands.items():
        with _called_files() as files:
            outcome = privfair(*words)
        assert outcome.code in (0, 1), outcome.err
        found[name] = list(files)
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        for command, files in flows(Path(where)).items():
            print(f"{command}: {len(files)} files")
            if "-v" in sys.argv:
                print(*(f"  {file}" for file in files), sep="\n")

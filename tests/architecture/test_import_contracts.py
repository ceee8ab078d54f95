"""The import contracts of pyproject.toml: each reports a violation planted against it, and none has an exception."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.architecture.tree import PACKAGES, ROOT

PLANTED = {
    "calibrate decides on paper": ("calibrate/releases.py", "import torch"),
    "the engine cannot calibrate itself": ("privfair/gate.py", "import calibrate.solve"),
    "the engine knows neither its front end nor the audits": ("privfair/training.py", "import privfair.api.plan"),
    "audits test the engine, and know no front end": ("audit/verdict.py", "import privfair.cli"),
    "nothing but the entry point knows the command line": ("privfair/integrations/mlflow.py", "import privfair.cli"),
    "only the gate draws noise": ("privfair/fairness/measurement.py", "import privfair.noise"),
    "only the audit's reruns hold a key": ("privfair/training.py", "import privfair.run.rehearsal"),
    "the coordinator sees no record": ("privfair/federation/coordinator.py", "import privfair.data.dataset"),
    "algorithms do not import one another": ("privfair/algorithms/fpfl.py", "import privfair.algorithms.steffle"),
    "baselines do not import one another": (
        "privfair/algorithms/baselines/drift.py",
        "import privfair.algorithms.baselines.tran",
    ),
}
"""How a contract's name begins, and an import that it forbids: a file and the line added to it."""
FRONT_END = {"api", "cli", "integrations", "pytest_plugin", "testing"}
_SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]


def test_every_contract_reports_a_planted_violation(tmp_path: Path) -> None:
    names = [contract["name"] for contract in _SETTINGS["contracts"]]
    assert [sum(name.startswith(start) for start in PLANTED) for name in names] == [1] * len(PLANTED)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, line in PLANTED.values():
        with (tmp_path / file).open("a", encoding="utf-8") as source:
            source.write(f"\n{line}\n")
    lint = Path(sys.executable).with_name("lint-imports")
    environment = os.environ | {"COLUMNS": "400", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [lint, "--no-cache"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    silent = [name for name in names if not re.search(rf"{re.escape(name)} BROKEN", done.stdout)]
    assert not silent, f"not reported: {silent}\n{done.stdout}{done.stderr}"


def test_no_contract_has_an_exception() -> None:
    assert not [contract["name"] for contract in _SETTINGS["contracts"] if "ignore_imports" in contract]


def test_every_room_of_privfair_is_engine_or_front_end() -> None:
    engine = [
        {module.removeprefix("privfair.") for module in contract["source_modules"]}
        for contract in _SETTINGS["contracts"]
        if contract["name"].startswith("the engine")
    ]
    rooms = {
        path.stem for path in (ROOT / "privfair").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    for listed in engine:
        assert listed | FRONT_END == rooms - {"__init__", "__main__"}

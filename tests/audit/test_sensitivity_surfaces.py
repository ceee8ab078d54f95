"""The command line and the pytest plugin say what the search found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from privfair.cli import cli

_MODULE = """
from audit.claims.claim import Domain
from audit.claims.spaces import Box
DOMAIN = Domain({"x": Box(0.0, 1.0)})
def total(x):
    return x.sum()
"""
_FAST = ("--pairs", "60", "--climbs", "1", "--steps", "5", "--json")


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "a_strangers_module.py").write_text(_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "a_strangers_module:total"


def test_a_refuted_claim_exits_with_1_and_shows_the_pair() -> None:
    result = CliRunner().invoke(cli, ["sensitivity", "check", "fpfl.clip.replace-one", *_FAST])
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert document["verdict"] == "refuted"
    assert document["found"] == pytest.approx(2 * document["claimed"], rel=0.01)
    assert len(document["counterexample"]["in"]["first"]["x"]) == 1


@pytest.mark.parametrize(("bound", "code", "word"), [("1", 0, "not refuted"), ("0.9", 1, "refuted")])
def test_a_function_of_ones_own(own_module: str, bound: str, code: int, word: str) -> None:
    result = CliRunner().invoke(cli, ["sensitivity", "check", own_module, "--claim", bound, *_FAST])
    assert result.exit_code == code
    document = json.loads(result.stdout)
    assert document["verdict"] == word
    assert {"claimed", "found", "verdict", "counterexample"} <= set(document)


def test_the_table_is_readable(own_module: str) -> None:
    result = CliRunner().invoke(cli, ["sensitivity", "check", own_module, "--claim", "0.5", *_FAST[:-1]])
    assert "data set" in result.stdout
    assert "searched:" in result.stdout


def test_a_wrong_name_is_refused_by_name() -> None:
    result = CliRunner().invoke(cli, ["sensitivity", "check", "no.such-claim"])
    assert "no.such-claim" in str(result.exception)
    assert result.exception is not None
    assert getattr(result.exception, "exit_code", None) == 2


@pytest.mark.slow
def test_the_fixture_reports_the_best_ratio(tmp_path: Path) -> None:
    """In a process of its own, as a stranger's test suite would have it."""
    (tmp_path / "test_it.py").write_text(
        "from privfair.testing import Box, Domain, MechanismSearch, Search\n"
        "D = Domain({'x': Box(0.0, 1.0)})\n"
        "def test_true(privfair_sensitivity):\n"
        "    privfair_sensitivity(lambda x: x.sum(), 1.0, D, search=Search(40, 1, 2))\n"
        "def test_false(privfair_sensitivity):\n"
        "    privfair_sensitivity(lambda x: x.sum(), 0.5, D, search=Search(40, 1, 2))\n"
        "def test_mechanism(privfair_dp):\n"
        "    quick = MechanismSearch(pairs=4, runs=500)\n"
        "    privfair_dp(lambda x, rng, runs: rng.integers(0, 9, runs), 1.0, 0.0, D, search=quick)\n"
    )
    run = _pytest_in(tmp_path)
    assert "1 failed, 2 passed" in run.stdout, run.stdout + run.stderr
    assert "not refuted, best ratio found 1 " in run.stdout
    assert "refuted, best ratio found 2 " in run.stdout
    assert "not refuted, epsilon at least 0, claimed 1 " in run.stdout


def _pytest_in(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """`python -m pytest` in a stranger's project, which has the working directory first on its path."""
    plugin = ("-p", "privfair.pytest_plugin", "-p", "no:privfair_sensitivity", "-p", "no:cacheprovider")
    path = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{Path(__file__).parents[2]}"}
    command = [sys.executable, "-m", "pytest", "-q", *plugin, *options, "--rootdir", str(folder), "--confcutdir", "."]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=path, check=False)


def test_a_project_with_a_package_audit_of_its_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "__init__.py").write_text("OWN = True\n")
    (tmp_path / "test_own.py").write_text(
        "import sys\n"
        "def test_own():\n"
        "    import audit\n"
        "    assert audit.OWN\n"
        "    assert not {'numpy', 'torch', 'calibrate'} & set(sys.modules)\n"
    )
    run = _pytest_in(tmp_path)
    assert "1 passed" in run.stdout, run.stdout + run.stderr
    # An editable installation finds submodules whatever their parent is; a wheel does not.
    (tmp_path / "conftest.py").write_text(
        "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f).lower()]\n"
    )
    (tmp_path / "test_fixture.py").write_text("def test_fixture(privfair_sensitivity):\n    pass\n")
    run = _pytest_in(tmp_path, "test_fixture.py")
    assert "keep your packages named audit off the path" in run.stdout, run.stdout + run.stderr

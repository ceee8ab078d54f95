"""What a stranger gets wrong is answered by one sentence and exit code 2, never by a traceback or by exit code 1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.command_line import Outcome, privfair
from tests.privfair.small_runs import FEDSGD, Desk

STEFFLE = {
    "--epsilon": "1",
    "--delta": "1e-5",
    "--silo-size": "7500",
    "--batch-size": "256",
    "--rounds": "10",
    "--minority-fraction": "0.4",
    "--lipschitz": "1",
    "--w-radius": "1",
}
MODULE = """
from audit.claims.claim import Domain
from audit.claims.spaces import Box

DOMAIN = Domain({"x": Box(0.0, 1.0)}, fewest=2)


def raises(x):
    raise RuntimeError("boom")


def text(x):
    return "not a number"
"""


def refused(outcome: Outcome, *words: str) -> None:
    assert outcome.code == 2
    assert outcome.err.startswith("privfair: ")
    assert outcome.err.count("\n") == 1
    for word in words:
        assert word in outcome.err


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("flag", ["--minority-fraction", "--lipschitz", "--w-radius", "--theta-share"])
def test_a_flag_that_is_no_finite_number(flag: str, value: str) -> None:
    given = STEFFLE | {flag: value}
    words = [word for pair in given.items() for word in pair]
    refused(privfair("calibrate", "steffle", *words), flag.removeprefix("--"), "finite")


def test_several_values_one_of_them_nan() -> None:
    words = ("--epsilon", 1, "--delta", 1e-5, "--sampling-rate", 0.1, "--rounds", 3, "--noise", 1, "--noise", "nan")
    refused(privfair("calibrate", "gaussian", *words), "noise", "finite")


@pytest.mark.parametrize("multiplier", ["1e-300", "1e-160", "0.009"])
@pytest.mark.parametrize("sampling", [(), ("--sampling", "poisson", "--sampling-rate", "0.1")])
def test_noise_too_small_to_price(multiplier: str, sampling: tuple[str, ...]) -> None:
    refused(
        privfair("account", "--noise-multiplier", multiplier, "--delta", 1e-5, *sampling), "--noise-multiplier", "0.01"
    )


@pytest.mark.parametrize("name", ["raises", "text"])
def test_a_function_that_raises_is_not_refuted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"stranger_functions_{name}"
    (tmp_path / f"{module}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    refused(privfair("sensitivity", "check", f"{module}:{name}", "--claim", 1), "raised", name)


def test_a_module_that_cannot_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stranger_broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    refused(privfair("sensitivity", "check", "stranger_broken:f", "--claim", 1), "can't be loaded")


@pytest.mark.parametrize(
    "words",
    [
        ("--sign", "missing.pem", "--statement", "statement.json"),
        ("--out", "missing/audit.json"),
        ("--junit", "missing/audit.xml"),
    ],
)
def test_outputs_of_an_audit_are_checked_before_it(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(privfair("audit", "run", "run", *words), words[0], words[1])


def test_a_report_that_is_not_there_is_not_called_broken(tmp_path: Path) -> None:
    from calibrate.errors import InvalidInput
    from privfair.cli.audit_result import require_same_report

    with pytest.raises(InvalidInput, match="cannot be read"):
        require_same_report("digest", tmp_path / "missing.json")


def test_a_run_on_files_whose_plan_is_gone_asks_for_it(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, FEDSGD.format(rounds=2, more=""))
    desk.train(desk.budget())
    assert privfair("audit", tmp_path / "run", "--reruns", 0).code == 0  # the run knows where its plan was
    desk.plan.unlink()
    outcome = privfair("audit", tmp_path / "run", "--reruns", 0)
    assert outcome.code == 2
    assert "--plan" in outcome.err
    assert "is needed, because the plan names data files relative to its own place" in outcome.err

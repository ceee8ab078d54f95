"""What is not the user's fault: one sentence, a log file, exit code 70; a missing extra: one sentence, exit code 2."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from calibrate.errors import InvalidInput, Refused
from privfair.cli import verify
from privfair.run.folder import RunFolder
from privfair.run.metrics import read_threshold
from tests.end_to_end.command_line import privfair


def _break(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(verify.verify_command, "callback", broken)


@pytest.mark.parametrize("error", [RuntimeError("secret cell 41"), EOFError(), RecursionError(), MemoryError()])
def test_a_fault_of_ours_is_neither_a_traceback_nor_a_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    _break(monkeypatch, error)
    done = privfair("verify", tmp_path / "ledger.db")
    assert done.code == 70
    assert "Traceback" not in done.err
    assert "secret cell" not in done.err
    (log,) = tmp_path.glob("privfair-fault-*.log")
    assert re.search(rf"unexpected {type(error).__name__}, .*{re.escape(str(log))}", done.err)
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_a_missing_extra_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _break(monkeypatch, ModuleNotFoundError("No module named 'torch'", name="torch"))
    done = privfair("verify", tmp_path / "ledger.db")
    assert done.code == 2
    assert "needs torch, which is not installed; install it with `pip install 'privfair[train]'`" in done.err
    assert "Traceback" not in done.err


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _break(monkeypatch, KeyboardInterrupt())
    assert privfair("verify", tmp_path / "ledger.db").code == 130


def test_a_refused_value_without_a_repr_is_still_refused_in_one_sentence() -> None:
    assert "a value of type int" in str(InvalidInput("rounds", 10**5000, "must be smaller", "give less"))
    assert len(str(InvalidInput("rounds", "9" * 5000, "must be smaller", "give less"))) < 300


def test_an_argument_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 reach Python as lone surrogates, which nothing that is signed can hold."""
    done = privfair("request", tmp_path / "plan.toml", "--why", "\udcff")
    assert done.code == 2
    assert "not UTF-8" in done.err


def test_a_decision_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.decision.write_text("[" * 100_000)
    with pytest.raises(Refused, match=r"decision\.json"):
        read_threshold(folder)

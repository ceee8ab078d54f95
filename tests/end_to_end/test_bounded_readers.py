"""Files from elsewhere are refused before they are expanded: size, ratio, members, depth, links."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from calibrate.errors import InvalidInput, Refused
from privfair.data.read import read_table
from privfair.durable import LARGEST_DOCUMENT, read_named, require_bounded_archive
from privfair.run.folder import RunFolder
from tests.end_to_end.command_line import privfair
from tests.privfair.small_runs import GAUSSIAN, Desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk.at(tmp_path_factory.mktemp("desk"), GAUSSIAN.format(rate=1.0, rounds=2, more=""))
    desk.train(desk.budget())
    return desk


@pytest.fixture
def run(desk: Desk, tmp_path: Path) -> Path:
    shutil.copytree(desk.folder / "run", tmp_path / "run")
    return tmp_path / "run"


def _zip_of_zeros(path: Path, name: str, size: int) -> None:
    """A small archive of a member with many bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(name, "w") as member:
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))


def test_an_archive_that_unpacks_to_far_more_than_it_is_is_not_unpacked(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.csv.zip"
    _zip_of_zeros(bomb, "bomb.csv", 300 << 20)
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(InvalidInput, match="unpacks to"):
        read_table(bomb)
    with zipfile.ZipFile(tmp_path / "many.npz", "w") as archive:
        for number in range(10_001):
            archive.writestr(str(number), b"")
    with pytest.raises(InvalidInput, match="10001 members"):
        require_bounded_archive(tmp_path / "many.npz", "file")


def test_archives_of_ordinary_data_are_read(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.csv.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", "x\n" + "1\n" * 100_000)
    assert len(read_table(tmp_path / "a.csv.zip").columns["x"]) == 100_000
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1_000_000))
    require_bounded_archive(tmp_path / "a.npz", "file")
    (tmp_path / "text").write_text("no archive")
    require_bounded_archive(tmp_path / "text", "file")


def test_an_endless_device_is_not_read_to_its_end(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="has more than"):
        read_named(Path("/dev/zero"), "--trust")
    large = tmp_path / "large.toml"
    with large.open("wb") as file:
        file.truncate(LARGEST_DOCUMENT + 1)
    assert "has more than" in privfair("check", large).out


LEAVING: dict[str, Callable[[Path], None]] = {
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a file outside": lambda path: path.symlink_to("/etc/hostname"),
    "a folder": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("name", ["metrics.jsonl", "model.pt", "budget.json", "run.json", "encoding.json"])
@pytest.mark.parametrize("how", LEAVING)
def test_nothing_in_a_run_folder_leads_out_of_it(run: Path, desk: Desk, name: str, how: str) -> None:
    (run / name).unlink(missing_ok=True)
    LEAVING[how](run / name)
    with pytest.raises(Refused, match="leads out of the run folder"):
        RunFolder.existing(run)
    assert privfair("report", run, "--out", run.parent / "page.html").code in (2, 3)
    assert privfair("audit", "run", run, "--trust", desk.trust, "--reruns", 0, "--plan", desk.plan).code in (2, 3)


def test_a_link_inside_a_run_folder_is_followed(run: Path) -> None:
    (run / "model.pt").rename(run / "kept.pt")
    (run / "model.pt").symlink_to("kept.pt")
    assert RunFolder.existing(run).model.exists()


@pytest.mark.parametrize("name", ["model.pt", "checkpoint.npz"])
def test_a_model_or_checkpoint_that_unpacks_to_gigabytes_is_refused(run: Path, desk: Desk, name: str) -> None:
    (run / name).unlink()
    _zip_of_zeros(run / name, "archive/data/0", 300 << 20)
    if name == "model.pt":
        done = privfair("predict", run, "--input", desk.folder / "north.csv", "--out", run.parent / "out.csv")
    else:
        given = ("--manifest", desk.folder / "budget.json", "--trust", desk.trust, "--ledger", desk.ledger)
        done = privfair("train", desk.plan, *given, "--out", run, "--resume")
    assert done.code == 3


@pytest.mark.parametrize("part", ["records", "selection_rates", "accuracy"])
def test_a_report_refuses_metrics_without_their_numbers(run: Path, part: str) -> None:
    """It ended with exit code 70 before."""
    overall = {"groups": {"a": {"records": 3, "accuracy": 1.0, "selection_rates": [0.5, 0.5]}}}
    del overall["groups"]["a"][part]  # type: ignore[attr-defined]
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, "overall": overall}) + "\n")
    done = privfair("report", run, "--out", run.parent / "page.html")
    assert done.code == 2, done.err


@pytest.mark.parametrize("users", ["5", "[]", '"x"', "true"])
def test_a_number_in_the_place_of_a_table_is_a_mistake_of_the_plan(tmp_path: Path, users: str) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(GAUSSIAN.format(rate=0.5, rounds=2, more="").replace("[training]", f"users = {users}\n[training]"))
    assert privfair("calibrate", plan, "--out", tmp_path / "b.json", "--key", tmp_path / "k.pem").code in (2, 3)


@pytest.mark.parametrize("depth", [200, 20_000])
def test_nesting_without_end_is_refused(tmp_path: Path, depth: int) -> None:
    for name, text in (("plan.toml", "a = " + "[" * depth), ("budget.json", "[" * depth)):
        (tmp_path / name).write_text(text)
        done = privfair(*(("check",) if name == "plan.toml" else ("verify",)), tmp_path / name)
        assert done.code in (1, 2, 3), done.err


def test_an_encrypted_key_without_a_terminal_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRIVFAIR_KEY_PASSWORD", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    done = privfair("keys", "generate", "--role", "auditor", "--encrypt", "--out", tmp_path / "k.pem")
    assert done.code == 2
    assert "PRIVFAIR_KEY_PASSWORD" in done.err

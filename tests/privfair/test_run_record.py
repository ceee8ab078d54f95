"""run.json and receipts.json have one writer and one reader: keys in order, and damage reported with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import calibrate
from calibrate.errors import PrivfairError, Refused
from privfair.federation.gather import gather_run
from privfair.integrations.desk.papers import Known, open_runs
from privfair.integrations.mlflow import log_run
from privfair.run.record import Receipts, RunRecord
from tests.privfair.small_runs import GAUSSIAN, Desk

KEYS = (
    "version status algorithm promise manifest plan data noise_source batches metrics_note"
    " versions code ledger rounds metrics transcript digests remarks"
)
PROMISE = "kind text unit adjacency epsilon delta claimed_epsilon not_protected research_noise"
RECEIPTS = "ledger head manifest claim state rounds releases sessions epsilon delta unit data transcript"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Desk.at(tmp_path_factory.mktemp("record"), GAUSSIAN.format(rate=0.5, rounds=6, more=""))
    return made.train(made.budget("budget.json"), "run").run


def test_the_files_keep_their_keys_in_order_and_come_back_byte_for_byte(run: Path) -> None:
    for name, kind, keys in (("run.json", RunRecord, KEYS), ("receipts.json", Receipts, RECEIPTS)):
        content = (run / name).read_text("utf-8")
        assert list(json.loads(content)) == keys.split(" ")
        again = kind.read(run / name).as_json()
        assert json.dumps(again, indent=2, ensure_ascii=False) + "\n" == content
    found = json.loads((run / "run.json").read_text("utf-8"))
    assert list(found["promise"]) == PROMISE.split(" ")
    assert list(found["rounds"]) == ["signed", "charged", "planned_steps", "steps", "sessions"]


def test_run_json_names_the_installed_code(run: Path) -> None:
    top = Path(calibrate.__file__).parents[1]
    lines = []
    for package in ("calibrate", "privfair", "audit"):
        code = (path for path in (top / package).rglob("*") if path.suffix in (".py", ".so"))
        found = {path.relative_to(top / package).as_posix(): path for path in code}
        lines += [f"{package}/{name} {sha256(found[name].read_bytes()).hexdigest()}\n" for name in sorted(found)]
    assert RunRecord.read(run / "run.json").code == sha256("".join(lines).encode()).hexdigest()


def _changed(change: Callable[[dict[str, Any]], object]) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return damage


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut off": (lambda content: content[:-40], "cannot be read"),
    "not UTF-8": (lambda content: b"\xff" + content, "cannot be read"),
    "nested without end": (lambda content: b"[" * 100_000, "cannot be read"),
    "a list": (lambda content: b"[]", "is not what a run writes"),
    "no promise": (_changed(lambda document: document.pop("promise")), r"promise: Field required"),
    "a unit of no kind": (_changed(lambda document: document["promise"].update(unit="town")), r"promise: "),
    "a number as text": (_changed(lambda document: document["rounds"].update(steps="6")), r"rounds\.steps: "),
    "another status": (_changed(lambda document: document.update(status="lost")), r"status: "),
    "a key of no run": (_changed(lambda document: document.update(extra=1)), r"extra: "),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_reported_with_its_place_and_a_remedy(run: Path, tmp_path: Path, how: str) -> None:
    change, said = DAMAGES[how]
    damaged = tmp_path / "runs" / "run"
    damaged.mkdir(parents=True)
    for one in run.iterdir():
        (damaged / one.name).write_bytes(one.read_bytes())
    path = damaged / "run.json"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(Refused, match=rf"run\.json .*{said}.*put an untouched copy back"):
        RunRecord.read(path)
    for reader in (log_run, lambda folder: gather_run(folder, {})):
        with pytest.raises(PrivfairError, match=r"run\.json"):
            reader(damaged)
    ((name, why),) = open_runs([damaged.parent], Known()).unreadable
    assert name == "run"
    assert "put an untouched copy back" in why

"""Kill a run after every single publication, and in the middle of one: nothing is drawn twice, nothing is lost."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calibrate.errors import InvalidInput, Refused
from privfair.federation.coordinator import Position
from privfair.ledger import Claim, Ledger
from privfair.run.folder import RunFolder, load_checkpoint
from privfair.run.record import read_sessions
from privfair.run.replay import replay
from privfair.training import prepare
from privfair.transcript import Ending, Transcript, TranscriptWriter
from tests.privfair.ledgers import open_ledger
from tests.privfair.small_runs import FEDSGD, GAUSSIAN, Desk

PLAN = FEDSGD.replace("batch-size = 32", 'sampling = "full"').format(rounds=6, more="signed-rounds = 40\nblock = 4")


class Killed(BaseException):
    """Stands for the end of the process: no handler of the engine catches it."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    return Desk.at(tmp_path_factory.mktemp("desk"), PLAN)


@pytest.fixture(scope="module")
def whole(desk: Desk) -> Any:
    """The model of a run that nobody interrupted; full batches, so every run is to end with it."""
    return desk.train(desk.budget("whole.json"), "whole").summary


def kill_after(monkeypatch: pytest.MonkeyPatch, appends: int, before_record: bool) -> None:
    """Die when so many values stand in the transcript: before or after the ledger knows of the last one."""
    append, record, count = TranscriptWriter.append, Claim.record_release, Counter[str]()

    def counted(self: Any, *arguments: Any, **options: Any) -> Any:
        digest = append(self, *arguments, **options)
        count["appended"] += 1
        if before_record and count["appended"] == appends:
            raise Killed
        return digest

    def recorded(self: Any, *arguments: Any) -> Any:
        record(self, *arguments)
        if not before_record and count["appended"] == appends:
            raise Killed

    monkeypatch.setattr(TranscriptWriter, "append", counted)
    monkeypatch.setattr(Claim, "record_release", recorded)


def interrupted(desk: Desk, out: str, monkeypatch: pytest.MonkeyPatch, appends: int, before: bool) -> Path:
    manifest = desk.budget(f"{out}.json")
    with monkeypatch.context() as patched:
        kill_after(patched, appends, before)
        with pytest.raises(Killed):
            desk.train(manifest, out)
    return manifest


def theta(desk: Desk, out: str) -> np.ndarray:
    document = RunFolder(desk.folder / out).read_json(desk.folder / out / "model.json")
    return np.array([*document["weights"]["yes"], document["intercepts"]["yes"]])


@pytest.mark.parametrize("appends", range(1, 19, 3))
@pytest.mark.parametrize("before", [True, False], ids=["unrecorded", "recorded"])
def test_a_resumed_run_ends_with_the_model_of_an_uninterrupted_one(
    desk: Desk, whole: Any, monkeypatch: pytest.MonkeyPatch, appends: int, before: bool
) -> None:
    out = f"run-{appends}-{before}"
    manifest = interrupted(desk, out, monkeypatch, appends, before)
    result = desk.train(manifest, out, resume=True)
    np.testing.assert_array_equal(theta(desk, out), theta(desk, "whole"))
    assert result.summary["rounds"]["steps"] == 6
    assert result.summary["rounds"]["sessions"] == 2
    transcript = Transcript.read(desk.folder / out / "transcript.bin")
    assert len(transcript.keys) == 18, "six steps of three silos, each published once"
    assert transcript.ending is Ending.CLOSED
    with open_ledger(desk.ledger) as ledger:
        assert not transcript.verify_against(ledger).unrecorded
        assert ledger.manifest_status(result.summary["manifest"]["digest"]).releases == 18
    lines = (desk.folder / out / "metrics.jsonl").read_text().splitlines()
    assert [int(line.split('"step": ')[1].split(",")[0]) for line in lines] == [1, 2, 3, 4, 5, 6]


def test_three_interruptions_at_one_step_and_an_idle_session(
    desk: Desk, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = interrupted(desk, "often", monkeypatch, 7, True)
    for appends in (1, 1):
        with monkeypatch.context() as patched:
            kill_after(patched, appends, False)
            with pytest.raises(Killed):
                desk.train(manifest, "often", resume=True)
    with monkeypatch.context() as patched:
        patched.setattr(TranscriptWriter, "append", lambda *_, **__: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            desk.train(manifest, "often", resume=True)
    desk.train(manifest, "often", resume=True)
    np.testing.assert_array_equal(theta(desk, "often"), theta(desk, "whole"))
    sessions = read_sessions(desk.folder / "often" / "sessions.jsonl")
    assert [session.session for session in sessions] == [1, 2, 3, 4, 5]
    assert [len(session.carried) for session in sessions] == [0, 1, 2, 0, 0]


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_an_auditor_replays_an_interrupted_run_from_its_files(
    desk: Desk, whole: Any, monkeypatch: pytest.MonkeyPatch, with_checkpoint: bool
) -> None:
    out = f"audited-{with_checkpoint}"
    manifest = interrupted(desk, out, monkeypatch, 17, True)
    folder = RunFolder(desk.folder / out)
    if not with_checkpoint:
        folder.checkpoint.unlink()
    desk.train(manifest, out, resume=True)
    run = prepare(desk.plan, manifest, desk.trust)
    transcript, sessions = Transcript.read(folder.transcript), read_sessions(folder.sessions)
    positions = [p for p in replay(run.algorithm, transcript, sessions) if not p.carried]
    assert [position.step for position in positions] == list(range(7))
    np.testing.assert_array_equal(run.algorithm.theta(positions[-1].state).numpy(), theta(desk, out))
    halfway: Position[Any] | None = load_checkpoint(folder.checkpoint, run.manifest.digest, run.algorithm)
    assert halfway is not None
    *_, last = replay(run.algorithm, transcript, sessions, halfway)
    np.testing.assert_array_equal(run.algorithm.theta(last.state).numpy(), theta(desk, out))


def test_death_between_the_transcripts_end_and_the_ledgers_loses_nothing(
    desk: Desk, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_json = RunFolder.write_json

    def no_receipts(self: Any, path: Path, document: Any) -> None:
        if path.name == "receipts.json":
            raise Killed
        write_json(self, path, document)

    def no_close(self: Any, *arguments: Any) -> None:
        raise Killed

    for number, (owner, name, dying) in enumerate(((Claim, "close", no_close), (RunFolder, "write_json", no_receipts))):
        out, manifest = f"end-{number}", desk.budget(f"end-{number}.json")
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, dying)
            with pytest.raises(Killed):
                desk.train(manifest, out)
        assert Transcript.read(desk.folder / out / "transcript.bin").ending is Ending.CLOSED
        result = desk.train(manifest, out, resume=True)
        assert result.summary["status"] == "finished"
        assert result.summary["transcript"] is not None
        np.testing.assert_array_equal(theta(desk, out), theta(desk, "whole"))


def test_a_finished_run_resumed_says_what_it_said(desk: Desk, whole: Any) -> None:
    again = desk.train(desk.folder / "whole.json", "whole", resume=True).summary
    assert again["metrics"] == whole["metrics"]
    assert again["rounds"] == whole["rounds"]
    assert again["transcript"] == whole["transcript"]


def test_death_before_the_claim_leaves_the_manifest_unused(
    desk: Desk, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = desk.budget("early.json")
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "claim", lambda *_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            desk.train(manifest, "early")
    assert desk.train(manifest, "early", resume=True).summary["rounds"]["steps"] == 6


def test_death_right_after_the_claim_can_be_resumed_from(
    desk: Desk, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = desk.budget("claimed.json")
    with monkeypatch.context() as patched:
        patched.setattr("privfair.run.open_run.open_gate", lambda **_: (_ for _ in ()).throw(Killed()))
        with pytest.raises(Killed):
            desk.train(manifest, "claimed")
    with pytest.raises(Refused, match="a manifest is claimed once"):
        desk.train(manifest, "elsewhere")
    assert not (desk.folder / "elsewhere").exists()
    assert desk.train(manifest, "claimed", resume=True).summary["rounds"]["steps"] == 6


def test_a_run_is_resumed_with_its_own_manifest_plan_and_ledger(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = interrupted(desk, "own", monkeypatch, 4, True)
    other = desk.budget("other.json")
    with pytest.raises(Refused, match="was begun with the manifest"):
        desk.train(other, "own", resume=True)
    from privfair.training import train

    Ledger.create(desk.folder / "another.db").close()
    with pytest.raises(Refused, match="was begun with the ledger"):
        train(
            desk.plan,
            manifest=manifest,
            trust=desk.trust,
            ledger=desk.folder / "another.db",
            out=desk.folder / "own",
            resume=True,
        )
    with pytest.raises(InvalidInput, match="holds a run already"):
        desk.train(manifest, "own")


def test_an_older_transcript_is_not_gone_on_with(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = interrupted(desk, "rolled", monkeypatch, 2, False)
    old = desk.folder / "old-transcript"
    shutil.copy(desk.folder / "rolled" / "transcript.bin", old)
    with monkeypatch.context() as patched:
        kill_after(patched, 12, False)
        with pytest.raises(Killed):
            desk.train(manifest, "rolled", resume=True)
    shutil.copy(old, desk.folder / "rolled" / "transcript.bin")
    with pytest.raises(Refused, match="was released and is not here"):
        desk.train(manifest, "rolled", resume=True)


def test_rounds_lost_in_a_crash_stay_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A private plan without rounds to spare: the run ends earlier, it does not spend more."""
    desk = Desk.at(tmp_path, GAUSSIAN.format(rate=0.5, rounds=10, more="block = 4"))
    manifest = interrupted(desk, "run", monkeypatch, 4, True)
    result = desk.train(manifest, "run", resume=True)
    rounds = result.summary["rounds"]
    assert (rounds["signed"], rounds["charged"]) == (10, 10)
    assert rounds["steps"] == 1 + 6, "round 0, and rounds 4 to 9; of round 1 one value is used in round 4"
    transcript = Transcript.read(tmp_path / "run" / "transcript.bin")
    assert len(transcript.keys) == 3 * 7
    assert sorted({key.round for key in transcript.keys}) == [0, 1, 4, 5, 6, 7, 8, 9]
    assert not (tmp_path / "run" / "batches.bin").exists(), "secret batches are not recorded"


def test_shuffled_epochs_survive_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No record takes part twice in an epoch, although the run went on in another process."""
    from privfair.batches.participation import BatchRecord

    desk = Desk.at(tmp_path, FEDSGD.format(rounds=12, more="signed-rounds = 24\nblock = 3"))
    manifest = interrupted(desk, "run", monkeypatch, 4, True)
    desk.train(manifest, "run", resume=True)
    record = BatchRecord.read(tmp_path / "run" / "batches.bin")
    transcript = Transcript.read(tmp_path / "run" / "transcript.bin")
    used = sorted({key.round for key in transcript.keys})
    for party, size in (("north", 120), ("south", 150), ("west", 135)):
        batches = -(-size // 32)
        for epoch in range(max(used) // batches + 1):
            rounds = [r for r in used if r // batches == epoch]
            rows = np.concatenate([record.batch(r, party) for r in rounds])
            assert len(set(rows.tolist())) == len(rows)


PAY_ONCE = """algorithm = "pay-once"
[target]
epsilon = 2.0
delta = 1e-5
[privacy]
rounds = 30
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
[training]
rounds = 6
block = 4
"""


@pytest.mark.parametrize("appends", [1, 2, 3, 4, 9])
def test_a_value_that_is_signed_once_is_never_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, appends: int
) -> None:
    """Killed while the silos publish their attributes: those that did keep theirs, the others publish once."""
    desk = Desk.at(tmp_path, PAY_ONCE)
    manifest = interrupted(desk, "run", monkeypatch, appends, True)
    before = Transcript.read(tmp_path / "run" / "transcript.bin")
    result = desk.train(manifest, "run", resume=True)
    assert result.summary["rounds"]["steps"] == 6
    after = Transcript.read(tmp_path / "run" / "transcript.bin")
    for silo in ("north", "south", "west"):
        rounds = after.rounds(silo, "randomised_attribute")
        assert len(rounds) == 1
        assert len(after.rounds(silo, "g")) == len(after.rounds(silo, "joint")) == 5
        if len(before.rounds(silo, "randomised_attribute")):
            old = before.values(silo, "randomised_attribute")
            np.testing.assert_array_equal(after.values(silo, "randomised_attribute"), old)

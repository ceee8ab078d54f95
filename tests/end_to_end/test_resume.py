"""Real processes, really killed: SIGKILL, Ctrl-C and a full disk leave a run that --resume ends.

Nothing is spent twice on the way. The processes are forks of this one that run the real entry point, so that a dozen
of them cost no more than one start of the interpreter.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import privfair.training  # noqa: F401  loaded here once, for all forks
from privfair.cli import main
from privfair.ledger import Ledger, LedgerAccess
from privfair.transcript import Ending, Transcript
from tests.privfair.small_runs import FEDSGD, GAUSSIAN, Desk

FORK = multiprocessing.get_context("fork")
ROUNDS = 4000


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


def _child(words: list[str], folder: Path, prepare: Callable[[], None]) -> None:
    sys.stdout, sys.stderr = (folder / "stdout").open("w"), (folder / "stderr").open("w")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["privfair", *words]
    prepare()
    main()


def privfair_train(
    desk: Desk,
    *words: str,
    until: int | None = None,
    send: signal.Signals = signal.SIGKILL,
    torn: bool = False,
    prepare: Callable[[], None] = lambda: None,
) -> Ended:
    """The command in a process of its own; with `until` it gets the signal once its transcript has that size.

    The process sends the signal to itself, in the middle of a frame (`torn`) or right after one: how busy the machine
    is decides nothing.
    """
    files = [desk.folder / "budget.json", "--trust", desk.trust, "--ledger", desk.ledger, "--out", desk.folder / "run"]
    command = ["train", str(desk.plan), "--manifest", *map(str, files), "--quiet", "--json", *words]
    if until is not None:
        prepare = partial(_signal_at, until, send, torn)
    process = FORK.Process(target=_child, args=(command, desk.folder, prepare))
    process.start()
    process.join(200)
    assert process.exitcode is not None
    return Ended(process.exitcode, (desk.folder / "stdout").read_text(), (desk.folder / "stderr").read_text())


def _signal_at(until: int, send: signal.Signals, torn: bool) -> None:
    from privfair.transcript import writer

    write_all = writer.write_all

    def counting(descriptor: int, content: bytes) -> None:
        last = os.fstat(descriptor).st_size + len(content) >= until
        write_all(descriptor, content[: len(content) // 2] if last and torn else content)
        if last:
            os.kill(os.getpid(), send)

    writer.write_all = counting


def spent_once(desk: Desk) -> Transcript:
    """The transcript and the ledger agree, every value stands there once, and no round beyond the signed ones."""
    transcript = Transcript.read(desk.folder / "run" / "transcript.bin")
    with Ledger.open(desk.ledger, access=LedgerAccess.READ) as ledger:
        agreement = transcript.verify_against(ledger)
        (status,) = ledger.status().manifests
    assert len(set(transcript.keys)) == len(transcript.keys)
    assert not agreement.unrecorded
    assert status.charged <= status.claim.rounds
    assert status.releases == len(transcript.keys)
    assert transcript.ending is Ending.CLOSED
    return transcript


def baseline(folder: Path, rounds: int = ROUNDS) -> Desk:
    plan = FEDSGD.replace("batch-size = 32", 'sampling = "full"')
    more = f"signed-rounds = {rounds + 2000}\nmeasure-every = 50\nblock = 16"
    desk = Desk.at(folder, plan.replace("learning-rate = 1.0", "learning-rate = 0.01").format(rounds=rounds, more=more))
    desk.budget()
    return desk


def theta(desk: Desk) -> np.ndarray:
    document = json.loads((desk.folder / "run" / "model.json").read_text())
    return np.array([*document["weights"]["yes"], document["intercepts"]["yes"]])


@pytest.mark.slow
def test_two_kills_later_the_run_ends_with_the_model_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole = baseline(tmp_path / "whole", 400)
    assert privfair_train(whole).code == 0
    desk = baseline(tmp_path / "killed", 400)
    one_round = 3 * 97
    for rounds, words in ((20, ()), (200, ("--resume",))):
        assert privfair_train(desk, *words, until=rounds * one_round).code == -signal.SIGKILL
    done = privfair_train(desk, "--resume")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["rounds"] == 400
    np.testing.assert_array_equal(theta(desk), theta(whole))
    assert len(spent_once(desk).keys) == 400 * 3


@pytest.mark.true_noise  # each process draws its own; nothing that is asserted depends on the values
def test_a_private_run_killed_while_publishing_never_spends_more_than_signed(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, GAUSSIAN.format(rate=1.0, rounds=400, more="measure-every = 100\nblock = 16"))
    desk.budget()
    for size, words in ((9_000, ()), (40_000, ("--resume",)), (70_000, ("--resume",))):
        assert privfair_train(desk, *words, until=size).code == -signal.SIGKILL
    done = privfair_train(desk, "--resume")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert result["rounds_charged"] == 400
    assert result["epsilon_spent"] == 8.0
    assert 400 - 3 * 17 <= result["rounds"] <= 400, "at most a block and one begun round are lost each time"
    transcript = spent_once(desk)
    per_step = {(key.party, key.round) for key in transcript.keys}
    assert len(per_step) == 3 * result["rounds"]


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    desk = baseline(tmp_path)
    stopped = privfair_train(desk, until=10_000, send=signal.SIGINT)
    assert stopped.code == 130
    assert "with the same command and --resume" in stopped.err
    assert "Traceback" not in stopped.err
    assert json.loads((desk.folder / "run" / "run.json").read_text())["status"] == "interrupted"
    refused = privfair_train(desk)
    assert refused.code == 2
    assert "holds a run already" in refused.err
    desk.plan.write_text(desk.plan.read_text() + "\n")
    changed = privfair_train(desk, "--resume")
    assert changed.code == 3
    assert "step 10 (plan)" in changed.err


def no_room_anywhere() -> None:
    """A limit on file sizes: the ledger reaches it first."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))


def no_room_for_the_transcript() -> None:
    """The disk is full in the middle of a frame: half of it is written."""
    from privfair.transcript import writer

    write_all, written = writer.write_all, [0]

    def until_full(descriptor: int, content: bytes) -> None:
        written[0] += len(content)
        if written[0] > 20_000:
            write_all(descriptor, content[: len(content) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_all(descriptor, content)

    writer.write_all = until_full


@pytest.mark.parametrize(
    ("prepare", "code", "words"),
    [
        (no_room_anywhere, 3, "the database says 'disk I/O error', so nothing is granted"),
        (no_room_for_the_transcript, 70, "No space left on device; fix that, then continue with"),
    ],
)
def test_a_full_disk_stops_the_run_and_room_lets_it_go_on(
    tmp_path: Path, prepare: Callable[[], None], code: int, words: str
) -> None:
    desk = baseline(tmp_path, 300)
    stopped = privfair_train(desk, prepare=prepare)
    assert stopped.code == code, stopped.err
    assert words in stopped.err
    assert "Traceback" not in stopped.err
    done = privfair_train(desk, "--resume")
    assert done.code == 0, done.err
    assert json.loads(done.out)["rounds"] == 300
    spent_once(desk)


def test_an_interrupted_run_whose_manifest_was_used_elsewhere_says_so(tmp_path: Path) -> None:
    """Whoever deletes the run folder deletes the way back: the manifest stays spent."""
    desk = baseline(tmp_path)
    privfair_train(desk, until=10_000)
    shutil.rmtree(desk.folder / "run")
    lost = privfair_train(desk, "--resume")
    assert lost.code == 3
    assert "a manifest is claimed once" in lost.err


@pytest.mark.slow
@pytest.mark.parametrize("attempt", range(12))
def test_kills_at_many_moments(tmp_path: Path, attempt: int) -> None:
    whole = baseline(tmp_path / "whole", 120)
    assert privfair_train(whole).code == 0
    desk = baseline(tmp_path / "killed", 120)
    for life in range(3):
        size = 1 if life == 0 and attempt % 4 == 0 else 900 * (attempt + 1) * (life + 1)
        privfair_train(desk, *(("--resume",) if life else ()), until=size, torn=(attempt + life) % 2 == 0)
    done = privfair_train(desk, "--resume")
    assert done.code == 0, done.err
    np.testing.assert_array_equal(theta(desk), theta(whole))
    spent_once(desk)

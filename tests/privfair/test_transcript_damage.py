"""A transcript cut off, torn or changed: whole values before a crash stay, anything else is refused."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privfair.transcript import Ending, Transcript, TranscriptHeader, TranscriptWriter, ValueSpec
from privfair.transcript.storage import TranscriptRefused

PARTIES = ("a", "b")
SPEC = ValueSpec("weights", (5,))
HEADER = TranscriptHeader(
    manifest_digest=hashlib.sha256(b"m").hexdigest(),
    ledger=hashlib.sha256(b"l").hexdigest(),
    claim_hash=hashlib.sha256(b"c").hexdigest(),
    noise_source="test",
    parties=PARTIES,
    values=(SPEC,),
)
FRAME = 5 + 12 + 1 + SPEC.size + 32


def write(path: Path, rounds: int, finish: bool) -> bytes:
    with TranscriptWriter.create(path, HEADER) as writer:
        for number in range(rounds):
            for party in PARTIES:
                writer.append(number, party, "weights", np.full(5, number + 0.5))
        if finish:
            writer.finish()
    return path.read_bytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "transcript"


def test_cut_anywhere_it_reads_up_to_the_last_whole_value_and_goes_on(path: Path) -> None:
    whole = write(path, rounds=3, finish=False)
    begin = len(whole) - 6 * FRAME
    for size in range(begin, len(whole) + 1):
        path.write_bytes(whole[:size])
        transcript = Transcript.read(path)
        values, rest = divmod(size - begin, FRAME)
        assert len(transcript.keys) == values
        assert [key.round for key in transcript.keys] == [number // 2 for number in range(values)]
        assert transcript.ending is (Ending.TORN if rest else Ending.OPEN)
        assert transcript.torn_bytes == rest
    path.write_bytes(whole[:-7])
    with TranscriptWriter.resume(path) as writer:
        writer.append(2, "b", "weights", np.full(5, 2.5))
    assert path.read_bytes() == whole


def test_a_header_cut_off_is_no_transcript(path: Path) -> None:
    whole = write(path, rounds=0, finish=False)
    for size in (0, 3, 8, 12, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(TranscriptRefused):
            Transcript.read(path)


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"\0", b"\2\1\0\0\0x" + b"y" * 32])
def test_a_tail_that_a_file_system_left_is_cut_off(path: Path, tail: bytes) -> None:
    whole = write(path, rounds=2, finish=False)
    path.write_bytes(whole + tail)
    assert Transcript.read(path).torn_bytes == len(tail)
    TranscriptWriter.resume(path).close()
    assert path.read_bytes() == whole


def test_a_bit_flipped_anywhere_before_the_last_value_is_refused(path: Path) -> None:
    whole = write(path, rounds=3, finish=True)
    chance = random.Random(4)
    for place in chance.sample(range(len(whole) - FRAME - 45), 200):
        changed = bytearray(whole)
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(TranscriptRefused):
            Transcript.read(path)


def test_a_changed_last_value_never_reads_as_that_value(path: Path) -> None:
    whole = write(path, rounds=1, finish=False)
    for place in range(len(whole) - FRAME, len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x10
        path.write_bytes(changed)
        try:
            transcript = Transcript.read(path)
        except TranscriptRefused:
            continue  # the length was hit, so the frame no longer looks like the last one
        assert transcript.ending is Ending.TORN
        assert transcript.values("b", "weights").shape == (0, 5)


def test_frames_cannot_be_dropped_repeated_or_moved(path: Path) -> None:
    whole = write(path, rounds=3, finish=False)
    begin = len(whole) - 6 * FRAME
    head, frames = whole[:begin], [whole[begin + n * FRAME : begin + (n + 1) * FRAME] for n in range(6)]
    for order in ([0, 1, 3, 4, 5], [0, 0, 1, 2, 3], [1, 0, 2, 3, 4], [0, 1, 2, 4, 3, 5]):
        path.write_bytes(head + b"".join(frames[n] for n in order))
        with pytest.raises(TranscriptRefused, match="was changed after it was written"):
            Transcript.read(path)


def test_nothing_may_follow_the_end(path: Path) -> None:
    whole = write(path, rounds=1, finish=True)
    for tail in (b"x", b"\0" * 50, whole[-FRAME:]):
        path.write_bytes(whole + tail)
        with pytest.raises(TranscriptRefused):
            Transcript.read(path)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("t") / "transcript"
    for start in (b"", b"PFTRANS2"):
        path.write_bytes(start + content)
        with pytest.raises(TranscriptRefused):
            Transcript.read(path)


def test_a_fork_does_not_inherit_the_writer(path: Path) -> None:
    with TranscriptWriter.create(path, HEADER) as writer:
        child = os.fork()
        if child == 0:  # pragma: no cover - runs in the child
            try:
                writer.append(0, "a", "weights", np.zeros(5))
            except TranscriptRefused:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        writer.append(0, "a", "weights", np.ones(5))
    assert Transcript.read(path).values("a", "weights").tolist() == [[1.0] * 5]


def _write_for_ever(path: Path) -> None:
    writer = TranscriptWriter.resume(path)
    number = len(Transcript.read(path).keys)
    while True:
        writer.append(number, "a", "weights", np.full(5, number + 0.5))
        number += 1


@pytest.mark.slow
def test_killed_writers_leave_a_readable_prefix(path: Path) -> None:
    TranscriptWriter.create(path, HEADER).close()
    chance, before = random.Random(5), 0
    for _ in range(15):
        process = multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(path,))
        process.start()
        time.sleep(chance.uniform(0.0, 0.05))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        values = Transcript.read(path).values("a", "weights")
        assert len(values) >= before
        assert np.array_equal(values[:, 0], np.arange(len(values)) + 0.5)
        before = len(values)

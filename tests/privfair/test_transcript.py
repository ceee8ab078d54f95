"""What an observer saw: written value by value, read back as arrays, checked against the ledger."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import Claim, Ledger, ManifestTerms
from privfair.transcript import Ending, FloatFormat, Transcript, TranscriptHeader, TranscriptWriter, ValueSpec
from privfair.transcript.storage import TranscriptRefused, release_digest
from tests.privfair.ledgers import DATASET, open_ledger

PARTIES = ("hospital a", "hospital b")
WEIGHTS = ValueSpec("weights", (3, 4))
LOSS = ValueSpec("loss", (), FloatFormat.FLOAT32)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return open_ledger(tmp_path / "ledger.db")


@pytest.fixture
def claim(ledger: Ledger) -> Claim:
    return ledger.claim(
        ManifestTerms(
            manifest_digest=hashlib.sha256(b"m").hexdigest(),
            nonce="nonce",
            envelope_digest=hashlib.sha256(b"envelope").hexdigest(),
            rounds=10,
            epsilon=1.0,
            delta=1e-5,
            dataset=DATASET,
            data_digest=hashlib.sha256(b"data").hexdigest(),
            valid_until=datetime.now(UTC) + timedelta(days=1),
            unit=PrivacyUnit.of(Relation.REPLACE_ONE),
        )
    )


@pytest.fixture
def header(claim: Claim) -> TranscriptHeader:
    return TranscriptHeader.of(claim, "discrete gaussian, AES-256-CTR", PARTIES, (WEIGHTS, LOSS))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "transcript"


def draw(spec: ValueSpec, *key: int) -> np.ndarray:
    return np.random.default_rng(key).normal(size=spec.shape).astype(spec.format.value)


def publish(claim: Claim, writer: TranscriptWriter, rounds: range) -> None:
    for number in rounds:
        for place, party in enumerate(PARTIES):
            for spec in writer.header.values:
                digest = writer.append(number, party, spec.name, draw(spec, number, place))
                claim.record_release(number, party, spec.name, digest)


def test_a_run_of_the_earlier_arithmetic_can_be_read_and_not_resumed(
    claim: Claim, header: TranscriptHeader, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim.charge_ahead(2)
    with monkeypatch.context() as earlier:
        earlier.setattr("privfair.transcript.writer.VERSION", 2)
        with TranscriptWriter.create(path, replace(header, version=2)) as writer:
            publish(claim, writer, range(2))
    assert Transcript.read(path).header.version == 2
    assert len(Transcript.read(path).releases()) == 8
    with pytest.raises(TranscriptRefused, match="rounding could make what a record contributes depend on other"):
        TranscriptWriter.resume(path)


def test_a_closed_run_reads_back_bit_by_bit_and_agrees_with_its_ledger(
    ledger: Ledger, claim: Claim, header: TranscriptHeader, path: Path
) -> None:
    with TranscriptWriter.create(path, header) as writer:
        publish(claim, writer, claim.charge(5))
        digest = writer.finish()
    claim.close(digest)

    transcript = Transcript.read(path)
    assert (transcript.header, transcript.digest, transcript.ending) == (header, digest, Ending.CLOSED)
    assert {key.round for key in transcript.keys} == set(range(5))
    weights = transcript.values("hospital b", "weights")
    assert (weights.shape, weights.dtype) == ((5, 3, 4), np.dtype("<f8"))
    assert np.array_equal(weights, np.stack([draw(WEIGHTS, number, 1) for number in range(5)]))
    loss = transcript.arrays()["hospital a", "loss"]
    assert (loss.shape, loss.dtype) == ((5,), np.dtype("<f4"))
    assert np.array_equal(transcript.value(3, "hospital a", "loss"), draw(LOSS, 3, 0))
    assert transcript.rounds("hospital a", "loss").tolist() == list(range(5))
    agreement = transcript.verify_against(ledger)
    assert (agreement.recorded, agreement.unrecorded) == (20, ())
    assert set(transcript.releases()) == set(ledger.releases(claim.manifest))


def test_it_is_compact(claim: Claim, header: TranscriptHeader, path: Path) -> None:
    """Noise cannot be compressed; what is added to each value is 50 bytes."""
    with TranscriptWriter.create(path, header) as writer:
        empty = path.stat().st_size
        publish(claim, writer, claim.charge(10))
    numbers = 10 * len(PARTIES) * (WEIGHTS.size + LOSS.size)
    assert path.stat().st_size == empty + numbers + 40 * 50


def test_parties_may_sit_a_round_out(claim: Claim, header: TranscriptHeader, path: Path) -> None:
    with TranscriptWriter.create(path, header) as writer:
        for number, party in ((4, PARTIES[0]), (1, PARTIES[1]), (2, PARTIES[0])):
            writer.append(number, party, "loss", draw(LOSS, number))
    transcript = Transcript.read(path)
    assert transcript.rounds(PARTIES[0], "loss").tolist() == [2, 4]
    assert np.array_equal(transcript.values(PARTIES[0], "loss"), np.stack([draw(LOSS, number) for number in (2, 4)]))
    assert transcript.values(PARTIES[1], "weights").shape == (0, 3, 4)


def test_a_release_digest_tells_everything_apart() -> None:
    content, manifest = b"\0" * 96, "0" * 64
    digests = {
        release_digest(manifest, 1, "a", WEIGHTS, content),
        release_digest("1" * 64, 1, "a", WEIGHTS, content),
        release_digest(manifest, 2, "a", WEIGHTS, content),
        release_digest(manifest, 1, "b", WEIGHTS, content),
        release_digest(manifest, 1, "a", replace(WEIGHTS, name="w"), content),
        release_digest(manifest, 1, "a", replace(WEIGHTS, shape=(4, 3)), content),
        release_digest(manifest, 1, "a", replace(WEIGHTS, format=FloatFormat.FLOAT32), content),
        release_digest(manifest, 1, "a", WEIGHTS, b"\1" + content[1:]),
        # The same letters, cut elsewhere: without lengths these would collide.
        release_digest(manifest, 1, "ab", replace(WEIGHTS, name="c"), content),
        release_digest(manifest, 1, "a", replace(WEIGHTS, name="bc"), content),
        release_digest(manifest, 11, "1a", WEIGHTS, content),
        release_digest(manifest, 1, "11a", WEIGHTS, content),
    }
    assert len(digests) == 12


@pytest.mark.parametrize(
    ("round_number", "party", "name", "values", "why"),
    [
        (-1, PARTIES[0], "loss", np.float32(1), "whole number"),
        (0, "stranger", "loss", np.float32(1), "not in the header"),
        (0, PARTIES[0], "gradient", np.float32(1), "not in the header"),
        (0, PARTIES[0], "loss", np.float64(1), "must be <f4"),
        (0, PARTIES[0], "loss", np.float32("nan"), "finite"),
        (0, PARTIES[0], "loss", np.float32("inf"), "finite"),
        (0, PARTIES[0], "loss", np.zeros(1, "<f4"), "shape"),
        (0, PARTIES[0], "weights", np.zeros((4, 3)), "shape"),
        (0, PARTIES[0], "weights", np.zeros((3, 4), ">f8"), "must be <f8"),
        (0, PARTIES[0], "weights", np.zeros((3, 4), object), "must be <f8"),
        (0, PARTIES[0], "weights", np.zeros((3, 4), int), "must be <f8"),
    ],
)
def test_only_what_the_header_declares_is_written(
    header: TranscriptHeader, path: Path, round_number: int, party: str, name: str, values: object, why: str
) -> None:
    with TranscriptWriter.create(path, header) as writer:
        before = path.read_bytes()
        with pytest.raises(InvalidInput, match=why):
            writer.append(round_number, party, name, values)  # type: ignore[arg-type]
        assert path.read_bytes() == before


def test_a_value_is_written_once_also_after_resuming(header: TranscriptHeader, path: Path) -> None:
    with TranscriptWriter.create(path, header) as writer:
        writer.append(0, PARTIES[0], "loss", draw(LOSS, 0))
        with pytest.raises(TranscriptRefused, match="'loss' of 'hospital a' in round 0 is there already"):
            writer.append(0, PARTIES[0], "loss", draw(LOSS, 0))
    with TranscriptWriter.resume(path) as writer, pytest.raises(TranscriptRefused, match="there already"):
        writer.append(0, PARTIES[0], "loss", draw(LOSS, 1))


def test_one_writer_a_file(header: TranscriptHeader, path: Path) -> None:
    with TranscriptWriter.create(path, header) as writer:
        with pytest.raises(TranscriptRefused, match="another process is writing"):
            TranscriptWriter.resume(path)
        writer.finish()
    with pytest.raises(TranscriptRefused, match="closed"):
        TranscriptWriter.resume(path)
    with pytest.raises(TranscriptRefused, match="a file already"):
        TranscriptWriter.create(path, header)
    with pytest.raises(TranscriptRefused, match="closed or failed"):
        writer.append(0, PARTIES[0], "loss", draw(LOSS, 0))
    assert [file.name for file in path.parent.glob("*transcript*")] == ["transcript"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda c: replace(c, ledger="0" * 64), "another ledger"),
        (lambda c: replace(c, claim_hash="0" * 64), "another claim"),
    ],
)
def test_a_transcript_of_another_ledger_or_claim_is_refused(
    ledger: Ledger, header: TranscriptHeader, path: Path, change: Callable[..., TranscriptHeader], why: str
) -> None:
    TranscriptWriter.create(path, change(header)).finish()
    with pytest.raises(TranscriptRefused, match=why):
        Transcript.read(path).verify_against(ledger)


def test_values_lost_to_the_ledger_are_named_and_reconciled(
    ledger: Ledger, claim: Claim, header: TranscriptHeader, path: Path
) -> None:
    with TranscriptWriter.create(path, header) as writer:
        publish(claim, writer, claim.charge(1))
        publish(claim, writer, claim.charge(1))  # recorded in memory only: then the process dies
    transcript = Transcript.read(path)
    assert {release.round for release in transcript.verify_against(ledger).unrecorded} == {1}
    resumed = ledger.resume(claim.token)
    assert resumed.reconcile(transcript.releases()) == 4
    assert transcript.verify_against(ledger).unrecorded == ()


def test_a_value_that_was_never_charged_is_a_breach(
    ledger: Ledger, claim: Claim, header: TranscriptHeader, path: Path
) -> None:
    claim.charge(2)
    with TranscriptWriter.create(path, header) as writer:
        writer.append(2, PARTIES[0], "loss", draw(LOSS, 2))
    with pytest.raises(TranscriptRefused, match="in round 2 was never charged"):
        Transcript.read(path).verify_against(ledger)


def test_a_redrawn_or_dropped_value_is_found(
    ledger: Ledger, claim: Claim, header: TranscriptHeader, path: Path, tmp_path: Path
) -> None:
    with TranscriptWriter.create(path, header) as writer:
        publish(claim, writer, claim.charge(2))
    claim.flush()
    redrawn = tmp_path / "redrawn"
    with TranscriptWriter.create(redrawn, header) as writer:
        writer.append(1, PARTIES[1], "weights", draw(WEIGHTS, 99))
    with pytest.raises(TranscriptRefused, match="in round 1 is not what the ledger recorded"):
        Transcript.read(redrawn).verify_against(ledger)
    short = tmp_path / "short"
    with TranscriptWriter.create(short, header) as writer:
        publish_only(writer, range(1))
    with pytest.raises(TranscriptRefused, match="in round 1 was released and is not here"):
        Transcript.read(short).verify_against(ledger)


def publish_only(writer: TranscriptWriter, rounds: range) -> None:
    for number in rounds:
        for place, party in enumerate(PARTIES):
            for spec in writer.header.values:
                writer.append(number, party, spec.name, draw(spec, number, place))


def test_a_closed_claim_knows_its_transcript(
    ledger: Ledger, claim: Claim, header: TranscriptHeader, path: Path, tmp_path: Path
) -> None:
    with TranscriptWriter.create(path, header) as writer:
        publish(claim, writer, claim.charge(2))
        claim.close(writer.finish())
    reordered = tmp_path / "reordered"
    with TranscriptWriter.create(reordered, header) as writer:
        for number in (1, 0):
            publish_only(writer, range(number, number + 1))
        writer.finish()
    Transcript.read(path).verify_against(ledger)
    with pytest.raises(TranscriptRefused, match="closed over another transcript"):
        Transcript.read(reordered).verify_against(ledger)


@pytest.mark.parametrize(
    "changes",
    [
        {"parties": ()},
        {"parties": ("a", "a")},
        {"values": ()},
        {"values": (LOSS, LOSS)},
        {"manifest_digest": "x"},
        {"noise_source": ""},
    ],
)
def test_a_header_is_checked_when_made(header: TranscriptHeader, changes: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        replace(header, **changes)  # type: ignore[arg-type]


def test_the_header_is_readable_without_this_library(header: TranscriptHeader, path: Path) -> None:
    TranscriptWriter.create(path, header).close()
    raw = path.read_bytes()
    length = int.from_bytes(raw[9:13], "little")
    document = json.loads(raw[13 : 13 + length])
    assert document["parties"] == list(PARTIES)
    assert document["noise_source"] == "discrete gaussian, AES-256-CTR"
    assert document["values"][1] == {"name": "loss", "shape": [], "format": "<f4", "grid": None}

"""Kill a publishing process at random moments: never a release without a durable charge.

The publisher does what the gate does, in the gate's order: charge, draw, transcript, record, then let
the bytes go. "Let go" is a line in a file of the observer's, synced, which no part of the ledger or the
transcript reads; the checks start from what the observer has.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import Claim, ClaimEnded, ClaimToken, Ledger, LedgerAccess, ManifestTerms, UnknownClaim
from privfair.transcript import Ending, Transcript, TranscriptHeader, TranscriptWriter, ValueSpec
from tests.privfair.ledgers import DATASET, open_ledger

ROUNDS, BLOCK, PARTIES = 60, 8, ("a", "b")
SPEC = ValueSpec("weights", (20,))
FORK = multiprocessing.get_context("fork")


def terms(number: int) -> ManifestTerms:
    return ManifestTerms(
        manifest_digest=hashlib.sha256(f"manifest {number}".encode()).hexdigest(),
        nonce=f"nonce {number}",
        envelope_digest=hashlib.sha256(b"envelope").hexdigest(),
        rounds=ROUNDS,
        epsilon=1.0,
        delta=1e-5,
        dataset=DATASET,
        data_digest=hashlib.sha256(b"data").hexdigest(),
        valid_until=datetime.now(UTC) + timedelta(days=1),
        unit=PrivacyUnit.of(Relation.REPLACE_ONE),
    )


def claimed(ledger: Ledger, folder: Path, number: int) -> Claim:
    """Claim, or go on with what an earlier life claimed; the token is on disk before the claim is."""
    place = folder / f"token {number}"
    if not place.exists():
        ClaimToken.fresh().save(place)
    try:
        token = ClaimToken.load(place)
    except ValueError:  # killed while the token was being written, so before any claim
        place.unlink()
        return claimed(ledger, folder, number)
    try:
        return ledger.resume(token)
    except UnknownClaim:
        return ledger.claim(terms(number), token)


def publish(folder: Path, number: int) -> None:
    """Spend the whole manifest, as far as it goes; every line of this may be the last one of a life."""
    place = folder / f"transcript {number}"
    with open_ledger(folder / "ledger.db") as ledger:
        try:
            claim = claimed(ledger, folder, number)
        except ClaimEnded:
            return
        if place.exists():
            found = Transcript.read(place)
            claim.reconcile(found.releases())
            if found.ending is Ending.CLOSED:
                claim.close(found.digest)
                return
            writer = TranscriptWriter.resume(place)
        else:
            writer = TranscriptWriter.create(place, TranscriptHeader.of(claim, "test", PARTIES, (SPEC,)))
        while claim.remaining:
            writer.sync()
            for round_number in claim.charge_ahead(BLOCK):
                release_round(folder, number, claim, writer, round_number)
        claim.close(writer.finish())


def release_round(folder: Path, number: int, claim: Claim, writer: TranscriptWriter, round_number: int) -> None:
    for party in PARTIES:
        drawn = np.frombuffer(os.urandom(8 * 20), dtype="<u8") / 2.0**64
        digest = writer.append(round_number, party, SPEC.name, drawn)
        claim.record_release(round_number, party, SPEC.name, digest)
        let_go(folder, f"{number} {round_number} {party} {digest}\n")


def let_go(folder: Path, line: str) -> None:
    descriptor = os.open(folder / "observed", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, line.encode())
    os.fsync(descriptor)
    os.close(descriptor)


def publish_before_charging(folder: Path, number: int) -> None:
    """The planted bug: a round goes out before its charge, and there is time to be killed in between."""
    with open_ledger(folder / "ledger.db") as ledger:
        claim = claimed(ledger, folder, number)
        let_go(folder, f"{number} {claim.charged} a {'0' * 64}\n")
        signal.pause()
        claim.charge_ahead(BLOCK)


def live(publisher: Callable[[Path, int], None], folder: Path, number: int, seconds: float | None) -> bool:
    """One life of the publisher; whether it finished before it was killed."""
    process = FORK.Process(target=publisher, args=(folder, number))
    process.start()
    process.join(seconds)
    if process.is_alive():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode == 0


def observed(folder: Path) -> dict[tuple[int, int, str], str]:
    """What the observer has; no value may have come twice."""
    place = folder / "observed"
    seen: dict[tuple[int, int, str], str] = {}
    for line in place.read_text().splitlines() if place.exists() else ():
        number, round_number, party, digest = line.split()
        key = (int(number), int(round_number), party)
        assert key not in seen, f"{key} was published twice"
        seen[key] = digest
    return seen


def check_charged(folder: Path) -> None:
    """Everything the observer has was charged, and no manifest gave more than was signed."""
    with Ledger.open(folder / "ledger.db", access=LedgerAccess.READ) as ledger:
        ledger.verify()
        charged = {status.claim.manifest: status.charged for status in ledger.status().manifests}
    assert all(count <= ROUNDS for count in charged.values())
    for number, round_number, _ in observed(folder):
        assert round_number < charged.get(terms(number).manifest_digest, 0), "released without a charge"


def check_transcripts(folder: Path, numbers: range) -> None:
    """The transcript holds all the observer has, and ledger and transcript agree."""
    seen = observed(folder)
    with Ledger.open(folder / "ledger.db", access=LedgerAccess.READ) as ledger:
        for number in numbers:
            place = folder / f"transcript {number}"
            if not place.exists():
                continue
            transcript = Transcript.read(place)
            transcript.verify_against(ledger)
            there = {(number, r.round, r.party): r.digest for r in transcript.releases()}
            assert {key: d for key, d in seen.items() if key[0] == number}.items() <= there.items()


def survive(folder: Path, kills: int, seed: int) -> tuple[int, int]:
    """Kill `kills` publishers, checking after each, and spare the last; how many manifests ended, and their rounds."""
    chance = random.Random(seed)
    (folder / "undisturbed").mkdir()
    began = time.monotonic()
    assert live(publish, folder / "undisturbed", 0, None)
    whole_life = time.monotonic() - began  # so that kills fall everywhere, on a fast disk and on a slow one
    number = killed = rounds = 0
    while killed < kills:
        place = folder / f"ledger of manifests from {number - number % 4}"
        place.mkdir(exist_ok=True)
        finished = live(publish, place, number, chance.uniform(0.0, 0.5 * whole_life))
        killed += not finished
        if (place / "ledger.db.anchor").exists():
            check_charged(place)
            check_transcripts(place, range(number - number % 4, number + 1))
        if finished:
            rounds += len({key[:2] for key in observed(place) if key[0] == number})
        number += finished
    assert live(publish, place, number, None)
    rounds += len({key[:2] for key in observed(place) if key[0] == number})
    check_charged(place)
    return number + 1, rounds


@pytest.mark.slow
def test_twenty_kills(tmp_path: Path) -> None:
    manifests, rounds = survive(tmp_path, kills=20, seed=1)
    assert rounds <= manifests * ROUNDS


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_kills(tmp_path: Path) -> None:
    manifests, rounds = survive(tmp_path, kills=200, seed=2)
    assert rounds <= manifests * ROUNDS
    print(f"{manifests} manifests spent, {rounds} of their rounds published, across 200 kills")


def test_a_publisher_that_charges_late_would_be_caught(tmp_path: Path) -> None:
    """The same checks on a broken publisher fail, so that passing them means something."""
    process = FORK.Process(target=publish_before_charging, args=(tmp_path, 0))
    process.start()
    try:
        while not observed(tmp_path) and process.is_alive():
            time.sleep(0.01)
    finally:
        process.kill()
        process.join()
    with pytest.raises(AssertionError, match="released without a charge"):
        check_charged(tmp_path)

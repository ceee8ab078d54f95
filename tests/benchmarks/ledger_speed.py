"""What ledger and transcript cost a run of 1,200 rounds x 3 silos x 2 values of 200 numbers.

    python tests/benchmarks/ledger_speed.py [--folder DIR] [--repeats N] [--blocks N ..] [--postgres URL]

Prints the tables of docs/benchmarks.md. No noise is drawn. The peer, in the same process and on
the same disk, is a bare SQLite table with the same durability that commits once per round. Repeats are
interleaved, so that a busy disk slows all rows alike; the median and the range are printed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from calibrate.privacy_unit import PrivacyUnit, Relation
from privfair.ledger import Ledger, ManifestTerms
from privfair.transcript import Transcript, TranscriptHeader, TranscriptWriter, ValueSpec
from tests.privfair.ledgers import DATASET, open_ledger

ROUNDS = 1200
PARTIES = ("silo a", "silo b", "silo c")
VALUES = (ValueSpec("weights", (200,)), ValueSpec("fairness", (200,)))
BLOCKS = (1, 8, 16, 32, 64, 128, 1200)
ARRAYS = [np.random.default_rng(0).normal(size=200) + number for number in range(ROUNDS)]


def terms(name: str) -> ManifestTerms:
    return ManifestTerms(
        manifest_digest=hashlib.sha256(name.encode()).hexdigest(),
        nonce=name,
        envelope_digest=hashlib.sha256(b"envelope").hexdigest(),
        rounds=ROUNDS,
        epsilon=1.0,
        delta=1e-5,
        dataset=DATASET,
        data_digest=hashlib.sha256(b"data").hexdigest(),
        valid_until=datetime.now(UTC) + timedelta(days=1),
        unit=PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE),
    )


def run(ledger: Ledger, folder: Path, block: int) -> None:
    """One whole run in the gate's order, noise left out."""
    name = os.urandom(8).hex()
    claim = ledger.claim(terms(name))
    header = TranscriptHeader.of(claim, "none, benchmark", PARTIES, VALUES)
    with TranscriptWriter.create(folder / name, header) as writer:
        while claim.remaining:
            writer.sync()
            for number in claim.charge_ahead(block):
                for party in PARTIES:
                    for spec in VALUES:
                        claim.require_unreleased(number, party, spec.name)
                        digest = writer.append(number, party, spec.name, ARRAYS[number])
                        claim.record_release(number, party, spec.name, digest)
        claim.close(writer.finish())


def peer(folder: Path) -> None:
    """A durable commit for each round and nothing else: no chain, no anchor, no transcript."""
    connection = sqlite3.connect(folder / f"peer {os.urandom(8).hex()}.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.execute("PRAGMA synchronous=EXTRA")
    connection.execute("CREATE TABLE charge (round INTEGER PRIMARY KEY)")
    for number in range(ROUNDS):
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO charge VALUES (?)", (number,))
        connection.execute("COMMIT")
    connection.close()


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def sync_time(folder: Path) -> float:
    """One small write and fsync on this disk."""
    descriptor = os.open(folder / "sync", os.O_WRONLY | os.O_CREAT)

    def write() -> None:
        os.write(descriptor, b"x" * 512)
        os.fsync(descriptor)

    taken = statistics.median(seconds(write) for _ in range(200))
    os.close(descriptor)
    return taken


def row(name: str, times: list[float], against: float) -> str:
    middle = statistics.median(times)
    return f"| {name} | {middle:.2f} | {min(times):.2f} to {max(times):.2f} | {against / middle:.1f} |"


def measure(folder: Path, repeats: int, blocks: tuple[int, ...], location: str | None) -> None:
    ledger = open_ledger(location or folder / "ledger.db", folder / "anchor")
    times: dict[str, list[float]] = {"peer, one commit a round": []}
    for _ in range(repeats):
        times["peer, one commit a round"].append(seconds(lambda: peer(folder)))
        for block in blocks:
            took = seconds(lambda block=block: run(ledger, folder, block))  # type: ignore[misc]
            times.setdefault(f"block of {block}", []).append(took)
    against = statistics.median(times["peer, one commit a round"])
    print(f"\n{'PostgreSQL' if location else 'SQLite'}; a 512-byte fsync takes {1e3 * sync_time(folder):.2f} ms\n")
    print("| what | seconds, median | range | times faster than the peer |\n| --- | ---: | ---: | ---: |")
    for name, some in times.items():
        print(row(name, some, against), flush=True)


def measure_reading(folder: Path, runs: int = 20) -> None:
    """How opening grows with history, and how fast a transcript is read."""
    print(f"\n| history of runs | entries | file, MB | open, s |\n{'| ---: ' * 4}|")
    place = folder / "history.db"
    for number in range(1, runs + 1):
        with open_ledger(place) as ledger:
            run(ledger, folder, 32)
        if number in (1, 5, runs):
            opened = statistics.median(seconds(lambda: open_ledger(place).close()) for _ in range(3))
            with open_ledger(place) as ledger:
                entries = ledger.status().entries
            print(f"| {number} | {entries} | {place.stat().st_size / 1e6:.1f} | {opened:.2f} |")
    newest = max(folder.glob("?" * 16), key=lambda path: path.stat().st_mtime)
    read = seconds(lambda: Transcript.read(newest).arrays())
    with open_ledger(place) as ledger:
        check = seconds(lambda: Transcript.read(newest).verify_against(ledger))
    size = newest.stat().st_size / 1e6
    print(f"\nTranscript of one run: {size:.1f} MB; read {read:.2f} s; verify against the ledger {check:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to be measured")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--blocks", type=int, nargs="+", default=BLOCKS)
    parser.add_argument("--postgres", default=None, help="postgresql+psycopg://... to measure instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        measure(Path(name), options.repeats, tuple(options.blocks), options.postgres)
        if options.postgres is None:
            measure_reading(Path(name))


if __name__ == "__main__":
    main()

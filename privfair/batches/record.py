"""Which units took part, on file, where the manifest counts the batch as known: an auditor can redo the round.

Secret batches are never written. The format is a magic word, a header (canonical JSON with its length in
front) and frames; a killed process leaves at most one unfinished frame, which a reader leaves out::

    frame   kind (1 byte: 1 one round's batch, 2 the order of one epoch), number (round or epoch, 8 bytes),
            party (2 bytes), units (4 bytes), the units (4 bytes each), CRC-32 of all that (4 bytes)
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import rfc8785

from calibrate.errors import Refused
from calibrate.manifest.strict_json import NotStrictJson, parse_object
from calibrate.releases import decode_sampling, encode_sampling
from calibrate.sampling import Batch, Sampling, ShuffledEpochs
from privfair.batches.randomness import Indexes
from privfair.durable import OTHER_VERSION, replace_file, write_all

_MAGIC = b"PFBATCH1"
_LENGTH = struct.Struct("<I")
_FRONT = struct.Struct("<BQHI")
_CHECK = struct.Struct("<I")


class BatchFrameKind(Enum):
    ROUND = 1
    EPOCH = 2


@dataclass(frozen=True)
class BatchHeader:
    """Whose batches, of which run, drawn how and from which randomness."""

    manifest_digest: str
    parties: tuple[str, ...]
    sampling: Sampling
    randomness: str

    def encoded(self) -> bytes:
        return rfc8785.dumps(
            {
                "version": 1,
                "manifest": self.manifest_digest,
                "parties": list(self.parties),
                "sampling": encode_sampling(self.sampling),
                "randomness": self.randomness,
            }
        )


class BatchRecord:
    """The batches of a run, read back; what stands after the last whole frame is left out."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            self._content = memoryview(self.path.read_bytes())
        except OSError as error:
            raise Refused(
                f"batch record {path} cannot be read ({error.strerror}); put an untouched copy back"
            ) from error
        self.header, place = _read_header(self.path, self._content)
        self._places: dict[tuple[BatchFrameKind, int, int], tuple[int, int]] = {}
        while (frame := _frame_at(self._content, place)) is not None:
            key, start, units, place = frame
            self._places[key] = (start, units)
        self.whole_bytes = place

    @classmethod
    def read(cls, path: Path) -> BatchRecord:
        return cls(path)

    def batch(self, round_number: int, party: str) -> Indexes:
        """The units of `party` that took part in a round, as the contribution saw them."""
        sampling = self.header.sampling
        # A sensitive silo draws nothing: its rounds are recorded one by one beside the holders' epochs.
        if not isinstance(sampling, ShuffledEpochs) or self._recorded(BatchFrameKind.ROUND, round_number, party):
            return self._units(BatchFrameKind.ROUND, round_number, party)
        if round_number < 0:
            raise self._missing(BatchFrameKind.ROUND, round_number, party)
        orders = self.orders_of(party) if party in self.header.parties else {}
        if not orders:
            raise self._missing(BatchFrameKind.EPOCH, 0, party)
        # Every epoch goes through all units, so any of them tells how many there are.
        epoch, place = divmod(round_number, -(-len(next(iter(orders.values()))) // sampling.size))
        return self.epoch_order(epoch, party)[place * sampling.size : (place + 1) * sampling.size]

    def holds_round(self, round_number: int, party: str) -> bool:
        """Whether this round's batch was recorded by itself, as a registry's is."""
        return self._recorded(BatchFrameKind.ROUND, round_number, party)

    def epoch_order(self, epoch: int, party: str) -> Indexes:
        """The order in which one epoch of shuffled batches goes through the units."""
        return self._units(BatchFrameKind.EPOCH, epoch, party)

    def orders_of(self, party: str) -> dict[int, Indexes]:
        """All recorded epochs of one party."""
        number = self.header.parties.index(party)
        wanted = sorted(epoch for kind, epoch, who in self._places if kind is BatchFrameKind.EPOCH and who == number)
        return {epoch: self.epoch_order(epoch, party) for epoch in wanted}

    def _recorded(self, kind: BatchFrameKind, number: int, party: str) -> bool:
        known = party in self.header.parties
        return known and (kind, number, self.header.parties.index(party)) in self._places

    def _units(self, kind: BatchFrameKind, number: int, party: str) -> Indexes:
        if party not in self.header.parties:
            raise self._missing(kind, number, party)
        key = (kind, number, self.header.parties.index(party))
        if key not in self._places:
            raise self._missing(kind, number, party)
        start, units = self._places[key]
        return np.frombuffer(self._content, dtype="<u4", count=units, offset=start).astype(np.int64)

    def _missing(self, kind: BatchFrameKind, number: int, party: str) -> Refused:
        return Refused(
            f"batch record {self.path}: no {kind.name.lower()} {number} of {party!r}; "
            "ask for a round that was drawn, or put an untouched copy back"
        )


class BatchWriter:
    """Appends batches while the run goes on; each stands in the file before anything computed on it leaves."""

    def __init__(self, descriptor: int, header: BatchHeader) -> None:
        self._descriptor = descriptor
        self._numbers = {party: number for number, party in enumerate(header.parties)}

    @classmethod
    def create(cls, path: Path, header: BatchHeader) -> BatchWriter:
        """Begin a new file; secret batches are refused, because writing them down would reveal them."""
        if header.sampling.batch is Batch.SECRET:
            raise Refused("the batches of this run are secret and must not be recorded; leave the record out")
        if Path(path).exists():
            raise Refused(f"batch record {path} exists already; resume it, or choose another folder")
        encoded = header.encoded()
        # At one stroke: a record has its whole header from the moment it has its name.
        replace_file(Path(path), _MAGIC + _LENGTH.pack(len(encoded)) + encoded)
        return cls(os.open(path, os.O_WRONLY | os.O_APPEND), header)

    @classmethod
    def resume(cls, path: Path, header: BatchHeader) -> BatchWriter:
        """Go on after an interruption; an unfinished frame at the end is cut off."""
        found = BatchRecord.read(path)
        if (found.header.manifest_digest, found.header.parties, found.header.sampling) != (
            header.manifest_digest,
            header.parties,
            header.sampling,
        ):
            raise Refused(f"batch record {path} belongs to another run; put this run's own file back")
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(descriptor, found.whole_bytes)
        return cls(descriptor, header)

    def write_round(self, round_number: int, party: str, units: Indexes) -> None:
        """The batch of one round, as the contribution sees it."""
        self._write(BatchFrameKind.ROUND, round_number, party, units)

    def write_epoch(self, epoch: int, party: str, order: Indexes) -> None:
        """Durable at once: whoever resumes in the middle of an epoch must go on with this very order."""
        self._write(BatchFrameKind.EPOCH, epoch, party, order)
        self.sync()

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, kind: BatchFrameKind, number: int, party: str, units: Indexes) -> None:
        front = _FRONT.pack(kind.value, number, self._numbers[party], len(units))
        frame = front + units.astype("<u4").tobytes()
        write_all(self._descriptor, frame + _CHECK.pack(zlib.crc32(frame)))


def _read_header(path: Path, content: memoryview) -> tuple[BatchHeader, int]:
    start = len(_MAGIC) + _LENGTH.size
    try:
        begin = bytes(content[: len(_MAGIC)])
        if begin != _MAGIC and begin[:-1] == _MAGIC[:-1]:
            raise Refused(f"{path} is a batch record of another version; {OTHER_VERSION}")
        if begin != _MAGIC:
            raise ValueError("it does not begin like one")
        (length,) = _LENGTH.unpack_from(content, len(_MAGIC))
        encoded = bytes(content[start : start + length])
        fields = parse_object(encoded)
        header = BatchHeader(
            str(fields["manifest"]),
            tuple(str(party) for party in fields["parties"]),  # type: ignore[union-attr]
            decode_sampling(fields["sampling"]),
            str(fields["randomness"]),
        )
        if header.encoded() != encoded:
            raise ValueError("its header is not of this version")
    except (ValueError, KeyError, TypeError, struct.error, NotStrictJson) as broken:
        raise Refused(f"{path} is not a batch record of this version ({broken}); put an untouched copy back") from None
    return header, start + length


def _frame_at(content: memoryview, place: int) -> tuple[tuple[BatchFrameKind, int, int], int, int, int] | None:
    """Key, first unit's place, number of units and the next frame's place; None where no whole frame stands."""
    if place + _FRONT.size > len(content):
        return None
    kind, number, party, units = _FRONT.unpack_from(content, place)
    start = place + _FRONT.size
    end = start + 4 * units
    if end + _CHECK.size > len(content) or kind not in (1, 2):
        return None
    if zlib.crc32(content[place:end]) != _CHECK.unpack_from(content, end)[0]:
        return None
    return (BatchFrameKind(kind), number, party), start, units, end + _CHECK.size

"""Who takes part in a round: batches drawn exactly as the manifest declares, and on file where it calls them known.

The manifest names one sampling for all silos, priced for the smallest. A larger silo draws from all of
its units with the same batch size (or rate): each of its units then takes part less often, never more, so the
price is an upper bound for it (docs/training-run.md, "Silos of different sizes").
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, assert_never, final

import numpy as np
import rfc8785

from calibrate.errors import InvalidInput, Refused, UnsupportedCombination, count
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import NoiseSource, NoPrivacyPromised
from calibrate.manifest.strict_json import NotStrictJson, parse_object
from calibrate.releases import decode_sampling, encode_sampling
from calibrate.sampling import (
    Batch,
    Cyclic,
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
    whole,
)
from privfair.algorithms.algorithm import Algorithm, SiloTensors
from privfair.batches.randomness import (
    Indexes,
    SeededWords,
    SystemWords,
    WordSource,
    bernoulli,
    permutation,
    subset,
    uniform_below,
)
from privfair.durable import OTHER_VERSION, open_file, replace_file, write_all


class PartyBatches(Protocol):
    """The batches of one party, one per round; the same batch for the same round."""

    def batch(self, round_number: int) -> Indexes: ...


@final
class Participation:
    """The batches of one party, drawn from all of its units equally.

    Rounds are the ledger's, so that rounds lost in a crash are gone: in shuffled epochs each unit takes part in at most
    one round of `batches_per_epoch` consecutive ones, whatever happened.
    """

    def __init__(
        self,
        party: str,
        units: int,
        sampling: Sampling | None,
        source: WordSource,
        writer: BatchWriter | None = None,
        recorded: BatchRecord | None = None,
        groups: Indexes | None = None,
    ) -> None:
        self.party = party
        self.units = count(f"units of {party}", units)
        self._sampling = sampling
        self._source = source
        self._writer = writer
        self._everybody = np.arange(units, dtype=np.int64)
        self._orders = {} if recorded is None else recorded.orders_of(party)
        self._groups = groups
        self._last: tuple[int, Indexes] | None = None
        require_population(party, units, sampling)
        if isinstance(sampling, Cyclic) and groups is None:
            raise UnsupportedCombination(
                "cyclic batches of records that the engine does not see",
                "a record's group follows from its content",
                "train with privfair's own engine, or sign Poisson batches",
            )
        if writer is not None and (sampling is None or sampling.batch is Batch.SECRET):
            raise InvalidInput(
                "writer", party, "only batches that are treated as known are recorded", "leave the writer out"
            )

    def batch(self, round_number: int) -> Indexes:
        """The units of this round; asking again for the same round gives the same batch."""
        if self._last is None or self._last[0] != round_number:
            self._last = (round_number, self._draw(count("round", round_number, least=0)))
        return self._last[1]

    def _draw(self, round_number: int) -> Indexes:
        sampling = self._sampling
        match sampling:
            case None:
                return self._everybody
            case ShuffledEpochs(size=size):
                batches = -(-self.units // size)
                epoch, place = divmod(round_number, batches)
                return self._order(epoch)[place * size : (place + 1) * size]
            case RandomAllocation(batches=batches):
                epoch, place = divmod(round_number, batches)
                return np.flatnonzero(self._allocation(epoch, batches) == place).astype(np.int64)
            case Cyclic(groups=groups, rate=rate):
                members = np.flatnonzero(self._groups == round_number % groups).astype(np.int64)
                return members if rate == 1 else members[bernoulli(self._source, len(members), rate)]
            case Poisson(rate=rate):
                drawn = bernoulli(self._source, self.units, rate)
            case TruncatedPoisson(rate=rate, limit=limit):
                drawn = bernoulli(self._source, self.units, rate)
                if len(drawn) > limit:
                    drawn = np.sort(drawn[subset(self._source, len(drawn), limit)])
            case FixedSize(size=size):
                drawn = subset(self._source, self.units, size)
            case WithReplacement(draws=draws):
                drawn = uniform_below(self._source, self.units, draws)
            case _:
                assert_never(sampling)
        if self._writer is not None:
            self._writer.write_round(round_number, self.party, drawn)
        return drawn

    def _order(self, epoch: int) -> Indexes:
        if epoch not in self._orders:
            order = permutation(self._source, self.units)
            if self._writer is not None:
                self._writer.write_epoch(epoch, self.party, order)
            self._orders = {epoch: order}
        return self._orders[epoch]

    def _allocation(self, epoch: int, batches: int) -> Indexes:
        """For each unit the one round of the epoch that it joins; secret, so it is never recorded."""
        if epoch not in self._orders:
            self._orders = {epoch: uniform_below(self._source, batches, self.units)}
        return self._orders[epoch]

    def first_usable(self, start: int, published: Collection[int]) -> int:
        """The first round from `start` on that may be drawn after an interruption.

        `published` are the rounds of earlier sessions. Within an epoch a unit takes part once. An order that is on
        record is continued; one that was never used is drawn now; where an order was or may have been used and is
        lost, the rest of its epoch is left out (docs/reliability.md, "Why resuming breaks no promise").
        """
        match self._sampling:
            case ShuffledEpochs(size=size):
                per_epoch = -(-self.units // size)
            case RandomAllocation(batches=per_epoch):
                pass
            case _:
                return start
        epoch, place = divmod(start, per_epoch)
        # On record before its first use: what is not there and published nothing was never used.
        never_used = self._writer is not None and all(number // per_epoch != epoch for number in published)
        if place == 0 or epoch in self._orders or never_used:
            return start
        return (epoch + 1) * per_epoch


def group_of_units(silo: SiloTensors, groups: int) -> Indexes:
    """Which group of a cycle each record belongs to.

    Guarantee: a function of its features, class and attribute and of nothing else (BLAKE2b), so that
    adding, removing or changing a record leaves all others where they were (docs/theorems/stability.md, lemma 9).
    """
    if silo.unit_of_row is not None:
        rule = "a user's rows would be dealt to several groups"
        raise UnsupportedCombination("cyclic batches of users", rule, "use Poisson cohorts")
    parts = (silo.x.flatten(1), silo.y.reshape(len(silo), -1), silo.s.reshape(len(silo), -1))
    rows = [np.ascontiguousarray(part.numpy()) for part in parts]
    digests = (
        hashlib.blake2b(b"".join(part[place].tobytes() for part in rows), digest_size=8, person=b"privfair cycle")
        for place in range(len(silo))
    )
    return np.array([int.from_bytes(digest.digest(), "big") % groups for digest in digests], dtype=np.int64)


def declared_sampling(document: BudgetDocument) -> Sampling | None:
    """How the manifest has batches drawn; None for the full batch."""
    # A begun epoch has its own price, and is drawn as a whole one is.
    schemes = tuple(dict.fromkeys(whole(declaration.scheme) for declaration in document.sampling))
    if len(schemes) > 1:
        raise UnsupportedCombination(
            f"a run with {len(schemes)} different samplings",
            "the round loop draws one batch for each silo and round",
            "run an algorithm that publishes on one batch per round",
        )
    return schemes[0] if schemes else None


def word_source(document: BudgetDocument, seed: int, party: str, session: int = 1) -> WordSource:
    """Where batches come from: reproducible only if the manifest promises nothing or signs research noise.

    Guarantee: in every other run, each batch comes from the operating system's generator and from nothing else,
    so that a secret batch cannot be worked out from the plan.
    """
    nobody_protected = (
        isinstance(document.guarantee, NoPrivacyPromised) or document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY
    )
    if not nobody_protected:
        return SystemWords()
    # Another session of an interrupted run continues with other words, instead of repeating the first batches.
    again = "" if session == 1 else f" session {session}"
    return SeededWords(seed, f"batches of {party}{again}")


def require_population(party: str, units: int, sampling: Sampling | None) -> None:
    """Refuse a party with fewer units (for truncated batches: with more) than its sampling was priced for."""
    match sampling:
        case None | Poisson() | RandomAllocation() | Cyclic():
            return
        case TruncatedPoisson(population=most):
            if units > most:  # the number itself is what add-remove protects
                raise InvalidInput(
                    f"units of {party}",
                    "(not told)",
                    f"are more than the {most} that cutting batches was priced for",
                    "have a budget calibrated with a larger most-units",
                )
        case FixedSize(population) | ShuffledEpochs(population) | WithReplacement(population):
            if units < population:
                raise InvalidInput(
                    f"units of {party}",
                    "(not told)",
                    f"are fewer than the {population} the sampling was priced for",
                    "have a budget calibrated for the smallest silo",
                )
        case _:
            assert_never(sampling)


# Batches of a sensitive silo: whatever records the holders of features drew in the round, possibly none.


@final
class AskedParticipation:
    """One sensitive silo's rows, round by round, which follow from the holders' batches.

    Guarantee: none. A record takes part exactly as often as its holder draws it, so the holders' sampling
    is the one to price; batches are treated as known, so nothing is lost by asking for records by number.
    """

    def __init__(
        self,
        party: str,
        numbers: Indexes,
        holders: Sequence[tuple[Participation, Indexes]],
        writer: BatchWriter | None = None,
    ) -> None:
        self.party = party
        self._holders = tuple(holders)
        self._writer = writer
        total = 1 + max(int(held.max()) for held in (numbers, *(own for _, own in self._holders)))
        self._row = np.full(total, -1, dtype=np.int64)
        self._row[numbers] = np.arange(len(numbers))
        self._last: tuple[int, Indexes] | None = None

    def batch(self, round_number: int) -> Indexes:
        """The rows asked for in this round, in ascending order; asking again gives the same."""
        if self._last is None or self._last[0] != round_number:
            drawn = [own[participation.batch(round_number)] for participation, own in self._holders]
            rows = self._row[np.concatenate(drawn)]
            # A record drawn twice by its holder (with replacement) counts twice here as well.
            self._last = (round_number, np.sort(rows[rows >= 0]))
            if self._writer is not None:
                self._writer.write_round(round_number, self.party, self._last[1])
        return self._last[1]


@final
class ToldParticipation:
    """The rows of a registry in its own process: anyone who asks for a step tells them before.

    Guarantee: none; who tells them counts how often a record takes part.
    """

    def __init__(self, party: str, writer: BatchWriter | None) -> None:
        self.party = party
        self._writer = writer
        self._told: Indexes = np.zeros(0, dtype=np.int64)

    def tell(self, rows: Indexes) -> None:
        """The rows of whatever round is opened next."""
        self._told = rows

    def batch(self, round_number: int) -> Indexes:
        """The rows that were told, which go into the record of this round."""
        if self._writer is not None:
            self._writer.write_round(round_number, self.party, self._told)
        return self._told


# Batches of an algorithm that draws its own parts: records of each group, and clients.


@final
class DrawnParticipation:
    """One fresh draw per round, all of its randomness from the party's source; nothing of it is recorded."""

    def __init__(self, silo: SiloTensors, algorithm: Algorithm[Any], source: WordSource) -> None:
        self.party = silo.name
        self._silo = silo
        self._algorithm = algorithm
        self._source = source
        self._last: tuple[int, Indexes] | None = None

    def batch(self, round_number: int) -> Indexes:
        """The batch of this round; asking again for the same round gives the same batch."""
        if self._last is None or self._last[0] != round_number:
            count("round", round_number, least=0)
            self._last = (round_number, self._algorithm.draw(self._silo, self._source))
        return self._last[1]


# On file, where the manifest treats the batch as known, so that an auditor can draw the round again. Secret batches are
# never written. The format is a magic word, a header (canonical JSON with its length in front) and frames; a killed
# process leaves at most one unfinished frame, which a reader leaves out::
#
#     frame   kind (1 byte: 1 one round's batch, 2 the order of one epoch), number (round or epoch, 8 bytes),
#             party (2 bytes), units (4 bytes), the units (4 bytes each), CRC-32 of all that (4 bytes)


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
        # A sensitive silo draws nothing: its rounds are recorded one by one next to the holders' epochs.
        if not isinstance(sampling, ShuffledEpochs) or self._recorded(BatchFrameKind.ROUND, round_number, party):
            return self._units(BatchFrameKind.ROUND, round_number, party)
        if round_number < 0:
            raise self._missing(BatchFrameKind.ROUND, round_number, party)
        orders = self.orders_of(party) if party in self.header.parties else {}
        if not orders:
            raise self._missing(BatchFrameKind.EPOCH, 0, party)
        # Every epoch goes through all units, so any of them gives their number.
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
    """Appends batches while the run continues; each is in the file before anything computed on it leaves."""

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
        return cls(open_file(path, os.O_WRONLY | os.O_APPEND), header)

    @classmethod
    def resume(cls, path: Path, header: BatchHeader) -> BatchWriter:
        """Continue after an interruption; an unfinished frame at the end is cut off."""
        found = BatchRecord.read(path)
        if (found.header.manifest_digest, found.header.parties, found.header.sampling) != (
            header.manifest_digest,
            header.parties,
            header.sampling,
        ):
            raise Refused(f"batch record {path} belongs to another run; put this run's own file back")
        descriptor = open_file(path, os.O_WRONLY | os.O_APPEND)
        os.ftruncate(descriptor, found.whole_bytes)
        return cls(descriptor, header)

    def write_round(self, round_number: int, party: str, units: Indexes) -> None:
        """The batch of one round, as the contribution sees it."""
        self._write(BatchFrameKind.ROUND, round_number, party, units)

    def write_epoch(self, epoch: int, party: str, order: Indexes) -> None:
        """Durable at once: anyone who resumes in the middle of an epoch must continue with this very order."""
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

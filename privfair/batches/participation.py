"""Who takes part in a round: batches drawn exactly as the manifest declares.

The manifest names one sampling for all silos, priced for the smallest. A larger silo draws from all of its own
units with the same batch size (or rate): each of its units then takes part less often, never more, so the
price is an upper bound for it (docs/training-run.md, "Silos of different sizes").
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any, Protocol, assert_never, final

import numpy as np

from calibrate.errors import InvalidInput, UnsupportedCombination, count
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.mechanism import NoiseSource, NoPrivacyPromised
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
from privfair.batches.record import BatchRecord, BatchWriter


class PartyBatches(Protocol):
    """The batches of one party, one per round; the same batch for the same round."""

    def batch(self, round_number: int) -> Indexes: ...


@final
class Participation:
    """The batches of one party, drawn from all of its units alike.

    Rounds are the ledger's, so that rounds lost in a crash count as gone: in shuffled epochs each unit takes part in at
    most one round of `batches_per_epoch` consecutive ones, whatever happened.
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
            raise InvalidInput("writer", party, "only batches that count as known are recorded", "leave the writer out")

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
        record is gone on with; one that was never used is drawn now; where an order was or may have been used and is
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

    Guarantee: a function of the record's own features, class and attribute and of nothing else (BLAKE2b), so that
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
    # A begun epoch has a price of its own, and is drawn as a whole one is.
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
    # Another session of an interrupted run goes on with other words, instead of repeating the first batches.
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


# Batches of a sensitive silo: whatever records the holders of features drew in the round, perhaps none.


@final
class AskedParticipation:
    """One sensitive silo's rows, round by round, which follow from the holders' batches.

    Guarantee: none of its own. A record takes part exactly as often as its holder draws it, so the holders' sampling
    is the one to price; batches count as known, so nothing is lost by asking for records by number.
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
    """The rows of a registry in a process of its own: whoever asks for a step tells them before.

    Guarantee: none of its own; who tells them counts how often a record takes part.
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


# Batches of an algorithm that draws its own parts: so many records of each group, so many clients.


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

"""Batches are drawn exactly as declared: frequencies, sizes, epochs, secrets, and what a resumed run may go on with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from calibrate.errors import InvalidInput, Refused, UnsupportedCombination
from calibrate.manifest.document import SamplingDeclaration
from calibrate.manifest.mechanism import NoiseSource
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta
from calibrate.sampling import (
    Batch,
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
)
from privfair.batches.participation import (
    BatchHeader,
    BatchRecord,
    BatchWriter,
    Participation,
    declared_sampling,
    word_source,
)
from privfair.batches.randomness import SeededWords, SystemWords, bernoulli, permutation, subset, uniform_below
from tests.privfair.small_runs import document_of

ALARM = 1e-6
REVEALED = Batch.REVEALED


def seeded(seed: int = 0) -> SeededWords:
    return SeededWords(seed, "test")


def drawn(units: int, sampling: Sampling | None, rounds: int) -> list[np.ndarray]:
    party = Participation("north", units, sampling, SystemWords())
    return [party.batch(round) for round in range(rounds)]


def test_without_sampling_everybody_takes_part() -> None:
    for batch in drawn(7, None, 3):
        np.testing.assert_array_equal(batch, np.arange(7))


def test_poisson_batches_have_the_declared_rate_and_nothing_in_common() -> None:
    units, rounds, rate = 200, 400, 0.07
    batches = drawn(units, Poisson(rate), rounds)
    joined = np.zeros((rounds, units), dtype=np.int64)
    for round, batch in enumerate(batches):
        assert len(set(batch.tolist())) == len(batch)
        joined[round, batch] = 1
    assert stats.binomtest(int(joined.sum()), joined.size, rate).pvalue > ALARM
    # Independent coins: the batch sizes have the binomial variance, and consecutive rounds are uncorrelated.
    sizes = joined.sum(axis=1)
    low, high = stats.chi2.ppf([ALARM / 2, 1 - ALARM / 2], rounds - 1)
    assert low < (rounds - 1) * sizes.var(ddof=1) / (units * rate * (1 - rate)) < high
    together = int((joined[1:] & joined[:-1]).sum())
    assert stats.binomtest(together, (rounds - 1) * units, rate**2).pvalue > ALARM


def test_poisson_at_rate_one_is_everybody_and_an_empty_batch_is_possible() -> None:
    assert len(drawn(9, Poisson(1.0), 1)[0]) == 9
    assert any(len(batch) == 0 for batch in drawn(3, Poisson(0.05), 200))


def test_fixed_size_batches_have_exactly_that_size_and_each_unit_equally_often() -> None:
    units, size, rounds = 30, 7, 3000
    counts = np.zeros(units)
    for batch in drawn(units, FixedSize(units, size), rounds):
        assert len(set(batch.tolist())) == size
        counts[batch] += 1
    # Each unit's count is Binomial(rounds, size/units); across units they add up to a constant.
    statistic = ((counts - rounds * size / units) ** 2).sum() / (rounds * size / units * (1 - size / units))
    assert statistic * (units - 1) / units < stats.chi2.isf(ALARM, units - 1)


@given(units=st.integers(1, 60), size=st.integers(1, 60), epochs=st.integers(1, 3))
def test_every_unit_takes_part_once_in_every_epoch(units: int, size: int, epochs: int) -> None:
    size = min(size, units)
    sampling = ShuffledEpochs(units, size)
    batches = drawn(units, sampling, epochs * sampling.batches_per_epoch)
    for epoch in range(epochs):
        once = batches[epoch * sampling.batches_per_epoch : (epoch + 1) * sampling.batches_per_epoch]
        assert sorted(np.concatenate(once).tolist()) == list(range(units))
        assert all(len(batch) == size for batch in once[:-1])


def test_epochs_are_shuffled_anew() -> None:
    first, second = drawn(500, ShuffledEpochs(500, 500), 2)
    assert not np.array_equal(first, second)


def test_draws_with_replacement_repeat_units_as_often_as_they_should() -> None:
    counts = np.bincount(np.concatenate(drawn(50, WithReplacement(50, 40), 500)), minlength=50)
    assert stats.chisquare(counts).pvalue > ALARM
    assert any(len(set(batch.tolist())) < 40 for batch in drawn(50, WithReplacement(50, 40), 5))


def test_a_larger_silo_draws_from_all_of_its_own_units() -> None:
    assert max(batch.max() for batch in drawn(40, FixedSize(20, 5), 60)) >= 20
    epoch = np.concatenate(drawn(40, ShuffledEpochs(20, 5), 8))
    assert sorted(epoch.tolist()) == list(range(40))


def test_a_smaller_silo_than_priced_is_refused() -> None:
    for sampling in (FixedSize(20, 5), ShuffledEpochs(20, 5), WithReplacement(20, 5)):
        with pytest.raises(InvalidInput, match="fewer than the 20 the sampling was priced for") as refused:
            Participation("north", 19, sampling, SystemWords())
        assert "19" not in str(refused.value), "how many there are is what add-remove protects"


def test_the_same_round_has_one_batch() -> None:
    party = Participation("north", 100, Poisson(0.3), SystemWords())
    np.testing.assert_array_equal(party.batch(4), party.batch(4))


@pytest.mark.parametrize("sampling", [Poisson(0.5, REVEALED), FixedSize(30, 4, REVEALED), ShuffledEpochs(30, 4)])
def test_known_batches_can_be_redone_from_the_record(tmp_path: Path, sampling: Sampling) -> None:
    header = BatchHeader("ab" * 32, ("north", "south"), sampling, "operating system")
    writer = BatchWriter.create(tmp_path / "batches.bin", header)
    parties = [Participation(name, 30, sampling, SystemWords(), writer) for name in header.parties]
    seen = {(round, party.party): party.batch(round) for round in range(11) for party in parties}
    writer.close()
    record = BatchRecord.read(tmp_path / "batches.bin")
    for (round, name), batch in seen.items():
        np.testing.assert_array_equal(record.batch(round, name), batch)
    with pytest.raises(Refused, match=r"no (round|epoch)"):
        record.batch(99, "north")
    with pytest.raises(Refused):
        record.batch(0, "east")


def test_secret_batches_are_never_recorded(tmp_path: Path) -> None:
    sampling = Poisson(0.5, Batch.SECRET)
    header = BatchHeader("ab" * 32, ("north",), sampling, "operating system")
    with pytest.raises(Refused, match="secret"):
        BatchWriter.create(tmp_path / "batches.bin", header)
    assert not (tmp_path / "batches.bin").exists()
    known = BatchHeader("ab" * 32, ("north",), Poisson(0.5, REVEALED), "operating system")
    writer = BatchWriter.create(tmp_path / "batches.bin", known)
    with pytest.raises(InvalidInput, match="only batches that are treated as known"):
        Participation("north", 10, sampling, SystemWords(), writer)


def test_a_resumed_run_goes_on_with_the_order_of_its_epoch(tmp_path: Path) -> None:
    sampling, path = ShuffledEpochs(20, 4), tmp_path / "batches.bin"
    header = BatchHeader("ab" * 32, ("north",), sampling, "operating system")
    writer = BatchWriter.create(path, header)
    before = Participation("north", 20, sampling, SystemWords(), writer)
    first = [before.batch(round) for round in range(2)]
    writer.close()
    path.write_bytes(path.read_bytes() + b"\x01half a frame")
    record = BatchRecord.read(path)
    writer = BatchWriter.resume(path, header)
    after = Participation("north", 20, sampling, SystemWords(), writer, record)
    assert after.first_usable(3, {0, 1}) == 3
    rest = [after.batch(round) for round in range(3, 5)]
    together = np.concatenate([*first, *rest])
    assert len(set(together.tolist())) == 16
    after.batch(5)
    writer.close()
    assert len(BatchRecord.read(path).batch(5, "north")) == 4


def test_a_used_order_that_is_lost_leaves_out_the_rest_of_its_epoch(tmp_path: Path) -> None:
    """A new order in the middle of an epoch would let records take part twice in it."""
    sampling = ShuffledEpochs(20, 4)
    header = BatchHeader("ab" * 32, ("north",), sampling, "operating system")
    writer = BatchWriter.create(tmp_path / "batches.bin", header)
    party = Participation("north", 20, sampling, SystemWords(), writer)
    assert party.first_usable(7, {5, 6}) == 10, "used and lost"
    assert party.first_usable(7, {3, 4}) == 7, "its order is drawn now, because nothing of the epoch was published"
    assert party.first_usable(10, {5, 6}) == 10
    writer.close()
    unrecorded = Participation("north", 20, sampling, SystemWords())
    assert unrecorded.first_usable(7, ()) == 10, "may have been used"
    assert unrecorded.first_usable(5, ()) == 5
    allocated = Participation("north", 20, RandomAllocation(5), SystemWords())
    assert [allocated.first_usable(start, ()) for start in (0, 1, 4, 5)] == [0, 5, 5, 5]
    assert Participation("north", 20, Poisson(0.2), SystemWords()).first_usable(7, {5, 6}) == 7


def test_in_random_allocation_a_unit_takes_part_once_per_epoch() -> None:
    party = Participation("north", 60, RandomAllocation(4), SeededWords(3, "allocation"))
    for epoch in range(3):
        drawn = [party.batch(4 * epoch + place) for place in range(4)]
        np.testing.assert_array_equal(np.sort(np.concatenate(drawn)), np.arange(60))
    assert len({len(party.batch(number)) for number in range(12, 20)}) > 1


def test_truncated_poisson_batches_never_exceed_the_limit_and_keep_everybody_alike() -> None:
    units, limit, rounds = 40, 9, 400
    party = Participation("north", units, TruncatedPoisson(0.25, units, limit), SeededWords(4, "truncated"))
    batches = [party.batch(number) for number in range(rounds)]
    sizes = np.array([len(batch) for batch in batches])
    assert sizes.max() == limit
    assert (sizes == limit).mean() > 0.3, "cut often, to see how"
    assert all(len(np.unique(batch)) == len(batch) for batch in batches)
    counts = np.bincount(np.concatenate(batches), minlength=units)
    spread = stats.chi2(units - 1)
    assert spread.cdf((np.square(counts - counts.mean()) / counts.mean()).sum()) < 1 - ALARM
    with pytest.raises(InvalidInput, match=r"\(not told\).*more than the 39"):
        Participation("north", units, TruncatedPoisson(0.25, 39, limit), SystemWords())


def test_another_runs_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batches.bin"
    BatchWriter.create(path, BatchHeader("ab" * 32, ("north",), ShuffledEpochs(9, 3), "x")).close()
    with pytest.raises(Refused, match="another run"):
        BatchWriter.resume(path, BatchHeader("cd" * 32, ("north",), ShuffledEpochs(9, 3), "x"))
    for content in (b"", b"PFBATCH1", b"PFBATCH1\x02\x00\x00\x00{}", b"something else"):
        path.write_bytes(content)
        with pytest.raises(Refused, match="is not a batch record"):
            BatchRecord.read(path)


def test_batches_are_reproducible_only_where_nobody_is_protected() -> None:
    plan, target = GaussianPlan(sampling_rate=1.0, rounds=2), EpsilonDelta(1.0, 1e-5)
    private = document_of(plan, target)
    research = document_of(plan, target, noise_source=NoiseSource.SEEDED_RESEARCH_ONLY)
    assert isinstance(word_source(private, 5, "north"), SystemWords)
    assert not np.array_equal(word_source(private, 5, "north").words(4), word_source(private, 5, "north").words(4))
    again = [word_source(research, 5, "north").words(4) for _ in range(2)]
    np.testing.assert_array_equal(*again)
    for other in (word_source(research, 5, "south"), word_source(research, 5, "north", session=2)):
        assert not np.array_equal(other.words(4), again[0])


def test_two_samplings_in_one_run_are_refused() -> None:
    document = document_of(GaussianPlan(sampling_rate=0.5, rounds=2), EpsilonDelta(1.0, 1e-5))
    assert declared_sampling(document) == Poisson(0.5)
    more = SamplingDeclaration(scheme=Poisson(0.25), assumption_enforced=True, enforced_by="x")
    two = document.model_copy(update={"sampling": (*document.sampling, more)})
    with pytest.raises(UnsupportedCombination, match="2 different samplings"):
        declared_sampling(two)


@given(st.integers(1, 300), st.integers(0, 2**32))
def test_permutations_and_subsets_are_what_they_are_called(size: int, seed: int) -> None:
    assert sorted(permutation(seeded(seed), size).tolist()) == list(range(size))
    chosen = subset(seeded(seed), size, (size + 1) // 2)
    assert len(set(chosen.tolist())) == (size + 1) // 2
    assert chosen.min() >= 0
    assert chosen.max() < size
    below = uniform_below(seeded(seed), size, 50)
    assert ((below >= 0) & (below < size)).all()


def test_permutations_are_uniform() -> None:
    source = SystemWords()
    codes = [int("".join(map(str, permutation(source, 3).tolist())), 3) for _ in range(6000)]
    _, counts = np.unique(codes, return_counts=True)
    assert len(counts) == 6
    assert stats.chisquare(counts).pvalue > ALARM


@given(st.floats(min_value=1e-300, max_value=1.0, exclude_max=True))
def test_a_coin_is_never_likelier_than_signed(probability: float) -> None:
    """The largest word that still counts as heads lies below probability * 2^64."""

    class Fixed:
        label = "fixed"

        def words(self, number: int) -> np.ndarray:
            return np.array([int(probability * 2.0**64)], dtype=np.uint64)

    assert len(bernoulli(Fixed(), 1, probability)) == 0

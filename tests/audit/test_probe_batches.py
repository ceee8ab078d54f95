"""A sampling is told by what it repeats: each kind passes as itself and fails as another."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy import stats

from audit.probes.batches import (
    _favoured_units,
    _so_uneven,
    _wrong_epoch_apart,
    moving_groups,
    predicted_batches,
    related_rounds,
    related_silos,
    wrong_batches,
    wrong_places,
)
from calibrate.sampling import (
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
)
from privfair.algorithms.algorithm import SiloTensors
from privfair.batches.participation import Participation
from privfair.batches.randomness import bernoulli
from tests.planted_bugs.fixed_randomness import FixedWords

UNITS, ROUNDS, LEVEL = 120, 30, 1e-6
SAMPLINGS: dict[str, Sampling | None] = {
    "poisson": Poisson(0.2),
    "truncated poisson": TruncatedPoisson(0.2, UNITS, 60),
    "fixed": FixedSize(UNITS, 24),
    "shuffled": ShuffledEpochs(UNITS, 24),
    "with replacement": WithReplacement(UNITS, 24),
    "random allocation": RandomAllocation(5),
    "full": None,
}


def drawn(sampling: Sampling | None, seed: int) -> dict[int, np.ndarray]:
    """As the engine draws them."""
    party = Participation("north", UNITS, sampling, FixedWords(seed))
    return {round: party.batch(round) for round in range(ROUNDS)}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_batches_pass_as_what_they_are(name: str) -> None:
    for seed in range(20):
        assert wrong_batches(SAMPLINGS[name], UNITS, drawn(SAMPLINGS[name], seed), LEVEL) is None


@pytest.mark.parametrize("declared", SAMPLINGS)
@pytest.mark.parametrize("real", SAMPLINGS)
def test_batches_fail_as_something_else(declared: str, real: str) -> None:
    if declared == real or {declared, real} == {"poisson", "truncated poisson"}:
        return  # the limit is above all that is ever drawn
    if (declared, real) in {("with replacement", "fixed"), ("with replacement", "shuffled")}:
        # As many draws, none of them twice: nothing that a count of draws can see, and less than was priced.
        return
    assert wrong_batches(SAMPLINGS[declared], UNITS, drawn(SAMPLINGS[real], 0), LEVEL) is not None


def test_poisson_draws_sold_as_a_long_epoch_of_random_allocation_are_seen() -> None:
    """Of 32 rehearsed rounds hardly one unit is in two; the epoch that is drawn to its end tells."""
    allocation = RandomAllocation(400)
    assert _wrong_epoch_apart(allocation, UNITS, 32, LEVEL) is None
    assert _wrong_epoch_apart(allocation, UNITS, 400, LEVEL) is None, "the rehearsal itself had a whole epoch"
    assert _wrong_epoch_apart(Poisson(1 / 400), UNITS, 32, LEVEL) is None, "nothing to look for"

    def independent(self: Participation, round_number: int) -> np.ndarray:
        return bernoulli(self._source, self.units, 1 / 400)

    with patch.object(Participation, "_draw", independent):
        assert "of one epoch" in (_wrong_epoch_apart(allocation, UNITS, 32, LEVEL) or "")


def test_batches_above_their_limit_are_seen() -> None:
    declared = TruncatedPoisson(0.2, UNITS, 26)
    assert wrong_batches(declared, UNITS, drawn(Poisson(0.2), 0), LEVEL) == "a batch has more than 26 units"


def test_a_higher_rate_than_declared_is_seen() -> None:
    assert "participations" in (wrong_batches(Poisson(0.2), UNITS, drawn(Poisson(0.26), 0), LEVEL) or "")


def test_the_same_half_of_the_data_again_and_again_is_seen() -> None:
    """The right sizes, always from the same quarter of the units."""
    few = drawn(FixedSize(UNITS, 24), 0)
    again = {round: np.unique(np.concatenate([batch // 4, np.arange(24)]))[:24] for round, batch in few.items()}
    assert "came back" in (wrong_batches(FixedSize(UNITS, 24), UNITS, again, LEVEL) or "")


def test_rounds_that_a_crash_left_behind_do_not_mix_epochs() -> None:
    batches = drawn(ShuffledEpochs(UNITS, 24), 0)
    kept = {round: batch for round, batch in batches.items() if round not in (1, 2, 8)}
    assert wrong_batches(ShuffledEpochs(UNITS, 24), UNITS, kept, LEVEL) is None


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [8, 32])
def test_small_poisson_batches_are_flagged_for_their_sizes_no_more_often_than_allowed(rounds: int) -> None:
    """Exactly: batches of one unit in the mean, whose squares have far heavier tails than chi-squared's."""
    units, rate, level, most = 1000, 1e-3, 1e-5, 600
    one = np.zeros(most)
    for size in range(24):
        one[(size - 1) ** 2] += stats.binom.pmf(size, units, rate)
    chances = np.eye(1, most)[0]
    for _ in range(rounds):
        chances = np.convolve(chances, one)[:most]
    sizes, spread = np.ones(rounds, dtype=np.int64), units * rate * (1 - rate)
    flagged = np.array([_so_uneven(units, rate, sizes, sum_ / spread, level) < level for sum_ in range(most)])
    allowed = level - level / 4  # the rest is for sizes beyond the cuts
    assert chances[flagged].sum() + max(0.0, 1 - chances.sum()) <= allowed
    assert flagged[-1]
    assert flagged[0] or stats.binom.pmf(1, units, rate) ** rounds > level / 10


SECRET = ("poisson", "truncated poisson", "fixed", "random allocation")


@pytest.mark.parametrize("name", SECRET)
def test_batches_of_different_rounds_silos_and_beginnings_are_independent(name: str) -> None:
    sampling, sizes = SAMPLINGS[name], {"north": UNITS, "south": UNITS}
    for seed in range(20):
        first, second = drawn(sampling, seed), drawn(sampling, 100 + seed)
        assert related_rounds(sampling, UNITS, first, LEVEL) is None
        assert predicted_batches(sampling, UNITS, first, second, LEVEL) is None
        assert related_silos(sampling, sizes, {"north": first, "south": second}, LEVEL) is None


@pytest.mark.parametrize("name", SECRET)
def test_batches_that_come_back_or_follow_from_a_seed_are_seen(name: str) -> None:
    sampling = SAMPLINGS[name]
    first = drawn(sampling, 0)
    again = {number: first[number % 10] for number in first}
    assert "share" in (related_rounds(sampling, UNITS, again, LEVEL) or "")
    few = {number: first[number] for number in range(4)}
    assert "begun again" in (predicted_batches(sampling, UNITS, few, first, LEVEL) or "")


def test_small_batches_that_repeat_are_seen_together() -> None:
    first = {number: batch for number, batch in drawn(Poisson(0.03), 1).items() if number < 4}
    assert 0 < max(len(batch) for batch in first.values()) < 8
    assert predicted_batches(Poisson(0.03), UNITS, first, first, LEVEL) is not None
    empty = {0: np.zeros(0, dtype=np.int64)}
    assert predicted_batches(Poisson(0.03), UNITS, empty, empty, LEVEL) is None, "nobody took part: nothing to tell"


def test_silos_of_different_sizes_that_share_their_words_are_seen() -> None:
    batches = drawn(Poisson(0.2), 0)
    smaller = {number: batch[batch < 90] for number, batch in batches.items()}
    found = related_silos(Poisson(0.2), {"north": UNITS, "south": 90}, {"north": batches, "south": smaller}, LEVEL)
    assert found == "north and south draw the same places of their files"
    everybody = dict.fromkeys(range(ROUNDS), np.arange(UNITS))
    sizes = {"north": UNITS, "south": UNITS}
    whole = FixedSize(UNITS, UNITS)
    assert related_silos(whole, sizes, {"north": everybody, "south": everybody}, LEVEL) is None, "nothing is drawn"


def test_a_unit_or_a_part_of_the_file_that_takes_part_too_often_is_seen() -> None:
    random = np.random.default_rng(3)
    times = random.binomial(500, 0.2, UNITS)
    assert _favoured_units(times, 500, 0.2, LEVEL) is None
    slope = random.binomial(500, np.linspace(0.25, 0.15, UNITS))
    assert "participations of units" in (_favoured_units(slope, 500, 0.2, LEVEL) or "")
    times[7] = 180
    assert "one unit takes part 180 times of 500" in (_favoured_units(times, 500, 0.2, LEVEL) or "")


def test_one_allocation_for_all_epochs_is_seen() -> None:
    assert wrong_places(RandomAllocation(5), UNITS, 1e-9) is None

    def once(self: Participation, epoch: int, batches: int) -> np.ndarray:
        self._orders = self._orders or {0: np.arange(self.units) * 7919 % batches}
        return self._orders[0]

    with patch.object(Participation, "_allocation", once):
        assert "place" in (wrong_places(RandomAllocation(5), UNITS, LEVEL) or "")


def test_groups_of_a_cycle_that_follow_the_position_are_seen() -> None:
    random = torch.Generator().manual_seed(0)
    silo = SiloTensors("north", torch.randn(40, 3, generator=random), torch.arange(40) % 2, torch.arange(40) // 2 % 2)
    assert moving_groups(silo, 6) is None
    with patch("audit.probes.batches.group_of_units", lambda one, groups: np.arange(len(one)) % groups):
        assert moving_groups(silo, 6) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", SECRET)
def test_true_batches_are_flagged_at_most_as_often_as_stated(name: str) -> None:
    sampling, runs, level = SAMPLINGS[name], 300, 0.05
    sizes, alarms = {"north": UNITS, "south": UNITS}, dict.fromkeys(("rounds", "beginnings", "silos", "units"), 0)
    for seed in range(runs):
        first, second = drawn(sampling, 1000 + seed), drawn(sampling, 5000 + seed)
        few = {number: second[number] for number in range(4)}
        alarms["rounds"] += related_rounds(sampling, UNITS, first, level) is not None
        alarms["beginnings"] += predicted_batches(sampling, UNITS, first, few, level) is not None
        alarms["silos"] += related_silos(sampling, sizes, {"north": first, "south": second}, level) is not None
        if name != "random allocation":  # within an epoch rounds are not independent
            times = np.bincount(np.concatenate(list(first.values())), minlength=UNITS)
            alarms["units"] += _favoured_units(times, ROUNDS, 0.2, level) is not None
    assert max(alarms.values()) <= runs * level + 3 * np.sqrt(runs * level), alarms


@pytest.mark.parametrize(
    ("sampling", "batch"),
    [(ShuffledEpochs(1, 1), [0]), (ShuffledEpochs(2, 2), [0, 1]), (WithReplacement(1, 3), [0, 0, 0])],
    ids=str,
)
def test_silos_in_which_nothing_is_left_to_chance_may_draw_alike(
    sampling: ShuffledEpochs | WithReplacement, batch: list[int]
) -> None:
    """One record per silo, or every record in every batch: equal batches say nothing about who drew them."""
    batches = {number: np.array(batch) for number in range(24)}
    sizes = {"north": sampling.population, "south": sampling.population}
    assert related_silos(sampling, sizes, {"north": batches, "south": batches}, LEVEL) is None


def test_two_silos_of_two_records_draw_alike_by_chance_until_it_is_too_unlikely() -> None:
    """One fair coin per epoch of two rounds: five equal epochs happen, thirty do not at a level of 1e-6."""
    sampling, sizes = ShuffledEpochs(2, 1), {"north": 2, "south": 2}
    for epochs, told in ((5, False), (30, True)):
        batches = {number: np.array([number % 2]) for number in range(2 * epochs)}
        found = related_silos(sampling, sizes, {"north": batches, "south": batches}, 1e-6)
        assert (found is not None) == told


def test_an_empty_batch_beside_one_of_everybody_hides_no_other_rounds() -> None:
    """Rounds that share all their units are named although one pair of rounds tells nothing."""
    everybody, half = np.arange(40), np.arange(20)
    batches = {0: np.arange(0), 1: everybody, 2: half, 3: half}
    assert related_rounds(Poisson(0.5), 40, batches, 1e-3) is not None

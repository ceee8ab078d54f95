"""A sampling is told by what it repeats: each kind passes as itself and fails as another."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from scipy import stats

from audit.probes.batches import _so_uneven, _wrong_epoch_apart, wrong_batches
from calibrate.sampling import (
    FixedSize,
    Poisson,
    RandomAllocation,
    Sampling,
    ShuffledEpochs,
    TruncatedPoisson,
    WithReplacement,
)
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

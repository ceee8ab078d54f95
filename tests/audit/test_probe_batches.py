"""A sampling is told by what it repeats: each kind passes as itself and fails as another."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
from scipy import stats

from audit.probes.batches import _so_uneven, wrong_batches
from audit.probes.known_key import moving_groups
from audit.runs.reference import KnownBatches
from calibrate.sampling import (
    Cyclic,
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
from privfair.batches.randomness import SystemWords
from privfair.run.rehearsal import RehearsalKey
from tests.planted_bugs.fixed_randomness import FixedWords

UNITS, ROUNDS, LEVEL = 120, 30, 1e-6
SAMPLINGS: dict[str, Sampling | None] = {
    "poisson": Poisson(0.2),
    "truncated poisson": TruncatedPoisson(0.2, UNITS, 60),
    "fixed": FixedSize(UNITS, 24),
    "shuffled": ShuffledEpochs(UNITS, 24),
    "with replacement": WithReplacement(UNITS, 24),
    "full": None,
}
SECRET = {"random allocation": RandomAllocation(5), "cycle": Cyclic(6, 0.5, 6)}
"""Of which no batch is on record."""


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


@pytest.mark.parametrize("name", [*SAMPLINGS, *SECRET])
def test_known_words_give_the_engines_batches(name: str) -> None:
    """Two sessions of the engine, and the reference that shares no code with it; other words give other batches."""
    sampling, groups = (SAMPLINGS | SECRET)[name], np.arange(UNITS) % 6
    key, orders = RehearsalKey(b"known"), dict[int, np.ndarray]()
    for session in (1, 2):
        source = SystemWords(key.source(f"session {session}"))
        engine = Participation("north", UNITS, sampling, source, groups=groups)
        known = KnownBatches(sampling, UNITS, key.source(f"session {session}"), groups, orders)
        other = KnownBatches(sampling, UNITS, key.source("other words"), groups)
        rounds = range(30 * session, 30 * session + 30)
        drawn = [engine.batch(number) for number in rounds]
        assert all(np.array_equal(known.batch(number), batch) for number, batch in zip(rounds, drawn, strict=True))
        same = all(np.array_equal(other.batch(number), batch) for number, batch in zip(rounds, drawn, strict=True))
        assert same == (sampling is None)


def test_groups_of_a_cycle_that_follow_the_position_are_seen() -> None:
    random = torch.Generator().manual_seed(0)
    silo = SiloTensors("north", torch.randn(40, 3, generator=random), torch.arange(40) % 2, torch.arange(40) // 2 % 2)
    assert moving_groups(silo, 6) is None
    with patch("audit.probes.known_key.group_of_units", lambda one, groups: np.arange(len(one)) % groups):
        assert moving_groups(silo, 6) is not None

"""A sampling is told by what it repeats: each kind passes as itself and fails as another."""

from __future__ import annotations

import numpy as np
import pytest

from audit.probes.batches import wrong_batches
from calibrate.sampling import FixedSize, Poisson, Sampling, ShuffledEpochs, WithReplacement
from privfair.participation import Participation
from tests.planted_bugs.fixed_randomness import FixedWords

UNITS, ROUNDS, LEVEL = 120, 30, 1e-6
SAMPLINGS: dict[str, Sampling | None] = {
    "poisson": Poisson(0.2),
    "fixed": FixedSize(UNITS, 24),
    "shuffled": ShuffledEpochs(UNITS, 24),
    "with replacement": WithReplacement(UNITS, 24),
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
    if declared == real or (declared, real) in {
        ("with replacement", "fixed"),
        ("with replacement", "shuffled"),
    }:
        # As many draws, none of them twice: nothing that a count of draws can see, and less than was priced.
        return
    assert wrong_batches(SAMPLINGS[declared], UNITS, drawn(SAMPLINGS[real], 0), LEVEL) is not None


def test_a_higher_rate_than_declared_is_seen() -> None:
    assert "participations" in (wrong_batches(Poisson(0.2), UNITS, drawn(Poisson(0.26), 0), LEVEL) or "")


def test_the_same_half_of_the_data_again_and_again_is_seen() -> None:
    """The right sizes, always from the same quarter of the units."""
    few = drawn(FixedSize(UNITS, 24), 0)
    again = {
        round: np.unique(np.concatenate([batch // 4, np.arange(24)]))[:24] for round, batch in few.items()
    }
    assert "came back" in (wrong_batches(FixedSize(UNITS, 24), UNITS, again, LEVEL) or "")


def test_rounds_that_a_crash_left_behind_do_not_mix_epochs() -> None:
    batches = drawn(ShuffledEpochs(UNITS, 24), 0)
    kept = {round: batch for round, batch in batches.items() if round not in (1, 2, 8)}
    assert wrong_batches(ShuffledEpochs(UNITS, 24), UNITS, kept, LEVEL) is None

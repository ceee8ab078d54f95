"""How many canary runs there are is settled before the first one that counts, and coins share no stream with noise."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from audit.coins.canary_audit import COIN_STREAM, NOISE_STREAM, Effort
from audit.coins.canary_decoder import CoinMeaning
from audit.coins.insertion import Canaries, CanarySilo
from calibrate.errors import UnsupportedCombination
from privfair.algorithms.algorithm import SiloTensors


@pytest.mark.parametrize(
    ("taken", "runs", "pilots"),
    [((0.01,), 50, 1), ((1.0, 1.0), 10, 2), ((1.5, 0.5), 20, 2), ((0.5, 1.5), 20, 2), ((30.0,), 6, 1)],
    ids=["fast", "steady", "warm-up", "a slow second", "slow"],
)
def test_the_number_of_runs_is_settled_by_runs_that_do_not_count(
    taken: tuple[float, ...], runs: int, pilots: int
) -> None:
    times = list(taken)
    assert Effort(50, 10.0).runs(lambda: times.pop(0)) == runs
    assert len(taken) - len(times) == pilots


def test_nothing_is_timed_where_there_is_nothing_to_choose() -> None:
    assert Effort(4, 10.0).runs(lambda: pytest.fail("timed")) == 4


def test_coins_noise_and_directions_come_from_different_streams() -> None:
    """(seed, 0) would be the stream of the bare seed."""
    for seed in (0, 7):
        streams = (
            np.random.default_rng((seed, NOISE_STREAM)),
            np.random.default_rng((seed, COIN_STREAM)),
            np.random.default_rng(seed),
        )
        assert len({tuple(stream.integers(2**62, size=4)) for stream in streams}) == len(streams)


def test_a_canary_in_a_records_place_is_no_coin_of_add_remove() -> None:
    zeros = torch.zeros(3, dtype=torch.int64)
    silo = SiloTensors("north", torch.zeros(3, 2), zeros, zeros)
    canaries = Canaries((silo.x[:1], silo.x[:1]), zeros[:1], zeros[:1], rows=torch.tensor([0]))
    CanarySilo(silo, 3, canaries, CoinMeaning.ONE_OF_TWO)
    with pytest.raises(UnsupportedCombination, match="add-remove"):
        CanarySilo(silo, 3, canaries, CoinMeaning.IN_OR_OUT)

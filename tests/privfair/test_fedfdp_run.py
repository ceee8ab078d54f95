"""FedFDP over several rounds: nothing piles up, the loss clip recovers, empty batches are not silent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.fedfdp import GRADIENT, LOSS, FedFdp, FedFdpClips, FedFdpOptions, FedFdpState
from privfair.contribution import Published
from privfair.models.linear import LogisticRegression
from privfair.transcript import Transcript
from tests.privfair.small_runs import Desk

FEATURES, RECORDS = 3, 20
CLIPS = FedFdpClips(0.5, 2.0)

PLAN = """algorithm = "fedfdp"
[target]
epsilon = 8.0
delta = 1e-5
[privacy]
sampling-rate = 0.2
rounds = 6
clip = 1.0
loss-clip = 2.0
loss-noise-ratio = 2.5
[data]
files = ["north.csv", "south.csv", "west.csv"]
schema = "schema.toml"
at-least = 100
[training]
learning-rate = 1e-9
measure-every = 6
"""


def _algorithm(**options: object) -> FedFdp:
    own = FedFdpOptions(**options)  # type: ignore[arg-type]
    return FedFdp(LogisticRegression(FEATURES), own, {"north": 1.0}, {"north": float(RECORDS)}, CLIPS)


def _silo() -> SiloTensors:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(RECORDS, FEATURES, generator=generator, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    return SiloTensors("north", x, y, y)


def _sent(algorithm: FedFdp, state: FedFdpState, round: int) -> dict[str, np.ndarray]:
    message = algorithm.contribution(state, round, _silo(), torch.arange(RECORDS))
    return {part.name: part.values for part in message.noisy}


def _next(algorithm: FedFdp, state: FedFdpState, values: dict[str, np.ndarray]) -> FedFdpState:
    published = {name: Published(0, "north", name, value) for name, value in values.items()}
    return algorithm.update(state, {"north": published})


def test_each_round_sends_the_gradient_of_its_own_batch_and_nothing_of_earlier_ones() -> None:
    """With a model that hardly moves every round's sum is the first one's; an accumulated sum would be t times it."""
    algorithm = _algorithm(learning_rate=1e-12, fairness=0.0)
    state = algorithm.start()
    first = _sent(algorithm, state, 0)[GRADIENT]
    assert np.linalg.norm(first) > 0.1
    for round in range(1, 12):
        state = _next(algorithm, state, _sent(algorithm, state, round - 1))
        np.testing.assert_allclose(_sent(algorithm, state, round)[GRADIENT], first, rtol=1e-9, atol=1e-11)


def test_a_loss_clip_at_its_floor_finds_its_way_back() -> None:
    """Noise may publish a mean loss below zero: the clip falls to its floor, and real losses raise it again."""
    algorithm = _algorithm(learning_rate=1e-12, loss_floor=0.01)
    state = _next(algorithm, algorithm.start(), {GRADIENT: np.zeros(FEATURES + 1), LOSS: np.array([-500.0])})
    assert state.loss_clips == (0.01,)
    assert state.mean_loss == 0.0
    clips = []
    for round in range(12):
        state = _next(algorithm, state, _sent(algorithm, state, round))
        clips.append(state.loss_clips[0])
    np.testing.assert_allclose(clips[:6], [0.02 * 2**doublings for doublings in range(6)], rtol=1e-6)
    # Every record of an untrained model loses ln 2; twice that is below the signed bound.
    np.testing.assert_allclose(clips[-1], 2 * np.log(2), rtol=1e-6)
    np.testing.assert_allclose(state.mean_loss, np.log(2), rtol=1e-6)


def test_the_papers_own_rule_never_comes_back() -> None:
    """Headroom 1: clipped at c, losses have a mean of at most c, so the clip stays at the floor for good."""
    algorithm = _algorithm(learning_rate=1e-12, loss_floor=0.01, loss_headroom=1.0)
    state = _next(algorithm, algorithm.start(), {GRADIENT: np.zeros(FEATURES + 1), LOSS: np.array([-500.0])})
    for round in range(12):
        state = _next(algorithm, state, _sent(algorithm, state, round))
    np.testing.assert_allclose(state.loss_clips[0], 0.01, rtol=1e-9)


def test_empty_batches_publish_noise_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is ever drawn, and still each silo publishes two noisy values a round."""
    monkeypatch.setattr("privfair.batches.participation.bernoulli", lambda *_: np.arange(0))
    desk = Desk.at(tmp_path, PLAN)
    desk.train(desk.budget(research_noise=True))
    transcript = Transcript.read(tmp_path / "run" / "transcript.bin")
    for party in ("north", "south", "west"):
        gradients, losses = transcript.values(party, GRADIENT), transcript.values(party, LOSS)
        assert len(gradients) == len(losses) == 6
        assert (np.linalg.norm(gradients, axis=1) > 0).all()
        assert (np.abs(losses) > 0).all()
        assert len(np.unique(losses)) == 6, "fresh noise every round"

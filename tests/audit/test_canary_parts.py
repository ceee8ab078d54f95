"""The parts of a canary audit on their own: the model with canaries, quiet directions, decoders, the signed curve."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from audit.bounds import LowerBound
from audit.bounds.lower_bound import GuessCounts, Method
from audit.bounds.trade_off import CurveFamily
from audit.coins.canary_choice import affordable
from audit.coins.canary_decoder import (
    CoinMeaning,
    Decoder,
    Interference,
    Seen,
    SignalReading,
    coin_meaning,
    quiet_directions,
)
from audit.coins.insertion import LABEL, LENGTH, CanaryModel, canary_features, require_unmarked
from audit.report.results import Attack, Conclusion, CurveTest, Promise
from audit.runs.noise import _directions
from audit.verdict import judge, manifest_curve
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.plans.gaussian import GaussianPlan
from calibrate.privacy_unit import EpsilonDelta, Relation
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model, clipped_to
from privfair.models.perceptron import Perceptron
from tests.privfair.small_runs import document_of

FEATURES = 4
MODELS: dict[str, Model] = {
    "logistic": LogisticRegression(FEATURES),
    "softmax": LogisticRegression(FEATURES, 3),
    "perceptron": Perceptron(FEATURES, (3,)),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> CanaryModel:
    inner = MODELS[request.param]
    rows = np.linalg.qr(np.random.default_rng(0).normal(size=(inner.size, 2)))[0].T
    return CanaryModel(inner, torch.from_numpy(np.concatenate((rows, -rows))))


def _mixed(model: CanaryModel) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ordinary records with canaries 0 and 3 among them."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, FEATURES, generator=generator, dtype=torch.float64)
    y = torch.randint(0, model.classes, (6,), generator=generator)
    for row, number in ((1, 0), (4, 3)):
        x[row], y[row] = canary_features(x[row], number), LABEL
    theta = torch.randn(model.size, generator=generator, dtype=torch.float64)
    return theta, x, y


def test_ordinary_records_are_left_as_they_are(model: CanaryModel) -> None:
    theta, x, y = _mixed(model)
    plain = torch.tensor([0, 2, 3, 5])
    clip = clipped_to(0.3)
    usual = model.inner.weighted_gradient(theta, x[plain], y[plain], clip)
    found = model.weighted_gradient(theta, x, y, clip)
    assert torch.allclose(found.losses[plain], usual.losses.to(found.losses.dtype))
    assert torch.allclose(found.coefficients[plain], usual.coefficients)
    parts = found.total - usual.total
    expected = -clip.reach * (model.directions[0] + model.directions[3])
    assert torch.allclose(parts, expected.to(parts.dtype), atol=1e-6)
    assert found.largest_part == pytest.approx(clip.reach)
    assert torch.allclose(model.probabilities(theta, x)[plain], model.inner.probabilities(theta, x[plain]))


def test_a_canary_pulls_alike_whatever_the_model_has_learnt(model: CanaryModel) -> None:
    theta, x, y = _mixed(model)
    canary = torch.tensor([1])
    first = model.weighted_gradient(theta, x[canary], y[canary], clipped_to(1.0)).total
    later = model.weighted_gradient(5 * theta, x[canary], y[canary], clipped_to(1.0)).total
    assert torch.equal(first, later)


def test_both_ways_to_a_gradient_agree(model: CanaryModel) -> None:
    """Algorithms ask for gradients record by record, or for weighted sums: the same canary in either case."""
    theta, x, y = _mixed(model)
    scores = model.logits(theta, x)
    each = model.score_gradients(theta, x, torch.softmax(scores, dim=1) - torch.nn.functional.one_hot(y, model.classes))
    marked = torch.isin(torch.arange(len(x)), torch.tensor([1, 4]))
    assert each[marked].norm(dim=1).min() > 0.9 * LENGTH
    for rows, off in ((~marked, 1e-6), (marked, 1e-6 * LENGTH)):
        total = model.weighted_gradient(theta, x[rows], y[rows], lambda norms, losses: torch.ones_like(norms)).total
        assert torch.allclose(each[rows].sum(dim=0), total, rtol=0, atol=off)


def test_data_that_look_like_canaries_are_refused() -> None:
    with pytest.raises(InvalidInput, match="canaries"):
        require_unmarked(torch.tensor([[1e9, 0.0]]))
    require_unmarked(torch.tensor([[1e6, 0.0], [-1e9, 2.0]]))


def test_attributes_have_an_audit_of_their_own() -> None:
    assert coin_meaning(Relation.ADD_REMOVE) is CoinMeaning.IN_OR_OUT
    assert coin_meaning(Relation.REPLACE_ONE) is CoinMeaning.ONE_OF_TWO
    with pytest.raises(UnsupportedCombination, match="attribute"):
        coin_meaning(Relation.REPLACE_ATTRIBUTE)


@pytest.mark.parametrize("size", [12, 2000])
def test_quiet_directions_are_orthonormal_and_quiet(size: int) -> None:
    loud = np.random.default_rng(2).normal(size=(6, size)) @ np.diag(np.r_[np.zeros(3), np.ones(size - 3)])
    found = quiet_directions(loud, 3, seed=0)
    assert np.allclose(found @ found.T, np.eye(3), atol=1e-9)
    assert np.abs(loud @ found.T).max() < 1e-6


def test_interference_is_weighed_as_its_covariance_asks() -> None:
    units = np.random.default_rng(3).normal(size=(5, 7))
    interference = Interference.of(units, population=50, rate=0.2)
    covariance = np.eye(7) + interference.spread.T @ interference.spread
    signal = np.random.default_rng(4).normal(size=(2, 7))
    assert np.allclose(interference.weighted(signal), np.linalg.solve(covariance, signal.T).T)


def _toy(noise: np.ndarray, coins: np.ndarray, rate: float, other: np.ndarray | None = None) -> Seen:
    """(runs, rounds) noise with one canary of level 1 (side 0: -1) that joins each round with `rate`."""
    joins = np.random.default_rng(9).random(noise.shape) < rate
    values = 5.0 + noise + joins * np.where(coins, 1.0, -1.0)[:, None]
    levels = np.ones((2, noise.shape[1], 1, 1)) * np.array([-1.0, 1.0]).reshape(2, 1, 1, 1)
    return Seen(values[..., None, None], levels, rate, None if other is None else 5.0 + other[..., None, None])


@pytest.mark.parametrize("reading", [SignalReading.BETWEEN_ROUNDS, SignalReading.BETWEEN_SILOS])
def test_repeated_noise_is_subtracted_from_itself(reading: SignalReading) -> None:
    """Noise far above the signal hides a coin, unless the same noise is used again."""
    random = np.random.default_rng(5)
    coins = random.integers(0, 2, 60)
    if reading is SignalReading.BETWEEN_ROUNDS:
        noise = np.repeat(random.normal(0, 30, (60, 1)), 40, axis=1)
        seen = _toy(noise, coins, 0.2)
    else:
        noise = random.normal(0, 30, (60, 40))
        seen = _toy(noise, coins, 0.2, other=noise)
    decoder = Decoder.fit((seen,))
    assert decoder.reading is reading
    assert ((decoder.scores((seen,))[:, 0] > 0) == (coins == 1)).mean() > 0.95


def test_a_unit_that_joins_one_round_per_epoch_is_read_as_such() -> None:
    """The score is log S of the theorem; taking the rounds for independent draws is right less often."""
    random = np.random.default_rng(8)
    epochs, batches, noise = 6, 10, 0.7
    coins = random.integers(0, 2, 4000)
    joins = np.zeros((len(coins), epochs, batches))
    place = random.integers(0, batches, (len(coins), epochs, 1))
    np.put_along_axis(joins, place, 1.0, axis=2)
    values = random.normal(0, noise, (len(coins), epochs * batches)) + joins.reshape(len(coins), -1) * coins[:, None]
    levels = np.ones((2, epochs * batches, 1, 1)) * np.array([0.0, 1.0]).reshape(2, 1, 1, 1)
    background, deviation = np.zeros_like(levels[0]), np.full((1, 1), noise)
    seen = Seen(values[..., None, None], levels, 1 / batches)
    decoders = [
        Decoder(0, SignalReading.PLAIN, background, deviation, levels, 1 / batches, epoch) for epoch in (batches, 0, 40)
    ]
    allocated, independent, begun = (decoder.scores((seen,))[:, 0] for decoder in decoders)
    ratio = np.exp((values - 0.5) / noise**2)
    expected = np.log(ratio.reshape(len(coins), epochs, batches).mean(axis=2)).sum(axis=1)
    assert np.allclose(allocated, expected)
    assert np.allclose(begun, np.log((ratio[:, :40].mean(axis=1)) * (0.5 + ratio[:, 40:].sum(axis=1) / 40)))
    right = [((scores > 0) == (coins == 1)).mean() for scores in (allocated, independent)]
    assert right[0] > right[1]


def test_fresh_noise_is_read_plainly_and_as_well_as_theory_allows() -> None:
    random = np.random.default_rng(6)
    coins = random.integers(0, 2, 2000)
    seen = _toy(random.normal(0, 4, (2000, 40)), coins, 1.0)
    decoder = Decoder.fit((seen,))
    assert decoder.reading is SignalReading.PLAIN
    assert decoder.deviation[0, 0] == pytest.approx(4, rel=0.02)
    right = ((decoder.scores((seen,))[:, 0] > 0) == (coins == 1)).mean()
    assert right == pytest.approx(norm.cdf(np.sqrt(40) / 4), abs=0.02)


def test_the_signed_curve_is_what_the_event_allows() -> None:
    document = document_of(GaussianPlan(0.2, 10, Relation.ADD_REMOVE, clip=1.0), EpsilonDelta(2.0, 1e-5))
    curve = manifest_curve(document)
    assert curve is not None
    assert all(promise.epsilon <= 2.0 for promise in curve.promises if promise.delta >= 1e-5)
    assert curve.type_two_error(0.01) > 0.8
    assert curve.type_two_error(0.5) < 0.5


def test_a_refuted_curve_is_a_violation_though_epsilon_is_not_exceeded() -> None:
    bound = LowerBound(0.5, 1e-5, 0.975, Method.ONE_RUN, CurveFamily.EPSILON_DELTA, GuessCounts(100, 100, 70))
    promise = Promise(epsilon=1.0, delta=1e-5, source="promised by a test")
    weak, strong = (
        judge(promise, (), (Attack(name="a", bound=bound, power=0.9, evidence="x", curve=CurveTest.at(p, 5e-4)),), 0.95)
        for p in (0.01, 1e-5)
    )
    assert weak.verdict is Conclusion.CONSISTENT
    assert strong.verdict is Conclusion.VIOLATED
    assert "signed noise" in strong.why
    assert strong.to_json()["attacks"][0]["curve"]["refuted"] is True


def test_of_a_large_model_fewer_parts_are_held_at_once() -> None:
    """Ten silos of a net with 582,026 parameters: all canaries, or all sampled units, would take gigabytes."""
    assert affordable(12, 10 * 600) == 12
    assert affordable(12, 10 * 582_026) * 10 * 582_026 * 8 <= 2**28
    assert affordable(12, 10**9) == 2
    assert affordable(1, 10**9) == 1


def test_the_first_entries_of_a_long_value_are_picked_without_a_square_matrix() -> None:
    picked = _directions(2**22, None)
    assert picked.shape[1] == 2**22
    assert np.array_equal(picked @ picked.T, np.eye(len(picked)))

"""MMD-fair FedAvg: unbiased gradients, the kernel that acts, draws, clips, and what a private run may not do."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from calibrate.errors import InvalidInput, Refused, UnsupportedCombination
from privfair.algorithms.algorithm import Message, SiloTensors
from privfair.algorithms.mmd_fedavg import (
    HISTOGRAM,
    PREDICTIONS,
    ClientWeights,
    CountsInTheClear,
    MmdFedAvg,
    MmdFedAvgOptions,
    MmdFedAvgState,
    MmdTerms,
    NoiseCorrection,
    PaidCounts,
    PublicShares,
)
from privfair.batches.randomness import SeededWords
from privfair.contribution import Published
from privfair.fairness.constraints import KernelKind, MmdCriterion, Score, score_values
from privfair.fairness.mmd import (
    GaussianKernel,
    GaussianSmoothing,
    LaplaceSmoothing,
    TrackedPenalty,
    cell_of_rows,
    mmd_squared_v,
)
from privfair.models.exact import Bits
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model
from privfair.models.perceptron import Perceptron
from tests.privfair.plain_models import ROUNDED, Plain

FEATURES, RECORDS, CLIENTS = 3, 18, 3
CONDITIONAL = {"criterion": MmdCriterion.CONDITIONAL_PARITY, "condition_feature": 0}


def _silo(records: int = RECORDS, seed: int = 0) -> SiloTensors:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(records, FEATURES, generator=generator, dtype=torch.float64)
    s = torch.arange(records) % 2
    y = (torch.arange(records) // 2) % 2
    x[:, 0] += 1.2 * s
    client = torch.randint(0, CLIENTS, (records,), generator=generator)
    return SiloTensors("central", x, y, s, client_of_row=client)


def _sizes(silo: SiloTensors) -> tuple[int, ...]:
    assert silo.client_of_row is not None
    return tuple(torch.bincount(silo.client_of_row, minlength=CLIENTS).tolist())


def _algorithm(
    silo: SiloTensors, model: Model | None = None, terms: dict[str, object] | None = None, **options: object
) -> MmdFedAvg:
    facts = {"samples": 2, "cohort": CLIENTS, "counts": CountsInTheClear()} | (terms or {})
    return MmdFedAvg(
        model or LogisticRegression(FEATURES),
        MmdFedAvgOptions(**options),  # type: ignore[arg-type]
        MmdTerms(_sizes(silo), **facts),  # type: ignore[arg-type]
    )


def _published(silo: SiloTensors, *messages: Message) -> dict[str, dict[str, Published]]:
    values: dict[str, np.ndarray] = {}
    for message in messages:
        values |= {c.name: c.values for c in message.noisy} | dict(message.clear or {})
    return {silo.name: {name: Published(0, silo.name, name, np.array(v)) for name, v in values.items()}}


def _round(algorithm: MmdFedAvg, state: MmdFedAvgState, silo: SiloTensors, batch: Tensor) -> MmdFedAvgState:
    first = algorithm.contribution(state, 0, silo, batch)
    second = algorithm.reply(state, 0, silo, batch, _published(silo, first))
    return algorithm.update(state, _published(silo, first, second))


def _objective(algorithm: MmdFedAvg, theta: Tensor, silo: SiloTensors) -> float:
    """Mean loss plus lambda times the squared MMD between the groups' scores, under every condition."""
    options, model = algorithm.options, Plain(algorithm.model)
    loss = float(model.losses(theta, silo.x, silo.y).mean())
    scores = score_values(options.compared, model, theta, silo.x, silo.y, options.positive_class).numpy()
    cells = cell_of_rows(algorithm.given, options.strata.of(silo.x, silo.y), silo.s).numpy()
    many = len(algorithm.given)
    return loss + options.fairness * sum(
        mmd_squared_v(scores[cells == a * many + j], scores[cells == b * many + j], algorithm.kernel)
        for j in range(many)
        for a, b in itertools.combinations(range(algorithm.groups), 2)
    )


def _slopes(algorithm: MmdFedAvg, theta: Tensor, silo: SiloTensors) -> np.ndarray:
    step, out = 1e-6, []
    for place in range(len(theta)):
        shift = torch.zeros_like(theta)
        shift[place] = step
        up, down = (_objective(algorithm, theta + sign * shift, silo) for sign in (1, -1))
        out.append((up - down) / (2 * step))
    return np.array(out)


CASES = [
    (MmdCriterion.STATISTICAL_PARITY, None, KernelKind.GAUSSIAN),
    (MmdCriterion.STATISTICAL_PARITY, Score.LOGIT, KernelKind.ENERGY),
    (MmdCriterion.STATISTICAL_PARITY, Score.LOGIT, KernelKind.LAPLACE),
    (MmdCriterion.EQUAL_OPPORTUNITY, None, KernelKind.LAPLACE),
    (MmdCriterion.EQUALISED_ODDS, None, KernelKind.GAUSSIAN),
    (MmdCriterion.RISK_PARITY, None, KernelKind.GAUSSIAN),
    (MmdCriterion.RISK_PARITY, Score.LOG_LOSS, KernelKind.ENERGY),
]


@pytest.mark.slow
@pytest.mark.parametrize(("criterion", "score", "kernel"), CASES)
def test_lemma_4_1_by_enumerating_every_draw(criterion: MmdCriterion, score: Score | None, kernel: KernelKind) -> None:
    """Averaged over all draws of two scores a cell, one step with all clients is the gradient of the objective.

    Smooth kernels and kinks alike: the derivative at a kink is taken as 0, and v is even, so the record's own
    score adds nothing on either side.
    """
    silo = _silo(12)
    algorithm = _algorithm(
        silo, criterion=criterion, score=score, kernel=kernel, kernel_width=0.4, fairness=3.0, local_rate=0.1
    )
    theta = torch.tensor([0.6, -0.4, 0.3, 0.2], dtype=torch.float64)
    state = MmdFedAvgState(theta, None)
    cells = cell_of_rows(algorithm.given, silo.y, silo.s)
    everybody = len(silo) + torch.arange(CLIENTS)
    # The penalty is linear in each condition's pair of draws, so conditions may be enumerated together.
    pairs = [list(itertools.combinations(np.flatnonzero(cells.numpy() == c).tolist(), 2)) for c in algorithm.cells]
    many = len(algorithm.given)
    total, number = np.zeros(len(theta)), 0
    for first in range(len(pairs[0])):
        for second in range(len(pairs[many])):
            rows = [row for c in algorithm.cells for row in pairs[c][(first if c < many else second) % len(pairs[c])]]
            following = _round(algorithm, state, silo, torch.cat((torch.tensor(rows), everybody)))
            total += (theta - following.theta).numpy() / 0.1
            number += 1
    np.testing.assert_allclose(total / number, _slopes(algorithm, theta, silo), rtol=2e-5, atol=ROUNDED["atol"])


@pytest.mark.parametrize("criterion", [MmdCriterion.STATISTICAL_PARITY, MmdCriterion.PREDICTIVE_EQUALITY])
@pytest.mark.parametrize("kernel", [KernelKind.GAUSSIAN, KernelKind.ENERGY])
def test_three_groups_are_compared_pair_by_pair(criterion: MmdCriterion, kernel: KernelKind) -> None:
    """Everybody's score published: one step is the gradient of the objective over all pairs of groups."""
    silo = replace(_silo(24), s=torch.arange(24) // 2 % 3, y=torch.arange(24) // 6 % 2)
    samples = 4 if criterion is MmdCriterion.PREDICTIVE_EQUALITY else 8
    own = {"fairness": 2.0, "local_rate": 0.01, "criterion": criterion, "kernel": kernel}
    algorithm = replace(_algorithm(silo, None, {"samples": samples}, **own), groups=3)
    assert algorithm.shapes()["predictions_group_2"] == (samples,)
    theta = torch.tensor([0.6, -0.4, 0.3, 0.2], dtype=torch.float64)
    following = _round(algorithm, MmdFedAvgState(theta, None), silo, torch.arange(len(silo) + CLIENTS))
    moved = (theta - following.theta).numpy() / 0.01
    np.testing.assert_allclose(moved, _slopes(algorithm, theta, silo), rtol=1e-4, atol=1e-7)


def test_conditional_parity_compares_the_groups_on_each_side_of_a_cut() -> None:
    """Everybody's score published: one step is the gradient of loss and both sides' MMD, by hand."""
    silo = _silo(24)
    silo.x[:, 2] = (torch.arange(24) // 4 % 2).double()
    own = {"criterion": MmdCriterion.CONDITIONAL_PARITY, "condition_feature": 2, "fairness": 2.0, "local_rate": 0.01}
    algorithm = _algorithm(silo, None, {"samples": 6}, **own)
    theta = torch.tensor([0.6, -0.4, 0.3, 0.2], dtype=torch.float64)
    batch = torch.arange(len(silo) + CLIENTS)
    message = algorithm.contribution(MmdFedAvgState(theta, None), 1, silo, batch)
    scores = algorithm.model.probabilities(theta, silo.x)[:, 1].numpy()
    sent = message.noisy[1].values.reshape(2, 6)
    for side in (0, 1):
        mine = scores[((silo.s == 1) & (silo.x[:, 2] == side)).numpy()]
        np.testing.assert_allclose(sent[side], mine)
    following = _round(algorithm, MmdFedAvgState(theta, None), silo, batch)
    moved = (theta - following.theta).numpy() / 0.01
    np.testing.assert_allclose(moved, _slopes(algorithm, theta, silo), rtol=1e-4, atol=1e-7)
    for wrong in ({"condition_feature": 1}, {"criterion": MmdCriterion.CONDITIONAL_PARITY}):
        with pytest.raises(InvalidInput, match="condition-feature"):
            _algorithm(silo, **wrong)
    with pytest.raises(InvalidInput, match="must be below 3"):
        _round(_algorithm(silo, None, {"samples": 6}, **own | {"condition_feature": 3}), algorithm.start(), silo, batch)


def test_unbiased_for_a_network_too() -> None:
    silo, model = _silo(12), Perceptron(FEATURES, (4,), bits=Bits.LARGEST)
    algorithm = _algorithm(silo, model, {"samples": 6}, fairness=2.0, local_rate=0.01)
    theta = model.initial(3) * 2
    batch = torch.arange(len(silo) + CLIENTS)
    following = _round(algorithm, MmdFedAvgState(theta, None), silo, batch)
    moved = (theta - following.theta).numpy() / 0.01
    np.testing.assert_allclose(moved, _slopes(algorithm, theta, silo), rtol=1e-4, atol=1e-7)


def test_corollary_5_3_with_its_amplitude() -> None:
    """With noise of deviation t, computing with width sqrt(w^2 - t^2) and amplitude w / sqrt(w^2 - t^2) gives,
    in expectation over the noise, exactly the penalty's slope for the wanted kernel of width w and amplitude 1."""
    wanted, deviation = 0.5, 0.3
    silo = _silo()
    noise = GaussianSmoothing(deviation)
    terms = {"noise": noise, "counts": PublicShares((0.5, 0.5)), "update_clip": 1.0}
    algorithm = _algorithm(silo, terms=terms, kernel_width=wanted)
    assert isinstance(algorithm.kernel, GaussianKernel)
    narrower = np.sqrt(wanted**2 - deviation**2)
    assert algorithm.kernel.width == pytest.approx(narrower)
    assert algorithm.kernel.amplitude == pytest.approx(wanted / narrower)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    exact, z = np.array([[[0.2, 0.7]], [[0.4, 0.9]]]), np.array([0.1, 0.35, 0.8])
    cells = np.array([0, 1, 0])

    def slopes(kernel: GaussianKernel, published: np.ndarray) -> np.ndarray:
        penalty = TrackedPenalty(
            algorithm.model, Score.PROBABILITY, (None,), 1, kernel, 1.0, published, np.array([0.5, 0.5])
        )
        return penalty.slopes(z, cells)

    clean = slopes(GaussianKernel(wanted), exact)
    # Each published score enters linearly, so all may share the node: their noises need not be independent here.
    noisy = (
        sum(w * slopes(algorithm.kernel, exact + deviation * node) for node, w in zip(nodes, weights, strict=True))
        / weights.sum()
    )
    np.testing.assert_allclose(noisy, clean, rtol=1e-6)
    uncorrected = _algorithm(silo, terms=terms, kernel_width=wanted, correction=NoiseCorrection.NONE)
    assert uncorrected.kernel == GaussianKernel(wanted)
    plain = (
        sum(
            w * slopes(GaussianKernel(wanted), exact + deviation * node) for node, w in zip(nodes, weights, strict=True)
        )
        / weights.sum()
    )
    wider = np.hypot(wanted, deviation)
    np.testing.assert_allclose(plain, slopes(GaussianKernel(wider, wanted / wider), exact), rtol=1e-6)
    assert np.abs(plain - slopes(GaussianKernel(wider), exact)).max() > 0.1 * np.abs(plain).max()


def test_without_fairness_it_is_fedavg() -> None:
    """lambda = 0: local epochs of plain descent, averaged by size over the cohort."""
    silo = _silo(60)
    algorithm = _algorithm(silo, fairness=0.0, local_epochs=3, local_rate=0.2)
    start = torch.tensor([0.1, 0.2, -0.1, 0.0], dtype=torch.float64)
    following = _round(
        algorithm, MmdFedAvgState(start, None), silo, torch.cat((torch.arange(8), 60 + torch.arange(CLIENTS)))
    )
    mean = torch.zeros_like(start)
    assert silo.client_of_row is not None
    for client, size in enumerate(_sizes(silo)):
        mine, theta = silo.client_of_row == client, start.clone()
        for _ in range(3):
            point = theta.clone().requires_grad_()
            loss = Plain(algorithm.model).losses(point, silo.x[mine], silo.y[mine]).mean()
            (gradient,) = torch.autograd.grad(loss, point)
            theta = theta - 0.2 * gradient
        mean += size / 60 * theta
    np.testing.assert_allclose(following.theta, mean, **ROUNDED)


def test_the_local_step_shrinks_from_round_to_round() -> None:
    silo = _silo(60)
    algorithm = _algorithm(silo, local_rate_factor=0.5)
    state, batch = algorithm.start(), torch.cat((torch.arange(8), 60 + torch.arange(CLIENTS)))
    received = _published(silo, algorithm.contribution(state, 0, silo, batch))
    first, third = (algorithm.reply(state, round, silo, batch, received).clear for round in (0, 2))
    assert first is not None
    assert third is not None
    np.testing.assert_allclose(third["client_updates"], first["client_updates"] / 4, rtol=1e-9)


def test_small_local_batches_cover_every_record_once_an_epoch() -> None:
    silo = _silo(60)
    algorithm = _algorithm(silo, local_batch=7, weights=ClientWeights.EQUAL)
    state = algorithm.start()
    batch = torch.cat((torch.arange(8), torch.tensor([61])))
    one, other = _round(algorithm, state, silo, batch), _round(algorithm, state, silo, batch)
    np.testing.assert_array_equal(one.theta, other.theta)
    assert (one.theta != state.theta).any()


def test_the_draw_has_every_cell_and_the_cohort_in_random_order() -> None:
    silo = _silo(80)
    algorithm = _algorithm(silo, terms={"samples": 5, "cohort": 2}, criterion=MmdCriterion.EQUALISED_ODDS)
    cells = cell_of_rows(algorithm.given, silo.y, silo.s).numpy()
    source, firsts, clients, sorted_draws = SeededWords(0, "draws"), [], [], 0
    for _ in range(400):
        drawn = algorithm.draw(silo, source)
        rows, cohort = drawn[:20], drawn[20:]
        assert len(np.unique(drawn)) == 22
        np.testing.assert_array_equal(cells[rows], np.repeat(np.arange(4), 5))
        assert ((cohort >= 80) & (cohort < 80 + CLIENTS)).all()
        firsts.append(rows[0])
        clients.extend((cohort - 80).tolist())
        sorted_draws += bool((np.diff(rows[:5]) > 0).all())
    # 20 records in the cell: each comes first about 20 times (deviation 4.4); 1 in 120 draws is sorted by chance.
    assert np.bincount(firsts, minlength=80)[cells == 0].max() < 20 + 6 * 4.4
    assert np.bincount(firsts, minlength=80)[cells == 0].min() > 0
    assert sorted_draws < 20
    assert np.bincount(clients).min() > 200


def test_a_cell_smaller_than_priced_is_refused() -> None:
    silo = _silo()
    with pytest.raises(Refused, match="fewer records"):
        _algorithm(silo, terms={"samples": 10}).draw(silo, SeededWords(0, "x"))
    with pytest.raises(Refused, match="group-size"):
        _algorithm(silo, terms={"smallest_cell": 10}).draw(silo, SeededWords(0, "x"))


def test_updates_see_published_predictions_only() -> None:
    """Other clients' records reach a client's update through what was published and in no other way."""
    silo = _silo(60)
    algorithm = _algorithm(silo, terms={"counts": PublicShares((0.5, 0.5)), "update_clip": 0.05})
    state = algorithm.start()
    batch = torch.cat((torch.arange(4), torch.tensor([60])))
    received = _published(silo, algorithm.contribution(state, 0, silo, batch))
    assert silo.client_of_row is not None
    others = silo.client_of_row != 0
    changed = replace(
        silo, x=torch.where(others[:, None], silo.x + 5.0, silo.x), y=torch.where(others, 1 - silo.y, silo.y)
    )
    one, other = (algorithm.reply(state, 0, each, batch, received).noisy[0] for each in (silo, changed))
    np.testing.assert_array_equal(one.values, other.values)
    assert one.measured == pytest.approx(np.linalg.norm(one.values))
    assert one.measured <= 0.05
    elsewhere = _published(silo, algorithm.contribution(state, 0, silo, torch.arange(20, 40)))
    elsewhere[silo.name][PREDICTIONS[0]] = Published(0, silo.name, PREDICTIONS[0], np.array([0.0, 0.1]))
    third = algorithm.reply(state, 0, silo, batch, elsewhere).noisy[0]
    assert (third.values != one.values).any(), "what was published does matter"


def test_one_record_moves_one_prediction_by_at_most_one() -> None:
    silo = _silo(60)
    algorithm = _algorithm(silo, terms={"samples": 5})
    state = MmdFedAvgState(torch.tensor([3.0, -2.0, 1.0, 0.5], dtype=torch.float64), None)
    batch = torch.arange(20)
    far = silo.x.clone()
    far[4] = torch.tensor([1e6, -1e6, 1e6])
    before, after = (algorithm.contribution(state, 1, each, batch).noisy for each in (silo, replace(silo, x=far)))
    for one, other in zip(before, after, strict=True):
        assert one.measured <= 0.5
        assert other.measured <= 0.5
        moved = np.abs(one.values - other.values)
        assert (moved > 0).sum() <= 1
        assert moved.max() <= 1
    assert any((one.values != other.values).any() for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("options", [{}, CONDITIONAL], ids=["five groups", "conditional"])
def test_a_replaced_record_touches_two_sets_of_a_draw_and_no_more(options: dict[str, object]) -> None:
    """Whatever a record becomes, group and features included: everybody else is drawn from the same sets as before."""
    silo = replace(_silo(60), s=torch.arange(60) % 5)
    algorithm = replace(_algorithm(silo, **options), groups=5)
    strata = algorithm.options.strata
    before = cell_of_rows(algorithm.given, strata.of(silo.x, silo.y), silo.s)
    touched = set()
    for group, feature, label in itertools.product(range(5), (-1e6, 1e6), (0, 1)):
        x, y, s = silo.x.clone(), silo.y.clone(), silo.s.clone()
        x[7], y[7], s[7] = feature, label, group
        after = cell_of_rows(algorithm.given, strata.of(x, y), s)
        assert (after != before).nonzero()[:, 0].tolist() in ([], [7])
        touched.add(int(after[7]))
    assert touched == set(algorithm.cells), "every set can be entered"


def test_paid_counts_are_published_once_and_used_from_then_on() -> None:
    silo = _silo(60)
    algorithm = _algorithm(
        silo, terms={"counts": PaidCounts(), "noise": GaussianSmoothing(0.2), "update_clip": 1.0}, least_share=0.05
    )
    state, batch = algorithm.start(), torch.cat((torch.arange(8), 60 + torch.arange(CLIENTS)))
    first = algorithm.contribution(state, 0, silo, batch)
    (histogram,) = (c for c in first.noisy if c.name == HISTOGRAM)
    np.testing.assert_array_equal(histogram.values, [30, 30])
    assert histogram.bound == pytest.approx(np.sqrt(2) / 2)
    assert all(c.name != HISTOGRAM for c in algorithm.contribution(state, 1, silo, batch).noisy)
    received = _published(silo, first)
    received[silo.name][HISTOGRAM] = Published(0, silo.name, HISTOGRAM, np.array([24.0, -7.0]))
    second = algorithm.reply(state, 0, silo, batch, received)
    received[silo.name] |= _published(silo, second)[silo.name]
    following = algorithm.update(state, received)
    assert following.shares == pytest.approx((0.4, 0.05))
    assert algorithm.restore(algorithm.checkpoint(following)).shares == following.shares


@pytest.mark.parametrize(
    ("options", "terms", "names"),
    [
        ({"score": Score.LOGIT}, {}, "probability"),
        ({"criterion": MmdCriterion.RISK_PARITY, "score": Score.LOG_LOSS}, {}, "miss"),
        ({"kernel": KernelKind.ENERGY}, {}, "Gaussian kernel"),
        ({}, {"counts": CountsInTheClear()}, "histogram-noise-ratio"),
        ({"kernel": KernelKind.LAPLACE}, {}, "Gaussian kernel"),
    ],
)
def test_what_a_private_run_may_not_do(options: dict[str, object], terms: dict[str, object], names: str) -> None:
    private = {"noise": LaplaceSmoothing(0.2), "counts": PaidCounts()} | terms
    with pytest.raises(UnsupportedCombination, match=names):
        _algorithm(_silo(), terms=private, **options)


def test_a_kernel_narrower_than_the_noise_is_refused() -> None:
    private = {"noise": GaussianSmoothing(0.6), "counts": PaidCounts()}
    with pytest.raises(InvalidInput, match="width"):
        _algorithm(_silo(), terms=private, kernel_width=0.5)


def test_shares_must_fit_the_cells() -> None:
    with pytest.raises(InvalidInput, match="group-shares"):
        _algorithm(_silo(), terms={"counts": PublicShares((0.5, 0.5))}, criterion=MmdCriterion.EQUALISED_ODDS)
    with pytest.raises(InvalidInput, match="cohort"):
        _algorithm(_silo(), terms={"cohort": CLIENTS + 1})

"""FERMI's psi, its gradients, its maximum over W, penalties and debiasing, against first principles."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import one_hot

from calibrate.errors import InvalidInput
from privfair.fairness import fermi
from privfair.fairness.constraints import FairnessPenalty, ResponseChannel, penalty_slopes
from privfair.fairness.fermi import Independence
from tests.privfair.fermi_values import chi_square, optimal_w, penalty_value, psi

SIZES = tuple(itertools.product((2, 3, 5), (2, 3, 5)))


def _records(groups: int, classes: int, notion: Independence, size: int = 200, seed: int = 0):
    """Random probabilities, groups and blocks; every group occurs in every block."""
    draw = torch.Generator().manual_seed(seed * 100 + groups * 10 + classes)
    logits = torch.randn(size, classes, generator=draw, dtype=torch.float64)
    probabilities = torch.softmax(logits, dim=1)
    y = torch.arange(size) % classes
    s = (torch.arange(size) // classes) % groups
    return probabilities, s, fermi.block_of(notion, y, 1)


def _frequencies(s: torch.Tensor, block: torch.Tensor, blocks: int, groups: int) -> torch.Tensor:
    counts = torch.stack([one_hot(s[block == b], groups).sum(dim=0) for b in range(blocks)]).double()
    return counts / counts.sum(dim=1, keepdim=True)


def _chi_square_by_loops(probabilities, s, block, groups, classes) -> float:
    """Equations (5) and (6) of the paper, entry by entry, weighted by the share of each block."""
    total, n = 0.0, len(s)
    for b in sorted(set(block.tolist()) - {fermi.OUTSIDE}):
        rows = [i for i in range(n) if block[i] == b]
        value = -1.0
        for j in range(classes):
            predicted = sum(float(probabilities[i, j]) for i in rows) / len(rows)
            for r in range(groups):
                joint = sum(float(probabilities[i, j]) for i in rows if s[i] == r) / len(rows)
                share = sum(1 for i in rows if s[i] == r) / len(rows)
                value += joint**2 / (predicted * share)
        total += len(rows) / n * value
    return total


@pytest.mark.parametrize("notion", list(Independence))
@pytest.mark.parametrize(("groups", "classes"), SIZES)
def test_maximum_over_w_is_the_chi_square_divergence(groups, classes, notion) -> None:
    probabilities, s, block = _records(groups, classes, notion)
    blocks = notion.blocks(classes)
    members = one_hot(s, groups).double()
    joint = fermi.joint_distribution(probabilities, members, block, blocks) / len(s)
    frequencies = _frequencies(s, block, blocks, groups)
    best = optimal_w(joint, frequencies)
    by_loops = _chi_square_by_loops(probabilities, s, block, groups, classes)

    def mean_psi(w):
        return float(psi(w, probabilities, s, block, frequencies).mean())

    assert mean_psi(best) == pytest.approx(by_loops, abs=1e-12)
    assert float(chi_square(joint)) == pytest.approx(by_loops, abs=1e-12)
    assert float(penalty_value(FairnessPenalty.FERMI, joint, 1e-6)) == pytest.approx(by_loops, abs=1e-12)
    draw = torch.Generator().manual_seed(1)
    for scale in (1e-3, 1e-1, 1.0):
        other = best + scale * torch.randn(best.shape, generator=draw, dtype=torch.float64)
        assert mean_psi(other) < mean_psi(best)


@pytest.mark.parametrize("notion", list(Independence))
@pytest.mark.parametrize(("groups", "classes"), SIZES)
def test_gradients_of_psi_are_its_differences(groups, classes, notion) -> None:
    probabilities, s, block = _records(groups, classes, notion, size=60)
    blocks = notion.blocks(classes)
    frequencies = _frequencies(s, block, blocks, groups)
    draw = torch.Generator().manual_seed(2)
    w = torch.randn(blocks, groups, classes, generator=draw, dtype=torch.float64)
    joint = fermi.joint_distribution(probabilities, one_hot(s, groups).double(), block, blocks)
    gradient = fermi.weight_gradient(w, joint, joint.sum(dim=1), frequencies)
    for place in itertools.product(range(blocks), range(groups), range(classes)):
        moved = torch.zeros_like(w)
        moved[place] = 1e-5
        up = psi(w + moved, probabilities, s, block, frequencies).sum()
        down = psi(w - moved, probabilities, s, block, frequencies).sum()
        assert float(up - down) / 2e-5 == pytest.approx(float(gradient[place]), abs=1e-6)
    # psi is linear in the probabilities with the slopes its gradients are made of.
    slopes = fermi.attribute_slopes(w, frequencies)[block.clamp_min(0), s]
    slopes = slopes + fermi.common_slopes(w)[block.clamp_min(0)]
    other = probabilities.flip(0)
    difference = psi(w, probabilities, s, block, frequencies) - psi(w, other, s, block, frequencies)
    expected = (slopes * (probabilities - other)).sum(dim=1) * (block != fermi.OUTSIDE)
    torch.testing.assert_close(difference, expected)


def test_psi_is_the_papers_trace_formula() -> None:
    probabilities, s, block = _records(3, 4, Independence.DEMOGRAPHIC_PARITY, size=12)
    frequencies = torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64)
    w = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    values = psi(w, probabilities, s, block, frequencies)
    root = torch.diag(frequencies[0] ** -0.5)
    for i in range(12):
        f, e = probabilities[i][:, None], one_hot(s[i], 3).double()[:, None]
        first = torch.trace(w[0] @ torch.diag(probabilities[i]) @ w[0].T)
        second = torch.trace(w[0] @ f @ e.T @ root)
        assert float(values[i]) == pytest.approx(float(-first + 2 * second - 1), abs=1e-12)


def test_at_the_independence_point_no_slope_depends_on_the_group() -> None:
    frequencies = torch.tensor([[0.1, 0.3, 0.6], [0.2, 0.2, 0.6]], dtype=torch.float64)
    slopes = fermi.attribute_slopes(fermi.independence_point(frequencies, 4), frequencies)
    torch.testing.assert_close(slopes, torch.full_like(slopes, 2.0))


def test_equal_opportunity_speaks_of_the_positive_class_alone() -> None:
    y = torch.tensor([0, 1, 2, 1])
    assert fermi.block_of(Independence.EQUAL_OPPORTUNITY, y, 2).tolist() == [-1, -1, 0, -1]
    assert fermi.block_of(Independence.EQUALISED_ODDS, y, 2).tolist() == [0, 1, 2, 1]
    assert fermi.block_of(Independence.DEMOGRAPHIC_PARITY, y, 2).tolist() == [0, 0, 0, 0]


@given(st.integers(0, 10**6), st.floats(1e-3, 10.0))
def test_projection_keeps_every_block_in_its_ball(seed: int, radius: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    deviation = 5 * torch.randn(3, 4, 2, generator=draw, dtype=torch.float64)
    projected = fermi.project_blocks(deviation, radius)
    norms = torch.linalg.vector_norm(projected, dim=(1, 2))
    assert float(norms.max()) <= radius
    within = torch.linalg.vector_norm(deviation, dim=(1, 2)) < radius * 0.999
    torch.testing.assert_close(projected[within], deviation[within])


@pytest.mark.parametrize("penalty", list(FairnessPenalty))
@pytest.mark.parametrize(("groups", "classes"), SIZES)
def test_slopes_are_the_penaltys_differences(groups, classes, penalty) -> None:
    """Along changes of the predictions, which leave the group masses as they are."""
    notion = Independence.EQUALISED_ODDS
    probabilities, s, block = _records(groups, classes, notion)
    blocks, members = notion.blocks(classes), one_hot(s, groups).double()

    def joint(f):
        return fermi.joint_distribution(f, members, block, blocks) / len(s)

    direction = probabilities.flip(0) - probabilities
    step = 1e-6
    up = penalty_value(penalty, joint(probabilities + step * direction), 1e-3)
    down = penalty_value(penalty, joint(probabilities - step * direction), 1e-3)
    slopes = penalty_slopes(penalty, joint(probabilities), 1e-3)
    expected = float((slopes * joint(direction)).sum())
    assert float(up - down) / (2 * step) == pytest.approx(expected, rel=1e-6, abs=1e-10)


def test_the_squared_gap_of_two_groups_is_the_gap_squared() -> None:
    joint = torch.tensor([[[0.3, 0.1], [0.3, 0.3]]], dtype=torch.float64)
    gap = 0.1 / 0.4 - 0.3 / 0.6
    assert float(penalty_value(FairnessPenalty.SQUARED_GAP, joint, 1e-3)) == pytest.approx(gap**2)


def test_fermi_slopes_are_those_of_psi_at_its_best_w() -> None:
    probabilities, s, block = _records(3, 4, Independence.EQUALISED_ODDS)
    members = one_hot(s, 3).double()
    joint = fermi.joint_distribution(probabilities, members, block, 4) / len(s)
    frequencies = _frequencies(s, block, 4, 3)
    w = optimal_w(joint, frequencies)
    expected = fermi.attribute_slopes(w, frequencies) + fermi.common_slopes(w)[:, None, :]
    torch.testing.assert_close(penalty_slopes(FairnessPenalty.FERMI, joint, 1e-6), expected)


@settings(max_examples=50)
@given(st.integers(2, 8), st.floats(0.01, 12.0))
def test_debiased_memberships_are_right_on_average(groups: int, epsilon: float) -> None:
    """The exact expectation over the channel, not a sample."""
    channel = ResponseChannel.of_epsilon(groups, epsilon)
    law = np.full((groups, groups), channel.other)
    np.fill_diagonal(law, channel.keep)
    assert law.sum(axis=1) == pytest.approx(1.0)
    assert channel.keep / channel.other == pytest.approx(np.exp(epsilon), rel=1e-9)
    members = channel.memberships(torch.arange(groups)).numpy()
    assert members.sum(axis=1) == pytest.approx(1.0)
    assert law @ members == pytest.approx(np.eye(groups), abs=1e-9)


def test_without_a_promise_memberships_are_the_truth() -> None:
    members = ResponseChannel.of_epsilon(3, None).memberships(torch.tensor([2, 0]))
    assert members.tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]


def test_a_channel_that_says_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match="say nothing"):
        ResponseChannel(4, 0.25)

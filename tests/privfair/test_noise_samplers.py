"""The discrete Gaussian and Laplace samplers have exactly the probabilities they should have."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare, norm

from calibrate.errors import InvalidInput
from privfair.noise import lattice_sampler
from privfair.noise.lattice_sampler import (
    BAND,
    BlockTable,
    Exponent,
    GaussianExponent,
    LaplaceExponent,
    SecureStream,
    Words,
    block_table,
    discrete_gaussian,
    discrete_laplace,
    exponential_enclosure,
    sample,
    uniform_is_below_exponential,
)

FALSE_ALARM = 1e-7
SCALES = [Fraction(1, 3), Fraction(1, 2), Fraction(1), Fraction(7, 3), Fraction(9), Fraction(100, 3), Fraction(500)]
LAWS = [GaussianExponent, LaplaceExponent]


class SeededStream:
    """A repeatable stream, so that a test decides the same way every time."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def words(self, number: int) -> Words:
        return np.atleast_1d(self._bits.random_raw(number))


def _pooled(expected: np.ndarray) -> np.ndarray:
    """Neighbouring values in cells of at least 50 each: the number of the cell for every value."""
    cell, total, cells = 0, 0.0, []
    for share in expected:
        cells.append(cell)
        total += share
        if total >= 50:
            cell, total = cell + 1, 0.0
    return np.minimum(cells, max(cell - 1, 0))


def _pooled_counts(values: np.ndarray, exponent: Exponent) -> tuple[np.ndarray, np.ndarray]:
    """Observed and expected counts, in cells of at least 50 expected values, the tails pooled."""
    reach = next(y for y in range(1, 10**6) if exponent.exact(y) > 60)
    support = np.arange(-reach, reach + 1)
    weights = np.array([math.exp(-exponent.exact(abs(int(y)))) for y in support])
    expected = values.size * weights / math.fsum(weights)
    observed = np.bincount(np.clip(values, -reach, reach) + reach, minlength=support.size)
    cells = _pooled(expected)
    return np.bincount(cells, observed), np.bincount(cells, expected)


def _p_value(values: np.ndarray, exponent: Exponent) -> float:
    observed, expected = _pooled_counts(values, exponent)
    return float(chisquare(observed, expected * observed.sum() / expected.sum()).pvalue)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_frequencies_match_the_exact_probabilities(law: type, scale: Fraction) -> None:
    exponent = law(scale)
    assert _p_value(sample(block_table(exponent), 1_000_000, SeededStream(7)), exponent) > FALSE_ALARM


@pytest.mark.parametrize("law", LAWS)
def test_the_chi_square_test_notices_a_scale_that_is_one_percent_off(law: type) -> None:
    values = sample(block_table(law(Fraction(101, 10))), 1_000_000, SeededStream(7))
    assert _p_value(values, law(Fraction(10))) < FALSE_ALARM


@pytest.mark.true_noise  # fails by chance with probability 1e-12
@pytest.mark.parametrize("draw", [discrete_gaussian, discrete_laplace])
def test_frequencies_from_the_secure_stream(draw) -> None:  # type: ignore[no-untyped-def]
    exponent = (GaussianExponent if draw is discrete_gaussian else LaplaceExponent)(Fraction(11, 4))
    assert _p_value(draw(300_000, Fraction(11, 4), SecureStream()), exponent) > 1e-12


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(3), Fraction(77, 5), Fraction((1 << 30) + 12345)], ids=str)
def test_rational_arithmetic_alone_gives_the_very_same_values(law: type, scale: Fraction) -> None:
    """A band of width 1 sends every proposal through the exact comparison; not one decision may change."""
    fast = sample(block_table(law(scale)), 3_000, SeededStream(11))
    slow = sample(block_table(law(scale), band=1.0), 3_000, SeededStream(11))
    assert block_table(law(scale), band=1.0).certain.max() == 0
    np.testing.assert_array_equal(fast, slow)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_the_forced_exact_path_has_the_right_frequencies(law: type) -> None:
    exponent = law(Fraction(5, 2))
    assert _p_value(sample(block_table(exponent, band=1.0), 20_000, SeededStream(3)), exponent) > FALSE_ALARM


@pytest.mark.parametrize("scale", [1 << 20, 1 << 30, (1 << 31) - 1, 1 << 40])
def test_a_fine_grid_has_the_continuous_quantiles_and_uniform_low_bits(scale: int) -> None:
    values = discrete_gaussian(400_000, scale, SeededStream(5))
    cells = np.bincount((norm.cdf(values / scale) * 400).astype(int), minlength=400)
    assert chisquare(cells).pvalue > FALSE_ALARM
    assert chisquare(np.bincount(values & 255, minlength=256)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("scale", [1 << 20, 1 << 30, 1 << 40])
def test_a_fine_laplace_grid_has_the_continuous_quantiles(scale: int) -> None:
    values = discrete_laplace(400_000, scale, SeededStream(5))
    cells = np.bincount((np.exp(-np.abs(values) / scale) * 400 * (1 - 1e-12)).astype(int), minlength=400)
    assert chisquare(cells).pvalue > FALSE_ALARM
    assert chisquare([np.sum(values < 0), np.sum(values > 0)]).pvalue > FALSE_ALARM


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [Fraction(1, 2), Fraction(7, 3), Fraction(40), Fraction(333)], ids=str)
def test_tail_blocks_have_the_right_frequencies(law: type, scale: Fraction, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the tail begin at phi = 1 instead of 10, so that a large part of all values is drawn there."""
    monkeypatch.setattr(lattice_sampler, "_TAIL_STARTS_AT", 1)
    table = block_table.__wrapped__(law(scale))
    assert table.exponent.exact(int(table.first[table.tail])) < (4 if scale > 2 else 9)
    assert _p_value(sample(table, 1_000_000, SeededStream(4)), law(scale)) > FALSE_ALARM


def test_the_tail_is_drawn_with_the_right_probability() -> None:
    """Beyond the last block of the table (phi >= 10): about 8 in a million on both sides together."""
    values = np.abs(discrete_gaussian(4_000_000, 1000, SeededStream(1))) / 1000
    start = math.sqrt(20)
    share = 2 * norm.sf(start)
    assert abs((values >= start).sum() - share * values.size) < 6 * math.sqrt(share * values.size)
    beyond = values[values >= 4.0] - 4.0  # straddles body and tail
    expected = (norm.pdf(4.0) / norm.sf(4.0)) - 4.0
    assert abs(beyond.mean() - expected) < 6 * beyond.std() / math.sqrt(beyond.size)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("scale", [*SCALES, Fraction(1 << 30), Fraction((1 << 40) - 1)], ids=str)
def test_the_table_dominates_the_target_and_its_shortcut_is_safe(law: type, scale: Fraction) -> None:
    table = block_table(law(scale))
    width = int(table.position_mask) + 1
    slots = np.bincount(table.block_of_slot, minlength=table.unused + 1)
    unit = {Fraction(int(slots[j])) / table.heights[j] for j in range(table.tail)}
    assert len(unit) == 1  # a block's height is its number of slots, on one common scale
    tail_widening = (1 << table.tail_width_bits) // width
    assert Fraction(int(slots[table.tail])) / table.heights[table.tail] == unit.pop() * 2 * tail_widening
    for block in range(table.tail):
        top = exponential_enclosure(table.exponent.exact(int(table.first[block])), 40)[1]
        bottom = exponential_enclosure(table.exponent.exact(int(table.first[block]) + width - 1), 40)[0]
        assert table.heights[block] >= top
        assert Fraction(int(table.certain[block]), 1 << 53) * table.heights[block] <= bottom
    _assert_tail_halves(table)


def _assert_tail_halves(table: BlockTable) -> None:
    start, width = int(table.first[table.tail]), 1 << table.tail_width_bits
    for halvings in range(6):
        top = exponential_enclosure(table.exponent.exact(start + halvings * width), 40)[1]
        assert table.heights[table.tail] / (1 << halvings) >= top


def test_the_exponential_of_numpy_is_far_more_accurate_than_the_band_needs() -> None:
    points = np.concatenate([np.random.default_rng(2).uniform(0, 60, 3000), np.linspace(0, 1, 500), [700.0, 745.0]])
    worst = 0.0
    for length in (1, 3, points.size):  # scalar and vector code paths
        for start in range(0, points.size - length + 1, max(length * 97, 1)):
            for x, y in zip(points[start : start + length], np.exp(-points[start : start + length]), strict=True):
                middle = sum(exponential_enclosure(Fraction(float(x)), 40)) / 2
                worst = max(worst, abs(float(Fraction(float(y)) - middle)))
    assert worst < BAND / 2**8


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1, 3), Fraction(2), Fraction(123, 10), Fraction(900)])
def test_the_exact_comparison_asks_for_more_bits_until_it_is_sure(exponent: Fraction) -> None:
    """U agrees with exp(-phi) in its first 53 bits; the next word decides."""

    class FixedWords:
        def __init__(self, word: int) -> None:
            self.word = word

        def words(self, number: int) -> Words:
            return np.full(number, self.word, dtype=np.uint64)

    below, _ = exponential_enclosure(exponent, 400)
    if exponent == 0:
        assert uniform_is_below_exponential((1 << 53) - 1, Fraction(1), exponent, FixedWords(0))
        return
    bits = math.floor(below * (1 << 117))
    first, second = bits >> 64, bits & ((1 << 64) - 1)
    assert uniform_is_below_exponential(first, Fraction(1), exponent, FixedWords(max(second - 1, 0)))
    assert not uniform_is_below_exponential(first, Fraction(1), exponent, FixedWords(second + 1))


@pytest.mark.parametrize("exponent", [Fraction(0), Fraction(1), Fraction(10**9, 7), Fraction(1, 10**30)])
def test_enclosures_are_nested_and_tight(exponent: Fraction) -> None:
    coarse, fine = exponential_enclosure(exponent, 30), exponential_enclosure(exponent, 60)
    assert coarse[0] <= fine[0] <= fine[1] <= coarse[1]
    if exponent < 240:
        assert coarse[1] - coarse[0] <= coarse[1] * (exponent + 1) / 10**28


def test_a_scale_so_small_that_all_but_zero_is_hopeless_is_still_decided_at_once() -> None:
    """exp(-phi(1)) = exp(-2^39): the comparison must not try to write that number down."""
    assert not sample(block_table(GaussianExponent(Fraction(1, 1 << 20)), band=1.0), 500, SeededStream(2)).any()


@pytest.mark.parametrize("draw", [discrete_gaussian, discrete_laplace])
def test_shapes_and_refusals(draw) -> None:  # type: ignore[no-untyped-def]
    stream = SecureStream()
    assert draw((3, 0, 2), 5, stream).shape == (3, 0, 2)
    assert draw((), 5, stream).shape == ()
    assert draw((2, 3), Fraction(1, 3), stream).dtype == np.int64
    assert draw(4, np.int64(1 << 40), SeededStream(1)).tolist() == draw(4, 1 << 40, SeededStream(1)).tolist()
    for scale in (0, -1, math.nan, math.inf, 1 << 41, Fraction(1, 1 << 21), "1", True):
        with pytest.raises(InvalidInput):
            draw(3, scale, stream)
    for shape in (-1, (2, -3), 1.5):
        with pytest.raises(InvalidInput, match="shape"):
            draw(shape, 5, stream)

"""Sums over very many records: what floating point does to them, attacked, against exact arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import CheckFailed
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.dp_fedsgd import DpFedSgd
from privfair.algorithms.parts.unit_sums import Layout, Statistics, _clipped_users
from privfair.contribution import RecentRounds
from privfair.fairness.clipping import clipped_losses, sum_of_losses
from privfair.fairness.constraints import RateValue
from privfair.models.exact import Arithmetic, Bits, InDouble
from privfair.models.layers import summed_over_positions
from privfair.models.linear import LogisticRegression
from privfair.models.model import Model, clipped_to
from privfair.models.perceptron import Perceptron
from privfair.plan.sections import GradientOptions
from privfair.rounding import MOST_RECORDS, ROUNDING_SLACK, RunningTotal, blocks_of, sum_in_blocks, terms_per_block
from tests.privfair.steffle_cases import logistic, noisy_values, some_state, steffle_for

UNIT = Fraction(1, 2**53)
MANY = 2**18
CLIP = 0.7


def test_the_slack_pays_for_every_size_that_is_taken() -> None:
    """docs/theorems/exact-contributions.md, points 1 to 4: sums of records, norms, and mixtures of rounds."""
    for records in (1, 4096, 4097, 2**22, 2**24, 2**24 + 1, 10**8, MOST_RECORDS):
        block = terms_per_block(records)
        assert 1 <= block <= 4096
        sums = 2 * records * (block + 5) * UNIT
        assert sums <= Fraction(1, 2**18)
        norms, mixtures = (8_000_000 + 6) * UNIT, 6 * 2**32 * UNIT
        assert sums + norms + mixtures < Fraction(ROUNDING_SLACK)


def test_larger_sums_are_refused() -> None:
    with pytest.raises(CheckFailed, match="is not proved to keep its sensitivity"):
        terms_per_block(MOST_RECORDS + 1)


def test_sums_over_too_many_records_are_not_mixed_across_rounds() -> None:
    """The expanded batch takes no memory: what is refused is refused before any record is looked at."""
    algorithm = DpFedSgd(LogisticRegression(2), GradientOptions(), CLIP, 1.0, strategy=(0.8, 0.5, 0.33))
    label = torch.zeros(1, dtype=torch.long)
    silo, batch = SiloTensors("north", torch.zeros(1, 2), label, label), label.expand(2**31)
    with pytest.raises(CheckFailed, match="mixed over 3 rounds, are not proved to keep their sensitivity"):
        algorithm.contribution(algorithm.start(), 0, silo, batch)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=40), st.booleans())
def test_a_running_total_is_as_exact_as_proved(values: list[float], cancel: bool) -> None:
    given = [*values, *(-value for value in values), values[0] * 1e-17] if cancel else values
    running = RunningTotal(np.zeros(1))
    for value in given:
        running.add(np.array([value]))
    exact, sizes = sum(map(Fraction, given)), sum(abs(Fraction(value)) for value in given)
    assert abs(Fraction(float(running.value[0])) - exact) <= UNIT * abs(exact) + 2 * len(given) * UNIT**2 * sizes


def test_a_running_total_leaves_its_summands_alone() -> None:
    parts = [torch.ones(3, dtype=torch.float64) * size for size in (1.0, 1e-20, -1.0)]
    running = RunningTotal(parts[0])
    running.add(parts[1])
    running.add(parts[2])
    assert running.value.tolist() == [1e-20] * 3
    assert [float(part[0]) for part in parts] == [1.0, 1e-20, -1.0]


def test_every_record_is_in_one_block() -> None:
    for records, block in ((0, 5), (1, 5), (5, 5), (6, 5), (23, 5)):
        covered = [place for rows in blocks_of(records, block) for place in range(records)[rows]]
        assert covered == list(range(records))


# Attacks: batches made so that plain addition goes wrong, and their neighbours, through the package's own code.


def _alike(records: int) -> Floats:
    """All parts at the bound and in one direction: the sum is as large as it can be, and so is every rounding."""
    return np.full(records, 1.1)


def _cancelling(records: int) -> Floats:
    """Half of the parts against the other half: the sum goes far up and comes back, and the errors stay."""
    return np.repeat((1.1, -1.1), (records // 2, records - records // 2))


def _uneven(records: int) -> Floats:
    """Large parts first, then small ones that plain addition would lose, of sizes with all bits set."""
    sizes = 1.0 / 3.0 * 2.0 ** -(np.arange(records) % 40)
    return np.where(np.arange(records) < records // 8, 1.1, sizes)


BATCHES = pytest.mark.parametrize("made", [_alike, _cancelling, _uneven])


def _distance(sums: Callable[[slice], Tensor], records: int, without: int) -> Fraction:
    """The exact distance of the computed sums with and without one record; `sums` takes a run of the records."""
    whole, rest = sums(slice(0, records)).tolist(), sums(slice(without, None)).tolist()
    return _length([Fraction(a) - Fraction(b) for a, b in zip(whole, rest, strict=True)])


def _length(vector: list[Fraction]) -> Fraction:
    square = sum(entry**2 for entry in vector)
    # Rounded up: sqrt of a rational, to 60 digits.
    scale = 10**60
    return Fraction(math.isqrt(int(square * scale**2)) + 1, scale)


@BATCHES
@pytest.mark.parametrize("records", [4097, MANY])
def test_neighbouring_sums_of_a_linear_model(made: Callable[[int], Floats], records: int) -> None:
    """Without the first record every later one moves to another place of another block."""
    model = LogisticRegression(3)
    x = torch.from_numpy(np.outer(made(records), (1.0, 1.0 / 3.0, 0.1)))
    y = torch.zeros(records, dtype=torch.int64)

    def sums(rows: slice) -> Tensor:
        return model.weighted_gradient(model.initial(0), x[rows], y[rows], clipped_to(CLIP)).total

    assert _distance(sums, records, 1) <= Fraction(CLIP)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("features", [1, 3, 8, 33, 85, 130])
def test_a_record_of_a_linear_model_is_computed_alike_in_every_batch(features: int, dtype: torch.dtype) -> None:
    """To the last bit, whatever its place and whoever else is there; a matrix product does not keep that."""
    generator = torch.Generator().manual_seed(features)
    x = torch.randn(257, features, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randint(0, 2, (257,), generator=generator)
    theta = torch.randn(features + 1, generator=generator, dtype=torch.float64)
    model = LogisticRegression(features)
    whole = model.weighted_gradient(theta, x, y, clipped_to(CLIP))
    for first, last in ((0, 1), (1, 257), (3, 20), (101, 103), (256, 257)):
        some = model.weighted_gradient(theta, x[first:last].clone(), y[first:last], clipped_to(CLIP))
        for name in ("losses", "norms", "coefficients"):
            assert torch.equal(getattr(some, name), getattr(whole, name)[first:last])


def test_the_attack_finds_a_sloppy_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same batch, its blocks added up in single precision: neighbours are further apart than was signed."""
    model, y = LogisticRegression(3), torch.zeros(MANY, dtype=torch.int64)
    x = torch.from_numpy(np.outer(_uneven(MANY), (1.0, 1.0 / 3.0, 0.1)))

    def sloppy(records: int, sum_of: Callable[[slice], Floats]) -> Floats:
        total = np.zeros(4, dtype=np.float32)
        for rows in blocks_of(records, 64):
            total += sum_of(rows).astype(np.float32)
        return total.astype(np.float64)

    def sums(rows: slice) -> Tensor:
        return model.weighted_gradient(model.initial(0), x[rows], y[rows], clipped_to(CLIP)).total

    monkeypatch.setattr("privfair.models.linear.sum_in_blocks", sloppy)
    assert _distance(sums, MANY, 1) > Fraction(CLIP)


@BATCHES
def test_a_sum_is_as_far_off_as_proved(made: Callable[[int], Floats]) -> None:
    """Against exact rational arithmetic, n (b + 4) u C; far from reached, and far below what plain addition may do."""
    model = LogisticRegression(1)
    x = torch.from_numpy(made(MANY))[:, None]
    found = model.weighted_gradient(model.initial(0), x, torch.zeros(MANY, dtype=torch.int64), clipped_to(CLIP))
    factors = found.coefficients.numpy() * 0.5  # at theta = 0 every residual is 1/2
    bound = MANY * (terms_per_block(MANY) + 4) * UNIT * Fraction(CLIP)
    # The gradient of the score: each feature as the model uses it, on its grid.
    used = model.score_gradients(model.initial(0), x, torch.tensor([[0.0, 1.0]]).expand(MANY, 2))[:, 0]
    assert abs(Fraction(float(found.total[0])) - _exact_dot(factors, used.numpy())) <= bound
    assert abs(Fraction(float(found.total[1])) - _exact_dot(factors, np.ones(MANY))) <= bound


def _exact_dot(left: Floats, right: Floats) -> Fraction:
    """sum_i left_i right_i in whole numbers: numbers above 2^-400 are multiples of 2^-453."""
    (of_left, shift_left), (of_right, shift_right) = np.frexp(left), np.frexp(right)
    numerators = zip((of_left * 2.0**53).astype(int).tolist(), (of_right * 2.0**53).astype(int).tolist(), strict=True)
    shifts = (shift_left + shift_right + 800).tolist()
    return Fraction(sum((a * b) << shift for (a, b), shift in zip(numerators, shifts, strict=True)), 2**906)


MODELS: dict[str, tuple[Model, torch.dtype]] = {
    "softmax": (LogisticRegression(3, 3), torch.float64),
    "softmax, single precision": (LogisticRegression(3, 3), torch.float32),
    "perceptron": (Perceptron(3, (4,), bits=Bits.LARGEST), torch.float64),
    "perceptron of 13 bits": (Perceptron(3, (4,)), torch.float64),
    "perceptron of 7 bits": (Perceptron(3, (4,), bits=Bits.SEVEN), torch.float32),
}


@BATCHES
@pytest.mark.parametrize("name", MODELS)
def test_neighbouring_sums_of_other_models(name: str, made: Callable[[int], Floats]) -> None:
    """Records of one direction and many sizes, in more than one block."""
    (model, dtype), records = MODELS[name], 9_001
    direction = torch.linspace(0.3, 1.0, 3, dtype=torch.float64)
    x, y = (torch.from_numpy(made(records))[:, None] * direction).to(dtype), torch.zeros(records, dtype=torch.int64)
    theta = model.initial(1)

    def sums(rows: slice) -> Tensor:
        return model.weighted_gradient(theta, x[rows], y[rows], clipped_to(CLIP)).total

    assert _distance(sums, records, 1) <= Fraction(CLIP)


def test_blocks_are_added_up_as_one_sum_would_be() -> None:
    """Whatever is cut where: the blocked sum is that of all records."""
    for model, dtype in MODELS.values():
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(9_001, 3, generator=generator, dtype=torch.float64).to(dtype)
        y = torch.randint(0, model.classes, (9_001,), generator=generator)
        theta = model.initial(1)
        whole = model.weighted_gradient(theta, x, y, clipped_to(CLIP)).total
        parts = [model.weighted_gradient(theta, x[i::3], y[i::3], clipped_to(CLIP)).total for i in range(3)]
        torch.testing.assert_close(whole, parts[0] + parts[1] + parts[2], rtol=1e-10, atol=1e-10)
        coefficients = torch.randn(9_001, model.classes, generator=generator, dtype=torch.float64)
        pulled = model.probability_gradient(theta, x, coefficients)
        parts = [model.probability_gradient(theta, x[i::3], coefficients[i::3]) for i in range(3)]
        torch.testing.assert_close(pulled, parts[0] + parts[1] + parts[2], rtol=1e-10, atol=1e-10)


# Nets of 7 or 13 bits keep more: their clipped sums do not round at all.

EXACT_NETS = {bits: Perceptron(3, (4,), bits=bits) for bits in (Bits.SEVEN, Bits.THIRTEEN)}


@BATCHES
@pytest.mark.parametrize("bits", EXACT_NETS)
def test_neighbouring_sums_of_a_net_differ_by_exactly_what_the_record_adds(
    made: Callable[[int], Floats], bits: Bits
) -> None:
    """Whichever record is left out, and wherever the others then come to lie."""
    model, records = EXACT_NETS[bits], 9_001
    x = torch.from_numpy(np.outer(made(records), (1.0, 1.0 / 3.0, -0.1)))
    y, theta = torch.arange(records) % 2, model.initial(1) * 3

    def summed(rows: Tensor) -> Tensor:
        return model.weighted_gradient(theta, x[rows], y[rows], clipped_to(CLIP)).total

    everybody = torch.arange(records)
    whole = summed(everybody)
    for record in (0, 1, 4095, 4096, 5000, records - 1):
        alone = summed(torch.tensor([record]))
        assert 0 < _length([Fraction(entry) for entry in alone.tolist()]) <= Fraction(CLIP)
        assert torch.equal(whole - summed(everybody[everybody != record]), alone)


@pytest.mark.parametrize("bits", EXACT_NETS)
def test_the_order_of_records_does_not_move_a_nets_sum(bits: Bits) -> None:
    model, records = EXACT_NETS[bits], 9_001
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(records, 3, generator=generator, dtype=torch.float64)
    y, theta = torch.randint(0, 2, (records,), generator=generator), model.initial(1) * 3
    whole = model.weighted_gradient(theta, x, y, clipped_to(CLIP)).total
    for order in (torch.randperm(records, generator=generator), torch.arange(records).flip(0)):
        turned = model.weighted_gradient(theta, x[order], y[order], clipped_to(CLIP)).total
        assert torch.equal(turned, whole)


def test_the_attack_finds_a_net_whose_sum_rounds() -> None:
    """The same law does not hold for float64 sums of as many bits as fit: so it is the exact sum that keeps it."""
    model, records = Perceptron(3, (4,), bits=Bits.LARGEST), 9_001
    x = torch.from_numpy(np.outer(_uneven(records), (1.0, 1.0 / 3.0, -0.1)))
    y, theta = torch.arange(records) % 2, model.initial(1) * 3
    whole, rest, alone = (
        model.weighted_gradient(theta, x[rows], y[rows], clipped_to(CLIP)).total
        for rows in (slice(0, None), slice(1, None), slice(0, 1))
    )
    torch.testing.assert_close(whole - rest, alone, rtol=1e-9, atol=1e-9)
    assert not torch.equal(whole - rest, alone)


@pytest.mark.parametrize("bits", [Bits.SEVEN, Bits.THIRTEEN])
def test_positions_that_cancel_are_added_without_rounding(bits: Bits) -> None:
    """Two positions of a million that leave one: neighbouring sums still differ by exactly the record's part."""
    records, arithmetic = 2**14, Arithmetic(int(bits.value), InDouble())
    left = torch.full((records, 2, 1), 1e6, dtype=torch.float64)
    right = torch.full((records, 2, 1), 1.0 / 3.0, dtype=torch.float64)
    right[:, 1] = -right[:, 1] * (1 - torch.linspace(0.02, 0.3, records, dtype=torch.float64)[:, None])
    a, d = (arithmetic.grid(values.to(arithmetic.dtype)) for values in (left, right))

    def summed(rows: slice) -> Tensor:
        part = summed_over_positions(arithmetic, a[rows], d[rows], bias=False)
        norms, total = part.squared_norms(True).sqrt(), torch.zeros(1, 1, dtype=torch.float64)
        part.add([total], clipped_to(CLIP)(norms, norms), CLIP)
        return total

    alone = summed(slice(0, 1))
    assert 0.99 * CLIP < float(alone) <= CLIP
    assert torch.equal(summed(slice(0, records)) - summed(slice(1, records)), alone)


@BATCHES
def test_neighbouring_sums_of_losses(made: Callable[[int], Floats]) -> None:
    losses = clipped_losses(torch.from_numpy(np.abs(made(MANY))), 0.6, CLIP)
    exact = math.fsum(losses.tolist())
    assert abs(sum_of_losses(losses) - exact) <= MANY * 4101 * 2.0**-53 * CLIP
    assert Fraction(sum_of_losses(losses)) - Fraction(sum_of_losses(losses[1:])) <= Fraction(CLIP)


@BATCHES
def test_neighbouring_sums_of_users(made: Callable[[int], Floats]) -> None:
    """FPFL's vectors, and those of the fair plug-in, one user per record."""
    records = 2**15
    x = torch.from_numpy(made(records))[:, None] * torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    y = torch.zeros(records, dtype=torch.int64)
    statistics = Statistics(LogisticRegression(2), Layout(3, 0, 0), (), RateValue.PREDICTIONS)

    def summed(rows: slice) -> Tensor:
        silo = SiloTensors("", x[rows], y[rows], y[rows])
        return statistics.summed(torch.zeros(3, dtype=torch.float64), silo, torch.arange(len(silo)), CLIP)[0]

    def plugged(rows: slice) -> Tensor:
        return torch.from_numpy(_clipped_users("counts", x[rows], CLIP).values)

    assert _distance(summed, records, 1) <= Fraction(CLIP)
    assert _distance(plugged, records, 1) <= Fraction(CLIP)


def test_replaced_attributes_of_steffle() -> None:
    """h_W: predictions add up exactly, so that a replaced attribute moves nothing but its own two rows."""
    records, classes = 2**16, 3
    algorithm = steffle_for(logistic(2, classes), 2, batch_size=records, frequencies=(0.5, 0.5), w_radius=0.4)
    state = some_state(algorithm)
    x = torch.from_numpy(np.outer(_uneven(records), (40.0, -1.0 / 3.0)))
    y, s = torch.zeros(records, dtype=torch.int64), torch.arange(records) % 2
    replaced = s.clone()
    replaced[5] = 1 - replaced[5]
    everybody = torch.arange(records)
    sent = [
        noisy_values(algorithm.contribution(state, 3, SiloTensors("north", x, y, groups), everybody))
        for groups in (s, replaced)
    ]
    for name, bound in (("h_theta", algorithm.bounds.h_theta), ("h_W", algorithm.bounds.h_w)):
        pairs = zip(sent[0][name].reshape(-1).tolist(), sent[1][name].reshape(-1).tolist(), strict=True)
        assert 0 < _length([Fraction(a) - Fraction(b) for a, b in pairs]) <= Fraction(bound)


def test_mixed_rounds_are_added_exactly() -> None:
    """The mixture of many rounds rounds each product once, and its sum twice, however many there are."""
    strategy = tuple(0.9**place for place in range(200))
    vectors = [np.array([(-1.0) ** place * 2.0**40 / 3.0]) for place in range(200)]
    rounds = RecentRounds(strategy, 198, [vector.copy() for vector in vectors[:199]])
    mixed = rounds.mix(199, vectors[199])
    terms = [Fraction(c) * Fraction(float(v[0])) for c, v in zip(strategy, reversed(vectors), strict=True)]
    assert abs(Fraction(float(mixed[0])) - sum(terms)) <= 3 * UNIT * sum(map(abs, terms))


def test_sums_of_little_are_as_they_were() -> None:
    """One block is one call, so small batches keep their speed."""
    asked: list[slice] = []

    def sum_of(rows: slice) -> Floats:
        asked.append(rows)
        return np.zeros(1)

    sum_in_blocks(4096, sum_of)
    assert asked == [slice(0, 4096)]
    sum_in_blocks(4097, sum_of)
    assert asked[1:] == [slice(0, 4096), slice(4096, 8192)]

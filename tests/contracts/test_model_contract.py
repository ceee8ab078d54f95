"""What every model guarantees: its weighted gradient is the sum of weighted autograd gradients, clipped or not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from audit.probes.isolation import influence_of_others
from privfair.models.model import clipped_after, clipped_to, mean_over
from tests.contracts.model_cases import BY_NAME, CASES, ModelCase, model_of

RELATIVE = 1e-5
"""At the largest number of bits: 20 to 26 of each factor."""
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
every_real_case = pytest.mark.parametrize(
    "case", [case for case in CASES if not case.tokens], ids=lambda case: case.name
)


def gradients_alone(case: ModelCase, theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """By autograd through torch's own layers, each record alone: gradients (records, size) and losses."""
    rows, losses = [], []
    for record, label in zip(x, y, strict=True):
        leaf = theta.clone().requires_grad_()
        loss = functional.cross_entropy(case.reference(leaf, record[None]), label[None])
        rows.append(torch.autograd.grad(loss, leaf)[0])
        losses.append(loss.detach())
    return torch.stack(rows), torch.stack(losses)


@every_case
@pytest.mark.parametrize("records", [1, 6])
def test_weighted_gradient_is_the_weighted_sum(case: ModelCase, records: int) -> None:
    model, theta = model_of(case.name), case.theta()
    x, y = case.records(records, seed=1)
    alone, losses = gradients_alone(case, theta, x, y)
    weights = torch.linspace(-2.0, 3.0, records, dtype=torch.float64)
    seen: list[tuple[Tensor, Tensor]] = []

    def weigh(norms: Tensor, of_losses: Tensor) -> Tensor:
        seen.append((norms.clone(), of_losses.clone()))
        return weights

    found = model.weighted_gradient(theta, x, y, weigh)
    expected = weights @ alone
    scale = (weights.abs()[:, None] * alone).norm(dim=1).sum()
    assert (found.total - expected).norm() <= RELATIVE * scale
    torch.testing.assert_close(found.norms, alone.norm(dim=1), rtol=RELATIVE, atol=1e-9)
    torch.testing.assert_close(found.losses, losses, rtol=RELATIVE, atol=RELATIVE)
    assert torch.equal(seen[-1][0], found.norms)
    assert torch.equal(seen[-1][1], found.losses)
    assert {value.dtype for value in (found.total, found.norms, found.losses, found.coefficients)} == {torch.float64}


@every_case
def test_probability_gradient_and_norms_are_autograds(case: ModelCase) -> None:
    model, theta = model_of(case.name), case.theta()
    x, _ = case.records(4, seed=2)
    generator = torch.Generator().manual_seed(3)
    coefficients = torch.randn(4, model.classes, generator=generator, dtype=torch.float64)
    directions = torch.randn(3, model.classes, generator=generator, dtype=torch.float64)

    leaf = theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad((torch.softmax(case.reference(leaf, x), dim=1) * coefficients).sum(), leaf)
    found = model.probability_gradient(theta, x, coefficients)
    torch.testing.assert_close(found, expected, rtol=RELATIVE, atol=RELATIVE * float(expected.norm()))

    norms = torch.zeros(4, 3, dtype=torch.float64)
    for i in range(4):
        for j, v in enumerate(directions):
            probabilities = torch.softmax(case.reference(leaf, x[i : i + 1])[0], dim=0)
            norms[i, j] = torch.autograd.grad((probabilities * v).sum(), leaf)[0].norm()
    torch.testing.assert_close(model.probability_norms(theta, x, directions), norms, rtol=RELATIVE, atol=1e-6)


@every_case
def test_score_gradients_are_autograds(case: ModelCase) -> None:
    model, theta = model_of(case.name), case.theta()
    x, _ = case.records(4, seed=6)
    in_scores = torch.randn(4, model.classes, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    found = model.score_gradients(theta, x, in_scores)
    for i in range(4):
        leaf = theta.clone().requires_grad_()
        (expected,) = torch.autograd.grad((case.reference(leaf, x[i : i + 1])[0] * in_scores[i]).sum(), leaf)
        torch.testing.assert_close(found[i], expected, rtol=0, atol=RELATIVE * float(expected.norm()))


@every_case
def test_scores_are_differentiable_in_theta_and_features(case: ModelCase) -> None:
    model, theta = model_of(case.name), case.theta()
    x, _ = case.records(3, seed=6)
    in_scores = torch.randn(3, model.classes, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    leaves = [theta.clone().requires_grad_(), *([] if case.tokens else [x.clone().requires_grad_()])]
    expected, found = (
        torch.autograd.grad((scores(*leaves, *([x] if case.tokens else [])) * in_scores).sum(), leaves)
        for scores in (case.reference, model.logits)
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=RELATIVE * float(theirs.norm()))


@every_case
def test_no_records_give_a_zero_vector(case: ModelCase) -> None:
    model, theta = model_of(case.name), case.theta()
    x, y = case.records(2, seed=4)
    for weigh in (clipped_to(1.0), mean_over(8), clipped_after(lambda losses: losses - 1.0, 1.0)):
        found = model.weighted_gradient(theta, x[:0], y[:0], weigh)
        assert found.total.shape == (model.size,)
        assert found.total.dtype == torch.float64
        assert not found.total.any()
        assert found.largest_part == 0.0
    assert not model.probability_gradient(theta, x[:0], torch.zeros(0, model.classes)).any()
    assert model.probability_norms(theta, x[:0], torch.eye(model.classes)).shape == (0, model.classes)
    assert model.logits(theta, x[:0]).shape == (0, model.classes)


@every_case
def test_scores_of_a_batch_are_the_scores_of_its_records(case: ModelCase) -> None:
    model, theta = model_of(case.name), case.theta()
    x, _ = case.records(5, seed=5)
    apart = torch.cat([model.logits(theta, record[None]) for record in x])
    assert torch.equal(model.logits(theta, x), apart)
    torch.testing.assert_close(apart, case.reference(theta, x), rtol=0, atol=RELATIVE * float(apart.abs().max()))
    torch.testing.assert_close(model.probabilities(theta, x), torch.softmax(apart, dim=1), rtol=0, atol=1e-12)


@every_case
def test_start_depends_on_the_seed_alone(case: ModelCase) -> None:
    model = model_of(case.name)
    before = torch.random.get_rng_state()
    first = model.initial(7)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(99)
    assert torch.equal(first, model.initial(7))
    assert torch.equal(first, case.build().initial(7))
    assert first.dtype == torch.float64
    assert first.shape == (model.size,)


@every_case
def test_calls_change_nothing_and_repeat(case: ModelCase) -> None:
    model, theta = model_of(case.name), case.theta()
    x, y = case.records(4, seed=8)
    kept = theta.clone(), x.clone(), y.clone()
    first = model.weighted_gradient(theta, x, y, clipped_to(0.1))
    model.probability_norms(theta, x, torch.eye(model.classes, dtype=torch.float64))
    again = model.weighted_gradient(theta, x, y, clipped_to(0.1))
    assert torch.equal(first.total, again.total)
    assert all(torch.equal(now, then) for now, then in zip((theta, x, y), kept, strict=True))


@every_case
def test_named_parameters_are_views(case: ModelCase) -> None:
    model, theta = model_of(case.name), case.theta()
    named = model.named_parameters(theta)
    assert sum(value.numel() for value in named.values()) == model.size
    for value in named.values():
        value.zero_()
    assert not theta.any()


@every_case
def test_no_record_influences_another(case: ModelCase) -> None:
    model, theta = model_of(case.name), case.theta()
    assert influence_of_others(model, theta, case.records(5, seed=9), case.records(5, seed=10)) == 0.0


@every_real_case
def test_the_type_of_the_features_does_not_matter(case: ModelCase) -> None:
    model, theta = model_of(case.name), case.theta()
    x, y = case.records(6, seed=11, dtype=torch.float32)
    exact = model.weighted_gradient(theta, x.double(), y, clipped_to(0.5))
    found = model.weighted_gradient(theta, x, y, clipped_to(0.5))
    assert found.total.dtype == found.norms.dtype == torch.float64
    for name in ("total", "norms", "losses", "coefficients"):
        assert torch.equal(getattr(found, name), getattr(exact, name))


@every_real_case
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_records_that_are_not_finite_add_nothing(case: ModelCase, bad: float) -> None:
    model, theta = model_of(case.name), case.theta()
    x, y = case.records(4, seed=12)
    x.flatten(1)[2, 0] = bad
    found = model.weighted_gradient(theta, x, y, clipped_to(1.0))
    rest = torch.tensor([0, 1, 3])
    without = model.weighted_gradient(theta, x[rest], y[rest], clipped_to(1.0))
    assert float(found.norms[2]) == float(found.losses[2]) == 0.0
    assert torch.equal(found.norms[rest], without.norms)
    torch.testing.assert_close(found.total, without.total, rtol=0, atol=1e-14)


@every_case
def test_coefficients_that_are_not_finite_are_zero(case: ModelCase) -> None:
    model, theta = model_of(case.name), case.theta()
    x, y = case.records(4, seed=13)
    found = model.weighted_gradient(theta, x, y, lambda norms, losses: torch.tensor([1.0, float("nan"), 0.0, 1e400]))
    assert found.coefficients.tolist() == [1.0, 0.0, 0.0, 0.0]


REAL_NAMES = tuple(case.name for case in CASES if not case.tokens)


@st.composite
def batches(draw: st.DrawFn) -> tuple[ModelCase, Tensor, Tensor, Tensor, float]:
    """A model, parameters and records of wild sizes, some of them zero or repeated; float32 and float64."""
    case = BY_NAME[draw(st.sampled_from(REAL_NAMES))]
    dtype = draw(st.sampled_from((torch.float32, torch.float64)))
    number = draw(st.integers(1, 5))
    x, y = case.records(number, seed=draw(st.integers(0, 2**16)), dtype=dtype)
    largest = 12 if dtype == torch.float32 else 60
    sizes = draw(st.lists(st.integers(-largest, largest), min_size=number, max_size=number))
    kept = draw(st.lists(st.sampled_from((0.0, 1.0, 1.0)), min_size=number, max_size=number))
    factors = torch.tensor([keep * 10.0**size for keep, size in zip(kept, sizes, strict=True)], dtype=dtype)
    x = x * factors.reshape(-1, *(1,) * len(case.shape))
    theta = case.theta(draw(st.integers(0, 3))) * 10.0 ** draw(st.integers(-6, 3))
    return case, theta, x, y, 10.0 ** draw(st.integers(-8, 8))


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(-3, 3))
def test_no_part_is_longer_than_the_bound(
    given_batch: tuple[ModelCase, Tensor, Tensor, Tensor, float], factor: int
) -> None:
    """Every part, formed alone, keeps the bound exactly."""
    case, theta, x, y, bound = given_batch
    model = model_of(case.name)
    for weigh in (clipped_to(bound), clipped_after(lambda losses: factor * (losses - 1.0), bound)):
        found = model.weighted_gradient(theta, x, y, weigh)
        assert found.largest_part <= bound
        assert torch.isfinite(found.total).all()
        for i in range(len(x)):
            part = model.weighted_gradient(theta, x[i : i + 1], y[i : i + 1], weigh).total
            assert float(torch.linalg.vector_norm(part)) <= bound


@settings(max_examples=60, deadline=None)
@given(batches())
def test_removing_a_record_moves_the_sum_by_at_most_the_bound(
    given_batch: tuple[ModelCase, Tensor, Tensor, Tensor, float],
) -> None:
    """What the sum's rounding may add is inside the slack of the clip."""
    case, theta, x, y, bound = given_batch
    model = model_of(case.name)
    whole = model.weighted_gradient(theta, x, y, clipped_to(bound)).total
    without = model.weighted_gradient(theta, x[1:], y[1:], clipped_to(bound)).total
    assert float(torch.linalg.vector_norm(whole - without)) <= bound


@every_case
def test_clipping_leaves_short_gradients_alone(case: ModelCase) -> None:
    model, theta = model_of(case.name), case.theta()
    x, y = case.records(5, seed=14)
    free = model.weighted_gradient(theta, x, y, lambda norms, losses: torch.ones_like(norms))
    bound = 2.0 * float(free.norms.max())
    assert torch.equal(model.weighted_gradient(theta, x, y, clipped_to(bound)).total, free.total)
    middle = float(free.norms.median())
    clipped = model.weighted_gradient(theta, x, y, clipped_to(middle))
    assert (clipped.coefficients < 1).sum() in (2, 3)
    assert 0.99998 * middle <= clipped.largest_part <= middle

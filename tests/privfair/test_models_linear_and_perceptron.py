"""The hand-written models against torch's own layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from calibrate.errors import InvalidInput
from privfair.models.exact import Bits
from privfair.models.linear import LogisticRegression
from privfair.models.model import Activation, WeightedGradient, clipped_after, clipped_to, mean_over
from privfair.models.perceptron import Perceptron

GENERATOR = torch.Generator().manual_seed(5)


@pytest.mark.parametrize("activation", Activation)
def test_perceptron_is_the_module_it_exports(activation: Activation) -> None:
    model = Perceptron(5, (7, 4), 3, activation, Bits.LARGEST)
    theta = model.initial(1)
    x = torch.randn(6, 5, dtype=torch.float64)
    module = model.as_module(theta)
    assert [type(layer) for layer in module[1::2]] == [
        {Activation.RELU: nn.ReLU, Activation.TANH: nn.Tanh}[activation]
    ] * 2
    torch.testing.assert_close(module(x), model.logits(theta, x), rtol=0, atol=1e-6)
    y = torch.randint(0, 3, (6,))
    functional.cross_entropy(module(x), y).backward()
    expected = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])
    found = model.weighted_gradient(theta, x, y, mean_over(6)).total
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_perceptron_starts_like_torchs_linear_layers() -> None:
    model = Perceptron(400, (100,), 2)
    named = model.named_parameters(model.initial(0))
    torch_layer = nn.Linear(400, 100)
    for name in ("weight", "bias"):
        mine, theirs = named[f"0.{name}"], getattr(torch_layer, name).detach()
        assert mine.abs().max() <= 1 / 20
        assert float(mine.std()) == pytest.approx(float(theirs.std()), rel=0.15)
    assert not torch.equal(model.initial(0), model.initial(1))


@pytest.mark.parametrize("classes", [2, 3])
def test_logistic_regression_is_a_linear_layer(classes: int) -> None:
    model = LogisticRegression(4, classes)
    theta = torch.randn(model.size, dtype=torch.float64, generator=GENERATOR)
    x = torch.randn(6, 4, dtype=torch.float64, generator=GENERATOR)
    named = model.named_parameters(theta)
    scores = functional.linear(x, named["weight"], named["bias"])
    expected = torch.cat((torch.zeros(6, 1, dtype=torch.float64), scores), dim=1) if classes == 2 else scores
    torch.testing.assert_close(model.logits(theta, x), expected)
    if classes == 2:
        torch.testing.assert_close(model.probabilities(theta, x)[:, 1], torch.sigmoid(scores[:, 0]))


@pytest.mark.parametrize("size", [1.0, 2.0**-95, 1e4])
def test_the_step_of_softmax_regression_has_the_bits_of_its_network(size: float) -> None:
    """Records that are not finite, rows close to zero and parameters beyond the clamp included."""
    generator = torch.Generator().manual_seed(7)
    model = LogisticRegression(5, 4)
    x = torch.randn(70, 5, dtype=torch.float64, generator=generator) * size
    x[3, 1], x[4] = torch.nan, 0.0
    theta = torch.randn(model.size, dtype=torch.float64, generator=generator) / min(size, 1.0)
    y = torch.randint(0, 4, (70,), generator=generator)
    for weigh in (clipped_to(0.5), clipped_after(lambda losses: 1.0 + (losses - 1.0), 0.5), mean_over(70)):
        found = model.weighted_gradient(theta, x, y, weigh)
        network = super(LogisticRegression, model).weighted_gradient(theta, x, y, weigh)
        for own, other in zip(
            (found.total, found.norms, found.losses, found.coefficients),
            (network.total, network.norms, network.losses, network.coefficients),
            strict=True,
        ):
            assert torch.equal(own, other)


@pytest.mark.parametrize("score", [50.0, 800.0, 1e6])
def test_two_class_losses_and_gradients_survive_extreme_scores(score: float) -> None:
    """Right and wrong with great certainty: neither overflow nor cancellation."""
    model = LogisticRegression(1)
    x, y = torch.tensor([[score], [score]], dtype=torch.float64), torch.tensor([0, 1])
    theta = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = model.weighted_gradient(theta, x, y, clipped_to(1.0))
    assert float(found.losses[0]) == pytest.approx(score, rel=1e-12)
    assert 0 <= float(found.losses[1]) <= 2e-17
    assert found.largest_part <= 1.0
    assert float(found.norms[1]) <= 51 * 2e-22
    assert torch.isfinite(found.total).all()


def test_a_record_without_gradient_keeps_its_weight_and_adds_nothing() -> None:
    model = LogisticRegression(1)
    x, y = torch.tensor([[900.0]], dtype=torch.float64), torch.tensor([1])
    found = model.weighted_gradient(torch.tensor([1.0, 0.0], dtype=torch.float64), x, y, clipped_to(1.0))
    assert 0 <= float(found.norms[0]) <= 1e-290
    assert found.coefficients.tolist() == [1.0]
    assert float(found.total.abs().max()) <= 1e-290


def test_labels_are_not_written_to() -> None:
    model = LogisticRegression(2)
    y = torch.tensor([0, 1])
    model.weighted_gradient(model.initial(0), torch.ones(2, 2), y, clipped_to(1.0))
    assert y.tolist() == [0, 1]


def test_largest_part_takes_the_size_of_negative_weights() -> None:
    norms = torch.tensor([1.0, 2.0])
    found = WeightedGradient(torch.zeros(1), norms, norms, torch.tensor([0.5, -3.0]))
    assert found.largest_part == 6.0


@pytest.mark.parametrize("label", [3, -1, -100])
@pytest.mark.parametrize("model", [LogisticRegression(2), LogisticRegression(2, 3), Perceptron(2, (3,))])
def test_labels_out_of_range_are_not_ignored(model: LogisticRegression | Perceptron, label: int) -> None:
    """torch's own loss skips the label -100; here every label counts."""
    x, y = torch.ones(2, 2), torch.tensor([0, label])
    with pytest.raises(InvalidInput, match=r"must be (a )?class .*0"):
        model.weighted_gradient(model.initial(0), x, y, clipped_to(1.0))


@pytest.mark.parametrize(
    "build",
    [
        lambda: LogisticRegression(0),
        lambda: LogisticRegression(3, 1),
        lambda: Perceptron(3, ()),
        lambda: Perceptron(3, [4]),  # type: ignore[arg-type]
        lambda: Perceptron(3, (4, 0)),
        lambda: Perceptron(3, (4,), 1),
    ],
)
def test_impossible_sizes_are_refused(build: object) -> None:
    with pytest.raises(InvalidInput):
        build()  # type: ignore[operator]


def test_many_records_are_summed_in_blocks_as_at_once() -> None:
    """More rows than become float64 at a time: total and norms are those of the plain formulas."""
    generator = torch.Generator().manual_seed(5)
    x, y = torch.randn(700, 6, generator=generator), torch.randint(0, 3, (700,), generator=generator)
    model = LogisticRegression(6, classes=3)
    theta = torch.randn(model.size, generator=generator, dtype=torch.float64)
    found = model.weighted_gradient(theta, x, y, clipped_to(0.7))
    wide = torch.cat((x.double(), torch.ones(700, 1, dtype=torch.float64)), dim=1)
    scores = (wide.float() @ theta.float().reshape(7, 3)).double()
    residual = torch.softmax(scores, dim=1) - torch.nn.functional.one_hot(y, 3)
    norms = residual.norm(dim=1) * wide.norm(dim=1)
    torch.testing.assert_close(found.norms, norms, rtol=1e-5, atol=1e-6)
    total = wide.T @ (residual * (0.7 / norms).clamp_max(1.0)[:, None])
    torch.testing.assert_close(found.total, total.flatten(), rtol=1e-4, atol=1e-4)

"""Modules whose records influence one another, or that could, are refused before they see data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from calibrate.errors import InvalidInput, UnsupportedCombination
from privfair.algorithms.algorithm import SiloTensors
from privfair.algorithms.fair_plugin import Clips, FairPlugin, FairPluginOptions
from privfair.algorithms.parts.user_statistics import HITS, RECORDS, Layout, Statistics
from privfair.fairness.constraints import Rate, RateValue
from privfair.models.linear import LogisticRegression
from privfair.models.model import clipped_to, predict_each_alone
from privfair.models.record_isolation import influence_of_others, made_up_records
from privfair.models.torch_module import TorchModule

IMAGES = made_up_records((2, 4, 4))
ROWS = made_up_records((4,))


class Function(nn.Module):
    """A linear layer, then a function, then another."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.first, self.function, self.last = nn.Linear(4, 4), function, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


class Tupled(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 3)

    def forward(self, x: Tensor) -> object:
        return super().forward(x), x


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (nn.BatchNorm2d(2), "BatchNorm2d at 0.*GroupNorm"),
        (nn.SyncBatchNorm(2), "SyncBatchNorm at 0.*GroupNorm"),
        (nn.BatchNorm2d(2).eval(), "BatchNorm2d at 0.*GroupNorm"),
        (nn.InstanceNorm2d(2, track_running_stats=True), "InstanceNorm2d at 0.*track_running_stats=False"),
        (nn.Dropout(0.5), "Dropout at 0.*remove it"),
        (nn.Dropout2d(0.1), "Dropout2d at 0.*remove it"),
        (nn.AlphaDropout(0.1), "AlphaDropout at 0.*remove it"),
        (nn.RReLU(), "RReLU at 0.*remove it"),
        (nn.LazyConv2d(2, 1), "LazyConv2d at 0.*no sizes yet"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_refused_by_name(layer: nn.Module, says: str) -> None:
    build = lambda: nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 3))  # noqa: E731
    with pytest.raises(InvalidInput, match=says):
        TorchModule(build, IMAGES)


@pytest.mark.parametrize(
    "layer",
    [nn.GroupNorm(1, 2), nn.InstanceNorm2d(2, affine=True), nn.Dropout(0.0), nn.LocalResponseNorm(2)],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_that_keep_records_apart_pass(layer: nn.Module) -> None:
    model = TorchModule(lambda: nn.Sequential(layer, nn.Flatten(), nn.Linear(32, 3)), IMAGES)
    x, y = made_up_records((2, 4, 4), 4), torch.tensor([0, 1, 2, 0])
    assert influence_of_others(model, model.initial(0), (x, y), (3 * x - 1, y)) <= 1e-12


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(dim=0),
        lambda x: torch.softmax(x, dim=0),
        lambda x: x.cumsum(dim=0),
        lambda x: x.sort(dim=0).values,
        lambda x: x / x.norm(),
        lambda x: x + x.flip(0),
        lambda x: x + 1e-4 * x.roll(1, dims=0),
    ],
    ids=["centred", "softmax-over-records", "cumulative", "sorted", "normed", "flipped", "a-little-of-the-last"],
)
def test_mixing_in_the_code_is_found_and_placed(function: object) -> None:
    with pytest.raises(InvalidInput, match=r"Linear at last .or what feeds it.*another record of the batch"):
        TorchModule(lambda: Function(function), ROWS)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda x: x if x.sum() > 0 else -x, "record by record|another record"),
        (lambda x: x * float(x.detach().max()), "record by record|another record"),
        (lambda x: x + torch.rand_like(x), "asked again"),
        (lambda x: nn.functional.dropout(x, 0.5, training=True), "asked again"),
        (lambda x: x[:-1], "one row per record"),
        (lambda x: x.repeat(2, 1), "one row per record"),
        (lambda x: x if len(x) == 1 else 2 * x, "in a batch and alone"),
    ],
    ids=["branches", "reads-values", "random", "functional-dropout", "drops-one", "doubles", "by-batch-size"],
)
def test_other_ways_to_break_the_rules_are_found(function: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        TorchModule(lambda: Function(function), ROWS)


def test_recurrent_layers_are_refused_with_a_remedy() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.cells(x)[0][:, -1])

    with pytest.raises(InvalidInput, match="recurrent"):
        TorchModule(Recurrent, made_up_records((5, 4)))


def test_attention_that_takes_positions_for_records_is_refused() -> None:
    class Attention(nn.Module):
        def __init__(self, batch_first: bool) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(4, 2, batch_first=batch_first)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.attend(x, x, x, need_weights=False)[0].mean(dim=1))

    example = made_up_records((3, 4))
    with pytest.raises(InvalidInput, match="another record of the batch"):
        TorchModule(lambda: Attention(batch_first=False), example)
    model = TorchModule(lambda: Attention(batch_first=True), example)
    y = torch.tensor([0, 1, 1])
    assert influence_of_others(model, model.initial(0), (example, y), (2 - example, y)) <= 1e-12


def test_state_between_calls_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"buffer .*changes while scores are computed"):
        TorchModule(lambda: nn.Sequential(spectral_norm(nn.Linear(4, 4)), nn.Linear(4, 3)), ROWS)


def test_a_backward_pass_that_mixes_records_is_refused() -> None:
    class Mixing(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def setup_context(ctx: object, inputs: object, output: object) -> None:
            pass

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> Tensor:
            return gradient + gradient.mean(dim=0, keepdim=True)

    model = TorchModule(lambda: Function(Mixing.apply), ROWS)
    # The layer-by-layer route sees the mixed gradients, is found out, and is not taken.
    y = torch.tensor([0, 1, 2])
    assert influence_of_others(model, model.initial(0), (ROWS, y), (2 - ROWS, y)) <= 1e-12


def test_changes_in_place_that_torch_refuses_are_refused_here_too() -> None:
    class InputInPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.sin(self.one(x))
            out = self.two(hidden)
            hidden.mul_(2.0)
            return out + hidden

    with pytest.raises(UnsupportedCombination, match="torch can't differentiate it"):
        TorchModule(InputInPlace, ROWS)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: nn.Linear(4, 1), "one column per class"),
        (lambda: nn.Flatten(), "no trainable parameters"),
        (lambda: nn.Linear(4, 3).requires_grad_(False), "no trainable parameters"),
        (lambda: "a string", "must return a torch.nn.Module"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Unflatten(1, (3, 1))), "one row per record"),
        (lambda: Tupled(), "must return one tensor of scores"),
    ],
    ids=["one-score", "nothing-to-train", "all-frozen", "no-module", "three-dimensions", "two-tensors"],
)
def test_modules_that_are_no_classifiers_are_refused(build: object, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        TorchModule(build, ROWS)


def test_one_example_is_not_enough_to_see_mixing() -> None:
    with pytest.raises(InvalidInput, match="at least 2 made-up records"):
        TorchModule(lambda: nn.Linear(4, 3), ROWS[:1])


def test_influence_of_others_sees_a_leaking_model() -> None:
    class Leaking:
        """A model whose batch mean enters every gradient; only for the instrument to find."""

        classes, size = 3, 15

        def weighted_gradient(self, theta: Tensor, x: Tensor, y: Tensor, weigh: object) -> object:
            inner = TorchModule(lambda: nn.Linear(4, 3), ROWS)
            return inner.weighted_gradient(theta, x - 0.01 * x.mean(dim=0), y, weigh)

    x, y = made_up_records((4,), 6), torch.tensor([0, 1, 2, 0, 1, 2])
    theta = TorchModule(lambda: nn.Linear(4, 3), ROWS).initial(0)
    assert influence_of_others(Leaking(), theta, (x, y), (5 - x, y)) > 1e-3
    clean = TorchModule(lambda: nn.Linear(4, 3), ROWS)
    assert influence_of_others(clean, theta, (x, y), (5 - x, y)) <= 1e-12
    assert clean.weighted_gradient(theta, x, y, clipped_to(1.0)).largest_part <= 1.0


# Decisions that are counted, on a machine whose matrix library rounds otherwise when one more record joins the batch.


@pytest.fixture
def wobbling(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = LogisticRegression._score

    def score(self: LogisticRegression, theta: Tensor, x: Tensor) -> Tensor:
        return exact(self, theta, x) + (1e-15 if len(x) % 2 else -1e-15)

    monkeypatch.setattr(LogisticRegression, "_score", score)


def _copies(number: int) -> SiloTensors:
    """So many equal records on the very threshold of theta = (1, -1, 0), after one that is elsewhere."""
    x = torch.tensor([[0.9, 0.1], *[[0.5, 0.5]] * number], dtype=torch.float64)
    zeros = torch.zeros(len(x), dtype=torch.int64)
    return SiloTensors("north", x, zeros, zeros, unit_of_row=torch.arange(len(x)), users=len(x))


@pytest.mark.usefixtures("wobbling")
@pytest.mark.parametrize("step", [1, 2], ids=["rates", "flips"])
def test_one_more_record_moves_no_other_records_cell_of_a_histogram(step: int) -> None:
    """A thousand copies of one record changed cells together: 1,414 where 1 was signed."""
    model = LogisticRegression(2)
    plugin = FairPlugin(model, model, FairPluginOptions(), 100, 3, Clips(1.0, 1.0, 1.0))
    start = plugin.start()
    theta = torch.tensor([1.0, -1.0, 0.0, 0.3, 0.2, 0.1], dtype=torch.float64)
    rates = torch.tensor([[30.0, 10.0], [10.0, 30.0]], dtype=torch.float64)
    state = replace(start, descent=replace(start.descent, theta=theta, kept=theta, kept_times=1), rates=rates)
    sent = []
    for number in (100, 101):
        silo = replace(_copies(number), unit_of_row=None)
        message = plugin.contribution(state, step, silo, torch.arange(number + 1))
        sent.append(message.noisy[-1].values)
    assert np.linalg.norm(sent[0] - sent[1]) == 1


@pytest.mark.usefixtures("wobbling")
def test_one_more_user_changes_no_other_users_prediction() -> None:
    model = LogisticRegression(2)
    statistics = Statistics(model, Layout(model.size, 1, 1, (RECORDS, HITS)), (Rate(None, 1),), RateValue.PREDICTIONS)
    theta = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64)
    sums = [statistics.summed(theta, _copies(number), torch.arange(number + 1), 1.0)[0] for number in (100, 101)]
    assert torch.linalg.vector_norm(sums[0] - sums[1]) <= 1


@pytest.mark.usefixtures("wobbling")
def test_predictions_that_are_counted_are_those_of_each_record_alone() -> None:
    model, generator = LogisticRegression(3), torch.Generator().manual_seed(0)
    theta = torch.randn(4, generator=generator, dtype=torch.float64)
    x = torch.randn(300, 3, generator=generator, dtype=torch.float64)
    x[:100, 0] = -(x[:100, 1:] @ theta[1:3] + theta[3]) / theta[0]  # on the threshold, up to rounding
    alone = [int(model.probabilities(theta, one[None].clone()).argmax()) for one in x]
    for size in (300, 299, 7):
        assert predict_each_alone(model, theta, x[:size]).tolist() == alone[:size]

"""A user's own module as a model: pieces, precision, pickling, threads, pretrained parts."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from calibrate.errors import InvalidInput
from privfair.models import layers
from privfair.models.convolutional import CnnBuilder, convolutional
from privfair.models.layers import GhostProducts, OuterProducts, StoredGradients, layer_parts
from privfair.models.model import CnnArchitecture, clipped_to
from privfair.models.record_isolation import made_up_records
from privfair.models.torch_module import Route, TorchModule

IMAGES = (1, 12, 12)


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(100, 3))


def tied_net() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(144, 144), nn.Tanh(), nn.Linear(144, 144), nn.Linear(144, 3))
    module[3].weight = module[1].weight
    return module


def batch(number: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return made_up_records(IMAGES, number).to(dtype), torch.arange(number) % 3


@pytest.mark.parametrize("build", [small_net, tied_net])
@pytest.mark.parametrize("values_at_once", [1, 5_000, 100_000])
def test_a_batch_cut_into_pieces_gives_the_same(build: object, values_at_once: int) -> None:
    whole = TorchModule(build, made_up_records(IMAGES))
    cut = TorchModule(build, made_up_records(IMAGES), values_at_once)
    x, y = batch(7)
    theta = whole.initial(1)
    weights = torch.linspace(-1, 2, 7, dtype=torch.float64)
    calls: list[int] = []

    def weigh(norms: Tensor, losses: Tensor) -> Tensor:
        calls.append(len(norms))
        return weights * norms * losses

    expected = whole.weighted_gradient(theta, x, y, weigh)
    found = cut.weighted_gradient(theta, x, y, weigh)
    assert calls == [7, 7]  # the weights see the whole batch, whatever memory holds
    torch.testing.assert_close(found.total, expected.total, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.norms, expected.norms, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(cut.logits(theta, x), whole.logits(theta, x), rtol=1e-9, atol=1e-12)
    directions = torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(
        cut.probability_norms(theta, x, directions), whole.probability_norms(theta, x, directions)
    )
    rows = torch.randn(7, 3, dtype=torch.float64)
    torch.testing.assert_close(cut.probability_gradient(theta, x, rows), whole.probability_gradient(theta, x, rows))


def test_memory_is_counted_per_record() -> None:
    """A layer that stores 600,000 numbers a record can't take a batch of a thousand at once."""
    model = TorchModule(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(200, 3)), made_up_records(IMAGES)
    )
    wide = TorchModule(
        lambda: nn.Sequential(nn.Conv2d(1, 8, 7, padding=3), nn.Flatten(), nn.Linear(8 * 144, 3)),
        made_up_records(IMAGES),
    )
    assert len(list(model._pieces(torch.zeros(1000, *IMAGES)))) == 1
    assert wide._trial.values_a_record > model._trial.values_a_record > 144


@pytest.mark.parametrize(
    ("layer", "went_in", "came_back", "kind"),
    [
        (nn.Linear(4, 3), (2, 4), (2, 3), OuterProducts),
        (nn.Linear(30, 30), (2, 2, 30), (2, 2, 30), GhostProducts),
        (nn.Linear(3, 3), (2, 50, 3), (2, 50, 3), StoredGradients),
        (nn.Conv2d(16, 32, 3), (2, 16, 4, 4), (2, 32, 2, 2), GhostProducts),
        (nn.Conv2d(1, 4, 3), (2, 1, 12, 12), (2, 4, 10, 10), StoredGradients),
        (nn.Conv2d(16, 32, 3, groups=2), (2, 16, 4, 4), (2, 32, 2, 2), StoredGradients),
        (nn.GroupNorm(2, 4), (2, 4, 3), (2, 4, 3), StoredGradients),
    ],
)
def test_the_cheaper_way_is_taken(
    layer: nn.Module, went_in: tuple[int, ...], came_back: tuple[int, ...], kind: type
) -> None:
    parts = layer_parts(layer, dict(layer.named_parameters()), torch.zeros(went_in), torch.zeros(came_back))
    assert isinstance(parts, kind)


def test_patches_gathered_for_a_few_records_at_a_time_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.Conv2d(2, 4, 3, stride=2, padding=1)
    went_in, came_back = torch.randn(7, 2, 12, 12), torch.randn(7, 4, 6, 6)
    whole = layer_parts(layer, dict(layer.named_parameters()), went_in, came_back)
    monkeypatch.setattr(layers, "_PATCHES_IN_CACHE", 3 * 36 * 18)
    cut = layer_parts(layer, dict(layer.named_parameters()), went_in, came_back)
    assert isinstance(whole, StoredGradients)
    assert isinstance(cut, StoredGradients)
    for mine, theirs in zip(cut.gradients, whole.gradients, strict=True):
        torch.testing.assert_close(mine, theirs)
    alone = torch.nn.grad.conv2d_weight(went_in[3:4], layer.weight.shape, came_back[3:4], 2, 1)
    torch.testing.assert_close(cut.gradients[0][3], alone)


def test_frozen_parameters_stay_and_are_not_trained() -> None:
    def build() -> nn.Module:
        module = small_net()
        module[0].requires_grad_(False)
        return module

    model = TorchModule(build, made_up_records(IMAGES))
    assert set(model.named_parameters(model.initial(0))) == {"1.weight", "1.bias", "4.weight", "4.bias"}
    x, y = batch(4, torch.float32)
    assert model.weighted_gradient(model.initial(0), x, y, clipped_to(1.0)).total.shape == (model.size,)


def test_a_module_given_ready_made_starts_as_it_is_and_is_left_alone() -> None:
    ready = small_net()
    before = [parameter.clone() for parameter in ready.parameters()]
    model = TorchModule(lambda: ready, made_up_records(IMAGES))
    theta = model.initial(5)
    x, y = batch(6)
    model.weighted_gradient(theta, x, y, clipped_to(0.1))
    model.as_module(theta + 1)
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in ready.parameters()])
    assert torch.equal(theta, flat.double())
    assert all(torch.equal(now, then) for now, then in zip(ready.parameters(), before, strict=True))
    assert all(parameter.dtype == torch.float32 for parameter in ready.parameters())


def test_a_factory_that_builds_something_else_each_time_is_refused() -> None:
    sizes = iter((3, 3, 4))
    model = TorchModule(lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, next(sizes))), made_up_records(IMAGES))
    with pytest.raises(InvalidInput, match="different parameters"):
        model.initial(0)


def test_a_vector_of_another_size_is_refused() -> None:
    model = TorchModule(small_net, made_up_records(IMAGES))
    with pytest.raises(InvalidInput, match=f"vector of {model.size} entries"):
        model.logits(torch.zeros(3), batch(2)[0])


def test_half_precision_is_refused() -> None:
    model = TorchModule(small_net, made_up_records(IMAGES))
    x, y = batch(2, torch.float16)
    with pytest.raises(InvalidInput, match="float32 or float64"):
        model.weighted_gradient(model.initial(0), x, y, clipped_to(1.0))


def test_exported_module_scores_alike() -> None:
    model = TorchModule(small_net, made_up_records(IMAGES))
    theta = model.initial(3)
    x, _ = batch(5)
    torch.testing.assert_close(model.as_module(theta)(x), model.logits(theta, x))


def test_models_travel_to_other_processes() -> None:
    model = convolutional(CnnArchitecture.STRIDED, (1, 16, 16), 3)
    copy = pickle.loads(pickle.dumps(model))
    assert (copy.size, copy.classes, copy.route) == (model.size, model.classes, model.route)
    assert torch.equal(copy.initial(2), model.initial(2))


@pytest.mark.parametrize("build", [small_net, tied_net])
def test_threads_do_not_disturb_one_another(build: object) -> None:
    model = TorchModule(build, made_up_records(IMAGES))
    x, y = batch(6)
    thetas = [model.initial(seed) for seed in range(12)]
    expected = [model.weighted_gradient(theta, x, y, clipped_to(0.5)).total for theta in thetas]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda theta: model.weighted_gradient(theta, x, y, clipped_to(0.5)).total, thetas))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


class Sometimes(nn.Module):
    """Does something irregular to large batches only; the scores are the same."""

    def __init__(self, irregular: str) -> None:
        super().__init__()
        self.irregular = irregular
        self.first, self.second, self.head = nn.Linear(144, 9), nn.Linear(9, 9), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        large = len(x) > 5
        first = self.first(x.flatten(1))
        first = first.tanh_() if large and self.irregular == "first in place" else torch.tanh(first)
        second = self.second(first)
        if large and self.irregular == "called twice":
            self.second(second)  # to no effect
        return self.head(second.sin_() if large and self.irregular == "second in place" else torch.sin(second))


@pytest.mark.parametrize("irregular", ["first in place", "second in place", "called twice"])
def test_what_the_trial_could_not_see_takes_the_general_route(irregular: str) -> None:
    model = TorchModule(lambda: Sometimes(irregular), made_up_records(IMAGES))
    assert model.route is Route.LAYER_BY_LAYER
    x, y = batch(7)
    theta = model.initial(0)
    whole = model.weighted_gradient(theta, x, y, clipped_to(0.5)).total
    halves = [
        model.weighted_gradient(theta, x[rows], y[rows], clipped_to(0.5)).total for rows in (slice(3), slice(3, 7))
    ]
    torch.testing.assert_close(whole, sum(halves), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("architecture", "size"),
    [
        # McMahan et al. 2017, Section 3, "MNIST CNN": 1,663,370 total parameters.
        (CnnArchitecture.FEDAVG, 1_663_370),
        (CnnArchitecture.UNPADDED, 582_026),
        (CnnArchitecture.STRIDED, 32 * 26 + 64 * 801 + 100 * 1025 + 10 * 101),
        (CnnArchitecture.COMPACT, 26_010),
    ],
)
def test_sizes_of_the_papers_nets(architecture: CnnArchitecture, size: int) -> None:
    module = CnnBuilder(architecture, (1, 28, 28), 10)()
    assert sum(parameter.numel() for parameter in module.parameters()) == size


@pytest.mark.parametrize("architecture", CnnArchitecture)
def test_nets_take_the_fast_route_on_colour_images(architecture: CnnArchitecture) -> None:
    model = convolutional(architecture, (3, 20, 20), 4)
    assert model.route is Route.LAYER_BY_LAYER
    assert model.classes == 4


def test_images_too_small_or_flat_are_refused() -> None:
    with pytest.raises(InvalidInput, match="too small"):
        convolutional(CnnArchitecture.STRIDED, (1, 6, 6), 3)
    with pytest.raises(InvalidInput, match="channels, height, width"):
        CnnBuilder(CnnArchitecture.STRIDED, (85,), 3)  # type: ignore[arg-type]

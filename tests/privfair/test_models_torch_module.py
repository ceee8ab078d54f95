"""A user's own module as a model: how close the network is to it, pickling, threads, pretrained parts."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from calibrate.errors import InvalidInput, UnsupportedCombination
from privfair.models.alone_module import AloneModule
from privfair.models.exact import Bits
from privfair.models.model import CnnArchitecture, Records, clipped_to, mean_over
from privfair.models.torch_module import CnnBuilder, TorchModule, convolutional, made_up_records
from tests.contracts.model_cases import MODULES, TOKENS, Reused, module_model

IMAGES = (1, 12, 12)


def small_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(100, 3))


def batch(number: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return made_up_records(IMAGES, number).to(dtype), torch.arange(number) % 3


@pytest.mark.parametrize("bits", [Bits.THIRTEEN, Bits.LARGEST], ids=lambda bits: str(bits.value))
@pytest.mark.parametrize("name", MODULES)
def test_a_network_scores_like_its_module(name: str, bits: Bits) -> None:
    """Within 2^-(p - 4) of the largest score, on 1,000 records."""
    model, (_, shape, tokens) = module_model(name, bits), MODULES[name]
    generator = torch.Generator().manual_seed(7)
    if tokens:
        x = torch.randint(0, TOKENS, (1000, *shape), generator=generator)
    else:
        x = torch.randn(1000, *shape, generator=generator, dtype=torch.float64)
    theta = model.initial(4)
    expected = model.as_module(theta)(x).detach()
    allowed = 2.0 ** (4 - model._network.arithmetic.bits)
    assert float((model.logits(theta, x) - expected).abs().max()) <= allowed * float(expected.abs().max())


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
    sizes = iter((3, 4))
    model = TorchModule(lambda: nn.Sequential(nn.Flatten(), nn.Linear(144, next(sizes))), made_up_records(IMAGES))
    with pytest.raises(InvalidInput, match="different parameters"):
        model.initial(0)


def test_a_vector_of_another_size_is_refused() -> None:
    model = TorchModule(small_net, made_up_records(IMAGES))
    with pytest.raises(InvalidInput, match=f"vector of {model.size} entries"):
        model.logits(torch.zeros(3), batch(2)[0])


def test_tokens_are_whole_numbers() -> None:
    model = module_model("few-tokens", Bits.THIRTEEN)
    with pytest.raises(InvalidInput, match="whole numbers"):
        model.logits(model.initial(0), torch.zeros(2, 2))


def test_tokens_outside_the_table_contribute_nothing() -> None:
    model = module_model("transformer", Bits.LARGEST)
    theta, y = model.initial(0), torch.tensor([0, 1])
    x = torch.tensor([[1, 2, 2, 3, 1], [1, 999, -5, TOKENS, 1]])
    found = model.score_gradients(theta, x, torch.ones(2, 3, dtype=torch.float64))
    rows = torch.stack([model.named_parameters(one)["embed.weight"].abs().sum(dim=1) for one in found]) > 0
    assert rows.int().tolist() == [[0, 1, 1, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0]]
    assert torch.isfinite(model.weighted_gradient(theta, x, y, clipped_to(1.0)).total).all()


def test_wide_layers_are_refused_at_bits_that_could_round() -> None:
    build = lambda: nn.Sequential(nn.Flatten(), nn.Linear(2**14, 3))  # noqa: E731
    assert TorchModule(build, made_up_records((2**14,)), Bits.LARGEST).size == 3 * 2**14 + 3
    with pytest.raises(UnsupportedCombination, match="could round"):
        Bits.THIRTEEN.number(2**28)


@pytest.mark.parametrize("bits", Bits)
def test_models_travel_to_other_processes(bits: Bits) -> None:
    model = convolutional(CnnArchitecture.STRIDED, (1, 16, 16), 3, bits)
    copy = pickle.loads(pickle.dumps(model))
    theta, x = model.initial(2), made_up_records((1, 16, 16))
    assert (copy.size, copy.classes) == (model.size, model.classes)
    assert torch.equal(copy.initial(2), theta)
    assert torch.equal(copy.logits(theta, x), model.logits(theta, x))


def test_threads_do_not_disturb_one_another() -> None:
    model = TorchModule(small_net, made_up_records(IMAGES))
    x, y = batch(6)
    thetas = [model.initial(seed) for seed in range(12)]
    expected = [model.weighted_gradient(theta, x, y, clipped_to(0.5)).total for theta in thetas]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda theta: model.weighted_gradient(theta, x, y, clipped_to(0.5)).total, thetas))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


# One record per pass.


def test_any_module_can_be_run_alone() -> None:
    model = AloneModule(Reused, made_up_records((4,)))
    copy = pickle.loads(pickle.dumps(model))
    x, y = made_up_records((4,), 6), torch.arange(6) % 3
    theta = model.initial(1)
    found = model.weighted_gradient(theta, Records(x, torch.tensor([3, 1])), y[:2], clipped_to(0.2))
    again = copy.weighted_gradient(theta, x[[3, 1]], y[:2], clipped_to(0.2))
    assert torch.equal(found.total, again.total)
    assert found.largest_part <= 0.2
    torch.testing.assert_close(model.as_module(theta)(x), model.logits(theta, x))


def test_gradients_that_are_not_finite_count_as_zeros_with_coefficient_zero() -> None:
    model = AloneModule(Reused, made_up_records((4,)))
    x, y = made_up_records((4,), 3), torch.arange(3)
    x[1] = float("inf")
    found = model.weighted_gradient(model.initial(0), x, y, clipped_to(1.0))
    assert (float(found.norms[1]), float(found.losses[1]), float(found.coefficients[1])) == (0.0, 0.0, 0.0)
    theta = torch.full((model.size,), float("nan"), dtype=torch.float64)
    assert not model.weighted_gradient(theta, x, y, clipped_to(1.0)).total.any()
    assert torch.isfinite(model.probabilities(theta, x)).all()


def test_batch_statistics_of_one_record_leave_nothing_behind() -> None:
    build = lambda: nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(144, 3))  # noqa: E731
    model = AloneModule(build, made_up_records(IMAGES))
    x, y = batch(4)
    theta = model.initial(0)
    alone = model.weighted_gradient(theta, x[3:], y[3:], clipped_to(1.0)).norms
    assert torch.equal(model.weighted_gradient(theta, x, y, clipped_to(1.0)).norms[3:], alone)
    assert int(model.as_module(theta)[0].num_batches_tracked) == 0


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), "0: Dropout.*draws random numbers"),
        (lambda: nn.Linear(4, 1), "at least two"),
        (lambda: nn.LSTM(4, 3), "tuple"),
        (lambda: nn.LazyLinear(3), "no sizes yet"),
        (lambda: nn.Linear(4, 3).requires_grad_(False), "no trainable parameters"),
    ],
    ids=["dropout", "one-score", "two-tensors", "lazy", "frozen"],
)
def test_modules_that_are_no_classifiers_are_refused_alone_too(build: Callable[[], nn.Module], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        AloneModule(build, made_up_records((4,)))


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
def test_the_papers_nets_take_colour_images(architecture: CnnArchitecture) -> None:
    assert convolutional(architecture, (3, 20, 20), 4).classes == 4


def test_images_too_small_or_flat_are_refused() -> None:
    with pytest.raises(InvalidInput, match="too small"):
        convolutional(CnnArchitecture.STRIDED, (1, 6, 6), 3)
    with pytest.raises(InvalidInput, match="channels, height, width"):
        CnnBuilder(CnnArchitecture.STRIDED, (85,), 3)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [Bits.SEVEN, Bits.THIRTEEN])
@pytest.mark.parametrize("clip", [1.0, 0.1, 0.001])
def test_a_small_clip_shortens_all_parameters_of_a_record_by_one_factor(bits: Bits, clip: float) -> None:
    """Gradients of a norm's parameters are fractions: cutting them to steps must not shorten them more."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))

    model = TorchModule(build, made_up_records((6,)), bits)
    theta = model.initial(1)
    model.named_parameters(theta)["3.bias"][:] = torch.tensor([-3.0, 3.0])  # a sure record: its gradient is short
    x, y = made_up_records((6,))[:1], torch.tensor([1])
    whole = model.named_parameters(model.weighted_gradient(theta, x, y, mean_over(1)).total)
    found = model.weighted_gradient(theta, x, y, clipped_to(clip))
    for name, part in model.named_parameters(found.total).items():
        assert float(part.norm() / whole[name].norm()) == pytest.approx(float(found.coefficients[0]), rel=0.05)


class _Unlike(nn.Module):
    """Modules whose scores at the start hide that they are not what is traced."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.first, self.last = what, nn.Linear(4, 6), nn.Linear(6, 2)
        self.relu = nn.ReLU(inplace=True)
        for parameter in self.last.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        if self.what == "no_grad":
            with torch.no_grad():
                h = self.first(x)
            return self.last(h)
        h = self.first(x)
        self.relu(h)
        return self.last(h)


@pytest.mark.parametrize(
    ("what", "says"), [("no_grad", "other scores or gradients than its network"), ("in place", "relu: in-place")]
)
def test_a_module_whose_last_layer_starts_at_zero_is_compared_elsewhere(what: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        TorchModule(lambda: _Unlike(what), made_up_records((4,)))


def test_a_backward_pre_hook_is_refused() -> None:
    def build() -> nn.Module:
        module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        module[0].register_full_backward_pre_hook(lambda layer, gradient: (gradient[0] * 0,))
        return module

    with pytest.raises(InvalidInput, match="has hooks"):
        TorchModule(build, made_up_records((4,)))


def test_a_record_on_which_a_module_run_alone_fails_contributes_zeros() -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Embedding(10, 3), nn.Flatten(), nn.Linear(12, 2))

    model = AloneModule(build, torch.zeros(2, 4, dtype=torch.int64))
    x, y = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 300]]), torch.tensor([0, 1])
    both = model.weighted_gradient(model.initial(0), x, y, clipped_to(1.0))
    first = model.weighted_gradient(model.initial(0), x[:1], y[:1], clipped_to(1.0))
    assert torch.equal(both.total, first.total)
    assert both.coefficients[1] == 0
    assert bool(torch.isfinite(model.logits(model.initial(0), x)).all())

"""A record's part is the same, bit for bit, whatever else is in the batch; what can't be converted is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm

from audit.probes.isolation import influence_of_others
from calibrate.errors import InvalidInput
from privfair.models.exact import Bits
from privfair.models.model import clipped_to
from privfair.models.torch_module import TorchModule, made_up_records
from tests.contracts.model_cases import MODULES, TOKENS, Reused, module_model

IMAGES = made_up_records((2, 4, 4))
ROWS = made_up_records((4,))
RECORDS = 65
ALONE = (0, 1, 3, 6, 7, 11, 16, 21, 26, 31, 40, 41, 42, 50, 64)
"""Records that are computed alone, too: the strange ones and some others."""


def _records(shape: tuple[int, ...], tokens: bool) -> tuple[Tensor, Tensor]:
    """Some of them zero, huge, tiny, or not finite; tokens outside the table."""
    generator = torch.Generator().manual_seed(3)
    y = torch.randint(0, 3, (RECORDS,), generator=generator)
    if tokens:
        x = torch.randint(0, TOKENS, (RECORDS, *shape), generator=generator)
        x[::7, 0], x[3, -1] = -1, 2**40
        return x, y
    x = torch.randn(RECORDS, *shape, generator=generator, dtype=torch.float64)
    flat = x.view(RECORDS, -1)
    for place, value in enumerate((float("inf"), float("nan"), 1e308, -1e308, 1e-300, 0.0, 2.0**20)):
        flat[5 * place + 1, place % flat.shape[1]] = value
    flat[40], flat[41], flat[42] = 0.0, 1e-200, 1e200
    return x, y


def _thetas(model: TorchModule) -> Iterator[Tensor]:
    start = model.initial(1)
    yield start
    broken = start.clone()
    broken[::11], broken[5::17], broken[7::19], broken[3::23] = float("inf"), float("nan"), 1e308, -1e308
    yield broken


def _parts(model: TorchModule, theta: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    found = model.weighted_gradient(theta, x, y, clipped_to(0.5))
    in_scores = torch.linspace(-1.0, 2.0, model.classes, dtype=torch.float64).expand(len(x), -1)
    return found.norms, found.losses, found.coefficients, model.score_gradients(theta, x, in_scores), found.total


@pytest.mark.parametrize("bits", Bits, ids=lambda bits: str(bits.value))
@pytest.mark.parametrize("name", MODULES)
def test_a_record_is_the_same_alone_and_in_any_batch(name: str, bits: Bits) -> None:
    model, (_, shape, tokens) = module_model(name, bits), MODULES[name]
    x, y = _records(shape, tokens)
    generator, threads = torch.Generator().manual_seed(5), torch.get_num_threads()
    try:
        for theta in _thetas(model):
            torch.set_num_threads(1)
            alone = {i: _parts(model, theta, x[i : i + 1], y[i : i + 1])[:4] for i in ALONE}
            assert all(torch.isfinite(one).all() for parts in alone.values() for one in parts)
            for number in (1, 2):
                torch.set_num_threads(number)
                for size in (2, 3, 17, RECORDS):
                    order = torch.randperm(RECORDS, generator=generator)[:size]
                    *together, total = _parts(model, theta, x[order], y[order])
                    assert torch.isfinite(total).all()
                    for place, record in enumerate(order.tolist()):
                        own = alone.get(record, ())
                        assert all(torch.equal(both[place], one[0]) for both, one in zip(together, own, strict=False))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("bits", [Bits.SEVEN, Bits.THIRTEEN], ids=lambda bits: str(bits.value))
@pytest.mark.parametrize("name", MODULES)
def test_one_more_record_moves_a_clipped_sum_by_its_own_part(name: str, bits: Bits) -> None:
    """At 7 and 13 bits sums do not round."""
    model, (_, shape, tokens) = module_model(name, bits), MODULES[name]
    x, y = _records(shape, tokens)
    for theta in _thetas(model):
        for record in (0, 1, 20, RECORDS - 1):
            rest = torch.arange(RECORDS) != record
            with_it = model.weighted_gradient(theta, x, y, clipped_to(0.5)).total
            without = model.weighted_gradient(theta, x[rest], y[rest], clipped_to(0.5)).total
            part = model.weighted_gradient(theta, x[record : record + 1], y[record : record + 1], clipped_to(0.5)).total
            assert torch.equal(with_it - without, part)
            assert float(part.norm()) <= 0.5


def test_influence_of_others_sees_a_leaking_model() -> None:
    class Leaking:
        """A model whose batch mean enters every gradient; only for the instrument to find."""

        classes, size = 3, 15

        def weighted_gradient(self, theta: Tensor, x: Tensor, y: Tensor, weigh: object) -> object:
            inner = TorchModule(lambda: nn.Linear(4, 3), ROWS)
            return inner.weighted_gradient(theta, x - 0.01 * x.mean(dim=0), y, weigh)

    x, y = made_up_records((4,), 6), torch.tensor([0, 1, 2, 0, 1, 2])
    clean = TorchModule(lambda: nn.Linear(4, 3), ROWS)
    theta = clean.initial(0)
    assert influence_of_others(Leaking(), theta, (x, y), (5 - x, y)) > 1e-3
    assert influence_of_others(clean, theta, (x, y), (5 - x, y)) == 0.0


# What is refused, with its name and a remedy.


class Function(nn.Module):
    """A linear layer, then a function, then another."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.function, self.last = nn.Linear(4, 4), function, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


class Nested(nn.Module):
    """A layer inside blocks."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity(), layer))
        self.head = nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).flatten(1))


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (nn.BatchNorm2d(2), "BatchNorm2d.*other records.*GroupNorm"),
        (nn.SyncBatchNorm(2), "SyncBatchNorm.*GroupNorm"),
        (nn.BatchNorm2d(2).eval(), "BatchNorm2d.*GroupNorm"),
        (nn.InstanceNorm2d(2), "InstanceNorm2d.*GroupNorm"),
        (nn.RReLU(), "RReLU.*not a covered layer"),
        (nn.Conv2d(2, 2, 1, groups=2), "Conv2d.*groups=1"),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), 'Conv2d.*padding_mode="zeros"'),
        (nn.Conv2d(2, 2, 2, padding="same"), "Conv2d.*odd kernel size"),
        (nn.ConvTranspose2d(2, 2, 1), "ConvTranspose2d.*not a covered layer"),
        (nn.AdaptiveAvgPool2d(4), "AdaptiveAvgPool2d.*output size"),
        (nn.GELU(), "GELU.*approximate='tanh'"),
        (nn.Softplus(), "Softplus.*not a covered layer"),
        (spectral_norm(nn.Conv2d(2, 2, 1)), "ParametrizedConv2d"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_layers_are_refused_with_their_name(layer: nn.Module, says: str) -> None:
    with pytest.raises(InvalidInput, match=f'blocks.1.1: {says}.*isolation = "alone"'):
        TorchModule(lambda: Nested(layer), IMAGES)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.Dropout2d(0.1)], ids=["dropout", "dropout2d"])
def test_random_layers_are_refused_with_their_name(layer: nn.Module) -> None:
    with pytest.raises(InvalidInput, match=r"blocks.1.1: Dropout.*draws random numbers"):
        TorchModule(lambda: Nested(layer), IMAGES)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - x.mean(dim=0),
        lambda x: x - x.mean(),
        lambda x: torch.softmax(x, dim=0),
        lambda x: x / x.norm(),
        lambda x: x + x.flip(0),
        lambda x: x.transpose(0, 1),
        lambda x: x[:-1],
        lambda x: x.reshape(-1),
        lambda x: x.repeat(2, 1),
        lambda x: x + torch.rand_like(x),
        lambda x: functional.dropout(x, 0.5),
        lambda x: functional.gelu(x),
        lambda x: functional.relu_(x),
        lambda x: x.mul_(2.0),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x * float(x.max()),
        lambda x: x if len(x) == 1 else 2 * x,
        lambda x: x * 2.0,
        lambda x: torch.add(x, x, alpha=2.0),
        lambda x: functional.relu(x, inplace=True) + x,
    ],
)
def test_functions_that_are_not_covered_are_refused(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(InvalidInput, match="module"):
        TorchModule(lambda: Function(function), ROWS)


class Changing(nn.Module):
    """Changes an activation in the given way."""

    def __init__(self, change: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.act, self.two = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.change(self, self.one(x)))


def _adds_in_place(module: nn.Module, hidden: Tensor) -> Tensor:
    hidden = torch.tanh(hidden)
    hidden += hidden
    return hidden


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_adds_in_place, "changes the output of Tanh in place.*write h = h \\+ x"),
        (lambda module, h: [functional.relu(h, inplace=True), h][1], "relu: in-place.*changes.*use what it returns"),
        (lambda module, h: [h.add_(h), h][1], "add_: in-place.*changes.*use what it returns"),
        (lambda module, h: [module.act(h), h][1], "act: in-place.*changes.*use what it returns"),
    ],
    ids=["+=", "function", "method", "layer"],
)
def test_changes_in_place_are_refused_with_their_name(change: Callable[[nn.Module, Tensor], Tensor], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        TorchModule(lambda: Changing(change), ROWS)


def test_dropout_outside_training_is_accepted() -> None:
    assert TorchModule(lambda: Changing(lambda module, h: functional.dropout(h, 0.5, training=False)), ROWS)
    with pytest.raises(InvalidInput, match=r"dropout.*draws random numbers"):
        TorchModule(lambda: Changing(lambda module, h: functional.dropout(h, 0.5, True)), ROWS)


class Aliased(nn.Module):
    """Changes a view in place, which changes what it is a view of."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.act, self.two = nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.one(x)
        return self.two(self.act(hidden.view(-1, 4)) + hidden)


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    module[2].weight = module[0].weight
    return module


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 3))
    module[0].register_forward_hook(lambda layer, given, found: found - found.mean(dim=0))
    return module


class Centred(nn.Linear):
    """A subclass of a covered layer that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(dim=0))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (tied, r"parameter 0.weight.*used twice"),
        (Reused, r"sin.*not a covered operation|used twice"),
        (lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2, nn.Linear(4, 3)), r"0.weight.*used twice"),
        (Aliased, "in place"),
        (hooked, "0: Linear.*hooks"),
        (lambda: Centred(4, 3), "dimensions other than the records"),
        (lambda: nn.Linear(4, 1), "one column per class"),
        (lambda: nn.Flatten(), "no trainable parameters"),
        (lambda: nn.Linear(4, 3).requires_grad_(False), "no trainable parameters"),
        (lambda: "a string", "must return a torch.nn.Module"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.Flatten(0)), "joins records"),
        (lambda: nn.LazyLinear(3), "no sizes yet"),
        (lambda: nn.Linear(5, 3), "fails on made-up records"),
        (lambda: nn.LSTM(4, 3), "LSTM.*recurrent"),
        (lambda: nn.MultiheadAttention(4, 2), "one tensor|same tensor"),
    ],
)
def test_modules_are_refused(build: Callable[[], nn.Module], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        TorchModule(build, ROWS)


class Attention(nn.Module):
    def __init__(
        self, batch_first: bool = True, masked: bool = False, weights: bool = False, **options: object
    ) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=batch_first, **options)
        self.head, self.masked, self.weights = nn.Linear(4, 2), masked, weights

    def forward(self, x: Tensor) -> Tensor:
        found = self.attend(x, x, x, attn_mask=torch.eye(3)) if self.masked else self.attend(x, x, x)
        return self.head((found[0] + found[1].mean(dim=2, keepdim=True) if self.weights else found[0]).mean(dim=1))


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: Attention(batch_first=False), "batch_first=True"),
        (lambda: Attention(masked=True), "without masks"),
        (lambda: Attention(weights=True), "first output alone"),
        (lambda: Attention(dropout=0.1), "attend: MultiheadAttention.*draws random numbers"),
        (lambda: Attention(add_zero_attn=True), "leave them out"),
        (lambda: nn.TransformerEncoderLayer(4, 2, batch_first=True), "self_attn: MultiheadAttention.*random"),
        (
            lambda: nn.TransformerEncoderLayer(4, 2, dropout=0.0, activation="gelu", batch_first=True),
            r"activation: GELU.*approximate='tanh'",
        ),
    ],
)
def test_attention_is_refused_where_it_is_not_covered(build: Callable[[], nn.Module], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        TorchModule(build, made_up_records((3, 4)))


def test_one_example_is_not_enough() -> None:
    with pytest.raises(InvalidInput, match="at least 2 made-up records"):
        TorchModule(lambda: nn.Linear(4, 3), ROWS[:1])

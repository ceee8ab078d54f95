"""A network of covered layers: scores, norms and clipped sums, in which a record's part is a function of the record.

Before a run reads anything, `choose_products` tests whether this machine's matrix products round.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain as chain_of
from typing import Any, final
from weakref import ref

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from calibrate.errors import CheckFailed, InvalidInput
from privfair.models.exact import (
    DOUBLE,
    LARGEST_ACTIVATION,
    LARGEST_CUT,
    LARGEST_FEATURE,
    Arithmetic,
    Bits,
    InDouble,
    Products,
    Rows,
    clamped,
    cross_entropy,
    each,
    pick,
    probabilities_of,
    root,
    routines,
    squares,
    through_softmax,
)
from privfair.models.layers import MOST_EXACT, NetLayer, Part, Prepared, Pull, Values
from privfair.models.model import Features, ParameterLayout, Weigh, WeightedGradient, bound_of, finite
from privfair.rounding import blocks_of, terms_per_block, total_of

_ROWS, _SHORT, _LARGE, _TRIALS = 64, 5, 256, 3
_NUMBERS = 2**16
"""In a factor: wider products are tried with fewer rows."""


@lru_cache(maxsize=64)
def choose_products(bits: int, widths: tuple[int, ...]) -> Products:
    """The fastest routine that forms exact products of these widths here; the result is kept for the process.

    Worst cases on public numbers, in the widths of the model: all extremes, alternating signs, numbers just below the
    largest, dimensions of size one, both memory orders, one large product, against integers. Strassen, Winograd and
    reduced-precision products fail it; so does a processor that flushes subnormal numbers to zero.
    """
    require_subnormals()
    torch.empty(31 * 2**20, dtype=torch.int8)  # glibc keeps freed memory for reuse up to twice the largest such block
    found: list[tuple[float, int, Products]] = []
    for place, routine in enumerate(routines(bits)):
        fault = first_fault(routine, bits, widths)
        if fault is None:
            found.append((_seconds(routine, bits, max(widths, default=2)), place, routine))
    if fault := fault or _other_fault(bits, widths):  # the last routine is the reference
        raise _refusal(fault)
    return min(found, key=lambda one: one[:2])[2]


def _refusal(fault: str) -> CheckFailed:
    return CheckFailed(
        f"matrix products on this machine round where they must not ({fault}); what a record contributes "
        "would depend on other records: use another build of torch, without reduced-precision products"
    )


def first_fault(products: Products, bits: int, widths: tuple[int, ...]) -> str | None:
    """The first product that is not exact; None if all are."""
    most = 2**bits - (bits == Bits.SEVEN.value)
    for width in widths:
        for left, right, true in _factors(width, most):
            for one, other, expected in ((left, right, true), (right.T, left.T, true.T)):
                if not torch.equal(_product(products, one, other), expected):
                    return f"{type(products).__name__}, {tuple(one.shape)} by {tuple(other.shape)}, {bits} bits"
        if width == max(widths) and not _exact_when_large(products, width, most):
            return f"{type(products).__name__}, a large product over {width} terms, {bits} bits"
        for of_cut, of_high in ((1, 2), (3, 3)):
            cut = _pattern((_ROWS, _SHORT), LARGEST_CUT, of_cut)
            high = _pattern((_ROWS, min(width, _ROWS)), 127, of_high)
            summed = torch.zeros(_SHORT, high.shape[1], dtype=DOUBLE)
            products.add_outer(summed, cut, high, 1.0)
            if bits <= Bits.THIRTEEN.value and not torch.equal(summed.to(torch.int64), _exact(cut.T, high)):
                return f"{type(products).__name__}, the sum over records"
    return None


def require_subnormals() -> None:
    """Refuse a processor state in which tiny numbers are flushed to zero; other code in the process changes it."""
    tiny = torch.full((9,), 2.0**-1060, dtype=DOUBLE)
    if not bool((tiny * 1.0 != 0).all()):
        raise CheckFailed(
            "subnormal numbers are flushed to zero in this process; call torch.set_flush_denormal(False) first"
        )


def _factors(width: int, most: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(rows, width), (width, columns), their product: extremes of one sign, of both, mixed, close to the largest."""
    tall = min(_ROWS, max(_SHORT, _NUMBERS // width))
    for seed in range(4):
        left, right = _pattern((tall, width), most, seed), _pattern((width, _SHORT), most, seed)
        true = _exact(left, right)
        for rows, columns in ((tall, _SHORT), (1, _SHORT), (tall, 1), (1, 1)):
            one, other, expected = left[:rows], right[:, :columns].contiguous(), true[:rows, :columns]
            yield one, other, expected
            yield one.T.contiguous().T, other.T.contiguous().T, expected  # the other memory order


def _pattern(shape: tuple[int, int], most: int, seed: int) -> Tensor:
    """All extremes, alternating extremes, fixed numbers in between, or fixed numbers just below the largest.

    The last ones have large sums that need their last bit, and halves that are themselves extremes.
    """
    numbers = torch.arange(shape[0] * shape[1], dtype=DOUBLE).view(shape)
    if seed == 0:
        return torch.full(shape, float(most), dtype=DOUBLE)
    if seed == 1:
        return most - 2.0 * most * (numbers % 2)
    if seed == 2:
        return (numbers * 7919.0) % (2 * most + 1) - most
    return most - (numbers * 7919.0) % min(131, most // 16)


def _exact_when_large(products: Products, width: int, most: int) -> bool:
    """One product as large as a batch's: equal columns make its true value cheap."""
    size = _rows_of_batch(width)
    left, right = _pattern((size, 1), most, 3), _pattern((width, size), most, 3)
    true = left.to(torch.int64) * right.to(torch.int64).sum(dim=0)
    return torch.equal(_product(products, left.expand(-1, width).contiguous(), right), true)


def _rows_of_batch(width: int) -> int:
    return min(_LARGE, max(_SHORT, 8 * _NUMBERS // width))


def _product(products: Products, left: Tensor, right: Tensor) -> Tensor:
    return products.product(products.split(left), products.split(right)).to(torch.int64)


def _other_fault(bits: int, widths: tuple[int, ...]) -> str | None:
    """The same of products that have one routine: one for each record, a matrix by a vector, squared norms."""
    most, arithmetic = 2**bits - (bits == Bits.SEVEN.value), Arithmetic(bits, InDouble())
    for width in widths:
        for seed in range(4):
            left, right = _pattern((_SHORT, width), most, seed), _pattern((width, _SHORT), most, seed)
            true = _exact(left, right)
            each_record = arithmetic.batched(left.expand(3, -1, -1), right.expand(3, -1, -1)).to(torch.int64)
            if not all(torch.equal(one, true) for one in each_record):
                return f"one product for each record, {tuple(left.shape)} by {tuple(right.shape)}, {bits} bits"
            by_vector = torch.from_numpy(left.numpy() @ right[:, 0].contiguous().numpy())
            if not torch.equal(by_vector.to(torch.int64), true[:, 0]):
                return f"{tuple(left.shape)} by a vector, {bits} bits"
            lengths = squares(Rows(left, torch.ones(_SHORT, dtype=DOUBLE)))
            if not torch.equal(lengths.to(torch.int64), left.to(torch.int64).square().sum(dim=1)):
                return f"squared norms of {width} numbers, {bits} bits"
    return None


def _exact(left: Tensor, right: Tensor) -> Tensor:
    """The product in 64-bit integers."""
    return left.to(torch.int64) @ right.to(torch.int64)


def _seconds(products: Products, bits: int, width: int) -> float:
    """Processor time of one product of this width."""
    dtype = Arithmetic(bits, products).dtype  # as numbers are between two products
    size = _rows_of_batch(width)
    left, right = (_pattern(shape, 2**bits - 1, 2).to(dtype) for shape in ((size, width), (width, size)))
    factor, times = products.split(right), []
    for _ in range(_TRIALS):
        began = time.process_time()
        products.product(products.split(left), factor)
        times.append(time.process_time() - began)
    return min(times)


_HELD_AT_ONCE, _MOST_HELD = 2**21, 80
"""Numbers of records' own gradients, and such records, that are held at once: more do not fit the processor's cache."""
_MOST_AT_ONCE = 4096


@final
@dataclass(frozen=True)
class Node:
    """A layer and what goes into it: value 0 is the features, value i + 1 comes out of node i."""

    layer: NetLayer
    inputs: tuple[int, ...]


def chain(*layers: NetLayer) -> tuple[Node, ...]:
    """Layers one after another."""
    return tuple(Node(layer, (place,)) for place, layer in enumerate(layers))


@final
@dataclass(frozen=True, eq=False)
class Loaded:
    """Features on their grids; a record with a feature that is not finite is all zeros and not `valid`."""

    source: Rows
    valid: Tensor | None
    """Of the records that are taken; None where all are valid."""
    taken: Tensor | None = None
    """Which rows of the source; None for all of them."""

    def __len__(self) -> int:
        return len(self.source if self.taken is None else self.taken)

    def take(self, rows: Tensor) -> Loaded:
        return Loaded(self.source, None if self.valid is None else pick(self.valid, rows), rows)

    def rows(self, some: slice = slice(None)) -> Rows:
        """The features of some of the records, gathered now."""
        return self.source[some if self.taken is None else self.taken[some]]

    def masked(self, values: Tensor, rows: slice = slice(None)) -> Tensor:
        """Numbers or rows of numbers of some of the records, zero where a record is not valid."""
        return values if self.valid is None else values * each(self.valid[rows], values)


@final
class Network:
    """Layers on a grid of this number of bits; theta holds their parameters in the order of `layout`.

    Guarantee: the factors, norm, loss and coefficient of a record are a function of the record and of theta, bit for
    bit, and finite, for every theta and whatever else is in the batch: docs/theorems/exact-contributions.md.
    """

    def __init__(
        self, nodes: Sequence[Node], layout: ParameterLayout, classes: int, bits: Bits, tokens: bool = False
    ) -> None:
        self.layout, self.classes, self._tokens = layout, classes, tokens
        self._nodes = tuple(nodes)
        widths = [width for node in nodes for width in node.layer.widths]
        number = bits.number(max((2, *widths)))
        self.arithmetic = Arithmetic(number, choose_products(number, tuple(sorted(set(widths)))))
        held = max((node.layer.held for node in nodes), default=0)
        self._at_once = min(_MOST_HELD, max(1, _HELD_AT_ONCE // held)) if held else _MOST_AT_ONCE
        self._kept: WeakIdKeyDictionary = WeakIdKeyDictionary()
        self._asked: WeakIdKeyDictionary = WeakIdKeyDictionary()
        """How many records of a silo were asked for so far; all of them are loaded once that is worth it."""
        self._latest: tuple[ref[Tensor], int, Loaded] | None = None
        """The silo asked last: finding it among those kept takes longer."""

    # Features.

    def load(self, x: Features) -> Loaded:
        """Features on their grids; those of a silo are kept, so that a batch is gathered from them."""
        if isinstance(x, Tensor):
            return self._load(x)
        version, latest = x.source._version, self._latest
        if latest is None or latest[0]() is not x.source or latest[1] != version:
            before, asked = self._asked.get(x.source, (version, 0))  # type: ignore[no-untyped-call]
            asked = len(x) + (asked if before == version else 0)
            self._asked[x.source] = (version, asked)
            if asked < len(x.source):
                return self._load(x.tensor)  # a neighbour in an audit is asked for a few batches, then never again
            kept = self._kept.get(x.source)  # type: ignore[no-untyped-call]
            if kept is None or kept[0] != version:
                kept = self._kept[x.source] = (version, self._load(x.source))
            self._latest = latest = (ref(x.source), *kept)
        return latest[2] if x.rows is None else latest[2].take(x.rows)

    def _load(self, x: Tensor) -> Loaded:
        if self._tokens:
            if x.dtype.is_floating_point or x.dtype is torch.bool:
                raise InvalidInput("x", str(x.dtype), "must be whole numbers: tokens", "convert them by x.long()")
            return Loaded(Rows(x.long(), torch.ones(len(x), dtype=DOUBLE)), None)
        whole = torch.empty(x.shape, dtype=self.arithmetic.compact)
        unit, valid = torch.ones(len(x), dtype=DOUBLE), torch.ones(len(x), dtype=torch.bool)
        for some in blocks_of(len(x), _MOST_AT_ONCE) if len(x) else ():
            values = x[some].detach().to(DOUBLE)
            finite = torch.isfinite(values).flatten(1).all(dim=1)
            values = torch.where(each(finite, values), values, 0.0).clamp_(-LARGEST_FEATURE, LARGEST_FEATURE)
            rows = self.arithmetic.load(values)
            whole[some], unit[some], valid[some] = rows.whole.to(whole.dtype), rows.unit, finite
        rows = Rows(whole, unit)
        lengths = squares(self.arithmetic.high(rows, self.arithmetic.products.split(whole))) if len(x) else None
        return Loaded(Rows(whole, unit, lengths), None if bool(valid.all()) else valid)

    # What an algorithm asks for.

    def logits(self, theta: Tensor, x: Features) -> Tensor:
        """Scores, float64; differentiable by autograd in theta and in the features."""
        if isinstance(x, Tensor) and torch.is_grad_enabled() and (theta.requires_grad or x.requires_grad):
            found: Tensor = _Scores.apply(theta, x, self)  # type: ignore[no-untyped-call]
            return found
        passed = [scores for _, scores, _ in self._passes(theta.detach(), self.load(x))]
        return torch.cat(passed).to(DOUBLE) if passed else torch.zeros(0, self.classes, dtype=DOUBLE)

    def weighted_gradient(self, theta: Tensor, x: Features, y: Tensor, weigh: Weigh) -> WeightedGradient:
        """sum_i c_i grad_i of the cross-entropy; without rounding where `weigh` keeps a bound and bits are 7 or 13."""
        loaded = self.load(x)
        norms, losses, coefficients = torch.zeros(3, len(loaded), dtype=DOUBLE)
        bound = bound_of(weigh) if self.arithmetic.sums_exactly else None
        if bound is not None and len(loaded) > MOST_EXACT:
            raise CheckFailed(
                f"a clipped sum over more than {MOST_EXACT:,} records is not exact; draw batches, or split the silo"
            )

        def sums() -> Iterator[tuple[_Parts, Tensor]]:
            for some, scores, pull in self._passes(theta.detach(), loaded):
                own, residual = cross_entropy(scores, y[some])
                parts, _ = pull(loaded.masked(residual, some))
                losses[some], norms[some] = loaded.masked(own, some), parts.norms(bound is not None)
                coefficients[some] = finite(weigh(norms, losses))[some]
                # A norm of zero may be one that underflowed: such a record adds nothing.
                yield parts, coefficients[some] * (norms[some] > 0)

        total = self._sum(sums(), bound)
        return WeightedGradient(total, norms, losses, coefficients)

    def probability_gradient(self, theta: Tensor, x: Features, coefficients: Tensor) -> Tensor:
        """The gradient of sum_i <coefficients_i, probabilities_i> in theta."""
        loaded = self.load(x)

        def sums() -> Iterator[tuple[_Parts, Tensor]]:
            for some, scores, pull in self._passes(theta.detach(), loaded):
                pulled = through_softmax(probabilities_of(scores), coefficients[some].to(DOUBLE))
                yield pull(loaded.masked(pulled, some))[0], torch.ones(len(pulled), dtype=DOUBLE)

        return self._sum(sums(), None)

    def probability_norms(self, theta: Tensor, x: Features, directions: Tensor) -> Tensor:
        """For each record and each direction v: the norm of the gradient of <v, probabilities_i>; (records, v)."""
        loaded, out = self.load(x), torch.zeros(len(x), len(directions), dtype=DOUBLE)
        for some, scores, pull in self._passes(theta.detach(), loaded):
            probabilities = probabilities_of(scores)
            for place, v in enumerate(directions.to(DOUBLE)):
                pulled = loaded.masked(through_softmax(probabilities, v), some)
                out[some, place] = pull(pulled)[0].norms(False)
        return out

    def score_gradients(self, theta: Tensor, x: Features, in_scores: Tensor) -> Tensor:
        """Each record's gradient of <in_scores_i, scores_i> in theta: (records, size)."""
        loaded, out = self.load(x), torch.zeros(len(x), self.layout.size, dtype=DOUBLE)
        for some, _, pull in self._passes(theta.detach(), loaded):
            out[some] = pull(loaded.masked(in_scores[some].to(DOUBLE), some))[0].gradients()
        return out

    def pull_scores(self, theta: Tensor, x: Tensor, in_scores: Tensor) -> tuple[Tensor, Tensor | None]:
        """The gradients of sum_i <in_scores_i, scores_i> in theta and in the features, for autograd."""
        loaded, total, inputs = self.load(x), torch.zeros(self.layout.size, dtype=DOUBLE), []
        for some, scores, pull in self._passes(theta.detach(), loaded, follow=x.requires_grad):
            parts, back = pull(in_scores[some])
            parts.add(total, torch.ones(len(scores), dtype=DOUBLE), None)
            inputs.append(back)
        moved = torch.cat([one for one in inputs if one is not None]).to(x.dtype) if x.requires_grad else None
        return total.to(theta.dtype), moved

    # One pass over some of the records.

    def _passes(self, theta: Tensor, loaded: Loaded, follow: bool = False) -> Iterator[tuple[slice, Tensor, _PullBack]]:
        """Scores of runs of records, and what pulls gradients back; `follow` them down to the features, too."""
        parameters = self.layout.split(clamped(theta))
        prepared = [node.layer.prepare(self.arithmetic, parameters) for node in self._nodes]
        at_once = min(self._at_once, terms_per_block(len(loaded)))
        for some in blocks_of(len(loaded), at_once) if len(loaded) else ():
            rows = loaded.rows(some)
            yield some, *self._forward(prepared, rows.values(self.arithmetic.dtype) if follow else rows)

    def _forward(self, prepared: Sequence[Prepared | None], features: Values) -> tuple[Tensor, _PullBack]:
        values: list[Values] = [features]
        pulls: list[Pull] = []
        for node, own in zip(self._nodes, prepared, strict=True):
            found, pull = node.layer.forward(self.arithmetic, own, *(values[place] for place in node.inputs))
            values.append(found)
            pulls.append(pull)
        logits = values[-1]
        assert isinstance(logits, Tensor)
        return logits, partial(self._pull_back, pulls)

    def _pull_back(self, pulls: Sequence[Pull], in_scores: Tensor) -> tuple[_Parts, Tensor | None]:
        """Back-propagate a gradient in the scores: the layers' parts, and the gradient in the features if known."""
        deltas: list[Tensor | None] = [None] * (len(pulls) + 1)
        known = torch.nan_to_num(in_scores, 0.0).clamp_(-LARGEST_ACTIVATION, LARGEST_ACTIVATION)
        deltas[-1] = known.to(self.arithmetic.dtype)  # a number that is none would spread to other records' grids
        found: list[tuple[NetLayer, Part]] = []
        for place in range(len(pulls) - 1, -1, -1):
            delta, node = deltas[place + 1], self._nodes[place]
            if delta is None:
                continue
            backs, part = pulls[place](delta)
            if part is not None:
                found.append((node.layer, part))
            for into, back in zip(node.inputs, backs, strict=True):
                before = deltas[into]
                deltas[into] = back if before is None or back is None else before + back
        return _Parts(self.layout, tuple(found)), deltas[0]

    def _sum(self, parts: Iterator[tuple[_Parts, Tensor]], bound: float | None) -> Tensor:
        total = torch.from_numpy(np.zeros(self.layout.size))  # numpy asks for large pages, which cost less time
        if bound is None:
            sums = (one.add(torch.zeros_like(total), own, None) for one, own in parts)
            return total_of(chain_of((next(sums, total),), sums))
        for one, coefficients in parts:
            one.add(total, coefficients, bound)
        return total


@final
@dataclass(frozen=True, eq=False)
class _Parts:
    """The parts of all layers of one pass."""

    layout: ParameterLayout
    layers: tuple[tuple[NetLayer, Part], ...]

    def norms(self, exactly: bool) -> Tensor:
        """Each record's norm; layer by layer, so in the same order for every record."""
        first, *rest = (part.squared_norms(exactly) for _, part in self.layers)
        return root(sum(rest, start=first))

    def add(self, total: Tensor, coefficients: Tensor, bound: float | None) -> Tensor:
        places = self.layout.split(total)
        for layer, part in self.layers:
            part.add([places[name] for name in layer.parameters], coefficients, bound)
        return total

    def gradients(self) -> Tensor:
        """Each record's own gradient, laid out as theta is."""
        found: dict[str, Tensor] = {}
        for layer, part in self.layers:
            found.update(zip(layer.parameters, part.gradients(), strict=True))
        return torch.cat([found[name].flatten(1) for name in self.layout.names], dim=1)


_PullBack = Callable[[Tensor], tuple[_Parts, Tensor | None]]
"""From the gradient in the scores to the layers' parts, and to the gradient in the features if it is followed."""


class _Scores(torch.autograd.Function):
    """The network's scores under autograd: what is differentiated is the pass that training uses."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, x: Tensor, network: Network) -> Tensor:
        ctx.save_for_backward(theta, x)
        ctx.network = network
        return network.logits(theta.detach(), x.detach())

    @staticmethod
    def backward(ctx: Any, *in_scores: Tensor) -> tuple[Tensor | None, ...]:
        theta, x = ctx.saved_tensors
        return (*ctx.network.pull_scores(theta, x, in_scores[0]), None)


class NetworkModel(ABC):
    """A model whose scores are those of a network; a base class."""

    @property
    @abstractmethod
    def _network(self) -> Network: ...

    @property
    def size(self) -> int:
        return self._network.layout.size

    def logits(self, theta: Tensor, x: Features) -> Tensor:
        return self._network.logits(theta, x)

    def probabilities(self, theta: Tensor, x: Features) -> Tensor:
        return probabilities_of(self.logits(theta, x))

    def weighted_gradient(self, theta: Tensor, x: Features, y: Tensor, weigh: Weigh) -> WeightedGradient:
        return self._network.weighted_gradient(theta, x, y, weigh)

    def probability_gradient(self, theta: Tensor, x: Features, coefficients: Tensor) -> Tensor:
        return self._network.probability_gradient(theta, x, coefficients)

    def probability_norms(self, theta: Tensor, x: Features, directions: Tensor) -> Tensor:
        return self._network.probability_norms(theta, x, directions)

    def score_gradients(self, theta: Tensor, x: Features, in_scores: Tensor) -> Tensor:
        return self._network.score_gradients(theta, x, in_scores)

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        return self._network.layout.split(theta)

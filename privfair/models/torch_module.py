"""Any torch module as a model: linear and convolutional layers by hand, everything else through torch.func."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, assert_never, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from calibrate.errors import InvalidInput, UnsupportedCombination
from privfair.models.layers import (
    IrregularLayer,
    LayerTrace,
    ModuleParts,
    Unit,
    WholeTrace,
    coefficients_of,
    units_of,
    weigh_parts,
)
from privfair.models.model import (
    EXACT,
    ParameterLayout,
    Weigh,
    WeightedGradient,
    cross_entropy,
    in_working_precision,
    through_softmax,
)
from privfair.models.record_isolation import first_sentence, refuse_by_name, require_isolated
from privfair.rounding import total_of

# Before a module sees data it is tried on made-up records: which route gives each record's own gradient?
#
# What a record's gradient *is* has one definition here: that of the module run on this record alone. A route
# may be used
# only if it reproduces it, so the fast one can't be wrong in a module it was not made for.

_AGREEMENT = 1e-7
"""Relative, in float64, between a route's gradients and those of each record alone."""


class Route(Enum):
    """How per-record gradients are found."""

    LAYER_BY_LAYER = "layer by layer"
    """One pass over the batch; outer products, ghost norms or stored gradients in each layer."""
    WHOLE_MODULE = "whole module"
    """torch.func on the module as a whole: slower; for shared parameters, reused layers and the like."""


@final
@dataclass(frozen=True)
class ModuleTrial:
    """What was found out about a module."""

    classes: int
    route: Route
    units: tuple[Unit, ...]
    values_a_record: int
    """How many numbers a pass keeps in memory for each record."""


def trace(
    route: Route,
    module: nn.Module,
    units: tuple[Unit, ...],
    layout: ParameterLayout,
    parameters: Mapping[str, Tensor],
    x: Tensor,
) -> LayerTrace | WholeTrace:
    """A forward pass by this route."""
    match route:
        case Route.LAYER_BY_LAYER:
            return LayerTrace(module, units, layout, parameters, x)
        case Route.WHOLE_MODULE:
            return WholeTrace(module, layout, parameters, x)
        case _:
            assert_never(route)


def try_module(module: nn.Module, layout: ParameterLayout, theta: Tensor, example: Tensor) -> ModuleTrial:
    """Refuse a module whose records are not isolated; else the fastest route that is right."""
    parameters = layout.split(_stir(theta))
    require_isolated(module, parameters, example)
    with torch.no_grad():
        classes = functional_call(module, parameters, (example,)).shape[1]
    generator = torch.Generator().manual_seed(1)
    in_scores = torch.randn(len(example), classes, generator=generator, dtype=EXACT)
    weights = torch.randn(len(example), generator=generator, dtype=EXACT)
    try:
        alone = _gradients_alone(module, layout, parameters, example, in_scores)
    except RuntimeError as error:
        raise _no_route(module, f"torch can't differentiate it ({first_sentence(error)}): its gradients") from error
    units = units_of(module)
    found = {name for unit in units for name in unit.full_names()}
    for route in Route:
        if route is Route.LAYER_BY_LAYER and found != set(layout.names):
            continue  # a parameter is shared between layers
        try:
            passed = trace(route, module, units, layout, parameters, example)
            parts = passed.parts(in_scores)
        except (IrregularLayer, RuntimeError):
            continue
        if _agree(alone, parts.norms(), parts.weighted(weights), weights):
            held = passed.values_held + parts.values_held
            return ModuleTrial(int(classes), route, units, max(1, held // len(example)))
    raise _no_route(module, "neither route gives the gradients that each record has alone")


def _no_route(module: nn.Module, why: str) -> UnsupportedCombination:
    return UnsupportedCombination(
        f"the module {type(module).__name__}",
        f"{why}, so they can't be clipped",
        "avoid custom backward passes and changes in place",
    )


def _stir(theta: Tensor) -> Tensor:
    """A little away from the start: layers that start at zero would hide what lies before them."""
    generator = torch.Generator().manual_seed(2)
    return theta + 0.05 * torch.randn(theta.shape, generator=generator, dtype=EXACT)


def _gradients_alone(
    module: nn.Module, layout: ParameterLayout, parameters: Mapping[str, Tensor], example: Tensor, in_scores: Tensor
) -> Tensor:
    """The definition: each record's own pass, its own backward; (records, size)."""
    rows = []
    for record, pulled in zip(example, in_scores, strict=True):
        own = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        with torch.enable_grad():
            scores = functional_call(module, own, (record[None].clone(),))
        gradients = torch.autograd.grad(
            scores, list(own.values()), pulled[None], allow_unused=True, materialize_grads=True
        )
        rows.append(layout.join(dict(zip(own, gradients, strict=True))))
    return torch.stack(rows)


def _agree(alone: Tensor, norms: Tensor, total: Tensor, weights: Tensor) -> bool:
    expected = torch.linalg.vector_norm(alone, dim=1)
    off = torch.linalg.vector_norm(weights @ alone - total)
    return bool(
        torch.allclose(norms, expected, rtol=_AGREEMENT, atol=0.0)
        and off <= _AGREEMENT * (weights.abs() * expected).sum()
    )


_VALUES_AT_ONCE = 2**26
"""512 MB in float64."""


@final
class TorchModule:
    """A user's own module as a model: one tensor in (dimension 0 is the record), one score per class out.

    `build` makes the module; `initial(seed)` calls it under that seed. `example` are at least two made-up records
    (see `made_up_records`): on them the module is tried once, before it ever sees data. It is refused if records
    influence one another, and the fast route is taken only if its gradients are those of each record alone.

    Parameters with requires_grad=False stay as built and are not part of theta. `values_at_once` is how many numbers
    one pass may keep in memory; larger batches are cut into pieces.
    """

    def __init__(self, build: Callable[[], nn.Module], example: Tensor, values_at_once: int = _VALUES_AT_ONCE) -> None:
        if len(example) < 2:
            raise InvalidInput("example", len(example), "must hold at least 2 made-up records", "make up more")
        self._build = build
        self._example = example.to(EXACT) if example.dtype.is_floating_point else example
        self._values_at_once = values_at_once
        module = _build_seeded(build, 0)
        refuse_by_name(module)
        self._layout = _layout(module)
        self._modules = {EXACT: module.to(EXACT)}
        self._turn = threading.RLock()  # torch.func puts parameters into the module while it runs
        self._trial = try_module(self._modules[EXACT], self._layout, self.initial(0), self._example)

    def __reduce__(self) -> tuple[Any, ...]:
        return TorchModule, (self._build, self._example, self._values_at_once)

    @property
    def size(self) -> int:
        return self._layout.size

    @property
    def classes(self) -> int:
        return self._trial.classes

    @property
    def route(self) -> Route:
        """How per-record gradients are found."""
        return self._trial.route

    def initial(self, seed: int) -> Tensor:
        """The trainable parameters of a module built under this seed."""
        module = _build_seeded(self._build, seed)
        if _layout(module) != self._layout:
            rule = "builds modules with different parameters"
            raise InvalidInput("build", self._build, rule, "let it build the same module each time")
        return self._layout.join({name: value.to(EXACT) for name, value in _trainable(module)})

    def logits(self, theta: Tensor, x: Tensor) -> Tensor:
        working = in_working_precision(theta, x)
        if len(x) == 0:
            return working.new_zeros((0, self.classes))
        parameters = self._layout.split(working)
        with self._turn:
            module = self._module(working.dtype)
            return torch.cat([functional_call(module, parameters, (piece,)) for piece in self._pieces(x)])

    def probabilities(self, theta: Tensor, x: Tensor) -> Tensor:
        return torch.softmax(self.logits(theta, x), dim=1)

    def weighted_gradient(self, theta: Tensor, x: Tensor, y: Tensor, weigh: Weigh) -> WeightedGradient:
        """sum_i c_i grad_i; a batch too large for memory is measured first and then summed, piece by piece."""

        def back(piece: Tensor, labels: Tensor) -> tuple[Tensor, ModuleParts]:
            passed = self._trace(theta, piece)
            losses, residual = cross_entropy(passed.logits, labels)
            return losses, passed.parts(residual)

        with self._turn:
            pieces = list(zip(self._pieces(x), self._pieces(y, like=x), strict=True))
            if len(pieces) == 1:
                losses, parts = back(*pieces[0])
                return weigh_parts(parts, losses, weigh)
            measured = [(losses, parts.norms()) for losses, parts in (back(*piece) for piece in pieces)]
            all_losses = _join([losses for losses, _ in measured])
            norms = _join([norms for _, norms in measured])
            coefficients = coefficients_of(weigh, norms, all_losses)
            sums = (
                one
                for piece, own in zip(pieces, self._pieces(coefficients, like=x), strict=True)
                for one in back(*piece)[1].sums(own, len(x))
            )
            total = total_of(itertools.chain((torch.zeros(self.size, dtype=EXACT),), sums))
        return WeightedGradient(total, norms, all_losses, coefficients)

    def probability_gradient(self, theta: Tensor, x: Tensor, coefficients: Tensor) -> Tensor:
        def sums() -> Iterator[Tensor]:
            yield torch.zeros(self.size, dtype=EXACT)
            for piece, rows in zip(self._pieces(x), self._pieces(coefficients, like=x), strict=True):
                passed = self._trace(theta, piece)
                pulled = through_softmax(torch.softmax(passed.logits, dim=1), rows.to(passed.logits.dtype))
                yield from passed.parts(pulled).sums(torch.ones(len(piece), dtype=EXACT), len(x))

        with self._turn:
            return total_of(sums())

    def probability_norms(self, theta: Tensor, x: Tensor, directions: Tensor) -> Tensor:
        rows = [torch.zeros(0, len(directions), dtype=EXACT)]
        with self._turn:
            for piece in self._pieces(x):
                passed = self._trace(theta, piece)
                probabilities = torch.softmax(passed.logits, dim=1)
                along = [
                    passed.parts(through_softmax(probabilities, v)).norms() for v in directions.to(probabilities.dtype)
                ]
                rows.append(torch.stack(along, dim=1) if along else torch.zeros(len(piece), 0, dtype=EXACT))
        return torch.cat(rows)

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        return self._layout.split(theta)

    def as_module(self, theta: Tensor) -> nn.Module:
        """The module with these parameters, for use elsewhere."""
        with self._turn:
            module = copy.deepcopy(self._module(theta.dtype))
        module.load_state_dict(self.named_parameters(theta), strict=False)
        return module

    def _trace(self, theta: Tensor, x: Tensor) -> LayerTrace | WholeTrace:
        working = in_working_precision(theta, x).detach()
        rest = (self._module(working.dtype), self._trial.units, self._layout, self._layout.split(working), x)
        try:
            return trace(self._trial.route, *rest)
        except (IrregularLayer, RuntimeError):
            # A module may do otherwise at another batch size; what is really wrong with it fails here again.
            return trace(Route.WHOLE_MODULE, *rest)

    def _module(self, dtype: torch.dtype) -> nn.Module:
        if dtype not in self._modules:
            self._modules[dtype] = copy.deepcopy(self._modules[EXACT]).to(dtype)
        return self._modules[dtype]

    def _pieces(self, values: Tensor, like: Tensor | None = None) -> Iterator[Tensor]:
        """Runs of records that one pass can hold in memory."""
        at_once = max(1, self._values_at_once // self._trial.values_a_record)
        records = len(values if like is None else like)
        return (values[start : start + at_once] for start in range(0, records, at_once))


def _build_seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module of our own, built under a seed; the caller's random numbers are left as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build()
    if not isinstance(module, nn.Module):
        raise InvalidInput("build", type(module).__name__, "must return a torch.nn.Module", "return the module itself")
    own = copy.deepcopy(module).train()
    for layer in own.modules():
        if getattr(layer, "inplace", False) is True:
            # What a layer returned must stay as it was until its gradient is formed.
            object.__setattr__(layer, "inplace", False)
    return own


def _trainable(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, value.detach()) for name, value in module.named_parameters() if value.requires_grad)


def _layout(module: nn.Module) -> ParameterLayout:
    layout = ParameterLayout.of(_trainable(module))
    if layout.size == 0:
        rule = "has no trainable parameters"
        raise InvalidInput("module", type(module).__name__, rule, "set requires_grad=True on what is to be trained")
    return layout


def _join(pieces: list[Tensor]) -> Tensor:
    return torch.cat(pieces).to(EXACT) if pieces else torch.zeros(0, dtype=EXACT)

"""Before a module sees data it is tried on made-up records: which route gives each record's own gradient?

What a record's gradient *is* has one definition here: that of the module run on this record alone. A route may be used
only if it reproduces it, so the fast one can't be wrong in a module it was not made for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import assert_never, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from calibrate.errors import UnsupportedCombination
from privfair.models.layer_trace import IrregularLayer, LayerTrace, Unit, WholeTrace, units_of
from privfair.models.layout import ParameterLayout
from privfair.models.record_isolation import first_sentence, require_isolated
from privfair.models.scores import EXACT

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
class Trial:
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


def try_module(module: nn.Module, layout: ParameterLayout, theta: Tensor, example: Tensor) -> Trial:
    """Refuse a module whose records are not isolated; else the fastest route that is right."""
    parameters = layout.split(_stirred(theta))
    require_isolated(module, parameters, example)
    with torch.no_grad():
        classes = functional_call(module, parameters, (example,)).shape[1]
    generator = torch.Generator().manual_seed(1)
    in_scores = torch.randn(len(example), classes, generator=generator, dtype=EXACT)
    weights = torch.randn(len(example), generator=generator, dtype=EXACT)
    try:
        alone = _gradients_alone(module, layout, parameters, example, in_scores)
    except RuntimeError as error:
        raise _no_route(
            module, f"torch can't differentiate it ({first_sentence(error)}): its gradients"
        ) from error
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
            return Trial(int(classes), route, units, max(1, held // len(example)))
    raise _no_route(module, "neither route gives the gradients that each record has alone")


def _no_route(module: nn.Module, why: str) -> UnsupportedCombination:
    return UnsupportedCombination(
        f"the module {type(module).__name__}",
        f"{why}, so they can't be clipped",
        "avoid custom backward passes and changes in place",
    )


def _stirred(theta: Tensor) -> Tensor:
    """A little away from the start: layers that start at zero would hide what lies before them."""
    generator = torch.Generator().manual_seed(2)
    return theta + 0.05 * torch.randn(theta.shape, generator=generator, dtype=EXACT)


def _gradients_alone(
    module: nn.Module,
    layout: ParameterLayout,
    parameters: Mapping[str, Tensor],
    example: Tensor,
    in_scores: Tensor,
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

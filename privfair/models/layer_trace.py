"""One forward and one backward pass over the activations of a module, layer by layer; weights get no gradients.

Every trainable layer notes what goes into it and what comes out; back-propagating a gradient in the scores to those
outputs gives, for each record, the two things its weight gradients are made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from privfair.models.layer_parts import LayerParts, StoredGradients, layer_parts
from privfair.models.layout import ParameterLayout

_COPIES = 4
"""How many copies of a record's gradient torch.func keeps, roughly."""


class IrregularLayer(Exception):
    """A layer is used in a way that layer-by-layer gradients don't cover; the module then goes the general way."""


@final
@dataclass(frozen=True)
class Unit:
    """A submodule that owns trainable parameters directly; all trainable parameters below it count as its own."""

    name: str
    parameter_names: tuple[str, ...]
    """Names within the unit."""

    def full_names(self) -> tuple[str, ...]:
        return tuple(f"{self.name}.{own}" if self.name else own for own in self.parameter_names)


def units_of(module: nn.Module, name: str = "") -> tuple[Unit, ...]:
    """The units of a module, in the order of its parameters."""
    if any(parameter is not None and parameter.requires_grad for parameter in module._parameters.values()):
        trainable = tuple(own for own, parameter in module.named_parameters() if parameter.requires_grad)
        return (Unit(name, trainable),)
    return tuple(
        unit
        for child_name, child in module.named_children()
        for unit in units_of(child, f"{name}.{child_name}" if name else child_name)
    )


@final
@dataclass(frozen=True, eq=False)
class ModuleParts:
    """The parts of all layers of one pass, laid out as theta is."""

    layout: ParameterLayout
    layers: tuple[tuple[tuple[str, ...], LayerParts], ...]
    """Full parameter names and the layer's parts."""

    def norms(self) -> Tensor:
        return torch.stack([parts.squared_norms() for _, parts in self.layers]).sum(dim=0).sqrt()

    def weighted(self, coefficients: Tensor) -> Tensor:
        found: dict[str, Tensor] = {}
        for names, parts in self.layers:
            found.update(zip(names, parts.weighted(coefficients), strict=True))
        return self.layout.join(found)

    @property
    def values_held(self) -> int:
        return sum(parts.values_held for _, parts in self.layers)


@final
@dataclass(frozen=True, eq=False)
class _Note:
    """What one unit saw in the forward pass, with the version numbers that reveal a later change in place."""

    went_in: Tensor
    came_out: Tensor
    versions: tuple[int, int]

    def unchanged(self) -> bool:
        return (self.went_in._version, self.came_out._version) == self.versions


@final
class LayerTrace:
    """A forward pass that remembers; `parts` can be asked for several gradients in the scores."""

    def __init__(
        self,
        module: nn.Module,
        units: tuple[Unit, ...],
        layout: ParameterLayout,
        parameters: Mapping[str, Tensor],
        x: Tensor,
    ) -> None:
        self._module = module
        self._layout = layout
        self._parameters = parameters
        self._notes: dict[Unit, _Note] = {}
        handles = [
            module.get_submodule(unit.name).register_forward_hook(
                self._noting(unit, len(x)), with_kwargs=True
            )
            for unit in units
        ]
        try:
            with torch.enable_grad():
                self._scores = functional_call(module, dict(parameters), (x,))
        finally:
            for handle in handles:
                handle.remove()
        if len(self._notes) != len(units) or not all(note.unchanged() for note in self._notes.values()):
            raise IrregularLayer("a layer was skipped, or its values were changed in place")

    @property
    def logits(self) -> Tensor:
        return self._scores.detach()

    @property
    def values_held(self) -> int:
        return sum(note.went_in.numel() + note.came_out.numel() for note in self._notes.values())

    def parts(self, in_scores: Tensor) -> ModuleParts:
        """Back-propagate a gradient in the scores."""
        outputs = [note.came_out for note in self._notes.values()]
        came_back = torch.autograd.grad(
            self._scores, outputs, in_scores, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        layers = tuple(
            (unit.full_names(), self._layer(unit, note, gradient))
            for (unit, note), gradient in zip(self._notes.items(), came_back, strict=True)
        )
        return ModuleParts(self._layout, layers)

    def _layer(self, unit: Unit, note: _Note, came_back: Tensor) -> LayerParts:
        own = {
            name: self._parameters[full]
            for name, full in zip(unit.parameter_names, unit.full_names(), strict=True)
        }
        return layer_parts(self._module.get_submodule(unit.name), own, note.went_in, came_back)

    def _noting(self, unit: Unit, records: int) -> Any:
        def note(layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            regular = (
                unit not in self._notes
                and len(given) == 1
                and not named
                and all(isinstance(value, Tensor) and value.ndim >= 2 for value in (*given, output))
                and given[0].shape[0] == output.shape[0] == records
            )
            if not regular:
                raise IrregularLayer(f"{unit.name} is not called once with one tensor of records")
            # The first layers' outputs start the graph: nothing is propagated to weights or to the data.
            if not output.requires_grad:
                output.requires_grad_()
            self._notes[unit] = _Note(given[0].detach(), output, (given[0]._version, output._version))

        return note


@final
class WholeTrace:
    """The general way: every record's gradient by torch.func, one record being all that a pass ever sees."""

    def __init__(
        self, module: nn.Module, layout: ParameterLayout, parameters: Mapping[str, Tensor], x: Tensor
    ) -> None:
        self._module = module
        self._layout = layout
        self._parameters = parameters
        self._x = x
        self.logits = scores_record_by_record(module, parameters, x)

    @property
    def values_held(self) -> int:
        """torch.func keeps activations that can't be counted from outside; a few copies of the gradient stand in."""
        return _COPIES * len(self._x) * (self._layout.size + self._x[0].numel())

    def parts(self, in_scores: Tensor) -> ModuleParts:
        def one(record: Tensor, pulled: Tensor) -> tuple[Tensor, ...]:
            _, pull = vjp(
                lambda own: functional_call(self._module, own, (record[None],)), dict(self._parameters)
            )
            return tuple(pull(pulled[None])[0].values())

        stored = StoredGradients.of(*vmap(one)(self._x, in_scores))
        return ModuleParts(self._layout, ((self._layout.names, stored),))


def scores_record_by_record(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The scores of each record as if it were alone, vectorised; a module that looks at values can't pass."""
    with torch.no_grad():
        return vmap(lambda record: functional_call(module, dict(parameters), (record[None],))[0])(x)

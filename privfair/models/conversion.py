"""From a torch module to the nodes of a network: its `forward`, as torch.fx traces it, node by node.

In addition to calling covered layers, `forward` may add, reshape, permute, select and average. What is not known is
refused with its name, before any data is seen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from calibrate.errors import InvalidInput
from privfair.models.layer_conversion import LAYERS, Builder, Value, refuse, refuse_layer, require_no_dropout
from privfair.models.layers import Reshape
from privfair.models.network import Node
from privfair.models.record_layers import Add, Mean, Offset, Permute, Select


def convert(module: nn.Module, example: Tensor) -> tuple[Node, ...]:
    """The nodes of a module, which takes records like those of `example`; the last one's values are the scores."""
    for name, layer in module.named_modules():
        hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
        if any(hooks) or "forward" in vars(layer):
            refuse(name, type(layer).__name__, "has hooks, or a forward method of this one object", "remove them")
    root = nn.Sequential(module)  # so that a module that is one layer is called like any other
    try:
        traced = fx.symbolic_trace(root)
    except Exception as error:
        rule = f"can't be followed by torch.fx ({_first_sentence(error)}): it branches on values, or counts records"
        refuse("", type(module).__name__, rule, "write `forward` without `if`, `len` and `float` of tensors")
    for node in traced.graph.nodes:
        if not node.users and _changes_in_place(traced, node):
            rule = "changes a value in place, and what it returns is not used"
            place = _name(node) if node.op == "call_module" else node.name
            refuse(place, "in-place", rule, "use what it returns, as in h = h + x or h = F.relu(h)")
    traced.graph.eliminate_dead_code()
    graph = _Graph(traced, Builder({id(p): name for name, p in module.named_parameters() if p.requires_grad}))
    graph.check_layers()
    try:
        with torch.no_grad():
            _Shapes(traced).run(example.clone())
    except Exception as error:
        why = f"{type(error).__name__}: {_first_sentence(error)}"
        rule = f"fails on made-up records of shape {tuple(example.shape[1:])} ({why})"
        raise InvalidInput("module", type(module).__name__, rule, "let it take records of this shape") from error
    return graph.nodes()


def _first_sentence(error: BaseException) -> str:
    """The beginning of an error's text."""
    return str(error).strip().split("\n")[0].split(". ")[0][:160]


@final
class _Shapes(fx.Interpreter):
    """Runs a traced module and notes the shape of every tensor; of the first one where a node gives several."""

    extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        found = super().run_node(n)
        first = found[0] if isinstance(found, tuple) and found else found
        if isinstance(first, Tensor):
            n.meta["shape"] = tuple(first.shape)
        return found


@final
class _Graph:
    """A traced module, and the values of its nodes that were converted."""

    def __init__(self, traced: fx.GraphModule, builder: Builder) -> None:
        self._traced, self.builder = traced, builder
        self._values: dict[fx.Node, Value] = {}

    def check_layers(self) -> None:
        """Refuse layers that are not covered, or not as they are called, whatever their shapes."""
        for node in self._traced.graph.nodes:
            if node.op != "call_module":
                continue
            name, layer = _name(node), self.called_layer(node)
            if type(layer) not in LAYERS:
                refuse_layer(name, layer)
            if isinstance(layer, nn.MultiheadAttention):
                _require_self_attention(name, node)
            elif len(node.args) != 1 or node.kwargs:
                refuse(name, type(layer).__name__, "is called with more than one tensor", "call it with one")

    def nodes(self) -> tuple[Node, ...]:
        for node in self._traced.graph.nodes:
            if node.op == "placeholder":
                self._values[node] = Value(0, _shape_of(node))
            elif node.op == "output":
                self._finish(node)
            elif not _counts_dimensions(node) and node.op != "get_attr":
                self._values[node] = Value(self._convert(node), _shape_of(node))
        return tuple(self.builder.nodes)

    def _convert(self, node: fx.Node) -> int:
        if node.op == "call_module":
            return self.apply(_name(node), self.called_layer(node), node)
        known = _METHODS if node.op == "call_method" else _FUNCTIONS
        convert = known.get(node.target)
        if convert is None:
            refuse(node.name, _called(node), "is not a covered operation")
        return convert(self, node)

    def apply(self, name: str, layer: nn.Module, node: fx.Node) -> int:
        """A layer on a node's first argument."""
        changed = node.args[0]
        if getattr(layer, "inplace", False) and not (isinstance(changed, fx.Node) and len(changed.users) == 1):
            refuse(
                node.name, _called(node), "changes a value in place that is used elsewhere", "leave out inplace=True"
            )
        return self.builder.layer(name, layer, self.value(node, 0))

    def _finish(self, node: fx.Node) -> None:
        source = node.args[0]
        if not isinstance(source, fx.Node) or source not in self._values:
            refuse("output", "what the module returns", "must be one tensor of scores", "return the scores alone")
        found = self._values[source]
        if len(found.shape) != 1 or found.shape[0] < 2:
            rule = "must be one row per record and one column per class, at least two"
            remedy = "return two columns for two classes, as for torch.nn.CrossEntropyLoss"
            raise InvalidInput("module", f"scores of shape {found.shape} for each record", rule, remedy)
        for name in self.builder.unused:
            refuse(name, "a trainable parameter", "is used by no covered layer", "set requires_grad=False")
        if found.number != len(self.builder.nodes):
            refuse(source.name, "the output", "is not the last value that is computed", "drop what is not used")

    # What goes into a node.

    def value(self, node: fx.Node, place: int) -> Value:
        """A value of the network."""
        given = node.args[place] if place < len(node.args) else None
        if not isinstance(given, fx.Node) or given not in self._values:
            refuse(node.name, _called(node), "takes something other than a value of the network")
        return self._values[given]

    def parameter(self, given: object) -> Tensor | None:
        """A parameter or buffer of the module that `forward` uses directly."""
        if not isinstance(given, fx.Node) or given.op != "get_attr":
            return None
        found: Any = self._traced
        for part in str(given.target).split("."):
            found = getattr(found, part)
        return found if isinstance(found, Tensor) else None

    def called_layer(self, node: fx.Node) -> nn.Module:
        return self._traced.get_submodule(str(node.target))


def _name(node: fx.Node) -> str:
    """A layer's or parameter's name in the user's module."""
    return str(node.target).removeprefix("0").removeprefix(".")


def _called(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of one record."""
    return tuple(node.meta["shape"][1:])


def _counts_dimensions(node: fx.Node) -> bool:
    """Whether a node gives sizes, which only reshaping may use."""
    if node.op == "call_method" and node.target in ("size", "dim"):
        return True
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in ("shape", "ndim")
    source = node.args[0]
    return node.target is operator.getitem and isinstance(source, fx.Node) and _counts_dimensions(source)


def _changes_in_place(traced: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(traced.get_submodule(str(node.target)), "inplace", False))
    return _called(node).endswith("_") or node.kwargs.get("inplace") is True


def _require_self_attention(name: str, node: fx.Node) -> None:
    given = [*node.args, *(node.kwargs[key] for key in ("query", "key", "value") if key in node.kwargs)]
    others = set(node.kwargs) - {"query", "key", "value", "need_weights", "average_attn_weights"}
    if len(given) != 3 or len(set(given)) != 1 or not node.args or others:
        rule = "is covered without masks, for the same tensor as query, key and value"
        refuse(name, "MultiheadAttention", rule, "call it as attention(x, x, x)")


# Functions and methods that `forward` calls.

_ConvertNode = Callable[[_Graph, fx.Node], int]


def _as_layer(kind: type[nn.Module]) -> _ConvertNode:
    """A function that is a layer without parameters, with its arguments."""

    def convert(to: _Graph, node: fx.Node) -> int:
        try:
            layer = kind(*node.args[1:], **node.kwargs)
        except Exception as error:
            refuse(node.name, _called(node), f"has arguments that {kind.__name__} does not take ({error})")
        return to.apply(node.name, layer, node)

    return convert


def _addition(to: _Graph, node: fx.Node) -> int:
    if len(node.args) != 2 or node.kwargs:
        refuse(node.name, "add", "is covered for two tensors without options", "write a + b")
    left, right = node.args
    for mine, other in ((0, right), (1, left)):
        offset = to.parameter(other)
        if offset is None:
            continue
        x = to.value(node, mine)
        if tuple(offset.shape) not in (x.shape, (1, *x.shape)):
            rule = f"adds a parameter of shape {tuple(offset.shape)} to records of shape {x.shape}"
            refuse(node.name, "add", rule, "give the parameter the shape of a record")
        assert isinstance(other, fx.Node)
        return to.builder.add(Offset(tuple(offset.shape), to.builder.use("", _name(other), offset)), x.number)
    one, two = to.value(node, 0), to.value(node, 1)
    if one.shape != two.shape:
        refuse(node.name, "add", f"adds records of shapes {one.shape} and {two.shape}", "add values of the same shape")
    return to.builder.add(Add(), one.number, two.number)


def _reshape(to: _Graph, node: fx.Node) -> int:
    """Flatten, view and the like: whatever keeps the number of records keeps each record's numbers in its row."""
    before, after = node.args[0], node.meta["shape"]
    x = to.value(node, 0)
    assert isinstance(before, fx.Node)
    if not len(after) or after[0] != before.meta["shape"][0]:
        refuse(node.name, _called(node), "joins or splits records", "keep dimension 0 as it is")
    return to.builder.add(Reshape(tuple(after[1:])), x.number)


def _permute(to: _Graph, node: fx.Node) -> int:
    x = to.value(node, 0)
    sizes = len(x.shape) + 1
    order = list(range(sizes))
    places = [one for one in node.args[1:] if isinstance(one, int)] or list(_ints(node.args[1:]))
    places = [one % sizes for one in places]
    if node.target in ("transpose", torch.transpose) and len(places) == 2:
        order[places[0]], order[places[1]] = order[places[1]], order[places[0]]
    else:
        order = places
    if sorted(order) != list(range(sizes)) or order[0] != 0:
        refuse(node.name, _called(node), "moves the records' dimension, or has options", "keep dimension 0 first")
    return to.builder.add(Permute(tuple(order)), x.number)


def _ints(given: object) -> tuple[int, ...]:
    """Whole numbers from nested lists of them."""
    if isinstance(given, int):
        return (given,)
    return tuple(one for part in given for one in _ints(part)) if isinstance(given, (tuple, list)) else ()


def _mean(to: _Graph, node: fx.Node) -> int:
    x = to.value(node, 0)
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    keep = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    places = tuple(sorted(one % (len(x.shape) + 1) for one in _ints(given)))
    if not places or 0 in places or set(node.kwargs) - {"dim", "keepdim"}:
        refuse(node.name, "mean", "must run over named dimensions other than the records'", "write x.mean(dim=1)")
    return to.builder.add(Mean(places, bool(keep)), x.number)


def _getitem(to: _Graph, node: fx.Node) -> int:
    source, index = node.args[0], node.args[1]
    assert isinstance(source, fx.Node)
    if source.op == "call_module" and isinstance(to.called_layer(source), nn.MultiheadAttention):
        if index != 0:
            refuse(node.name, "the attention's weights", "are not covered", "use its first output alone")
        return to.value(node, 0).number
    x = to.value(node, 0)
    places = index if isinstance(index, tuple) else (index,)
    if places[0] != slice(None) or not all(_is_index(one) for one in places):
        refuse(node.name, "an index", "must leave dimension 0 as it is, with whole numbers and slices", "write x[:, 0]")
    return to.builder.add(Select(places[1:]), x.number)  # type: ignore[arg-type]


def _is_index(one: object) -> bool:
    if isinstance(one, slice):
        return all(part is None or isinstance(part, int) for part in (one.start, one.stop, one.step))
    return isinstance(one, int)


def _dropout_function(to: _Graph, node: fx.Node) -> int:
    given = dict(zip(("input", "p", "training"), node.args, strict=False)) | node.kwargs
    p = 0.0 if given.get("training") is False else given.get("p", 0.5)
    require_no_dropout(node.name, "dropout", p if isinstance(p, (int, float)) else 1.0)
    return to.value(node, 0).number


_FUNCTIONS: dict[Any, _ConvertNode] = {
    **dict.fromkeys((operator.add, torch.add), _addition),
    **dict.fromkeys((functional.relu, torch.relu), _as_layer(nn.ReLU)),
    functional.leaky_relu: _as_layer(nn.LeakyReLU),
    **dict.fromkeys((functional.tanh, torch.tanh), _as_layer(nn.Tanh)),
    **dict.fromkeys((functional.sigmoid, torch.sigmoid), _as_layer(nn.Sigmoid)),
    functional.silu: _as_layer(nn.SiLU),
    functional.gelu: _as_layer(nn.GELU),
    functional.max_pool1d: _as_layer(nn.MaxPool1d),
    functional.max_pool2d: _as_layer(nn.MaxPool2d),
    functional.avg_pool1d: _as_layer(nn.AvgPool1d),
    functional.avg_pool2d: _as_layer(nn.AvgPool2d),
    functional.adaptive_avg_pool1d: _as_layer(nn.AdaptiveAvgPool1d),
    functional.adaptive_avg_pool2d: _as_layer(nn.AdaptiveAvgPool2d),
    functional.dropout: _dropout_function,
    **dict.fromkeys((torch.flatten, torch.reshape, torch.squeeze, torch.unsqueeze), _reshape),
    **dict.fromkeys((torch.transpose, torch.permute), _permute),
    torch.mean: _mean,
    operator.getitem: _getitem,
}
_METHODS: dict[Any, _ConvertNode] = {
    "add": _addition,
    "relu": _as_layer(nn.ReLU),
    "tanh": _as_layer(nn.Tanh),
    "sigmoid": _as_layer(nn.Sigmoid),
    **dict.fromkeys(("flatten", "view", "reshape", "unflatten", "squeeze", "unsqueeze"), _reshape),
    **dict.fromkeys(("transpose", "permute"), _permute),
    "contiguous": lambda to, node: to.value(node, 0).number,
    "mean": _mean,
}

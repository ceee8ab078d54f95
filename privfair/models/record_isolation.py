"""No record may influence another record's gradient: without that, clipping one record bounds nothing.

Layers known to mix or to remember records are refused by name. What names can't tell is tried on made-up records: a
module whose scores for one record move when another record is exchanged is refused, and so is one that draws random
numbers, keeps state, or decides by looking at values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from calibrate.errors import InvalidInput
from privfair.models.layers import scores_record_by_record
from privfair.models.model import Model

_TOLERANCE = 1e-8
"""Relative, for scores in float64: batches of different sizes may round differently, and mix nothing."""


def made_up_records(shape: tuple[int, ...], records: int = 3) -> Tensor:
    """Standard normal records to try a module on; always the same, and nobody's."""
    generator = torch.Generator().manual_seed(20_240)
    return torch.randn((records, *shape), generator=generator, dtype=torch.float64)


def refuse_by_name(module: nn.Module) -> None:
    """Refuse layers that mix, remember or randomise records, and layers without sizes."""
    for name, layer in module.named_modules():
        called = f"{type(layer).__name__} at {name or 'the top'}"
        if isinstance(layer, _BatchNorm):
            raise InvalidInput(
                "module",
                called,
                "normalises by the other records of the batch, so clipping one record bounds nothing",
                "replace it by torch.nn.GroupNorm, which looks at one record only",
            )
        if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            raise InvalidInput(
                "module",
                called,
                "keeps running statistics of private records outside the published parameters",
                "set track_running_stats=False",
            )
        if (isinstance(layer, _DropoutNd) and layer.p > 0) or isinstance(layer, nn.RReLU):
            raise InvalidInput(
                "module",
                called,
                "draws random numbers, but a contribution must be a function of the data that an audit can repeat",
                "remove it; the privacy noise regularises",
            )
        if any(is_lazy(parameter) for parameter in layer._parameters.values() if parameter is not None):
            raise InvalidInput("module", called, "has no sizes yet", "give its sizes, or run it once beforehand")


def require_isolated(module: nn.Module, parameters: Mapping[str, Tensor], example: Tensor) -> None:
    """Try a module on made-up records (float64 where they are real numbers) and refuse what is not record by record."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    scores = _scores(module, parameters, example)
    if scores.ndim != 2 or scores.shape[0] != len(example) or scores.shape[1] < 2:
        raise InvalidInput(
            "module",
            f"scores of shape {tuple(scores.shape)} for {len(example)} records",
            "must be one row per record and one column per class",
            "return two columns for two classes, as for torch.nn.CrossEntropyLoss",
        )
    if any(not torch.equal(before[name], buffer) for name, buffer in module.named_buffers()):
        changed = next(name for name, now in module.named_buffers() if not torch.equal(before[name], now))
        rule = "changes while scores are computed, so it carries private records outside the parameters"
        raise InvalidInput("module", f"buffer {changed}", rule, "keep no state between calls")
    if not _close(scores, _scores(module, parameters, example)):
        rule = "gives other scores when asked again"
        raise InvalidInput("module", type(module).__name__, rule, "remove what draws random numbers")
    _require_rows_apart(module, parameters, example, scores)
    _require_record_by_record(module, parameters, example, scores)


def influence_of_others(
    model: Model, theta: Tensor, batch: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]
) -> float:
    """How far the first record's gradient moves when all other records of the batch are exchanged; 0 is isolation.

    For any model, on any data: `batch` and `others` are (x, y) of equal shape, the first record is that of `batch`
    both times. Relative to the gradient's norm.
    """
    x, y = (torch.cat((ours[:1], theirs[1:])) for ours, theirs in zip(batch, others, strict=True))

    def only_the_first(norms: Tensor, losses: Tensor) -> Tensor:
        return torch.zeros_like(norms).index_fill(0, torch.tensor([0]), 1.0)

    here = model.weighted_gradient(theta, *batch, only_the_first)
    there = model.weighted_gradient(theta, x, y, only_the_first)
    moved = torch.linalg.vector_norm(here.total - there.total)
    return float(moved / here.norms[0].clamp_min(torch.finfo(torch.float64).tiny))


def _require_rows_apart(module: nn.Module, parameters: Mapping[str, Tensor], example: Tensor, scores: Tensor) -> None:
    """Exchange one record after the other; the others' scores must stay."""
    for exchanged in range(len(example)):
        altered = example.clone()
        altered[exchanged] = (
            3.0 * example[exchanged].flip(-1) + 1.0 if example.dtype.is_floating_point else example[exchanged - 1]
        )
        rest = torch.arange(len(example)) != exchanged
        if _close(scores[rest], _scores(module, parameters, altered)[rest]):
            continue
        where = _first_mixing(lambda x: _scores(module, parameters, x), module, (example, altered), rest)
        raise InvalidInput(
            "module",
            where,
            "gives a record other values when another record of the batch is exchanged",
            "let every layer work on one record at a time (dimension 0 is the record); to normalise, take GroupNorm",
        )


def _require_record_by_record(
    module: nn.Module, parameters: Mapping[str, Tensor], example: Tensor, scores: Tensor
) -> None:
    """Each record alone gives the same scores, in code that does not branch on values."""
    try:
        apart = scores_record_by_record(module, parameters, example)
    except RuntimeError as error:
        raise InvalidInput(
            "module",
            type(module).__name__,
            f"can't be run record by record by torch.func ({first_sentence(error)})",
            "write it without branching on values, and without recurrent layers (take linear or convolutional ones)",
        ) from error
    if not _close(scores, apart):
        rule = "scores a record differently in a batch and alone"
        raise InvalidInput("module", type(module).__name__, rule, "treat dimension 0 as the records everywhere")


def _first_mixing(
    run: Callable[[Tensor], Tensor], module: nn.Module, batches: tuple[Tensor, Tensor], rest: Tensor
) -> str:
    """Where the exchange of a record is first seen in the rest's values."""
    seen: list[dict[str, Tensor]] = []
    for x in batches:
        outputs: dict[str, Tensor] = {}
        seen.append(outputs)
        handles = [
            layer.register_forward_hook(_keeping(outputs, f"{type(layer).__name__} at {name}"))
            for name, layer in module.named_modules()
            if name
        ]
        try:
            run(x)
        finally:
            for handle in handles:
                handle.remove()
    for called, here in seen[0].items():
        there = seen[1].get(called)
        comparable = there is not None and here.shape == there.shape and len(here) == len(rest)
        if there is not None and comparable and not _close(here[rest], there[rest]):
            return f"{called} (or what feeds it)"
    return type(module).__name__


def _keeping(outputs: dict[str, Tensor], called: str) -> Callable[..., None]:
    def keep(layer: nn.Module, given: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim >= 1:
            outputs.setdefault(called, output.detach().clone())

    return keep


def _scores(module: nn.Module, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    with torch.no_grad():
        scores = functional_call(module, dict(parameters), (x.clone(),))
    if not isinstance(scores, Tensor):
        rule = "must return one tensor of scores"
        raise InvalidInput("module", type(scores).__name__, rule, "return the scores alone")
    return scores


def _close(one: Tensor, other: Tensor) -> bool:
    scale = float(one.abs().max()) if one.numel() else 0.0
    return one.shape == other.shape and torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * scale)


def first_sentence(error: BaseException) -> str:
    """The beginning of an error's text, short enough for a sentence of ours."""
    return str(error).strip().split("\n")[0].split(". ")[0][:160]

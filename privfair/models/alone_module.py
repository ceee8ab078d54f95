"""Any torch module as a model, one record per pass: for modules that are not covered by exact arithmetic."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from calibrate.errors import InvalidInput
from privfair.models.exact import (
    LARGEST_ACTIVATION,
    cross_entropy,
    folded_squares,
    probabilities_of,
    root,
    through_softmax,
)
from privfair.models.layer_conversion import require_deterministic
from privfair.models.model import EXACT, Features, Weigh, WeightedGradient, finite, tensor_of
from privfair.models.torch_module import BuiltModule
from privfair.rounding import blocks_of, sum_in_blocks

ISOLATION_ASSUMED = (
    "A record's gradient is a function of the record and of published values: the user's code is run on one record "
    "at a time in float64, keeps nothing between records, and the library computes the same bits for the same record."
)
"""What is signed where isolation = "alone"."""
_LOG = logging.getLogger("privfair.models")
_SMALLEST_SQUARE = 1e-280
"""Squared norms below this have lost digits; such a gradient is taken as zero."""
_HELD_AT_ONCE = 2**24
"""Numbers of gradients in memory at once: 128 MB."""

_InScores = Callable[[slice, Tensor], Tensor]
"""From some records and their scores to a gradient in the scores."""


@final
class AloneModule:
    """Any module: one tensor of one record in (dimension 0 has size one), one score per class out.

    Each record has a forward and a backward pass alone, in float64, in the order of the batch. That the result is a
    function of the record is an assumption, which the manifest lists: the module must keep nothing between passes, and
    torch's kernels must give the same bits for the same single record. Buffers are restored for every record. A record
    whose scores or gradient are not finite contributes zeros, with coefficient zero.
    """

    def __init__(self, build: Callable[[], nn.Module], example: Tensor) -> None:
        self._built = BuiltModule(build, example)
        require_deterministic(self._built.module)
        with torch.no_grad():
            scores = self._score(self._parameters(self.initial(0)), self._built.example[0])
        if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != 1 or scores.shape[1] < 2:
            shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            rule = "must be one tensor of scores: one row for one record, one column per class, at least two"
            raise InvalidInput("module", shape, rule, "return two columns for two classes")
        self._classes = int(scores.shape[1])

    def __reduce__(self) -> tuple[Any, ...]:
        return AloneModule, (self._built.build, self._built.example)

    @property
    def size(self) -> int:
        return self._built.layout.size

    @property
    def classes(self) -> int:
        return self._classes

    def initial(self, seed: int) -> Tensor:
        return self._built.initial(seed)

    def logits(self, theta: Tensor, x: Features) -> Tensor:
        """Scores, float64; what is not a number is taken as zero."""
        parameters = self._parameters(theta)
        rows = [self._score_or_nothing(parameters, record) for record in tensor_of(x)]
        scores = torch.cat(rows) if rows else torch.zeros(0, self.classes, dtype=EXACT)
        return torch.nan_to_num(scores, 0.0, LARGEST_ACTIVATION, -LARGEST_ACTIVATION)

    def probabilities(self, theta: Tensor, x: Features) -> Tensor:
        return probabilities_of(self.logits(theta, x))

    def weighted_gradient(self, theta: Tensor, x: Features, y: Tensor, weigh: Weigh) -> WeightedGradient:
        norms, losses = torch.zeros(len(x), dtype=EXACT), torch.zeros(len(x), dtype=EXACT)
        coefficients = torch.zeros_like(norms)

        def residuals(some: slice, scores: Tensor) -> Tensor:
            losses[some], residual = cross_entropy(scores, y[some])
            return residual

        def weighted(some: slice, gradients: Tensor, valid: Tensor) -> Tensor:
            norms[some] = root(folded_squares(gradients))
            losses[some] *= valid
            coefficients[some] = finite(weigh(norms, losses))[some] * valid
            return coefficients[some] @ gradients

        total = self._sum(theta, x, residuals, weighted)
        return WeightedGradient(total, norms, losses, coefficients)

    def probability_gradient(self, theta: Tensor, x: Features, coefficients: Tensor) -> Tensor:
        def pulled(some: slice, scores: Tensor) -> Tensor:
            return through_softmax(probabilities_of(scores), coefficients[some].to(EXACT))

        return self._sum(theta, x, pulled, lambda some, gradients, valid: gradients.sum(dim=0))

    def probability_norms(self, theta: Tensor, x: Features, directions: Tensor) -> Tensor:
        found = torch.zeros(len(x), len(directions), dtype=EXACT)
        for place, v in enumerate(directions.to(EXACT)):

            def pulled(some: slice, scores: Tensor, v: Tensor = v) -> Tensor:
                return through_softmax(probabilities_of(scores), v)

            for some in self._runs(len(x)):
                found[some, place] = root(folded_squares(self._gradients(theta, x, some, pulled)[0]))
        return found

    def score_gradients(self, theta: Tensor, x: Features, in_scores: Tensor) -> Tensor:
        return self._gradients(theta, x, slice(0, len(x)), lambda some, scores: in_scores[some].to(EXACT))[0]

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        return self._built.layout.split(theta)

    def as_module(self, theta: Tensor) -> nn.Module:
        """The module with these parameters, for use elsewhere."""
        return self._built.with_parameters(theta)

    # One record at a time.

    def _parameters(self, theta: Tensor) -> dict[str, Tensor]:
        return self._built.layout.split(theta.to(EXACT))

    def _score(self, parameters: dict[str, Tensor], record: Tensor) -> Tensor:
        """The module on one record, in separate memory; what it does to buffers is dropped."""
        buffers = {name: buffer.clone() for name, buffer in self._built.module.named_buffers()}
        given = record.to(EXACT) if record.dtype.is_floating_point else record
        scores: Tensor = functional_call(self._built.module, {**parameters, **buffers}, (given[None].clone(),))
        return scores

    def _score_or_nothing(self, parameters: dict[str, Tensor], record: Tensor) -> Tensor:
        """The scores; not numbers where the module fails on this record, which must not end the run."""
        try:
            return self._score(parameters, record)
        except Exception as error:
            _LOG.warning("the module failed on a record (%s), which contributes zeros", type(error).__name__)
            return torch.full((1, self.classes), math.nan, dtype=EXACT)

    def _gradients(self, theta: Tensor, x: Features, some: slice, in_scores: _InScores) -> tuple[Tensor, Tensor]:
        """Gradients of some records (records, size), zeros where one is not finite; and which are finite."""
        parameters = {name: value.requires_grad_() for name, value in self._parameters(theta.detach().clone()).items()}
        records = tensor_of(x)[some]
        found = torch.zeros(len(records), self.size, dtype=EXACT)
        valid = torch.zeros(len(records), dtype=torch.bool)
        for place, record in enumerate(records):
            with torch.enable_grad():
                scores = self._score_or_nothing(parameters, record)
            if not (scores.requires_grad and bool(torch.isfinite(scores).all())):
                continue
            one = slice(some.start + place, some.start + place + 1)
            pulled = in_scores(one, scores.detach())
            each = torch.autograd.grad(
                scores, list(parameters.values()), pulled, allow_unused=True, materialize_grads=True
            )
            gradient = self._built.layout.join(dict(zip(parameters, each, strict=True)))
            square = float(folded_squares(gradient[None])[0])
            valid[place] = math.isfinite(square)
            if valid[place] and square > _SMALLEST_SQUARE:
                found[place] = gradient
        return found, valid

    def _runs(self, records: int) -> list[slice]:
        """Runs of records whose gradients fit into memory."""
        at_once = max(1, _HELD_AT_ONCE // self.size)
        return [slice(one.start, min(one.stop, records)) for one in blocks_of(records, at_once)] if records else []

    def _sum(
        self, theta: Tensor, x: Features, in_scores: _InScores, add: Callable[[slice, Tensor, Tensor], Tensor]
    ) -> Tensor:
        def sum_of(rows: slice) -> Tensor:
            total = torch.zeros(self.size, dtype=EXACT)
            for run in self._runs(min(rows.stop, len(x)) - rows.start):
                some = slice(rows.start + run.start, rows.start + run.stop)
                total += add(some, *self._gradients(theta, x, some, in_scores))
            return total

        return sum_in_blocks(len(x), sum_of)

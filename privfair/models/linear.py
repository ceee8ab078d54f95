"""Logistic and softmax regression; their steps are in numpy, which costs less to call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import count
from privfair.models.exact import (
    LARGEST_WEIGHT,
    SMALLEST_TOP,
    Bits,
    clamped,
    exp_of_negative,
    log_of,
    on_grid,
    require_classes,
    residuals,
)
from privfair.models.layers import FreeScore, Linear, NetLayer, Reshape
from privfair.models.model import EXACT, ClippedTo, Features, Model, ParameterLayout, Weigh, WeightedGradient, finite
from privfair.models.network import Loaded, Network, NetworkModel, chain
from privfair.rounding import sum_in_blocks


@final
@dataclass(frozen=True)
class LogisticRegression(NetworkModel):
    """Linear scores with an intercept. Two classes need one score: theta has features + 1 entries.

    For more classes theta is a (features + 1) x classes matrix, flattened. The gradient of a record is an outer
    product of its extended features (x, 1) with its residual, so norms factor and clipping costs nothing.
    """

    features: int
    classes: int = 2

    def __post_init__(self) -> None:
        count("features", self.features)
        count("classes", self.classes, least=2)

    def initial(self, seed: int) -> Tensor:
        """Zero: the loss is convex, so the seed does not matter."""
        return torch.zeros(self.size, dtype=EXACT)

    @property
    def _network(self) -> Network:
        return _network(self)

    def weighted_gradient(self, theta: Tensor, x: Features, y: Tensor, weigh: Weigh) -> WeightedGradient:
        given = theta.detach() if self.classes == 2 else theta.detach().reshape(self.features + 1, -1)
        return _step(_network(self), self.classes, given, x, y, weigh)

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        matrix = theta.reshape(self.features + 1, -1)
        return {"weight": matrix[:-1].T, "bias": matrix[-1]}


def with_intercepts(model: Model, theta: Tensor, intercepts: Tensor) -> Tensor:
    """The parameters with these intercepts, where the model is linear; other models start as they are."""
    if not isinstance(model, LogisticRegression):
        return theta
    return torch.cat((theta[: -len(intercepts)], intercepts.to(theta.dtype)))


@lru_cache(maxsize=32)
def _network(model: LogisticRegression) -> Network:
    free = 1 if model.classes == 2 else model.classes
    linear = Linear(model.features, free, "weight", "bias", across=True)
    layers: list[NetLayer] = [Reshape((model.features,)), linear]
    layout = ParameterLayout(("weight", "bias"), ((model.features, free), (free,)))
    layers += [FreeScore()] if model.classes == 2 else []
    return Network(chain(*layers), layout, model.classes, Bits.LARGEST)


# The clipped step, in numpy. At a few hundred records and features the arithmetic takes some ten microseconds; the rest
# of a step is the cost of calling the library, which numpy keeps lower.

_ZERO, _ONE = np.array(0.0), np.array(1.0)  # as arrays, like the constants of `exact`
_SIGN = np.array((1.0, -1.0))
"""By class: whether a growing score speaks against it."""


def _step(network: Network, classes: int, theta: Tensor, x: Features, y: Tensor, weigh: Weigh) -> WeightedGradient:
    """sum_i c_i grad_i for the scores x theta[:-1] + theta[-1]; every number a function of its record."""
    loaded, labels, parameters = network.load(x), y.numpy(), _public(theta, network.arithmetic.bits)
    valid, binary = None if loaded.valid is None else loaded.valid.numpy(), classes == 2
    clip = weigh if isinstance(weigh, ClippedTo) else None
    measured = (np.ones if clip is None else np.empty)((5, len(labels)))
    norms, above, more, weighed, coefficients = measured

    def losses(rows: slice = slice(None)) -> Tensor:
        return loaded.masked(torch.from_numpy(log_of(more[rows]) + np.maximum(above[rows], _ZERO)), rows)

    def sum_of(rows: slice) -> Floats:
        records = features, unit, _ = _arrays(loaded, rows, norms=binary)
        residual = (_one_score if binary else _scores)(parameters, records, labels[rows], measured[:3, rows])
        if valid is not None:
            residual *= valid[rows]
            norms[rows] *= valid[rows]
        shares = coefficients[rows]
        if clip:
            shares[:] = clip.of_array(norms[rows])
        else:
            weighed[rows] = losses(rows).numpy()
            shares[:] = finite(weigh(torch.from_numpy(norms), torch.from_numpy(weighed))).numpy()[rows]
        residual *= shares
        total = np.empty(theta.shape)
        total[-1] = np.add.reduce(residual) if binary else torch.from_numpy(residual).T.sum(dim=0).numpy()
        residual *= unit  # a power of two
        if binary:
            np.dot(residual, features, out=total[:-1])
        else:
            total[:-1] = torch.mm(torch.from_numpy(residual), torch.from_numpy(features)).numpy().T
        return total

    wrap, total = torch.from_numpy, sum_in_blocks(len(labels), sum_of)
    return WeightedGradient(wrap(total.reshape(-1)), wrap(norms), losses if clip else wrap(weighed), wrap(coefficients))


_Parameters = tuple[Floats, Floats, float, int]
"""Weights on their grid, intercepts, the grid's unit and its number of bits."""


def _one_score(parameters: _Parameters, records: tuple[Floats, ...], labels: NDArray[Any], measured: Floats) -> Floats:
    """Two classes: gradients in the score of class 1. Notes norms, how the score speaks against, and 1 + exp."""
    require_classes(labels, 2)
    (features, unit, lengths), (norms, against, more), sign = records, measured, _SIGN.take(labels)
    # By how much the score speaks against the true class: losses and residuals then never cancel.
    features.dot(parameters[0], out=against)
    against *= unit
    against += parameters[1]
    against *= sign
    e = exp_of_negative(np.abs(against))
    np.add(e, _ONE, out=more)
    np.putmask(e, against > _ZERO, _ONE)
    e /= more
    np.multiply(lengths, e, out=norms)
    e *= sign
    return e


def _scores(parameters: _Parameters, records: tuple[Floats, ...], labels: NDArray[Any], measured: Floats) -> Floats:
    """Gradients in all scores (classes, records). Notes norms, what the true class lacks, and the exponentials' sum."""
    (weights, bias, unit_of_weights, bits), (features, unit, extended) = parameters, records
    scores = np.dot(weights.T, features.T)
    scores *= np.maximum(unit, SMALLEST_TOP / unit_of_weights)
    scores += bias[:, None]
    measured[2], measured[1], residual = residuals(scores, labels)
    residual = on_grid(residual, bits, 0)
    np.sqrt(np.add.reduce(np.square(residual), axis=0) * extended, out=measured[0])
    return residual


def _public(theta: Tensor, bits: int) -> _Parameters:
    """`Arithmetic.public` with less overhead."""
    given = theta.numpy()
    size = np.abs(given)
    place = size.argmax()
    if not size.item(place) <= LARGEST_WEIGHT:  # argmax finds a number that is none, too
        given = clamped(theta).numpy()
        size = np.abs(given)
        place = size.argmax()
    weights, bias = given[:-1], given[-1, ...]
    _, exponent = math.frexp(max(size.item(place if place < weights.size else size[:-1].argmax()), SMALLEST_TOP))
    magic = np.array(math.ldexp(1.5, 52 + exponent - bits))
    return (weights + magic) - magic, bias, math.ldexp(1.0, exponent - bits), bits


def _arrays(loaded: Loaded, rows: slice, norms: bool) -> tuple[Floats, Floats, Floats]:
    """Features, units, and norms (or squared norms) of some records: `Loaded.rows` with less overhead."""
    whole, unit, squares, roots = loaded.source.arrays
    lengths = roots if norms else squares
    if loaded.taken is None:
        return whole[rows], unit[rows], lengths[rows]
    taken = loaded.taken.numpy()[rows]
    return whole.take(taken, axis=0), unit.take(taken), lengths.take(taken)

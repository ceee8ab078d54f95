"""Logistic and softmax regression; the step of two classes is in numpy, which costs less to call."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import numpy as np
import torch
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, count
from privfair.models.exact import LARGEST_WEIGHT, SMALLEST_TOP, Arithmetic, Bits, clamped, exp_of_negative, log_of
from privfair.models.layers import FreeScore, Linear, NetLayer, Reshape
from privfair.models.model import EXACT, ClippedTo, Features, ParameterLayout, Weigh, WeightedGradient, finite
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
        if self.classes == 2:
            return _binary_step(_network(self), theta.detach(), x, y, weigh)
        return super().weighted_gradient(theta, x, y, weigh)

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        matrix = theta.reshape(self.features + 1, -1)
        return {"weight": matrix[:-1].T, "bias": matrix[-1]}

    def _by_network(self, theta: Tensor) -> Tensor:
        """theta in the order of the network: weights class by class, then the intercepts."""
        if self.classes == 2:
            return theta
        return self._network.layout.join(self.named_parameters(theta))

    def _by_model(self, found: Tensor) -> Tensor:
        if self.classes == 2:
            return found
        weights = found[..., : -self.classes].reshape(*found.shape[:-1], self.classes, self.features)
        return torch.cat((weights.transpose(-1, -2).flatten(-2), found[..., -self.classes :]), dim=-1)


@lru_cache(maxsize=32)
def _network(model: LogisticRegression) -> Network:
    free = 1 if model.classes == 2 else model.classes
    layers: list[NetLayer] = [Reshape((model.features,)), Linear(model.features, free, "weight", "bias")]
    layout = ParameterLayout(("weight", "bias"), ((free, model.features), (free,)))
    layers += [FreeScore()] if model.classes == 2 else []
    return Network(chain(*layers), layout, model.classes, Bits.LARGEST)


# The clipped step of two classes, in numpy. At a few hundred records and features the arithmetic takes some ten
# microseconds; the rest of a step is the cost of calling the library, which numpy keeps lower.

_ZERO, _ONE = np.array(0.0), np.array(1.0)  # as arrays, like the constants of `exact`
_SIGN = np.array((1.0, -1.0))
"""By class: whether a growing score speaks against it."""


def _binary_step(network: Network, theta: Tensor, x: Features, y: Tensor, weigh: Weigh) -> WeightedGradient:
    """sum_i c_i grad_i for the scores x theta[:-1] + theta[-1] of class 1; every number a function of its record."""
    loaded, labels = network.load(x), y.numpy()
    if len(labels) and np.bitwise_or.reduce(labels) not in (0, 1):  # a negative label sets the sign bit
        strangest = int(labels[np.abs(labels - 0.5).argmax()])
        raise InvalidInput("y", strangest, "must be class 0 or 1", "number the classes 0 and 1")
    weights, bias = _public(theta, network.arithmetic)
    sign, valid = _SIGN.take(labels), None if loaded.valid is None else loaded.valid.numpy()
    clip = weigh if isinstance(weigh, ClippedTo) else None
    norms, weighed, against, more, coefficients = (np.ones if clip is None else np.empty)((5, len(labels)))

    def losses(rows: slice = slice(None)) -> Tensor:
        return loaded.masked(torch.from_numpy(log_of(more[rows]) + np.maximum(against[rows], _ZERO)), rows)

    def sum_of(rows: slice) -> Floats:
        features, unit, lengths = _arrays(loaded, rows)
        # By how much the score speaks against the true class: losses and residuals then never cancel.
        score = features.dot(weights, out=against[rows])
        score *= unit
        score += bias
        score *= sign[rows]
        e = exp_of_negative(np.abs(score))
        divisor = np.add(e, _ONE, out=more[rows])
        np.putmask(e, score > _ZERO, _ONE)
        residual = np.divide(e, divisor, out=e)
        if valid is not None:
            residual *= valid[rows]
        own, shares = np.multiply(lengths, residual, out=norms[rows]), coefficients[rows]
        if clip:
            shares[:] = clip.of_array(own)
        else:
            weighed[rows] = losses(rows).numpy()
            shares[:] = finite(weigh(torch.from_numpy(norms), torch.from_numpy(weighed))).numpy()[rows]
        residual *= sign[rows]
        residual *= shares
        total = np.empty(len(weights) + 1)
        total[-1] = np.add.reduce(residual)
        residual *= unit  # a power of two
        np.dot(residual, features, out=total[:-1])
        return total

    wrap, total = torch.from_numpy, sum_in_blocks(len(labels), sum_of)
    return WeightedGradient(wrap(total), wrap(norms), losses if clip else wrap(weighed), wrap(coefficients))


def _public(theta: Tensor, arithmetic: Arithmetic) -> tuple[Floats, Floats]:
    """The weights on their grid, and the intercept: `Arithmetic.public` with less overhead."""
    given = theta.numpy()
    size = np.abs(given)
    if not size.item(size.argmax()) <= LARGEST_WEIGHT:  # argmax finds a number that is none, too
        given = clamped(theta).numpy()
        size = np.abs(given)
    _, exponent = math.frexp(max(size.item(size[:-1].argmax()), SMALLEST_TOP))
    magic = np.array(math.ldexp(1.5, 52 + exponent - arithmetic.bits))
    return (given[:-1] + magic) - magic, given[-1, ...]


def _arrays(loaded: Loaded, rows: slice) -> tuple[Floats, Floats, Floats]:
    """`Rows.arrays` of some of the records: `Loaded.rows` with less overhead."""
    whole, unit, lengths = loaded.source.arrays
    if loaded.taken is None:
        return whole[rows], unit[rows], lengths[rows]
    taken = loaded.taken.numpy()[rows]
    return whole.take(taken, axis=0), unit.take(taken), lengths.take(taken)

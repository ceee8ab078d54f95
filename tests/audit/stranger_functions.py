"""Functions of a stranger's kind, with what is true and what is false about each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from audit.claims.claim import Arrays, DistanceClaim, Domain
from audit.claims.spaces import Box, Category
from calibrate.privacy_unit import Norm, Relation

CLIP = 1.0


def histogram(x: Any) -> Any:
    return np.histogram(np.clip(x, 0.0, 1.0), bins=4, range=(0.0, 1.0))[0]


def ratio_of_sums(x: Any, weight: Any) -> Any:
    return (x * weight).sum() / weight.sum()


def median(x: Any) -> Any:
    return np.median(x)


def group_means(x: Any, s: Any) -> Any:
    return np.array([x[s == group].mean() if (s == group).any() else 0.0 for group in range(2)])


def batch_norm_gradient(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """'Per-record clipped' gradients of a squared loss behind batch normalisation: every record feels all others."""
    normed = (x - x.mean(dim=0)) / torch.sqrt(x.var(dim=0, correction=0) + 1e-3)
    parts = 2.0 * (normed @ w - y)[:, None] * normed
    norms = torch.linalg.vector_norm(parts, dim=1, keepdim=True)
    return (parts * (CLIP / norms.clamp_min(CLIP))).sum(dim=0)


@dataclass(frozen=True)
class Stranger:
    """`true` is a bound that holds, `false` one that looks plausible and does not."""

    name: str
    function: Callable[..., Any]
    domain: Domain
    true: DistanceClaim
    false: DistanceClaim
    arrays: Arrays = Arrays.NUMPY


_UNIT = Box(0.0, 1.0)
_REPLACE = Relation.REPLACE_ONE
STRANGERS = (
    Stranger(
        "clipped histogram",
        histogram,
        Domain({"x": Box(-2.0, 3.0)}),
        # A replaced record leaves one bin and enters another.
        DistanceClaim(math.sqrt(2.0), _REPLACE),
        DistanceClaim(1.0, _REPLACE),
    ),
    Stranger(
        "ratio of sums",
        ratio_of_sums,
        Domain({"x": _UNIT, "weight": Box(0.1, 1.0)}, fewest=1),
        # A weighted mean of numbers in [0, 1] stays there; one heavy record can nearly be all of it.
        DistanceClaim(1.0),
        DistanceClaim(0.6),
    ),
    Stranger(
        "median",
        median,
        Domain({"x": _UNIT}, fewest=3, most=3),
        DistanceClaim(1.0, _REPLACE),
        DistanceClaim(1.0 / 3.0, _REPLACE),
    ),
    Stranger(
        "mean of each group",
        group_means,
        Domain({"x": _UNIT, "s": Category(2)}, fewest=3, most=4),
        # Both groups' means may move by 1; dividing by all records as if groups were large is the usual slip.
        DistanceClaim(2.0, _REPLACE, norm=Norm.L1),
        DistanceClaim(1.0 / 3.0, _REPLACE, norm=Norm.L1),
    ),
    Stranger(
        "gradient with BatchNorm",
        batch_norm_gradient,
        Domain({"x": Box(-1.0, 1.0, (2,)), "y": _UNIT}, {"w": Box(-1.0, 1.0, (2,))}, fewest=1, most=3),
        # Three parts of norm at most CLIP against two others.
        DistanceClaim(5.0 * CLIP),
        DistanceClaim(CLIP),
        Arrays.TORCH,
    ),
)

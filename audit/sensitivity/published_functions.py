"""What the papers compute, written from their formulas and in torch, so that a search can differentiate it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def fairness_term(w: Tensor, probabilities: Tensor, s: Tensor, frequencies: Tensor) -> Tensor:
    """psi = -Tr(W diag(F) W^T) + 2 Tr(W F s^T P^(-1/2)) - 1, summed over records; s is one-hot."""
    first = -torch.einsum("ka,na,ka->n", w, probabilities, w)
    second = 2.0 * torch.einsum("ka,na,nk->n", w, probabilities, s / frequencies.sqrt())
    return (first + second - 1.0).sum()


def steffle_weight_gradient(batch: int, groups: int) -> Callable[..., Tensor]:
    """grad_W psi over a batch of `batch` records; those not listed are alike in both data sets and cancel."""

    def h_w(probabilities: Tensor, s: Tensor, w: Tensor, frequencies: Tensor) -> Tensor:
        members = one_hot(s, groups).to(w.dtype)
        return _slope(lambda at: fairness_term(at, probabilities, members, frequencies), w) / batch

    return h_w


def steffle_theta_gradient(batch: int, groups: int) -> Callable[..., Tensor]:
    """grad_theta psi likewise; `slopes` is each record's Jacobian of its class probabilities."""

    def h_theta(probabilities: Tensor, slopes: Tensor, s: Tensor, w: Tensor, frequencies: Tensor) -> Tensor:
        members = one_hot(s, groups).to(w.dtype)

        def at(theta: Tensor) -> Tensor:
            return fairness_term(w, probabilities + slopes @ theta, members, frequencies)

        return _slope(at, torch.zeros(slopes.shape[2], dtype=w.dtype)) / batch

    return h_theta


def fedfdp_equation_13(fairness: float, clip: float) -> Callable[..., Tensor]:
    """sum of min(1 + lambda (loss - mean), C / |grad|) grad, as printed."""

    def clipped_sum(gradient: Tensor, loss: Tensor, mean_loss: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(gradient, dim=1)
        limit = clip / norms.clamp_min(1e-12)
        factors = torch.minimum(1.0 + fairness * (loss - mean_loss), limit)
        return (factors[:, None] * gradient).sum(dim=0)

    return clipped_sum


def fedfdp_size_clipping(fairness: float, clip: float) -> Callable[..., Tensor]:
    """The engine's own coefficients: the size of factor times gradient is clipped and its sign kept."""
    from privfair.fairness.clipping import fair_clipping

    def clipped_sum(gradient: Tensor, loss: Tensor, mean_loss: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(gradient, dim=1)
        factors = fair_clipping(fairness, mean_loss, clip)(norms, loss)  # type: ignore[arg-type]
        return (factors[:, None] * gradient).sum(dim=0)

    return clipped_sum


def fpfl_clipped_sum(clip: float, users: int) -> Callable[..., Tensor]:
    """Users' vectors, each a sum over the user's records, clipped as a whole, added up."""

    def clipped_sum(x: Tensor, user: Tensor) -> Tensor:
        vectors = torch.zeros(users, x.shape[1], dtype=x.dtype).index_add(0, user, x)
        return _clipped(vectors, clip).sum(dim=0)

    return clipped_sum


def mean_over_realised(clip: float) -> Callable[..., Tensor]:
    """Clipped records divided by how many there happen to be."""
    return lambda x: _clipped(x, clip).sum(dim=0) / max(1, len(x))


def mean_over_expected(clip: float, expected: int) -> Callable[..., Tensor]:
    """Clipped records divided by a public number."""
    return lambda x: _clipped(x, clip).sum(dim=0) / expected


def _slope(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The gradient, itself differentiable in everything the function holds."""
    with torch.enable_grad():
        place = at if at.requires_grad else at.clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(place), place, create_graph=True)
    return slope


def _clipped(vectors: Tensor, clip: float) -> Tensor:
    norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors * (clip / norms.clamp_min(clip))

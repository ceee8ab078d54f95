"""Every sensitivity claim by its id, as its paper prints it and as it can be kept.

What the papers compute is written from their formulas, in torch, so that a search can differentiate it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from audit.claims import engine_claims
from audit.claims.claim import Arrays, DistanceClaim, Domain, Subject
from audit.claims.falsify import CataloguedClaim
from audit.claims.spaces import Ball, Box, Category, ProbabilitySlopes, Simplex, Space
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import Protected, Relation
from calibrate.theorems.steffle import Radius
from privfair.fairness.clipping import fair_clipping

# What the papers compute, written from their formulas and in torch, so that a search can differentiate it.


def fairness_term(w: Tensor, probabilities: Tensor, s: Tensor, frequencies: Tensor) -> Tensor:
    """psi = -Tr(W diag(F) W^T) + 2 Tr(W F s^T P^(-1/2)) - 1, summed over records; s is one-hot."""
    first = -torch.einsum("ka,na,ka->n", w, probabilities, w)
    second = 2.0 * torch.einsum("ka,na,nk->n", w, probabilities, s / frequencies.sqrt())
    return (first + second - 1.0).sum()


def steffle_weight_gradient(batch: int, groups: int) -> Callable[..., Tensor]:
    """grad_W psi over a batch of `batch` records; those not listed are alike in both data sets and cancel."""

    def h_w(probabilities: Tensor, s: Tensor, w: Tensor, frequencies: Tensor) -> Tensor:
        members = one_hot(s, groups).to(w.dtype)
        return _gradient(lambda at: fairness_term(at, probabilities, members, frequencies), w) / batch

    return h_w


def steffle_theta_gradient(batch: int, groups: int) -> Callable[..., Tensor]:
    """grad_theta psi in the same way; `slopes` is each record's Jacobian of its class probabilities."""

    def h_theta(probabilities: Tensor, slopes: Tensor, s: Tensor, w: Tensor, frequencies: Tensor) -> Tensor:
        members = one_hot(s, groups).to(w.dtype)

        def at(theta: Tensor) -> Tensor:
            return fairness_term(w, probabilities + slopes @ theta, members, frequencies)

        return _gradient(at, torch.zeros(slopes.shape[2], dtype=w.dtype)) / batch

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

    def clipped_sum(gradient: Tensor, loss: Tensor, mean_loss: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(gradient, dim=1)
        factors = fair_clipping(fairness, mean_loss, clip)(norms, loss)  # type: ignore[arg-type]
        return (factors[:, None] * gradient).sum(dim=0)

    return clipped_sum


def fpfl_clipped_sum(clip: float, users: int) -> Callable[..., Tensor]:
    """Users' vectors, each a sum over the user's records, clipped as a whole, added up."""

    def clipped_sum(x: Tensor, user: Tensor) -> Tensor:
        vectors = torch.zeros(users, x.shape[1], dtype=x.dtype).index_add(0, user, x)
        return _clip(vectors, clip).sum(dim=0)

    return clipped_sum


def mean_over_realised(clip: float) -> Callable[..., Tensor]:
    """Clipped records divided by how many there happen to be."""
    return lambda x: _clip(x, clip).sum(dim=0) / max(1, len(x))


def mean_over_expected(clip: float, expected: int) -> Callable[..., Tensor]:
    """Clipped records divided by a public number."""
    return lambda x: _clip(x, clip).sum(dim=0) / expected


def _gradient(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The gradient, itself differentiable in everything the function holds."""
    with torch.enable_grad():
        place = at if at.requires_grad else at.clone().requires_grad_()
        slope: Tensor = torch.autograd.grad(function(place), place, create_graph=True)[0]
    return slope


def _clip(vectors: Tensor, clip: float) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors * (clip / norms.clamp_min(clip))


# The claims about them, as printed and as they can be kept.

_STEFFLE = "Gupta et al., Lemma B.1"
BATCH, RHO, SIZE, LIPSCHITZ = 256, 0.5, 1.5, 1.0
_FAIRNESS, _CLIP, _LARGEST_LOSS = 2.0, 1.0, 3.0
_EXPECTED = 4


def lemma_b1_weights(id: str, bound: float, batch: int = BATCH, rho: float = RHO, groups: int = 2) -> CataloguedClaim:
    """How far replacing one attribute moves the batch mean of grad_W psi."""
    domain = Domain(
        {"probabilities": Simplex(2), "s": Category(groups)},
        {"w": Ball(SIZE, (groups, 2)), "frequencies": Box(rho, 1.0, (groups,))},
        fewest=1,
        attribute="s",
    )
    subject = Subject(steffle_weight_gradient(batch, groups), domain, Arrays.TORCH)
    says = f"{_STEFFLE}: grad_W psi moves by at most {bound:.6g} (m = {batch}, rho = {rho})"
    return CataloguedClaim(id, says, DistanceClaim(bound, Relation.REPLACE_ATTRIBUTE), subject)


def lemma_b1_theta(
    id: str,
    bound: float,
    radius: Radius = Radius.FROBENIUS,
    batch: int = BATCH,
    rho: float = RHO,
    groups: int = 2,
    classes: int = 2,
) -> CataloguedClaim:
    """How far it moves the batch mean of grad_theta psi, W bounded by `SIZE` in the sense of `radius`."""
    w: Space = Ball(SIZE, (groups, classes))
    if radius is Radius.ENTRYWISE:
        w = Box(-SIZE, SIZE, (groups, classes))
    domain = Domain(
        {"probabilities": Simplex(classes), "slopes": ProbabilitySlopes(classes, 2, LIPSCHITZ), "s": Category(groups)},
        {"w": w, "frequencies": Box(rho, 1.0, (groups,))},
        fewest=1,
        most=3,
        attribute="s",
    )
    subject = Subject(steffle_theta_gradient(batch, groups), domain, Arrays.TORCH)
    says = (
        f"{_STEFFLE}: grad_theta psi moves by at most {bound:.6g} (m = {batch}, rho = {rho}, l = {classes},"
        f" {radius.value} norm of W at most {SIZE})"
    )
    return CataloguedClaim(id, says, DistanceClaim(bound, Relation.REPLACE_ATTRIBUTE), subject)


def weights_bound(batch: int = BATCH, rho: float = RHO) -> float:
    """2 sqrt(2) / (m sqrt(rho)), whose square is printed."""
    return 2.0 * math.sqrt(2.0) / (batch * math.sqrt(rho))


def theta_bound(batch: int = BATCH, rho: float = RHO) -> float:
    """2 sqrt(2) D L / (m sqrt(rho)), whose square is printed."""
    return weights_bound(batch, rho) * SIZE * LIPSCHITZ


def _fedfdp(id: str, says: str, function: Callable[..., object]) -> CataloguedClaim:
    domain = Domain(
        {"gradient": Ball(10.0, (3,)), "loss": Box(0.0, _LARGEST_LOSS)}, {"mean_loss": Box(0.0, _LARGEST_LOSS)}
    )
    return CataloguedClaim(id, says, DistanceClaim(_CLIP), Subject(function, domain, Arrays.TORCH))


def _fpfl(id: str, relation: Relation) -> CataloguedClaim:
    domain = Domain({"x": Ball(5.0, (3,))}, user="user")
    function = fpfl_clipped_sum(_CLIP, domain.most + 1)
    says = f"Rodriguez-Galvez et al., Algorithm 1: users clipped to C move the sum by at most C under {relation.value}"
    claim = DistanceClaim(_CLIP, relation, Protected.USER)
    return CataloguedClaim(id, says, claim, Subject(function, domain, Arrays.TORCH))


def _clipped_mean(id: str, says: str, function: Callable[..., object]) -> CataloguedClaim:
    domain = Domain({"x": Ball(5.0, (2,))}, fewest=_EXPECTED, most=_EXPECTED + 2)
    return CataloguedClaim(id, says, DistanceClaim(_CLIP / _EXPECTED), Subject(function, domain, Arrays.TORCH))


_BUILDERS: dict[str, Callable[[str], CataloguedClaim]] = {
    "steffle.lemma-B.1.W": lambda id: lemma_b1_weights(id, weights_bound() ** 2),
    "steffle.lemma-B.1.W.square-root": lambda id: lemma_b1_weights(id, weights_bound()),
    "steffle.lemma-B.1.theta": lambda id: lemma_b1_theta(id, theta_bound() ** 2, Radius.ENTRYWISE),
    "steffle.lemma-B.1.theta.printed-frobenius": lambda id: lemma_b1_theta(id, theta_bound() ** 2),
    "steffle.lemma-B.1.theta.square-root-entrywise": lambda id: lemma_b1_theta(id, theta_bound(), Radius.ENTRYWISE),
    "steffle.lemma-B.1.theta.square-root-frobenius": lambda id: lemma_b1_theta(id, theta_bound()),
    "fedfdp.equation-13": lambda id: _fedfdp(
        id,
        "Ling et al., Equation 13: min(1 + lambda Delta, C/|grad|) keeps each record's part within C",
        fedfdp_equation_13(_FAIRNESS, _CLIP),
    ),
    "fedfdp.size-clipping": lambda id: _fedfdp(
        id,
        "privfair.fairness.clipping: clipping the size of factor times gradient keeps it within C",
        fedfdp_size_clipping(_FAIRNESS, _CLIP),
    ),
    "fpfl.clip.replace-one": lambda id: _fpfl(id, Relation.REPLACE_ONE),
    "fpfl.clip.add-remove": lambda id: _fpfl(id, Relation.ADD_REMOVE),
    "clipped-mean.realised-size": lambda id: _clipped_mean(
        id,
        f"records clipped to C, summed, over the realised batch size (>= {_EXPECTED}) move by C/{_EXPECTED} at most",
        mean_over_realised(_CLIP),
    ),
    "clipped-mean.expected-size": lambda id: _clipped_mean(
        id,
        f"records clipped to C, summed, over the public {_EXPECTED} move by C/{_EXPECTED} at most",
        mean_over_expected(_CLIP, _EXPECTED),
    ),
    **engine_claims.BUILDERS,
}


def ids() -> tuple[str, ...]:
    """The ids of all claims."""
    return tuple(_BUILDERS)


def claim_named(id: str) -> CataloguedClaim:
    """The claim with this id."""
    if id not in _BUILDERS:
        raise InvalidInput("claim", id, f"is none of {', '.join(_BUILDERS)}", "name a claim, or module:function")
    return _BUILDERS[id](id)

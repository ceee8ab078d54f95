"""Every sensitivity claim by its id, as its paper prints it and as it can be kept."""

from __future__ import annotations

import math
from collections.abc import Callable

from audit.sensitivity import engine_claims
from audit.sensitivity import published_functions as published
from audit.sensitivity.claim import DistanceClaim
from audit.sensitivity.domain import Domain
from audit.sensitivity.falsify import Entry
from audit.sensitivity.spaces import Ball, Box, Category, ProbabilitySlopes, Simplex, Space
from audit.sensitivity.subject import Arrays, Subject
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import Protected, Relation
from calibrate.theorems.steffle import Radius

_STEFFLE = "Gupta et al., Lemma B.1"
BATCH, RHO, SIZE, LIPSCHITZ = 256, 0.5, 1.5, 1.0
_FAIRNESS, _CLIP, _LARGEST_LOSS = 2.0, 1.0, 3.0
_EXPECTED = 4


def lemma_b1_weights(id: str, bound: float, batch: int = BATCH, rho: float = RHO, groups: int = 2) -> Entry:
    """How far replacing one attribute moves the batch mean of grad_W psi."""
    domain = Domain(
        {"probabilities": Simplex(2), "s": Category(groups)},
        {"w": Ball(SIZE, (groups, 2)), "frequencies": Box(rho, 1.0, (groups,))},
        fewest=1,
        attribute="s",
    )
    subject = Subject(published.steffle_weight_gradient(batch, groups), domain, Arrays.TORCH)
    says = f"{_STEFFLE}: grad_W psi moves by at most {bound:.6g} (m = {batch}, rho = {rho})"
    return Entry(id, says, DistanceClaim(bound, Relation.REPLACE_ATTRIBUTE), subject)


def lemma_b1_theta(
    id: str,
    bound: float,
    radius: Radius = Radius.FROBENIUS,
    batch: int = BATCH,
    rho: float = RHO,
    groups: int = 2,
    classes: int = 2,
) -> Entry:
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
    subject = Subject(published.steffle_theta_gradient(batch, groups), domain, Arrays.TORCH)
    says = (
        f"{_STEFFLE}: grad_theta psi moves by at most {bound:.6g} (m = {batch}, rho = {rho}, l = {classes},"
        f" {radius.value} norm of W at most {SIZE})"
    )
    return Entry(id, says, DistanceClaim(bound, Relation.REPLACE_ATTRIBUTE), subject)


def weights_bound(batch: int = BATCH, rho: float = RHO) -> float:
    """2 sqrt(2) / (m sqrt(rho)), whose square is printed."""
    return 2.0 * math.sqrt(2.0) / (batch * math.sqrt(rho))


def theta_bound(batch: int = BATCH, rho: float = RHO) -> float:
    """2 sqrt(2) D L / (m sqrt(rho)), whose square is printed."""
    return weights_bound(batch, rho) * SIZE * LIPSCHITZ


def _fedfdp(id: str, says: str, function: Callable[..., object]) -> Entry:
    domain = Domain(
        {"gradient": Ball(10.0, (3,)), "loss": Box(0.0, _LARGEST_LOSS)}, {"mean_loss": Box(0.0, _LARGEST_LOSS)}
    )
    return Entry(id, says, DistanceClaim(_CLIP), Subject(function, domain, Arrays.TORCH))


def _fpfl(id: str, relation: Relation) -> Entry:
    domain = Domain({"x": Ball(5.0, (3,))}, user="user")
    function = published.fpfl_clipped_sum(_CLIP, domain.most + 1)
    says = f"Rodriguez-Galvez et al., Algorithm 1: users clipped to C move the sum by at most C under {relation.value}"
    claim = DistanceClaim(_CLIP, relation, Protected.USER)
    return Entry(id, says, claim, Subject(function, domain, Arrays.TORCH))


def _clipped_mean(id: str, says: str, function: Callable[..., object]) -> Entry:
    domain = Domain({"x": Ball(5.0, (2,))}, fewest=_EXPECTED, most=_EXPECTED + 2)
    return Entry(id, says, DistanceClaim(_CLIP / _EXPECTED), Subject(function, domain, Arrays.TORCH))


_BUILDERS: dict[str, Callable[[str], Entry]] = {
    "steffle.lemma-B.1.W": lambda id: lemma_b1_weights(id, weights_bound() ** 2),
    "steffle.lemma-B.1.W.square-root": lambda id: lemma_b1_weights(id, weights_bound()),
    "steffle.lemma-B.1.theta": lambda id: lemma_b1_theta(id, theta_bound() ** 2, Radius.ENTRYWISE),
    "steffle.lemma-B.1.theta.printed-frobenius": lambda id: lemma_b1_theta(id, theta_bound() ** 2),
    "steffle.lemma-B.1.theta.square-root-entrywise": lambda id: lemma_b1_theta(id, theta_bound(), Radius.ENTRYWISE),
    "steffle.lemma-B.1.theta.square-root-frobenius": lambda id: lemma_b1_theta(id, theta_bound()),
    "fedfdp.equation-13": lambda id: _fedfdp(
        id,
        "Ling et al., Equation 13: min(1 + lambda Delta, C/|grad|) keeps each record's part within C",
        published.fedfdp_equation_13(_FAIRNESS, _CLIP),
    ),
    "fedfdp.size-clipping": lambda id: _fedfdp(
        id,
        "privfair.fairness.clipping: clipping the size of factor times gradient keeps it within C",
        published.fedfdp_size_clipping(_FAIRNESS, _CLIP),
    ),
    "fpfl.clip.replace-one": lambda id: _fpfl(id, Relation.REPLACE_ONE),
    "fpfl.clip.add-remove": lambda id: _fpfl(id, Relation.ADD_REMOVE),
    "clipped-mean.realised-size": lambda id: _clipped_mean(
        id,
        f"records clipped to C, summed, over the realised batch size (>= {_EXPECTED}) move by C/{_EXPECTED} at most",
        published.mean_over_realised(_CLIP),
    ),
    "clipped-mean.expected-size": lambda id: _clipped_mean(
        id,
        f"records clipped to C, summed, over the public {_EXPECTED} move by C/{_EXPECTED} at most",
        published.mean_over_expected(_CLIP, _EXPECTED),
    ),
    **engine_claims.BUILDERS,
}


def ids() -> tuple[str, ...]:
    """Every claim that `entry_named` knows."""
    return tuple(_BUILDERS)


def entry_named(id: str) -> Entry:
    if id not in _BUILDERS:
        raise InvalidInput("claim", id, f"is none of {', '.join(_BUILDERS)}", "name a claim, or module:function")
    return _BUILDERS[id](id)

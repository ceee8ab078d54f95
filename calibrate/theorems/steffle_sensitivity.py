"""The exact worst case of SteFFLe's two sensitive gradients, in closed form.

With psi = -Tr(W diag(F) W^T) + 2 Tr(W F s^T P^(-1/2)) - 1, replacing a record's attribute a by b changes

    grad_W psi      by  2 (p_a^(-1/2) e_a - p_b^(-1/2) e_b) F^T,
    grad_theta psi  by  2 (p_a^(-1/2) w_a - p_b^(-1/2) w_b)^T J,      w_a = row a of W,  J = dF/dtheta.

F is a probability vector, so |F| <= 1 and the columns of J sum to zero; F is L-Lipschitz, so |J| <= L. The
suprema over all F, J, W and P follow (docs/theorems/steffle.md, "Sensitivities").
"""

from __future__ import annotations

import math
from enum import Enum
from typing import assert_never


class Radius(Enum):
    """What the number D bounds: the Frobenius norm of W, or each of its entries."""

    FROBENIUS = "frobenius"
    ENTRYWISE = "entrywise"


class Frequencies(Enum):
    """What is known of the diagonal P_S beyond its entries being at least rho.

    AT_LEAST_RHO: nothing (public or noisy frequencies, raised to rho). EXACT: they sum to 1, so that with
    two groups the other one has 1 - rho.
    """

    AT_LEAST_RHO = "at-least-rho"
    EXACT = "exact"


def weight_gradient_supremum(batch: int, rho: float, groups: int, frequencies: Frequencies) -> float:
    """sup of the L2 change of the batch mean of grad_W psi; approached as F tends to a vertex of the simplex."""
    other = _other_frequency(rho, groups, frequencies)
    return 2 * math.sqrt(1 / rho + 1 / other) / batch


def theta_gradient_supremum(
    batch: int,
    rho: float,
    groups: int,
    frequencies: Frequencies,
    classes: int,
    lipschitz: float,
    size: float,
    radius: Radius,
) -> float:
    """sup of the L2 change of the batch mean of grad_theta psi, with W bounded by `size` in the sense of `radius`.

    Only the part of p_a^(-1/2) w_a - p_b^(-1/2) w_b that is orthogonal to (1, .., 1) counts. A Frobenius ball
    allows it to be sqrt(1/p_a + 1/p_b) D; a box allows signs that cancel in the sum, all of size
    (p_a^(-1/2) + p_b^(-1/2)) D, of which an odd number of classes loses 1/classes.
    """
    other = _other_frequency(rho, groups, frequencies)
    match radius:
        case Radius.FROBENIUS:
            reach = math.sqrt(1 / rho + 1 / other)
        case Radius.ENTRYWISE:
            orthogonal = classes - (classes % 2) / classes
            reach = (1 / math.sqrt(rho) + 1 / math.sqrt(other)) * math.sqrt(orthogonal)
        case _:
            assert_never(radius)
    return 2 * lipschitz * size * reach / batch


def _other_frequency(rho: float, groups: int, frequencies: Frequencies) -> float:
    """The smallest frequency the second of the two groups can have when the first has rho."""
    match frequencies:
        case Frequencies.AT_LEAST_RHO:
            return rho
        case Frequencies.EXACT:
            return 1 - rho if groups == 2 else rho
        case _:
            assert_never(frequencies)

"""How many rounds the printed noise affords: the gradient alone, and with the loss of the same batch charged."""

from __future__ import annotations

from dataclasses import dataclass

from fedfdp_settings import PAPER_LOSS_NOISE, PAPER_SAMPLING_RATE, PRINTED_ROUNDS

from calibrate.budget import price_plan
from calibrate.plans.fedfdp import GRADIENT, LOSS, FedfdpPlan
from calibrate.privacy_unit import EpsilonDelta
from calibrate.questions import rounds

TARGET = EpsilonDelta(2.0, 1e-5)
PROMISE = {"epsilon": TARGET.epsilon, "delta": TARGET.delta, "sampling_rate": PAPER_SAMPLING_RATE}


@dataclass(frozen=True)
class Afforded:
    sigma: float
    printed: int
    alone: int
    charged: int
    epsilon: float
    """What the printed rounds truly cost, the loss included."""


def afforded_rounds() -> list[Afforded]:
    """One line for each printed sigma; certified, so that one round more is not promised."""
    rows = []
    for sigma, printed in PRINTED_ROUNDS.items():
        alone = rounds(**PROMISE, noise_multiplier=sigma)
        charged = rounds(**PROMISE, noise_multiplier=(sigma, PAPER_LOSS_NOISE))
        plan = FedfdpPlan(PAPER_SAMPLING_RATE, printed, 0.1, 2.5, PAPER_LOSS_NOISE / sigma)
        noise = {GRADIENT: sigma, LOSS: PAPER_LOSS_NOISE}
        epsilon = price_plan(plan, TARGET.delta, noise_multipliers=noise).upper
        rows.append(Afforded(sigma, printed, alone, charged, epsilon))
    return rows

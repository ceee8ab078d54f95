"""A paper's own noise for a plan, so that it can be run, and signed, for what it really is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibrate.errors import UnsupportedCombination
from calibrate.plans.plan import Plan
from calibrate.plans.steffle import H_THETA, H_W, StefflePlan
from calibrate.privacy_unit import EpsilonDelta


@dataclass(frozen=True)
class PrintedNoise:
    """Noise multipliers (relative to the *true* sensitivities) by value, and which theorem asks for them."""

    noise_multipliers: dict[str, float]
    place: str


def printed_noise(plan: Plan, target: EpsilonDelta) -> PrintedNoise:
    """The noise that the paper says meets the target. What it costs is for an accountant to say."""
    if not isinstance(plan, StefflePlan):
        raise UnsupportedCombination(
            f"{plan.algorithm.value} as printed",
            "only SteFFLe's paper prints a closed formula for its noise",
            "calibrate it instead, and compare with `privfair theorems`",
        )
    if plan.histogram_noise_ratio is not None:
        raise UnsupportedCombination(
            "SteFFLe as printed with a noisy histogram",
            "the paper takes the attribute frequencies as known",
            "drop histogram-noise-ratio",
        )
    theta, w = plan.claims()
    sigma_w = printed_sigma_w(target, plan.rounds, plan.silo_size, plan.minority_fraction)
    sigma_theta = plan.lipschitz * plan.w_radius * sigma_w  # sigma_theta = L D sigma_W, as printed
    return PrintedNoise(
        {H_THETA: sigma_theta / theta.bound, H_W: sigma_w / w.bound}, "SteFFLe (preprint), Theorem 3.3"
    )


def printed_sigma_w(target: EpsilonDelta, rounds: int, silo_size: int, minority_fraction: float) -> float:
    """SteFFLe's Theorem 3.3: sigma_W^2 = 16 T ln(1/delta) / (eps^2 n^2 rho)."""
    variance = 16 * rounds * math.log(1 / target.delta) / minority_fraction
    return math.sqrt(variance) / (target.epsilon * silo_size)

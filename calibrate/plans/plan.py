"""What an algorithm really publishes, before any noise is chosen.

A plan turns an algorithm's parameters into a release template: every value a round publishes with its
contribution bound, every value published once, how batches are drawn, and, just as important, what is
published without noise. Calibration multiplies all noise multipliers of the template by one factor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, assert_never

from calibrate.claims import Norm
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import PrivacyUnit
from calibrate.releases import Gaussian, Laplace, Release, Together
from calibrate.validation import positive

PlainValue = int | float | str | bool | None | tuple[float, ...]
"""What a plan's parameters are made of, so that they fit a manifest, TOML and JSON."""


class AlgorithmName(Enum):
    STEFFLE = "steffle"
    FEDFDP = "fedfdp"
    FPFL = "fpfl"
    MMD_FEDAVG = "mmd-fedavg"
    GAUSSIAN = "gaussian"
    PAY_ONCE = "pay-once"


class Mechanism(Enum):
    """How a value is made noisy."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"
    RANDOMIZED_RESPONSE = "randomized-response"


@dataclass(frozen=True)
class NoisyValue:
    """One published value: its absolute contribution bound and its noise relative to the other values.

    `sensitivity` follows the convention of `releases.py` for the plan's relation. At calibration factor x
    the noise multiplier is `noise_ratio * x` and the noise itself `sensitivity * noise_ratio * x`
    (standard deviation for Gaussian, scale for Laplace noise).
    """

    name: str
    sensitivity: float
    norm: Norm
    noise_ratio: float
    mechanism: Mechanism

    def __post_init__(self) -> None:
        positive(f"sensitivity of {self.name}", self.sensitivity)
        positive(f"noise ratio of {self.name}", self.noise_ratio)
        wrong_norm = {Mechanism.GAUSSIAN: Norm.L1, Mechanism.LAPLACE: Norm.L2}.get(self.mechanism)
        if self.norm is wrong_norm:
            raise InvalidInput(
                "norm",
                self.norm.value,
                f"does not fit {self.mechanism.value} noise",
                "use L2 for Gaussian, L1 for Laplace",
            )

    def release(self) -> Gaussian | Laplace:
        """The value as a release at factor 1."""
        match self.mechanism:
            case Mechanism.GAUSSIAN:
                return Gaussian(self.noise_ratio)
            case Mechanism.LAPLACE:
                return Laplace(self.noise_ratio)
            case Mechanism.RANDOMIZED_RESPONSE:
                raise InvalidInput(
                    "mechanism",
                    self.mechanism.value,
                    "has no noise multiplier",
                    "price it as RandomizedResponse",
                )
            case _:
                assert_never(self.mechanism)


class Plan(Protocol):
    """One algorithm with its parameters; frozen, validated at construction, not yet calibrated."""

    @property
    def algorithm(self) -> AlgorithmName: ...

    @property
    def unit(self) -> PrivacyUnit: ...

    @property
    def rounds(self) -> int: ...

    def values(self) -> tuple[NoisyValue, ...]:
        """The noisy values that every round publishes."""
        ...

    def once(self) -> tuple[NoisyValue, ...]:
        """The noisy values published once, outside the rounds."""
        ...

    def template(self) -> Release:
        """Everything the budget pays for, with noise multipliers at factor 1."""
        ...

    def publish(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release:
        """The release that publishes these values (this plan's own, perhaps with other noise ratios)."""
        ...

    def attained(self, values: tuple[NoisyValue, ...], once: tuple[NoisyValue, ...]) -> Release | None:
        """The part of `publish` whose cost some data set really reaches: the lower end is priced from it.

        It is the whole release where the bound is tight, and None where no lower bound is claimed.
        """
        ...

    def joint_noise_ratio(self) -> float | None:
        """The joint noise multiplier of one round's values at factor 1; None if they are not one batch."""
        ...

    def assumptions(self) -> tuple[str, ...]:
        """What must hold for the guarantee to be true, each in one sentence."""
        ...

    def unprotected(self) -> tuple[str, ...]:
        """What is published without noise or is not paid for, and what must hold for that to be acceptable."""
        ...

    def parameters(self) -> dict[str, PlainValue]:
        """The plan's parameters as plain values; `plan_from_mapping` builds the same plan from them."""
        ...


def of_one_batch(values: tuple[NoisyValue, ...]) -> Gaussian | Laplace | Together:
    """Several values of one batch as one release at factor 1."""
    releases = tuple(value.release() for value in values)
    return releases[0] if len(releases) == 1 else Together(releases)


def joint_ratio(values: tuple[NoisyValue, ...]) -> float | None:
    """(sum of ratio^-2)^(-1/2) for Gaussian values of one batch; None if one of them is not Gaussian."""
    if any(value.mechanism is not Mechanism.GAUSSIAN for value in values):
        return None
    return 1 / math.sqrt(math.fsum(1 / value.noise_ratio**2 for value in values))

"""Intervals stay narrow where delta is near the chance of taking part, and where millions of rounds matter rarely."""

from __future__ import annotations

import pytest

from calibrate.questions import epsilon

RARE = [
    (1.92e-6, 5_272_842, 0.633, 5.7e-4),
    (7.79e-5, 2031, 0.812, 3.73e-4),
    (4.76e-4, 102, 0.699, 1.24e-3),
    (2.56e-3, 9, 1.03, 2.57e-5),
    (7.733684466889562e-07, 26_707_042, 0.74879773060068, 4.248059258164196e-10),
    (3.587238748302542e-05, 4_223_997, 1.0290844479286887, 0.0013305288066032131),
    (1.3861970505478538e-06, 8_875_423, 0.8232485880463134, 2.336671768819751e-05),
]
"""Rate, rounds, noise and delta at which intervals were 1.3% to 100% wide."""


@pytest.mark.parametrize(("rate", "rounds", "noise", "delta"), RARE)
def test_the_interval_is_at_most_a_few_percent_wide(rate: float, rounds: int, noise: float, delta: float) -> None:
    found = epsilon(noise_multiplier=noise, sampling_rate=rate, rounds=rounds, delta=delta)
    assert 0 < found.lower <= found.upper <= 1.06 * found.lower

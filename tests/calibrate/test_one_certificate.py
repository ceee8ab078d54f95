"""Noise, epsilon and rounds are answered by one certificate, on targets drawn over all documented ranges.

    PRIVFAIR_TARGETS=2000 python -m pytest -m slow tests/calibrate/test_one_certificate.py

tries that many targets; without the variable the slow test tries 60.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from calibrate.questions import epsilon, sigma

CLOSE = 1e-4
"""Noise that is smaller by this share is no longer certified."""


def targets(number: int, seed: int) -> Iterator[tuple[float, dict[str, Any]]]:
    """Epsilons, and what else is asked: rate 1e-8 to 1, rounds 1 to 1e8, delta 1e-30 to 1e-3, epsilon 1e-3 to 100."""
    draws = np.random.default_rng(seed)
    for k in range(number):
        rate, rounds, delta, target = 10 ** draws.uniform((-8, 0, -30, -3), (0, 8, -3, 2))
        relation = ("add-remove", "replace-one")[k % 2]
        yield float(target), {"sampling_rate": rate, "rounds": int(rounds), "delta": delta, "relation": relation}


def assert_one_certificate(target: float, asked: dict[str, Any]) -> None:
    noise = sigma(epsilon=target, **asked)
    at = epsilon(noise_multiplier=noise, **asked)
    assert at.upper <= target, asked
    if at.upper > 0:  # otherwise delta exceeds the chance of taking part, and no noise is needed
        assert epsilon(noise_multiplier=noise * (1 - CLOSE), **asked).upper > target, asked


@pytest.mark.parametrize("seed", range(6))
def test_noise_keeps_its_target_and_less_does_not(seed: int) -> None:
    for target, asked in targets(2, seed):
        assert_one_certificate(target, asked)


@pytest.mark.slow
def test_noise_keeps_its_target_and_less_does_not_on_many_targets() -> None:
    for target, asked in targets(int(os.environ.get("PRIVFAIR_TARGETS", "60")), 2026):
        assert_one_certificate(target, asked)

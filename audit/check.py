"""One question put to a run, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Layer(Enum):
    """Which kind of evidence, cheapest first."""

    CONFORMANCE = "conformance"
    """Do manifest, ledger, transcript, plan and model name one another?"""
    PROBE = "L0"
    """Noise off: sensitivities, isolation, step counts."""
    NOISE = "L1"
    """Is the noise in one run's messages what was signed?"""
    ATTACK = "L2"
    """Statistical lower bounds on epsilon."""


class Outcome(Enum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_POSSIBLE = "not possible"
    """The question cannot be answered from what is at hand; never counted as passed."""


@dataclass(frozen=True)
class Check:
    layer: Layer
    name: str
    outcome: Outcome
    finding: str

    def to_json(self) -> dict[str, str]:
        return {
            "layer": self.layer.value,
            "name": self.name,
            "outcome": self.outcome.value,
            "finding": self.finding,
        }


def passed_if(layer: Layer, name: str, condition: bool, finding: str) -> Check:
    return Check(layer, name, Outcome.PASSED if condition else Outcome.FAILED, finding)

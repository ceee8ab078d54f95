"""What a fairness penalty makes small; importable without torch."""

from __future__ import annotations

from enum import Enum


class FairnessPenalty(Enum):
    SQUARED_GAP = "squared-gap"
    """The squared differences of the groups' mean class probabilities; with two groups and classes the gap squared."""
    FERMI = "fermi"
    """The chi-square divergence of groups and predictions, at its own best W."""

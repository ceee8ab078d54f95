"""Which of the iterates becomes the model; importable without torch."""

from __future__ import annotations

from enum import Enum


class Iterate(Enum):
    """Which of theta_1 .. theta_T is the model."""

    LAST = "last"
    UNIFORM = "uniform"
    """One drawn uniformly beforehand, for which the papers prove convergence."""
    TAIL_AVERAGE = "tail-average"
    """The mean of the last quarter, over which noise averages out."""

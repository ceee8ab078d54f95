"""The loss of k-ary randomised response: three values, no continuous part."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibrate.accountants.losses.law import Atom, Buckets, Nodes
from calibrate.arrays import Floats


@dataclass(frozen=True)
class RandomizedResponseLoss:
    """The truth is category 1 under P and 2 under Q; each other category is equally likely under both."""

    epsilon: float
    categories: int

    @property
    def atoms(self) -> tuple[Atom, ...]:
        lie = 1 / (math.exp(self.epsilon) + self.categories - 1)
        ends = (Atom(-self.epsilon, lie), Atom(self.epsilon, math.exp(self.epsilon) * lie))
        return ends if self.categories == 2 else (*ends, Atom(0.0, (self.categories - 2) * lie))

    @property
    def unbounded_mass(self) -> float:
        return 0.0

    @property
    def largest(self) -> float:
        return self.epsilon

    def span(self, log_mass: float) -> tuple[float, float]:
        return 0.0, 0.0

    def buckets(self, edges: Floats) -> Buckets:
        nothing = np.zeros(len(edges) - 1)
        return Buckets(nothing, nothing, nothing, nothing, below=0.0, above=0.0)

    def nodes(self, largest_tilt: float) -> Nodes:
        return Nodes(np.empty(0), np.empty(0))

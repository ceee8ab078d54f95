"""Where the data are quiet: directions in which ordinary units move a message least, and how to weigh the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from calibrate.arrays import Floats

_DENSE = 1500
"""Up to so many entries all directions are compared; beyond, random ones orthogonal to the sampled units are taken."""


def quiet_directions(units: Floats, number: int, seed: int) -> Floats:
    """`number` orthonormal rows along which the sampled units (rows of `units`) are smallest in mean square."""
    size = units.shape[1]
    if size <= _DENSE:
        _, vectors = np.linalg.eigh(units.T @ units)
        return np.ascontiguousarray(vectors[:, : min(number, size)].T)
    random = np.random.default_rng(seed)
    drawn = random.normal(size=(min(number, size // 4), size))
    loud, _ = np.linalg.qr(units[: size // 2].T)
    drawn -= (drawn @ loud) @ loud.T
    rows, _ = np.linalg.qr(drawn.T)
    return np.ascontiguousarray(rows.T)


@dataclass(frozen=True, eq=False)
class Interference:
    """What the secret batch of ordinary units adds to the noise: covariance 1 + spread^T spread, in noise units."""

    spread: Floats
    """(sampled units, entries), scaled."""

    @classmethod
    def of(cls, units: Floats, population: int, rate: float) -> Interference:
        """From a sample of units, of a population that takes part with `rate` each."""
        share = np.sqrt(rate * (1 - rate) * population / max(1, len(units)))
        return cls(units * share)

    def with_noise(self, share: float) -> Interference:
        """The same data when only `share` of the noise is there, in units of that noise."""
        return Interference(self.spread / share)

    def weighted(self, signal: Floats) -> Floats:
        """(1 + spread^T spread)^-1 signal, for each row: by Woodbury, so only a small matrix is inverted."""
        small = np.eye(len(self.spread)) + self.spread @ self.spread.T
        return signal - np.linalg.solve(small, self.spread @ signal.T).T @ self.spread

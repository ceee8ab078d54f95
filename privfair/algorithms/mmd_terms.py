"""What an MMD-fair run is told from outside: clients, draws, clips, noise, and how the cells' sizes are known."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import assert_never

from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.validation import count, positive, rate
from privfair.algorithms.fair_options import MmdFedAvgOptions, NoiseCorrection
from privfair.fairness.kernel_kinds import kernel_of
from privfair.fairness.kernel_mmd import kernel_before_noise
from privfair.fairness.kernels import Kernel, Noise
from privfair.fairness.notions import KernelKind

HALF_RANGE = 0.5
"""Scores lie in [0, 1], within 1/2 of the centre."""
HISTOGRAM_BOUND = math.sqrt(2) / 2
"""A replaced record takes one from one count and gives one to another: half the distance sqrt(2), under replace-one."""


@dataclass(frozen=True)
class PublicShares:
    """Each cell's share of all records, known to everybody; group by group, condition by condition."""

    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        for share in self.shares:
            rate("group-shares", share)
        if math.fsum(self.shares) > 1 + 1e-9:
            raise InvalidInput(
                "group-shares", self.shares, "must sum to at most 1", "give shares of all records"
            )


@dataclass(frozen=True)
class PaidCounts:
    """A noisy histogram of the cells, published once and paid from the budget."""


@dataclass(frozen=True)
class CountsInTheClear:
    """The exact histogram, published once; only where nothing is promised."""


@dataclass(frozen=True)
class MmdTerms:
    """Public facts and signed bounds. `noise` is that of the published predictions; None where there is none."""

    clients: tuple[int, ...]
    """Each client's number of records."""
    samples: int
    """Predictions published of each cell and round."""
    cohort: int
    counts: PublicShares | PaidCounts | CountsInTheClear
    update_clip: float | None = None
    noise: Noise | None = None
    smallest_cell: int = 1
    """The size that every cell was priced to have at least."""

    def __post_init__(self) -> None:
        for size in self.clients:
            count("records of a client", size, least=0)
        count("samples-per-group", self.samples)
        count("cohort", self.cohort)
        count("group-size", self.smallest_cell)
        if self.cohort > len(self.clients):
            raise InvalidInput(
                "cohort", self.cohort, f"exceeds the {len(self.clients)} clients", "take at most all of them"
            )
        if self.update_clip is not None:
            positive("update-clip", self.update_clip)

    @property
    def private(self) -> bool:
        return self.noise is not None

    @property
    def counts_in_the_clear(self) -> bool:
        return isinstance(self.counts, CountsInTheClear)

    def require(self, options: MmdFedAvgOptions, cells: int) -> None:
        """Refuse what no noise makes private, with the remedy."""
        if isinstance(self.counts, PublicShares) and len(self.counts.shares) != cells:
            raise InvalidInput(
                "group-shares",
                self.counts.shares,
                f"must be {cells} numbers, one for each group and condition",
                "list the conditions of group 0, then those of group 1",
            )
        if not self.private:
            return
        if not options.compared.bounded:
            raise UnsupportedCombination(
                f"a private run on the score {options.compared.value}",
                "it is unbounded, so no noise is enough",
                'use score = "probability" (or "miss" for risk parity), which lie in [0, 1]',
            )
        if options.kernel is KernelKind.ENERGY:
            raise UnsupportedCombination(
                "a private run with the energy kernel",
                "it is unbounded, and what noise makes of it is not covered by the convolution result it would rest on",
                'use kernel = "gaussian"',
            )
        if self.counts_in_the_clear:
            raise UnsupportedCombination(
                "a private run with exact group counts",
                "they are data, and nobody paid for them",
                "give histogram-noise-ratio under [privacy], or group-shares under [training] if they are public",
            )


def kernel_to_use(options: MmdFedAvgOptions, noise: Noise | None) -> Kernel:
    """The kernel to compute with, so that (with exact correction) the wanted one acts after the noise."""
    wanted = kernel_of(options.kernel, options.kernel_width)
    if noise is None:
        return wanted
    match options.correction:
        case NoiseCorrection.EXACT:
            return kernel_before_noise(wanted, noise)
        case NoiseCorrection.NONE:
            return wanted
        case _:
            assert_never(options.correction)

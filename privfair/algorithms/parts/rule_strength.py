"""How strongly a fair rule pulls: one histogram over the strength tau at which each answer flips tells every gap.

A silo counts, by group, which records the outcome's model alone answers 1, and then in which bin of tau each record's
answer flips. From sums of these counts, noisy or of randomised responses, the coordinator reads which groups are
favoured and the gap of every tau at once, and takes the weakest that keeps the target gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from privfair.models.exact import weighted_rows
from privfair.models.fair_rule import FairRule
from privfair.models.model import Features

_STAYS, _REST = 0, 1
"""The first cells of the histogram: answered 1 at every tau, and answered 0 at every tau."""


@dataclass(frozen=True)
class RuleStrength:
    """Which strengths of a rule are tried, and how one is chosen; see `FairPluginOptions`."""

    rule: FairRule
    bins: int
    reach: float
    target_gap: float
    least_share: float

    @property
    def cells(self) -> int:
        """Of the histogram: two for records that never flip, and where others leave the ones or join them."""
        return 2 + 2 * self.bins

    # What a silo computes on its records.

    def answers(self, theta: Tensor, x: Features) -> Tensor:
        """Whether eta alone answers 1."""
        return (self.rule.margin_and_groups(theta, x)[0] > 0).long()

    def flips(self, theta: Tensor, rates: Tensor, x: Features) -> Tensor:
        """The cell of each record: the bin of tau in which it leaves the ones or joins them, or that it never flips."""
        bins = self.bins
        margin, groups = self.rule.margin_and_groups(theta, x)
        pull = weighted_rows(groups, self.direction(rates))
        flips = margin / torch.where(pull == 0, torch.ones_like(pull), pull)
        place = (flips / self.reach * bins).clamp(0, bins - 1).long()
        within = (pull != 0) & (flips >= 0) & (flips < self.reach)
        leaves, joins = within & (margin > 0), within & (margin <= 0)
        cell = torch.where(margin > 0, _STAYS, _REST)
        cell = torch.where(leaves, 2 + place, cell)
        return torch.where(joins, 2 + bins + place, cell)

    # What the coordinator makes of the counts.

    def direction(self, rates: Tensor) -> Tensor:
        """How strongly each group is pulled at tau = 1: those above the mean rate down, those below it up.

        Two groups are pulled alike, by 1 over their shares; all is scaled by the smallest share, so that the range of
        tau that matters is about the same whatever the shares are.
        """
        sizes = rates.sum(dim=1).clamp_min(0.0)
        shares = (sizes / sizes.sum().clamp_min(1.0)).clamp_min(self.least_share)
        away = (rates[:, 1] / sizes.clamp_min(1.0)).clamp(0.0, 1.0)
        away = away - away.mean()
        widest = away.abs().max()
        return away / (widest if float(widest) > 0 else 1.0) * shares.min() / shares

    def choose_pulls(self, rates: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The weakest rule whose gap, as counted, keeps the target, else that with the smallest gap; and that gap."""
        bins = self.bins
        cumulated = torch.cumsum(counts[:, 2:].reshape(len(counts), 2, bins), dim=2)
        leaves, joins = torch.nn.functional.pad(cumulated, (1, 0)).unbind(dim=1)
        sizes = counts.sum(dim=1, keepdim=True).clamp_min(1.0)
        told = (counts[:, _STAYS, None] + leaves[:, -1:] - leaves + joins) / sizes
        gaps = told.amax(dim=0) - told.amin(dim=0)
        kept = (gaps <= self.target_gap).nonzero()[:, 0]
        place = int(kept[0]) if len(kept) else int(gaps.argmin())
        return self.direction(rates) * (self.reach * place / bins), gaps[place]

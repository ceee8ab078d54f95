"""Boosted regression trees as a model: a forest is one array of numbers, so it is stored and read like any parameters.

theta is `trees` tables of `2 leaves - 1` nodes, root first. A node is (feature, threshold, left, value): a leaf has
left = 0 and adds its value to the score; any other sends a record to `left` if x[feature] <= threshold, else to
`left + 1`. Children come after their parent, so every walk ends. A table of zeros is a tree that adds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from calibrate.errors import InvalidInput, count
from privfair.models.model import EXACT, Differentiated, Features, tensor_of

FEATURE, THRESHOLD, LEFT, VALUE = range(4)
"""The columns of a tree's table."""
_BLOCK = 2**20
"""Records times trees that walk at once."""


@final
@dataclass(frozen=True)
class BoostedTrees(Differentiated):
    """The score of class 1 is the sum of the trees' leaves; in theta only these are differentiable."""

    features: int
    trees: int
    leaves: int = 15

    def __post_init__(self) -> None:
        count("trees", self.trees)
        count("leaves", self.leaves, least=2)

    @property
    def nodes(self) -> int:
        return 2 * self.leaves - 1

    @property
    def size(self) -> int:
        return self.trees * self.nodes * 4

    def initial(self, seed: int) -> Tensor:
        return torch.zeros(self.size, dtype=EXACT)

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        return {"trees": theta.view(-1, self.nodes, 4)}

    def logits(self, theta: Tensor, x: Features) -> Tensor:
        score = self.scores(theta, tensor_of(x))
        return torch.stack((torch.zeros_like(score), score), dim=1)

    def scores(self, theta: Tensor, x: Tensor, start: Tensor | None = None) -> Tensor:
        """The sum of the leaves, tree after tree from `start` on; refused unless every table is a tree."""
        start = torch.zeros(len(x), dtype=EXACT) if start is None else start
        table = theta.reshape(-1, self.nodes, 4).to(EXACT)
        known = table.detach()
        self.require_trees(known)
        if not len(known):
            return start
        feature, left = known[:, :, FEATURE].long(), known[:, :, LEFT].long()
        depth = int(_depths(left).max())
        first = torch.arange(len(known)) * self.nodes
        parts = []
        block = max(1, _BLOCK // len(known))
        for records, before in zip(torch.split(x.flatten(1).to(EXACT), block), torch.split(start, block), strict=True):
            at = first.expand(len(records), -1)
            for _ in range(depth):
                down = left.flatten()[at]
                right = records.gather(1, feature.flatten()[at]) > known[:, :, THRESHOLD].flatten()[at]
                at = torch.where(down > 0, first + down + right, at)
            leaves = table[:, :, VALUE].flatten()[at]
            parts.append(torch.cat((before[:, None], leaves), dim=1).cumsum(dim=1)[:, -1])
        return torch.cat(parts) if parts else start

    def require_trees(self, table: Tensor) -> None:
        """Refuse numbers that are no trees: whatever a file or a message holds, a walk stays inside and ends."""
        whole = table[:, :, [FEATURE, LEFT]]
        places = torch.arange(self.nodes, dtype=EXACT)
        left = table[:, :, LEFT]
        fine = torch.isfinite(table).all() and (whole == whole.floor()).all() and (whole >= 0).all()
        fine = fine and (table[:, :, FEATURE] < self.features).all()
        if not bool(fine and ((left == 0) | ((left > places) & (left + 1 < self.nodes))).all()):
            rule = f"must be nodes of trees on {self.features} features, children after their parent"
            raise InvalidInput("trees", tuple(table.shape), rule, "take the model as it was published")


def _depths(left: Tensor) -> Tensor:
    """How deep each node of each tree is at most."""
    depths = torch.zeros_like(left)
    rows = torch.arange(len(left))
    for node in range(left.shape[1]):
        down = left[:, node]
        for child in (down, down + 1):
            inner = rows[down > 0]
            depths[inner, child[inner]] = torch.maximum(depths[inner, child[inner]], depths[inner, node] + 1)
    return depths

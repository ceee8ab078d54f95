"""How a silo grows one boosted tree on its own records: best split first, from sums of gradients left of every cut.

These are the trees of scikit-learn's HistGradientBoosting (a test holds the two against each other), grown from any
score that was published before: scikit-learn can't be given one, and so can't continue what another silo began.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from calibrate.arrays import Floats
from calibrate.errors import InvalidInput
from privfair.models.fair_rule import FairRule
from privfair.models.trees import FEATURE, LEFT, THRESHOLD, VALUE, BoostedTrees

LEAST_RECORDS, RIDGE = 30, 1.0
"""Of a leaf; and what is added to a leaf's second derivatives."""
_ALL_CUTS, _QUANTILES = 255, 64
"""A feature with at most so many distinct values is cut between all of them; any other at so many quantiles."""
_ROWS = 4096
"""Records whose sides of all cuts are held as numbers at once."""
_LEAST_GAIN = 1e-6
_STRANDS = 3


@dataclass(frozen=True, eq=False)
class Cuts:
    """Where the features of some records may be cut, and on which side of each cut every record lies."""

    feature: NDArray[np.int64]
    threshold: Floats
    is_left: NDArray[np.bool_]
    """(records, cuts)"""

    @classmethod
    def of(cls, x: Floats) -> Cuts:
        places = [_thresholds(column) for column in x.T]
        sides = [column[:, None] <= cut for column, cut in zip(x.T, places, strict=True)]
        feature = np.repeat(np.arange(x.shape[1]), [len(cut) for cut in places])
        return cls(feature, np.concatenate(places), np.concatenate(sides, axis=1))

    def sums(self, rows: NDArray[np.int64], values: NDArray[np.float32]) -> Floats:
        """(cuts, columns of `values`): the sum over the given records that lie left of each cut."""
        total = np.zeros((len(self.feature), values.shape[1]))
        for block in np.split(rows, range(_ROWS, len(rows), _ROWS)):
            total += self.is_left[block].T.astype(np.float32) @ values[block]
        return total


def _thresholds(column: Floats) -> Floats:
    """Between neighbouring values, as many as are worth it; none where all are the same."""
    values = np.unique(column)
    between: Floats = values[:-1] + (values[1:] - values[:-1]) / 2
    if len(between) <= _ALL_CUTS:
        return between
    at = np.quantile(column, np.arange(1, _QUANTILES) / _QUANTILES, method="lower")
    chosen: Floats = between[np.unique(np.searchsorted(values, at).clip(0, len(between) - 1))]
    return chosen


@dataclass(frozen=True, eq=False, order=False)
class _Leaf:
    """The records in a leaf, and its best split."""

    node: int
    rows: NDArray[np.int64]
    left_sums: Floats
    total: Floats
    gain: float = field(init=False)
    cut: int = field(init=False)

    def __post_init__(self) -> None:
        (g, h, n), (all_g, all_h, all_n) = self.left_sums.T, self.total
        gain = g**2 / (h + RIDGE) + (all_g - g) ** 2 / (all_h - h + RIDGE) - all_g**2 / (all_h + RIDGE)
        gain = np.where(np.minimum(n, all_n - n) < LEAST_RECORDS, 0.0, gain)
        object.__setattr__(self, "cut", int(gain.argmax()) if len(gain) else 0)
        object.__setattr__(self, "gain", float(gain[self.cut]) if len(gain) else 0.0)

    def __lt__(self, other: _Leaf) -> bool:
        return (-self.gain, self.node) < (-other.gain, other.node)


def grow_tree(cuts: Cuts, gradient: Floats, curvature: Floats, leaves: int) -> Floats:
    """A tree's table (`BoostedTrees`) for the loss with these first and second derivatives in the score."""
    values = np.stack((gradient, curvature, np.ones_like(gradient)), axis=1).astype(np.float32)
    everybody = np.arange(len(gradient))
    table, used = np.zeros((2 * leaves - 1, 4)), 1
    heap = [_Leaf(0, everybody, cuts.sums(everybody, values), values.sum(axis=0, dtype=np.float64))]
    while heap[0].gain > _LEAST_GAIN and len(heap) < leaves:
        leaf = heapq.heappop(heap)
        table[leaf.node, [FEATURE, THRESHOLD, LEFT]] = cuts.feature[leaf.cut], cuts.threshold[leaf.cut], used
        goes_left = cuts.is_left[leaf.rows, leaf.cut]
        sides = [leaf.rows[goes_left], leaf.rows[~goes_left]]
        small = int(len(sides[1]) < len(sides[0]))
        own = cuts.sums(sides[small], values), values[sides[small]].sum(axis=0, dtype=np.float64)
        rest = leaf.left_sums - own[0], leaf.total - own[1]
        for side, rows in enumerate(sides):
            heapq.heappush(heap, _Leaf(used + side, rows, *(own if side == small else rest)))
        used += 2
    for leaf in heap:
        table[leaf.node, VALUE] = -leaf.total[0] / (leaf.total[1] + RIDGE)
    return table


@dataclass(frozen=True)
class Turns:
    """Who grows which tree. Silos are dealt to up to three strands, and the score is the mean of the strands' scores.

    Within a strand silos take turns, each on the residuals of the strand's trees alone: the mean then varies less than
    one long strand, and every silo has trees that never saw its records, by which it can count without bias.
    """

    parties: tuple[str, ...]

    @property
    def strands(self) -> int:
        return min(_STRANDS, len(self.parties))

    def grower(self, place: int) -> str:
        """The silo that grows this tree."""
        own = self.parties[place % self.strands :: self.strands]
        return own[place // self.strands % len(own)]

    def before(self, forest: Tensor, place: int) -> Tensor:
        """The trees of a strand before this one, whose scores add up to the strand's."""
        return _scaled(forest[place % self.strands : place : self.strands], self.strands)

    def unseen(self, forest: Tensor, party: str) -> Tensor:
        """The forest without this silo's strand, scaled to a mean again; all of it if there is no other strand."""
        if self.strands == 1:
            return forest
        others = _scaled(forest, self.strands / (self.strands - 1))
        others[self.parties.index(party) % self.strands :: self.strands] = 0.0
        return others


def _scaled(forest: Tensor, factor: float) -> Tensor:
    scaled = forest.clone()
    scaled[:, :, VALUE] *= factor
    return scaled


@dataclass(eq=False)
class Grower:
    """Grows a silo's next tree; remembers cuts and scores of records that it has seen, which changes no result."""

    model: BoostedTrees
    _seen: dict[str, _Records] = field(default_factory=dict)

    def next_tree(self, name: str, forest: Tensor, x: Tensor, y: Tensor) -> Floats:
        """The tree that lowers the cross-entropy of y most, given the trees so far, by one Newton step per leaf."""
        records = self._seen.get(name)
        if records is None or records.x is not x:
            records = self._seen[name] = _Records(self.model, x)
        chance = expit(records.scores(forest))
        return grow_tree(records.cuts, chance - (y == 1).numpy(), chance * (1 - chance), self.model.leaves)


@dataclass(frozen=True, eq=False)
class TreesInTurn:
    """A forest that silos grow in turn, one tree per round; a forest not yet whole has empty trees at its end."""

    model: BoostedTrees
    turns: Turns
    rate: float
    """What of a tree's leaves is added to its strand's score."""
    _grower: Grower = field(init=False)

    def __post_init__(self) -> None:
        if not self.turns.parties:
            raise InvalidInput("parties", (), "are needed to grow trees in turn", "name the silos")
        object.__setattr__(self, "_grower", Grower(self.model))

    def start(self) -> Tensor:
        """A forest of empty trees."""
        return self.model.initial(0).reshape(-1, self.model.nodes, 4)

    def next_tree(self, forest: Tensor, place: int, party: str, x: Tensor, y: Tensor) -> Floats:
        """What a silo sends for this place: its tree, or an empty one where it is another's turn."""
        if party != self.turns.grower(place):
            return np.zeros((self.model.nodes, 4))
        return self._grower.next_tree(party, self.turns.before(forest, place), x, y)

    def with_tree(self, forest: Tensor, place: int, sent: Mapping[str, Floats]) -> Tensor:
        """The forest with the tree of the silo whose turn it was, if it sent one; refused if that is not a tree."""
        grower = self.turns.grower(place)
        if grower not in sent:
            return forest
        tree, grown = torch.from_numpy(np.array(sent[grower], dtype=np.float64)), forest.clone()
        self.model.require_trees(tree[None])
        tree[:, VALUE] *= self.rate / self.turns.strands
        grown[place] = tree
        return grown


@dataclass(frozen=True, eq=False)
class Distilling:
    """How a forest of trees, the pupil, learns to give the answers of `rule` from features alone.

    The rule guesses the group of whom it answers; its pupil does not. It learns what the rule answers on the silos' own
    records, so it is sent in the clear where features are not protected, and nowhere else.

    Guarantee: a pupil's tree is a function of features and of published values (the rule's parameters, the pupil's
    earlier trees) alone; where the rule is made of randomised responses this is post-processing of them
    (docs/theorems/fair-plugin.md, equation 6).
    """

    rule: FairRule
    pupil: TreesInTurn
    _known: dict[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    def next_tree(self, forest: Tensor, place: int, party: str, theta: Tensor, x: Tensor) -> Floats:
        """What a silo sends for this place of the pupil's forest, if the rule has the parameters theta."""
        mine = party == self.pupil.turns.grower(place)
        answers = self._answers(party, theta, x) if mine else torch.zeros(0)
        return self.pupil.next_tree(forest, place, party, x, answers)

    def _answers(self, party: str, theta: Tensor, x: Tensor) -> Tensor:
        """The class that the rule answers; remembered, since the rule stays as it is while it is distilled."""
        known = self._known.get(party)
        if known is not None and known[0] is x and torch.equal(known[1], theta):
            return known[2]
        answers = self.rule.logits(theta, x).argmax(dim=1)
        self._known[party] = (x, theta, answers)
        return answers


@dataclass(eq=False)
class _Records:
    """Some records, and their scores by the trees of which they were last asked."""

    model: BoostedTrees
    x: Tensor
    _forest: Tensor | None = None
    _scores: Tensor | None = None

    @cached_property
    def cuts(self) -> Cuts:
        return Cuts.of(self.x.flatten(1).double().numpy())

    def scores(self, forest: Tensor) -> Floats:
        old = 0 if self._forest is None else len(self._forest)
        if self._forest is None or not torch.equal(forest[:old], self._forest):
            self._scores, old = None, 0
        self._scores = self.model.scores(forest[old:], self.x, self._scores)
        self._forest = forest.clone()
        found: Floats = self._scores.numpy()
        return found

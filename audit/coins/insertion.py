"""What a canary run trains on: records of the run as a background, canaries whose coins decide, and their model.

In the model of gradient-space canaries the gradient of such a record is a vector of the auditor's choice. Everything
after the per-record gradient (clipping, sums, gate) is the production code. A canary is recognised by its features
alone, so that algorithms need not know of it: its first feature is `MARK` plus its number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, assert_never, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.signal import lfilter
from torch import Tensor

from audit.coins.canary_decoder import CoinMeaning
from audit.runs.evidence import RoundEvidence, RunEvidence, rows_only
from audit.runs.rerun import RunWatch
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, UnsupportedCombination
from calibrate.manifest.mechanism import GaussianNoise
from privfair.algorithms.algorithm import Algorithm, Message, SiloTensors
from privfair.algorithms.mmd_fedavg import UPDATES, MmdFedAvg
from privfair.algorithms.parts.paid_scales import PaidScales, ScaledState
from privfair.contribution import Published
from privfair.models.exact import cross_entropy, probabilities_of, through_softmax
from privfair.models.model import EXACT, Features, Model, Weigh, WeightedGradient, bound_of, tensor_of

# A party's message in units of its noise, and what one unit alone would add to it.

Received = Mapping[str, Mapping[str, Published]]


@dataclass(frozen=True, eq=False)
class Scaling:
    """The Gaussian values of a round that are read, each divided by its signed sigma.

    The first value begins with the model's gradient (or update) in every algorithm.
    """

    names: tuple[str, ...]
    sigmas: tuple[float, ...]
    sizes: tuple[int, ...]
    """Numbers in each."""
    columns: tuple[tuple[float, ...], ...]
    """How each value's rounds are mixed before the noise; (1.0,) where they are not."""

    @classmethod
    def of(cls, evidence: RunEvidence) -> Scaling | None:
        """None where no value is published with Gaussian noise in most rounds.

        MMD-FedAvg's predictions stand in a random order, so a record has no place of its own in them; they are left
        to the updates, which the same record moves.
        """
        shapes = evidence.algorithm.shapes()
        read = (UPDATES,) if isinstance(evidence.algorithm, MmdFedAvg) else shapes
        rounds, values = evidence.document.rounds, []
        for name in read:
            declared = evidence.document.release(name)
            if isinstance(declared, GaussianNoise) and 2 * declared.publications > rounds:
                values.append((name, declared.sigma, math.prod(shapes[name]), declared.strategy or (1.0,)))
        if not values:
            return None
        names, sigmas, sizes, columns = zip(*values, strict=True)
        return cls(names, sigmas, sizes, columns)

    def rounds(self, evidence: RunEvidence) -> list[RoundEvidence]:
        """The rounds in which the first value was sent: histograms have rounds of their own."""
        first = [spec.name for spec in evidence.transcript.header.values].index(self.names[0])
        sent = {key.round for key in evidence.transcript.keys if key.name == first}
        return [one for one in evidence.rounds() if one.round in sent]

    def rows(self, party: str, watch: RunWatch, *, noise: bool) -> tuple[Floats, ...]:
        """All rounds of a party, one row each; one array per value.

        A published value whose rounds were mixed is correlated with its column, which collects a unit's part at its
        round with its full size, under noise of the signed size.
        """
        found = []
        for name, sigma, size, column in zip(self.names, self.sigmas, self.sizes, self.columns, strict=True):
            rows = watch.rows(party, name, size, noise=noise) / sigma
            if noise and len(column) > 1:
                rows = np.asarray(lfilter(column, [1.0], rows[::-1], axis=0)[::-1])
            found.append(rows)
        return tuple(found)

    def one(self, message: Message) -> tuple[Floats, ...]:
        """One message before its noise; one vector per value, of zeros where nothing is sent."""
        values = {value.name: value.values.ravel() for value in message.noisy}
        each = zip(self.names, self.sigmas, self.sizes, strict=True)
        return tuple(values[name] / sigma if name in values else np.zeros(size) for name, sigma, size in each)


@dataclass(frozen=True, eq=False)
class ReplayedRound:
    """A round of the audited run: the state it started from and what was published in it."""

    step: int
    state: Any
    received: Received

    @classmethod
    def of(cls, evidence: RunEvidence, one: RoundEvidence) -> ReplayedRound:
        received: dict[str, dict[str, Published]] = {}
        header = evidence.transcript.header
        for party in header.parties:
            for spec in header.values:
                if one.round in set(evidence.transcript.rounds(party, spec.name).tolist()):
                    values = np.asarray(evidence.transcript.value(one.round, party, spec.name), dtype=np.float64)
                    received.setdefault(party, {})[spec.name] = Published(one.round, party, spec.name, values)
        return cls(one.step, one.state, received)


def alone(
    algorithm: Algorithm[Any], scaling: Scaling, at: ReplayedRound, silo: SiloTensors, unit: int
) -> tuple[Floats, ...]:
    """What the production code has one unit add to its party's message (for MMD-FedAvg: its client)."""
    if isinstance(algorithm, MmdFedAvg):
        client = unit if silo.client_of_row is None else int(silo.client_of_row[unit])
        batch = torch.tensor([len(silo) + client])
        return scaling.one(algorithm.reply(at.state, at.step, silo, batch, at.received))
    batch = torch.tensor([unit])
    return scaling.one(algorithm.contribution(at.state, at.step, silo, batch))


Coins = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Canaries:
    """The canaries of one silo: two versions of each, side 0 and side 1 (in-or-out coins use side 1 alone)."""

    x: tuple[Tensor, Tensor]
    y: Tensor
    s: Tensor
    rows: Tensor | None = None
    """Which rows of the background they stand in for; None: they come after it, each a unit of its own."""

    def __len__(self) -> int:
        return len(self.s)


@dataclass(frozen=True, eq=False)
class CanarySilo:
    """A background with its canaries.

    Two coin vectors that differ in one coin give data sets that differ in one unit: added or removed, or replaced.
    """

    background: SiloTensors
    units: int
    """Units of the background; users without records count."""
    canaries: Canaries
    meaning: CoinMeaning

    def __post_init__(self) -> None:
        if self.canaries.rows is not None and self.meaning is CoinMeaning.IN_OR_OUT:
            raise UnsupportedCombination(
                "canaries in the place of records under add-remove",
                "taking one out would put another record in, which is two steps of add-remove",
                "audit a replace-one promise, or canaries that are units of their own",
            )

    @property
    def name(self) -> str:
        return self.background.name

    def with_coins(self, coins: Coins) -> SiloTensors:
        """The silo as the coins have it."""
        match self.meaning:
            case CoinMeaning.IN_OR_OUT:
                chosen = torch.from_numpy(np.flatnonzero(coins))
                sides = torch.ones(len(chosen), dtype=torch.int64)
            case CoinMeaning.ONE_OF_TWO:
                chosen = torch.arange(len(self.canaries))
                sides = torch.from_numpy(np.asarray(coins, dtype=np.int64))
            case _:
                assert_never(self.meaning)
        x = torch.stack(self.canaries.x)[sides, chosen]
        y = self.canaries.y[chosen]
        if self.canaries.rows is None:
            return self._append(x, y, self.canaries.s[chosen])
        return self._replace(self.canaries.rows[chosen], x, y)

    def size(self, coins: Coins) -> int:
        """How many units the coins leave in the silo."""
        if self.canaries.rows is not None:
            return self.units
        return self.units + (len(coins) if self.meaning is CoinMeaning.ONE_OF_TWO else int(coins.sum()))

    def unit(self, canary: int) -> int:
        """The number of a canary's unit in a silo where every coin shows 1."""
        return self.units + canary if self.canaries.rows is None else int(self.canaries.rows[canary])

    def _append(self, x: Tensor, y: Tensor, s: Tensor) -> SiloTensors:
        back, owners = self.background, self.background.unit_of_row
        if owners is not None:
            owners = torch.cat((owners, self.units + torch.arange(len(y))))
        return replace(
            back, x=torch.cat((back.x, x)), y=torch.cat((back.y, y)), s=torch.cat((back.s, s)), unit_of_row=owners
        )

    def _replace(self, rows: Tensor, x: Tensor, y: Tensor) -> SiloTensors:
        back = self.background
        new_x, new_y = back.x.clone(), back.y.clone()
        new_x[rows], new_y[rows] = x, y
        return replace(back, x=new_x, y=new_y)


def first_units(silo: SiloTensors, number: int) -> SiloTensors:
    """The silo's first `number` units, all of them if it has no more."""
    if silo.unit_of_row is None:
        rows = torch.arange(min(number, len(silo)))
    else:
        rows = (silo.unit_of_row < number).nonzero()[:, 0]
    return rows_only(silo, rows)


MARK = float(2**23)
"""Whole numbers up to here are exact in float32, and no scaled feature comes near it."""
LENGTH = 1e6
"""The norm of a canary's gradient before clipping: so large that its clipped part has exactly the bound's norm."""
_AGAINST = 10.0
"""How far a canary's score speaks against class 1, its label: a loss above any sensible clip."""
LABEL = 1


@final
class CanaryScales(PaidScales):
    """Scales records, and leaves canaries the features that they are recognised by."""

    def scaled(self, state: ScaledState, silo: SiloTensors) -> SiloTensors:
        found = super().scaled(state, silo)
        canaries = silo.x.flatten(1)[:, :1] >= MARK
        return replace(found, x=torch.where(canaries, silo.x, found.x))


@final
@dataclass(frozen=True, eq=False)
class CanaryModel:
    """The inner model; but canary number j has constant scores, and the gradient of its class-1 score is
    LENGTH times row j of `directions`, whatever theta is.

    So a canary's part of a clipped sum is the clip times its direction (up to sign), in every round.
    """

    inner: Model
    directions: Tensor
    """(canaries, parameters), rows of norm one."""

    def __post_init__(self) -> None:
        if self.directions.ndim != 2 or self.directions.shape[1] != self.inner.size:
            raise InvalidInput(
                "directions",
                tuple(self.directions.shape),
                f"must be (canaries, {self.inner.size})",
                "give one vector of the model's size per canary",
            )

    @property
    def size(self) -> int:
        return self.inner.size

    @property
    def classes(self) -> int:
        return self.inner.classes

    def initial(self, seed: int) -> Tensor:
        return self.inner.initial(seed)

    def logits(self, theta: Tensor, x: Features) -> Tensor:
        ordinary, canaries = _split(x)
        if len(canaries) == 0:
            return self.inner.logits(theta, x)
        out = self._scores(len(x))
        if len(ordinary):
            out[ordinary] = self.inner.logits(theta, x[ordinary])
        return out

    def probabilities(self, theta: Tensor, x: Features) -> Tensor:
        return probabilities_of(self.logits(theta, x).detach())

    def weighted_gradient(self, theta: Tensor, x: Features, y: Tensor, weigh: Weigh) -> WeightedGradient:
        ordinary, canaries = _split(x)
        if len(canaries) == 0:
            return self.inner.weighted_gradient(theta, x, y, weigh)
        losses, residual = cross_entropy(self._scores(len(x)), y)
        along = residual[:, LABEL] * LENGTH
        together = _Together(weigh, ordinary, along.abs(), losses)
        total = torch.zeros(self.size, dtype=EXACT)
        if len(ordinary):
            total = self.inner.weighted_gradient(theta, x[ordinary], y[ordinary], together).total
        coefficients = weigh(together.norms, losses)
        table = self.directions.to(EXACT)[_numbers(x[canaries])]
        total = total + (coefficients[canaries] * along[canaries]) @ table
        return WeightedGradient(total, together.norms, losses, coefficients)

    def probability_gradient(self, theta: Tensor, x: Features, coefficients: Tensor) -> Tensor:
        ordinary, canaries = _split(x)
        if len(canaries) == 0:
            return self.inner.probability_gradient(theta, x, coefficients)
        chances = probabilities_of(self._scores(len(canaries)))
        pulled = through_softmax(chances, coefficients[canaries].to(EXACT))[:, LABEL] * LENGTH
        total = pulled @ self.directions.to(EXACT)[_numbers(x[canaries])]
        if len(ordinary):
            total = total + self.inner.probability_gradient(theta, x[ordinary], coefficients[ordinary])
        return total

    def probability_norms(self, theta: Tensor, x: Features, directions: Tensor) -> Tensor:
        ordinary, canaries = _split(x)
        if len(canaries) == 0:
            return self.inner.probability_norms(theta, x, directions)
        chances = probabilities_of(self._scores(1))
        of_canary = through_softmax(chances, directions.to(EXACT))[:, LABEL].abs() * LENGTH
        out = of_canary.expand(len(x), len(directions)).clone()
        if len(ordinary):
            out[ordinary] = self.inner.probability_norms(theta, x[ordinary], directions).to(EXACT)
        return out

    def score_gradients(self, theta: Tensor, x: Features, in_scores: Tensor) -> Tensor:
        ordinary, canaries = _split(x)
        out = torch.zeros(len(x), self.size, dtype=EXACT)
        if len(ordinary):
            out[ordinary] = self.inner.score_gradients(theta, x[ordinary], in_scores[ordinary])
        if len(canaries):
            table = self.directions.to(EXACT)[_numbers(x[canaries])]
            out[canaries] = table * (in_scores[canaries, LABEL].to(EXACT) * LENGTH)[:, None]
        return out

    def named_parameters(self, theta: Tensor) -> dict[str, Tensor]:
        return self.inner.named_parameters(theta)

    def _scores(self, records: int) -> Tensor:
        scores = torch.zeros(records, self.classes, dtype=EXACT)
        scores[:, LABEL] = -_AGAINST
        return scores


@final
@dataclass(frozen=True, eq=False)
class _Together:
    """Coefficients of the ordinary records, weighed in one batch with the canaries."""

    weigh: Weigh
    ordinary: Tensor
    norms: Tensor
    losses: Tensor

    def __call__(self, norms: Tensor, losses: Tensor) -> Tensor:
        self.norms[self.ordinary], self.losses[self.ordinary] = norms, losses
        return self.weigh(self.norms, self.losses)[self.ordinary]

    @property
    def bound(self) -> float | None:
        return bound_of(self.weigh)


def canary_features(like: Tensor, number: int) -> Tensor:
    """The features of canary `number`, in the shape and type of one ordinary record's."""
    features = torch.zeros_like(like)
    features.view(-1)[0] = MARK + number
    return features


def require_unmarked(x: Tensor) -> None:
    """Refuse data that could be taken for canaries."""
    if bool((_numbers(x) >= 0).any()):
        raise InvalidInput(
            "features",
            float(x.flatten(1)[:, 0].max()),
            f"must stay below {MARK:g}, where canaries begin",
            "scale the features in the schema",
        )


def _numbers(x: Features) -> Tensor:
    """Each record's canary number; -1 for an ordinary record."""
    first = tensor_of(x).flatten(1)[:, 0]
    number = (first - MARK).round()
    return torch.where(number >= 0, number, torch.full_like(number, -1)).long()


def _split(x: Features) -> tuple[Tensor, Tensor]:
    marked = _numbers(x) >= 0
    return (~marked).nonzero()[:, 0], marked.nonzero()[:, 0]

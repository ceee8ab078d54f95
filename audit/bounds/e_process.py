"""The e-process over ordered guesses: no threshold and no number of guesses to choose.

A gambler bets on the guesses one after the other, strongest first, that they are right more often than
q = e^eps / (e^eps + k - 1) allows. Under pure epsilon privacy the wealth is a supermartingale given everything
the attack saw, so it ever reaches 1 / a with probability at most a. Against delta the gambler forgives: j right
guesses are counted as wrong, and then delta costs m delta (1 - q) / (j + 1) on top of a.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from audit.bounds.guesses import RankedGuesses, pooled_order
from audit.bounds.lower_bound import GuessCounts, LowerBound, Method, Selection, allowed_failure, refuted_up_to
from audit.bounds.one_run import wrong_rate
from audit.bounds.trade_off import CurveFamily, EpsilonDeltaCurve, TradeOff, check_family_delta
from audit.settings import CONFIDENCE
from calibrate.arrays import Floats
from calibrate.errors import InvalidInput, UnsupportedCombination, open_unit


@dataclass(frozen=True)
class EProcess:
    """Bets `leads`: that the guesses are as right as those of epsilon + lead, in equal shares (equation (11)).

    `delta_price` bounds what delta adds to the error; it decides how many right guesses are forgiven.
    `least_epsilon` is the smallest epsilon the lower bound tests; delta is paid for there, so a larger one forgives
    fewer, and if it is not refuted the bound is 0. Set it to the claimed epsilon when only a violation is of
    interest. All three are fixed before the coins are seen.

    Guarantee: docs/theorems/audit-bounds.md, "The e-process", equation (12); for any release, one run or several
    pooled.
    """

    leads: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    least_epsilon: float = 0.0
    delta_price: float = 0.02
    method: ClassVar[Method] = Method.E_PROCESS
    family: ClassVar[CurveFamily] = CurveFamily.EPSILON_DELTA

    def __post_init__(self) -> None:
        if not self.leads or not all(0 < lead < math.inf for lead in self.leads):
            raise InvalidInput("leads", self.leads, "must be positive numbers", "keep the default")
        if not 0 <= self.least_epsilon < math.inf:
            raise InvalidInput("least epsilon", self.least_epsilon, "must be finite, at least 0", "give 0")
        open_unit("delta price", self.delta_price)

    def p_value(self, runs: tuple[RankedGuesses, ...], claim: TradeOff) -> float:
        """1 / (the largest wealth) + the price of delta, for one (epsilon, delta) promise: equation (12)."""
        path, promise = _Path.of(runs), single_promise(claim)
        toll = self.toll(path.coins, promise, path.choices)
        return min(1.0, math.exp(-path.log_wealth(self.leads, promise.epsilon, toll.forgiven)) + toll.price)

    def refutes(self, runs: tuple[RankedGuesses, ...], claim: TradeOff, confidence: float = CONFIDENCE) -> bool:
        return self.p_value(runs, claim) < allowed_failure(confidence)

    def lower_bound(self, runs: tuple[RankedGuesses, ...], delta: float, confidence: float = CONFIDENCE) -> LowerBound:
        check_family_delta(self.family, delta)
        path = _Path.of(runs)
        toll = self.toll(path.coins, EpsilonDeltaCurve(self.least_epsilon, delta), path.choices)
        needed = -math.log(self.left(confidence, toll))
        # Wealth falls as epsilon grows, on every path, so the refuted epsilons are an interval.
        beyond = refuted_up_to(
            lambda extra: path.log_wealth(self.leads, self.least_epsilon + extra, toll.forgiven) >= needed
        )
        epsilon = self.least_epsilon + beyond if beyond > 0 else 0.0
        evidence = path.best_prefix(self.leads, max(epsilon, self.least_epsilon), toll.forgiven)
        return LowerBound(
            epsilon, delta, confidence, self.method, self.family, evidence, selection=Selection.SEQUENTIAL
        )

    def toll(self, coins: int, promise: EpsilonDeltaCurve, choices: int) -> Toll:
        """How many right guesses to forgive so that delta adds at most `delta_price` to the error."""
        unforgiving = coins * promise.delta * wrong_rate(promise.epsilon, choices)
        forgiven = max(0, math.ceil(unforgiving / self.delta_price) - 1)
        return Toll(forgiven, unforgiving / (forgiven + 1))

    def left(self, confidence: float, toll: Toll) -> float:
        """The error left for the wealth after delta is paid for."""
        left = allowed_failure(confidence) - toll.price
        if left <= 0:
            raise InvalidInput(
                "confidence",
                confidence,
                f"leaves nothing after the price of delta, {toll.price:g}",
                "give the e-process a smaller delta price",
            )
        return left


@dataclass(frozen=True)
class Toll:
    """What delta costs: right guesses counted as wrong, and an addition to the error."""

    forgiven: int
    price: float


@dataclass(frozen=True, eq=False)
class _Path:
    """The prefixes at which the wealth can be largest: right and wrong guesses so far.

    The wealth is a convex function of (right, wrong), rising in the first and falling in the second, so over all
    prefixes it is largest at a corner of their upper hull.
    """

    coins: int
    choices: int
    right: Floats
    wrong: Floats

    @classmethod
    def of(cls, runs: tuple[RankedGuesses, ...]) -> _Path:
        ordered = pooled_order(runs)
        right = np.concatenate(([0], np.cumsum(ordered)))
        wrong = np.arange(len(right)) - right
        peaks = np.flatnonzero(np.append(np.diff(right) == 0, True))
        corners = _upper_hull(wrong[peaks].tolist(), right[peaks].tolist())
        chosen = peaks[corners]
        return cls(len(ordered), runs[0].choices, right[chosen].astype(float), wrong[chosen].astype(float))

    def log_wealth(self, leads: tuple[float, ...], epsilon: float, forgiven: int) -> float:
        """The largest log wealth over all prefixes, the empty one (0) included."""
        return max(0.0, float(self._log_wealths(leads, epsilon, forgiven).max()))

    def best_prefix(self, leads: tuple[float, ...], epsilon: float, forgiven: int) -> GuessCounts:
        best = int(np.argmax(self._log_wealths(leads, epsilon, forgiven)))
        right, wrong = int(self.right[best]), int(self.wrong[best])
        return GuessCounts(self.coins, right + wrong, right, self.choices)

    def _log_wealths(self, leads: tuple[float, ...], epsilon: float, forgiven: int) -> Floats:
        """With `forgiven` right guesses counted as wrong; a prefix with fewer right ones comes out below 0."""
        bets = [log_odds(epsilon, lead, self.choices) for lead in leads]
        # log wealth of lead l after r right and w wrong guesses: r gain(l) + w loss(l); leads have equal shares.
        gain, loss = (np.array(column) for column in zip(*bets, strict=True))
        each = (self.right - forgiven)[:, None] * gain + (self.wrong + forgiven)[:, None] * loss
        return np.asarray(np.logaddexp.reduce(each, axis=1) - math.log(len(leads)))


def log_odds(epsilon: float, lead: float, choices: int) -> tuple[float, float]:
    """log of what one unit becomes after a right guess and after a wrong one."""
    now, bet = wrong_rate(epsilon, choices), wrong_rate(epsilon + lead, choices)
    return math.log1p(-bet) - math.log1p(-now), math.log(bet) - math.log(now)


def single_promise(claim: TradeOff) -> EpsilonDeltaCurve:
    """The claim, if it is one (epsilon, delta) promise; refused with the remedy if it is a whole curve."""
    if isinstance(claim, EpsilonDeltaCurve):
        return claim
    raise UnsupportedCombination(
        f"the e-process against a {type(claim).__name__}",
        "its bets are made against one (epsilon, delta) promise",
        "pick one promise of the claim before looking, or use FDPOneRun",
    )


def _upper_hull(x: list[int], y: list[int]) -> list[int]:
    """Indices of the corners of the upper hull of points with strictly growing x (Andrew's chain)."""
    hull: list[int] = []
    for i in range(len(x)):
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (x[b] - x[a]) * (y[i] - y[a]) < (y[b] - y[a]) * (x[i] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return hull


_NEGLIGIBLE = 1e-15
_MOST_STEPS = 20_000
"""Later guesses are not followed: the power is then a lower bound."""


def crossing_probability(
    method: EProcess,
    promise: EpsilonDeltaCurve,
    coins: int,
    guesses: int,
    choices: int,
    success_rate: float,
    failure: float,
) -> float:
    """P[the promise is refuted within `guesses` guesses, each right with probability `success_rate`].

    The wealth after k guesses depends only on how many were right, so refutation is a first passage of a counting
    process over a known boundary; its probability is computed by carrying the distribution of the count forward.
    """
    toll = method.toll(coins, promise, choices)
    log_needed = -math.log(method.left(1 - failure, toll))
    steps = min(guesses, _MOST_STEPS)
    boundary = toll.forgiven + _boundary(method, promise.epsilon, choices, steps, log_needed)
    lowest, alive, crossed = 0, np.ones(1), 0.0
    for needed in boundary.tolist():
        moved = np.zeros(len(alive) + 1)
        moved[:-1] = alive * (1 - success_rate)
        moved[1:] += alive * success_rate
        kept = max(0, min(len(moved), needed - lowest))
        crossed += float(moved[kept:].sum())
        alive = moved[:kept]
        solid = np.flatnonzero(alive > _NEGLIGIBLE)
        if not len(solid):
            break
        lowest, alive = lowest + int(solid[0]), alive[solid[0] : solid[-1] + 1]
    return crossed


def _boundary(method: EProcess, epsilon: float, choices: int, guesses: int, log_needed: float) -> NDArray[np.int64]:
    """For k = 1 .. guesses the fewest right guesses whose wealth exceeds the need (k + 1 if none does)."""
    bets = np.array([log_odds(epsilon, lead, choices) for lead in method.leads])
    steps = np.arange(1, guesses + 1)
    low, high = np.full(guesses, -1), steps + 1
    while (high - low > 1).any():
        middle = (low + high) // 2
        wealth = np.logaddexp.reduce(middle[:, None] * bets[:, 0] + (steps - middle)[:, None] * bets[:, 1], axis=1)
        enough = wealth - math.log(len(method.leads)) > log_needed
        high, low = np.where(enough, middle, high), np.where(enough, low, middle)
    return np.asarray(high, dtype=np.int64)

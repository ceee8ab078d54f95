"""Settings that need no tuning: rounds, rate, clip, averaging and shares of the budget, from public numbers alone.

Everything here is a function of a lower bound on the records, the sites, the schema's columns and the promise, so it
costs no privacy. The defaults of a short plan, of plans of frames and of the estimator are these; whatever a plan
says itself wins. `scale-columns` turns the recipe on, and a plan that states its own batches or model does without.

A rate times rounds of 1 / (4 nu), nu the noise in a round's mean gradient, stops where noise begins to outweigh what
is left to learn; 60 to 200 rounds of a constant rate, of which the second half is averaged, get there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from calibrate.privacy_unit import EpsilonDelta

_PLAIN = {"scales": 0.10}
_FAIR = {"scales": 0.10, "groups": 0.20, "gaps": 0.15}
_SEARCHED = 10
_LEAST_ROUNDS, _MOST_ROUNDS = 60, 200
_FEWEST_ROUNDS = 20
"""Fewer rounds, where a plan asks for them, leave too few next to those of histograms."""
_STOP = 4.0
_FASTEST = 64.0
_WELL_TOLD = 0.1 / 3
"""Scales are bought where the noise in a cell is below this share of all records."""
_LIMITED = 5e4
"""Records times epsilon below which noise is the limit, and half of a record's usual gradient is clipped away."""
OWN_STEPS = {
    *("sampling-rate", "sampling", "batches", "batch-limit", "most-units", "noise", "bands", "relation"),
    *("rate-share", "flip-share", "protect", "method", "min-max", "distil-trees", "reach", "bins", "warm-start"),
}
"""Keys of a plan with which it trains in its own way, without the recipe."""
_DIGITS = 4


@dataclass(frozen=True)
class PublicNumbers:
    """What is known of the data without looking at it."""

    records: int
    """A lower bound, of all sites together."""
    sites: int
    numeric: int
    categorical: int
    indicators: int = 0
    """Further features of 0 and 1: steps, and marks of missing numbers."""
    groups: int = 0
    """Of the sensitive attribute, where the model is to be fair to them; else 0."""

    @property
    def usual_square(self) -> float:
        """The usual squared norm of a scaled record: a number has a standard deviation of one half."""
        return 1 + 0.25 * self.numeric + 0.6 * self.categorical + 0.3 * self.indicators


def noise_multiplier(target: EpsilonDelta) -> float:
    """The noise of one Gaussian release, to settings' precision; budgets are priced by the accountants.

    >>> round(noise_multiplier(EpsilonDelta(1.0, 1e-5)), 2)
    3.73
    """
    normal, epsilon, low, high = NormalDist(), target.epsilon, 1e-3, 1e6
    for _ in range(100):
        z = math.sqrt(low * high)
        failing = normal.cdf(0.5 / z - epsilon * z) - math.exp(min(epsilon, 700)) * normal.cdf(-0.5 / z - epsilon * z)
        low, high = (low, z) if failing < target.delta else (z, high)
    return high


def trains_its_own_way(privacy: Mapping[str, object], training: Mapping[str, object]) -> bool:
    """Whether a plan's own sections leave no room for the recipe."""
    given = {key.replace("_", "-") for key in (*privacy, *training)}
    rounds = privacy.get("rounds")
    few = isinstance(rounds, int) and rounds < _FEWEST_ROUNDS
    return few or bool(given & OWN_STEPS) or training.get("model", "logistic") not in ("logistic", {"kind": "logistic"})


def recipe(known: PublicNumbers, target: EpsilonDelta) -> tuple[dict[str, object], dict[str, object]]:
    """The sections [privacy] and [training] of `gaussian`, or with groups of `fair-plugin`, for these numbers."""
    z, labels = noise_multiplier(target), 2 if known.groups else 1
    shares = dict(_FAIR if known.groups else _PLAIN)
    counted = math.sqrt(known.numeric + labels) * z * math.sqrt(known.sites / shares["scales"])
    if not known.numeric or counted > _WELL_TOLD * known.records:
        del shares["scales"]
    scores = 1 - sum(shares.values())
    steps = _Steps.of(known, z * math.sqrt(known.sites / scores), target.epsilon)
    privacy: dict[str, object] = {"rounds": steps.rounds + (1 if "scales" in shares else 0), "clip": steps.clip}
    privacy["scale-columns"] = known.numeric
    if "scales" in shares:
        privacy["scale-share"] = shares["scales"]
    training: dict[str, object] = {"learning-rate": steps.rate, "momentum": steps.momentum}
    if not known.groups:
        return privacy | {"sampling-rate": 1.0}, training | {"iterate": "half-average"}
    groups = _Steps.of(known, z * math.sqrt(known.sites / shares["groups"]), target.epsilon, steps.rounds)
    privacy |= {"rounds": int(str(privacy["rounds"])) + _SEARCHED, "groups": known.groups, "group-clip": groups.clip}
    privacy |= {"group-share": shares["groups"], "gap-share": shares["gaps"]}
    return privacy, training | {"group-rate": groups.rate}


@dataclass(frozen=True)
class _Steps:
    """Of clipped full-batch descent."""

    clip: float
    rounds: int
    rate: float
    momentum: float

    @classmethod
    def of(cls, known: PublicNumbers, noise: float, epsilon: float, rounds: int | None = None) -> _Steps:
        """For this noise multiplier of a single sum over all sites."""
        square = known.usual_square
        clip = 0.5 * math.sqrt(square) * min(max(known.records * epsilon / _LIMITED, 1.0), 2.0)
        way, fastest = known.records / (_STOP * clip * noise), _FASTEST / square
        made = rounds or min(max(math.ceil(way / fastest), _LEAST_ROUNDS), _MOST_ROUNDS)
        rate = min(fastest, way / made)
        need = rate * square / 8  # heavy ball is stable up to a rate of 8 (1 + m) / ((1 - m) square)
        momentum = min(max((need - 1) / (need + 1), 0.0), 0.95)
        return cls(_short(clip), made, _short(rate), _short(momentum))


def _short(number: float) -> float:
    """Four digits, so that a plan can be read."""
    return float(f"{number:.{_DIGITS}g}")

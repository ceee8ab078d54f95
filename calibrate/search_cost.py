"""What a hyper-parameter search costs: a random number of private tries, of which only the best is published.

Tries must be secret and their number random: with a fixed number, or with every try shown, each one is paid for in
full. The number K follows a truncated negative binomial law (Papernot and Steinke 2022, Definition 1) with shape `eta`
and probability `gamma`:

    eta = 0:  P(K = k) = (1 - gamma)^k / (k log(1/gamma)),      eta = 1:  the geometric law.                  (1)

Proof of the price, with a test that attacks it: docs/theorems/hyperparameter-search.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from scipy.optimize import brentq

from calibrate.accountants.accountant import total_cost
from calibrate.accountants.opinions.renyi import RenyiAccountant, epsilon_from_rdp
from calibrate.accountants.registry import best_epsilon
from calibrate.errors import InvalidInput
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit
from calibrate.releases import Release

_OUTWARD = 1 + 1e-9
_MOST_TRIES = 1e6


@dataclass(frozen=True)
class RandomTries:
    """How many tries there are: at least one, `mean` on average.

    `shape` is eta of equation 1, from 0 (cheapest, most uneven) on; 1 is the geometric law.
    """

    mean: float
    shape: float = 0.0

    def __post_init__(self) -> None:
        if not 1 < self.mean <= _MOST_TRIES:
            rule = f"must be above 1 and at most {_MOST_TRIES:g}"
            raise InvalidInput("tries", self.mean, rule, "give the mean number of tries, such as 10")
        if not 0 <= self.shape <= 10:
            raise InvalidInput("shape", self.shape, "must lie in [0, 10]", "give 0 or 1")

    @cached_property
    def gamma(self) -> float:
        """The probability of equation 1 that has the asked mean."""
        found = brentq(lambda x: math.log(_mean(math.exp(x), self.shape) / self.mean), -60.0, -1e-12, xtol=1e-14)
        return math.exp(float(found))

    def generating(self, x: float) -> float:
        """E x^K, for x in [0, 1]: what makes the published law of a best try out of the law of one."""
        left, gamma = 1 - (1 - self.gamma) * x, self.gamma
        if self.shape == 0:
            return math.log(left) / math.log(gamma)
        return float((left**-self.shape - 1) / (gamma**-self.shape - 1))

    def probability(self, tries: int) -> float:
        """P(K = tries)."""
        if self.shape == 0:
            return float((1 - self.gamma) ** tries / (tries * -math.log(self.gamma)))
        log_ways = math.lgamma(tries + self.shape) - math.lgamma(self.shape) - math.lgamma(tries + 1)
        return math.exp(log_ways + tries * math.log1p(-self.gamma)) / math.expm1(-self.shape * math.log(self.gamma))


def price_search(release: Release, unit: PrivacyUnit, delta: float, tries: RandomTries) -> EpsilonInterval:
    """Both ends of epsilon at `delta` for publishing the best of a random number of tries of `release`.

    Guarantee: if K is drawn by `tries` apart from the data, each try publishes `release` to nobody but the search, and
    what is shown is one try that is best by any rule which looks at that try's own output, then what is shown is
    (upper, delta)-private for `unit` (equation 2). The lower end is that of a single try, which a rule without
    preferences shows. Raises UnsupportedCombination where a try has no Renyi divergence (truncated batches).
    """
    accountant = RenyiAccountant()
    curve = total_cost(accountant, release, unit).values
    orders, shape = accountant.orders, tries.shape
    extra = min(
        (1 + shape) * ((1 - 1 / order) * value - math.log(tries.gamma) / order)
        for order, value in zip(orders, curve, strict=True)
    )
    mean = math.log(_mean(tries.gamma, shape))
    best = [value + extra + mean / (order - 1) for order, value in zip(orders, curve, strict=True)]
    upper = epsilon_from_rdp(orders, [value * _OUTWARD for value in best], delta)
    return EpsilonInterval(min(upper, best_epsilon(release, unit, delta).interval.lower), upper)


def _mean(gamma: float, shape: float) -> float:
    """E K of equation 1."""
    if shape == 0:
        return (1 / gamma - 1) / -math.log(gamma)
    return shape * (1 - gamma) / (gamma * -math.expm1(shape * math.log(gamma)))

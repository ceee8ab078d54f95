"""What a hyper-parameter search costs: a random number of private tries, of which only the best is published.

Tries must be secret and their number random (calibrate/tries.py): with a fixed number, or with every try shown, each
one is paid for in full. Proof of the price, with a test that attacks it:
docs/theorems/composition.md#searches-and-groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from calibrate.accountants.certified import CertifiedAccountant
from calibrate.accountants.contour import LossTransform
from calibrate.accountants.directions import Side, compositions
from calibrate.accountants.registry import best_epsilon, total_cost
from calibrate.accountants.renyi import RenyiAccountant, epsilon_from_rdp
from calibrate.errors import NotCertified
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, PrivacyUnit
from calibrate.releases import Release, scale_noise
from calibrate.roots import find_root
from calibrate.solve import solve_noise
from calibrate.tries import RandomTries

_OUTWARD = 1 + 1e-9
_LOG_CUT = -500.0
"""Losses rarer than this (log) are left out of the second opinion."""
_MOST_NOISE = 1e6
"""How many times the noise of a single try is looked at."""
_TOLERANCE = 1e-6
"""Relative precision of the noise; it is rounded up."""


def price_search(release: Release, unit: PrivacyUnit, delta: float, tries: RandomTries) -> EpsilonInterval:
    """Both ends of epsilon at `delta` for publishing the best of a random number of tries of `release`.

    Guarantee: if K is drawn by `tries` apart from the data, each try publishes `release` to the search alone, and
    what is shown is one try that is best by any rule which looks at that try's own output, then what is shown is
    (upper, delta)-private for `unit` (equation 2). The lower end is that of a single try, which a rule without
    preferences shows. Raises UnsupportedCombination where a try has no Renyi divergence (truncated batches).
    """
    return _with_lower_end(_upper(release, unit, delta, tries), release, unit, delta)


def search_divergences(
    release: Release, unit: PrivacyUnit, orders: tuple[float, ...], tries: RandomTries
) -> tuple[float, ...]:
    """Upper bounds on the Renyi divergence of a whole search at these orders (equation 2)."""
    accountant = RenyiAccountant()
    known = total_cost(accountant, release, unit).values
    asked = total_cost(RenyiAccountant(orders), release, unit).values
    return tuple(_of_search(orders, asked, tries, _extra(accountant.orders, known, tries)))


def second_price(release: Release, unit: PrivacyUnit, delta: float, tries: RandomTries) -> EpsilonInterval:
    """The same price from divergences by quadrature over the privacy-loss laws, which share no formula with the first.

    Not certified: it is there to contradict the first.
    """
    cost = total_cost(CertifiedAccountant(), release, unit)
    orders = RenyiAccountant().orders
    curves = [
        [transform.cumulants(order - 1).value / (order - 1) for order in orders]
        for transform in (LossTransform(each, _LOG_CUT) for each in compositions(cost, Side.UPPER))
    ]
    worst = [max(values) for values in zip(*curves, strict=True)]
    curve = _of_search(orders, worst, tries, _extra(orders, worst, tries))
    return _with_lower_end(epsilon_from_rdp(orders, curve, delta), release, unit, delta)


def _with_lower_end(upper: float, release: Release, unit: PrivacyUnit, delta: float) -> EpsilonInterval:
    """A search costs at least what a single try does."""
    return EpsilonInterval(min(upper, best_epsilon(release, unit, delta).interval.lower), upper)


def solve_search(template: Release, unit: PrivacyUnit, target: EpsilonDelta, tries: RandomTries) -> float:
    """The factor on the template's noise with which the whole search meets the target, rounded up."""
    least = solve_noise(template, unit, target).factor

    def excess(log_factor: float) -> float:
        noisier = scale_noise(template, least * math.exp(log_factor))
        return _upper(noisier, unit, target.delta, tries) / target.epsilon - 1

    if excess(math.log(_MOST_NOISE)) > 0:
        raise NotCertified("no amount of noise lets this search keep its promise; ask for fewer tries or more epsilon")
    found = find_root(excess, 0.0, math.log(_MOST_NOISE), _TOLERANCE, 1e-15) if excess(0.0) > 0 else 0.0
    while excess(found) > 0:
        found += _TOLERANCE
    return least * math.exp(found)


def _upper(release: Release, unit: PrivacyUnit, delta: float, tries: RandomTries) -> float:
    accountant = RenyiAccountant()
    curve = total_cost(accountant, release, unit).values
    best = _of_search(accountant.orders, curve, tries, _extra(accountant.orders, curve, tries))
    return epsilon_from_rdp(accountant.orders, [value * _OUTWARD for value in best], delta)


def _extra(orders: Sequence[float], curve: Sequence[float], tries: RandomTries) -> float:
    """What a search adds at every order: the bracket of equation 2 at its best order."""
    return min(
        (1 + tries.shape) * ((1 - 1 / order) * value - math.log(tries.gamma) / order)
        for order, value in zip(orders, curve, strict=True)
    )


def _of_search(orders: Sequence[float], curve: Sequence[float], tries: RandomTries, extra: float) -> list[float]:
    mean = math.log(tries.mean)
    return [value + extra + mean / (order - 1) for order, value in zip(orders, curve, strict=True)]

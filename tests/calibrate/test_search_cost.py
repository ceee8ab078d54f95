"""The price of a hyper-parameter search, attacked with exact laws of the best try; and promises to groups."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

import privfair as pf
from calibrate.accountants.accountant import total_cost
from calibrate.accountants.opinions.renyi import RenyiAccountant
from calibrate.errors import InvalidInput
from calibrate.meaning import Meaning
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Relation
from calibrate.releases import Gaussian, RandomizedResponse
from calibrate.search_cost import RandomTries, price_search
from privfair.plan.file import read_plan_file
from tests.end_to_end.command_line import privfair

REPLACE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)
TRIES = [RandomTries(mean, shape) for mean in (1.5, 5.0, 40.0) for shape in (0.0, 0.5, 1.0, 3.0)]


@pytest.mark.parametrize("tries", TRIES, ids=str)
def test_the_law_of_the_number_has_its_mean_and_generating_function(tries: RandomTries) -> None:
    numbers = np.arange(1, 6000)
    chances = np.array([tries.probability(int(k)) for k in numbers])
    assert chances.sum() == pytest.approx(1, abs=1e-6)
    assert chances @ numbers == pytest.approx(tries.mean, rel=1e-5)
    for x in (0.0, 0.3, 0.9, 1.0):
        assert tries.generating(x) == pytest.approx(float(chances @ x**numbers), abs=1e-6)


def _shown(law: np.ndarray, generating: object) -> np.ndarray:
    """The law of the best try: outcomes are ordered by score, P(best <= y) = f(F(y))."""
    up_to = np.append(0.0, np.cumsum(law))
    assert callable(generating)
    return np.diff([generating(min(1.0, float(x))) for x in up_to])


def _renyi(one: np.ndarray, other: np.ndarray, order: float) -> float:
    return float(logsumexp(order * np.log(one) + (1 - order) * np.log(other)) / (order - 1))


def _bound(tries: RandomTries, curve: dict[float, float], order: float) -> float:
    """Equation 2, written out again."""
    extra = min((1 - 1 / b) * value + math.log(1 / tries.gamma) / b for b, value in curve.items())
    return curve[order] + (1 + tries.shape) * extra + math.log(tries.mean) / (order - 1)


def _responses(epsilon: float, best: bool) -> tuple[np.ndarray, np.ndarray]:
    """Three-way randomised response for two truths; `best` puts one of the truths at the top of the scores."""
    high, low = math.exp(epsilon) / (math.exp(epsilon) + 2), 1 / (math.exp(epsilon) + 2)
    one, other = np.array([low, low, high]), np.array([high, low, low])
    return (one, other) if best else (other, one)


@pytest.mark.parametrize("tries", TRIES, ids=str)
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 3.0])
def test_no_search_betrays_more_than_it_is_charged_for(tries: RandomTries, epsilon: float) -> None:
    accountant = RenyiAccountant()
    curve = total_cost(accountant, RandomizedResponse(epsilon, 3), REPLACE).values
    known = dict(zip(accountant.orders, curve, strict=True))
    for best in (True, False):
        laws = [_shown(law, tries.generating) for law in _responses(epsilon, best)]
        for order in (1.5, 2.0, 4.0, 16.0, 64.0):
            assert _renyi(laws[0], laws[1], order) <= _bound(tries, known, order) + 1e-9


def test_a_fixed_number_of_tries_costs_more_than_a_random_one() -> None:
    """The best of exactly 40 tries is told from its neighbour more easily than the price for 40 on average allows."""
    tries, epsilon, order = RandomTries(40.0), 1.0, 64.0
    accountant = RenyiAccountant()
    curve = total_cost(accountant, RandomizedResponse(epsilon, 3), REPLACE).values
    known = dict(zip(accountant.orders, curve, strict=True))
    one, other = (_shown(law, lambda x: x**40) for law in _responses(epsilon, best=False))
    assert _renyi(one, other, order) > _bound(tries, known, order)


def test_a_search_costs_more_than_a_try_and_far_less_than_all_tries() -> None:
    release, unit = Gaussian(4.0), PrivacyUnit.of(Relation.ADD_REMOVE)
    one = pf.epsilon(noise_multiplier=4.0, delta=1e-6)
    ten, hundred = (price_search(release, unit, 1e-6, RandomTries(mean)) for mean in (10.0, 100.0))
    assert one.upper < ten.upper < hundred.upper
    assert ten.lower == one.lower
    assert hundred.upper < 3.5 * one.upper, "a hundred tries in sequence cost ten times as much"
    assert price_search(release, unit, 1e-6, RandomTries(10.0, 1.0)).upper > ten.upper
    assert pf.epsilon(noise_multiplier=4.0, delta=1e-6, tries=10) == ten
    told = privfair("account", "--noise-multiplier", 4, "--delta", 1e-6, "--tries", 10, "--json").json()
    assert told["epsilon"]["upper"] == pytest.approx(ten.upper)
    for wrong in ({"mean": 1.0}, {"mean": 1e9}, {"mean": 5.0, "shape": -0.5}):
        with pytest.raises(InvalidInput):
            RandomTries(**wrong)


def test_a_group_is_promised_what_its_members_add_up_to() -> None:
    """Exactly for Laplace-like likelihood ratios: k steps of randomised response have k times the epsilon."""
    three = Meaning(EpsilonDelta(0.5, 1e-6)).for_group(3)
    assert three is not None
    assert three.promise.epsilon == pytest.approx(1.5)
    assert three.promise.delta == pytest.approx(1e-6 * (1 + math.exp(0.5) + math.e))
    assert three.promise.delta >= 1e-6 * (1 + math.exp(0.5) + math.e)
    assert Meaning(EpsilonDelta(1.0, 1e-5)).for_group(13) is None, "delta would exceed one"
    assert Meaning(EpsilonDelta(200.0, 1e-300)).for_group(3) is None
    told = privfair("explain", "--epsilon", 0.5, "--delta", 1e-6, "--group", 3)
    assert "To 3 units together epsilon 1.5" in told.out
    nothing = privfair("explain", "--epsilon", 1, "--delta", 1e-5, "--group", 13)
    assert "nothing is promised" in nothing.out
    as_json = privfair("explain", "--epsilon", 1, "--delta", 1e-5, "--group", 13, "--json").json()
    assert as_json["group"] == {"size": 13, "meaning": None}


def test_a_plan_that_asks_to_sign_a_search_is_refused_by_name(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('algorithm = "gaussian"\n[search]\ntries = 10\n', encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"\[search\].*cannot be signed.*account --tries"):
        read_plan_file(plan)

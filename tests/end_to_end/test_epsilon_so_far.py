"""The epsilon of the progress display: never below the price of what may have been published."""

from __future__ import annotations

import pytest

from calibrate.accountants.registry import best_epsilon
from calibrate.epsilon_so_far import EpsilonSoFar, event_after
from calibrate.plans.fair_plugin import PayOncePlan
from calibrate.plans.gaussian import GaussianPlan
from calibrate.plans.steffle import StefflePlan
from calibrate.privacy_unit import EpsilonDelta
from calibrate.releases import Gaussian, InSequence, NonPrivate, Repeated, Sampled
from calibrate.sampling import ShuffledEpochs
from tests.privfair.small_runs import document_of

TARGET = EpsilonDelta(2.0, 1e-5)


def test_it_rises_from_nothing_to_the_promise_and_bounds_every_prefix() -> None:
    document = document_of(GaussianPlan(sampling_rate=1.0, rounds=50), TARGET)
    prices = EpsilonSoFar(document)
    assert prices.after(0) == 0.0
    assert prices.after(50) == 2.0
    shown = [prices.about(charged) for charged in range(51)]
    assert all(price is not None for price in shown)
    assert shown == sorted(shown, key=float)  # type: ignore[arg-type]
    noise = document.release("value_1").noise_multiplier  # type: ignore[union-attr]
    for charged in (1, 7, 23, 49):
        exact = best_epsilon(Repeated(Gaussian(noise), charged), document.guarantee.privacy_unit(), 1e-5)
        assert prices.after(charged) == pytest.approx(exact.interval.upper)
        assert shown[charged] is not None
        assert shown[charged] >= exact.interval.lower  # type: ignore[operator]


def test_a_begun_epoch_counts_whole_and_what_happens_once_counts_at_once() -> None:
    epoch = ShuffledEpochs(100, 25)
    histogram, plain = Gaussian(3.0), NonPrivate("free", depends_on_unit=False)
    event = InSequence((InSequence((histogram, Repeated(Sampled(epoch, Gaussian(1.0)), 3))), plain))

    def after(charged: int) -> object:
        return event_after(event, charged, 10)

    def expected(epochs: int) -> object:
        return InSequence((InSequence((histogram, Repeated(Sampled(epoch, Gaussian(1.0)), epochs))), plain))

    assert [after(charged) for charged in (1, 4, 5, 8, 9, 10)] == [expected(n) for n in (1, 1, 2, 2, 3, 3)]


def test_a_repetition_that_is_not_the_rounds_is_never_shortened() -> None:
    event = Repeated(Gaussian(1.0), 7)
    assert event_after(event, 1, 10) == event


def test_pay_once_costs_everything_in_its_first_round() -> None:
    prices = EpsilonSoFar(document_of(PayOncePlan(rounds=100), TARGET))
    assert prices.after(1) == pytest.approx(2.0, abs=1e-3)
    assert prices.about(1) == pytest.approx(2.0, abs=1e-3)


def test_steffle_is_priced_epoch_by_epoch() -> None:
    plan = StefflePlan(100, 25, 12, 0.4, 1.0, 1.0)
    prices = EpsilonSoFar(document_of(plan, TARGET))
    assert prices.after(1) == prices.after(4)
    assert prices.after(4) < prices.after(5)  # type: ignore[operator]

"""Nothing is signed before two accountants have agreed on its price."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from runpy import run_path
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any

import pytest

from calibrate.accountants import registry
from calibrate.accountants.registry import AccountantName, Priced
from calibrate.errors import ManifestRefused
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.issue import add_signature, cross_check, issue, recompute, renyi_points
from calibrate.manifest.keys import KeyAlgorithm, Role, generate
from calibrate.manifest.mechanism import AsPrintedGuarantee, InTheClear, NoPrivacyPromised
from calibrate.manifest.trust import TrustedKey, TrustFile
from calibrate.manifest.verify import read_unverified, verify
from calibrate.privacy_unit import EpsilonInterval, PrivacyUnit, Relation
from calibrate.releases import Gaussian, NonPrivate, Release, Repeated

samples = SimpleNamespace(**run_path(str(Path(__file__).parent / "tampered" / "samples.py")))
OFFICER, OWNER = generate(), generate(KeyAlgorithm.ECDSA_P256)
ATTRIBUTE = PrivacyUnit.of(Relation.REPLACE_ATTRIBUTE)
REFUSED_AT_THE_PRICE = pytest.raises(ManifestRefused, match=r"step 12 \(price\)")


def affordable(**changes: Any) -> BudgetDocument:
    """40 full-batch Gaussian rounds that cost a little less than epsilon 1: joint multiplier 23.6 (GDP, exact)."""
    event = Repeated(Gaussian(23.6), 40)
    noise = samples.gaussian("h", noise_multiplier=23.6, sigma=23.6 * 0.25, publications=40)
    fields = {
        "releases": (noise,),
        "rounds": 40,
        "sampling": (),
        "accounting": samples.accounting(event=event, interval=EpsilonInterval(0.999, 0.9999)),
    }
    return samples.document(**(fields | changes))


Prices = Callable[[tuple[float, float], tuple[float, float]], None]


@pytest.fixture
def prices(monkeypatch: pytest.MonkeyPatch) -> Prices:
    """Lets a test decide what the two accountants say."""

    def decide(first: tuple[float, float], second: tuple[float, float]) -> None:
        for function, name, ends in (
            ("best_epsilon", AccountantName.CERTIFIED, first),
            ("second_opinion", AccountantName.PLD, second),
        ):
            answer = Priced(EpsilonInterval(*ends), name, "test double", "0")
            monkeypatch.setattr(registry, function, lambda *_, answer=answer: answer)

    return decide


def test_the_round_trip_with_two_roles() -> None:
    document = affordable()
    envelope = add_signature(issue(document, OFFICER), OWNER)
    start = samples.NOW - timedelta(days=1)
    trust = TrustFile(
        keys=(
            TrustedKey.of(OFFICER.public, Role.PRIVACY_OFFICER, start),
            TrustedKey.of(OWNER.public, Role.DATA_OWNER, start),
        )
    )
    verified = verify(envelope, trust, samples.RUN, samples.NOW)
    assert verified.document == document
    assert {signature.role for signature in verified.authentic.signatures} == {Role.PRIVACY_OFFICER, Role.DATA_OWNER}
    fresh = recompute(verified.document)
    assert fresh is not None
    assert fresh.first.accountant != fresh.second.accountant


def test_a_real_second_opinion_is_asked() -> None:
    checked = cross_check(Repeated(Gaussian(23.6), 40), ATTRIBUTE, 1e-5, 1.0)
    # Balle and Wang 2018, Theorem 8: the delta of a Gaussian mechanism with mu = sqrt(40) / 23.6.
    phi, mu, epsilon = NormalDist().cdf, math.sqrt(40) / 23.6, checked.first.interval.upper
    delta = phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)
    assert {checked.first.library, checked.second.library} == {"privfair", "dp-accounting"}


def test_too_little_noise_is_not_signed_whatever_the_document_prints() -> None:
    """The printed interval flatters: the event itself costs about 2.1."""
    event = Repeated(Gaussian(12.0), 40)
    noise = samples.gaussian("h", noise_multiplier=12.0, sigma=3.0, publications=40)
    flattering = affordable(releases=(noise,), accounting=samples.accounting(event=event))
    with REFUSED_AT_THE_PRICE:
        issue(flattering, OFFICER)


def test_a_renyi_curve_smaller_than_the_events_is_not_signed() -> None:
    """A total is kept by these numbers: one that is too small would let too much be claimed."""
    event = Repeated(Gaussian(23.6), 40)
    points = renyi_points(event, samples.document().guarantee.privacy_unit())
    assert points is not None

    def with_points(scale: float) -> BudgetDocument:
        printed = tuple((order, value * scale) for order, value in points)
        interval = EpsilonInterval(0.999, 0.9999)
        return affordable(accounting=samples.accounting(event=event, interval=interval, renyi=printed))

    recompute(with_points(1.0))
    with REFUSED_AT_THE_PRICE:
        recompute(with_points(0.9))
    with pytest.raises(ValueError, match="below the certified"):
        with_points(0.3)
    shuffled = tuple(reversed(points))
    with pytest.raises(ValueError, match="rising orders"):
        affordable(accounting=samples.accounting(event=event, interval=EpsilonInterval(0.999, 0.9999), renyi=shuffled))


def test_a_printed_interval_that_cannot_be_right_is_not_signed() -> None:
    lying = samples.accounting(event=Repeated(Gaussian(23.6), 40), interval=EpsilonInterval(0.1, 0.2))
    with pytest.raises(ManifestRefused, match="excludes"):
        issue(affordable(accounting=lying), OFFICER)


def test_accountants_that_disagree_prevent_the_signature(prices: Prices) -> None:
    prices((0.9, 0.95), (0.96, 0.99))
    with REFUSED_AT_THE_PRICE:
        issue(affordable(), OFFICER)
    prices((0.97, 0.9999), (0.0, 0.96))
    with REFUSED_AT_THE_PRICE:
        issue(affordable(), OFFICER)


def test_accountants_that_overlap_do_not(prices: Prices) -> None:
    prices((0.999, 0.9999), (0.0, 1.3))
    assert read_unverified(issue(affordable(), OFFICER)).document == affordable()


def test_a_price_above_the_promise_prevents_the_signature(prices: Prices) -> None:
    prices((0.9, 0.99999999), (0.9, 1.1))
    issue(affordable(), OFFICER)
    # Also a price of exactly the promise: nothing would be left for noise being discrete.
    for price in (1.0, 1.0000001):
        prices((0.9, price), (0.9, 1.1))
        with pytest.raises(ManifestRefused, match="exceeds the promised"):
            issue(affordable(), OFFICER)


def test_one_accountant_is_not_two(prices: Prices, monkeypatch: pytest.MonkeyPatch) -> None:
    prices((0.999, 0.9999), (0.999, 0.9999))
    monkeypatch.setattr(registry, "second_opinion", registry.best_epsilon)
    with REFUSED_AT_THE_PRICE:
        issue(affordable(), OFFICER)


def test_a_countersigner_prices_it_again(prices: Prices) -> None:
    prices((0.999, 0.9999), (0.0, 1.3))
    envelope = issue(affordable(), OFFICER)
    prices((3.0, 3.1), (3.0, 3.1))
    with REFUSED_AT_THE_PRICE:
        add_signature(envelope, OWNER)


def test_nobody_signs_twice() -> None:
    with pytest.raises(ManifestRefused, match="signed already"):
        add_signature(issue(affordable(), OFFICER), OFFICER)


def test_nobody_countersigns_what_is_not_a_manifest() -> None:
    with pytest.raises(ManifestRefused, match="step 5"):
        add_signature(samples.signed(b"{}", OFFICER), OWNER)


def with_guarantee(kind: type, **fields: Any) -> Any:
    shared = samples.private().model_dump(include={"unit", "adjacency", "scope", "covered", "not_protected"})
    return kind(**(shared | fields))


@pytest.mark.parametrize(("stated", "signed"), [(7.6, True), (7.5, False)])
def test_a_papers_noise_is_signed_with_its_true_price(stated: float, signed: bool) -> None:
    """Theorem 3.3's own joint multiplier, 3.965 over 40 epochs, costs 7.59 at delta = 1e-5."""
    event = Repeated(Gaussian(3.965), 40)
    noise = samples.gaussian("h", noise_multiplier=3.965, sigma=3.965 * 0.25, publications=40)
    second = samples.opinion("second", 0.0, 9.0)
    printed = EpsilonInterval(0.0, stated - 1e-6)
    document = affordable(
        guarantee=with_guarantee(
            AsPrintedGuarantee, epsilon=stated, delta=1e-5, claimed_epsilon=1.0, claim="SteFFLe, Theorem 3.3"
        ),
        releases=(noise,),
        accounting=samples.accounting(event=event, interval=printed, second_opinion=second),
    )
    if signed:
        assert read_unverified(issue(document, OFFICER)).document == document
    else:
        with REFUSED_AT_THE_PRICE:
            issue(document, OFFICER)


def test_a_run_without_a_promise_has_no_price(monkeypatch: pytest.MonkeyPatch) -> None:
    def unexpected(*_: Release) -> None:
        raise AssertionError("there is nothing to price")

    monkeypatch.setattr(registry, "best_epsilon", unexpected)
    why = "a baseline"
    document = affordable(
        guarantee=with_guarantee(NoPrivacyPromised, why=why),
        releases=(InTheClear(name="update", publications=40, why=why, depends_on_unit=True),),
        accounting=samples.accounting(event=NonPrivate(why, True), second_opinion=None),
    )
    assert recompute(document) is None
    assert read_unverified(issue(document, OFFICER)).document == document

"""The published claims: the false ones refuted with a handful of records, the true ones approached and not refuted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from audit.claims import catalogue
from audit.claims.engine_claims import UNMOVED
from audit.claims.falsify import Search, replay
from calibrate.theorems.steffle import Radius

QUICK = Search(pairs=150, climbs=3, steps=40)
PATIENT = Search(pairs=150, climbs=10, steps=120)
HANDFUL = 5

REFUTED = {
    "steffle.lemma-B.1.W": 64.0,
    "steffle.lemma-B.1.theta": 256.0 / 3.0,
    "steffle.lemma-B.1.theta.printed-frobenius": 128.0 / 3.0,
    "steffle.lemma-B.1.theta.square-root-entrywise": 2.0,
    # lambda = 2 and losses up to 3: the factor falls to -5, for a gradient of norm 10 and C = 1.
    "fedfdp.equation-13": 50.0,
    "fpfl.clip.replace-one": 2.0,
    # 2m/(m + 1) at m = 4
    "clipped-mean.realised-size": 1.6,
}
TIGHT = (
    "steffle.lemma-B.1.W.square-root",
    "steffle.lemma-B.1.theta.square-root-frobenius",
    "fedfdp.size-clipping",
    "fpfl.clip.add-remove",
    "clipped-mean.expected-size",
)
ENGINE = tuple(id for id in catalogue.ids() if id.startswith("engine."))
BOUNDED = tuple(id for id in ENGINE if id not in UNMOVED)
SMALL = Search(pairs=40, climbs=1, steps=4)


def test_every_claim_is_judged_here() -> None:
    assert set(catalogue.ids()) == {*REFUTED, *TIGHT, *ENGINE}


@pytest.mark.parametrize("id", REFUTED)
def test_false_claims_are_refuted_by_a_few_records_that_replay(id: str) -> None:
    entry = catalogue.claim_named(id)
    finding = entry.check(QUICK)
    assert finding.refuted
    assert finding.ratio == pytest.approx(REFUTED[id], rel=0.01)
    assert finding.pair.size <= HANDFUL
    document = json.loads(json.dumps(finding.to_json()))
    assert replay(document["counterexample"], entry.subject, entry.claim) == finding.found


@pytest.mark.parametrize("id", TIGHT)
def test_true_claims_are_approached_and_not_refuted(id: str) -> None:
    finding = catalogue.claim_named(id).check(QUICK)
    assert not finding.refuted
    assert finding.ratio >= 0.99
    assert finding.to_json()["counterexample"] is None


def test_equation_13_fails_by_a_negative_factor() -> None:
    pair = catalogue.claim_named("fedfdp.equation-13").check(QUICK).pair
    assert 1.0 + 2.0 * (float(pair.left["loss"][0]) - float(pair.public["mean_loss"])) < 0


@pytest.mark.slow
def test_the_entrywise_radius_gets_worse_with_every_class() -> None:
    ratios = [
        catalogue.lemma_b1_theta("l", catalogue.theta_bound(), Radius.ENTRYWISE, classes=classes).check(PATIENT).ratio
        for classes in (2, 4, 8)
    ]
    assert ratios[0] >= 1.9
    assert ratios[1] >= 1.3 * ratios[0]
    assert ratios[2] >= 1.3 * ratios[1]


def test_the_frobenius_radius_holds_for_more_groups_and_classes() -> None:
    entry = catalogue.lemma_b1_theta("l", catalogue.theta_bound(), groups=3, classes=4)
    finding = entry.check(QUICK)
    assert not finding.refuted
    assert finding.ratio >= 0.99


@pytest.mark.parametrize(
    "id", [pytest.param(id, marks=[pytest.mark.slow] if id.endswith(".users") else []) for id in BOUNDED]
)
def test_the_engine_keeps_its_own_bounds(id: str) -> None:
    finding = catalogue.claim_named(id).check(SMALL)
    assert not finding.refuted
    # A search that stays far from the bound would say nothing.
    assert finding.ratio >= 0.499


@pytest.mark.parametrize("id", UNMOVED)
def test_what_no_attribute_enters_does_not_move_at_all(id: str) -> None:
    assert catalogue.claim_named(id).check(SMALL).found == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("id", BOUNDED)
def test_the_engine_keeps_its_own_bounds_under_a_longer_search(id: str) -> None:
    finding = catalogue.claim_named(id).check()
    assert not finding.refuted
    assert finding.ratio >= 0.9


@pytest.mark.parametrize(
    "id", ["engine.fedfdp.gradient", "engine.fedfdp.loss", "engine.steffle.h_W", "engine.gaussian.value_1"]
)
def test_an_engine_that_signed_a_tenth_too_little_is_caught(id: str) -> None:
    entry = catalogue.claim_named(id)
    signed = replace(entry, claim=replace(entry.claim, bound=0.9 * entry.claim.bound))
    finding = signed.check(Search(pairs=80, climbs=1, steps=6))
    assert finding.refuted
    assert finding.pair.size <= HANDFUL

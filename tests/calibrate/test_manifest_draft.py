"""Every plan's certified budget becomes a document that can be priced again; a paper's noise admits its price."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from calibrate.budget import CertifiedBudget, calibrate_plan
from calibrate.errors import InvalidInput, ManifestRefused
from calibrate.manifest.document import (
    NO_PLAN_FILE,
    BudgetDocument,
    DataBinding,
    DataIdentity,
    Issuer,
    LedgerBinding,
    OwnCode,
    plan_digest,
)
from calibrate.manifest.draft import BudgetSubject, NoPromise, Price, draft_document, valid_for
from calibrate.manifest.issue import issue, recompute
from calibrate.manifest.keys import generate
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    GaussianNoise,
    InTheClear,
    NoiseSource,
    NoPrivacyPromised,
    PrivateGuarantee,
    RandomizedCategory,
)
from calibrate.manifest.verify import read_unverified
from calibrate.plans import plan_from_mapping
from calibrate.plans.plan import PaperNoise, Plan
from calibrate.privacy_unit import EpsilonDelta, PrivacyUnit, Relation

STEFFLE = {
    "silo_size": 7500,
    "batch_size": 256,
    "rounds": 1172,
    "minority_fraction": 0.5,
    "lipschitz": 1.0,
    "w_radius": 1.0,
}
PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "steffle": ("steffle", STEFFLE),
    "steffle with histogram": ("steffle", STEFFLE | {"histogram_noise_ratio": 2.0}),
    "steffle poisson": ("steffle", STEFFLE | {"sampling": "poisson"}),
    "fedfdp": ("fedfdp", {"sampling_rate": 0.05, "rounds": 50, "clip": 1.0, "loss_clip": 2.0, "loss_noise_ratio": 2.5}),
    "fpfl poisson": ("fpfl", {"users": 16280, "cohort": 200, "rounds": 20, "clip": 1.0, "sampling": "poisson"}),
    "fpfl fixed": ("fpfl", {"users": 16280, "cohort": 200, "rounds": 20, "clip": 1.0, "sampling": "fixed"}),
    "mmd gaussian": ("mmd-fedavg", {"group_size": 1000, "samples_per_group": 50, "rounds": 10}),
    "mmd laplace": ("mmd-fedavg", {"group_size": 1000, "samples_per_group": 50, "rounds": 10, "mechanism": "laplace"}),
    "full batches": ("gaussian", {"noise": (1.0, 2.0), "sampling_rate": 1.0, "rounds": 9, "relation": "replace-one"}),
    "pay once": ("pay-once", {"groups": 3}),
    "five groups": ("mmd-fedavg", {"group_size": 400, "samples_per_group": 20, "rounds": 5, "groups": 5}),
}
TARGET = EpsilonDelta(1.0, 1e-5)


def plan_of(name: str) -> Plan:
    algorithm, parameters = PLANS[name]
    return plan_from_mapping(algorithm, parameters)


DATA = DataBinding.of("ab" * 32, [("north", 20_000), ("south", 17_000)])
ISSUER = Issuer(lifetime=timedelta(days=30), why="a test")


def document_of(price: Price, issuer: Issuer = ISSUER, **subject: Any) -> BudgetDocument:
    return draft_document(price, BudgetSubject(**({"data": DATA} | subject)), issuer).document


@pytest.fixture(scope="module")
def steffle() -> CertifiedBudget:
    return calibrate_plan(plan_of("steffle"), TARGET)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "fpfl fixed" else ()) for name in PLANS]
)
def test_every_plans_budget_can_be_signed_and_recomputed(name: str) -> None:
    plan = plan_of(name)
    budget = calibrate_plan(plan, TARGET)
    document = document_of(budget)
    assert isinstance(document.guarantee, PrivateGuarantee)
    assert document.guarantee.privacy_unit() == plan.unit
    assert {release.name for release in document.releases} == {value.name for value in budget.values}
    assert document.rounds == plan.rounds
    assert document.accounting.assumptions == (*plan.assumptions(), plan.arithmetic, NO_PLAN_FILE)
    assert set(plan.unprotected()) < set(document.guarantee.not_protected)
    read = read_unverified(issue(document, generate())).document
    assert read == document
    fresh = recompute(read)
    assert fresh is not None
    assert fresh.first.interval == document.accounting.interval


def test_the_signed_noise_is_the_budgets_bit_for_bit(steffle: CertifiedBudget) -> None:
    document = document_of(steffle, shapes={"h_theta": (100,), "h_W": (2, 2)})
    for value in steffle.values:
        declared = document.release(value.name)
        assert isinstance(declared, GaussianNoise)
        assert (declared.sigma, declared.noise_multiplier) == (value.sigma, value.noise_multiplier)
        assert declared.sensitivity == value.sensitivity


def test_subject_and_issuer_are_in_the_document(steffle: CertifiedBudget) -> None:
    bound = (LedgerBinding(ledger="01" * 32),)
    named, code = DataIdentity(name="a", custodian="b", version="c"), (OwnCode(name="net.py", sha256="02" * 32),)
    given: dict[str, Any] = {"shapes": {"h_theta": (100,)}, "config_digest": "77" * 32, "dataset": named, "code": code}
    issuer = Issuer(ledgers=bound, research_noise=True, not_protected=("Staff.",))
    document = document_of(steffle, issuer, **given, not_protected=("Records held out.",), retention=7)
    release = document.release("h_theta")
    assert isinstance(release, GaussianNoise)
    assert (release.shape, release.clip) == ((100,), None)
    assert (document.retention, document.config_digest) == (7, "77" * 32)
    assert (document.ledgers, document.dataset, document.code) == (bound, named, code)
    assert {"Records held out.", "Staff."} < set(document.guarantee.not_protected)
    assert "No reason was given" in document.justification
    assert document.sampling[0].assumption_enforced
    assert document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY


def test_each_document_has_its_own_nonce_and_the_plans_digest(steffle: CertifiedBudget) -> None:
    first, second = (document_of(steffle) for _ in range(2))
    assert first.nonce != second.nonce
    assert first.config_digest == second.config_digest == plan_digest("steffle", steffle.plan.parameters())


def test_what_is_published_in_the_clear_is_priced_too(steffle: CertifiedBudget) -> None:
    free = InTheClear(name="g", publications=1172, why="does not depend on the attribute", depends_on_unit=False)
    document = document_of(steffle, clear=(free,))
    assert document.release("g") == free
    assert recompute(document) is not None
    leaking = InTheClear(name="g", publications=1172, why="nobody looks", depends_on_unit=True)
    with pytest.raises(ManifestRefused, match="exceeds the promised"):
        document_of(steffle, clear=(leaking,))


def test_a_silo_smaller_than_the_plans_is_refused(steffle: CertifiedBudget) -> None:
    with pytest.raises(InvalidInput, match="smaller than the 7500"):
        document_of(steffle, data=DataBinding.of("ab" * 32, [("tiny", 7499)]))


def test_pay_once_declares_its_randomised_response() -> None:
    document = document_of(calibrate_plan(plan_of("pay once"), TARGET))
    release = document.releases[0]
    assert isinstance(release, RandomizedCategory)
    assert release.categories == 3
    assert release.epsilon == pytest.approx(1.0, rel=1e-9)
    assert release.epsilon < 1.0
    assert release.publications == 1


def steffle_as_printed() -> BudgetDocument:
    """Theorem 3.3 at eps = 1 on Credit Card: z = q sqrt(2 T ln(1/delta)) / eps = 5.607 for each of the two."""
    z = 5.6074
    return document_of(PaperNoise(plan_of("steffle"), TARGET, {"h_theta": z, "h_W": z}, "SteFFLe, Theorem 3.3"))


def test_a_papers_noise_stands_with_its_true_price() -> None:
    document = steffle_as_printed()
    assert isinstance(document.guarantee, AsPrintedGuarantee)
    assert document.guarantee.claimed_epsilon == 1.0
    # Two releases of one batch: joint multiplier 3.965; 40 epochs: GDP with mu = sqrt(40) / 3.965.
    assert document.guarantee.epsilon == pytest.approx(7.59, abs=0.005)
    assert read_unverified(issue(document, generate())).document == document


def test_a_papers_noise_that_protects_nobody_says_so() -> None:
    plan = plan_of("mmd gaussian")
    leaking = InTheClear(name="updates", publications=10, why="sent as they are", depends_on_unit=True)
    noise = dict.fromkeys((value.name for value in plan.values()), 5.0)
    document = document_of(PaperNoise(plan, TARGET, noise, "a paper"), clear=(leaking,))
    assert isinstance(document.guarantee, AsPrintedGuarantee)
    assert document.guarantee.epsilon is None
    assert document.accounting.interval.upper == float("inf")
    assert read_unverified(issue(document, generate())).document == document


def test_every_value_of_a_papers_plan_needs_its_noise() -> None:
    with pytest.raises(InvalidInput, match="h_W"):
        document_of(PaperNoise(plan_of("steffle"), TARGET, {"h_theta": 1.0}, "x"))


def test_a_baseline_promises_nothing_and_can_be_signed() -> None:
    update = InTheClear(name="update", publications=5, why="a baseline", depends_on_unit=True)
    price = NoPromise("fedavg", PrivacyUnit.of(Relation.ADD_REMOVE), 5, "a baseline")
    document = document_of(price, clear=(update,))
    assert isinstance(document.guarantee, NoPrivacyPromised)
    assert read_unverified(issue(document, generate())).document == document
    with pytest.raises(InvalidInput, match="must name what is published"):
        document_of(price)


@pytest.mark.parametrize(
    ("issuer", "subject", "named"),
    [
        (Issuer(why="two\nlines"), {}, "justification"),
        (Issuer(not_protected=("",)), {}, "not_protected"),
        (ISSUER, {"shapes": {"h_W": (-1,)}}, "shape"),
        (ISSUER, {"config_digest": "x"}, "config_digest"),
        (ISSUER, {"retention": 0}, "retention"),
    ],
)
def test_wrong_wishes_are_refused_in_our_words(
    steffle: CertifiedBudget, issuer: Issuer, subject: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        document_of(steffle, issuer, **subject)


def test_the_clip_is_signed_where_it_is_the_bound() -> None:
    document = document_of(calibrate_plan(plan_of("fedfdp"), TARGET))
    assert [getattr(release, "clip", None) for release in document.releases] == [1.0, None]


@pytest.mark.parametrize("silos", [[("", 1)], [("a", 0)], [("a", 1), ("a", 2)], [], [("a\x1b", 1)]])
def test_wrong_silos_are_refused_in_our_words(silos: list[tuple[str, int]]) -> None:
    with pytest.raises(InvalidInput, match="data"):
        DataBinding.of("ab" * 32, silos)
    with pytest.raises(InvalidInput, match="validity"):
        valid_for(timedelta(0))

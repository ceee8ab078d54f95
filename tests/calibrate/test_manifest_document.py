"""A budget document that contradicts itself cannot be made, so it cannot be signed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from calibrate.discrete_noise import NO_SLACK, STEPS_PER_SCALE, ProfileSlack, laplace_distance_slack, profile_slack
from calibrate.errors import InvalidInput
from calibrate.manifest.document import BudgetDocument, DataBinding, Opinion, SamplingDeclaration, Validity
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    GaussianNoise,
    InTheClear,
    LaplaceNoise,
    NoiseSampler,
    NoiseSource,
    NoPrivacyPromised,
    RandomizedCategory,
)
from calibrate.manifest.verify import promises_privacy
from calibrate.privacy_unit import EpsilonDelta, EpsilonInterval, Protected, Relation
from calibrate.releases import (
    Gaussian,
    InSequence,
    Laplace,
    NonPrivate,
    RandomizedResponse,
    Release,
    Repeated,
    Sampled,
    Together,
)
from calibrate.sampling import Batch, FixedSize, Poisson, WithReplacement

samples = SimpleNamespace(**run_path(str(Path(__file__).parent / "tampered" / "samples.py")))
SCOPE = {
    "unit": Protected.RECORD,
    "adjacency": Relation.ADD_REMOVE,
    "scope": "whoever gets the model",
    "covered": (),
    "not_protected": ("everything",),
}


def noisy(name: str, multiplier: float, publications: int, **changes: Any) -> GaussianNoise:
    fields = {"noise_multiplier": multiplier, "sigma": multiplier * 0.25, "publications": publications}
    return samples.gaussian(name, **(fields | changes))


def priced(event: Release, *releases: Any, rounds: int = 100, **changes: Any) -> BudgetDocument:
    """A document whose event has no declared sampling unless the caller adds it."""
    return samples.document(
        releases=releases,
        rounds=rounds,
        accounting=samples.accounting(event=event, discrete_noise=ProfileSlack(1e-9, 1e-12)),
        **({"sampling": ()} | changes),
    )


def declared(scheme: Any) -> dict[str, Any]:
    declaration = SamplingDeclaration(scheme=scheme, assumption_enforced=False, enforced_by="whoever trains")
    return {"sampling": (declaration,)}


def test_json_round_trip() -> None:
    document = samples.document()
    assert BudgetDocument.from_json(document.to_json()) == document


def test_a_family_of_disjoint_sets_needs_two_slots() -> None:
    """Of sets of which a replaced record touches two, two are paid; nobody else may call values a family."""
    event = Repeated(InSequence((Gaussian(2.0), Gaussian(2.0))), 50)
    values = [noisy(name, 2.0, 50, family="sets") for name in ("a", "b", "c")]
    unit = {"unit": Protected.RECORD, "adjacency": Relation.REPLACE_ONE}
    replaced = samples.document().guarantee.model_copy(update=unit)
    mmd = {"algorithm": "mmd-fedavg", "guarantee": replaced}
    document = priced(event, *values, **mmd)
    assert BudgetDocument.from_json(document.to_json()) == document
    for refused, why in (
        ((values, {"guarantee": replaced}), "proved for mmd-fedavg"),
        ((values, {"algorithm": "mmd-fedavg"}), "proved for mmd-fedavg"),
        (([*values, noisy("d", 2.0, 50)], mmd), "d with .* is not covered by the priced event"),
        (([*values[:2], noisy("c", 1.9, 50, family="sets")], mmd), "differ in their noise"),
        (([*values[:2], noisy("c", 2.0, 51, family="sets")], mmd), "differ in their noise or in how often"),
    ):
        with pytest.raises(ValidationError, match=why):
            priced(event, *refused[0], **refused[1])


@pytest.mark.parametrize("publications", [100, 99, 1])
def test_no_more_publications_than_priced(publications: int) -> None:
    priced(Repeated(Gaussian(2.0), 100), noisy("a", 2.0, publications))
    with pytest.raises(ValidationError, match="not covered by the priced event"):
        priced(Repeated(Gaussian(2.0), publications), noisy("a", 2.0, publications + 1), rounds=500)


def test_other_noise_than_priced_is_refused_in_both_directions() -> None:
    for multiplier in (1.9999999, 2.0000001):
        with pytest.raises(ValidationError, match="not covered"):
            priced(Repeated(Gaussian(2.0), 100), noisy("a", multiplier, 100))


def test_two_values_of_one_batch_are_two_slots() -> None:
    event = Repeated(Together((Gaussian(2.0), Gaussian(2.0))), 50)
    priced(event, noisy("a", 2.0, 50), noisy("b", 2.0, 50))
    # Twice as many batches of one value is another event, with another price.
    with pytest.raises(ValidationError, match="not covered"):
        priced(event, noisy("a", 2.0, 100))
    with pytest.raises(ValidationError, match="c with"):
        priced(event, noisy("a", 2.0, 50), noisy("b", 2.0, 50), noisy("c", 2.0, 1))


def test_equal_noise_in_sequence_is_shared_among_names() -> None:
    event = InSequence((Repeated(Gaussian(2.0), 10), Repeated(Gaussian(2.0), 20)))
    priced(event, noisy("a", 2.0, 10), noisy("b", 2.0, 20))
    with pytest.raises(ValidationError, match="not covered"):
        priced(event, noisy("a", 2.0, 11), noisy("b", 2.0, 20))


def test_an_epoch_covers_its_batches() -> None:
    event = Repeated(Sampled(samples.EPOCH, Gaussian(2.0)), 2)
    batches = 2 * samples.EPOCH.batches_per_epoch
    priced(event, noisy("a", 2.0, batches), **declared(samples.EPOCH))
    with pytest.raises(ValidationError, match="not covered"):
        priced(event, noisy("a", 2.0, batches + 1), **declared(samples.EPOCH))


def test_laplace_and_randomised_response_are_matched_by_their_own_numbers() -> None:
    laplace = LaplaceNoise(
        name="l",
        publications=1,
        shape=(2, 2),
        sensitivity=2,
        noise_multiplier=3,
        scale=6,
        sampler=NoiseSampler.DISCRETE_GRID,
    )
    response = RandomizedCategory(name="r", publications=1, epsilon=1.0, categories=3, sampler=NoiseSampler.CATEGORICAL)
    priced(InSequence((Laplace(3.0), RandomizedResponse(1.0, 3))), laplace, response)
    for event in (
        InSequence((Gaussian(3.0), RandomizedResponse(1.0, 3))),
        InSequence((Laplace(3.0), RandomizedResponse(1.0, 4))),
    ):
        with pytest.raises(ValidationError, match="not covered"):
            priced(event, laplace, response)


def test_what_is_published_in_the_clear_must_be_in_the_price() -> None:
    clear = InTheClear(name="g", publications=100, why="public anyway", depends_on_unit=False)
    event = InSequence((Repeated(Gaussian(2.0), 100), NonPrivate("public anyway", False)))
    priced(event, noisy("a", 2.0, 100), clear)
    for wrong in (Repeated(Gaussian(2.0), 100), InSequence((Gaussian(2.0), NonPrivate("public anyway", True)))):
        with pytest.raises(ValidationError, match="does not say so"):
            priced(wrong, noisy("a", 2.0, 1), clear)


@pytest.mark.parametrize(
    "scheme",
    [FixedSize(7500, 100), WithReplacement(7500, 100), samples.EPOCH],
    ids=lambda scheme: type(scheme).__name__,
)
def test_a_smaller_silo_than_priced_is_refused(scheme: Any) -> None:
    event = Repeated(Sampled(scheme, Gaussian(2.0)), 100)
    small = DataBinding.of("ab" * 32, [("a", 9000), ("b", 7499)])
    enough = DataBinding.of("ab" * 32, [("a", 9000), ("b", 7500)])
    priced(event, noisy("a", 2.0, 100), data=enough, **declared(scheme))
    with pytest.raises(ValidationError, match="smaller than the 7500"):
        priced(event, noisy("a", 2.0, 100), data=small, **declared(scheme))


def test_the_declared_sampling_is_the_priced_one() -> None:
    event = Repeated(Sampled(Poisson(0.01), Gaussian(2.0)), 100)
    priced(event, noisy("a", 2.0, 100), **declared(Poisson(0.01)))
    for wrong in (Poisson(0.001), Poisson(0.01, Batch.REVEALED)):
        with pytest.raises(ValidationError, match="priced but not declared"):
            priced(event, noisy("a", 2.0, 100), **declared(wrong))
    twice = declared(Poisson(0.01))["sampling"] * 2
    with pytest.raises(ValidationError, match="declared twice"):
        priced(event, noisy("a", 2.0, 100), sampling=twice)


def test_a_release_is_published_at_most_once_a_round() -> None:
    with pytest.raises(ValidationError, match="101 times in 100 rounds"):
        priced(Repeated(Gaussian(2.0), 101), noisy("a", 2.0, 101))


@pytest.mark.parametrize("sigma", [0.49, 0.51])
def test_sigma_is_multiplier_times_sensitivity(sigma: float) -> None:
    with pytest.raises(ValidationError, match="noiseMultiplier"):
        noisy("a", 2.0, 1, sigma=sigma)


def test_a_promise_below_the_price_is_refused() -> None:
    samples.document(guarantee=samples.private(epsilon=0.99900001))
    with pytest.raises(ValidationError, match="less than the slack"):
        samples.document(guarantee=samples.private(epsilon=0.999))
    with pytest.raises(ValidationError, match="exceeds the promised"):
        samples.document(guarantee=samples.private(epsilon=0.9989))


def as_printed(**changes: Any) -> AsPrintedGuarantee:
    scope = SCOPE | {"unit": Protected.ATTRIBUTE, "adjacency": Relation.REPLACE_ATTRIBUTE}
    fields: dict[str, Any] = {"epsilon": 7.6, "delta": 1e-5, "claimed_epsilon": 1.0, "claim": "Theorem 3.3"}
    return AsPrintedGuarantee(**(scope | fields | changes))


def test_a_papers_own_noise_states_both_epsilons() -> None:
    accounting = samples.accounting(interval=EpsilonInterval(7.5, 7.59), second_opinion=samples.opinion("b", 0, 8))
    document = samples.document(guarantee=as_printed(), accounting=accounting)
    assert not promises_privacy(document)
    assert document.to_json()["guarantee"]["claimedEpsilon"] == 1.0  # type: ignore[index, call-overload]
    with pytest.raises(ValidationError, match="exceeds the stated true one"):
        samples.document(guarantee=as_printed(epsilon=1.0), accounting=accounting)


def test_no_finite_epsilon_is_said_with_null() -> None:
    unbounded = EpsilonInterval(float("inf"), float("inf"))
    accounting = samples.accounting(interval=unbounded, second_opinion=samples.opinion("b", None, None))
    document = samples.document(guarantee=as_printed(epsilon=None), accounting=accounting)
    assert BudgetDocument.from_json(document.to_json()) == document
    with pytest.raises(ValidationError, match="exceeds the stated true one"):
        samples.document(guarantee=as_printed(), accounting=accounting)


def test_a_run_without_a_promise_needs_no_second_opinion() -> None:
    why = "a baseline"
    document = priced(
        NonPrivate(why, True),
        InTheClear(name="update", publications=100, why=why, depends_on_unit=True),
        guarantee=NoPrivacyPromised(**SCOPE, why=why),
    )
    assert not promises_privacy(document)
    bare = samples.accounting(second_opinion=None)
    with pytest.raises(ValidationError, match="second opinion"):
        samples.document(accounting=bare)


def test_seeded_noise_is_admitted_everywhere_or_nowhere_and_promises_nothing() -> None:
    seeded = NoiseSampler.SEEDED_RESEARCH_ONLY
    event = Repeated(Gaussian(2.0), 100)
    research = NoiseSource.SEEDED_RESEARCH_ONLY
    document = priced(event, noisy("a", 2.0, 100, sampler=seeded), noise_source=research)
    assert not promises_privacy(document)
    with pytest.raises(ValidationError, match="does not fit the noise source"):
        priced(event, noisy("a", 2.0, 100, sampler=seeded))
    with pytest.raises(ValidationError, match="does not fit the noise source"):
        priced(event, noisy("a", 2.0, 100), noise_source=research)


@pytest.mark.parametrize(
    "changes",
    [
        {"rounds": 1172.0},
        {"rounds": "1172"},
        {"rounds": True},
        {"rounds": 0},
        {"algorithm": "steffle!"},
        {"algorithm": ""},
        {"nonce": "EF" * 32},
        {"config_digest": "sha256:" + "cd" * 32},
        {"justification": ""},
        {"justification": "two\nlines"},
        {"justification": " padded"},
        {"justification": "x" * 4001},
        {"justification": "zero\u200bwidth"},
        {"unknown": 1},
        {"releases": ()},
        {"accounting": "cheap"},
    ],
    ids=str,
)
def test_values_are_not_coerced(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        samples.document(**changes)


@pytest.mark.parametrize("epsilon", [float("nan"), float("inf"), 0.0, -1.0])
def test_epsilon_is_a_finite_positive_number(epsilon: float) -> None:
    with pytest.raises(ValidationError):
        samples.private(epsilon=epsilon)


def test_instants_are_utc_seconds() -> None:
    berlin = timezone(timedelta(hours=2))
    start = datetime(2030, 1, 1, 2, 0, 0, 999, tzinfo=berlin)
    window = Validity(issued_at=start, not_before=start, not_after=start + timedelta(days=1))
    assert window.issued_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert window.model_dump(mode="json", by_alias=True)["issuedAt"] == "2030-01-01T00:00:00Z"
    with pytest.raises(ValidationError, match="time zone"):
        Validity(issued_at=datetime(2030, 1, 1), not_before=start, not_after=start + timedelta(days=1))


def test_an_interval_keeps_infinity_apart_from_numbers() -> None:
    infinity = float("inf")
    for interval in (EpsilonInterval(1, 2), EpsilonInterval(1, infinity), EpsilonInterval(infinity, infinity)):
        opinion = Opinion(accountant="a", library="b", version="c", interval=interval)
        text = opinion.model_dump_json()
        assert "nfinity" not in text
        assert Opinion.model_validate_json(text) == opinion
    wrong = ({"lower": 2, "upper": 1}, {"lower": None, "upper": 1}, {"lower": 1}, {"lower": "1", "upper": 2}, 1)
    for interval in (*wrong, {"lower": True, "upper": 2}, {"lower": 0, "upper": 1, "middle": 0}):
        with pytest.raises(ValidationError):
            Opinion(accountant="a", library="b", version="c", interval=interval)


def test_the_binding_takes_a_prefixed_schema_digest() -> None:
    assert DataBinding.of("sha256:" + "ab" * 32, [("a", 1)]) == DataBinding.of("ab" * 32, [("a", 1)])


@pytest.mark.parametrize("event", ["gaussian", 1, None, [], {}])
def test_an_event_that_is_no_release_is_refused_in_words(event: Any) -> None:
    with pytest.raises(ValidationError, match=r"JSON object|not a release"):
        samples.accounting(event=event)


def test_the_slack_for_discrete_noise_counts_every_value() -> None:
    """Theorem 3 of docs/theorems/discrete-noise.md: about N / (12 sigma^2) for N values of sigma >= 2^30 steps."""
    slack = noisy("a", 2.0, 10_000, shape=(1000, 1000)).slack
    assert slack.epsilon == pytest.approx(10**10 / (12 * 2.0**60), rel=0.01)
    unshaped = noisy("a", 2.0, 1, shape=None).slack
    assert unshaped.epsilon == pytest.approx(2**24 / (12 * 2.0**60), rel=0.1)
    assert noisy("a", 2.0, 1, sampler=NoiseSampler.SEEDED_RESEARCH_ONLY).slack == NO_SLACK
    assert noisy("a", 2.0, 1, shape=(0,)).slack == NO_SLACK


@given(st.floats(1e-6, 100), st.floats(1e-30, 0.1), st.integers(1, 10**12), st.booleans())
def test_what_is_priced_and_the_slack_make_up_the_promise(epsilon: float, delta: float, n: int, laplace: bool) -> None:
    promise = EpsilonDelta(epsilon, delta)
    slack = (laplace_distance_slack if laplace else profile_slack)(STEPS_PER_SCALE, n, 1)
    try:
        continuous = slack.continuous(promise)
    except InvalidInput:
        assume(False)
    kept = slack.certified(continuous)
    assert kept.epsilon <= promise.epsilon
    assert kept.delta <= promise.delta


def test_without_slack_the_promise_is_the_price() -> None:
    assert NO_SLACK.continuous(EpsilonDelta(1e4, 1e-5)) == EpsilonDelta(1e4, 1e-5)

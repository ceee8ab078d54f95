"""The officer's page says the worst first and never looks better than what was signed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from calibrate.discrete_noise import NO_SLACK
from calibrate.manifest.document import SamplingDeclaration, statement_bytes
from calibrate.manifest.keys import Role, generate
from calibrate.manifest.mechanism import AsPrintedGuarantee, InTheClear, NoiseSampler, NoiseSource, NoPrivacyPromised
from calibrate.manifest.show import as_json, render
from calibrate.manifest.trust import TrustedKey, TrustFile
from calibrate.manifest.verify import authenticate, read_unverified, verify
from calibrate.privacy_unit import EpsilonInterval
from calibrate.releases import NonPrivate

samples = SimpleNamespace(**run_path(str(Path(__file__).parent / "tampered" / "samples.py")))
KEY = generate()
TRUST = TrustFile(keys=(TrustedKey.of(KEY.public, Role.PRIVACY_OFFICER, samples.NOW - timedelta(days=1)),))


def page(**changes: Any) -> str:
    envelope = samples.signed(statement_bytes(samples.document(**changes)), KEY)
    return " ".join(render(authenticate(envelope, TRUST, samples.NOW)).split())


def test_the_page_answers_an_officers_questions() -> None:
    text = page()
    for answer in (
        "(1, 1e-05)-differential privacy for the sensitive attribute of one record",
        "more than 2.72 times likelier",
        "features and label stay, and are not protected",
        "Against: the server and the other silos",
        "What is NOT protected",
        "features and labels",
        "Batches are drawn independently of the sensitive attributes.",
        "enforced by the silo's engine",
        "h_theta: Gaussian noise of standard deviation 8.35",
        "33.4 times one unit's largest L2 contribution (0.25, clipped at 0.5)",
        "g: WITHOUT NOISE, free of the protected unit",
        "1172 rounds",
        "first (lib-first 1.0): epsilon between 0.99 and 0.999",
        "second (lib-second 1.0): epsilon between 0 and 1.2",
        "north hospital: 7500 records",
        "from 2030-06-01T11:00:00Z until 2030-07-01T12:00:00Z",
        "to be claimed in the ledger 0a0a",
        "data set admissions, version 2029, kept by the hospitals' trust",
        "own code net.py, which sees the records: 0c0c",
        "approved by the ethics board",
        f"signed by the privacy-officer with key {KEY.key_id}",
        "Not yet compared with a plan or with data.",
    ):
        assert answer in text, answer


def test_it_says_what_was_checked() -> None:
    envelope = samples.signed(statement_bytes(samples.document()), KEY)
    assert "SIGNATURES NOT CHECKED" in render(read_unverified(envelope)).splitlines()[2]
    assert "NOT CHECKED" not in render(verify(envelope, TRUST, samples.RUN, samples.NOW))
    assert "are the ones it was signed for" in render(verify(envelope, TRUST, samples.RUN, samples.NOW))


def test_costs_are_rounded_up_and_noise_down() -> None:
    text = page(
        guarantee=samples.private(epsilon=1.00000002),
        accounting=samples.accounting(interval=EpsilonInterval(0.99999999, 1.0000000001)),
    )
    assert "(1.00001, 1e-05)" in text
    assert "between 0.999999 and 1.00001" in text


def test_an_unenforced_sampling_is_shouted() -> None:
    declaration = SamplingDeclaration(scheme=samples.EPOCH, assumption_enforced=False, enforced_by="whoever trains")
    assert "NOT ENFORCED; it rests on whoever trains" in page(sampling=(declaration,))


def test_seeded_noise_is_shouted() -> None:
    seeded = NoiseSampler.SEEDED_RESEARCH_ONLY
    releases = (samples.gaussian("h_theta", sampler=seeded), samples.gaussian("h_W", sampler=seeded))
    assert "NOBODY IS PROTECTED" in page(releases=releases, noise_source=NoiseSource.SEEDED_RESEARCH_ONLY)


def test_a_papers_claim_stands_beside_the_truth() -> None:
    guarantee = AsPrintedGuarantee(
        **samples.private().model_dump(include={"unit", "adjacency", "scope", "covered", "not_protected", "delta"}),
        epsilon=7.59,
        claimed_epsilon=1.0,
        claim="SteFFLe, Theorem 3.3",
    )
    text = page(guarantee=guarantee)
    assert "Claimed: epsilon = 1.0 (SteFFLe, Theorem 3.3). True: epsilon = 7.59 at delta = 1e-05" in text
    assert "no finite epsilon" in page(guarantee=guarantee.model_copy(update={"epsilon": None}))


def test_no_promise_is_shouted() -> None:
    why = "a baseline to compare with"
    guarantee = NoPrivacyPromised(
        **samples.private().model_dump(include={"unit", "adjacency", "scope", "not_protected"}), covered=(), why=why
    )
    text = page(
        guarantee=guarantee,
        releases=(InTheClear(name="update", publications=9, why=why, depends_on_unit=True),),
        accounting=samples.accounting(event=NonPrivate(why, True), second_opinion=None),
        sampling=(),
    )
    assert "NO PRIVACY IS PROMISED: a baseline" in text
    assert "WITHOUT NOISE, DEPENDS ON THE PROTECTED UNIT" in text
    assert "Nothing." in text
    assert "uses all data" not in text


@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 20.0, 50.0])
def test_any_epsilon_can_be_shown(epsilon: float) -> None:
    interval = EpsilonInterval(0.0, epsilon / 2)
    accounting = samples.accounting(interval=interval, second_opinion=samples.opinion("b", 0.0, None))
    assert "times likelier" in page(guarantee=samples.private(epsilon=epsilon), accounting=accounting)


@pytest.mark.parametrize("epsilon", [800.0, 1e300])
def test_even_an_absurd_epsilon_can_be_shown(epsilon: float) -> None:
    """Only seeded noise can have one: with discrete noise nothing would be left of delta."""
    seeded = NoiseSampler.SEEDED_RESEARCH_ONLY
    accounting = samples.accounting(interval=EpsilonInterval(0.0, epsilon), discrete_noise=NO_SLACK)
    text = page(
        releases=(samples.gaussian("h_theta", sampler=seeded), samples.gaussian("h_W", sampler=seeded)),
        noise_source=NoiseSource.SEEDED_RESEARCH_ONLY,
        guarantee=samples.private(epsilon=epsilon),
        accounting=accounting,
    )
    assert f"exp({epsilon:.6g}) times likelier" in text
    with pytest.raises(ValidationError, match="used up"):
        page(guarantee=samples.private(epsilon=epsilon), accounting=samples.accounting(interval=accounting.interval))


def test_the_page_is_plain_text_of_bounded_width() -> None:
    envelope = samples.signed(statement_bytes(samples.document()), KEY)
    lines = render(read_unverified(envelope)).splitlines()
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) <= 80


def test_machines_are_told_the_same() -> None:
    envelope = samples.signed(statement_bytes(samples.document()), KEY)
    unverified = as_json(read_unverified(envelope))
    assert (unverified["checked"], unverified["signatures"]) == ("nothing", [])
    verified = as_json(verify(envelope, TRUST, samples.RUN, samples.NOW))
    assert verified["checked"] == "signatures, plan and data"
    assert verified["signatures"] == [{"role": "privacy-officer", "key_id": KEY.key_id}]
    assert verified["promises_privacy"] is True
    assert isinstance(verified["meaning"], dict)
    assert 0.5 < verified["meaning"]["right_guesses"] < 1
    assert verified["document"] == samples.document().to_json()

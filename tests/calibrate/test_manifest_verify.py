"""Verification returns something nobody else can make, or refuses; the policy is per role."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from calibrate.errors import InvalidInput, ManifestRefused
from calibrate.manifest.document import statement_bytes
from calibrate.manifest.keys import KeyAlgorithm, Role, SigningKey, generate
from calibrate.manifest.trust import Revocation, TrustedKey, TrustFile
from calibrate.manifest.verify import (
    AuthenticManifest,
    IntendedRun,
    SiloData,
    VerifiedManifest,
    authenticate,
    promises_privacy,
    read_unverified,
    verify,
)

samples = SimpleNamespace(**run_path(str(Path(__file__).parent / "tampered" / "samples.py")))
NOW: datetime = samples.NOW
PAYLOAD = statement_bytes(samples.document())


def entry(key: SigningKey, role: Role) -> TrustedKey:
    return TrustedKey.of(key.public, role, NOW - timedelta(days=30))


def trust_in(*entries: TrustedKey) -> TrustFile:
    return TrustFile(keys=entries)


def step_of(refusal: pytest.ExceptionInfo[ManifestRefused]) -> int:
    return int(refusal.value.step.split()[0])


@pytest.fixture
def officer() -> SigningKey:
    return generate()


@pytest.fixture
def owner() -> SigningKey:
    return generate(KeyAlgorithm.ECDSA_P256)


@pytest.fixture
def verified(officer: SigningKey) -> VerifiedManifest:
    envelope = samples.signed(PAYLOAD, officer)
    return verify(envelope, trust_in(entry(officer, Role.PRIVACY_OFFICER)), samples.RUN, NOW)


def test_an_officer_alone_suffices_where_only_officers_are_trusted(verified: VerifiedManifest) -> None:
    assert verified.document == samples.document()
    assert promises_privacy(verified.document)


def test_each_role_is_asked_on_its_own(officer: SigningKey, owner: SigningKey) -> None:
    """Two officers are two keys but one role: a threshold of two would have been content."""
    second = generate()
    trust = trust_in(
        entry(officer, Role.PRIVACY_OFFICER), entry(second, Role.PRIVACY_OFFICER), entry(owner, Role.DATA_OWNER)
    )
    with pytest.raises(ManifestRefused, match="data-owner") as refusal:
        verify(samples.signed(PAYLOAD, officer, second), trust, samples.RUN, NOW)
    assert step_of(refusal) == 3
    either = verify(samples.signed(PAYLOAD, second, owner), trust, samples.RUN, NOW)
    assert {signature.key_id for signature in either.authentic.signatures} == {second.key_id, owner.key_id}


def test_a_key_of_the_wrong_role_does_not_count(officer: SigningKey, owner: SigningKey) -> None:
    trust = trust_in(entry(owner, Role.PRIVACY_OFFICER), entry(officer, Role.DATA_OWNER))
    with pytest.raises(ManifestRefused, match="privacy-officer"):
        verify(samples.signed(PAYLOAD, officer), trust, samples.RUN, NOW)


def test_a_live_key_of_the_role_outweighs_a_revoked_one(officer: SigningKey) -> None:
    old = generate()
    trust = trust_in(entry(officer, Role.PRIVACY_OFFICER), entry(old, Role.PRIVACY_OFFICER)).with_revoked(
        old.key_id, Revocation(at=NOW - timedelta(days=1), why="left")
    )
    with pytest.raises(ManifestRefused, match="left") as refusal:
        verify(samples.signed(PAYLOAD, old), trust, samples.RUN, NOW)
    assert step_of(refusal) == 4
    both = verify(samples.signed(PAYLOAD, old, officer), trust, samples.RUN, NOW)
    assert [signature.key_id for signature in both.authentic.signatures] == [officer.key_id]


def test_a_strangers_signature_is_reported_and_does_not_count(officer: SigningKey) -> None:
    stranger = generate()
    trust = trust_in(entry(officer, Role.PRIVACY_OFFICER))
    manifest = authenticate(samples.signed(PAYLOAD, officer, stranger), trust, NOW)
    assert manifest.unknown_key_ids == (stranger.key_id,)
    assert [signature.key_id for signature in manifest.signatures] == [officer.key_id]


def test_the_identity_is_the_payload_not_the_envelope(officer: SigningKey, owner: SigningKey) -> None:
    """ECDSA signatures differ each time; a ledger keyed by envelopes would let one budget be spent twice."""
    trust = trust_in(entry(owner, Role.DATA_OWNER))
    first, second = (authenticate(samples.signed(PAYLOAD, owner), trust, NOW) for _ in range(2))
    assert first.digest == second.digest
    assert first.envelope_digest != second.envelope_digest


def test_a_silo_that_sees_only_itself_checks_itself(officer: SigningKey) -> None:
    envelope, trust = samples.signed(PAYLOAD, officer), trust_in(entry(officer, Role.PRIVACY_OFFICER))
    schema = samples.DATA.schema_digest
    mine = SiloData("south hospital", 7600, schema)
    assert verify(envelope, trust, IntendedRun(samples.PLAN_DIGEST, mine, samples.CODE), NOW).run.data == mine
    for wrong in (
        SiloData("south hospital", 7599, schema),
        SiloData("north hospital", 7600, schema),
        SiloData("south hospital", 7600, "00" * 32),
    ):
        with pytest.raises(ManifestRefused) as refusal:
            verify(envelope, trust, IntendedRun(samples.PLAN_DIGEST, wrong, samples.CODE), NOW)
        assert step_of(refusal) == 11


def test_nobody_else_can_make_a_verified_manifest(verified: VerifiedManifest) -> None:
    with pytest.raises(TypeError, match="verify"):
        VerifiedManifest(verified.authentic, verified.run, seal=object())
    with pytest.raises(TypeError, match="authenticate"):
        AuthenticManifest(samples.document(), "", "", (), (), NOW, for_reading=False, seal=None)
    with pytest.raises((TypeError, ValueError), match="seal"):  # which of the two depends on the version of Python
        dataclasses.replace(verified, run=IntendedRun("00" * 32, samples.DATA))
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(verified)
    with pytest.raises(TypeError, match="never pickled"):
        copy.deepcopy(verified)


def test_a_verified_manifest_cannot_be_changed(verified: VerifiedManifest) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        verified.run = IntendedRun("00" * 32, samples.DATA)  # type: ignore[misc]
    with pytest.raises(ValidationError):
        verified.document.rounds = 10**6


def test_the_instant_needs_a_zone(officer: SigningKey) -> None:
    trust = trust_in(entry(officer, Role.PRIVACY_OFFICER))
    with pytest.raises(InvalidInput, match="time zone"):
        authenticate(samples.signed(PAYLOAD, officer), trust, NOW.replace(tzinfo=None))


def test_unverified_reading_says_only_what_is_claimed(officer: SigningKey) -> None:
    read = read_unverified(samples.signed(PAYLOAD, officer))
    assert read.document == samples.document()
    assert read.claimed_key_ids == (officer.key_id,)
    assert not isinstance(read, VerifiedManifest | AuthenticManifest)


def test_a_declared_release_is_found_by_name_and_others_are_not(verified: VerifiedManifest) -> None:
    assert verified.document.release("h_W").name == "h_W"
    with pytest.raises(InvalidInput, match="h_theta, h_W, g"):
        verified.document.release("h_X")


def test_verification_loads_no_accountant_and_no_numerical_library() -> None:
    """The engine verifies; if that loaded an accountant, the engine could calibrate itself."""
    code = (
        "import sys, calibrate.manifest.verify, calibrate.manifest.show; "
        "print([m for m in sys.modules if m.split('.')[0] in ('numpy', 'scipy', 'torch', 'dp_accounting')"
        " or m.startswith(('calibrate.accountants', 'calibrate.plans', 'calibrate.theorems'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

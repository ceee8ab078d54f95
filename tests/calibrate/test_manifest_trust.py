"""Whose signatures count: one key one role, every role must sign, revoked means revoked."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from calibrate.errors import TrustRefused
from calibrate.manifest.keys import KeyAlgorithm, PublicKey, Role, SigningKey, generate, sign
from calibrate.manifest.trust import TRUST_PAYLOAD_TYPE, Revocation, TrustedKey, TrustFile, read_trust

NOW = datetime(2030, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)


def entry(key: SigningKey, role: Role = Role.PRIVACY_OFFICER, **times: datetime) -> TrustedKey:
    return TrustedKey.of(key.public, role, times.get("start", NOW - DAY), times.get("end"))


@pytest.fixture
def officer() -> SigningKey:
    return generate()


@pytest.fixture
def owner() -> SigningKey:
    return generate(KeyAlgorithm.ECDSA_P256)


def test_the_file_survives_being_written(officer: SigningKey, owner: SigningKey) -> None:
    trust = TrustFile(keys=(entry(officer),)).with_key(entry(owner, Role.DATA_OWNER))
    assert read_trust(trust.to_bytes(), at=NOW) == trust
    assert trust.sequence == 2


def test_with_an_officer_alone_only_the_officer_is_asked_for(officer: SigningKey, owner: SigningKey) -> None:
    trust = TrustFile(keys=(entry(officer),))
    assert trust.roles == (Role.PRIVACY_OFFICER,)
    assert trust.with_key(entry(owner, Role.DATA_OWNER)).roles == (Role.PRIVACY_OFFICER, Role.DATA_OWNER)


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.GUARD])
def test_a_key_is_listed_once_whatever_the_role(officer: SigningKey, role: Role) -> None:
    with pytest.raises(TrustRefused, match="twice"):
        TrustFile(keys=(entry(officer),)).with_key(entry(officer, role))


def test_an_id_that_is_not_the_keys_own_is_refused(officer: SigningKey, owner: SigningKey) -> None:
    """The trap: one private key under two chosen ids would count as two signers."""
    fields = json.loads(TrustFile(keys=(entry(officer), entry(owner, Role.DATA_OWNER))).to_bytes())
    fields["keys"][1]["publicKey"] = officer.public.pem
    with pytest.raises(TrustRefused, match="not the id of the key"):
        read_trust(json.dumps(fields).encode(), at=NOW)


def test_another_spelling_of_a_listed_key_is_refused(officer: SigningKey) -> None:
    fields = json.loads(TrustFile(keys=(entry(officer),)).to_bytes())
    fields["keys"][0]["publicKey"] = "a note\n" + officer.public.pem
    with pytest.raises(TrustRefused, match="not the id of the key"):
        read_trust(json.dumps(fields).encode(), at=NOW)


def test_revoking_keeps_the_role_required(officer: SigningKey) -> None:
    trust = TrustFile(keys=(entry(officer),)).with_revoked(officer.key_id, Revocation(at=NOW, why="left"))
    assert trust.roles == (Role.PRIVACY_OFFICER,)
    assert trust.keys[0].objection(NOW) == f"key {officer.key_id} was revoked: left"
    assert trust.keys[0].objection(NOW - timedelta(seconds=1)) is None
    assert read_trust(trust.to_bytes(), at=NOW) == trust


def test_revoking_an_unknown_or_revoked_key_is_refused(officer: SigningKey, owner: SigningKey) -> None:
    trust = TrustFile(keys=(entry(officer),))
    revocation = Revocation(at=NOW, why="left")
    with pytest.raises(TrustRefused, match="not in the trust file"):
        trust.with_revoked(owner.key_id, revocation)
    with pytest.raises(TrustRefused, match="already"):
        trust.with_revoked(officer.key_id, revocation).with_revoked(officer.key_id, revocation)


def test_a_key_speaks_within_its_time_only(officer: SigningKey) -> None:
    key = entry(officer, start=NOW, end=NOW + DAY)
    assert key.objection(NOW) is None
    assert "before" in str(key.objection(NOW - timedelta(seconds=1)))
    assert "since" in str(key.objection(NOW + DAY))
    with pytest.raises(TrustRefused, match="later end"):
        entry(officer, start=NOW, end=NOW)


def test_without_an_end_a_key_lasts_two_years(officer: SigningKey) -> None:
    assert entry(officer, start=NOW).valid_until == NOW + 730 * DAY


def test_a_signed_file_needs_its_root(officer: SigningKey, owner: SigningKey) -> None:
    root, trust = generate(), TrustFile(keys=(entry(officer),))
    content = trust.signed(root)
    assert read_trust(content, root.public, NOW) == trust
    with pytest.raises(TrustRefused, match="no root key"):
        read_trust(content, at=NOW)
    with pytest.raises(TrustRefused, match="not signed by the root"):
        read_trust(content, owner.public, NOW)
    with pytest.raises(TrustRefused, match="not signed by the root"):
        read_trust(trust.to_bytes(), root.public, NOW)


def test_a_root_key_holds_no_role(officer: SigningKey) -> None:
    trust = TrustFile(keys=(entry(officer),))
    with pytest.raises(TrustRefused, match="separate root key"):
        trust.signed(officer)
    smuggled = sign(TRUST_PAYLOAD_TYPE, json.dumps(json.loads(trust.to_bytes())).encode(), officer)
    with pytest.raises(TrustRefused, match="separate root key"):
        read_trust(smuggled, officer.public, NOW)


def test_a_signed_manifest_is_not_a_trust_file(officer: SigningKey) -> None:
    content = sign("application/vnd.in-toto+json", TrustFile(keys=(entry(officer),)).to_bytes(), root := generate())
    with pytest.raises(TrustRefused, match="not a trust file"):
        read_trust(content, root.public, NOW)


def test_an_older_or_stale_file_is_refused(officer: SigningKey) -> None:
    trust = TrustFile(keys=(entry(officer),), valid_until=NOW)
    assert read_trust(trust.to_bytes(), at=NOW - DAY) == trust
    with pytest.raises(TrustRefused, match="stale"):
        read_trust(trust.to_bytes(), at=NOW)
    with pytest.raises(TrustRefused, match="newest"):
        read_trust(trust.to_bytes(), at=NOW - DAY, least_sequence=2)


def change(**fields: Any) -> Any:
    return lambda tree: tree.update(fields)


@pytest.mark.parametrize(
    "fault",
    [
        change(keys=[]),
        change(note=1),
        change(type="urn:privfair:trust:v2"),
        change(sequence=0),
        change(sequence="1"),
        change(validUntil="tomorrow"),
        lambda tree: tree.pop("keys"),
        lambda tree: tree.pop("validUntil"),
        lambda tree: tree["keys"][0].update(role="ceo"),
        lambda tree: tree["keys"][0].update(keyId="00"),
        lambda tree: tree["keys"][0].update(publicKey="key"),
        lambda tree: tree["keys"][0].update(note=1),
        lambda tree: tree["keys"][0].update(key_id=tree["keys"][0].pop("keyId")),
        lambda tree: tree["keys"].append(tree["keys"][0]),
    ],
)
def test_a_file_that_says_anything_else_is_refused(officer: SigningKey, fault: Any) -> None:
    tree = json.loads(TrustFile(keys=(entry(officer),)).to_bytes())
    fault(tree)
    with pytest.raises(TrustRefused):
        read_trust(json.dumps(tree).encode(), at=NOW)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"keys":[],"keys":[]}', b"\xff"])
def test_what_is_not_a_trust_file_is_refused(content: bytes) -> None:
    for root in (None, generate().public):
        with pytest.raises(TrustRefused):
            read_trust(content, root, NOW)


def test_public_keys_compare_by_what_they_are(officer: SigningKey) -> None:
    again: PublicKey = entry(officer).key()
    assert again == officer.public

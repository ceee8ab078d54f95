"""Keys are named by what they are, kept to their owner, and signatures have one spelling."""

from __future__ import annotations

import base64
import copy
import json
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner, SSlibKey

from calibrate.errors import TrustRefused
from calibrate.manifest.keys import (
    PASSWORD_VARIABLE,
    BadSignature,
    BrokenEnvelope,
    KeyAlgorithm,
    Role,
    add_signature,
    check_signature,
    generate,
    load_private,
    load_public,
    open_envelope,
    public_key_from_pem,
    save,
    sign,
)

ALGORITHMS = pytest.mark.parametrize("algorithm", list(KeyAlgorithm), ids=lambda algorithm: algorithm.value)


@ALGORITHMS
def test_a_saved_key_is_the_same_key_and_readable_by_its_owner_alone(tmp_path: Path, algorithm: KeyAlgorithm) -> None:
    key, path = generate(algorithm), tmp_path / "officer.pem"
    public_path = save(key, Role.PRIVACY_OFFICER, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_private(path).key_id == key.key_id
    assert load_public(path) == load_public(public_path) == key.public
    assert key.public.algorithm is algorithm
    assert b"\nrole: privacy-officer\n" in path.read_bytes()
    assert b"PRIVATE" not in public_path.read_bytes()


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "officer.pem"
    save(generate(), Role.PRIVACY_OFFICER, path)
    before = path.read_bytes()
    with pytest.raises(TrustRefused, match="not overwritten"):
        save(generate(), Role.PRIVACY_OFFICER, path)
    assert path.read_bytes() == before


def test_a_public_key_beside_it_is_not_overwritten_either(tmp_path: Path) -> None:
    (tmp_path / "officer.pem.pub").write_text("mine")
    with pytest.raises(TrustRefused, match="not overwritten"):
        save(generate(), Role.PRIVACY_OFFICER, tmp_path / "officer.pem")
    assert not (tmp_path / "officer.pem").exists()


@ALGORITHMS
def test_an_encrypted_key_opens_with_its_password_only(
    tmp_path: Path, algorithm: KeyAlgorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, path = generate(algorithm), tmp_path / "officer.pem"
    save(key, Role.PRIVACY_OFFICER, path, b"correct horse")
    assert b"ENCRYPTED" in path.read_bytes()
    assert load_private(path, lambda: b"correct horse").key_id == key.key_id
    with pytest.raises(TrustRefused, match="password"):
        load_private(path, lambda: b"battery staple")
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    with pytest.raises(TrustRefused, match=PASSWORD_VARIABLE):
        load_private(path)
    monkeypatch.setenv(PASSWORD_VARIABLE, "correct horse")
    assert load_private(path).key_id == key.key_id


def test_an_empty_password_is_no_password(tmp_path: Path) -> None:
    with pytest.raises(TrustRefused, match="empty password"):
        save(generate(), Role.DATA_OWNER, tmp_path / "key.pem", b"")


def test_nobody_is_asked_for_the_password_of_an_open_key(tmp_path: Path) -> None:
    save(generate(), Role.DATA_OWNER, tmp_path / "key.pem")

    def asked() -> bytes:
        raise AssertionError("asked for a password that is not needed")

    load_private(tmp_path / "key.pem", asked)


def test_one_curve_point_has_one_id_however_it_is_spelled() -> None:
    """A compressed point inside SubjectPublicKeyInfo is another text of the same key."""
    key = generate(KeyAlgorithm.ECDSA_P256)
    loaded = serialization.load_pem_public_key(key.public.pem.encode())
    assert isinstance(loaded, ec.EllipticCurvePublicKey)
    point = loaded.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint)
    header = bytes.fromhex("3039301306072a8648ce3d020106082a8648ce3d030107032200")
    der = serialization.load_der_public_key(header + point)
    pem = der.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    assert public_key_from_pem(pem, "test").key_id == key.key_id
    compressed = b"-----BEGIN PUBLIC KEY-----\n" + base64.encodebytes(header + point) + b"-----END PUBLIC KEY-----\n"
    assert public_key_from_pem(compressed, "test") == key.public


@pytest.mark.parametrize(
    "private", [rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())], ids=["rsa", "p-384"]
)
def test_other_kinds_of_keys_are_refused(
    tmp_path: Path, private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
) -> None:
    path = tmp_path / "key.pem"
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(private.private_bytes(pem, pkcs8, serialization.NoEncryption()))
    with pytest.raises(TrustRefused, match="Ed25519"):
        load_private(path)
    public = private.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(TrustRefused, match="Ed25519"):
        public_key_from_pem(public, "test")


@pytest.mark.parametrize("content", [b"", b"hello", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    with pytest.raises(TrustRefused, match=r"key\.pem"):
        load_private(path)
    with pytest.raises(TrustRefused, match=r"key\.pem"):
        load_public(path)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TrustRefused, match="nowhere"):
        load_private(tmp_path / "nowhere.pem")


def test_a_private_key_does_not_show_itself() -> None:
    assert "PRIVATE" not in repr(generate())


@ALGORITHMS
def test_signed_bytes_verify_under_their_key_and_no_other(algorithm: KeyAlgorithm) -> None:
    key, other = generate(algorithm), generate(algorithm)
    opened = open_envelope(sign("text/plain", b"hello", key))
    assert opened.payload == b"hello"
    assert opened.key_ids == (key.key_id,)
    check_signature(opened, key.public)
    with pytest.raises(BadSignature):
        check_signature(opened, other.public)


def test_the_payload_type_is_signed_too() -> None:
    key = generate()
    fields = json.loads(sign("text/plain", b"hello", key))
    fields["payloadType"] = "text/html"
    with pytest.raises(BadSignature):
        check_signature(open_envelope(json.dumps(fields).encode()), key.public)


def test_a_key_cannot_sign_twice() -> None:
    key = generate()
    with pytest.raises(BrokenEnvelope, match="already"):
        add_signature(open_envelope(sign("text/plain", b"hello", key)), key)


def test_checking_does_not_use_up_the_envelope() -> None:
    """securesystemslib's from_dict empties its input; ours must give the same answer every time."""
    first, second = generate(), generate(KeyAlgorithm.ECDSA_P256)
    opened = open_envelope(add_signature(open_envelope(sign("text/plain", b"hello", first)), second))
    for _ in range(3):
        check_signature(opened, first.public)
        check_signature(opened, second.public)
    assert open_envelope(add_signature(opened, generate())).payload == b"hello"


class TestTrapsOfTheLibrary:
    """What securesystemslib does on its own, so that we notice if a new version changes it."""

    def test_one_private_key_under_two_ids_satisfies_a_threshold_of_two(self) -> None:
        private = serialization.load_pem_private_key(CryptoSigner.generate_ed25519().private_bytes, None)
        twice = [SSlibKey.from_crypto(private.public_key(), keyid=name) for name in ("a" * 64, "b" * 64)]
        envelope = Envelope(b"hello", "text/plain", {})
        for public in twice:
            envelope.sign(CryptoSigner(private, public))
        assert len(envelope.verify(twice, threshold=2)) == 2

    def test_an_envelope_without_keyid_raises_a_bare_key_error(self) -> None:
        fields = json.loads(sign("text/plain", b"hello", generate()))
        del fields["signatures"][0]["keyid"]
        with pytest.raises(KeyError):
            Envelope.from_dict(copy.deepcopy(fields))
        with pytest.raises(BrokenEnvelope, match="keyid"):
            open_envelope(json.dumps(fields).encode())

    def test_from_dict_destroys_its_input(self) -> None:
        fields = json.loads(sign("text/plain", b"hello", generate()))
        Envelope.from_dict(fields)
        assert fields["signatures"] == [{}]

    def test_it_reads_url_safe_base64_which_we_do_not(self) -> None:
        fields = json.loads(sign("text/plain", b"\xff\xff\xfe", generate()))
        fields["payload"] = fields["payload"].replace("/", "_")
        assert Envelope.from_dict(copy.deepcopy(fields)).payload == b"\xff\xff\xfe"
        with pytest.raises(BrokenEnvelope, match="base64"):
            open_envelope(json.dumps(fields).encode())

"""Writes the fixed corpus: one well-formed manifest, and one file for each way it can be wrong.

Run it only to add a fault: `python tests/calibrate/tampered/generate.py`. Files are named `NN-fault.json`,
NN being the step that must refuse them. From step 4 on they carry valid signatures of both roles, because
otherwise step 3 would hide the fault. The private keys are made afresh at every run and forgotten at its
end; only what they signed is kept.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import timedelta
from typing import Any

import rfc8785

sys.path.insert(0, str(__file__).rsplit("/", 1)[0])
import samples
from samples import DATA, HERE, NOW, PLAN_DIGEST, document, signed

from calibrate.manifest.document import DataBinding, OwnCode, Validity, statement_bytes
from calibrate.manifest.keys import KeyAlgorithm, Role, generate
from calibrate.manifest.trust import TRUST_PAYLOAD_TYPE, Revocation, TrustedKey, TrustFile

Fault = tuple[str, bytes]


OFFICER, REVOKED, EXPIRED, FUTURE, STRANGER = (generate() for _ in range(5))
OWNER = generate(KeyAlgorithm.ECDSA_P256)


def trust() -> TrustFile:
    start, day = NOW - timedelta(days=365), timedelta(days=1)
    file = TrustFile(keys=(TrustedKey.of(OFFICER.public, Role.PRIVACY_OFFICER, start, NOW + 3650 * day),))
    file = file.with_key(TrustedKey.of(OWNER.public, Role.DATA_OWNER, start, NOW + 3650 * day))
    file = file.with_key(TrustedKey.of(REVOKED.public, Role.PRIVACY_OFFICER, start, NOW + 3650 * day))
    file = file.with_key(TrustedKey.of(EXPIRED.public, Role.PRIVACY_OFFICER, start, NOW - day))
    file = file.with_key(TrustedKey.of(FUTURE.public, Role.PRIVACY_OFFICER, NOW + day, NOW + 30 * day))
    return file.with_revoked(REVOKED.key_id, Revocation(at=NOW - day, why="the laptop was stolen"))


PAYLOAD = statement_bytes(document())
GOOD = signed(PAYLOAD, OFFICER, OWNER)
OTHER = signed(statement_bytes(document(nonce="99" * 32)), OFFICER, OWNER)


def envelope(change: Callable[[dict[str, Any]], object], base: bytes = GOOD) -> bytes:
    """The good envelope with its JSON changed in place."""
    fields = json.loads(base)
    change(fields)
    return rfc8785.dumps(fields) + b"\n"


def payload(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The good statement with its JSON changed in place, properly signed by both roles."""
    fields = json.loads(PAYLOAD)
    change(fields)
    return signed(rfc8785.dumps(fields), OFFICER, OWNER)


def put(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(fields: dict[str, Any]) -> None:
        target: Any = fields
        for part in path[:-1]:
            target = target[part]
        target[path[-1]] = value

    return change


def predicate(*path: str | int, value: Any) -> bytes:
    return payload(put("predicate", *path, value=value))


def raw(old: bytes, new: bytes) -> bytes:
    """The good statement with its text changed, properly signed: for what no JSON writer would produce."""
    changed = PAYLOAD.replace(old, new, 1)
    assert changed != PAYLOAD
    return signed(changed, OFFICER, OWNER)


def step_1() -> Iterator[Fault]:
    yield "not-json", b"budget"
    yield "empty", b""
    yield "an-array", b"[" + GOOD.strip() + b"]"
    yield "truncated", GOOD[: len(GOOD) // 2]
    yield "trailing-data", GOOD + b"{}"
    yield "byte-order-mark", b"\xef\xbb\xbf" + GOOD
    yield "not-utf-8", GOOD.replace(b"vnd", b"vn\xff", 1)
    yield "nested-too-deep", b'{"payload":' * 40 + b"0" + b"}" * 40
    yield "payload-twice", GOOD.replace(b"{", b'{"payload":"e30=",', 1)
    yield "nan-in-envelope", GOOD.replace(b"{", b'{"a":NaN,', 1)
    yield "unknown-field", envelope(put("note", value="hello"))
    yield "unknown-field-in-signature", envelope(put("signatures", 0, "role", value="data-owner"))
    yield "no-payload-type", envelope(lambda fields: fields.pop("payloadType"))
    yield "no-keyid", envelope(lambda fields: fields["signatures"][0].pop("keyid"))
    yield ("keyid-in-capitals", envelope(lambda f: put("keyid", value=OFFICER.key_id.upper())(f["signatures"][0])))
    yield "no-signatures", envelope(put("signatures", value=[]))
    yield "one-signature-twice", envelope(lambda fields: fields["signatures"].append(fields["signatures"][0]))
    yield "empty-signature", envelope(put("signatures", 0, "sig", value=""))
    yield from base64_spellings()


def base64_spellings() -> Iterator[Fault]:
    text, sig = json.loads(GOOD)["payload"], json.loads(GOOD)["signatures"][0]["sig"]
    bare = sig.rstrip("=")
    stray = bare[:-1] + chr(ord(bare[-1]) + 1) + "=="
    assert base64.b64decode(stray) == base64.b64decode(sig)
    yield "payload-base64-with-line-break", envelope(put("payload", value=text[:76] + "\n" + text[76:]))
    yield "payload-base64-with-more-padding", envelope(put("payload", value=text + "===="))
    yield "signature-base64-stray-bits", envelope(put("signatures", 0, "sig", value=stray))
    yield "signature-base64-unpadded", envelope(put("signatures", 0, "sig", value=bare))
    yield "signature-in-hexadecimal-with-colon", envelope(put("signatures", 0, "sig", value="ab:cd"))


def step_2() -> Iterator[Fault]:
    yield "a-signed-trust-file", trust().signed(STRANGER)
    yield "payload-type-of-a-trust-file", envelope(put("payloadType", value=TRUST_PAYLOAD_TYPE))
    yield ("payload-type-with-parameter", envelope(put("payloadType", value="application/vnd.in-toto+json;v=1")))


def step_3() -> Iterator[Fault]:
    cheaper = PAYLOAD.replace(b'"epsilon":1,', b'"epsilon":9,', 1)
    assert cheaper != PAYLOAD
    yield "payload-with-another-epsilon", envelope(put("payload", value=base64.b64encode(cheaper).decode()))
    yield "payload-of-another-manifest", envelope(put("payload", value=json.loads(OTHER)["payload"]))
    yield "signatures-of-another-manifest", envelope(put("signatures", value=json.loads(OTHER)["signatures"]))
    yield "signatures-swapped", envelope(_swap_signatures)
    yield "signature-bit-flipped", envelope(_flip_signature)
    yield "signed-by-the-officer-alone", signed(PAYLOAD, OFFICER)
    yield "signed-by-the-owner-alone", signed(PAYLOAD, OWNER)
    yield "signed-by-two-officers", signed(PAYLOAD, OFFICER, FUTURE)
    yield "signed-by-a-stranger", signed(PAYLOAD, STRANGER, OWNER)
    yield "one-key-under-two-ids", envelope(_officer_as_owner, signed(PAYLOAD, OFFICER))
    yield (
        "one-good-and-one-broken-signature-of-a-role",
        envelope(_break_last, signed(PAYLOAD, OFFICER, OWNER, FUTURE)),
    )


def _swap_signatures(fields: dict[str, Any]) -> None:
    first, second = fields["signatures"]
    first["sig"], second["sig"] = second["sig"], first["sig"]


def _flip_signature(fields: dict[str, Any]) -> None:
    content = bytearray(base64.b64decode(fields["signatures"][0]["sig"]))
    content[10] ^= 1
    fields["signatures"][0]["sig"] = base64.b64encode(content).decode()


def _officer_as_owner(fields: dict[str, Any]) -> None:
    copy = deepcopy(fields["signatures"][0])
    copy["keyid"] = OWNER.key_id
    fields["signatures"].append(copy)


def _break_last(fields: dict[str, Any]) -> None:
    fields["signatures"][-1]["sig"] = fields["signatures"][0]["sig"]


def step_4() -> Iterator[Fault]:
    yield "revoked-key", signed(PAYLOAD, REVOKED, OWNER)
    yield "expired-key", signed(PAYLOAD, EXPIRED, OWNER)
    yield "key-not-yet-valid", signed(PAYLOAD, FUTURE, OWNER)


def step_5() -> Iterator[Fault]:
    yield "statement-not-json", signed(b"epsilon is 1", OFFICER, OWNER)
    yield "statement-an-array", signed(b"[]", OFFICER, OWNER)
    yield "statement-epsilon-twice", raw(b'"epsilon":1,', b'"epsilon":9,"epsilon":1,')
    yield "statement-epsilon-nan", raw(b'"epsilon":1,', b'"epsilon":NaN,')
    yield "statement-epsilon-infinite", raw(b'"epsilon":1,', b'"epsilon":1e999,')
    yield "statement-not-canonical", raw(b'"epsilon":1,', b'"epsilon":1.0,')
    yield "statement-with-spaces", raw(b'"epsilon":1,', b'"epsilon": 1,')
    yield "statement-half-surrogate", raw(b'"epsilon":1,', b'"epsilon":"\\ud800",')
    yield "statement-unknown-field", payload(put("note", value="hello"))
    yield "statement-without-predicate", payload(lambda fields: fields.pop("predicate"))
    yield "statement-predicate-a-text", payload(put("predicate", value="trust me"))


def step_6() -> Iterator[Fault]:
    yield "budget-version-1", payload(put("predicateType", value="urn:privfair:budget:v1"))
    yield "another-predicate", payload(put("predicateType", value="https://slsa.dev/provenance/v1"))
    yield "statement-version-0.1", payload(put("_type", value="https://in-toto.io/Statement/v0.1"))


def step_7() -> Iterator[Fault]:
    yield "unknown-field-in-document", predicate("note", value="hello")
    yield "missing-nonce", payload(lambda fields: fields["predicate"].pop("nonce"))
    yield (
        "snake-case-field",
        payload(lambda f: f["predicate"].update(config_digest=f["predicate"].pop("configDigest"))),
    )
    yield "epsilon-a-text", predicate("guarantee", "epsilon", value="1")
    yield "epsilon-negative", predicate("guarantee", "epsilon", value=-1)
    yield "rounds-with-fraction", predicate("rounds", value=1172.5)
    yield "rounds-a-truth-value", predicate("rounds", value=True)
    yield "parameter-a-table", predicate("parameters", "rounds", value={"least": 1})
    yield "parameters-left-out", payload(lambda f: f["predicate"].pop("parameters"))
    yield "enforced-a-number", predicate("sampling", 0, "assumptionEnforced", value=1)
    yield "unknown-kind-of-guarantee", predicate("guarantee", "kind", value="mostly-private")
    yield "unit-contradicts-adjacency", predicate("guarantee", "unit", value="record")
    yield "control-character-in-text", predicate("justification", value="fine\u001b[2J")
    yield "direction-override-in-text", predicate("justification", value="fine \u202e1 = nolispe")
    yield "time-without-zone", predicate("validity", "notAfter", value="2031-01-01T00:00:00")
    yield "window-ends-before-it-starts", predicate("validity", "notAfter", value="2030-01-01T00:00:00Z")
    yield "nonce-too-short", predicate("nonce", value="ef" * 31)
    yield "two-silos-of-one-name", predicate("data", "silos", 1, "name", value="north hospital")
    yield "ledgers-left-out", payload(lambda f: f["predicate"].pop("ledgers"))
    yield "ledger-id-too-short", predicate("ledgers", 0, "ledger", value="0a" * 31)
    yield "ledger-for-one-of-two-silos", predicate("ledgers", 0, "silo", value="north hospital")
    yield "two-ledgers-for-all-silos", payload(lambda f: f["predicate"]["ledgers"].append(f["predicate"]["ledgers"][0]))
    yield "ledger-for-a-silo-that-is-not-there", predicate("ledgers", 0, "silo", value="east hospital")
    yield "data-set-without-custodian", payload(lambda f: f["predicate"]["dataset"].pop("custodian"))
    yield "code-without-digest", predicate("code", 0, "sha256", value=None)
    yield "code-named-twice", payload(lambda f: f["predicate"]["code"].append(f["predicate"]["code"][0]))
    yield "two-releases-of-one-name", predicate("releases", 1, "name", value="h_theta")
    yield from contradictions()


def contradictions() -> Iterator[Fault]:
    yield "less-noise-than-its-multiplier", predicate("releases", 0, "sigma", value=samples.Z * 0.2)
    yield "other-noise-than-priced", payload(_halve_noise)
    yield "more-rounds-than-priced", payload(_more_rounds)
    yield "price-above-promise", predicate("accounting", "interval", "upper", value=1.5)
    yield "price-unbounded", predicate("accounting", "interval", "upper", value=None)
    yield "price-an-empty-interval", predicate("accounting", "interval", "lower", value=2)
    yield ("accountants-disagree", predicate("accounting", "secondOpinion", "interval", value={"lower": 3, "upper": 4}))
    yield "no-second-opinion", predicate("accounting", "secondOpinion", value=None)
    yield "one-accountant-asked-twice", predicate("accounting", "secondOpinion", "accountant", value="first")
    yield "price-at-the-whole-delta", predicate("accounting", "delta", value=1e-5)
    yield "price-without-delta", predicate("accounting", "delta", value=None)
    yield "discreteness-understated", predicate("accounting", "discreteNoise", "epsilon", value=1e-30)
    yield "price-leaves-no-room-for-discreteness", predicate("accounting", "interval", "upper", value=1)
    yield "silo-smaller-than-priced", predicate("data", "silos", 0, "size", value=7000)
    yield "sampling-not-declared", predicate("sampling", value=[])
    yield "batch-declared-secret", predicate("sampling", 0, "scheme", "batch", value="secret")
    yield "unknown-release-in-event", predicate("accounting", "event", value={"kind": "magic"})
    yield "clear-release-not-in-event", predicate("releases", 2, "dependsOnUnit", value=True)
    yield "research-noise-not-admitted", predicate("releases", 0, "sampler", value="seeded-research-only")


def _halve_noise(fields: dict[str, Any]) -> None:
    release = fields["predicate"]["releases"][0]
    release["noiseMultiplier"] /= 2
    release["sigma"] /= 2


def _more_rounds(fields: dict[str, Any]) -> None:
    fields["predicate"]["rounds"] = 2000
    fields["predicate"]["releases"][0]["publications"] = 2000


def step_8() -> Iterator[Fault]:
    yield "subject-another-plan", payload(put("subject", 0, "digest", "sha256", value="00" * 32))
    yield "subject-other-data", payload(put("subject", 1, "digest", "sha256", value="00" * 32))
    yield "subjects-swapped", payload(lambda fields: fields["subject"].reverse())
    yield "subject-missing", payload(lambda fields: fields["subject"].pop())
    yield "subject-additional", payload(lambda fields: fields["subject"].append(fields["subject"][0]))


def step_9() -> Iterator[Fault]:
    day = timedelta(days=1)
    past = Validity(issued_at=NOW - 9 * day, not_before=NOW - 9 * day, not_after=NOW - day)
    ends_now = Validity(issued_at=NOW - 9 * day, not_before=NOW - 9 * day, not_after=NOW)
    future = Validity(issued_at=NOW - day, not_before=NOW + day, not_after=NOW + 9 * day)
    postdated = Validity(issued_at=NOW + day, not_before=NOW - day, not_after=NOW + 9 * day)
    for name, window in (
        ("expired", past),
        ("expires-this-second", ends_now),
        ("not-yet-valid", future),
        ("issued-in-the-future", postdated),
    ):
        yield name, signed(statement_bytes(document(validity=window)), OFFICER, OWNER)


def step_10() -> Iterator[Fault]:
    assert PLAN_DIGEST != "11" * 32
    yield "another-plan", signed(statement_bytes(document(config_digest="11" * 32)), OFFICER, OWNER)
    yield "code-not-signed", signed(statement_bytes(document(code=())), OFFICER, OWNER)
    exchanged = (OwnCode(name="net.py", sha256="0d" * 32),)
    yield "code-exchanged-after-signing", signed(statement_bytes(document(code=exchanged)), OFFICER, OWNER)
    more = (*document().code, OwnCode(name="loss.py", sha256="0e" * 32))
    yield "signed-code-left-out", signed(statement_bytes(document(code=more)), OFFICER, OWNER)


def step_11() -> Iterator[Fault]:
    other_silo = DataBinding.of(DATA.schema_digest, [("east hospital", 7500), ("south hospital", 7600)])
    other_size = DataBinding.of(DATA.schema_digest, [("north hospital", 7501), ("south hospital", 7600)])
    other_schema = DataBinding.of("77" * 32, [("north hospital", 7500), ("south hospital", 7600)])
    fewer = DataBinding.of(DATA.schema_digest, [("north hospital", 7500)])
    for name, data in (
        ("another-silo", other_silo),
        ("another-size", other_size),
        ("another-schema", other_schema),
        ("one-silo-missing", fewer),
    ):
        yield name, signed(statement_bytes(document(data=data)), OFFICER, OWNER)


STEPS = (step_1, step_2, step_3, step_4, step_5, step_6, step_7, step_8, step_9, step_10, step_11)


def main() -> None:
    for old in HERE.glob("*.json"):
        old.unlink()
    (HERE / "good.json").write_bytes(GOOD)
    (HERE / "trust.json").write_bytes(trust().to_bytes())
    for number, faults in enumerate(STEPS, start=1):
        for name, content in faults():
            path = HERE / f"{number:02}-{name}.json"
            assert not path.exists()
            path.write_bytes(content)


if __name__ == "__main__":
    main()

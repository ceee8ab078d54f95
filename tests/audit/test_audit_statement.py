"""Signed audits: what is signed is read back; everything else is refused."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from audit.report.exports import junit_xml
from audit.report.results import AuditReport, Conclusion, schema
from audit.report.statement import AuditPredicate, AuditRefused, report_digest, sign_audit, verify_audit
from calibrate.errors import ManifestRefused, Refused
from calibrate.manifest.document import PAYLOAD_TYPE
from calibrate.manifest.keys import Role, SigningKey, generate, sign
from calibrate.manifest.strict_json import canonical
from calibrate.manifest.trust import Revocation, TrustedKey, TrustFile
from calibrate.manifest.verify import authenticate

AT = datetime(2030, 5, 1, 12, 0, tzinfo=UTC)
SUBJECTS = {"model": "ab" * 32, "manifest": "cd" * 32}
JSON: dict[str, Any] = {
    "verdict": "violated",
    "why": "the observer's guesses show epsilon of at least 1.270\nwith 95% confidence",
    "epsilon_lower": 1.27,
    "confidence": 0.95,
    "promised": {"epsilon": 1.0, "delta": 1e-5, "source": "claimed by steffle.theorem-3.3"},
    "attacks": [
        {
            "name": "attribute coins against the transcript",
            "power": 0.9,
            "evidence": "12 reruns",
            "bound": {
                "epsilon": 1.27,
                "delta": 1e-5,
                "confidence": 0.95,
                "method": "one-run",
                "family": "epsilon-delta",
                "mu": None,
                "selection": "fixed beforehand",
                "comparisons": 1,
                "evidence": {"coins": 100, "guesses": 100, "correct": 80},
            },
        }
    ],
    "checks": [
        {"layer": "conformance", "name": "plan", "outcome": "passed", "finding": "the signed one"},
        {"layer": "L1", "name": "variance", "outcome": "failed", "finding": "0.7 of <sigma>\x01"},
        {"layer": "conformance", "name": "ledger", "outcome": "not possible", "finding": "none given"},
    ],
}
REPORT = AuditReport.model_validate_json(json.dumps(JSON))


def _trusting(key: SigningKey, role: Role = Role.AUDITOR) -> TrustFile:
    return TrustFile(keys=(TrustedKey.of(key.public, role, AT - timedelta(days=1)),))


@pytest.fixture(scope="module")
def key() -> SigningKey:
    return generate()


@pytest.fixture(scope="module")
def envelope(key: SigningKey) -> bytes:
    return sign_audit(AuditPredicate.of(REPORT, AT), SUBJECTS, key)


def test_what_was_signed_is_read_back(key: SigningKey, envelope: bytes) -> None:
    found = verify_audit(envelope, _trusting(key), SUBJECTS, AT)
    assert found.predicate.verdict == "violated"
    assert found.predicate.epsilon_lower == 1.27
    assert found.predicate.alpha == pytest.approx(0.05)
    assert "attribute coins against the transcript (one-run)" in found.predicate.methods
    assert found.predicate.report_digest == report_digest(json.loads(json.dumps(REPORT.to_json(), indent=4)))
    assert found.subjects == SUBJECTS
    assert found.auditor.key_id == key.key_id


def test_the_payload_is_an_in_toto_statement(envelope: bytes) -> None:
    statement = json.loads(base64.b64decode(json.loads(envelope)["payload"]))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == "urn:privfair:audit:v1"
    assert {one["name"]: one["digest"]["sha256"] for one in statement["subject"]} == SUBJECTS


def test_every_changed_byte_of_the_payload_is_refused(key: SigningKey, envelope: bytes) -> None:
    fields = json.loads(envelope)
    payload = bytearray(base64.b64decode(fields["payload"]))
    for place in range(0, len(payload), 37):
        changed = bytearray(payload)
        changed[place] ^= 1
        spoiled = {**fields, "payload": base64.b64encode(bytes(changed)).decode()}
        with pytest.raises(AuditRefused):
            verify_audit(canonical(spoiled), _trusting(key), SUBJECTS, AT)


def test_another_model_is_refused(key: SigningKey, envelope: bytes) -> None:
    with pytest.raises(AuditRefused, match="another model"):
        verify_audit(envelope, _trusting(key), {**SUBJECTS, "model": "ef" * 32}, AT)


def test_only_a_live_auditor_counts(key: SigningKey, envelope: bytes) -> None:
    with pytest.raises(AuditRefused, match="no auditor"):
        verify_audit(envelope, _trusting(generate()), SUBJECTS, AT)
    with pytest.raises(AuditRefused, match="no auditor"):
        verify_audit(envelope, _trusting(key, Role.PRIVACY_OFFICER), SUBJECTS, AT)
    revoked = _trusting(key).with_revoked(key.key_id, Revocation(at=AT, why="lost"))
    with pytest.raises(AuditRefused, match="revoked"):
        verify_audit(envelope, revoked, SUBJECTS, AT)
    with pytest.raises(AuditRefused, match="not valid since"):
        verify_audit(envelope, _trusting(key), SUBJECTS, AT + timedelta(days=4000))


def test_an_audit_from_the_future_is_refused(key: SigningKey) -> None:
    late = sign_audit(AuditPredicate.of(REPORT, AT + timedelta(hours=2)), SUBJECTS, key)
    with pytest.raises(AuditRefused, match="future"):
        verify_audit(late, _trusting(key), SUBJECTS, AT)


def test_other_signed_things_are_no_audit(key: SigningKey) -> None:
    other = {"_type": "https://in-toto.io/Statement/v1", "subject": [], "predicateType": "x", "predicate": {}}
    for payload in (canonical(other), b"{}", canonical({**other, "predicateType": "urn:privfair:audit:v1"})):
        with pytest.raises(AuditRefused):
            verify_audit(sign(PAYLOAD_TYPE, payload, key), _trusting(key), SUBJECTS, AT)
    with pytest.raises(AuditRefused):
        verify_audit(b"not json", _trusting(key), SUBJECTS, AT)


def test_an_audit_needs_a_model(key: SigningKey) -> None:
    with pytest.raises(AuditRefused, match="model"):
        sign_audit(AuditPredicate.of(REPORT, AT), {"manifest": "cd" * 32}, key)


def test_auditors_cannot_let_a_budget_pass(key: SigningKey, envelope: bytes) -> None:
    """A trust file with auditors only must not mean that a budget needs nobody's signature."""
    assert _trusting(key).roles == ()
    with pytest.raises(ManifestRefused, match="auditors only"):
        authenticate(envelope, _trusting(key), AT)
    assert issubclass(AuditRefused, Refused)


def test_an_auditor_beside_an_officer_is_not_asked_to_sign_budgets(key: SigningKey) -> None:
    both = _trusting(generate(), Role.PRIVACY_OFFICER).with_key(TrustedKey.of(key.public, Role.AUDITOR, AT))
    assert both.roles == (Role.PRIVACY_OFFICER,)


def test_the_published_schema_is_the_one_in_the_code() -> None:
    published = Path(__file__).parents[2] / "docs" / "audit-report.schema.json"
    assert json.loads(published.read_text("utf-8")) == schema(), "write it again: python -m audit.report.results"


def test_the_schema_accepts_an_audit_and_refuses_others() -> None:
    validator = jsonschema.Draft202012Validator(schema())
    validator.validate(JSON)
    validator.validate(REPORT.to_json())
    for key_, wrong in (("verdict", "passed"), ("confidence", 1.5), ("checks", [{"name": "x"}]), ("epsilon_lower", -1)):
        with pytest.raises(jsonschema.ValidationError):
            validator.validate({**JSON, key_: wrong})
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({name: value for name, value in JSON.items() if name != "promised"})


def test_junit_counts_failures_and_what_could_not_be_checked() -> None:
    suite = ElementTree.fromstring(junit_xml(REPORT)).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "3", "1")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["variance", "attribute coins against the transcript", "violated"]
    assert "\x01" not in junit_xml(REPORT).decode()


def test_junit_of_a_consistent_audit_has_no_failure() -> None:
    changes = {"verdict": Conclusion.CONSISTENT, "checks": REPORT.checks[:1], "attacks": ()}
    fine = REPORT.model_copy(update=changes)
    suite = ElementTree.fromstring(junit_xml(fine)).find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("skipped")) == ("0", "0")

"""`privfair audit` end to end: schema, JUnit, signed statements and their refusal, a model with two files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from audit.report.results import AuditReport, schema
from tests.audit.attribute_cases import population
from tests.end_to_end.command_line import privfair
from tests.privfair.small_runs import FEDSGD, Desk


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """A finished run without a promise, and an auditor's key."""
    desk = Desk.at(tmp_path_factory.mktemp("audited"), FEDSGD.format(rounds=3, more=""))
    desk.train(desk.budget())
    key, trust = desk.folder / "auditor.pem", desk.folder / "auditors.json"
    for words in (
        ("keys", "generate", "--role", "auditor", "--out", key),
        ("keys", "trust", "--key", key, "--role", "auditor", "--out", trust),
    ):
        outcome = privfair(*words)
        assert outcome.code == 0, outcome.err
    outcome = privfair(
        *("audit", desk.folder / "run", "--plan", desk.plan, "--trust", desk.trust, "--reruns", 0, "--json"),
        *("--out", desk.folder / "audit.json", "--junit", desk.folder / "audit.xml"),
        *("--sign", desk.folder / "auditor.pem", "--statement", desk.folder / "audit.signed.json"),
    )
    assert outcome.code == 0, outcome.err
    assert outcome.json() == json.loads((desk.folder / "audit.json").read_text("utf-8"))
    return desk


def _verify(desk: Desk, *words: object, statement: Path | None = None, trust: str = "auditors.json"):  # type: ignore[no-untyped-def]
    signed = statement or desk.folder / "audit.signed.json"
    return privfair("verify", signed, "--trust", desk.folder / trust, *words)


def test_a_real_audit_follows_the_schema(desk: Desk) -> None:
    report = json.loads((desk.folder / "audit.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema()).validate(report)
    AuditReport.model_validate_json(json.dumps(report))
    section = report["attribute_inference"]
    assert section["attribute"] == "sex"
    assert section["finding"] == "no leakage found"
    assert {one["name"] for one in section["attacks"]} == {"learned from outputs", "white box"}
    assert set(report["subjects"]) == {"model", "manifest", "transcript"}


def test_junit_has_a_case_for_every_check(desk: Desk) -> None:
    report = json.loads((desk.folder / "audit.json").read_text("utf-8"))
    suite = ElementTree.parse(desk.folder / "audit.xml").getroot().find("testsuite")
    assert suite is not None
    names = {case.get("name") for case in suite}
    assert {check["name"] for check in report["checks"]} <= names
    assert suite.get("failures") == "0"


def test_the_statement_verifies_for_its_run_and_report(desk: Desk) -> None:
    outcome = _verify(desk, "--run", desk.folder / "run", "--report", desk.folder / "audit.json", "--json")
    assert outcome.code == 0, outcome.err
    found = outcome.json()
    assert found["verified"] is True
    assert found["predicate"]["verdict"] == "inconclusive"
    assert _verify(desk, "--run", desk.folder / "run" / "model.pt").code == 0
    assert _verify(desk, "--run", desk.folder / "run", "--require", "consistent").code == 1
    assert _verify(desk, "--run", desk.folder / "run", "--require", "not-violated").code == 0


def test_what_cannot_be_believed_is_refused_with_exit_3(desk: Desk, tmp_path: Path) -> None:
    run = ("--run", desk.folder / "run")
    content = bytearray((desk.folder / "audit.signed.json").read_bytes())
    content[len(content) // 2] ^= 1
    tampered = tmp_path / "tampered.json"
    tampered.write_bytes(bytes(content))
    assert _verify(desk, *run, statement=tampered).code == 3
    other = tmp_path / "model.pt"
    other.write_bytes(b"another model")
    assert _verify(desk, "--run", other).code == 3
    report = tmp_path / "audit.json"
    changed = json.loads((desk.folder / "audit.json").read_text("utf-8")) | {"verdict": "consistent"}
    report.write_text(json.dumps(changed), encoding="utf-8")
    assert _verify(desk, *run, "--report", report).code == 3
    assert _verify(desk, *run, trust="trust.json").code == 3  # lists an officer, no auditor


def test_usage_is_explained(desk: Desk) -> None:
    assert privfair("audit", desk.folder / "run", "--statement", desk.folder / "signed.json").code == 2
    assert _verify(desk).code == 2
    recomputed = _verify(desk, "--recompute")
    assert (recomputed.code, "holds is: audit" in recomputed.err) == (2, True)
    helped = privfair("audit", "--help")
    assert helped.code == 0
    assert "privfair audit sensitivity" in helped.out


def test_an_auditor_cannot_sign_budgets(desk: Desk) -> None:
    outcome = privfair("manifest", "verify", desk.folder / "budget.json", "--trust", desk.folder / "auditors.json")
    assert outcome.code == 3
    assert "auditors only" in outcome.err


def test_a_model_with_two_files_and_a_sensitive_column(tmp_path: Path) -> None:
    parts = {}
    for name, seed in (("in", 1), ("out", 2)):
        found = population(np.random.default_rng(seed), 500, 2, False)
        found.features[:, 4] *= 3
        parts[name] = found
        rows = ["a,b,c,d,sex,label"]
        rows += [
            ",".join([*(repr(float(v)) for v in x), str(y)]) for x, y in zip(found.features, found.labels, strict=True)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    model = tmp_path / "model.pkl"
    model.write_bytes(pickle.dumps(KNeighborsClassifier(1).fit(parts["in"].features, parts["in"].labels)))
    outcome = privfair(
        *("audit", "--model", model, "--trust-pickle", "--label", "label", "--shadow-models", 0),
        *("--members", tmp_path / "in.csv", "--nonmembers", tmp_path / "out.csv"),
        *("--sensitive", "sex", "--json", "--junit", tmp_path / "audit.xml"),
    )
    assert outcome.code in (0, 1), outcome.err
    report = outcome.json()
    jsonschema.Draft202012Validator(schema()).validate(report)
    assert report["attribute_inference"]["finding"] == "leakage"
    assert report["membership"]["attacks"]
    assert set(report["subjects"]) == {"model"}


def test_reports_with_and_without_an_audit_and_of_a_model(desk: Desk, tmp_path: Path) -> None:
    run, audit, page = desk.folder / "run", desk.folder / "audit.json", tmp_path / "report.html"
    assert privfair("report", run, "--out", page).code == 0
    assert "Not audited" in page.read_text("utf-8")
    assert privfair("report", run, "--audit", audit, "--out", page).code == 0
    text = page.read_text("utf-8")
    assert '<div class="word">inconclusive</div>' in text
    assert "No privacy was guaranteed" in text
    assert "Attribute inference: sex" in text
    assert json.loads(audit.read_text("utf-8"))["subjects"]["model"] in text
    assert privfair("report", "--audit", audit, "--out", page).code == 0
    assert "privfair report: model" in page.read_text("utf-8")


def test_a_report_of_nothing_or_of_something_else_is_refused(desk: Desk, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert privfair("report", "--out", page).code == 2
    outcome = privfair("report", desk.folder / "run", "--audit", desk.trust, "--out", page)
    assert outcome.code == 2
    assert "is not an audit" in outcome.err
    assert not page.exists()

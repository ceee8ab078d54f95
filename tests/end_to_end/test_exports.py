"""What others read of a run: model card, entry of the deployments registry, Test Result; and the published schemas."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from audit.report.exports import CardFacts, model_card, result_statement
from audit.report.page import ReportContent
from audit.report.results import AuditReport, Check, CheckOutcome, Conclusion, Layer
from audit.report.schemas import published_schemas
from calibrate.errors import InvalidInput
from calibrate.manifest.keys import open_envelope
from tests.end_to_end.command_line import Outcome, privfair
from tests.privfair.small_runs import FEDSGD, GAUSSIAN, Desk

ROOT = Path(__file__).parents[2]
SCHEMA = yaml.safe_load((ROOT / "tests" / "audit" / "opendp_registry_schema.yaml").read_text("utf-8"))
REGISTRY = 'region = "Norway"\nauthors = ["A. Person"]\ndate = 2026-01-31\n'


def report(desk: Desk, wanted: str, meta: str, *words: object) -> Outcome:
    """A card or an entry of the desk's run, with what only its publisher knows."""
    file = desk.folder / f"{wanted}.toml"
    file.write_text(meta, encoding="utf-8")
    return privfair("report", desk.folder / "run", "--format", wanted, "--meta", file, *words)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    desk = Desk.at(tmp_path_factory.mktemp("exports"), GAUSSIAN.format(rate=0.2, rounds=3, more=""))
    desk.train(desk.budget())
    return desk


def front_matter(card: str) -> dict[str, object]:
    _, matter, _ = card.split("---\n", 2)
    found: dict[str, object] = yaml.safe_load(matter)
    return found


def test_a_card_says_first_what_is_promised_and_what_is_not(desk: Desk) -> None:
    outcome = report(desk, "card", 'license = "apache-2.0"\nname = "Loans"', "--trust", desk.trust)
    assert outcome.code == 0, outcome.err
    matter = front_matter(outcome.out)
    assert matter["license"] == "apache-2.0"
    assert matter["library_name"] == "privfair"
    assert "differential-privacy" in matter["tags"]  # type: ignore[operator]
    assert outcome.out.index("epsilon 8 at delta 1e-05 for one record") < outcome.out.index("## What is not protected")
    assert "Signatures of the budget were checked" in outcome.out
    assert "accuracy" not in outcome.out, "numbers that are not private are told only where they are asked for"


def test_numbers_on_a_card_are_called_not_private(desk: Desk, tmp_path: Path) -> None:
    out = tmp_path / "card.md"
    assert report(desk, "card", "with-metrics = true", "--out", out).code == 0
    card = out.read_text("utf-8")
    ((result,),) = ([one["results"] for one in front_matter(card)["model-index"]],)  # type: ignore[attr-defined]
    assert {metric["name"] for metric in result[0]["metrics"]} == {"loss (not private)", "accuracy (not private)"}
    assert "These numbers are **not private**" in card
    assert "SIGNATURES NOT CHECKED" in card


def test_an_entry_is_what_the_registry_s_own_schema_asks_for(desk: Desk) -> None:
    more = 'curators = ["North Hospital"]\nsector = "Healthcare"\nname = "Loan model"\n'
    outcome = report(desk, "registry", more + REGISTRY, "--trust", desk.trust)
    assert outcome.code == 0, outcome.err
    entry = yaml.safe_load(outcome.out)
    jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker()).validate(entry)
    assert entry["url_slug"] == "loan-model-2026"
    assert entry["deployment"]["basic"]["publication_date"] == "2026-01-31"
    assert entry["deployment"]["privacy_loss"]["privacy_parameters"] == {"epsilon": 8.0, "delta": 1e-5}
    assert entry["deployment"]["deployment_model"]["model_name"] == "Federated"
    assert "|\n" in outcome.out, "lists are literal blocks, as the registry's own checks want them"


def test_what_only_the_publisher_knows_is_asked_for(desk: Desk) -> None:
    for meta, named in ((REGISTRY, "curators"), ("", "region"), ("regions = 3", "did you mean region"), ("=", "TOML")):
        outcome = report(desk, "registry", meta)
        assert outcome.code == 2
        assert named in outcome.err
    assert privfair("report", desk.folder / "run").code == 2
    assert privfair("report", desk.folder / "run", "--decide", "threshold=0.5", "--format", "card").code == 2


def test_a_run_without_a_promise_has_a_card_that_says_so_and_no_entry(tmp_path: Path) -> None:
    desk = Desk.at(tmp_path, FEDSGD.format(rounds=1, more=""))
    desk.train(desk.budget())
    assert "NO PRIVACY PROMISED" in privfair("report", desk.folder / "run", "--format", "card").out
    refused = report(desk, "registry", 'curators = ["x"]\n' + REGISTRY)
    assert refused.code == 3
    assert "promises no privacy" in refused.err


def test_a_card_is_of_a_run() -> None:
    with pytest.raises(InvalidInput, match="is needed for a card"):
        model_card(ReportContent(None, None, (), ()), CardFacts("x"))


CHECKS = (
    Check(layer=Layer.PROBE, name="bounds", outcome=CheckOutcome.PASSED, finding="they hold"),
    Check(layer=Layer.NOISE, name="noise", outcome=CheckOutcome.NOT_POSSIBLE, finding="the data hide it"),
)


@pytest.mark.parametrize(
    ("verdict", "outcome", "result"),
    [
        (Conclusion.CONSISTENT, CheckOutcome.PASSED, "PASSED"),
        (Conclusion.CONSISTENT, CheckOutcome.NOT_POSSIBLE, "WARNED"),
        (Conclusion.INCONCLUSIVE, CheckOutcome.PASSED, "WARNED"),
        (Conclusion.VIOLATED, CheckOutcome.FAILED, "FAILED"),
        (Conclusion.LEAKS, CheckOutcome.PASSED, "FAILED"),
    ],
)
def test_a_test_result_never_says_more_than_the_verdict(
    verdict: Conclusion, outcome: CheckOutcome, result: str
) -> None:
    checks = (CHECKS[0], CHECKS[1].model_copy(update={"outcome": outcome}))
    report = AuditReport(
        verdict=verdict, why="so it is", epsilon_lower=None, confidence=0.95, promised=None, checks=checks, attacks=()
    )
    statement = result_statement(report, {"model": "ab" * 32})
    assert statement["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    predicate = statement["predicate"]
    assert isinstance(predicate, dict)
    assert predicate["result"] == result
    listed = {key: predicate[key] for key in ("passedTests", "warnedTests", "failedTests")}
    assert sorted(name for names in listed.values() for name in names) == ["L0: bounds", "L1: noise"]  # type: ignore[union-attr,misc]


@pytest.mark.slow
def test_a_test_result_is_signed_beside_the_statement(desk: Desk, tmp_path: Path) -> None:
    key, out = tmp_path / "auditor.pem", tmp_path / "result.json"
    assert privfair("keys", "generate", "--role", "auditor", "--out", key).code == 0
    quick = ("audit", desk.folder / "run", "--plan", desk.plan, "--reruns", "0", "--no-attribute-inference")
    assert privfair(*quick, "--test-result", out).code == 2, "an unsigned one says nothing"
    outcome = privfair(*quick, "--sign", key, "--test-result", out)
    assert outcome.code == 0, outcome.err
    payload = json.loads(open_envelope(out.read_bytes()).payload)
    assert payload["predicate"]["result"] in ("PASSED", "WARNED")
    assert {one["name"] for one in payload["subject"]} >= {"model", "manifest"}


@pytest.mark.parametrize("name", sorted(published_schemas()))
def test_the_published_schemas_are_those_in_the_code(name: str) -> None:
    published = ROOT / "docs" / "reference" / name
    again = "write them again: python -m audit.report.schemas docs/reference"
    assert json.loads(published.read_text("utf-8")) == published_schemas()[name], again


def test_the_published_schema_accepts_a_budget_and_refuses_others(desk: Desk) -> None:
    payload = json.loads(open_envelope((desk.folder / "run" / "budget.json").read_bytes()).payload)
    validator = jsonschema.Draft202012Validator(published_schemas()["budget.schema.json"])
    validator.validate(payload["predicate"])
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(replace_rounds(payload["predicate"]))


def replace_rounds(predicate: dict[str, object]) -> dict[str, object]:
    return predicate | {"rounds": "many"}

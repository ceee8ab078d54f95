"""What others understand of a run: model card, entry for OpenDP's deployments registry, Test Result, JUnit XML.

Each says first what is promised, and what is not protected; none says more than the manifest and the audit do. In JUnit
XML, which every CI system reads, a failed check or a refuted promise is a failed test.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from xml.etree import ElementTree as Xml

import yaml

from audit.report.page import ReportContent, empty_model
from audit.report.results import (
    Attack,
    AttributeFinding,
    AttributeInference,
    AuditReport,
    Check,
    CheckOutcome,
    Conclusion,
    MembershipAttackResult,
    Promise,
)
from audit.report.statement import report_digest
from calibrate.errors import InvalidInput, Refused
from calibrate.manifest.document import STATEMENT_TYPE, BudgetDocument
from calibrate.manifest.mechanism import (
    AsPrintedGuarantee,
    GaussianNoise,
    LaplaceNoise,
    NoiseSource,
    NoPrivacyPromised,
    PrivateGuarantee,
    RandomizedCategory,
)
from calibrate.manifest.show import describe_unit
from calibrate.manifest.strict_json import Json
from calibrate.manifest.verify import UnverifiedManifest
from calibrate.privacy_unit import Protected
from privfair.run.public import promise_of

TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
_NAMES = {"loss", "accuracy"}
_EXACT = "The noise is exact and discrete, from an operating-system-keyed stream (privfair): no floating-point attack."


@dataclass(frozen=True)
class CardFacts:
    """What a card says next to the run: what only its publisher knows."""

    name: str
    license: str | None = None
    """An identifier that hubs know, such as apache-2.0."""
    metrics: bool = False
    """Whether the numbers measured on held-out records, which are not private, are told."""


_EMPTY = "**EMPTY MODEL**: it answers (nearly) all held-out records alike. Small gaps of it are not fairness."


def model_card(content: ReportContent, facts: CardFacts) -> str:
    """The card as Markdown, with the front matter that model hubs read."""
    manifest = content.manifest
    if manifest is None:
        raise InvalidInput("RUN", None, "is needed for a card", "name a run folder")
    document = manifest.document
    matter: dict[str, Json] = {
        "library_name": "privfair",
        "tags": ["differential-privacy", "fairness", "federated-learning", document.algorithm],
        "pipeline_tag": "tabular-classification",
    }
    if facts.license is not None:
        matter["license"] = facts.license
    measured = _measured(content) if facts.metrics else {}
    if measured:
        matter["model-index"] = [{"name": facts.name, "results": [_result(document, measured)]}]
    checked = not isinstance(manifest, UnverifiedManifest)
    lines = [
        f"# {facts.name}",
        "",
        f"**{promise_of(document).text}**",
        "",
        *(() if empty_model(content) is None else (_EMPTY, "")),
        "Signatures of the budget were checked." if checked else "**SIGNATURES NOT CHECKED**: nobody vouches for this.",
        "",
        "## What is protected",
        f"- Unit: {describe_unit(document.guarantee.privacy_unit())}",
        f"- Against: {document.guarantee.scope}",
        *(f"- {text}" for text in document.guarantee.covered),
        "",
        "## What is not protected",
        *(f"- {text}" for text in promise_of(document).not_protected),
        "",
        "## What must hold",
        *(f"- {text}" for text in document.accounting.assumptions),
        "",
        "## How it was trained",
        f"- Algorithm: {document.algorithm}, {document.rounds} signed rounds",
        *(f"- {text}" for text in _mechanisms(document)),
        f"- Why: {document.justification}",
        "",
        "## Audit",
        *_audit_lines(content.audit),
    ]
    if measured:
        lines += ["", "## Measured on held-out records", "These numbers are **not private**.", ""]
        lines += [f"- {name} (not private): {value:.4f}" for name, value in measured.items()]
    lines += ["", "## Identity", f"- Budget: sha256 {manifest.digest}", f"- Plan: sha256 {document.config_digest}"]
    return f"---\n{as_yaml(matter)}---\n" + "\n".join(lines) + "\n"


def _measured(content: ReportContent) -> dict[str, float]:
    """The last line of numbers on held-out records, if there is one."""
    if not content.metrics:
        return {}
    overall = content.metrics[-1]["overall"]
    return {name: float(value) for name, value in overall.items() if name in _NAMES and isinstance(value, int | float)}


def _result(document: BudgetDocument, measured: dict[str, float]) -> dict[str, Json]:
    name = "held-out records" if document.dataset is None else document.dataset.name
    return {
        "task": {"type": "tabular-classification"},
        "dataset": {"name": name, "type": "private"},
        "metrics": [{"type": n, "name": f"{n} (not private)", "value": round(v, 6)} for n, v in measured.items()],
    }


def _audit_lines(audit: AuditReport | None) -> list[str]:
    if audit is None:
        return ["Nobody audited this run, or the audit was not given."]
    lines = [f"**{audit.verdict.value}**: {audit.why}"]
    if audit.epsilon_lower is not None:
        lines += ["", f"Epsilon is at least {audit.epsilon_lower:.4g} with {100 * audit.confidence:g}% confidence."]
    return lines


def _mechanisms(document: BudgetDocument) -> list[str]:
    found = []
    for one in document.releases:
        match one:
            case GaussianNoise():
                text = f"Gaussian noise of deviation {one.sigma:.7g} for a norm of {one.sensitivity:g}"
            case LaplaceNoise():
                text = f"Laplace noise of scale {one.scale:.7g} for a norm of {one.sensitivity:g}"
            case RandomizedCategory():
                text = f"randomised response with epsilon {one.epsilon:.7g} among {one.categories} categories"
            case _:
                text = f"in the clear ({one.why})"
        found.append(f"{one.name}, published {one.publications} times: {text}")
    return found


@dataclass(frozen=True)
class RegistryFacts:
    """What an entry of the registry asks that no manifest knows."""

    name: str
    curators: tuple[str, ...]
    region: str
    authors: tuple[str, ...]
    published: date
    intended_use: str | None = None
    sector: str | None = None


def registry_entry(content: ReportContent, facts: RegistryFacts) -> dict[str, Json]:
    """An entry of OpenDP's deployments registry, tier 3; refused for a run that protects no one."""
    manifest = content.manifest
    if manifest is None:
        raise InvalidInput("RUN", None, "is needed for an entry", "name a run folder")
    document, guarantee = manifest.document, manifest.document.guarantee
    research = document.noise_source is NoiseSource.SEEDED_RESEARCH_ONLY
    if isinstance(guarantee, NoPrivacyPromised) or research or guarantee.epsilon is None:
        raise Refused("this run promises no privacy; the registry is of deployments that do")
    basic: dict[str, Json] = {
        "name": facts.name,
        "data_curators": list(facts.curators),
        "intended_use": facts.intended_use or document.justification,
        "data_product_type": "Machine learning model",
        "data_product_region": facts.region,
        "description": f"A model trained by {document.algorithm} under a signed budget: {promise_of(document).text}.",
        "publication_date": facts.published.isoformat(),
    }
    if facts.sector is not None:
        basic["data_product_sector"] = facts.sector
    deployment = {"basic": basic, **_privacy(document, guarantee), **_how(document, content.audit)}
    deployment["administrative"] = {
        "notes": f"Signed budget: sha256 {manifest.digest}.",
        "registry_authors": list(facts.authors),
    }
    slug = "-".join("".join(c if c.isalnum() else " " for c in facts.name.lower()).split())
    return {"url_slug": f"{slug}-{facts.published.year}", "status": "Draft", "tier": 3, "deployment": deployment}


def _privacy(document: BudgetDocument, guarantee: PrivateGuarantee | AsPrintedGuarantee) -> dict[str, Json]:
    silos = document.data.silos
    price = document.accounting.interval
    details = f"Certified to lie in [{price.lower:.6g}, {price.upper:.6g}] by {document.accounting.accountant}."
    if isinstance(guarantee, AsPrintedGuarantee):
        details += f" The paper claims {guarantee.claimed_epsilon:g} ({guarantee.claim})."
    several = len(silos) > 1
    counted = "users" if guarantee.unit is Protected.USER else "records"
    return {
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": f"Tables of one schema in {len(silos)} silo(s), with at least "
            + ", ".join(f"{silo.size} {counted} in {silo.name}" for silo in silos),
            "unprotected_quantities": _list(guarantee.not_protected),
        },
        "privacy_loss": {
            "privacy_unit": f"{guarantee.unit.value}-level",
            "privacy_unit_details": describe_unit(guarantee.privacy_unit()),
            "privacy_parameters": {"epsilon": guarantee.epsilon, "delta": guarantee.delta},
            "privacy_parameters_details": details,
        },
        "deployment_model": {
            "model_name": "Federated" if several else "Central",
            "actors": guarantee.scope,
            "release_type": "One release",
            "release_type_details": "The budget can be spent once; a ledger keeps the total of a declared data set.",
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
    }


def _how(document: BudgetDocument, audit: AuditReport | None) -> dict[str, Json]:
    tested = "It was not audited." if audit is None else f"Audit: {audit.verdict.value} ({audit.why})."
    return {
        "accounting": {
            "post_processing": "Everything after the noisy values: updates, the model, its predictions.",
            "composition": f"{document.rounds} rounds, composed as one event by {document.accounting.accountant}.",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": _list(document.accounting.assumptions),
            "mechanisms": _list((*_mechanisms(document), _EXACT)),
            "justification": f"{document.justification} {tested}",
        },
    }


def _list(sentences: tuple[str, ...]) -> str:
    return "".join(f"- {text}\n" for text in sentences)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
    """Writes text of several lines as a literal block."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def as_yaml(value: dict[str, Json]) -> str:
    """As the registry stores an entry: literal blocks, so that lists stay lists."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=4096)
    return text


def result_statement(report: AuditReport, subjects: dict[str, str]) -> dict[str, Json]:
    """The audit as an in-toto Statement with the Test Result predicate, for tools that know no other.

    A check that was not possible is a warning, and so is a verdict that could not be reached. The configuration is the
    audit's own report, by digest: our own predicate, which says how much is proved, stands next to it.
    """
    by: dict[CheckOutcome, list[Json]] = {outcome: [] for outcome in CheckOutcome}
    for check in report.checks:
        by[check.outcome].append(f"{check.layer.value}: {check.name}")
    failed = report.verdict in (Conclusion.VIOLATED, Conclusion.LEAKS)
    warned = report.verdict is Conclusion.INCONCLUSIVE or bool(by[CheckOutcome.NOT_POSSIBLE])
    configuration: dict[str, Json] = {
        "name": "privfair audit report",
        "digest": {"sha256": report_digest(report.to_json())},
    }
    about: list[Json] = [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in sorted(subjects.items())]
    return {
        "_type": STATEMENT_TYPE,
        "subject": about,
        "predicateType": TEST_RESULT,
        "predicate": {
            "result": "FAILED" if failed else "WARNED" if warned else "PASSED",
            "configuration": [configuration],
            "passedTests": by[CheckOutcome.PASSED],
            "warnedTests": by[CheckOutcome.NOT_POSSIBLE],
            "failedTests": by[CheckOutcome.FAILED],
        },
    }


_UNPRINTABLE = {number: " " for number in range(32) if number not in (9, 10, 13)}
"""Characters that XML cannot hold."""


def junit_xml(report: AuditReport) -> bytes:
    """One suite: every check, every attack, and the verdict last.

    What could not be checked is *skipped*, never passed. Attribute leakage is a failure only by the verdict: without a
    promise there is nothing it could break.
    """
    cases = [_check(check) for check in report.checks]
    cases += [_attack(attack, report.promised) for attack in report.attacks]
    if report.attribute_inference is not None:
        cases.append(_attribute(report.attribute_inference))
    if report.membership is not None:
        cases += [_membership(one) for one in report.membership.attacks]
    cases.append(_verdict(report))
    suite = Xml.Element("testsuite", name="privfair audit")
    suite.extend(cases)
    for count, tag in (("failures", "failure"), ("skipped", "skipped")):
        suite.set(count, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("tests", str(len(cases)))
    suite.set("errors", "0")
    root = Xml.Element("testsuites")
    root.append(suite)
    return bytes(Xml.tostring(root, encoding="utf-8", xml_declaration=True))


def _check(check: Check) -> Xml.Element:
    case = _case(check.layer.value, check.name, check.finding)
    if check.outcome is CheckOutcome.FAILED:
        _sub(case, "failure", check.finding)
    elif check.outcome is CheckOutcome.NOT_POSSIBLE:
        _sub(case, "skipped", check.finding)
    return case


def _attack(attack: Attack, promised: Promise | None) -> Xml.Element:
    bound = attack.bound
    found = f"epsilon is at least {bound.epsilon:.4g} with {100 * bound.confidence:g}% confidence"
    case = _case("L2", attack.name, f"{found}; {attack.evidence}; power {attack.power:.2f}")
    if promised is not None and bound.epsilon > promised.epsilon:
        _sub(case, "failure", f"{found}, and {promised.epsilon:g} is {promised.source}")
    elif attack.curve is not None and attack.curve.refuted:
        _sub(case, "failure", f"the signed noise would betray as much with p = {attack.curve.p_value:.2g}")
    return case


def _attribute(section: AttributeInference) -> Xml.Element:
    case = _case("attribute inference", section.attribute, f"{section.finding.value}: {section.why}")
    if section.finding is AttributeFinding.NOT_COMPARABLE:
        _sub(case, "skipped", section.why)
    return case


def _membership(attack: MembershipAttackResult) -> Xml.Element:
    area = attack.auc
    found = f"area {area.value:.3f} [{area.lower:.3f}, {area.upper:.3f}] under the curve"
    return _case("membership inference", attack.name.value, found)


def _verdict(report: AuditReport) -> Xml.Element:
    case = _case("verdict", report.verdict.value, report.why)
    if report.verdict is Conclusion.VIOLATED:
        _sub(case, "failure", report.why)
    elif report.verdict is Conclusion.INCONCLUSIVE:
        _sub(case, "skipped", report.why)
    return case


def _case(group: str, name: str, text: str) -> Xml.Element:
    case = Xml.Element("testcase", classname=_clean(f"privfair.audit.{group}"), name=_clean(name))
    out = Xml.SubElement(case, "system-out")
    out.text = _clean(text)
    return case


def _sub(case: Xml.Element, tag: str, message: str) -> None:
    case.insert(0, Xml.Element(tag, message=_clean(message)))


def _clean(text: str) -> str:
    return text.translate(_UNPRINTABLE)

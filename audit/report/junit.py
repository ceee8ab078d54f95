"""The audit as JUnit XML, which every CI system reads: a failed check or a refuted promise is a failed test."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

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

_UNPRINTABLE = {number: " " for number in range(32) if number not in (9, 10, 13)}
"""Characters that XML cannot hold."""


def junit_xml(report: AuditReport, name: str = "privfair audit") -> bytes:
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
    suite = Xml.Element("testsuite", name=name)
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

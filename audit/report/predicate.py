"""What a signed audit says: the conclusion, drawn from the audit's JSON and tied to it by digest."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import version
from typing import Annotated, Any, Literal

from pydantic import Field

from calibrate.manifest.fields import Instant, OpenUnit, Sha256, StrictModel, Text
from calibrate.manifest.strict_json import Json, digest

_LONGEST = 2000

NonNegative = Annotated[float, Field(ge=0)]


class PromiseOnTrial(StrictModel):
    epsilon: NonNegative
    delta: Annotated[float, Field(ge=0, lt=1)]
    source: Text


class AuditPredicate(StrictModel):
    """What the auditor says: the conclusion, what it rests on, and the digest of the whole report."""

    verdict: Literal["consistent", "violated", "inconclusive"]
    why: Text
    epsilon_lower: NonNegative | None
    """The model leaks at least this much, with probability 1 - alpha of being right."""
    alpha: OpenUnit
    promised: PromiseOnTrial | None
    methods: tuple[Text, ...]
    attribute_finding: Text | None
    audited_at: Instant
    report_digest: Sha256
    """SHA-256 of the canonical text of the audit's JSON."""
    tool: Text

    def to_json(self) -> dict[str, Json]:
        found: dict[str, Json] = self.model_dump(mode="json", by_alias=True)
        return found

    @classmethod
    def of(cls, report: Mapping[str, Any], at: datetime) -> AuditPredicate:
        """The conclusion of an audit, from its JSON."""
        promised, attribute = report["promised"], report.get("attribute_inference")
        return cls(
            verdict=report["verdict"],
            why=_one_line(report["why"]),
            epsilon_lower=report["epsilon_lower"],
            alpha=1 - report["confidence"],
            promised=None
            if promised is None
            else PromiseOnTrial(
                epsilon=promised["epsilon"], delta=promised["delta"], source=_one_line(promised["source"])
            ),
            methods=_methods(report),
            attribute_finding=None if attribute is None else _one_line(attribute["why"]),
            audited_at=at,
            report_digest=report_digest(report),
            tool=f"privfair {version('privfair')}",
        )


def report_digest(report: Mapping[str, Json]) -> str:
    """The digest that ties a statement to the JSON of its audit, however that is indented."""
    return digest(dict(report))


def _methods(report: Mapping[str, Any]) -> tuple[str, ...]:
    """Which layers were looked at, and by which attacks and bounds."""
    layers = dict.fromkeys(
        f"{check['layer']} checks" for check in report["checks"] if check["outcome"] != "not possible"
    )
    attacks = [f"{one['name']} ({one['bound']['method']})" for one in report["attacks"]]
    for section, name in (
        ("membership", "membership inference"),
        ("attribute_inference", "attribute inference"),
    ):
        if report.get(section):
            attacks += [f"{name}: {one['name']}" for one in report[section]["attacks"]]
    return tuple(_one_line(text) for text in (*layers, *attacks))


def _one_line(text: str) -> str:
    """Printable and of bounded length, as every text that is signed."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printable.split())[:_LONGEST] or "(nothing was said)"

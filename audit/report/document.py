"""The JSON of an audit, as a published schema (docs/audit-report.schema.json).

Keys that are here stay; new ones may be added, so readers must ignore keys they do not know.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

SCHEMA_ID = "urn:privfair:audit-report:v1"

Rate = Annotated[float, Field(ge=0, le=1)]
Confidence = Annotated[float, Field(gt=0, lt=1)]
Epsilon = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=-2, le=2)]


class _Part(BaseModel):
    """Strict about what is there, tolerant of what later versions add."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)


class Promised(_Part):
    epsilon: Epsilon
    delta: Annotated[float, Field(ge=0, lt=1)]
    source: str


class Bound(_Part):
    """A lower bound on epsilon, by which method, and how its threshold was chosen."""

    epsilon: Epsilon
    delta: Annotated[float, Field(ge=0, lt=1)]
    confidence: Confidence
    method: str
    family: str
    mu: float | None
    selection: str
    comparisons: Annotated[int, Field(ge=1)]
    evidence: dict[str, Any]


class CurveTest(_Part):
    """The manifest's own trade-off curve on trial, at every delta at once."""

    p_value: Rate
    level: Rate
    refuted: bool


class StatisticalAttack(_Part):
    name: str
    power: Rate
    evidence: str
    bound: Bound
    curve: CurveTest | None = None


class CheckLine(_Part):
    layer: str
    name: str
    outcome: Literal["passed", "failed", "not possible"]
    finding: str


class Ends(_Part):
    """An estimate and the ends of its interval."""

    value: Share
    lower: Share
    upper: Share


class OneSet(_Part):
    accuracy: Ends
    advantage: Ends = Field(description="Over imputation, paired record by record.")


class AttributeAttackResult(_Part):
    name: str
    members: OneSet
    nonmembers: OneSet
    leakage: Ends = Field(description="Advantage over imputation on members minus that on non-members.")
    leaks: bool
    beats_imputation: bool = Field(description="On members, an attacker gains by it over imputing.")


class RecordCounts(_Part):
    members: Annotated[int, Field(ge=1)]
    nonmembers: Annotated[int, Field(ge=1)]
    auxiliary: Annotated[int, Field(ge=1)]


class Imputation(_Part):
    """Accuracy of a classifier that never sees the model."""

    members: Ends
    nonmembers: Ends


class NotApplied(_Part):
    name: str
    why: str


class Blind(_Part):
    """Whether members and non-members can be told apart without the model."""

    auc: Rate
    p_value: Rate


class AttributeSection(_Part):
    attribute: str
    values: Annotated[list[str], Field(min_length=2)]
    finding: Literal["leakage", "no leakage found", "not comparable"]
    why: str
    confidence: Confidence
    records: RecordCounts
    imputation: Imputation
    attacks: list[AttributeAttackResult]
    blind: Blind | None = None
    not_applied: list[NotApplied]
    method: str


class RocPoint(_Part):
    fpr: Rate
    tpr: Rate
    lower: Rate
    upper: Rate


class RateAt(_Part):
    fpr: Rate
    value: Rate
    lower: Rate
    upper: Rate


class MembershipAttackResult(_Part):
    name: str
    auc: Ends
    tpr_at_fpr: list[RateAt]
    roc: list[RocPoint]


class MembershipSection(_Part):
    members: Annotated[int, Field(ge=1)]
    nonmembers: Annotated[int, Field(ge=1)]
    confidence: Confidence
    attacks: list[MembershipAttackResult]


class AuditReport(_Part):
    """What `privfair audit --json` prints and `--out` writes."""

    verdict: Literal["consistent", "violated", "inconclusive"]
    why: str
    epsilon_lower: Epsilon | None = Field(description="With `confidence`, no smaller epsilon is true.")
    confidence: Confidence
    promised: Promised | None = Field(description="What is on trial; null where nothing was promised.")
    attacks: list[StatisticalAttack]
    checks: list[CheckLine]
    attribute_inference: AttributeSection | None = None
    attribute_inference_not_possible: str | None = None
    membership: MembershipSection | None = None
    subjects: dict[str, str] = Field(default_factory=dict, description="SHA-256 of the audited files, by role.")
    audited_at: str | None = None


def schema() -> dict[str, Any]:
    """The JSON schema that is published."""
    found = TypeAdapter(AuditReport).json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID, **found}


if __name__ == "__main__":
    import json

    print(json.dumps(schema(), indent=2))

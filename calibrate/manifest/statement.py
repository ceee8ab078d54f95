"""The in-toto Statement v1 around a budget document: what is signed, and what it is about.

Its two subjects are the plan and the data, by digest, so that generic in-toto tools can find the budget for
a plan without understanding the predicate. Both digests are in the document as well and must agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.manifest.document import PREDICATE_TYPE, BudgetDocument
from calibrate.manifest.strict_json import Json, NotStrictJson, canonical, parse_object

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PLAN_SUBJECT = "plan"
DATA_SUBJECT = "data-binding"


@dataclass(frozen=True)
class Statement:
    """A statement taken apart; neither its version nor its predicate has been looked at yet."""

    statement_type: str
    predicate_type: str
    subjects: Json
    predicate: dict[str, Json]


def statement_bytes(document: BudgetDocument) -> bytes:
    """The canonical bytes to be signed for a document."""
    return canonical(
        {
            "_type": STATEMENT_TYPE,
            "subject": expected_subjects(document),
            "predicateType": PREDICATE_TYPE,
            "predicate": document.to_json(),
        }
    )


def expected_subjects(document: BudgetDocument) -> list[Json]:
    """The subjects a document must have, recomputed from what it says."""
    return [
        {"name": PLAN_SUBJECT, "digest": {"sha256": document.config_digest}},
        {"name": DATA_SUBJECT, "digest": {"sha256": document.data.digest()}},
    ]


def read_statement(payload: bytes) -> Statement:
    """The parts of a statement; raises `NotStrictJson` unless it is canonical and has exactly its four fields."""
    fields = parse_object(payload)
    if canonical(fields) != payload:
        raise NotStrictJson("the statement is not in the canonical spelling of RFC 8785")
    if set(fields) != {"_type", "subject", "predicateType", "predicate"}:
        raise NotStrictJson("a statement has exactly the fields _type, subject, predicateType, predicate")
    statement_type, predicate_type = fields["_type"], fields["predicateType"]
    predicate = fields["predicate"]
    if not isinstance(statement_type, str) or not isinstance(predicate_type, str):
        raise NotStrictJson("_type and predicateType must be texts")
    if not isinstance(predicate, dict):
        raise NotStrictJson("the predicate must be an object")
    return Statement(statement_type, predicate_type, fields["subject"], predicate)

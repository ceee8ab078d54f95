"""The JSON Schemas of what is signed, as docs/reference has them: `python -m audit.report.schemas docs/reference`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from audit.report.statement import PREDICATE_TYPE, AuditPredicate
from calibrate.manifest.document import PREDICATE_TYPE as BUDGET_TYPE
from calibrate.manifest.document import BudgetDocument
from calibrate.manifest.strict_json import Json


def published_schemas() -> dict[str, dict[str, Json]]:
    """The schema of each predicate, by the name of its file."""
    found = {}
    for name, kind, model in (
        ("audit-predicate.schema.json", PREDICATE_TYPE, AuditPredicate),
        ("budget.schema.json", BUDGET_TYPE, BudgetDocument),
    ):
        schema = model.model_json_schema(mode="serialization", by_alias=True)
        found[name] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": kind, **schema}
    return found


if __name__ == "__main__":
    for file, schema in published_schemas().items():
        (Path(sys.argv[1]) / file).write_text(json.dumps(schema, indent=1) + "\n", encoding="utf-8")

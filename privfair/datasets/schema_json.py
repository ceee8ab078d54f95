"""A schema as JSON and back, so that a run folder can carry the schema its model was trained with."""

from __future__ import annotations

from typing import Any

from calibrate.errors import InvalidInput
from privfair.datasets.binding import Json
from privfair.datasets.scaling import (
    NonPrivateStandardisation,
    PaidScaling,
    PublicBounds,
    PublicMeanScale,
    Scaling,
    Transform,
    Unscaled,
)
from privfair.datasets.schema import SCHEMA_VERSION, CodedColumn, NumericColumn, Schema


def schema_from_json(document: Json) -> Schema:
    """The inverse of `Schema.as_json`; the result has the same digest, or this raises.

    Which column named the silo and what each silo had to hold are not part of the document: they belong to the
    files, not to the meaning of a record.
    """
    try:
        schema = _schema(document)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput("schema", "document", f"is not a schema ({error})", "take it from a run") from None
    if schema.as_json() != document:
        raise InvalidInput(
            "schema", "document", "has fields that this version does not know", "take it from a run"
        )
    return schema


def _schema(document: Any) -> Schema:
    if document["version"] != SCHEMA_VERSION:
        raise ValueError(f"version {document['version']!r} is not known")
    return Schema(
        target=_coded(document["target"]),
        sensitive=None if document["sensitive"] is None else _coded(document["sensitive"]),
        numeric=tuple(
            NumericColumn(entry["column"], _scaling(entry["scaling"]), tuple(entry.get("steps", ())))
            for entry in document["numeric"]
        ),
        categorical=tuple(_coded(entry) for entry in document["categorical"]),
    )


def _coded(entry: Any) -> CodedColumn:
    values = None if entry["values"] is None else tuple(entry["values"])
    return CodedColumn(entry["column"], values, tuple((source, target) for source, target in entry["merge"]))


def _scaling(entry: Any) -> Scaling:
    match entry["kind"]:
        case "public-bounds":
            return PublicBounds(entry["low"], entry["high"], Transform(entry["transform"]))
        case "public-mean-scale":
            return PublicMeanScale(
                entry["mean"], entry["scale"], Transform(entry["transform"]), entry["reach"]
            )
        case "paid":
            known = (
                entry["mean"],
                entry["scale"],
                entry["receipt"],
                Transform(entry["transform"]),
                entry["reach"],
            )
            return PaidScaling(*known)
        case "non-private-standardisation":
            return NonPrivateStandardisation(Transform(entry["transform"]))
        case "unscaled":
            return Unscaled()
        case other:
            raise ValueError(f"scaling {other!r} is not known")

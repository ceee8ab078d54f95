"""JSON read strictly and written canonically: one text, one meaning, one digest.

Ordinary JSON parsers keep the last of two equal keys, accept NaN, and swallow very deep or very large
documents. A signature over such a text would mean different things to different readers, so everything
ambiguous is refused here, before any field is looked at.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

import rfc8785

LARGEST_DOCUMENT = 1 << 20
"""Bytes; a budget with hundreds of releases stays below a tenth of this."""

DEEPEST_NESTING = 32
"""A release algebra nests a handful of levels; the rest is an attack on the parser's stack."""

LARGEST_EXACT_INTEGER = 2**53 - 1
"""Beyond it JSON readers disagree on whole numbers, so larger ones are doubles, as RFC 8785 writes them."""

_STRING = re.compile(r'"(?:[^"\\]+|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A JSON string, or an unterminated one up to the end; possessive, so that scanning stays linear."""

_BRACKET = re.compile(r"[\[\]{}]")

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]


class NotStrictJson(ValueError):
    """The text is not JSON with exactly one meaning; the message says what is ambiguous or broken."""


def parse(text: bytes, largest: int = LARGEST_DOCUMENT) -> Json:
    """The value of a strict JSON text; raises `NotStrictJson` for anything a second reader could read otherwise."""
    if len(text) > largest:
        raise NotStrictJson(f"the document has {len(text)} bytes, more than the {largest} allowed")
    try:
        decoded = text.decode("utf-8", errors="strict")
    except UnicodeDecodeError as broken:
        raise NotStrictJson(f"byte {broken.start} is not UTF-8") from broken
    _refuse_deep_nesting(decoded)
    try:
        value: Json = json.loads(
            decoded,
            object_pairs_hook=_object_without_duplicates,
            parse_constant=_refuse_constant,
            parse_float=_finite_double,
            parse_int=_integer_or_double,
        )
    except json.JSONDecodeError as broken:
        raise NotStrictJson(f"not JSON: {broken.msg} at character {broken.pos}") from broken
    _refuse_lone_surrogates(decoded, value)
    return value


def parse_object(text: bytes, largest: int = LARGEST_DOCUMENT) -> dict[str, Json]:
    """As `parse`, for a text that must be one JSON object."""
    value = parse(text, largest)
    if not isinstance(value, dict):
        raise NotStrictJson(f"expected a JSON object, found {type(value).__name__}")
    return value


def canonical(value: Json) -> bytes:
    """The RFC 8785 text of a value; equal values have equal bytes, so it is what gets signed and digested."""
    try:
        return rfc8785.dumps(value)
    except rfc8785.CanonicalizationError as broken:
        raise NotStrictJson(f"has no canonical form: {broken}") from broken


def digest(value: Json) -> str:
    """SHA-256 of the canonical text, in lower-case hexadecimal."""
    return digest_of_bytes(canonical(value))


def digest_of_bytes(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _object_without_duplicates(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for key, value in pairs:
        if key in found:
            raise NotStrictJson(f"the key {key!r} appears twice in one object")
        found[key] = value
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise NotStrictJson(f"{name} is not a JSON number")


def _finite_double(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise NotStrictJson(f"the number {text[:40]} is too large for a double")
    return value


def _integer_or_double(text: str) -> int | float:
    if len(text) > 400:
        raise NotStrictJson(f"a number has {len(text)} digits")
    value = int(text)
    return value if abs(value) <= LARGEST_EXACT_INTEGER else _finite_double(text)


def _refuse_deep_nesting(text: str) -> None:
    """Counts brackets outside strings, because the parser itself recurses and would crash first."""
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        if depth > DEEPEST_NESTING:
            raise NotStrictJson(f"nested deeper than {DEEPEST_NESTING} levels")


def _refuse_lone_surrogates(text: str, value: Json) -> None:
    r"""`\ud800` alone is no character; two readers replace it differently."""
    if "\\u" not in text:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as broken:
        raise NotStrictJson("a string holds half of a surrogate pair") from broken

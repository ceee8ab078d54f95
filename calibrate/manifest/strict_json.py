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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import NoReturn

import rfc8785
from pydantic import ValidationError

from calibrate.errors import InvalidInput, ManifestRefused

# The numbered steps of verification, in their order, and the refusal each of them raises.

_LONGEST_CLAUSE = 400


class Step(Enum):
    """Where a manifest can fail. Steps 1 to 4 look at no content: only verified bytes are parsed."""

    ENVELOPE = (1, "envelope", "fetch the manifest file again as privfair wrote it")
    PAYLOAD_TYPE = (2, "payload type", "give a budget manifest, not another signed document")
    SIGNATURES = (3, "signatures", "have every role of the trust file sign this very manifest")
    KEY_STATUS = (4, "key validity and revocation", "have it signed again with a key that is valid now")
    STATEMENT = (5, "statement", "have the budget issued again by privfair")
    VERSION = (6, "version", "issue the budget with the privfair version in use here")
    DOCUMENT = (7, "document", "have the budget issued again by privfair")
    SUBJECTS = (8, "subjects", "have the budget issued again by privfair")
    VALIDITY = (9, "validity window", "ask for a budget that is valid now")
    PLAN = (10, "plan", "run the plan that was signed, or have this plan signed")
    DATA = (11, "data", "run on the data that was signed for, or have a budget signed for this data")
    PRICE = (12, "price", "issue the budget again with noise that two accountants certify")

    def __init__(self, number: int, title: str, remedy: str) -> None:
        self.number = number
        self.title = title
        self.remedy = remedy

    @property
    def label(self) -> str:
        return f"{self.number} ({self.title})"

    def refuse(self, why: str, remedy: str | None = None) -> ManifestRefused:
        return ManifestRefused(self.label, why, remedy or self.remedy)


@contextmanager
def in_our_words(argument: str) -> Iterator[None]:
    """For values that people give: pydantic's complaint becomes an `InvalidInput` that names the field."""
    try:
        yield
    except ValidationError as broken:
        raise InvalidInput(argument, "(as given)", first_fault(broken), "fix it and try again") from broken


def first_fault(broken: ValidationError) -> str:
    """The first complaint of pydantic as one printable clause, for hostile input may be quoted in it."""
    fault = broken.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    clause = f"{place}: {message}" if place else message
    return "".join(letter if letter.isprintable() else "?" for letter in clause)[:_LONGEST_CLAUSE]


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
    """SHA-256 of exactly these bytes, as 64 hexadecimal digits."""
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

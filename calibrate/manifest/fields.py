"""The kinds of value a manifest may hold, each with exactly one spelling.

Texts are printable, because an officer reads them on a terminal: a control or bidirectional character could
make a page say something other than what was signed. Instants are UTC to the second. Numbers are finite.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer
from pydantic.alias_generators import to_camel

_INSTANT = "%Y-%m-%dT%H:%M:%SZ"


class StrictModel(BaseModel):
    """Frozen, no unknown fields, no coercion, no NaN; camelCase in JSON, snake_case in Python."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        alias_generator=to_camel,
        populate_by_name=True,
        hide_input_in_errors=True,
    )


def _printable(text: str) -> str:
    if not text.isprintable() or text != text.strip():
        raise ValueError("must be printable, without line breaks or spaces at its ends")
    return text


def instant_from_text(value: object) -> object:
    """The instant of `2030-01-31T12:00:00Z`, the only spelling; other types pass on to the next check."""
    if not isinstance(value, str):
        return value
    try:
        instant = datetime.strptime(value, _INSTANT).replace(tzinfo=UTC)
    except ValueError as broken:
        raise ValueError(f"must be written like 2030-01-31T12:00:00Z, not {value[:40]!r}") from broken
    if instant_to_text(instant) != value:
        raise ValueError(f"must be written like 2030-01-31T12:00:00Z, not {value[:40]!r}")
    return instant


def instant_to_text(value: datetime) -> str:
    return value.strftime(_INSTANT)


def whole_utc_second(value: datetime) -> datetime:
    """The instant in UTC without fractions; a time without zone is refused, because it names no instant."""
    if value.tzinfo is None:
        raise ValueError("must carry a time zone")
    return value.astimezone(UTC).replace(microsecond=0)


Text = Annotated[str, Field(min_length=1, max_length=4000), AfterValidator(_printable)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,63}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Nonce = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Positive = Annotated[float, Field(gt=0)]
OpenUnit = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=1, le=2**53 - 1)]
Instant = Annotated[
    datetime,
    BeforeValidator(instant_from_text),
    AfterValidator(whole_utc_second),
    PlainSerializer(instant_to_text, return_type=str),
]

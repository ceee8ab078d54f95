"""The numbered steps of verification, in their order, and the refusal each of them raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from pydantic import ValidationError

from calibrate.errors import InvalidInput, ManifestRefused

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
        raise InvalidInput(argument, "(as given)", first_fault(broken), "mend it and try again") from broken


def first_fault(broken: ValidationError) -> str:
    """The first complaint of pydantic as one printable clause, for hostile input may be quoted in it."""
    fault = broken.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(part) for part in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    clause = f"{place}: {message}" if place else message
    return "".join(letter if letter.isprintable() else "?" for letter in clause)[:_LONGEST_CLAUSE]

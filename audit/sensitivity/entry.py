"""One claim of the catalogue: what is claimed, about which function, for which data sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from audit.sensitivity.claim import DistanceClaim
from audit.sensitivity.falsify import Finding, Search, falsify
from audit.sensitivity.subject import Subject


@final
@dataclass(frozen=True, eq=False)
class Entry:
    """A claim by its id; `says` is the claim in words with its source."""

    id: str
    says: str
    claim: DistanceClaim
    subject: Subject

    def check(self, search: Search | None = None) -> Finding:
        return falsify(self.subject, self.claim, search)

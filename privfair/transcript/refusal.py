"""The one way in which a transcript says no."""

from __future__ import annotations

from calibrate.errors import Refused


class TranscriptRefused(Refused):
    """The transcript is damaged, does not fit its ledger, or may not be written so."""

    def __init__(self, subject: str, rule: str, remedy: str) -> None:
        self.subject = subject
        self.rule = rule
        self.remedy = remedy
        super().__init__(f"transcript refused {subject}: {rule}; {remedy}")

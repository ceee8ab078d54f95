"""The run transcript: what an observer of the silos saw, value by value, bound to manifest and ledger."""

from privfair.transcript.header import FloatFormat, TranscriptHeader, TranscriptRefused, ValueSpec, release_digest
from privfair.transcript.reader import Agreement, Ending, Transcript
from privfair.transcript.writer import TranscriptWriter

__all__ = [
    "Agreement",
    "Ending",
    "FloatFormat",
    "Transcript",
    "TranscriptHeader",
    "TranscriptRefused",
    "TranscriptWriter",
    "ValueSpec",
    "release_digest",
]

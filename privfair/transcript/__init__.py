"""The run transcript: what an observer of the silos saw, value by value, bound to manifest and ledger."""

from privfair.transcript.header import FloatFormat, TranscriptHeader, TranscriptRefused, ValueSpec, release_digest
from privfair.transcript.reader import Agreement, Ending, PartOfRun, Transcript, merged_identity
from privfair.transcript.storage import NotedState
from privfair.transcript.writer import TranscriptWriter

__all__ = [
    "Agreement",
    "Ending",
    "FloatFormat",
    "NotedState",
    "PartOfRun",
    "Transcript",
    "TranscriptHeader",
    "TranscriptRefused",
    "TranscriptWriter",
    "ValueSpec",
    "merged_identity",
    "release_digest",
]

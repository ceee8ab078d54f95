"""The run transcript: what an observer of the silos saw, value by value, bound to manifest and ledger."""

from privfair.transcript.reader import Ending, PartOfRun, Transcript, merged_identity
from privfair.transcript.storage import FloatFormat, NotedState, TranscriptHeader, ValueSpec
from privfair.transcript.writer import TranscriptWriter

__all__ = [
    "Ending",
    "FloatFormat",
    "NotedState",
    "PartOfRun",
    "Transcript",
    "TranscriptHeader",
    "TranscriptWriter",
    "ValueSpec",
    "merged_identity",
]

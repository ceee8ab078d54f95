"""Randomness that an auditor knows: the one door to it, which an import contract opens to the audit's reruns alone.

With a known key an auditor computes every published number of a rehearsal again, bit for bit. `OpenRun` refuses a key
where a budget of someone else could be spent, and the transcript's header names the noise as a rehearsal's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import shake_256
from itertools import count
from typing import final


@final
@dataclass(frozen=True, repr=False)
class RehearsalKey:
    """Takes the place of the operating system's entropy in one rehearsal: the same bytes for the same secret."""

    secret: bytes

    def source(self, purpose: str) -> Callable[[int], bytes]:
        """A new sequence for this purpose; each call gives its next `size` bytes."""
        numbers = count()
        return lambda size: shake_256(self.secret + f" {purpose} {next(numbers)}".encode()).digest(size)

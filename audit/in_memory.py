"""Where an auditor's runs keep their files: in memory, if the system has a place for that."""

from __future__ import annotations

import os
from pathlib import Path


def in_memory() -> Path | None:
    """A folder that never meets a disk; None (the default place) where there is none.

    An auditor's ledger and transcripts are thrown away after each run, so they need not outlive a power cut.
    """
    place = Path("/dev/shm")
    return place if place.is_dir() and os.access(place, os.W_OK) else None

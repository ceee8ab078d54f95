"""All planted bugs."""

from __future__ import annotations

from tests.planted_bugs.clipping_bugs import CLIPPING_BUGS
from tests.planted_bugs.counting_bugs import COUNTING_BUGS
from tests.planted_bugs.memory_bugs import MEMORY_BUGS
from tests.planted_bugs.noise_bugs import NOISE_BUGS

BUGS = (*NOISE_BUGS, *CLIPPING_BUGS, *COUNTING_BUGS, *MEMORY_BUGS)

"""Which independence is asked of the predictions, and which records it speaks of. Importable without torch."""

from __future__ import annotations

from enum import Enum
from typing import assert_never

from calibrate.validation import count


class Independence(Enum):
    """Predictions independent of the group: for everybody, within each class, or within one class."""

    DEMOGRAPHIC_PARITY = "demographic-parity"
    EQUALISED_ODDS = "equalised-odds"
    EQUAL_OPPORTUNITY = "equal-opportunity"

    def blocks(self, classes: int) -> int:
        """The number of record sets within which independence is asked for, each with its own W.

        A record is in at most one block, and its class alone says in which: the class is not protected under
        attribute privacy, so the blocks reveal nothing.
        """
        match self:
            case Independence.DEMOGRAPHIC_PARITY | Independence.EQUAL_OPPORTUNITY:
                return 1
            case Independence.EQUALISED_ODDS:
                return count("classes", classes, least=2)
            case _:
                assert_never(self)

"""Yeom et al. (CSF 2018, attribute inference by confidence): the value that makes the true label most likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from audit.attacks.attribute.attack import Guess, Knowledge, needs_input
from audit.attacks.attribute.records import Asked, Codes


@final
@dataclass(frozen=True)
class Yeom:
    """argmax over v of p(label | record with v) * prior(v)."""

    name: str = "Yeom"

    def obstacle(self, knowledge: Knowledge) -> str | None:
        return needs_input(knowledge)

    def learn(self, knowledge: Knowledge) -> Guess:
        prior = knowledge.prior

        def guess(asked: Asked) -> Codes:
            return np.asarray((knowledge.confidences(asked) * prior).argmax(axis=1), dtype=np.int64)

        return guess

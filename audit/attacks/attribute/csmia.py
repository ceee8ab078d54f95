"""CSMIA (Mehnaz et al., USENIX Security 2022): confidence scores, by how many values give the true label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from audit.attacks.attribute.attack import Guess, Knowledge, needs_input
from audit.attacks.attribute.records import Asked, Codes


@final
@dataclass(frozen=True)
class Csmia:
    """Some values right: the most confident of them. None right: the least confident."""

    name: str = "CSMIA"

    def obstacle(self, knowledge: Knowledge) -> str | None:
        return needs_input(knowledge)

    def learn(self, knowledge: Knowledge) -> Guess:
        def guess(asked: Asked) -> Codes:
            answers = knowledge.answers(asked)
            right = (answers.argmax(axis=2) == asked.labels).T
            firmness = answers.max(axis=2).T
            among_right = np.where(right, firmness, -np.inf).argmax(axis=1)
            chosen = np.where(right.any(axis=1), among_right, firmness.argmin(axis=1))
            return np.asarray(chosen, dtype=np.int64)

        return guess

"""LOMIA (Mehnaz et al., USENIX Security 2022): labels only.

Where exactly one value makes the model predict the true label, that value is the guess. Such records teach a
classifier what to guess elsewhere. It is taught by the members the attacker knows, with the model's word for their
attribute and not their true one, so that asked records stay independent of one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from audit.attacks.attribute.attack import Guess, Knowledge, needs_input
from audit.attacks.attribute.classifiers import fit_classifier
from audit.attacks.attribute.records import Asked, Codes


@final
@dataclass(frozen=True)
class Lomia:
    """The only value that gives the true label, else what a classifier learned from such records."""

    name: str = "LOMIA"

    def obstacle(self, knowledge: Knowledge) -> str | None:
        return needs_input(knowledge)

    def learn(self, knowledge: Knowledge) -> Guess:
        elsewhere = self._elsewhere(knowledge)

        def guess(asked: Asked) -> Codes:
            one, which = _only_value(knowledge, asked)
            return np.where(one, which, elsewhere(asked)).astype(np.int64)

        return guess

    def _elsewhere(self, knowledge: Knowledge) -> Guess:
        known = knowledge.known_members.asked(knowledge.attribute)
        one, which = _only_value(knowledge, known)
        if not one.any():
            likeliest = int(knowledge.prior.argmax())
            return lambda asked: np.full(len(asked), likeliest, dtype=np.int64)
        teachers = Asked(known.features[one], known.labels[one])
        classifier = fit_classifier(
            knowledge.context(teachers), which[one], len(knowledge.attribute.values), knowledge.seed
        )
        return lambda asked: classifier.guesses(knowledge.context(asked))


def _only_value(knowledge: Knowledge, asked: Asked) -> tuple[NDArray[np.bool_], Codes]:
    """Whether one value alone gives the true label, and which."""
    right = (knowledge.answers(asked).argmax(axis=2) == asked.labels).T
    return right.sum(axis=1) == 1, np.asarray(right.argmax(axis=1), dtype=np.int64)

"""Attacks that learn, from members whose attribute is known, what the model's answers betray of it.

They work also where the attribute is no input of the model: a model that was steered by the attribute may still
have memorised it. Beside the answers they see what imputation sees, so that they start from imputation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np

from audit.attacks.attribute.attack import Guess, Knowledge
from audit.attacks.attribute.classifiers import fit_classifier
from audit.attacks.attribute.records import Asked
from audit.attacks.attribute.target import WhiteBoxTarget
from calibrate.arrays import Floats

_SMALLEST = 1e-12


@final
@dataclass(frozen=True)
class LearnedFromOutputs:
    """Black box: from features, label and the model's probabilities for every candidate value."""

    name: str = "learned from outputs"

    def obstacle(self, knowledge: Knowledge) -> str | None:
        return None

    def learn(self, knowledge: Knowledge) -> Guess:
        return _learned(knowledge, _outputs)


@final
@dataclass(frozen=True)
class WhiteBox:
    """From what the weights tell as well: activations, scores and the norm of the loss gradient.

    Jayaraman and Evans (CCS 2022) look for single neurons that follow the attribute; here a classifier weighs all.
    """

    name: str = "white box"

    def obstacle(self, knowledge: Knowledge) -> str | None:
        return None if isinstance(knowledge.target, WhiteBoxTarget) else "the model's weights are not at hand"

    def learn(self, knowledge: Knowledge) -> Guess:
        return _learned(knowledge, _everything)


def _learned(knowledge: Knowledge, seen: Callable[[Knowledge, Asked], Floats]) -> Guess:
    known = knowledge.known_members
    classifier = fit_classifier(
        seen(knowledge, known.asked(knowledge.attribute)),
        known.sensitive,
        len(knowledge.attribute.values),
        knowledge.seed,
    )
    return lambda asked: classifier.guesses(seen(knowledge, asked))


def _outputs(knowledge: Knowledge, asked: Asked) -> Floats:
    scores = np.log(np.maximum(knowledge.answers(asked), _SMALLEST))
    of_label = scores[:, np.arange(len(asked)), asked.labels]
    return np.hstack([knowledge.context(asked), *scores, of_label.T, _compared(of_label).T])


def _everything(knowledge: Knowledge, asked: Asked) -> Floats:
    assert isinstance(knowledge.target, WhiteBoxTarget)
    signals = np.stack(
        [
            knowledge.target.signals(version, asked.labels)
            for version in knowledge.attribute.candidates(asked.features)
        ]
    )
    return np.hstack([_outputs(knowledge, asked), *signals, *_compared(signals)])


def _compared(candidates: Floats) -> Floats:
    """Each candidate against their mean: trees split one column at a time and would not find a difference."""
    return candidates - candidates.mean(axis=0) if len(candidates) > 1 else candidates[:0]

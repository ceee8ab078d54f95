"""CSMIA (Mehnaz et al., USENIX Security 2022): confidence scores, by how many values give the true label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, final

import numpy as np

from audit.attribute.records import Asked, Attribute, AttributeRecords, Codes
from audit.attribute.targets import Target
from calibrate.arrays import Floats

# What every attribute attack is given, and what it must do.

Guess = Callable[[Asked], Codes]
"""From records without their attribute to one guess each; each record by itself, so that guesses are independent."""


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What the attacker has: the model, and some members with their attribute, none of which is asked about."""

    target: Target
    attribute: Attribute
    known_members: AttributeRecords
    classes: int
    seed: int

    @property
    def prior(self) -> Floats:
        """How frequent each value is among the records the attacker knows; never zero."""
        counts = np.bincount(self.known_members.sensitive, minlength=len(self.attribute.values)) + 1.0
        return np.asarray(counts / counts.sum(), dtype=np.float64)

    def context(self, asked: Asked) -> Floats:
        """What is known of a record without the model: its other features and its label."""
        return np.hstack([self.attribute.others(asked.features), np.eye(self.classes)[asked.labels]])

    def answers(self, asked: Asked) -> Floats:
        """The model's probabilities for every candidate value: candidates x records x classes."""
        return np.stack([self.target.probabilities(version) for version in self.attribute.candidates(asked.features)])

    def confidences(self, asked: Asked) -> Floats:
        """The probability of each record's true label, for every candidate value: records x candidates."""
        answers = self.answers(asked)
        return np.asarray(answers[:, np.arange(len(asked)), asked.labels].T, dtype=np.float64)


class AttributeAttack(Protocol):
    """One way to guess the attribute."""

    @property
    def name(self) -> str: ...

    def obstacle(self, knowledge: Knowledge) -> str | None:
        """Why the attack cannot be made here; None if it can."""
        ...

    def learn(self, knowledge: Knowledge) -> Guess:
        """Everything that happens before the first record is asked about."""
        ...


def needs_input(knowledge: Knowledge) -> str | None:
    """The obstacle of attacks that ask the model about every value in turn."""
    if knowledge.attribute.input is None:
        return f"{knowledge.attribute.name} is not an input of the model, so its values cannot be tried out"
    return None


# Yeom et al. (CSF 2018, attribute inference by confidence): the value that makes the true label most likely.


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

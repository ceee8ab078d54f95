"""What may be asked of an audit, and how hard it looks where its auditor does not say; loads nothing heavy.

This is the one place of every default that decides a verdict: the command line, `privfair run`, `privfair demo`, Python
and the estimator take theirs from here.
"""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.errors import InvalidInput, count, open_unit, positive
from calibrate.plugins import PluginGroup, installed_plugins

CONFIDENCE = 0.95
"""Of all bounds of one audit together, where neither the auditor nor the algorithm asks for more."""
TRAINING_RUNS = 32
"""How often a training function is called where its auditor does not say."""
_CONFIDENCE_BY_ALGORITHM = {"pay-once": 0.999}
"""Pay-once costs exactly what it promises, and its coins are read by the best decoder there is: at 95% one honest run
in twenty would be called violated."""


@dataclass(frozen=True)
class AuditOptions:
    """The effort of one audit of a run. `reruns` of 0 leaves the statistical attacks out.

    Each is one rerun on attribute coins, or ten seconds (and at most fifty runs) of canaries, whose runs are shorter.
    `budget_seconds` of processor time are for more reruns, where an attack is as right as without noise and cannot
    decide, and for trying units one by one. `confidence` None is chosen by the algorithm of the run.
    """

    reruns: int = 4
    seed: int = 0
    confidence: float | None = None
    budget_seconds: float = 60.0

    def __post_init__(self) -> None:
        count("reruns", self.reruns, least=0)
        if self.confidence is not None:
            open_unit("confidence", self.confidence)
        if self.budget_seconds:
            positive("budget seconds", self.budget_seconds)

    @classmethod
    def of(
        cls,
        reruns: int | None = None,
        seed: int = 0,
        confidence: float | None = None,
        budget_seconds: float | None = None,
    ) -> AuditOptions:
        """What the auditor gave, and the default for each None."""
        return cls(
            DEFAULTS.reruns if reruns is None else reruns,
            seed,
            confidence,
            DEFAULTS.budget_seconds if budget_seconds is None else budget_seconds,
        )

    def confidence_for(self, algorithm: str) -> float:
        """The confidence that was given, or the one that suits a run of this algorithm."""
        if self.confidence is not None:
            return self.confidence
        return _CONFIDENCE_BY_ALGORITHM.get(algorithm, CONFIDENCE)


DEFAULTS = AuditOptions()
DEMO_SECONDS = 0.0
"""Of the audit in `privfair demo`, which shall end in about a minute; its reruns and confidence are the defaults."""


BY_CLASS, BY_CORRECTNESS = "class", "correctness"
LEAST_MODELS = 16
"""Half of the shadow models teach how a record looks in and out, the others are counted."""


@dataclass(frozen=True)
class ExposureOptions:
    """What to look at next to the attacks on all records."""

    by: tuple[str, ...] = ()
    """class, correctness, or the name of a column."""
    records: int = 0
    """How many of the most exposed records to list."""


def require_attack(name: str) -> None:
    """Refuse the name of an attack that no installed package brings; nothing is imported."""
    known = [one.name for one in installed_plugins(PluginGroup.ATTACKS)]
    if name not in known:
        remedy = f"use {', '.join(known)}" if known else "install the package that brings it"
        raise InvalidInput("attack", name, "is not an installed attack (built-in ones run by themselves)", remedy)


def require_models(shadow_models: int, exposed: int) -> None:
    """Refuse a number of shadow models that no attack, or no list of `exposed` records, can use."""
    count("shadow models", shadow_models, least=0)
    if shadow_models == 1:
        raise InvalidInput("shadow models", 1, "must be 0 or at least 2", "one model has no half to be without")
    if exposed and shadow_models < LEAST_MODELS:
        rule = f"must be at least {LEAST_MODELS} for a list of exposed records"
        raise InvalidInput("shadow models", shadow_models, rule, "train more, or leave the list out")

"""How hard a run is audited where its auditor does not say: the one place of every default that decides a verdict.

The command line, `privfair run`, `privfair demo`, Python and the estimator all take their defaults from here.
"""

from __future__ import annotations

from dataclasses import dataclass

from calibrate.errors import count, open_unit, positive

CONFIDENCE = 0.95
"""Of all bounds of one audit together, where neither the auditor nor the algorithm asks for more."""
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

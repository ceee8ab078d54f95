"""What is on trial in a membership audit: a manifest's promise to a record, or the auditor's own number."""

from __future__ import annotations

from dataclasses import dataclass

from audit.verdict import Promise
from calibrate.errors import UnsupportedCombination
from calibrate.manifest.document import BudgetDocument
from calibrate.privacy_unit import EpsilonDelta, Protected, Relation


@dataclass(frozen=True)
class Claim:
    """The promise, and which change of the data it speaks of."""

    promise: Promise
    relation: Relation

    @classmethod
    def said(cls, epsilon: float, delta: float, relation: Relation) -> Claim:
        """A claim made in words, without a manifest."""
        EpsilonDelta(epsilon, delta)
        return cls(Promise(epsilon, delta, "what the auditor was told"), relation)

    @classmethod
    def of_manifest(cls, document: BudgetDocument) -> Claim | None:
        """None where nothing is promised; refused where the promise is not about a record taking part."""
        from audit.run_audit import on_trial

        promise = on_trial(document)
        if promise is None:
            return None
        unit = document.guarantee.privacy_unit()
        if unit.protected is not Protected.RECORD:
            raise UnsupportedCombination(
                f"a membership audit of a promise to each {unit.protected.value}",
                "it asks whether single records took part",
                "audit the run folder itself (privfair audit RUN/)",
            )
        return cls(promise, unit.relation)

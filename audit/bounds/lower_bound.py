"""The answer of every bound: an epsilon that the release is not better than, with its evidence."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import Enum

from audit.bounds.counts import ErrorCounts, GuessCounts
from audit.bounds.trade_off import CurveFamily
from calibrate.errors import InvalidInput
from calibrate.validation import open_unit


class Method(Enum):
    CLOPPER_PEARSON = "clopper-pearson"
    GAUSSIAN = "gaussian"
    JOINT_EXACT = "joint-exact"
    ONE_RUN = "one-run"
    F_DP = "f-dp-one-run"
    E_PROCESS = "e-process"


class Selection(Enum):
    """How the threshold, or the number of guesses, was chosen, so that the error includes the choice."""

    FIXED = "fixed beforehand"
    BONFERRONI = "Bonferroni over a declared grid"
    SPLIT = "chosen on a separate part of the data"
    SEQUENTIAL = "none to choose: valid at all prefixes at once"


@dataclass(frozen=True)
class LowerBound:
    """With probability at least `confidence` the release is not (e, delta) private for any e < `epsilon`.

    Guarantee: docs/theorems/audit-bounds.md, the section named by `method`. The probability is over the
    coins and the noise of the audited runs. With family GAUSSIAN the statement holds for releases that are
    Gaussian (or dominated by one), and `mu` is the bound on that Gaussian.
    """

    epsilon: float
    delta: float
    confidence: float
    method: Method
    family: CurveFamily
    evidence: ErrorCounts | GuessCounts
    mu: float | None = None
    selection: Selection = Selection.FIXED
    comparisons: int = 1

    def __post_init__(self) -> None:
        open_unit("confidence", self.confidence)
        if not self.epsilon >= 0:
            raise InvalidInput("epsilon", self.epsilon, "must be at least 0", "report this as a bug")

    def refutes(self, claimed_epsilon: float) -> bool:
        """Whether a promise of `claimed_epsilon` at this delta is contradicted."""
        return self.epsilon > claimed_epsilon

    def selected_by(self, selection: Selection, comparisons: int, confidence: float) -> LowerBound:
        """The same bound, saying how its threshold was chosen and what confidence is left after that."""
        return replace(self, selection=selection, comparisons=comparisons, confidence=confidence)

    def as_json(self) -> dict[str, object]:
        """Plain values for a report."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "confidence": self.confidence,
            "method": self.method.value,
            "family": self.family.value,
            "mu": self.mu,
            "selection": self.selection.value,
            "comparisons": self.comparisons,
            "evidence": asdict(self.evidence),
        }


def allowed_failure(confidence: float) -> float:
    """1 - confidence, checked."""
    return 1 - open_unit("confidence", confidence)

"""Epsilon lower bounds: what an attack's right and wrong answers prove about a release.

Every bound here is valid with the choice of its threshold included (docs/theorems/audit-bounds.md).
"""

from audit.bounds.e_process import EProcess
from audit.bounds.error_box import ClopperPearson, FDPOneRun, GaussianBox
from audit.bounds.guesses import (
    FixedGuesses,
    GuessGrid,
    RankedGuesses,
    SplitGuesses,
    bound_from_guesses,
    counts_at,
    p_value_from_guesses,
)
from audit.bounds.joint_exact import JointExact
from audit.bounds.lower_bound import ErrorCounts, GuessCounts, LowerBound, Method, Selection
from audit.bounds.one_run import DeltaTerm, OneRun
from audit.bounds.power import CONCLUSIVE, OneRunDesign, RepeatedDesign, power_against, power_at
from audit.bounds.thresholds import (
    FixedThreshold,
    RunScores,
    SplitRuns,
    ThresholdGrid,
    bound_from_scores,
    p_value_from_scores,
)
from audit.bounds.trade_off import CurveFamily, EpsilonDeltaCurve, GaussianCurve, ProfileCurve, TradeOff, curve_at

__all__ = [
    "CONCLUSIVE",
    "ClopperPearson",
    "CurveFamily",
    "DeltaTerm",
    "EProcess",
    "EpsilonDeltaCurve",
    "ErrorCounts",
    "FDPOneRun",
    "FixedGuesses",
    "FixedThreshold",
    "GaussianBox",
    "GaussianCurve",
    "GuessCounts",
    "GuessGrid",
    "JointExact",
    "LowerBound",
    "Method",
    "OneRun",
    "OneRunDesign",
    "ProfileCurve",
    "RankedGuesses",
    "RepeatedDesign",
    "RunScores",
    "Selection",
    "SplitGuesses",
    "SplitRuns",
    "ThresholdGrid",
    "TradeOff",
    "bound_from_guesses",
    "bound_from_scores",
    "counts_at",
    "curve_at",
    "p_value_from_guesses",
    "p_value_from_scores",
    "power_against",
    "power_at",
]

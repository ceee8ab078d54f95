"""Epsilon lower bounds: what an attack's right and wrong answers prove about a release.

Every bound here is valid with the choice of its threshold included (docs/theorems/audit-bounds.md), and every default
assumes nothing about the release: a Gaussian reading has to be asked for with `CurveFamily.GAUSSIAN`.
"""

from audit.bounds.e_process import EProcess
from audit.bounds.guesses import RankedGuesses, counts_at, share_right
from audit.bounds.lower_bound import ErrorCounts, GuessCounts, LowerBound, Method, Selection, bound_over, p_value_over
from audit.bounds.mechanism import MechanismOneRun, best_guesses, bound_for, claimed_curve, declared_price
from audit.bounds.one_run import FDPOneRun, OneRun
from audit.bounds.power import CONCLUSIVE, OneRunDesign, RepeatedDesign, power_against, power_at
from audit.bounds.repeated_runs import ClopperPearson, JointExact
from audit.bounds.trade_off import CurveFamily, EpsilonDeltaCurve, GaussianCurve, ProfileCurve, TradeOff, curve_at

__all__ = [
    "CONCLUSIVE",
    "ClopperPearson",
    "CurveFamily",
    "EProcess",
    "EpsilonDeltaCurve",
    "ErrorCounts",
    "FDPOneRun",
    "GaussianCurve",
    "GuessCounts",
    "JointExact",
    "LowerBound",
    "MechanismOneRun",
    "Method",
    "OneRun",
    "OneRunDesign",
    "ProfileCurve",
    "RankedGuesses",
    "RepeatedDesign",
    "Selection",
    "TradeOff",
    "best_guesses",
    "bound_for",
    "bound_over",
    "claimed_curve",
    "counts_at",
    "curve_at",
    "declared_price",
    "p_value_over",
    "power_against",
    "power_at",
    "share_right",
]

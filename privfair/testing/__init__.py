"""For tests of one's own: is this function's sensitivity what I think, does this mechanism keep its epsilon, and
does my plan, algorithm, theorem or attack keep what privfair relies on?

>>> from privfair.testing import Box, Domain, assert_sensitivity
>>> assert_sensitivity(lambda x: x.sum(), 1.0, Domain({"x": Box(0, 1)})).verdict
'not refuted'
"""

from __future__ import annotations

from audit.claims.assert_dp import MechanismResult, MechanismSearch, PrivacyRefuted, assert_dp
from audit.claims.claim import Arrays, DistanceClaim, Domain
from audit.claims.falsify import Search, SearchResult, SensitivityRefuted, assert_sensitivity
from audit.claims.spaces import Ball, Box, Category, ProbabilitySlopes, Simplex
from calibrate.privacy_unit import Norm, Protected, Relation
from privfair.testing.contracts import ContractBroken, check_algorithm, check_attack, check_plan, check_theorem

__all__ = [
    "Arrays",
    "Ball",
    "Box",
    "Category",
    "ContractBroken",
    "DistanceClaim",
    "Domain",
    "MechanismResult",
    "MechanismSearch",
    "Norm",
    "PrivacyRefuted",
    "ProbabilitySlopes",
    "Protected",
    "Relation",
    "Search",
    "SearchResult",
    "SensitivityRefuted",
    "Simplex",
    "assert_dp",
    "assert_sensitivity",
    "check_algorithm",
    "check_attack",
    "check_plan",
    "check_theorem",
]

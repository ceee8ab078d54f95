"""For tests of one's own: is this function's sensitivity what I think, and does this mechanism keep its epsilon?

>>> from privfair.testing import Box, Domain, assert_sensitivity
>>> assert_sensitivity(lambda x: x.sum(), 1.0, Domain({"x": Box(0, 1)})).verdict
'not refuted'
"""

from __future__ import annotations

from audit.mechanisms.assert_dp import MechanismResult, MechanismSearch, PrivacyRefuted, assert_dp
from audit.sensitivity.claim import Arrays, DistanceClaim
from audit.sensitivity.domain import Domain
from audit.sensitivity.falsify import Search, SearchResult, SensitivityRefuted, assert_sensitivity
from audit.sensitivity.spaces import Ball, Box, Category, ProbabilitySlopes, Simplex
from calibrate.claims import Norm
from calibrate.privacy_unit import Protected, Relation

__all__ = [
    "Arrays",
    "Ball",
    "Box",
    "Category",
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
]
